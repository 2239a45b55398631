"""The design of a sweep: settings, some with many values, seeds, what to keep; and its cells."""

import dataclasses
import functools
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from iclflow.dynamics import Descent
from iclflow.dynamics.base import marks_until
from iclflow.losses import AbstractLoss
from iclflow.losses.changing import jumps
from iclflow.results.choices import require_choice
from iclflow.results.progress import Progress
from iclflow.results.provenance import describe
from iclflow.runs.cells import AbstractCells, Axis, Outline, Point, Vary
from iclflow.runs.record import QUANTITIES
from iclflow.runs.simulate import SAVES
from iclflow.runs.store import load
from iclflow.runs.summaries import Summary
from iclflow.runs.sweep import into_store
from iclflow.study.fields import FIELDS, MANY, MODEL, SEEDS, TASK, from_names, short
from iclflow.study.settings import Settings, read_toml, task_size
from iclflow.study.study import Study, tests_of
from iclflow.sweeps.axes import DRAW, cases_of, drawn, is_law, values_of, varies
from iclflow.sweeps.summaries import ALWAYS, KINDS
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task

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
    if isinstance(study.dynamics, Descent):
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
    """
    into_store(design, out, block=block, client=client, progress=progress)
    return load(out, check=False)
