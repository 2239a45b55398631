"""The plan of a sweep: cells of a grid, grouped by static shape, in batches that fit in memory."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from iclflow.dynamics import AbstractDynamics
from iclflow.losses import AbstractLoss
from iclflow.losses.memory import RESERVE, device_bytes
from iclflow.models import AbstractInitialiser, AbstractModel, empty_model
from iclflow.runs.cost import numbers, run_bytes

SMALL = 4096  # numbers in a loss that is copied for each run rather than trained by itself
PIECES = 12  # of a run, between which progress is shown and Ctrl-C works
MANY_PIECES = 256  # of a run that takes long: what a kill can lose
BRIEF, LONG = 0.25, 60.0  # seconds: a run in one piece is shorter; one in many takes longer
SAVE_EVERY = 5.0  # seconds between two states on disk, so that saving never costs much


@dataclasses.dataclass(frozen=True)
class Entry:
    """Runs that differ in their seed only: a place along the axes, and what they share.

    - `index`: the place along the axes.
    - `loss`, `init`, `dynamics`: what these runs have in common.
    - `seeds`: the positions of these runs among all seeds of the sweep.
    - `weights`: the seed that draws the initial weights of each run.
    - `point`: the `Point` they belong to, which says when they save and what they record.
    """

    index: tuple[int, ...]  # along the axes
    loss: AbstractLoss
    init: AbstractInitialiser
    dynamics: AbstractDynamics
    seeds: np.ndarray  # positions among the seeds
    weights: np.ndarray  # the seed of each run's initial weights
    point: Any  # the `Point` that they belong to: its save points, and what is recorded there


@dataclasses.dataclass(frozen=True)
class Batch:
    """Runs of one static shape that advance together in one compiled program.

    The arrays may be longer than the number of runs, so that all batches of a sweep have the same
    shape and share their program. Rows past `count` repeat earlier ones and are dropped at the end.

    - `parts`: loss, initialiser and dynamics, each stacked along the runs or shared by all of them.
    - `axes`: which of the parts are stacked, in the form that `eqx.filter_vmap` takes.
    - `cells`: the place of each run in the grid, [run, axis]; the seed comes last.
    - `seeds`: the seed of each run.
    - `weights`: the seed that draws the initial weights of each run.
    - `like`: a model with the shapes of one run.
    - `points`: the `Point` of each place along the axes.
    - `group`: how many runs share the compiled program, those of other batches included.
    - `engine`: the engine that must advance the batch; None for the cheapest.
    """

    parts: tuple[Any, Any, Any]  # loss, init, dynamics: stacked, or one for all
    axes: tuple[Any, Any, Any]  # as in `eqx.filter_vmap`
    cells: np.ndarray  # [run, axis], place of each run in the grid, the seed's last
    seeds: np.ndarray
    weights: np.ndarray
    like: AbstractModel  # shapes of the weights of one run
    points: Mapping[tuple[int, ...], Any]  # place along the axes -> `Point`
    group: int  # runs of all batches that share its compiled program, its own among them
    engine: str | None = None  # the one that must advance it; None: the cheapest

    @property
    def count(self) -> int:
        """The number of runs."""
        return len(self.cells)

    @property
    def point(self) -> Any:
        """The point of the first run: all points of a batch save and record at the same marks."""
        return next(iter(self.points.values()))

    @property
    def one(self) -> tuple[AbstractLoss, AbstractInitialiser, AbstractDynamics]:
        """Loss, initialiser and dynamics of the first run."""
        pairs = zip(self.parts, self.axes, strict=True)
        first = (_row(part, 0) if axis is not None else part for part, axis in pairs)
        loss, init, dynamics = first
        return loss, init, dynamics


def batches(
    entries: Sequence[Entry],
    seeds: np.ndarray,
    recorded: Callable[[Entry, AbstractModel], int],
    sizes: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Cut the runs into batches that fit in memory.

    Entries are grouped by the program that they need (`program_of`). Each group is cut into batches
    of one size, and the last one is filled up to that size.

    - `entries`: the runs.
    - `seeds`: all seeds of the sweep, among which entries have positions.
    - `recorded`: the number of bytes that one run of an entry records.
    - `sizes`: the sizes of the batches of an earlier plan; if omitted, what fits in memory now.
    """
    number = 0
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(program_of(entry), []).append(entry)
    for group in groups.values():
        rows = np.concatenate([np.full(len(e.seeds), i) for i, e in enumerate(group)])
        places = np.concatenate([e.seeds for e in group])
        weights = np.concatenate([e.weights for e in group])
        like = empty_model(group[0].init)
        each = run_bytes(like, recorded(group[0], like), group[0].loss.scratch())
        fit = max(1, min(len(rows), int(RESERVE * device_bytes() / each)))
        size = sizes[number] if sizes else fit
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            # The last batch is filled up, so that all are one compiled program.
            chosen = np.resize(np.arange(len(rows))[part], size)
            stacks = [_stack([getattr(e, n) for e in group], rows[chosen]) for n in PARTS]
            index = np.asarray([entry.index for entry in group], int)[rows[part]]
            some = [group[i] for i in np.unique(rows[part])] if len(group) > 1 else group
            yield Batch(
                parts=tuple(stack for stack, _ in stacks),  # pyright: ignore
                axes=tuple(axis for _, axis in stacks),  # pyright: ignore
                cells=np.column_stack([index, places[part]]),
                seeds=seeds[places[chosen]],
                weights=weights[chosen],
                like=like,
                points={entry.index: entry.point for entry in some},
                group=len(rows),
            )
            number += 1


