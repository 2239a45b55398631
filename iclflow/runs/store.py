"""A sweep on disk: one Zarr group that xarray opens, written block by block.

A cell is there when its content key is in the variable `content`, which is written after everything
else of a block. So whatever ends the program, a cell is there whole or not at all; and a cell of
other settings, code, version or engine is another cell. The variable `checksum` has a sum over all
numbers of the cell, so that a chunk which is missing, or lies in the place of another, is noticed.
"""

import fcntl
import hashlib
import importlib
import itertools
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import iclflow
from iclflow.results.files import parse_json, saying_full
from iclflow.results.provenance import code_key, describe, stamp, with_present_names
from iclflow.runs.cells import AbstractCells, Axis
from iclflow.runs.compute import CLOCKS, ENGINES, Answer, clocked, label_of
from iclflow.runs.record import COUNTED, OUTCOMES

CONTENT, CHECKSUM, ENGINE, FAILURE = "content", "checksum", "engine", "failure"
FORMAT = 2  # of the stores that are written; those of format 1 had no checksums, and open too
LABEL = "label"  # the coordinate of what places along an axis are called
AT_ONCE = 2**18  # numbers whose checksum is computed at a time

Region = tuple[slice, ...]
Labels = tuple[tuple[str, ...], np.ndarray, dict[str, str]]  # dims, values, attributes


def block_shape(cells: AbstractCells, size: int) -> tuple[int, ...]:
    """The shape of a block of about `size` cells that may be trained together."""
    left, found = max(1, size), []
    mixed = [cells.alone(axis) for axis in cells.dimensions]
    for alone, count in zip([*mixed, False][::-1], cells.shape[::-1], strict=True):
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


def labels(cells: AbstractCells) -> dict[str, Labels]:
    """The coordinates of a store; values that are lists are written as text."""
    found: dict[str, Labels] = {}
    for axis in cells.dimensions:
        if axis.name not in axis.fields:
            found[axis.name] = ((axis.name,), np.arange(len(axis)), {})
        if any(axis.labels):
            found[LABEL] = ((axis.name,), np.asarray(axis.labels, object), {})
        for name, values in axis.fields.items():
            about = {"long_name": name.replace("_", " "), "units": "1"}
            found[name] = ((axis.name,), _array(values), about)
    return found | {"seed": (("seed",), cells.numbers.astype(int), {"long_name": "seed"})}


def _array(values: Sequence[Any]) -> np.ndarray:
    if any(isinstance(value, tuple) for value in values):
        values = [
            ",".join(f"{x:g}" for x in value) if isinstance(value, tuple) else value
            for value in values
        ]
    empty = "" if any(isinstance(value, str) for value in values) else np.nan
    found = np.asarray([empty if value is None else value for value in values])
    return found.astype(object) if found.dtype.kind == "U" else found


def stored(cells: AbstractCells) -> dict[str, Any]:
    """What a store says of its cells, and of what wrote it."""
    rows = [[list(row) for row in axis.rows()] for axis in cells.dimensions]
    about = {"sweep_format": FORMAT, "common": cells.common, "values": json.dumps(describe(rows))}
    return stamp(cells.about) | about | {"seeds": cells.count, "code_key": code(cells)}


def taken_up(cells: AbstractCells, found: dict[str, Any], path: Path) -> AbstractCells:
    """The cells with their values in the order of the store; `ValueError` if it has others."""
    if found.get("sweep_format") == 1:
        raise ValueError(
            f"{path} was written by iclflow 0.2, whose cells need not be these; it opens as before "
            f"(icl.sweeps.load), and to add cells run the same sweep into a new name"
        )
    if found.get("sweep_format") != FORMAT:
        raise ValueError(f"{path} exists and is no sweep; choose another name")
    version = found["iclflow_version"]
    if version != iclflow.__version__ or found["code_key"] != code(cells):
        whose = f"iclflow {version}" if version != iclflow.__version__ else "other code"
        raise ValueError(
            f"{path} was written by {whose}, whose cells need not be these; choose another name "
            f"or move it away"
        )
    values = parse_json(found["values"], path)
    if found["common"] != cells.common or int(found["seeds"]) > cells.count:
        raise ValueError(
            f"{path} holds another design; only values of its axes and seeds can be added: choose "
            f"another name or move it away"
        )
    pairs = zip(cells.dimensions, values, strict=True)
    return cells.take([_in_order(axis, rows, path) for axis, rows in pairs])


