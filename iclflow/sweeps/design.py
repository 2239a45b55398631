"""The design of a sweep: settings, some with many values, seeds, what to keep; and its cells.

The values of a setting are a list, a range, even in the logarithm, or random.
"""

import dataclasses
import functools
import json
import math
import types
import typing
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from iclflow.dynamics.base import marks_until
from iclflow.losses import AbstractLoss
from iclflow.losses.base import jumps
from iclflow.results.messages import Progress, require_choice
from iclflow.results.provenance import describe
from iclflow.runs.cells import AbstractCells, Axis, Outline, Point, Vary
from iclflow.runs.record import QUANTITIES, Summary
from iclflow.runs.simulate import SAVES
from iclflow.runs.store import LABEL, load
from iclflow.runs.sweep import into_store
from iclflow.study.fields import FIELDS, MANY, MODEL, SEEDS, TASK, from_names, short
from iclflow.study.study import Settings, Study, read_toml, task_size, tests_of
from iclflow.sweeps.summaries import ALWAYS, KINDS
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task

# Words of a table of values, with what they need; those of a law are drawn, one value a draw.
RANGES = {"range": "[FIRST, LAST] or [FIRST, LAST, STEP]", "linear": "[FIRST, LAST]"}
RANGES |= {"log": "[FIRST, LAST], both above 0"}
LAWS = {
    "uniform": "[LOW, HIGH]",
    "loguniform": "[LOW, HIGH], both above 0",
    "normal": "[MEAN, STD]",
    "choice": "a list",
}
DRAW = "draw"  # the dimension of a random design
CASE = "case"  # that of cases stated one by one


def varies(name: str, value: Any) -> bool:
    """Whether a value of a design file stands for several values of a field."""
    if FIELDS[name][1].repeats:
        return False
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, list | tuple):
        return False
    of_lists = any(typing.get_origin(k) is tuple for k in _kinds(name))
    # One spectrum is a list of numbers; several are a list of lists, or of names.
    words = str in _kinds(name)
    return not of_lists or any(
        isinstance(item, list | tuple) or (words and isinstance(item, str)) for item in value
    )


def is_law(value: Any) -> bool:
    """Whether a value of a design file is a distribution."""
    return isinstance(value, Mapping) and any(word in LAWS for word in value)


def values_of(name: str, value: Any) -> tuple[Any, ...]:
    """The values that a list or a range of a design file stands for, checked as the field's own.

    - `name`: the field.
    - `value`: a list, or a table such as `{"log": [0.01, 1], "count": 5}`.
    """
    found = list(_range(name, value) if isinstance(value, Mapping) else value)
    if not 0 < len(found) <= MANY:
        raise ValueError(f"{name} needs 1 to {MANY} values, got {len(found)}")
    checked = tuple(_check(name, one) for one in found)
    if len(set(checked)) < len(checked):
        twice = next(one for one in checked if checked.count(one) > 1)
        raise ValueError(f"{name} has the value {short(twice)} twice; leave one out")
    return checked


def drawn(name: str, law: Mapping[str, Any], draws: int, seed: int) -> tuple[Any, ...]:
    """Draw values of a distribution. The first of them do not depend on how many are drawn.

    - `name`: the field that they are values of.
    - `law`: the word of the distribution and its numbers, such as `{"uniform": [0, 1]}`.
    - `draws`: how many values.
    - `seed`: of the random numbers.
    """
    word, ends = _one(name, law, LAWS, ())
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if word == "choice":
        if not isinstance(ends, list) or not ends:
            raise ValueError(f"{name}: choice needs {LAWS[word]}, got {short(ends)}")
        return tuple(_check(name, ends[i]) for i in rng.integers(len(ends), size=draws))
    low, high = _pair(name, word, ends, LAWS[word], above=0 if word == "loguniform" else None)
    if word != "normal" and not low < high:
        raise ValueError(f"{name}: {word} needs LOW below HIGH, got {short(ends)}")
    law_of: dict[str, Callable[[], np.ndarray]] = {
        "uniform": lambda: rng.uniform(low, high, draws),
        "loguniform": lambda: np.exp(rng.uniform(math.log(low), math.log(high), draws)),
        "normal": lambda: low + high * rng.standard_normal(draws),
    }
    found = law_of[word]()
    whole = int in _kinds(name) and float not in _kinds(name)
    return tuple(_check(name, round(float(x)) if whole else float(x)) for x in found)


