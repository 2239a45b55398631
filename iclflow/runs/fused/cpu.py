"""The whole of a training as one compiled loop on the CPU: blocks of runs side by side (Numba)."""

import functools
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from iclflow.runs.compiling import cores
from iclflow.runs.fused.order import Statement, ordered, renamed
from iclflow.runs.fused.program import Program
from iclflow.runs.fused.writing import PYTHON, Multiplied, Written, indented, segments, write

LANES = 16  # runs side by side: a vector or two; a loop of eight is unrolled, not vectorised


def installed() -> bool:
    """Whether Numba is there (the extra `fast`)."""
    return importlib.util.find_spec("numba") is not None


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
    made = np.empty(alive.shape, np.int64)
    steps = int(leaves[program.clock].item()), np.asarray(marks, np.int64)

    def loop(careful: bool, blocks: np.ndarray) -> np.ndarray:
        """Advance some blocks; of each, whether all is well."""
        compiled = _compiled(program, zeros, careful)
        parts = [a[blocks] if mine else a for a, mine in zip(arrays, own, strict=True)]
        state = [alive[blocks], made[blocks], record[blocks]]
        well = np.ones(len(blocks), bool)
        workers = max(1, min(cores(), len(blocks)))
        with ThreadPoolExecutor(workers) as pool:  # the loop holds no lock
            ends = np.linspace(0, len(blocks), workers + 1).astype(int)
            jobs = [
                pool.submit(compiled, *some, *steps, well, *state, *parts)
                for some in pairwise(ends)
            ]
            for job in jobs:
                job.result()
        for whole, part in zip([alive, made, record, *arrays], [*state, *parts], strict=True):
            if whole is not part:
                whole[blocks] = part
        return well

    # Nearly every run goes well, and a loop that only looks whether is a fifth faster than one that
    # keeps a failed run as it was. Where a block has a failed run it is advanced again, by that.
    ill = np.logical_not(alive.all(axis=1))
    if not ill.all():
        healthy = np.flatnonzero(~ill)
        ill[healthy] = ~loop(False, healthy)
    if ill.any():
        loop(True, np.flatnonzero(ill))
    after = [_rows(a)[:, :runs] for a in arrays[: len(program.carried)]]
    seen = np.moveaxis(record, 3, 1).reshape(-1, *record.shape[1:3])
    return after, seen[:runs], made.reshape(-1)[:runs]


def _shared(array: np.ndarray, leaf: Any) -> np.ndarray:
    return np.ascontiguousarray(array.reshape(leaf.shape)) if leaf.table else array


def _blocks(rows: np.ndarray) -> np.ndarray:
    """[numbers, run] as blocks of runs side by side, [block, numbers, lane]."""
    wide = np.pad(rows, ((0, 0), (0, -rows.shape[1] % LANES)), mode="edge")
    return np.moveaxis(wide.reshape(len(rows), -1, LANES), 1, 0).copy()


def _rows(blocks: np.ndarray) -> np.ndarray:
    return np.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)


@functools.lru_cache(maxsize=64)
def _compiled(program: Program, zeros: tuple[bytes, ...], careful: bool) -> Any:
    import numba

    _allow_vectors()
    space: dict[str, Any] = {"np": np, "nan": np.nan, "inf": np.inf}
    exec(
        _source(program, write(program, zeros, PYTHON), careful), space
    )  # written by `_source`, from numbers and operators alone
    # Contracted products and sums only: NaN and infinity keep their meaning.
    options = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}
    return numba.njit(**options)(space["loop"])


@functools.cache
def _allow_vectors() -> None:
    """Let LLVM compare all addresses of a loop: of more than about 60 numbers it gives up else."""
    import llvmlite.binding as llvm

    llvm.set_option("", "-memory-check-merge-threshold=100000")


