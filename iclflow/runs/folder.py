"""A sweep on disk: the progress of its batches, and snapshots of its weights."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from iclflow.results.files import field, read_object, require_count, write_text
from iclflow.results.provenance import code_key, content_key
from iclflow.results.tensors import load_tree, save_tree, write_tensors
from iclflow.runs import batch as batching
from iclflow.runs.batch import Batch, BatchProgress, Piece

PLAN = "plan.json"
SNAPSHOTS = 32  # weights kept on disk over a run, at marks spread evenly


class RunFolder:
    """A folder with everything needed to go on: the plan, and a file a batch.

    Each piece is the same compiled loop, so where a sweep was stopped and taken up again does not
    change a bit of its result (on the CPU; a GPU may add in another order). On disk: three times
    the weights (Adam) and the record, twice that while it is written.
    """

    def __init__(self, folder: Path | str, settings: Callable[[], Any]) -> None:
        """The folder, and what the sweep in it must be; refused if it holds another.

        - `folder`: made if it is not there.
        - `settings`: gives the settings and the code of the sweep. It is called only if something
          is read from the folder or written to it, because to read the code takes longer than a
          short run.
        """
        self.folder, self.settings = Path(folder), settings
        self.saved, self.sizes = time.monotonic(), None
        self.begun: dict[str, list[Any]] = {}  # number of a batch -> its engine and pieces
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / PLAN).exists():
            where = self.folder / PLAN
            plan = read_object(where)
            if field(plan, "content_key", str, where) != self.key:
                raise ValueError(
                    f"{self.folder} holds another run (other settings, start or code); choose "
                    f"another folder or move it away"
                )
            sizes = field(plan, "sizes", list, where)
            self.sizes = [require_count(size, "sizes", where) for size in sizes]
            self.begun = field(plan, "begun", dict, where)
            for number, entry in self.begun.items():
                kinds = list(map(type, entry)) if isinstance(entry, list) else []
                if kinds not in ([str, int], [type(None), int]):
                    raise ValueError(f"{where}: 'begun' of batch {number} needs engine and pieces")

    @cached_property
    def key(self) -> str:
        """A name for the sweep that this folder is for."""
        return content_key(self.settings())

    def keeps(self, pieces: int) -> bool:
        """Whether a batch of so many pieces is kept here.

        A sweep of one batch in one piece is not: it is over before its first state would be saved.
        """
        return pieces > 1 or len(self.sizes or ()) > 1 or bool(self.begun)

    def begin(self, sizes: Sequence[int]) -> None:
        """Take the sizes of the batches, which are kept with the first batch that begins.

        With other free memory they would be others.
        """
        self.sizes = list(sizes)

    def agree(self, number: int, batch: Batch, pieces: int) -> tuple[Batch, int]:
        """The engine and the pieces that a batch was begun with; those given, if it was not.

        Both would change the last bits of the runs, and both depend on measured speeds.
        """
        name = str(number)
        if name not in self.begun:
            self.begun[name] = [batch.engine, pieces]
            self._write_plan()
        engine, pieces = self.begun[name]
        return dataclasses.replace(batch, engine=engine), pieces

    def _write_plan(self) -> None:
        plan = {"content_key": self.key, "sizes": self.sizes, "begun": self.begun}
        write_text(self.folder / PLAN, json.dumps(plan) + "\n")

    def _file(self, number: int) -> Path:
        return self.folder / f"batch-{number:04d}.safetensors"

    def resume(self, number: int, progress: BatchProgress) -> BatchProgress:
        """What the folder has of a batch, or else its start.

        - `number`: the place of the batch in the plan.
        - `progress`: the batch at its start, whose arrays have the shapes that are read.
        """
        file = self._file(number)
        if not file.exists():
            return progress
        found = load_tree(file, progress.tree())
        return BatchProgress(
            found["state"], found["record"], float(found["mark"]), int(found["done"])
        )

    def save(self, number: int, progress: BatchProgress, now: bool) -> None:
        """Keep the progress of a batch, unless it was kept a moment ago.

        - `number`: the place of the batch in the plan.
        - `progress`: how far it has come.
        - `now`: keep it in any case.
        """
        if now or time.monotonic() - self.saved >= batching.SAVE_EVERY:
            save_tree(self._file(number), progress.tree())
            self.saved = time.monotonic()


@dataclasses.dataclass(frozen=True)
class Snapshots:
    """Weights during a sweep, as `seed-0/step-00000512.safetensors`, for `iclflow diagnose`.

    Those of a flow are `save-00000003.safetensors`, by the number of the save point; its time is in
    the file's metadata.

    - `folder`: where they go.
    - `tensors`: model -> arrays by the names that other programs know.
    - `count`: how many over a run, at marks spread evenly among the save points.

    >>> import pathlib, tempfile, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     look = icl.Snapshots(folder, lambda model: {"values": model.values}, count=2)
    ...     runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=1, observers=[look])
    ...     sorted(path.name for path in pathlib.Path(folder, "seed-0").iterdir())
    ['step-00000000.safetensors', 'step-00000009.safetensors']
    """

    folder: Path | str
    tensors: Callable[[Any], Mapping[str, Any]]
    count: int = SNAPSHOTS

    def stops(self, marks: np.ndarray) -> Sequence[float]:
        """The marks with a snapshot: the first and the last among them."""
        index = np.linspace(0, len(marks) - 1, min(self.count, len(marks)))
        return [float(mark) for mark in marks[np.round(index).astype(int)]]

    def __call__(self, piece: Piece) -> None:
        """The weights of every seed, if there is no snapshot of this mark yet."""
        if piece.mark not in piece.stops:
            return
        if piece.batch.cells.shape[1] > 1:
            raise ValueError(
                "snapshots are named by their seed, this sweep has axes too; make one for each"
            )
        if np.issubdtype(piece.marks.dtype, np.integer):
            name, words = f"step-{int(piece.mark):08d}", {"step": str(int(piece.mark))}
        else:
            index = int(np.searchsorted(piece.marks, piece.mark))
            name, words = f"save-{index:08d}", {"time": repr(piece.mark)}
        whole = jax.tree.map(lambda a: np.asarray(a) if eqx.is_array(a) else a, piece.models)
        for i, seed in enumerate(piece.batch.seeds[: piece.batch.count]):
            one = jax.tree.map(lambda a, s=i: a[s] if eqx.is_array(a) else a, whole)
            place = Path(self.folder) / f"seed-{seed}"
            place.mkdir(parents=True, exist_ok=True)
            write_tensors(place / f"{name}.safetensors", self.tensors(one), words)


def own_folder(folder: Path | str | None, module: str, settings: Any) -> Path | None:
    """A folder inside `folder` for these settings and the code behind a module.

    - `folder`: None where nothing shall be kept; the answer is then None too.
    - `module`: whose code the results depend on.
    - `settings`: what else they depend on.
    """
    if folder is None:
        return None
    return Path(folder) / content_key({"settings": settings, "code": code_key(module)})