def _in_order(axis: Axis, first: list[Any], path: Path) -> list[int]:
    """The places of the store's values, in their order, then those of the new ones."""
    rows = [describe(list(row)) for row in axis.rows()]
    missing = [row for row in first if row not in rows]
    if missing:
        raise ValueError(
            f"{path} has cells at {axis.name} = {missing[0]}, which this design does not have; "
            f"values can be added only: choose another name or move it away"
        )
    order = [rows.index(row) for row in first]
    return [*order, *(i for i in range(len(rows)) if i not in set(order))]


def code(cells: AbstractCells) -> str:
    """A hash of the code that computes cells."""
    return _code("iclflow.runs.compute", type(cells).__module__)


_code = cache(code_key)


def point_keys(cells: AbstractCells) -> np.ndarray:
    """A number for what the runs of each point compute, of the shape of the axes."""
    points = np.zeros(cells.shape[:-1], np.uint64)
    more = json.dumps(describe(dict(cells.computed)), sort_keys=True)
    for place in cells.places():
        text = f"{cells.text(place)} {iclflow.__version__} {code(cells)} {more}"
        digest = hashlib.sha256(text.encode()).digest()
        points[place] = int.from_bytes(digest[:8], "little")
    return points


def content_keys(points: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """A number for what each cell computes, [*axes, seed]; never 0.

    - `points`: the keys of its point.
    - `seeds`: its seed.
    """
    return mixed(points[..., None] ^ mixed(seeds.astype(np.uint64))) | np.uint64(1)


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


class Store:
    """The store of one sweep, open for writing by this process alone.

    - `path`: the folder; created, or taken up if it holds these cells or a part of them.
    - `cells`: what is to be there.
    - `block`: the shape of the regions that are written at once, for a new store.
    """

    def __init__(self, path: Path | str, cells: AbstractCells, block: Sequence[int]) -> None:
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
                self.cells, self.block = cells, tuple(block)
                about = {"reasons": [], "block": list(block), "engine": ""}
                self.group.attrs.update(about | stored(cells))
            else:
                self.group = _opened(self.path, "r+")
                self.cells = taken_up(cells, dict(self.group.attrs), self.path)
                self.block = tuple(self.group.attrs["block"])
            self._make_room()
        except BaseException:
            self.close()
            raise
        self.points = point_keys(self.cells)

    def close(self) -> None:
        """Let other processes write."""
        os.close(self._lock)

    def regions(self) -> Iterator[Region]:
        """The blocks that are written at once."""
        return regions(self.cells.shape, self.block)

    def keys(self, region: Region) -> np.ndarray:
        """What the cells of a region compute, as numbers."""
        seeds = self.cells.seeds_in(region[-1].start, region[-1].stop)
        return content_keys(np.asarray(self.points[region[:-1]]), seeds)

    def engines(self, region: Region) -> np.ndarray:
        """What advanced each cell of a region, as places in `ENGINES`; -1 where it is missing."""
        if self.new:
            return np.full(extent(region), -1, np.int8)
        content, codes = (np.asarray(self.group[name][region]) for name in (CONTENT, ENGINE))
        return np.where(content == advanced_by(self.keys(region), codes), codes, -1)

    def failures(self) -> int:
        """How many cells failed."""
        return int(np.count_nonzero(self.group[FAILURE][...]))

    def write(self, region: Region, answer: Answer) -> None:
        """What a block found; its keys last."""
        shape, dims = extent(region), self.cells.dims
        done, kinds = answer.done, answer.kinds
        sums = np.zeros(shape, np.uint64)
        with saying_full(self.path):
            for name, (more, array) in {**answer.values, ENGINE: ((), kinds)}.items():
                kept = self._put(name, (*dims, *more), region, array, done)
                sums += checksums(name, kept, len(shape))
            if done.any() and any("time" in more for more, _ in answer.values.values()):
                some = np.asarray(done.any(axis=-1))
                for name, array in answer.clocks.items():
                    kept = self._put(name, (*dims[:-1], "time"), region[:-1], array, some)
                    sums += checksums(name, kept, len(shape) - 1)[..., None]
            for name, (along, values, about) in answer.labels.items():
                if name not in self.group:
                    values = values.astype(object) if values.dtype.kind == "U" else values
                    self._create(name, along, None, values.dtype, about, values.shape)
                    self.group[name][...] = values
            self._say(answer)
            failure = self._failures(answer)
            self._put(FAILURE, dims, region, failure, done | (failure > 0))
            if self._changed:
                self.finish()
            keys = advanced_by(self.keys(region), kinds)
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
            broken = there & ~_intact(self.group, region, content)
            strange = there & (content != advanced_by(self.keys(region), engines))
            self._require_own(content[strange & ~broken])
            wrong = broken | strange
            if wrong.any():
                lost += int(wrong.sum())
                self.group[CONTENT][region] = np.where(wrong, np.uint64(0), content)
        return lost

    def _require_own(self, strange: np.ndarray) -> None:
        """Refuse to compute anew cells that are whole and belong to no place of this store.

        A cell in the place of another is damage. A cell of no place was computed from something
        else by the same design, as from a file of prompts that has been changed since.
        """
        if not strange.size:
            return
        whole = self.keys(tuple(slice(0, n) for n in self.cells.shape))
        own = [advanced_by(whole, np.full_like(whole, i, np.int8)) for i in range(len(ENGINES))]
        others = int((~np.isin(strange, np.stack(own))).sum())
        if others:
            raise ValueError(
                f"{self.path} holds runs that this design does not compute any more (a file of "
                f"prompts was changed, or something else that the design only names); choose "
                f"another name or move it away"
            )

    def finish(self) -> None:
        """All metadata in one place, so that the store opens quickly."""
        self._changed = False
        with saying_full(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not in the standard of Zarr 3 yet
            require("zarr").consolidate_metadata(self.path)

    def _make_room(self) -> None:
        """Labels and variables for all cells; again where that was broken off."""
        room = dict(zip(self.cells.dims, self.cells.shape, strict=True))
        with saying_full(self.path):
            for _, array in self.group.arrays():
                dims = array.metadata.dimension_names
                shape = tuple(room.get(d, n) for d, n in zip(dims, array.shape, strict=True))
                if shape != array.shape:
                    array.resize(shape)
            own = {CONTENT: np.uint64, CHECKSUM: np.uint64, ENGINE: np.int8, FAILURE: np.int16}
            for name, kind in own.items():
                if name not in self.group:
                    self._create(name, self.cells.dims, (), np.dtype(kind), self._label(name))
            for name, (dims, values, about) in labels(self.cells).items():
                if name not in self.group:
                    self._create(name, dims, None, values.dtype, about)
                self.group[name][...] = values
            self.group.attrs.update(stored(self.cells))
        self.finish()

    def _create(
        self,
        name: str,
        dims: tuple[str, ...],
        more: tuple[int, ...] | None,
        kind: np.dtype,
        about: Mapping[str, Any],
        whole: tuple[int, ...] | None = None,
    ) -> None:
        """A variable over the cells and dimensions of sizes `more`; a coordinate if None.

        - `whole`: the shape of a coordinate that is not along the cells.
        """
        codecs = require("zarr.codecs")
        sizes = dict(zip(self.cells.dims, self.cells.shape, strict=True))
        pieces = dict(zip(self.cells.dims, self.block, strict=True))
        lead = len(dims) if more is None else len(dims) - len(more)
        shape = whole or (*(sizes[d] for d in dims[:lead]), *(more or ()))
        chunks = shape if more is None else (*(pieces[d] for d in dims[:lead]), *more)
        code = -1 if name in ("result", ENGINE) else 0
        empty = {"f": np.nan, "O": "", "i": code}.get(kind.kind, 0)
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
                self._create(name, dims, array.shape[lead:], array.dtype, self._label(name))
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

    def _say(self, answer: Answer) -> None:
        """Which engines have advanced cells, and what the clock is, among the attributes."""
        known = str(self.group.attrs["engine"])
        said = "; ".join(dict.fromkeys([*filter(None, known.split("; ")), *answer.engines]))
        if said != known:
            self.group.attrs["engine"] = said
        if not answer.timed and self.group.attrs["clock"] != COUNTED:
            self.group.attrs["clock"] = COUNTED

    def _failures(self, answer: Answer) -> np.ndarray:
        """1 + the place of each cell's reason among the store's reasons; 0 without."""
        found, known = np.zeros(answer.done.shape, np.int16), list(self.group.attrs["reasons"])
        reasons = [*known]
        for cell, reason in answer.failures:
            if reason not in reasons:
                reasons.append(reason)
            found[cell] = 1 + reasons.index(reason)
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

    def _label(self, name: str) -> dict[str, Any]:
        """Long name and units of a variable."""
        codes = {"result": ("how the run ended", OUTCOMES), ENGINE: ("what advanced it", ENGINES)}
        if name in codes:
            words, meanings = codes[name]
            flags = {"flag_values": list(range(len(meanings))), "flag_meanings": " ".join(meanings)}
            return {"long_name": f"{words}; -1: not computed", **flags}
        own = {
            CONTENT: "what the cell computes, and by which engine; 0 where it is not computed",
            CHECKSUM: "a sum over all numbers of the cell",
            FAILURE: "1 + place of the reason in the attribute reasons; 0: none",
            "clock": r"training time $t/\tau$; steps where the rule keeps no such time",
            "step": "training steps; of a flow, t/τ",
            "stopped": "last step (flow: time) computed",
        }
        known = name in own
        return {"long_name": own[name], "units": "1"} if known else label_of(name, self.cells)


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
        if name in CLOCKS or (seeded and name not in (CONTENT, CHECKSUM, FAILURE)):
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
        if name in CLOCKS:
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

    >>> import tempfile, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     how = {"until": 9, "seeds": 3, "store": f"{folder}/s.zarr"}
    ...     runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    ...     dict(icl.sweeps.load(f"{folder}/s.zarr").result.sizes)
    {'seed': 3}
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


def as_runs(path: Path | str, cells: AbstractCells) -> xr.Dataset:
    """The cells of a store as `sweep` returns them without one: with their clock as `time`.

    Numbers are read as they are needed. `engine` and `failure` stay among the variables.
    """
    found = load(path, check=False)
    marks = cells.point((0,) * len(cells.dimensions)).marks
    timed = found.attrs["clock"] != COUNTED
    ends = {name: (found[name].dims, found[name].values) for name in ("result", "stopped")}
    runs = found.drop_vars([CONTENT, CHECKSUM, *CLOCKS, *ends], errors="ignore")
    if "clock" not in found:
        return runs.assign({name: found[name] for name in ends})
    return clocked(runs, found["clock"].values, marks, ends, timed)


def _opened(path: Path, mode: str) -> Any:
    try:
        return require("zarr").open_group(path, mode=mode, use_consolidated=False)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} cannot be read as a Zarr store: {reason}") from None