def _source(program: Program, written: Written, careful: bool) -> str:
    """The loop as Python that Numba compiles: straight-line code for one run, over the lanes.

    - `careful`: keep a failed run as it was, instead of giving up its block.
    """
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    own = [(name, j) for name, leaf in leaves.items() if leaf.own for j in range(leaf.size)]
    places = {f"{name}_{j}": f"{name}_[{j}, lane]" for name, j in own}
    # One room of a block's own, which nothing else can change, lets a compiler use vectors.
    real = [f"{name}_{j}" for name, j in own if leaves[name].real]
    places |= {number: f"room[{n}, lane]" for n, number in enumerate(real)}
    stores, shown = _stores(written, places, careful)
    shows = [
        Statement(f"record[block, t, {j}, lane]", shown.format(v))
        for j, v in enumerate(written.seen)
    ]
    stepping, of_step = _lanes(written, "s", written.step, stores, places)
    looking, of_look = _lanes(written, "l", written.look, shows, places)
    rooms = {"room": max(1, len(real))} | of_step | of_look
    room = [f"{name} = np.empty(({size}, {LANES}), real)" for name, size in rooms.items()]
    whole = {name: leaves[name].size for name, _ in own if not leaves[name].real}
    room += [f"{n}_ = np.empty(({size}, {LANES}), {n}.dtype)" for n, size in whole.items()]
    shared = [name for name, leaf in leaves.items() if not leaf.own and not leaf.table]
    room += [f"{name}_{j} = {name}[{j}]" for name in shared for j in range(leaves[name].size)]
    copies = [(places[f"{n}_{j}"], f"{n}[block, {j}, lane]") for n, j in own]
    changing = {written.arrays[i] for i in program.carried}
    back = [
        (there, here) for (here, there), (n, _) in zip(copies, own, strict=True) if n in changing
    ]
    return f"""
real, whole = np.{np.dtype(program.dtype).name}, np.int64
def loop(first, last, begin, marks, well, alive, made, record, {", ".join(leaves)}):
    alive_, made_ = np.empty({LANES}, np.bool_), np.empty({LANES}, np.int64)
    bad_ = np.empty({LANES}, real)
{indented(room, 4)}
    for block in range(first, last):
        for lane in range({LANES}):
            alive_[lane], made_[lane], bad_[lane] = alive[block, lane], begin, 0
        for lane in range({LANES}):
{indented([f"{to} = {what}" for to, what in copies], 12)}
        done = begin
        for t in range(len(marks)):
            for step in range(done, marks[t]):
{indented(stepping, 16)}
            step = done = max(done, marks[t])
            if bad_.max() > 0:
                well[block] = False
                break
{indented(looking, 12)}
        if not well[block]:
            continue
        for lane in range({LANES}):
            alive[block, lane] = alive_[lane]
            made[block, lane] = {"made_[lane]" if careful else "done"}
        for lane in range({LANES}):
{indented([f"{to} = {what}" for to, what in back], 12)}
"""


def _stores(written: Written, places: dict[str, str], careful: bool) -> tuple[list[Statement], str]:
    """What ends a step, and the form in which a number is recorded."""
    new = {places[name]: (value, name) for name, value in written.after.items()}
    if not careful:
        ill = Statement("bad_[lane]", f"bad_[lane] + (real(0) if {written.well} else real(1))")
        return [*(Statement(place, value) for place, (value, _) in new.items()), ill], "{}"
    go = f"t{len(written.step)}"
    found = [Statement(go, f"alive_[lane] and {written.well}"), Statement("alive_[lane]", go)]
    found += [Statement(place, f"{v} if {go} else {old}") for place, (v, old) in new.items()]
    found += [Statement("made_[lane]", f"step + 1 if {go} else made_[lane]")]
    return found, "{} if alive_[lane] else real(nan)"


def _lanes(
    written: Written,
    prefix: str,
    text: list[Statement | Multiplied],
    last: list[Statement],
    places: dict[str, str],
) -> tuple[list[str], dict[str, int]]:
    """Statements as loops over the lanes, cut at products, and the rooms they need (name -> rows).

    - `last`: the stores at the end of the last loop.
    - `places`: of numbers that are in a room already, where.
    """
    found: list[str] = []
    places, rooms = dict(places), dict[str, int]()
    for n, (lines, product, kept) in enumerate(segments(text, last)):
        x, y, k = (f"{prefix}{letter}{n}" for letter in "xyk")
        ends = [Statement(f"{k}[{j}, lane]", name) for j, name in enumerate(kept)]
        inputs = [] if product is None else product.inputs
        ends += [Statement(f"{x}[{j}, lane]", name) for j, name in enumerate(inputs)]
        inside = ordered([*lines, *(last if product is None else ends)], places)
        found.append(f"for lane in range({LANES}):")
        # Numba's time grows with the square of the names that more than one loop has.
        found += [f"    {s.name} = {s.expression}" for s in renamed(inside, f"_{prefix}{n}")]
        if product is None:
            continue
        found.append(f"np.dot({written.arrays[product.table.leaf]}.T, {x}, {y})")
        rooms |= {x: len(inputs), y: len(product.outputs), k: max(1, len(kept))}
        places |= {name: f"{y}[{j}, lane]" for j, name in enumerate(product.outputs)}
        places |= {name: f"{k}[{j}, lane]" for j, name in enumerate(kept)}
    return found, rooms
