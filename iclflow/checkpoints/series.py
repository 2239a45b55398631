"""Checkpoints over training: found, checked against their steps, and measured head by head.

A series is a folder for each step, or files with the step in their name. Public series are known
to serve the last weights under early steps, which `check_series` finds. Measuring keeps one layer
of one checkpoint in memory at a time (and of the reference, for distances).
"""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array

from iclflow.checkpoints.files import (
    INDEXES,
    PICKLES,
    TORCH,
    AbstractSource,
    CheckpointError,
    foreign,
    open_checkpoint,
    read_json,
    torch_weights,
)
from iclflow.checkpoints.layouts import Layout, find_layout
from iclflow.checkpoints.measures import CIRCUITS, DEFAULT_MEASURES, Plan, Table
from iclflow.linalg import FactoredMatrix
from iclflow.measures.detectors import time_curvature
from iclflow.measures.stages import find_stages
from iclflow.results.files import field

WEIGHTS = (".safetensors", ".npz", *PICKLES)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One moment of training; `open` gives its tensors for as long as they are needed.

    - `step`: of training; `label`: what it is called in messages.
    """

    step: int
    label: str
    open: Callable[[], AbstractContextManager[AbstractSource]]


def local_checkpoint(path: Path, step: int) -> Checkpoint:
    """A checkpoint on this machine."""

    @contextlib.contextmanager
    def opened() -> Iterator[AbstractSource]:
        yield open_checkpoint(path)

    return Checkpoint(step, str(path), opened)


def step_of(name: str) -> int | None:
    """The number after "step" in a name, or else the last number in it."""
    named = re.search(r"step[-_=]?(\d+)", name)
    if named:
        return int(named.group(1))
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def step_said(path: Path) -> int | None:
    """The step in a Trainer's state beside the weights, or after a word for it in the name."""
    state = path / "trainer_state.json"
    if state.is_file():
        found = read_json(state)
        try:
            return max(0, field(found, "global_step", int, state)) if "global_step" in found else 0
        except ValueError as error:
            raise CheckpointError(str(error)) from None
    named = re.search(r"(?:step|checkpoint|ckpt|iter|epoch)s?[-_=]?(\d+)|^(\d+)$", path.stem)
    return int(named[1] or named[2]) if named else None


def find_series(*paths: str | Path) -> list[Checkpoint]:
    """The checkpoints under these paths, in order of their step.

    - one folder: its sub-folders, or its files, with a step in their name, or those of its folder
      `checkpoints`. Of a Trainer's folder the `checkpoint-*`, and the weights beside them where its
      state says they are later;
    - a pattern: `runs/step*/model.safetensors` or `runs/step{step}.npz`, where the step is the
      part that varies (`{step}`, or the first `*`);
    - several paths: one checkpoint each.

    - `paths`: one folder, one pattern, or several paths.

    >>> import pathlib, tempfile, numpy as np, iclflow as icl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 100, 20):
    ...         np.savez(f"{folder}/step{step}.npz", w=np.eye(2))
    ...     [found.step for found in icl.checkpoints.find_series(folder)]
    [0, 20, 100]
    """
    given = list(paths)
    if not given:
        raise CheckpointError("no checkpoints given; name a folder, a pattern or files")
    if len(given) > 1:
        found = [(_step(Path(p)), Path(p)) for p in given]
    elif "*" in str(given[0]) or "{step}" in str(given[0]):
        found = _matching(str(given[0]))
    else:
        found = _inside(Path(given[0]))
    steps = [step for step, _ in found]
    twice = sorted({step for step in steps if steps.count(step) > 1})
    if twice:
        both = [str(path) for step, path in found if step == twice[0]]
        raise CheckpointError(f"step {twice[0]} appears more than once: {', '.join(both)}")
    return [local_checkpoint(path, step) for step, path in sorted(found)]


def _step(path: Path) -> int:
    step = step_of(path.name)
    step = step_of(path.parent.name) if step is None else step
    if step is None:
        raise CheckpointError(f"{path}: no step in the name; name it like step512.safetensors")
    return step


def _matching(pattern: str) -> list[tuple[int, Path]]:
    fixed, _, rest = pattern.replace("{step}", "*").partition("*")
    root = Path(fixed) if fixed.endswith("/") else Path(fixed).parent
    expression = re.escape(fixed) + r"(.*?)" + re.escape(rest).replace(r"\*", ".*?") + "$"
    glob = str(Path(fixed + "*" + rest).relative_to(root))
    found = []
    for path in sorted(root.glob(glob)):
        match = re.match(expression, str(path)) or re.match(expression, f"./{path}")
        step = step_of(match.group(1)) if match else None
        if step is not None:
            found.append((step, path))
    if not found:
        raise CheckpointError(f"{pattern}: nothing matches with a number in place of the step")
    return found


