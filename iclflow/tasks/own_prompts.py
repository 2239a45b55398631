"""Prompts that somebody has: arrays in memory, or files that are read a piece at a time."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from iclflow.results.archives import Archive, map_array
from iclflow.results.netcdf import opened
from iclflow.tasks.base import Normaliser, Prompt
from iclflow.tasks.checks import require_kind, require_lengths

BATCH_BYTES = 2**25  # of numbers that are read at once
LAYOUT = "x [P, N+1, D] and y [P, N+1] or [P, N+1, O], the query last"


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array in memory, or one that is mapped from a file."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def batches(self, size: int) -> Iterator[np.ndarray]:
        for i in range(0, len(self.values), size):
            yield np.asarray(self.values[i : i + size])


@dataclasses.dataclass(frozen=True)
class _Member:
    """An array inside an `.npz` file."""

    archive: Archive
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.archive.shapes[self.name]

    @property
    def dtype(self) -> np.dtype:
        return self.archive.kinds[self.name]

    def batches(self, size: int) -> Iterator[np.ndarray]:
        return self.archive.rows(self.name, size)


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable of a NetCDF file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def batches(self, size: int) -> Iterator[np.ndarray]:
        for i in range(0, self.shape[0], size):
            with opened(self.path) as dataset:
                found = dataset[self.name][i : i + size].values
            yield found


_Rows = _Array | _Member | _Variable  # an array whose rows are read a few at a time


class Prompts:
    """P prompts of one shape that you have, each N labelled pairs and a query.

    It is what `Moments.of`, `Features.of`, `Statistics.of` and `Sequences.of` read, piece by piece,
    so that a file may be larger than the memory. Iterating gives stacked batches of `Prompt`.

    - `count`, `context`, `size`, `outputs`: P, N, D and O.
    - `lengths`: the loss is the mean over prefixes of these many pairs.

    >>> import iclflow as icl, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(100, 21, 3))
    >>> prompts = icl.Prompts(x, x @ [1.0, 0.5, 0.0])
    >>> prompts
    Prompts(P = 100, N = 20, D = 3, O = 1)
    >>> loss = icl.Moments.of(prompts)
    >>> icl.Separate.initialiser(loss, heads=4, scale=0.05).size
    3
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        targets: Any = None,
        *,
        lengths: Sequence[int] | None = None,
        normaliser: Normaliser = Normaliser.PAIRS,
    ) -> None:
        """Take arrays.

        - `x`: the inputs [P, N+1, D], in the order of the context and then the query.
        - `y`: the labels [P, N+1], or [P, N+1, O] for several outputs. The label of the query is
          what the model should predict; it is never shown to it.
        - `targets`: the labels as the loss asks for them, where they differ from those that the
          context shows (noise on one of them); `y` if omitted.
        - `lengths`: average the loss over prefixes of these many pairs; whole prompts if omitted.
        - `normaliser`: what linear attention divides by.
        """
        given = (("x", x), ("y", y), *(() if targets is None else (("targets", targets),)))
        self._take({name: _Array(_array(name, a)) for name, a in given}, "", lengths, normaliser)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        lengths: Sequence[int] | None = None,
        normaliser: Normaliser = Normaliser.PAIRS,
    ) -> "Prompts":
        """Open a file of prompts. Its shapes are checked now, its numbers when they are read.

        - `path`: an `.npz` or NetCDF (`.nc`) file with `x` and `y`, and `targets` where these
          differ; or two `.npy` files, `"x.npy,y.npy"`, with a third for `targets`.
        - `lengths`, `normaliser`: as of `Prompts`.

        >>> import tempfile, numpy as np, iclflow as icl
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/mine.npz", x=np.ones((5, 4, 2)), y=np.ones((5, 4)))
        ...     print(icl.Prompts.load(f"{folder}/mine.npz").count)
        5
        """
        found, self = _opened(str(path)), cls.__new__(cls)
        self._take(found, str(path), lengths, normaliser)
        return self

    def _take(
        self,
        rows: dict[str, _Rows],
        where: str,
        lengths: Sequence[int] | None,
        normaliser: Normaliser,
    ) -> None:
        self.where, self._rows = where, rows
        self.normaliser = require_kind("normaliser", normaliser, Normaliser, "")
        self.count, self.context, self.size, self.outputs = _sizes(rows, self._prefix)
        self.lengths = (self.context,) if lengths is None else require_lengths(lengths)
        if not self.lengths or min(self.lengths) < 1 or max(self.lengths) > self.context:
            raise ValueError(
                f"{self._prefix}context lengths must lie between 1 and the {self.context} pairs of "
                f"a prompt, got {', '.join(map(str, self.lengths))}"
            )

    @property
    def _prefix(self) -> str:
        return f"{self.where}: " if self.where else ""

    def __repr__(self) -> str:
        sizes = f"P = {self.count:,}, N = {self.context}, D = {self.size}, O = {self.outputs}"
        return f"Prompts({sizes}{', ' if self.where else ''}{self.where})"

    def __iter__(self) -> Iterator[Prompt]:
        """Stacked batches of about 32 MB; `ValueError` at a number that is none or too large."""
        row = 8 * (self.context + 1) * (self.size + 2 * self.outputs)
        size = max(1, min(self.count, BATCH_BYTES // row))
        streams = [rows.batches(size) for rows in self._rows.values()]
        begin = 0
        for arrays in zip(*streams, strict=True):
            whole = [
                np.asarray(a, np.float64).reshape(len(a), self.context + 1, -1) for a in arrays
            ]
            # The moments of attention are of the sixth degree in x and y.
            most = float(np.finfo(jnp.zeros(0).dtype).max) ** (1 / 6)
            bad = ~np.all([(np.abs(a) <= most).all(axis=(1, 2)) for a in whole], axis=0)
            if bad.any():
                raise ValueError(
                    f"{self._prefix}prompts must be finite numbers up to {most:.0e}, and prompt "
                    f"number {begin + int(bad.argmax())} (of 0 to {self.count - 1}) is not; leave "
                    f"it out, or scale all of them"
                )
            begin += len(whole[0])
            x, y, *targets = (jnp.asarray(a, float) for a in whole)
            yield Prompt(x, y, targets[0] if targets else y, None, self.normaliser)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        raise ValueError(f"{name} must be one array, got rows of different lengths") from None


def _sizes(rows: dict[str, _Rows], where: str) -> tuple[int, int, int, int]:
    """P, N, D and O of arrays that belong together; `ValueError` in one line if they do not."""
    for name, array in rows.items():
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{where}{name} must be numbers, got {array.dtype}; needed {LAYOUT}")
    x = rows["x"].shape
    said = " and ".join(f"{name} {array.shape}" for name, array in rows.items())
    labels = [array.shape for name, array in rows.items() if name != "x"]
    if len(x) != 3 or any(len(y) not in (2, 3) or y[:2] != x[:2] for y in labels):
        raise ValueError(f"{where}needed {LAYOUT}, got {said}")
    if len({y[2:] or (1,) for y in labels}) > 1 or 0 in x or any(0 in y for y in labels):
        raise ValueError(f"{where}needed {LAYOUT}, none of them empty, got {said}")
    if x[1] < 2:
        raise ValueError(
            f"{where}a prompt needs at least one labelled pair and a query, so N+1 must be 2 or "
            f"more, got {said}"
        )
    return x[0], x[1] - 1, x[2], (*labels[0], 1)[2]


def _opened(path: str) -> dict[str, _Rows]:
    """The arrays of a file of prompts, none of them read."""
    parts = [part.strip() for part in path.split(",")]
    ending = Path(parts[0]).suffix.lower()
    if ending == ".npy":
        if len(parts) not in (2, 3):
            raise ValueError(f"{path}: one .npy file holds x or y; give both, x.npy,y.npy")
        return {n: _Array(map_array(p)) for n, p in zip(("x", "y", "targets"), parts, strict=False)}
    if ending == ".npz":
        archive = Archive(path)
        names = _names(path, list(archive.shapes))
        return {name: _Member(archive, name) for name in names}
    if ending in (".nc", ".netcdf", ".h5"):
        with opened(path) as dataset:
            names = _names(path, [str(name) for name in dataset.variables])
            found = {name: dataset[name] for name in names}
            _same_order(path, {name: tuple(map(str, v.dims)) for name, v in found.items()})
            return {n: _Variable(Path(path), n, v.shape, v.dtype) for n, v in found.items()}
    raise ValueError(
        f"{path}: prompts come as .npz or .nc with x and y, or as two files x.npy,y.npy; for "
        f"example np.savez('mine.npz', x=x, y=y)"
    )


def _same_order(path: str, dims: dict[str, tuple[str, ...]]) -> None:
    """Refuse variables that share the names of their first two dimensions in another order."""
    for name, given in dims.items():
        if set(given[:2]) == set(dims["x"][:2]) and given[:2] != dims["x"][:2]:
            raise ValueError(
                f"{path}: x has the dimensions {', '.join(dims['x'])} and {name} has "
                f"{', '.join(given)}; transpose {name} to the order of x"
            )


def _names(path: str, found: list[str]) -> list[str]:
    missing = [name for name in ("x", "y") if name not in found]
    if missing:
        there = ", ".join(found[:8]) or "nothing"
        raise ValueError(f"{path} has {there}, and no {missing[0]}; needed {LAYOUT}")
    return ["x", "y", *(["targets"] if "targets" in found else [])]
