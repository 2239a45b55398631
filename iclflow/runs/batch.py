"""Batches: how runs are put together, and how one batch is trained, piece by piece.

Cells of a grid are grouped by their static shape, in batches that fit in memory. A batch is trained
in compiled pieces, and each piece is handed to the observers when it is done.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import AbstractDynamics
from iclflow.losses import AbstractLoss
from iclflow.losses.base import piece_at
from iclflow.models import AbstractInitialiser, AbstractModel, draw_models, empty_model
from iclflow.runs import cost
from iclflow.runs.cost import numbers, run_bytes
from iclflow.runs.device import one_clock, own_leaves, to_host, vmapped
from iclflow.runs.fused.engine import VMAP, Fused, unfit, why_not
from iclflow.runs.fused.values import CannotFuse
from iclflow.runs.record import INTERRUPTED, MODELS, Recording, measure_after, outcome
from iclflow.tasks.checks import RESERVE, device_bytes, shown

SMALL = 4096  # numbers in a loss that is copied for each run rather than trained by itself
PIECES = 12  # of a run, between which progress is shown and Ctrl-C works
MANY_PIECES = 256  # of a run that takes long: what a kill can lose
BRIEF, LONG = 1.0, 60.0  # seconds: a run in one piece is shorter; one in many takes longer
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


TOO_FEW = "too few runs and steps to be worth compiling a fused loop"
AS_BEGUN = "the runs before it were advanced so"


@dataclasses.dataclass(frozen=True)
class Piece:
    """What an observer is shown: a batch that has come as far as `mark`.

    - `batch`: the runs.
    - `number`: the place of the batch among those of the sweep.
    - `mark`: the step, or the time of a flow, that all runs have reached.
    - `marks`: all save points.
    - `stops`: the marks at which observers asked to look.
    - `models`: the models at `mark`, stacked along the runs.
    """

    batch: Batch
    number: int  # of the batch
    mark: float
    marks: np.ndarray  # all save points: whole steps of descent, or times of a flow
    stops: set[float]  # marks that observers asked for
    models: Any  # stacked, one per run


@runtime_checkable
class AbstractObserver(Protocol):
    """Something that looks on while a sweep trains: a progress bar, or snapshots of the weights.

    An observer cannot change the runs. It says in advance where it wants to see the models, and is
    called whenever a piece of a batch is done.

    >>> import iclflow as icl
    >>> class Printer:
    ...     def stops(self, marks):
    ...         return [marks[-1]]
    ...     def __call__(self, piece):
    ...         print(f"step {piece.mark:g}")
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=3, observers=[Printer()])
    step 9
    """

    def stops(self, marks: np.ndarray) -> Sequence[float]:
        """Marks at which a piece must end, so that this observer sees the models there."""
        ...

    def __call__(self, piece: Piece) -> None:
        """A piece is done."""
        ...


def require_observers(observers: Any) -> None:
    """Refuse what cannot look on, before anything is trained."""
    listed = isinstance(observers, Sequence)
    if not listed or not all(callable(one) and hasattr(one, "stops") for one in observers):
        raise ValueError(
            f"observers must be a list of objects with `stops` and `__call__`, such as Snapshots, "
            f"got {shown(observers)}"
        )


@dataclasses.dataclass(frozen=True)
class BatchProgress:
    """How far a batch has come, which is all that is needed to go on with it.

    - `state`: the state of the dynamics of all runs.
    - `record`: what was recorded, by name, [run, mark, ...], with NaN at the marks to come.
    - `mark`: the step or time of the state; -1 before the first piece.
    - `done`: how many marks are recorded.
    """

    state: Any
    record: dict[str, Any]  # name -> [run, mark, ...], NaN where nothing is recorded yet
    mark: float = -1.0
    done: int = 0  # marks recorded

    def tree(self) -> dict[str, Any]:
        """As arrays, for the disk."""
        numbers = {"mark": np.asarray(self.mark), "done": np.asarray(self.done)}
        return {"state": self.state, "record": self.record, **numbers}


@dataclasses.dataclass(frozen=True)
class BatchResult:
    """What the runs of a batch recorded, and how they ended."""

    batch: Batch
    record: dict[str, Any]  # arrays [run, mark, ...], or trees of them
    final: dict[str, Any]  # [run, ...], of the last weights
    result: np.ndarray
    stopped: np.ndarray
    interrupted: bool
    engine: str  # what advanced it, and why
    kind: str  # the same in one word: vmap, C++ or CUDA


@runtime_checkable
class Disk(Protocol):
    """Where the progress of a batch is kept, so that a later process can go on with it.

    A batch is known by its number in the plan.
    """

    def keeps(self, pieces: int) -> bool:
        """Whether a batch of so many pieces is worth keeping."""
        ...

    def agree(self, number: int, batch: Batch, pieces: int) -> tuple[Batch, int]:
        """The engine and the pieces that the batch was begun with, or those given if it is new.

        Both depend on measured speeds, and both change the last bits of the results. A batch that
        goes on must therefore keep them.
        """
        ...

    def resume(self, number: int, progress: BatchProgress) -> BatchProgress: ...
    def save(self, number: int, progress: BatchProgress, now: bool) -> None: ...


def run_batch(
    batch: Batch,
    number: int,
    marks: np.ndarray,
    recording: Recording,
    final: Recording,
    key: PRNGKeyArray | None,
    observers: Sequence[AbstractObserver],
    disk: Disk | None,
) -> BatchResult:
    """Train a batch to its last mark, or to where Ctrl-C stops it.

    An interrupt before anything is recorded is raised again. Later ones end the batch early, and
    the result says so.

    - `batch`, `number`: the runs, and their place among the batches of the sweep.
    - `marks`: the save points, in whole steps of descent or times of a flow.
    - `recording`: what is recorded at the save points.
    - `final`: what is recorded of the last weights.
    - `key`: randomness of the dynamics that all runs share; each has its own if it is None.
    - `observers`: they are called after each piece.
    - `disk`: where progress is kept; None keeps nothing.
    """
    progress = BatchProgress(_start(batch, key), {})
    engine = choose(batch, progress.state, marks, recording.functions)
    count = pieces(_seconds(batch, engine.kind, marks), disk is not None)
    disk = disk if disk is not None and disk.keeps(count) else None
    if disk is not None:
        kept, count = disk.agree(number, dataclasses.replace(batch, engine=engine.kind), count)
        if kept.engine != engine.kind:
            engine = choose(kept, progress.state, marks, recording.functions)
        if kept.engine != engine.kind:
            raise ValueError(
                f"this run was begun by the fused loop in {kept.engine}, which cannot go on here: "
                f"{engine.reason}; choose another folder"
            )
        room = _room(batch, progress.state, recording.functions, len(marks))
        progress = disk.resume(number, dataclasses.replace(progress, record=room))
    size, longest = -(-len(marks) // count), reach(marks, count)
    stops = {float(mark) for watch in observers for mark in watch.stops(marks)}
    interrupted, seen = False, progress
    try:
        while progress.done < len(marks):
            progress = _piece(engine, progress, marks, recording, size, longest, stops)
            # First the observers: what they write of a piece is then there when it counts as done.
            for watch in observers:
                watch(Piece(batch, number, progress.mark, marks, stops, progress.state.model))
            seen = progress
            if disk is not None:
                disk.save(number, seen, progress.done == len(marks))
    except KeyboardInterrupt:
        if disk is not None:
            disk.save(number, seen, True)
        if progress.done == 0:
            raise
        interrupted = True
    return _result(batch, progress, marks, recording, final, interrupted, engine)


@dataclasses.dataclass
class Engine:
    """What advances a batch; a fused loop that fails gives way to `vmap`, and says so here.

    A loss that jumps has one loop per piece, all of one kind.

    - `loss`: of the batch, whose pieces the loops are for.
    - `advances`: (state, marks, record, whether it begins at a jump, whether anything is recorded)
      -> run, one per piece.
    - `kind`: vmap, C++ or CUDA.
    - `reason`: why it is vmap.
    - `loops`: the fused loops, one per piece.
    """

    loss: AbstractLoss
    advances: list[Callable[[Any, np.ndarray, dict[str, Callable], bool, bool | None], Any]]
    kind: str
    reason: str | None
    loops: list[Fused]

    def advance(
        self,
        here: float,
        state: Any,
        marks: np.ndarray,
        record: dict[str, Callable],
        wanted: bool | None = None,
    ) -> Any:
        """All runs from the mark `here` to the last of the marks, which lie before the next jump.

        What is recorded at a jump is what its new loss measures.

        - `wanted`: whether anything is recorded, as in `vmapped`. A fused loop, which compiles in
          a moment, has a program of its own for each.
        """
        number = piece_at(self.loss, here)[0]
        start = self.loss.pieces[number][0]
        return self.advances[number](state, marks, record, start == here > 0, wanted)

    def __str__(self) -> str:
        if self.kind == VMAP:
            return f"{VMAP} ({self.reason})"
        return f"fused ({self.kind}{''.join(dict.fromkeys(loop.note for loop in self.loops))})"


def choose(batch: Batch, state: Any, marks: np.ndarray, record: dict[str, Callable]) -> Engine:
    """The engine of a batch: the one it must have if that can do it, else the cheapest.

    The cheapest is that of all runs which share the compiled program (`batch.group`), so that a
    sweep in small batches takes the same one as a sweep in large batches.

    - `state`: of the batch, or of a few of its runs: shapes alone matter.
    - `marks`, `record`: save points, and what is recorded there.
    """
    loss, init, dynamics = batch.parts
    reasons, loops = [], []
    for _, piece in loss.pieces:
        part = dataclasses.replace(batch, parts=(piece, init, dynamics))
        reason, fused = _fused(part, state, marks, record)
        reasons.append(reason)
        loops.append((part, fused))
    reason = next((reason for reason in reasons if reason is not None), None)
    kind = VMAP if reason is not None else loops[0][1].engine
    found = Engine(loss, [], kind, reason, [fused for _, fused in loops])
    found.advances = [_advances(found, part, fused) for part, fused in loops]
    return found


def _fused(
    batch: Batch, state: Any, marks: np.ndarray, record: dict[str, Callable]
) -> tuple[str | None, Fused]:
    """The fused loop of a batch whose loss does not jump, and why it cannot or should not run."""
    (loss, _, dynamics), (loss_axes, _, dynamics_axes) = batch.parts, batch.axes
    fused = Fused.of(loss, dynamics, state, (loss_axes is not None, dynamics_axes is not None))
    fused.runs = batch.group
    parts = (loss, dynamics, state)
    could = fused.engine != VMAP and unfit(loss, dynamics) is None
    size, steps = _operations(batch), cost.steps_of(marks)
    if could and batch.engine in (None, VMAP):
        worth = cost.worth_compiling(fused.engine, size, batch.group, steps)
        reason = None if worth else TOO_FEW
    else:
        reason = None
    # This traces a program and tries the compiler, so it comes last.
    reason = reason or why_not(fused, parts, record, len(batch.seeds), marks)
    if reason is None and batch.engine == VMAP:
        reason = AS_BEGUN
    return reason or fused.prepare(parts, record), fused


def _advances(found: Engine, batch: Batch, fused: Fused) -> Callable:
    """The function that advances a batch on one loss.

    A fused loop may turn out not to compile. The engine `found` then becomes `vmap` for good, with
    the compiler's reason, and the piece is advanced by that.
    """
    (loss, _, dynamics), axes = batch.parts, (batch.axes[0], batch.axes[2])
    most = cost.share(batch.like, batch.one[0].scratch())

    def advance(
        now: Any, marks: np.ndarray, record: dict[str, Callable], jumps: bool, wanted: bool | None
    ) -> Any:
        now = _renewed(loss, dynamics, now, axes) if jumps else now
        if found.kind != VMAP:
            try:
                if wanted is False:
                    return fused.advance((loss, dynamics, now), marks[-1:], {})
                return fused.advance((loss, dynamics, now), marks, record)
            except CannotFuse as error:
                found.kind, found.reason = VMAP, str(error)
        return vmapped((loss, dynamics, now), axes, marks, record, most, wanted)

    return advance


@eqx.filter_jit
def _renewed(loss, dynamics, state, axes) -> Any:
    """The states of a batch that goes on with another loss."""

    def one(loss: Any, how: Any, state: Any) -> Any:
        return how.renew(loss, state)

    mine = own_leaves(dynamics, state)
    each = eqx.filter_vmap(one, in_axes=(*axes, jax.tree.map(lambda m: 0 if m else None, mine)))
    return one_clock(dynamics, each(loss, dynamics, state))


def _seconds(batch: Batch, kind: str, marks: np.ndarray) -> float:
    return cost.seconds(kind, _operations(batch), batch.count, cost.steps_of(marks))


def _operations(batch: Batch) -> float:
    loss, _, dynamics = batch.one
    return cost.operations(loss, dynamics, batch.like)


def _piece(
    engine: Engine,
    progress: BatchProgress,
    marks: np.ndarray,
    recording: Recording,
    size: int,
    longest: float,
    stops: set[float],
) -> BatchProgress:
    """Advance a batch by one piece, which ends at a mark or part of the way to a distant one.

    All marks of a piece lie on one side of every jump of the loss.

    - `size`: marks in a full piece. Shorter pieces are padded, so that one program serves all.
    - `longest`: how far a piece may reach.
    - `stops`: marks at which a piece must end, because observers look there.
    """
    begin, here = progress.done, max(progress.mark, 0.0)
    both = True if np.isfinite(longest) else None  # many pieces, some of them without a save point
    jump = piece_at(engine.loss, here)[2]
    if marks[begin] >= jump or marks[begin] - here > longest:
        target = np.full(size, min(here + longest, jump)).astype(marks.dtype)
        if both:
            run = engine.advance(here, progress.state, target, recording.functions, False)
        else:
            run = engine.advance(here, progress.state, target[:1], {})
        return BatchProgress(run.state, progress.record, float(target[0]), begin)
    segment = marks[begin : begin + size]
    segment = segment[segment < jump]
    segment = segment[segment - here <= longest] if len(segment) > 1 else segment
    cut = next((i + 1 for i, mark in enumerate(segment) if float(mark) in stops), len(segment))
    segment = segment[:cut]
    padded = np.concatenate([segment, np.repeat(segment[-1:], size - len(segment))])
    run = engine.advance(here, progress.state, padded, recording.functions, both)
    found, count, record = to_host(run.record), len(segment), progress.record
    if not record and count == len(marks):  # all in one piece: nothing to copy
        return BatchProgress(run.state, found, float(segment[-1]), count)
    if not record:
        total = len(marks)
        record = jax.tree.map(lambda a: _empty(a, a.shape[2:], total), found)
    # A flow that used up its steps may go on from its state; in a sweep it has stopped.
    over = outcome(progress.state.result) != 0

    def put(room: np.ndarray, values: np.ndarray) -> None:
        room[:, begin : begin + count] = values[:, :count]
        room[over, begin : begin + count] = np.nan

    jax.tree.map(put, record, found)
    return BatchProgress(run.state, record, float(segment[-1]), begin + count)


def _result(
    batch: Batch,
    progress: BatchProgress,
    marks: np.ndarray,
    recording: Recording,
    final: Recording,
    interrupted: bool,
    engine: Engine,
) -> BatchResult:
    """What the runs recorded, with the quantities that are measured once at the end.

    Padding is dropped here. Runs that an interrupt stopped are marked as interrupted.
    """
    state, count = progress.state, batch.count
    ends, stopped = to_host(_ends(state))
    ended = outcome(ends)
    if interrupted:
        ended = np.where(ended == 0, INTERRUPTED, ended)
    loss, _, dynamics = batch.parts
    axes = (batch.axes[0], eqx.if_array(0), batch.axes[2])
    record = dict(progress.record)
    if recording.after:
        models = jax.tree.map(jax.device_put, record.pop(MODELS))
        record |= _after(loss, models, dynamics, recording.after, axes, marks)
    end = np.asarray(max(progress.mark, 0), marks.dtype)
    last = _record(loss, axes[0], state.model, final.functions, end) if final.functions else {}
    if final.after:
        last |= _after_last(loss, last.pop(MODELS), dynamics, final.after, axes, marks[-1:])
    record, last = jax.tree.map(lambda a: a[:count], to_host((record, last)))
    return BatchResult(
        batch, record, last, ended[:count], stopped[:count], interrupted, str(engine), engine.kind
    )


def _room(batch: Batch, state: Any, record: dict[str, Callable], count: int) -> dict[str, Any]:
    """Arrays for what is recorded at `count` marks, full of NaN.

    They are made before the first piece, so that a resumed batch and a new one have the same
    shapes.
    """
    parts = (batch.parts[0], batch.axes[0], state.model, record, np.zeros(()))
    shapes = eqx.filter_eval_shape(_record, *parts)
    return jax.tree.map(lambda like: _empty(like, like.shape[1:], count), shapes)


def _empty(like: Any, shape: tuple[int, ...], count: int) -> np.ndarray:
    kind = np.result_type(like.dtype, np.float32)  # whole numbers too can be NaN then
    return np.full((like.shape[0], count, *shape), np.nan, kind)


def _start(batch: Batch, key: PRNGKeyArray | None) -> Any:
    """The states of all runs of a batch at its start.

    The weights are drawn by `draw_models`, so that theory and summaries can draw the same ones.
    """
    (loss, init, dynamics), (loss_axis, init_axis, dynamics_axis) = batch.parts, batch.axes
    models = draw_models(init, batch.weights, init_axis)
    return _begun(loss, dynamics, models, batch.seeds, key, (loss_axis, dynamics_axis))


@eqx.filter_jit
def _begun(losses, dynamics, models, seeds, key, axes) -> Any:
    def one(loss: Any, how: Any, model: Any, seed: Any) -> Any:
        own = jax.random.key(seed)
        noise = own if key is None else jax.random.fold_in(key, seed)
        return how.init(loss, model, noise)

    in_axes = (*axes, eqx.if_array(0), 0)
    state = eqx.filter_vmap(one, in_axes=in_axes)(losses, dynamics, models, seeds)
    return one_clock(dynamics, state)


def blank_state(batch: Batch) -> Any:
    """A state of the shape that the batch has at its start, made without computing one."""
    shapes = eqx.filter_eval_shape(_start, batch, None)

    def blank(like: Any) -> Any:
        if not isinstance(like, jax.ShapeDtypeStruct):
            return like
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), like.shape)
        return jnp.zeros(like.shape, like.dtype)

    return jax.tree.map(blank, shapes)


@eqx.filter_jit
def _ends(state) -> Any:
    return state.result, state.stopped


@eqx.filter_jit
def _record(losses, axis, models, record, mark) -> Any:
    def one(loss: Any, model: Any) -> Any:
        now = loss.at(mark)
        return {name: f(model, now) for name, f in record.items()}

    return eqx.filter_vmap(one, in_axes=(axis, eqx.if_array(0)))(losses, models)


@eqx.filter_jit
def _after_last(losses, models, dynamics, names, axes, mark) -> Any:
    """`_after` for runs with one save point, their last; models and results have no such axis."""
    models = jax.tree.map(lambda a: a[:, None], models)
    measured = _after(losses, models, dynamics, names, axes, mark)
    return jax.tree.map(lambda a: a[:, 0], measured)


@eqx.filter_jit
def _after(losses, models, dynamics, names, axes, marks) -> Any:
    def one(loss: Any, models: Any, how: Any) -> Any:
        return measure_after(names, models, loss, how.rate_at(marks), jnp.asarray(marks))

    return eqx.filter_vmap(one, in_axes=axes)(losses, models, dynamics)