def cases_of(tables: Any) -> Axis:
    """The dimension of cases that are stated one by one, each with fields of its own.

    - `tables`: a list of tables, field -> value; the word `label` names a case.
    """
    ok = isinstance(tables, list) and tables and all(isinstance(t, Mapping) for t in tables)
    if not ok or len(tables) > MANY:
        raise ValueError(f"cases needs a list of tables, [{{scale = 0.1}}], got {short(tables)}")
    names = dict.fromkeys(name for table in tables for name in table if name != LABEL)
    for name in names:
        require_choice("setting in cases", name, list(FIELDS))
    fields = {
        name: tuple(_check(name, t[name]) if name in t else None for t in tables) for name in names
    }
    labels = tuple(str(table.get(LABEL, "")) for table in tables)
    if not names or len(set(zip(*fields.values(), strict=True))) < len(tables):
        raise ValueError("cases: two of them have the same settings; leave one out")
    return Axis(CASE, fields, labels)


def _range(name: str, table: Mapping[str, Any]) -> list[Any]:
    word, ends = _one(name, table, RANGES, ("count",))
    if word == "range":
        whole = isinstance(ends, list) and all(isinstance(x, int) for x in ends)
        if not whole or len(ends) not in (2, 3) or (len(ends) == 3 and ends[2] < 1):
            raise ValueError(f"{name}: range needs {RANGES[word]}, got {short(ends)}")
        return list(range(ends[0], ends[1] + 1, *ends[2:]))
    low, high = _pair(name, word, ends, RANGES[word], above=0 if word == "log" else None)
    count = table.get("count")
    if not isinstance(count, int) or not 2 <= count <= MANY:
        raise ValueError(f"{name}: {word} needs a count of at least 2, got {short(count)}")
    spread = np.geomspace if word == "log" else np.linspace
    points = spread(low, high, count)
    if int in _kinds(name) and float not in _kinds(name):
        return [int(x) for x in np.unique(np.round(points))]
    return [float(f"{x:.12g}") for x in points]  # 0.3, not 0.30000000000000004


def _one(
    name: str, table: Mapping[str, Any], words: Mapping[str, str], more: tuple[str, ...]
) -> tuple[str, Any]:
    for said in table:
        require_choice(f"word for the values of {name}", said, [*RANGES, *LAWS, "count"])
    said = [word for word in table if word in words]
    if len(said) != 1 or set(table) - {*words, *more}:
        raise ValueError(f"{name} needs one of {', '.join(words)}, got {short(dict(table))}")
    return said[0], table[said[0]]


def _pair(name: str, word: str, ends: Any, needed: str, above: float | None) -> tuple[float, float]:
    numbers = isinstance(ends, list | tuple) and len(ends) == 2
    numbers = numbers and all(isinstance(x, int | float) and math.isfinite(x) for x in ends)
    if not numbers or (above is not None and min(ends) <= above):
        raise ValueError(f"{name}: {word} needs {needed}, got {short(ends)}")
    return float(ends[0]), float(ends[1])


def _check(name: str, value: Any) -> Any:
    kind, about = FIELDS[name]
    if value is None:
        raise ValueError(f"{name}: a sweep needs values, got None; leave the field out")
    return about.check(name, kind, value)


def _kinds(name: str) -> tuple[Any, ...]:
    kind = FIELDS[name][0]
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


KEPT = 512  # tasks, losses and rates
FEW = 64  # prompts that a loss is drawn from to count the operations of its step
# The fields that each of them is made of.
OF_TASK = (*(n for n, (_, about) in FIELDS.items() if about.group == TASK), "model")
OF_TASK += ("eigen_seed", "prompts", "prompts_digest")
OF_MODEL = tuple(n for n, (_, about) in FIELDS.items() if about.group == MODEL and n != "scale")
OF_LOSS = (*dict.fromkeys((*OF_TASK, *OF_MODEL)), "sequences", "loss", "batch", "fresh")
OF_LOSS += ("match", "average", "data_seed", "change")
OF_INIT = (*dict.fromkeys((*OF_TASK, *OF_MODEL)), "scale", "sequences", "average")
OF_DYNAMICS = (*OF_LOSS, "rate", "optimiser", "momentum", "dynamics", "tolerance")