PARTS = ("loss", "init", "dynamics")


def program_of(entry: Entry) -> Hashable:
    """What runs must have in common to be trained together.

    Two entries with equal answers have arrays of the same shapes and the same static parts, save at
    the same marks, and record the same. A loss with many numbers is never copied for each run, so
    only runs that share the very object are put together.

    - `entry`: the runs in question.
    """
    size = numbers(entry.loss)
    shared = None if size <= SMALL else id(entry.loss)
    shared = (shared, entry.point.marks.tobytes(), entry.point.records)
    arrays, static = eqx.partition((entry.loss, entry.init, entry.dynamics), eqx.is_array)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arrays))
    return shared, shapes, jax.tree.structure(arrays), str(jax.tree.leaves(static))


def _stack(trees: Sequence[Any], rows: np.ndarray) -> tuple[Any, Any]:
    """One tree for every run, and its axes for `vmap`.

    - `trees`: one per entry. If all of them are the same object, that object is shared and not
      copied.
    - `rows`: the entry of each run.
    """
    first = trees[0]
    if all(tree is first for tree in trees):
        return first, None
    arrays = [eqx.filter(tree, eqx.is_array) for tree in trees]
    static = eqx.filter(first, eqx.is_array, inverse=True)
    stacked = jax.tree.map(lambda *a: jax.device_put(np.stack(a)[rows]), *arrays)
    return eqx.combine(stacked, static), eqx.if_array(0)


def _row(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda a: a[index] if eqx.is_array(a) else a, tree)


def pieces(seconds: float, stored: bool) -> int:
    """Into how many compiled pieces to cut a run that takes so many seconds.

    One of three numbers, so that runs of other lengths share their compiled programs.

    - `stored`: whether the progress is kept on disk. A run that is over before its first state
      would be saved is cut as if it were not.
    """
    if seconds >= (SAVE_EVERY if stored else LONG):
        return MANY_PIECES
    return 1 if seconds < BRIEF else PIECES


def reach(marks: np.ndarray, count: int) -> float:
    """The furthest that one piece may advance beyond its beginning.

    A run in few pieces has no such limit. A run in many pieces has one, because two save points may
    lie so far apart that a kill between them would lose a long time of work.

    - `marks`: the save points.
    - `count`: into how many pieces the run is cut.
    """
    if count < MANY_PIECES:
        return np.inf
    longest = float(marks[-1]) / count
    return max(1.0, np.ceil(longest)) if np.issubdtype(marks.dtype, np.integer) else longest
