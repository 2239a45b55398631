"""How a design lies in a store: labels, blocks, and the content key of every cell."""

import fcntl
import hashlib
import importlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import iclflow
from iclflow.results.provenance import code_key, describe, stamp
from iclflow.runs.fused.engine import CPP, CUDA, VMAP
from iclflow.sweeps.axes import LABEL, Axis
from iclflow.sweeps.design import Design

FORMAT = 2  # of the stores that are written; those of format 1 had no checksums, and open too
# Fields that may differ between cells of one compiled program; along others blocks have one value.
NUMBERS = {"scale", "rate", "noise", "target_noise", "context", "trace", "momentum"}
NUMBERS |= {"tolerance", "fixed_fraction", "task_covariance", "task_mean"}

ENGINES = (VMAP, CPP, CUDA)  # a store keeps the place of the one that advanced each cell

Region = tuple[slice, ...]
Labels = tuple[tuple[str, ...], np.ndarray, dict[str, str]]  # dims, values, attributes


def block_shape(design: Design, size: int) -> tuple[int, ...]:
    """The shape of a block of about `size` cells that may be trained together."""
    left, found = max(1, size), []
    mixed = [any(name not in NUMBERS for name in axis.fields) for axis in design.axes]
    for alone, count in zip([*mixed, False][::-1], design.shape[::-1], strict=True):
        found.append(1 if alone else min(count, left))
        left //= found[-1]
    return tuple(found[::-1])


def regions(shape: Sequence[int], block: Sequence[int]) -> Iterator[Region]:
    """The blocks of a store."""
    sides = [
        [slice(a, min(a + c, n)) for a in range(0, n, c)] for n, c in zip(shape, block, strict=True)
    ]
    return itertools.product(*sides)


def extent(region: Region) -> tuple[int, ...]:
    """The number of cells of a block along each dimension."""
    return tuple(part.stop - part.start for part in region)


def labels(design: Design) -> dict[str, Labels]:
    """The coordinates of a store; values that are lists are written as text."""
    found: dict[str, Labels] = {}
    for axis in design.axes:
        if axis.name not in axis.fields:
            found[axis.name] = ((axis.name,), np.arange(len(axis)), {})
        if any(axis.labels):
            found[LABEL] = ((axis.name,), np.asarray(axis.labels, object), {})
        for name, values in axis.fields.items():
            about = {"long_name": name.replace("_", " "), "units": "1"}
            found[name] = ((axis.name,), _array(values), about)
    seeds = np.arange(design.seed, design.seed + design.seeds)
    return found | {"seed": (("seed",), seeds, {"long_name": "seed"})}


def _array(values: Sequence[Any]) -> np.ndarray:
    if any(isinstance(value, tuple) for value in values):
        values = [
            ",".join(f"{x:g}" for x in value) if isinstance(value, tuple) else value
            for value in values
        ]
    empty = "" if any(isinstance(value, str) for value in values) else np.nan
    found = np.asarray([empty if value is None else value for value in values])
    return found.astype(object) if found.dtype.kind == "U" else found


def stored(design: Design) -> dict[str, Any]:
    """What a store says of its design, and of what wrote it."""
    rows = [[list(row) for row in axis.rows()] for axis in design.axes]
    about = {"sweep_format": FORMAT, "common": design.common, "values": json.dumps(describe(rows))}
    return stamp(json.loads(design.common)) | about | {"seeds": design.seeds, "code_key": code()}


def taken_up(design: Design, found: dict[str, Any], path: Path) -> Design:
    """The design with its values in the order of the store; `ValueError` if it is another."""
    if found.get("sweep_format") != FORMAT:
        raise ValueError(f"{path} exists and is no sweep; choose another name")
    version = found["iclflow_version"]
    if version != iclflow.__version__ or found["code_key"] != code():
        whose = f"iclflow {version}" if version != iclflow.__version__ else "other code"
        raise ValueError(
            f"{path} was written by {whose}, whose cells need not be these; choose another name "
            f"or move it away"
        )
    values = json.loads(found["values"])
    if found["common"] != design.common or int(found["seeds"]) > design.seeds:
        raise ValueError(
            f"{path} holds another design; only values of its axes and seeds can be added: choose "
            f"another name or move it away"
        )
    axes = [_in_order(axis, rows, path) for axis, rows in zip(design.axes, values, strict=True)]
    return design.along(axes)


def _in_order(axis: Axis, first: list[Any], path: Path) -> Axis:
    """The values of the store first, in their order, then the new ones."""
    rows = [describe(list(row)) for row in axis.rows()]
    missing = [row for row in first if row not in rows]
    if missing:
        raise ValueError(
            f"{path} has cells at {axis.name} = {missing[0]}, which this design has not; values "
            f"can be added only: choose another name or move it away"
        )
    order = [rows.index(row) for row in first]
    return axis.take([*order, *(i for i in range(len(rows)) if i not in set(order))])


@cache
def code() -> str:
    """A hash of the code that computes cells."""
    return code_key("iclflow.sweeps.compute")


def content_keys(design: Design) -> np.ndarray:
    """A number for what each cell computes, of the design's shape; never 0."""
    points = np.zeros(design.shape[:-1], np.uint64)
    for place in design.places():
        said = json.dumps(describe(design.settings(place)), sort_keys=True)
        text = f"{said} {iclflow.__version__} {code()} {design.summaries}"
        digest = hashlib.sha256(text.encode()).digest()
        points[place] = int.from_bytes(digest[:8], "little")
    seeds = np.arange(design.seed, design.seed + design.seeds, dtype=np.uint64)
    return mixed(points[..., None] ^ mixed(seeds)) | np.uint64(1)


def advanced_by(keys: np.ndarray, engines: np.ndarray) -> np.ndarray:
    """The keys of cells that these engines advanced (places in `ENGINES`); never 0.

    Engines add in another order, so their cells differ in the last digits and are other cells.
    """
    return (keys ^ mixed(engines.astype(np.uint64))) | np.uint64(1)


def mixed(x: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits in which every bit depends on every other (SplitMix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def locked(folder: Path) -> int:
    """A descriptor that holds the folder for this process; it goes when the process does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(
            f"another process writes {folder}; wait for it, or choose another name"
        ) from None
    return descriptor


def require(module: str) -> Any:
    """A module of the extra `sweep`, or one line that says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise ModuleNotFoundError(
            f'sweeps need {name}, which is not installed: pip install "iclflow[sweep]"'
        ) from None