class StudyCache:
    """Builds the points of a sweep, and keeps the parts that the next points need again.

    Neighbouring points differ in one field most of the time, so they share their task or their
    prompts. Few of each are kept, the last ones used.
    """

    def __init__(self) -> None:
        """Nothing is built yet."""
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    def study(self, settings: Settings) -> Study:
        """The study of settings, as `Study.of` makes it."""
        source = self.source(settings)
        init = self._once("init", OF_INIT, settings, 0, lambda: settings.initialiser(source))
        choice = self._once("choice", OF_LOSS, settings, 0, lambda: settings.choice(source))
        loss = self.loss(settings, source, choice)
        # The default rate, which is measured, depends on the kind of the weights, not on the start.
        dynamics = self._once(
            "dynamics", OF_DYNAMICS, settings, 0, lambda: settings.build_dynamics(loss, init)
        )
        tests = tests_of(settings, source, init)
        return Study(settings, source, init, choice, loss, dynamics, tests)

    def source(self, settings: Settings, offset: int = 0) -> Task | Prompts:
        """What settings train on: a task, or given prompts.

        - `settings`: of one point.
        - `offset`: how far a seed is from the first one, where tasks vary with the seeds.
        """
        return self._once("source", OF_TASK, settings, offset, lambda: settings.source(offset))

    def loss(
        self, settings: Settings, source: Task | Prompts, choice: Any, offset: int = 0
    ) -> AbstractLoss:
        """The loss of settings."""
        names = (*OF_LOSS, "vary")
        return self._once(
            "loss", names, settings, offset, lambda: settings.build_loss(source, choice, offset)
        )

    def point(self, settings: Settings) -> Point:
        """The point of settings, as a sweep trains it."""
        key = ("point", settings)
        if key not in self._kept:
            self._keep(key, self._point(self.study(settings)))
        return self._kept[key]

    def outline(self, settings: Settings) -> Outline:
        """The point of `settings` with few prompts, and without a measured rate that is not needed.

        An estimate of time and memory is made from it, so that nothing large is drawn for that.
        """
        source = settings.source()
        init = settings.initialiser(source)
        choice = settings.choice(source)
        prompts = settings.sequences or 0
        few = min(prompts or FEW, max(FEW, 2 * (settings.batch or 0)))
        small = dataclasses.replace(settings, sequences=few if prompts else None)
        loss = small.build_loss(source, choice)
        if settings.rate is None and settings.time is None and settings.dynamics != "flow":
            small = dataclasses.replace(small, rate=1e-3)
        tests = tests_of(settings, source, init)
        study = Study(small, source, init, choice, loss, small.build_dynamics(loss, init), tests)
        by_prompt = choice.level in ("sequences", "features") and settings.batch is None
        more = prompts / few if by_prompt and prompts else 1.0
        drawn = prompts * (settings.context + 1) * task_size(settings)
        return Outline(self._point(study), more, drawn)

    def _point(self, study: Study) -> Point:
        settings, vary = study.settings, Vary(study.settings.vary)

        def source(seed: int) -> Any:
            if isinstance(study.source, Prompts):
                return next(study.sources([seed]))
            return self.source(settings, seed - settings.seed) if vary is Vary.ALL else study.source

        def loss(seed: int) -> AbstractLoss:
            if vary is Vary.WEIGHTS:
                return study.loss
            return self.loss(settings, source(seed), study.choice, seed - settings.seed)

        return Point(
            loss=loss,
            init=study.init,
            dynamics=study.dynamics,
            marks=marks_of(study),
            record={name: name for name in ("loss", *(settings.record or ()))} | study.tests,
            final=(),
            source=source,
            vary=vary,
            first=settings.seed,
        )

    def _once(
        self, kind: str, names: tuple[str, ...], settings: Settings, offset: int, make: Callable
    ) -> Any:
        key = (kind, offset, *(getattr(settings, name) for name in names))
        if key not in self._kept:
            self._keep(key, make())
        self._kept.move_to_end(key)
        return self._kept[key]

    def _keep(self, key: Any, value: Any) -> None:
        self._kept[key] = value
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)


