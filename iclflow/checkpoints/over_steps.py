"""Measures of every head over a series of checkpoints, as one labelled Dataset.

One layer of one checkpoint is in memory at a time (and of the reference, for distances).
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.checkpoints.integrity import check_series
from iclflow.checkpoints.layouts import Layout, find_layout
from iclflow.checkpoints.measures import CIRCUITS, DEFAULT_MEASURES, Plan, Table
from iclflow.checkpoints.series import Checkpoint
from iclflow.linalg import FactoredMatrix
from iclflow.measures.detectors import time_curvature
from iclflow.measures.stages import find_stages


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
      `step_distance` to the one before. `rank` is the size k of the subspaces.
    - `extra`: further measures, name -> function of one head's `FactoredMatrix`.
    - `heads`: their number, where no config.json says.
    - `stack`: part of the names of the layers to measure, where a model has several stacks of
      them, such as an encoder and a decoder.
    - `keep_going`: leave out a checkpoint that cannot be read; attribute `problems` says why.

    The result has dimensions (step, circuit, layer, head). Attribute `integrity` names the steps
    whose weights are those of another step, or out of line with their neighbours' (`check_series`).
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

    Drops of the loss, drops of the mean subspace distance of each circuit, and peaks of the
    curvature of its mean norm (needs 8 steps past 0). If they are given, the losses are kept as
    `loss` over `loss_step`, and their stages in words as the attribute `stages`.
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
        for name in ("subspace_distance", "norm"):
            if name not in data or at.size < 8:
                continue
            curve = data[name].sel(circuit=circuit).mean(("layer", "head"), skipna=False).values
            if name == "norm":
                # a window of several checkpoints: a finer one sees the corners between them
                smooth = time_curvature(at, curve, points=max(2 * at.size, 18), window=9)
                times = smooth.peaks(prominence=0.2)
                marks += [(float(t), f"{circuit} norm curvature") for t in times]
            else:
                drops = find_stages(at, curve).drops
                marks += [(drop.time, f"{circuit} subspace distance") for drop in drops]
    marks.sort()
    label = {"long_name": "drop", "units": "1"}
    return data.assign(
        mark=("mark_number", np.array([time for time, _ in marks], float), label),
        mark_source=("mark_number", np.array([source for _, source in marks], str)),
    )