def _inside(path: Path) -> list[tuple[int, Path]]:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if not path.is_dir():
        return [(step_said(path) or 0, path)]
    folders = [p for p in path.iterdir() if p.is_dir() and step_of(p.name) is not None]
    folders = [p for p in folders if _holds_weights(p)] or folders
    if _is_checkpoint(path):
        saved = [(_step(p), p) for p in folders if _holds_weights(p)]
        last = step_said(path)
        if not saved or (last is not None and last > max(saved)[0]):
            saved.append((last or 0, path))
        return saved
    files = [p for p in path.iterdir() if _weighs(p) and step_of(p.name) is not None]
    chosen = folders if folders else files
    if not chosen and (path / "checkpoints").is_dir():
        return _inside(path / "checkpoints")
    if not chosen and torch_weights(p.name for p in path.iterdir()):
        return [(step_said(path) or 0, path)]
    if not chosen:
        raise CheckpointError(
            foreign(path)
            or f"{path}: no checkpoints with a step in their name (step512/, step512.safetensors, "
            f"step512.npz)"
        )
    return [(_step(p), p) for p in chosen]


def _weighs(file: Path) -> bool:
    """Whether a file has weights, by its name: a Trainer's rng_state_0.pth has none."""
    return file.suffix in WEIGHTS and (file.suffix not in TORCH or bool(torch_weights([file.name])))


def has_checkpoints(folder: Path) -> bool:
    """Whether there are weights in a folder, or in those inside it."""
    inside = [p for p in folder.iterdir() if p.is_dir()]
    return any(_holds_weights(place) for place in (folder, *inside))