studies = StudyCache()  # of this process


def marks_of(study: Study) -> np.ndarray:
    """The save points of a study: whole steps of descent, t/τ of a flow."""
    saveat = study.saveat
    if study.dynamics.whole:
        saveat = np.unique(np.round(saveat).astype(int))
    changes = jumps([study.loss])
    return np.asarray(marks_until(study.dynamics, study.until, saveat, SAVES, changes))


SAVE = "mixed:200"  # save points, unless they are chosen: enough for drop times, none predicted
OWN = (
    "cases",
    "zip",
    "draws",
    "draw_seed",
    "summaries",
    "record",
)  # words of a design that no run has
# Fields that may differ between cells of one compiled program; along others blocks have one value.
NUMBERS = {"scale", "rate", "noise", "target_noise", "context", "trace", "momentum"}
NUMBERS |= {"tolerance", "fixed_fraction", "task_covariance", "task_mean"}
# What cells of one compiled program have in common.
OF_PROGRAM = (*OF_MODEL, "steps", "time", "save", "optimiser", "dynamics", "batch")
TESTS = ("population_loss",)  # made for the task of each study
MOST = 10**9  # cells


@dataclasses.dataclass(frozen=True)
class Design(AbstractCells):
    """A sweep stated in plain values; refused as a whole if one of its cells cannot be.

    - `fixed`: settings that all cells share, by the names of `Settings`.
    - `axes`: the dimensions of the sweep, each with the values of one field or more.
    - `seeds`, `seed`: how many, and the first; the last dimension.
    - `record`: quantities kept at every save point (none: summaries only).
    - `summaries`: numbers of a run, of `KINDS`.
    """

    fixed: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: int = 1
    seed: int = 0
    record: tuple[str, ...] = ("loss",)
    summaries: tuple[str, ...] = ALWAYS

    @classmethod
    def of(cls, **words: Any) -> "Design":
        """A design from what its table says.

        A word is a setting; for several values of it, a list, `{"log": [0.01, 1], "count": 5}`
        (also `linear`, `range`), or a law, `{"uniform": [0, 1]}` (also `loguniform`, `normal`,
        `choice`), of which `draws` are drawn with `draw_seed`. Fields are crossed;
        `zip=[["scale", "rate"]]` varies some together, and `cases=[{"scale": 0.1}, {"heads": 2}]`
        states points one by one.
        """
        return _design(words, "this design")

    @classmethod
    def read(cls, file: Path | str, changed: Mapping[str, Any] | None = None) -> "Design":
        """The `[sweep]` table of a TOML file, with some words changed."""
        found = read_toml(Path(file))
        if set(found) != {"sweep"} or not isinstance(found["sweep"], Mapping):
            got = ", ".join(found) or "nothing"
            raise ValueError(f"{file} needs one table, [sweep], got {got}")
        return _design({**found["sweep"], **(changed or {})}, str(file))

    @property
    def dimensions(self) -> tuple[Axis, ...]:
        """The axes."""
        return self.axes

    @property
    def count(self) -> int:
        """The number of seeds."""
        return self.seeds

    def seeds_in(self, first: int, last: int) -> np.ndarray:
        """Some of the seeds, which are whole numbers in a row."""
        return np.arange(self.seed + first, self.seed + min(last, self.seeds)).astype(np.uint32)

    @property
    def about(self) -> Any:
        """What all cells share."""
        return json.loads(self.common)

    @property
    def computed(self) -> Mapping[str, Summary]:
        """The summaries of every run, by name."""
        return {name: KINDS[name] for name in self.summaries}

    def keeps(self, name: str) -> bool:
        """All that is recorded; not a loss that only summaries need."""
        return bool(self.record) and (name != "loss" or name in self.record)

    def settings(self, place: Sequence[int]) -> Settings:
        """The settings at a place along the axes; one run, its seed the design's first."""
        here: dict[str, Any] = {}
        for axis, i in zip(self.axes, place, strict=True):
            here |= axis.at(i)
        own = {"seeds": 1, "seed": self.seed, "record": self.record or None}
        return Settings(**{"save": SAVE, **self.fixed, **here, **own})

    def take(self, places: Sequence[Sequence[int]]) -> "Design":
        """The same design with some of the values along each axis, in that order."""
        axes = tuple(axis.take(some) for axis, some in zip(self.axes, places, strict=True))
        return dataclasses.replace(self, axes=axes)

    def point(self, place: tuple[int, ...]) -> Point:
        """What the runs at a place share, built from its settings."""
        return studies.point(self.settings(place))

    def outline(self, place: tuple[int, ...]) -> Outline:
        """The point of few prompts, and without measuring a rate that is not needed."""
        return studies.outline(self.settings(place))

    def text(self, place: tuple[int, ...]) -> str:
        """The settings at a place, as JSON."""
        return json.dumps(describe(self.settings(place)), sort_keys=True)

    def program(self, place: tuple[int, ...]) -> Hashable:
        """What cells of one compiled program share, as far as the settings tell."""
        settings = self.settings(place)
        shared = tuple(getattr(settings, name) for name in OF_PROGRAM)
        return (*shared, task_size(settings), settings.finite)

    def losses(self, place: tuple[int, ...]) -> Hashable:
        """The settings that a loss is made of."""
        settings = self.settings(place)
        return tuple(getattr(settings, name) for name in OF_LOSS)

    def alone(self, axis: Axis) -> bool:
        """Whether an axis has a field that changes more than numbers of a compiled program."""
        return any(name not in NUMBERS for name in axis.fields)

    @functools.cached_property
    def common(self) -> str:
        """What all cells of a store must share, as JSON."""
        named = [[axis.name, *axis.fields] for axis in self.axes]
        parts = {"fixed": dict(sorted(self.fixed.items())), "axes": named, "seed": self.seed}
        parts |= {"record": self.record, "summaries": self.summaries}
        return json.dumps(describe(parts), sort_keys=True)

    def require_useful(self) -> None:
        """Refuse, before anything runs, cells that could not be settings of a run."""
        for place in self.places():
            try:
                settings = self.settings(place)
            except ValueError as error:
                raise ValueError(f"{error}{self.where(place)}") from None
            if settings.steps is None and settings.time is None:
                raise ValueError("a sweep needs an end: give steps, for example 2000, or time")
            if settings.save.startswith("auto"):
                raise ValueError("save auto predicts drops run by run; use mixed:COUNT in a sweep")
            if settings.seed + self.seeds > SEEDS:
                raise ValueError("seed and seeds together must be at most 2^32")

    def where(self, place: Sequence[int]) -> str:
        """A place in words, for a message."""
        rows = [axis.at(i) for axis, i in zip(self.axes, place, strict=True)]
        said = [f"{name} = {short(value)}" for row in rows for name, value in row.items()]
        return f" (at {', '.join(said)})" if said else ""


