"""The whole of a training as one compiled loop on the CPU, over blocks of runs side by side."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from iclflow.runs.compiling import cores
from iclflow.runs.fused.cpp_loop import compiled
from iclflow.runs.fused.lanes import LANES
from iclflow.runs.fused.program import Program

SHARES = 8


def advance(
    program: Program,
    leaves: dict[int, np.ndarray],
    zeros: tuple[bytes, ...],
    marks: np.ndarray,
    running: np.ndarray,
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The carried leaves after the last mark, [numbers, run], what is seen, and the steps made.

    What is seen is [run, T, numbers].

    - `leaves`: those that `program` reads, flat: [numbers, run], or [numbers] where shared.
    - `zeros`: of each shared leaf, which numbers are zero and drop out of the program.
    - `running`: which runs have not failed before.
    """
    runs, read = len(running), [*program.carried, *program.given]
    own = [program.leaves[i].own for i in read]
    arrays = [
        _blocks(leaves[i]) if mine else _shared(leaves[i], program.leaves[i])
        for i, mine in zip(read, own, strict=True)
    ]
    alive = _blocks(running[None])[:, 0]
    record = np.empty((len(alive), len(marks), program.seen_count, LANES), program.dtype)
    begin, steps = int(leaves[program.clock].item()), np.asarray(marks, np.int64)
    made = np.full(alive.shape, max(begin, steps[-1]))

    def loop(careful: bool, blocks: np.ndarray) -> np.ndarray:
        """Advance some blocks; of each, whether all is well."""
        advanced = compiled(program, zeros, careful)
        some = [True] * 3 + own if len(blocks) < len(alive) else [False] * (3 + len(own))
        whole = [alive, made, record, *arrays]
        parts = [a[blocks] if cut else a for a, cut in zip(whole, some, strict=True)]
        well = np.ones(len(blocks), bool)
        workers = max(1, min(cores(), len(blocks)))
        with ThreadPoolExecutor(workers) as pool:  # the loop holds no lock
            # Several shares a core: where other programs take time, all end together.
            ends = np.linspace(0, len(blocks), SHARES * workers + 1).astype(int).tolist()
            jobs = [
                pool.submit(advanced, *part, begin, steps, well, *parts) for part in pairwise(ends)
            ]
            for job in jobs:
                job.result()
        for array, part, cut in zip(whole, parts, some, strict=True):
            if cut:
                array[blocks] = part
        return well

    # Nearly every run goes well, and a loop that only looks whether is 1.5 times as fast as one
    # that keeps a failed run as it was. A block with a failed run is advanced again, by that.
    ill = np.logical_not(alive.all(axis=1))
    if not ill.all():
        healthy = np.flatnonzero(~ill)
        ill[healthy] = ~loop(False, healthy)
    if ill.any():
        loop(True, np.flatnonzero(ill))
    after = [_rows(a)[:, :runs] for a in arrays[: len(program.carried)]]
    seen = np.moveaxis(record, 3, 1).reshape(made.size, *record.shape[1:3])
    return after, seen[:runs], made.reshape(-1)[:runs]


def _shared(array: np.ndarray, leaf: Any) -> np.ndarray:
    return np.ascontiguousarray(array.reshape(leaf.shape)) if leaf.table else array


def _blocks(rows: np.ndarray) -> np.ndarray:
    """[numbers, run] as blocks of runs side by side, [block, numbers, lane]."""
    wide = np.pad(rows, ((0, 0), (0, -rows.shape[1] % LANES)), mode="edge")
    return np.moveaxis(wide.reshape(len(rows), -1, LANES), 1, 0).copy()


def _rows(blocks: np.ndarray) -> np.ndarray:
    return np.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)