def _holds_weights(folder: Path) -> bool:
    return any(file.suffix in (*WEIGHTS, ".npy") for file in folder.iterdir())


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is itself one checkpoint rather than a series."""
    if any(any(folder.glob(pattern)) for pattern in (*INDEXES, "*.npy")):
        return True
    files = [*folder.glob("*.safetensors"), *folder.glob("*.npz")]
    shards = [file for file in files if re.search(r"-\d+-of-\d+\.", file.name)]
    return bool(files) and (len(files) == 1 or len(shards) == len(files))


SAMPLED = 2048  # numbers of a tensor in the distance between steps
OUT_OF_LINE = 3.0  # times as far from both neighbours as they are from each other


def check_series(series: Sequence[Checkpoint], layout: Layout) -> list[str]:
    """What is wrong with the order of a series, in lines; three tensors of each step are read.

    Training moves on: the weights of a step lie between those of its neighbours, and the first
    ones are the farthest from the last. A step that cannot be read is left out.

    - `series`: in the order of the steps.
    - `layout`: of the attention in it.

    >>> import contextlib, numpy as np, iclflow as icl
    >>> def opened(step):
    ...     weights = np.random.default_rng(0).normal(size=(4, 12)) * (1 + step)
    ...     arrays = {"h.0.attn.c_attn.weight": weights, "h.0.attn.c_proj.weight": np.eye(4)}
    ...     return lambda: contextlib.nullcontext(icl.checkpoints.Arrays(arrays))
    >>> series = [icl.checkpoints.Checkpoint(step, str(step), opened(step)) for step in (0, 1, 2)]
    >>> with series[0].open() as source:
    ...     layout = icl.checkpoints.find_layout(source, heads=2)
    >>> icl.checkpoints.check_series(series, layout)
    []
    """
    ordered = sorted(series, key=lambda checkpoint: checkpoint.step)
    steps, digests, sketches = [], [], []
    for checkpoint in ordered:
        try:
            with checkpoint.open() as source:
                tensors = [source.read(name) for name in _watched(source, layout)]
        except CheckpointError:
            continue
        if not tensors:
            continue  # another model: the measures will say so
        steps.append(checkpoint.step)
        digests.append(hashlib.sha256(b"".join(t.tobytes() for t in tensors)).hexdigest())
        sketches.append(np.concatenate([_sample(t) for t in tensors]).astype(float))
    if len({sketch.shape for sketch in sketches}) != 1:
        return []
    return _equal(steps, digests) + _strayed(steps, np.stack(sketches))


def _watched(source: AbstractSource, layout: Layout) -> list[str]:
    """One matrix of the attention of the first, the middle and the last layer."""
    layers = layout.layers
    chosen = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
    names = sorted(source.names())
    found = []
    for layer in chosen:
        stem = layout.stem(layer)
        own = (n for n in names if n.startswith(stem) and len(source.shape(n)) in (2, 3))
        found += [name for name in own if layout.kind.parts[0] in name][:1]
    return found


def _sample(tensor: np.ndarray) -> np.ndarray:
    flat = tensor.ravel()
    return flat[:: max(1, flat.size // SAMPLED)][:SAMPLED]


def _equal(steps: Sequence[int], digests: Sequence[str]) -> list[str]:
    found = []
    for digest in dict.fromkeys(digests):
        same = [step for step, other in zip(steps, digests, strict=True) if other == digest]
        if len(same) > 1:
            found.append(f"steps {', '.join(map(str, same))} have the same weights in every bit")
    return found


def _strayed(steps: Sequence[int], sketches: np.ndarray) -> list[str]:
    def apart(i: int, j: int) -> float:
        return float(np.linalg.norm(sketches[i] - sketches[j]))

    found, last = [], len(steps) - 1
    for i in range(1, last):
        nearest = min(apart(i, i - 1), apart(i, i + 1))
        if nearest > OUT_OF_LINE * apart(i - 1, i + 1):
            found.append(
                f"step {steps[i]} is out of line: at least {OUT_OF_LINE:g} times as far from steps "
                f"{steps[i - 1]} and {steps[i + 1]} as they are from each other"
            )
    if last >= 2:
        for end, beside, other in ((0, 1, last), (last, last - 1, 0)):
            if OUT_OF_LINE * apart(end, other) < apart(beside, other):
                found.append(
                    f"step {steps[end]} is out of line: nearer to step {steps[other]} than step "
                    f"{steps[beside]} is, by a factor of more than {OUT_OF_LINE:g}"
                )
    return found


def measure_series(
    series: Sequence[Checkpoint],
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    rank: int = 8,
    drop: int = 1,
    extra: Mapping[str, Callable[[FactoredMatrix], Array]] | None = None,
    heads: int | None = None,
    stack: str | None = None,
    keep_going: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> xr.Dataset:
    """Measures of QK and OV of every head over a series of checkpoints.

    - `measures`: names from `MEASURES`; distances are to the last checkpoint of the series,
      `step_distance` and `subspace_speed` to the one before. `rank` is the size k of the
      subspaces.
    - `extra`: further measures, name -> function of one head's `FactoredMatrix`.
    - `heads`: their number, where no config.json says.
    - `stack`: part of the names of the layers to measure, where a model has several stacks of
      them, such as an encoder and a decoder.
    - `keep_going`: leave out a checkpoint that cannot be read; attribute `problems` says why.

    The result has dimensions (step, circuit, layer, head). Attribute `integrity` names the steps
    whose weights are those of another step, or out of line with their neighbours' (`check_series`).

    - `drop`: how many of the components that were learned first the marginalised ranks leave out.
    - `progress`: called with (done, total, label) after each checkpoint.
    - `series`: the checkpoints, as `find_series` returns them.

    >>> import contextlib, numpy as np, iclflow as icl
    >>> def opened(step):
    ...     weights = np.random.default_rng(0).normal(size=(4, 12)) * (1 + step)
    ...     arrays = {"h.0.attn.c_attn.weight": weights, "h.0.attn.c_proj.weight": np.eye(4)}
    ...     return lambda: contextlib.nullcontext(icl.checkpoints.Arrays(arrays))
    >>> series = [icl.checkpoints.Checkpoint(step, str(step), opened(step)) for step in (0, 1, 2)]
    >>> found = icl.checkpoints.measure_series(series, measures=["norm"], heads=2)
    >>> dict(found.norm.sizes)
    {'step': 3, 'circuit': 2, 'layer': 1, 'head': 2}
    """
    plan = Plan(tuple(measures), rank, drop, tuple((extra or {}).items()))
    if not series:
        raise ValueError("no checkpoints to measure")
    problems: list[str] = []
    ordered = sorted(series, key=lambda checkpoint: checkpoint.step)
    with contextlib.ExitStack() as exits:
        reference, last, layout = _reference(
            exits, ordered, heads, stack, problems if keep_going else None
        )
        table = Table(plan, layout)
        notes = layout.notes(last)
        doubts = check_series(ordered, layout)
        for number, checkpoint in enumerate(ordered):
            if progress is not None:
                progress(number, len(ordered), checkpoint.label)
            if checkpoint.step > reference.step:
                continue  # newer than the last readable one, and already reported
            try:
                with _opened(checkpoint, reference, last) as source:
                    _check_layout(checkpoint, source, layout, heads, stack)
                    table.add(checkpoint.step, source, last)
            except CheckpointError as error:
                if not keep_going:
                    raise
                problems.append(f"step {checkpoint.step}: {error}")
    data = table.to_dataset()
    data.attrs |= {
        "reference_step": reference.step,
        "notes": json.dumps(notes),
        "problems": json.dumps(problems),
        "integrity": json.dumps(doubts),
    }
    return data


def _reference(
    exits: contextlib.ExitStack,
    ordered: Sequence[Checkpoint],
    heads: int | None,
    stack: str | None,
    problems: list[str] | None,
) -> tuple[Checkpoint, AbstractSource, Layout]:
    """The last checkpoint that can be read all through, kept open."""
    for checkpoint in reversed(ordered):
        with contextlib.ExitStack() as trial:
            try:
                source = trial.enter_context(checkpoint.open())
                layout = find_layout(source, heads=heads, stack=stack)
                for layer in layout.layers:
                    layout.heads_of(source, layer)
            except CheckpointError as error:
                if problems is None:
                    raise
                problems.append(f"step {checkpoint.step}: {error}")
                continue
            exits.push(trial.pop_all())
            return checkpoint, source, layout
    raise CheckpointError("no checkpoint can be read: " + "; ".join(problems or []))


@contextlib.contextmanager
def _opened(
    checkpoint: Checkpoint, reference: Checkpoint, last: AbstractSource
) -> Iterator[AbstractSource]:
    if checkpoint is reference:
        yield last
        return
    with checkpoint.open() as source:
        yield source


def _check_layout(
    checkpoint: Checkpoint,
    source: AbstractSource,
    layout: Layout,
    heads: int | None,
    stack: str | None,
) -> None:
    found = find_layout(source, heads=heads, stack=stack)
    missing = sorted(set(layout.layers) - set(found.layers))
    if type(found) is type(layout) and missing:
        layer = missing[0]
        layout.heads_of(source, layer)  # names the tensor that is not there
    if type(found) is not type(layout) or found != layout:
        raise CheckpointError(
            f"{checkpoint.label}: {found.family} names with {len(found.layers)} layers and "
            f"{found.heads} heads, the last checkpoint has {layout.family} names with "
            f"{len(layout.layers)} layers and {layout.heads} heads"
        )


def mark_stages(data: xr.Dataset, *, steps: Any = None, losses: Any = None) -> xr.Dataset:
    """The same Dataset with marks of the drops: variables `mark` and `mark_source`.

    Marks are the drops of the loss, the drops of the mean subspace distance of each circuit, the
    step at which its subspaces turned fastest (if that is twice their median speed), and the peaks
    of the curvature of its mean norm. All but the first need 8 checkpoints. If they are given, the
    losses are kept as `loss` over `loss_step`, and their stages in words as the attribute `stages`.

    - `data`: measures of a series, as `measure_series` returns them.
    - `steps`, `losses`: the loss curve of the training, where there is one.

    >>> import numpy as np, xarray as xr, iclflow as icl
    >>> steps = np.arange(0, 200, 2)
    >>> losses = 1 / (1 + np.exp((steps - 100) / 4))
    >>> data = xr.Dataset({"norm": (("step", "circuit", "layer", "head"), np.ones((3, 1, 1, 1)))},
    ...                   {"step": [0, 100, 198], "circuit": ["qk"]})
    >>> icl.checkpoints.mark_stages(data, steps=steps, losses=losses).mark.values.round().tolist()
    [100.0]
    """
    marks: list[tuple[float, str]] = []
    if losses is not None:
        stages = find_stages(steps, losses)
        marks += [(drop.time, "loss") for drop in stages.drops]
        at = ("loss_step", np.asarray(steps, float), {"long_name": "step", "units": "1"})
        about = {"long_name": "training loss", "units": "1"}
        data = data.assign_coords(loss_step=at)
        data = data.assign(loss=("loss_step", np.asarray(losses, float), about))
        data.attrs["stages"] = json.dumps(stages.lines())
    at = np.asarray(data["step"], float)
    for circuit in CIRCUITS:
        for name in ("subspace_distance", "subspace_speed", "norm"):
            if name not in data or at.size < 8:
                continue
            curve = data[name].sel(circuit=circuit).mean(("layer", "head"), skipna=False).values
            if name == "norm":
                # a window of several checkpoints: a finer one sees the corners between them
                smooth = time_curvature(at, curve, points=max(2 * at.size, 18), window=9)
                times = smooth.peaks(prominence=0.2)
                marks += [(float(t), f"{circuit} norm curvature") for t in times]
            elif name == "subspace_speed":
                if np.isfinite(curve).any() and np.nanmax(curve) > 2 * np.nanmedian(curve):
                    marks.append((float(at[np.nanargmax(curve)]), f"{circuit} subspace speed"))
            else:
                drops = find_stages(at, curve).drops
                marks += [(drop.time, f"{circuit} subspace distance") for drop in drops]
    marks.sort()
    label = {"long_name": "drop", "units": "1"}
    return data.assign(
        mark=("mark_number", np.array([time for time, _ in marks], float), label),
        mark_source=("mark_number", np.array([source for _, source in marks], str)),
    )