def _design(words: Mapping[str, Any], where: str) -> Design:
    """A design from the words of its table."""
    own = {name: words[name] for name in OWN if name in words}
    axes: dict[str, Any] = {}
    single: dict[str, Any] = {}
    for said, value in words.items():
        if said in OWN:
            continue
        name = _field(said, where)
        (axes if varies(name, value) else single)[name] = value
    single = from_names(single, where)
    for name in ("seeds", "seed"):
        if name in axes:
            raise ValueError(f"{name} is a number: seeds = 8 runs each cell from 8 starts")
    laws = {name: value for name, value in axes.items() if is_law(value)}
    plain = {name: values_of(name, v) for name, v in axes.items() if name not in laws}
    found = _dimensions(plain, own.get("zip", []))
    if laws:
        found.insert(0, _draws(laws, own))
    if "cases" in own:
        found.insert(0, cases_of(own["cases"]))
    if not laws and ("draws" in own or "draw_seed" in own):
        raise ValueError("draws needs a law: for example scale = {loguniform = [0.01, 0.1]}")
    design = Design(
        fixed={name: v for name, v in single.items() if name not in ("seeds", "seed")},
        axes=tuple(found),
        seeds=single.get("seeds", 1),
        seed=single.get("seed", 0),
        record=_names("record", own.get("record", ["loss"]), [*QUANTITIES, *TESTS]),
        summaries=_names("summaries", own.get("summaries", ALWAYS), list(KINDS)),
    )
    if design.cells > MOST:
        raise ValueError(f"{design.cells:.3g} cells are more than {MOST:.0e}; give fewer values")
    design.require_useful()
    return design


