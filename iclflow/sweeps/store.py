"""A sweep on disk: one Zarr group that xarray opens, written block by block.

A cell is there when its content key is in the variable `content`, which is written after everything
else of a block. So whatever ends the program, a cell is there whole or not at all; and a cell of
other settings, code, version or engine is another cell. The variable `checksum` has a sum over all
numbers of the cell, so that a chunk which is missing, or lies in the place of another, is noticed.
"""

import os
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from iclflow.results.files import saying_full
from iclflow.results.netcdf import with_present_names
from iclflow.runs.labels import OUTCOMES, attributes
from iclflow.sweeps.compute import Answer
from iclflow.sweeps.design import Design
from iclflow.sweeps.layout import (
    ENGINES,
    FORMAT,
    Region,
    advanced_by,
    content_keys,
    extent,
    labels,
    locked,
    mixed,
    regions,
    require,
    stored,
    taken_up,
)
from iclflow.sweeps.summaries import KINDS

CONTENT, CHECKSUM, ENGINE, FAILURE = "content", "checksum", "engine", "failure"
SHARED = ("clock", "step")  # variables of a point, which all of its seeds have
AT_ONCE = 2**18  # numbers whose checksum is computed at a time


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
        refuse_links(self.path)
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
        content, engines = (np.asarray(self.group[name][...]) for name in (CONTENT, ENGINE))
        return content != advanced_by(self.keys, engines)

    def engines(self) -> np.ndarray:
        """What advanced each cell that is there, as places in `ENGINES`; -1 elsewhere."""
        return np.where(self.wanted(), -1, np.asarray(self.group[ENGINE][...]))

    def failures(self) -> int:
        """How many cells failed."""
        return int(np.count_nonzero(self.group[FAILURE][...]))

    def write(self, region: Region, answer: Answer) -> None:
        """What a block found; its keys last."""
        shape, dims = extent(region), self.design.dims
        done, kinds = answer.done.reshape(shape), answer.kinds.reshape(shape)
        sums = np.zeros(shape, np.uint64)
        with saying_full(self.path):
            for name, (more, array) in {**answer.values, ENGINE: ((), answer.kinds)}.items():
                wide = array.reshape(*shape, *array.shape[2:])
                kept = self._put(name, (*dims, *more), region, wide, done)
                sums += checksums(name, kept, len(shape))
            if self.design.record and done.any():
                some = np.asarray(done.any(axis=-1))
                for name, array in answer.clocks.items():
                    wide = array.reshape(*shape[:-1], array.shape[1])
                    kept = self._put(name, (*dims[:-1], "time"), region[:-1], wide, some)
                    sums += checksums(name, kept, len(shape) - 1)[..., None]
            failure = self._failures(answer).reshape(shape)
            self._put(FAILURE, dims, region, failure, done | (failure > 0))
            if self._changed:
                self.finish()
            keys = advanced_by(self.keys[region], kinds)
            self._put(CHECKSUM, dims, region, sums ^ mixed(keys), done)
            self._put(CONTENT, dims, region, keys, done)

    def repair(self) -> int:
        """Give up cells whose numbers are damaged, missing or others'; how many they are."""
        lost, own = 0, (CONTENT, CHECKSUM, FAILURE)
        for region in self.regions():
            for name in (*own, *variables_of(self.group)):
                if not self._sound(name, region):
                    self._clear(name, region)
                    lost += int(np.prod(extent(region))) if name == CONTENT else 0
            content = np.asarray(self.group[CONTENT][region])
            engines = np.asarray(self.group[ENGINE][region])
            there = content != 0
            wrong = there & ~_intact(self.group, region, content)
            wrong |= there & (content != advanced_by(self.keys[region], engines))
            if wrong.any():
                lost += int(wrong.sum())
                self.group[CONTENT][region] = np.where(wrong, np.uint64(0), content)
        return lost

    def finish(self) -> None:
        """All metadata in one place, so that the store opens quickly."""
        self._changed = False
        with saying_full(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not in the standard of Zarr 3 yet
            require("zarr").consolidate_metadata(self.path)

    def _make_room(self) -> None:
        """Labels and variables for all cells of the design; again where that was broken off."""
        room = dict(zip(self.design.dims, self.design.shape, strict=True))
        with saying_full(self.path):
            for _, array in self.group.arrays():
                dims = array.metadata.dimension_names
                shape = tuple(room.get(d, n) for d, n in zip(dims, array.shape, strict=True))
                if shape != array.shape:
                    array.resize(shape)
            own = {CONTENT: np.uint64, CHECKSUM: np.uint64, ENGINE: np.int8, FAILURE: np.int16}
            for name, kind in own.items():
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
        whole = -1 if name in ("result", ENGINE) else 0
        empty = {"f": np.nan, "O": "", "i": whole}.get(kind.kind, 0)
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
    ) -> np.ndarray:
        """Write cells that are done; further dimensions grow to the largest cell.

        Returns the array in the type that is stored.
        """
        lead = len(region)
        if name == "result":
            array = np.where(np.isfinite(array), array, -1).astype(np.int8)
        elif name == "stopped":  # whole steps in a block without gaps, and NaN in one with gaps
            array = array.astype(float)
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
        array = array if array.dtype == object else array.astype(target.dtype)
        kept = array
        if not done.all():  # what is there already stays
            mask = done.reshape(*done.shape, *(1,) * (array.ndim - lead))
            array = np.where(mask, array, target[where])
        target[where] = array
        return kept

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
        CONTENT: "what the cell computes, and by which engine; 0 where it is not computed",
        CHECKSUM: "a sum over all numbers of the cell",
        FAILURE: "1 + place of the reason in the attribute reasons; 0: none",
        "clock": r"training time $t/\tau$; steps where the rule keeps no such time",
        "step": "training steps; of a flow, t/τ",
        "stopped": "last step (flow: time) computed",
    }
    if name in KINDS:
        return {"long_name": KINDS[name][2], "units": KINDS[name][3]}
    if name == "result":
        meanings = {"flag_values": list(range(len(OUTCOMES))), "flag_meanings": " ".join(OUTCOMES)}
        return {"long_name": "how the run ended; -1: not computed", **meanings}
    if name == ENGINE:
        meanings = {"flag_values": list(range(len(ENGINES))), "flag_meanings": " ".join(ENGINES)}
        return {"long_name": "what advanced the run; -1: not computed", **meanings}
    return {"long_name": own[name], "units": "1"} if name in own else attributes(name)


