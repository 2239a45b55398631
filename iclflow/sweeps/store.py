"""A sweep on disk: one Zarr group that xarray opens, written block by block.

A cell is there when its content key is in the variable `content`, which is written after everything
else of a block. So whatever ends the program, a cell is there whole or not at all; and a cell of
other settings, code or version is another cell. Every chunk carries a checksum.
"""

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from iclflow.results.files import saying_full
from iclflow.runs.labels import OUTCOMES, attributes
from iclflow.sweeps.compute import Answer
from iclflow.sweeps.design import Design
from iclflow.sweeps.layout import (
    Region,
    content_keys,
    extent,
    labels,
    locked,
    regions,
    require,
    stored,
    taken_up,
)
from iclflow.sweeps.summaries import KINDS

CONTENT, FAILURE = "content", "failure"


class SweepStore:
    """The store of one design, open for writing by this process alone.

    - `path`: the folder; created, or taken up if it holds this design or a part of it.
    - `design`: what is to be there.
    - `block`: the shape of the regions that are written at once, for a new store.
    """

    def __init__(self, path: Path | str, design: Design, block: Sequence[int]) -> None:
        """Create the store, or take it up; `ValueError` if it holds anything else."""
        zarr, self.path = require("zarr"), Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"the folder {self.path.parent} does not exist; create it first")
        self.new = not self.path.exists() or not any(self.path.iterdir())
        if not self.new and not (self.path / "zarr.json").is_file():
            raise ValueError(f"{self.path} exists and is no sweep; choose another name")
        self.path.mkdir(exist_ok=True)
        self._lock, self._open = locked(self.path), dict[str, Any]()
        try:
            if self.new:
                self.group = zarr.create_group(self.path, zarr_format=3)
                self.design, self.block = design, tuple(block)
                self.group.attrs.update({"reasons": [], "block": list(block)} | stored(design))
            else:
                self.group = _opened(self.path, "r+")
                self.design = taken_up(design, dict(self.group.attrs), self.path)
                self.block = tuple(self.group.attrs["block"])
            self._make_room()
        except BaseException:
            self.close()
            raise
        self.keys = content_keys(self.design)

    def close(self) -> None:
        """Let other processes write."""
        os.close(self._lock)

    def regions(self) -> Iterator[Region]:
        """The blocks that are written at once."""
        return regions(self.design.shape, self.block)

    def wanted(self) -> np.ndarray:
        """Which cells are not there yet, of the design's shape."""
        return np.asarray(self.group[CONTENT][...]) != self.keys

    def failures(self) -> int:
        """How many cells failed."""
        return int(np.count_nonzero(self.group[FAILURE][...]))

    def write(self, region: Region, answer: Answer) -> None:
        """What a block found; its keys last."""
        shape, dims = extent(region), self.design.dims
        done = answer.done.reshape(shape)
        with saying_full(self.path):
            for name, (more, array) in answer.values.items():
                wide = array.reshape(*shape, *array.shape[2:])
                self._put(name, (*dims, *more), region, wide, done)
            if self.design.record and done.any():
                some = np.asarray(done.any(axis=-1))
                for name, array in answer.clocks.items():
                    wide = array.reshape(*shape[:-1], array.shape[1])
                    self._put(name, (*dims[:-1], "time"), region[:-1], wide, some)
            failure = self._failures(answer).reshape(shape)
            self._put(FAILURE, dims, region, failure, done | (failure > 0))
            if self._changed:
                self.finish()
            self._put(CONTENT, dims, region, self.keys[region], done)

    def repair(self) -> int:
        """Give up the cells of damaged chunks, to be computed anew; how many they are."""
        lost = 0
        for region in self.regions():
            damaged = [name for name in self._variables() if not self._sound(name, region)]
            if not damaged:
                continue
            lost += int(np.prod(extent(region)))
            for name in {*damaged, CONTENT}:
                self._clear(name, region)
        return lost

    def finish(self) -> None:
        """All metadata in one place, so that the store opens quickly."""
        self._changed = False
        with saying_full(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not in the standard of Zarr 3 yet
            require("zarr").consolidate_metadata(self.path)

    def _variables(self) -> list[str]:
        """The names of what is written by block."""
        return [name for name in self.group.array_keys() if name not in labels(self.design)]

    def _make_room(self) -> None:
        """Labels and variables for all cells of the design; again where that was broken off."""
        room = dict(zip(self.design.dims, self.design.shape, strict=True))
        with saying_full(self.path):
            for _, array in self.group.arrays():
                dims = array.metadata.dimension_names
                shape = tuple(room.get(d, n) for d, n in zip(dims, array.shape, strict=True))
                if shape != array.shape:
                    array.resize(shape)
            for name, kind in ((CONTENT, np.uint64), (FAILURE, np.int16)):
                if name not in self.group:
                    self._create(name, self.design.dims, (), np.dtype(kind), label(name))
            for name, (dims, values, about) in labels(self.design).items():
                if name not in self.group:
                    self._create(name, dims, None, values.dtype, about)
                self.group[name][...] = values
            self.group.attrs.update(stored(self.design))
        self.finish()

    def _create(
        self,
        name: str,
        dims: tuple[str, ...],
        more: tuple[int, ...] | None,
        kind: np.dtype,
        about: Mapping[str, Any],
    ) -> None:
        """A variable over the cells and dimensions of sizes `more`; a coordinate if None."""
        codecs = require("zarr.codecs")
        sizes = dict(zip(self.design.dims, self.design.shape, strict=True))
        pieces = dict(zip(self.design.dims, self.block, strict=True))
        lead = len(dims) if more is None else len(dims) - len(more)
        shape = (*(sizes[d] for d in dims[:lead]), *(more or ()))
        chunks = shape if more is None else (*(pieces[d] for d in dims[:lead]), *more)
        empty = {"f": np.nan, "O": "", "i": -1 if name == "result" else 0}.get(kind.kind, 0)
        self.group.create_array(
            name,
            shape=shape,
            chunks=tuple(max(1, n) for n in chunks),
            dtype=str if kind.kind == "O" else kind,
            fill_value=empty,
            dimension_names=dims,
            compressors=[codecs.ZstdCodec(level=1), codecs.Crc32cCodec()],
            attributes=dict(about),
        )

    def _put(
        self,
        name: str,
        dims: tuple[str, ...],
        region: Region,
        array: np.ndarray,
        done: np.ndarray,
    ) -> None:
        """Write cells that are done; further dimensions grow to the largest cell."""
        lead = len(region)
        if name == "result":
            array = np.where(np.isfinite(array), array, -1).astype(np.int8)
        if name not in self._open:  # to open one reads its metadata
            if name not in self.group:
                self._create(name, dims, array.shape[lead:], array.dtype, label(name))
                self._changed = True
            self._open[name] = self.group[name]
        target = self._open[name]
        more = tuple(np.maximum(target.shape[lead:], array.shape[lead:]).tolist())
        if more != target.shape[lead:]:
            target.resize((*target.shape[:lead], *more))
            self._changed = True
        where = (*region, *(slice(n) for n in array.shape[lead:]))
        if not done.all():  # what is there already stays
            mask = done.reshape(*done.shape, *(1,) * (array.ndim - lead))
            array = np.where(mask, array, target[where])
        target[where] = array

    def _failures(self, answer: Answer) -> np.ndarray:
        """1 + the place of each cell's reason among the store's reasons; 0 without."""
        found, known = np.zeros(answer.done.shape, np.int16), list(self.group.attrs["reasons"])
        reasons = [*known]
        for point, seed, reason in answer.failures:
            if reason not in reasons:
                reasons.append(reason)
            found[point, seed] = 1 + reasons.index(reason)
        if reasons != known:
            self.group.attrs["reasons"] = reasons
        return found

    def _sound(self, name: str, region: Region) -> bool:
        array = self.group[name]
        seeded = "seed" in array.metadata.dimension_names
        try:
            array[region if seeded else region[:-1]]
        except Exception:  # damaged bytes raise almost anything
            return False
        return True

    def _clear(self, name: str, region: Region) -> None:
        """Remove the chunks of a region."""
        seeded = "seed" in self.group[name].metadata.dimension_names
        part = region if seeded else region[:-1]
        place = [str(side.start // n) for side, n in zip(part, self.block, strict=False)]
        chunk = self.path.joinpath(name, "c", *place)
        if chunk.is_dir():
            shutil.rmtree(chunk)
        else:
            chunk.unlink(missing_ok=True)


def label(name: str) -> dict[str, Any]:
    """Long name and units of a variable."""
    own = {
        CONTENT: "what the cell computes; 0 where it is not computed",
        FAILURE: "1 + place of the reason in the attribute reasons; 0: none",
        "clock": r"training time $t/\tau$",
        "step": "training steps; of a flow, t/τ",
        "stopped": "last step (flow: time) computed",
    }
    if name in KINDS:
        return {"long_name": KINDS[name][2], "units": KINDS[name][3]}
    if name == "result":
        meanings = {"flag_values": list(range(len(OUTCOMES))), "flag_meanings": " ".join(OUTCOMES)}
        return {"long_name": "how the run ended; -1: not computed", **meanings}
    return {"long_name": own[name], "units": "1"} if name in own else attributes(name)


def load(path: Path | str) -> xr.Dataset:
    """The sweep in a store, read as it is needed; `ValueError` in one line if it is none."""
    path = Path(path)
    if not (path / "zarr.json").is_file():
        raise ValueError(f"there is no sweep at {path}")
    if "sweep_format" not in _opened(path, "r").attrs:
        raise ValueError(f"{path} is a Zarr store, but no sweep of iclflow")
    try:
        return xr.open_zarr(path, chunks=None)
    except Exception as error:  # damaged bytes raise almost anything
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())[:120]}") from None


def _opened(path: Path, mode: str) -> Any:
    try:
        return require("zarr").open_group(path, mode=mode, use_consolidated=False)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} cannot be read as a Zarr store: {reason}") from None