def _field(said: str, where: str) -> str:
    """The field that a word names."""
    name = said.replace("-", "_")
    aliases = {a: field for field, (_, about) in FIELDS.items() for a in about.aliases}
    name = aliases.get(name, name)
    require_choice(f"setting in {where}", name, [*FIELDS, *OWN])
    return name


def _draws(laws: Mapping[str, Any], own: Mapping[str, Any]) -> Axis:
    """The dimension of a random design."""
    draws, seed = own.get("draws"), own.get("draw_seed", 0)
    if not isinstance(draws, int) or not 1 <= draws <= MANY:
        raise ValueError(f"a law needs draws, 1 to {MANY}, got {short(draws)}")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"draw_seed needs a whole number of at least 0, got {short(seed)}")
    return Axis(DRAW, {name: drawn(name, law, draws, seed) for name, law in laws.items()})


def _dimensions(plain: Mapping[str, tuple[Any, ...]], zipped: Any) -> list[Axis]:
    """The dimensions of a design: fields that vary together share one, the others have one each.

    - `plain`: field -> its values.
    - `zipped`: lists of fields that vary together.
    """
    groups = zipped if isinstance(zipped, list | tuple) else None
    if groups is None or not all(isinstance(g, list | tuple) and len(g) > 1 for g in groups):
        raise ValueError(f'zip needs lists of names, [["scale", "rate"]], got {short(zipped)}')
    found, taken = [], set()
    for group in groups:
        names = [_field(str(name), "zip") for name in group]
        for name in names:
            if name not in plain or name in taken:
                raise ValueError(f"zip: {name} needs a list of values, in one group only")
        taken |= set(names)
        lengths = {name: len(plain[name]) for name in names}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} has {n}" for name, n in lengths.items())
            raise ValueError(f"zipped fields need as many values each: {said}")
        found.append(Axis("_".join(names), {name: plain[name] for name in names}))
    return found + [Axis(n, {n: values}) for n, values in plain.items() if n not in taken]


def _names(what: str, said: Any, allowed: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(said, list | tuple):
        raise ValueError(f"{what} needs a list of names, got {short(said)}")
    for name in said:
        require_choice(f"name in {what}", name, allowed)
    return tuple(dict.fromkeys(said))


def run(
    design: Design,
    out: Path | str,
    *,
    block: int | None = None,
    client: Any = None,
    progress: bool | Progress | None = None,
) -> xr.Dataset:
    """Compute the cells of a design that are not in the store `out` yet; returns the whole store.

    - `design`: what to run (`Design.of`, `Design.read`).
    - `out`: a folder, FILE.zarr. The same call goes on where the last one ended, however it ended;
      values of an axis, or seeds, that were added are computed alone.
    - `block`: how many cells are trained together and written at once, for a new store; if omitted,
      what memory and a few seconds allow.
    - `client`: a `distributed.Client`; the cluster it is of computes, this process writes.
    - `progress`: as in `icl.sweep`, in cells.

    This is `icl.sweep` on points that are made of settings.

    >>> import tempfile, iclflow as icl
    >>> design = icl.sweeps.Design.of(spectrum=[0.6, 0.3], steps=20, scale=[0.05, 0.1], seeds=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dict(icl.sweeps.run(design, f"{folder}/s.zarr").result.sizes)
    {'scale': 2, 'seed': 2}
    """
    into_store(design, out, block=block, client=client, progress=progress)
    return load(out, check=False)