def refuse_links(path: Path) -> None:
    """Refuse a store with a link inside: what is written there would be written elsewhere."""
    for folder, inner, files in os.walk(path):
        for name in (*inner, *files):
            if os.path.islink(os.path.join(folder, name)):
                where = Path(folder, name).relative_to(path)
                raise ValueError(
                    f"{path} has a link inside ({where}), and a sweep writes into its own folder "
                    f"only; put the folder itself there, or choose another name"
                )


def variables_of(group: Any) -> list[str]:
    """The variables with numbers of cells: those that a checksum is over."""
    found = []
    for name, array in group.arrays():
        seeded = "seed" in array.metadata.dimension_names and name != "seed"
        if name in SHARED or (seeded and name not in (CONTENT, CHECKSUM, FAILURE)):
            found.append(name)
    return found


def checksums(name: str, array: np.ndarray, lead: int) -> np.ndarray:
    """A sum for every cell of [*cells, ...] over the numbers of one variable, modulo 2^64.

    Σ_k m_k (w_k ⊕ w_k ≫ 32) with w_k the bits of number k, and m_k odd and drawn from the place of
    k and the name. NaN counts as 0: it is what fills the places that a cell does not use, so that
    the sum stays the same when another cell needs more of them.
    """
    shape, own = array.shape[:lead], zlib.crc32(name.encode())
    if array.dtype == object or array.dtype.kind in "UT":
        flat = [zlib.crc32(str(word).encode()) for word in array.ravel()]
        array = np.asarray(flat, float).reshape(array.shape)
    rows = array.reshape(int(np.prod(shape, dtype=int)), -1)
    place = np.zeros(array.shape[lead:], np.uint64)
    for axis, count in enumerate(array.shape[lead:]):
        along = np.arange(count, dtype=np.uint64) << np.uint64(20 * (axis % 3))
        place = mixed(place ^ along.reshape(-1, *(1,) * (array.ndim - lead - axis - 1)))
    factors = mixed(place.ravel() ^ np.uint64(own)) | np.uint64(1)
    sums = np.zeros(len(rows), np.uint64)
    step = max(1, AT_ONCE // max(1, rows.shape[1]))
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step].astype(np.float64)
        bits = some.view(np.uint64)
        bits = np.where(np.isnan(some), np.uint64(0), bits ^ (bits >> np.uint64(32)))
        sums[begin : begin + step] = (bits * factors).sum(axis=1, dtype=np.uint64)
    return sums.reshape(shape)


def _intact(group: Any, region: Region, content: np.ndarray) -> np.ndarray:
    """Which cells of a region have the numbers that they had when they were written."""
    sums, lead = np.zeros(content.shape, np.uint64), content.ndim
    for name in variables_of(group):
        if name in SHARED:
            found = np.asarray(group[name][region[:-1]])
            sums += checksums(name, found, lead - 1)[..., None]
        else:
            sums += checksums(name, np.asarray(group[name][region]), lead)
    return np.asarray(group[CHECKSUM][region]) == sums ^ mixed(content)


def _lost(group: Any) -> int:
    """How many cells that count as computed have other numbers, or can not be read."""
    lost = 0
    content = group[CONTENT]  # read before the variables: a cell that is there then has all of them
    for region in regions(content.shape, group.attrs["block"]):
        keys = np.asarray(content[region])
        if not keys.any():
            continue
        try:
            lost += int(((keys != 0) & ~_intact(group, region, keys)).sum())
        except Exception:  # damaged bytes raise almost anything
            lost += int((keys != 0).sum())
    return lost


def load(path: Path | str, *, check: bool = True) -> xr.Dataset:
    """The sweep in a store, read as it is needed; `ValueError` in one line if it is none.

    - `path`: the folder, FILE.zarr.
    - `check`: whether the checksums of all cells are compared first, which reads the whole store. A
      store with a missing or exchanged chunk is then refused. Stores of version 0.2 have none.
    """
    path = Path(path)
    if not (path / "zarr.json").is_file():
        raise ValueError(f"there is no sweep at {path}")
    group = _opened(path, "r")
    if "sweep_format" not in group.attrs:
        raise ValueError(f"{path} is a Zarr store, but no sweep of iclflow")
    if check and group.attrs["sweep_format"] == FORMAT:
        try:
            lost = _lost(group)
        except Exception as error:
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"{path} is damaged: {reason}; the sweep's own command mends it"
            ) from None
        if lost:
            raise ValueError(
                f"{path} is damaged: {lost} cells lack their numbers, or have others'; the sweep's "
                f"own command computes them again"
            )
    try:
        return with_present_names(xr.open_zarr(path, chunks=None))
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
