"""A study: one experiment stated in plain values, and what they stand for.

`Settings` are what a TOML file or the command line writes. A `Study` has the loss, initialiser and
dynamics that they stand for; it runs them, and says in numbers what came out.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import (
    AbstractDynamics,
    AbstractOptimiser,
    Adam,
    Descent,
    Flow,
    GradientDescent,
    Momentum,
    stable_rate,
)
from iclflow.dynamics.base import linear_steps
from iclflow.losses import (
    AbstractLoss,
    AbstractPromptLoss,
    Curriculum,
    Fresh,
    Minibatch,
    Population,
)
from iclflow.losses.select import Choice, select
from iclflow.measures import first_crossings
from iclflow.models import (
    AbstractInitialiser,
    AbstractModel,
    Blocks,
    draw_models,
    empty_model,
)
from iclflow.models.registry import MODELS
from iclflow.results.files import digest, parse_json, read_text
from iclflow.results.messages import Progress, require_choice
from iclflow.results.netcdf import opened
from iclflow.runs.cells import Vary
from iclflow.runs.cost import COPIES
from iclflow.runs.record import (
    OUTCOMES,
    FixedPointDistance,
    OfModel,
    in_order,
    is_timed,
    theory_times,
)
from iclflow.runs.sweep import sweep
from iclflow.runs.testing import TEST_LOSS, Tests, population_of
from iclflow.study.fields import DEEP, LONGEST, OF_TASKS, Fields, from_names, variant
from iclflow.tasks.base import AbstractTask, Normaliser
from iclflow.tasks.checks import require_memory
from iclflow.tasks.laws import (
    INPUTS,
    AbstractTaskVectors,
    Commuting,
    Mixture,
    Normal,
    Pool,
    Sparse,
    named_inputs,
    named_spectrum,
)
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import ContextLabels, Task

DRAWN = 10**12  # numbers that can be sampled in hours
SMALL = 2**26  # bytes of weights that are recorded without being asked for


def task_size(fields: Fields) -> int:
    """D."""
    if fields.prompts is not None:
        return _size_of_prompts(fields.prompts, fields.prompts_digest)
    named = isinstance(fields.spectrum, str)
    return (fields.dim or 1) if named else len(fields.spectrum)


@functools.lru_cache(maxsize=64)
def _size_of_prompts(path: str, digest: str | None) -> int:
    """D of a file of prompts, whose content the digest names."""
    del digest
    return Prompts.load(path).size


def weight_count(fields: Fields) -> int:
    """The weights of one model, roughly."""
    token = task_size(fields) + 1
    if fields.model == "transformer":
        width = 8 * fields.heads if fields.width is None else fields.width
        positions = width * (2 * fields.context + 1) if fields.causal else 0
        return positions + (fields.layers or 2) * width**2 * (4 + 2 * fields.mlp)
    layers = 1 if fields.tied else fields.layers or 1
    return layers * fields.heads * token * (token + 2 * fields.rank)


def save_count(fields: Fields) -> int:
    """How many times a run records, at most."""
    kind, _, argument = fields.save.partition(":")
    if kind == "all":
        return (fields.steps or 0) + 1
    if argument.isdigit() and len(argument) < 20:
        return 3 * int(argument)
    return fields.save.count(",") + 1


def require_room(fields: Fields) -> None:
    """Raise `ValueError` with what would be needed where memory or a day would not do."""
    size, weights = task_size(fields), weight_count(fields)
    points = fields.seeds * save_count(fields)
    require_memory(8 * 30 * size**2, f"inputs of {size} dimensions", "give fewer (dim)")
    if fields.fixed_fraction > 0 or fields.blocks == "full":
        features = size * (size + 1) * (size + 2) // 2
        if not fields.finite:
            require_memory(80 * features**2, f"moments of {features} features", "give fewer (dim)")
    require_memory(
        8 * COPIES * weights, f"{fields.heads} heads of rank {fields.rank}", "give fewer"
    )
    require_memory(32 * (fields.pool or 0) * size, "the tasks of the pool", "give a smaller pool")
    recorded = 4 + fields.heads + (weights if "weights" in (fields.record or ()) else 0)
    require_memory(
        8 * points * recorded,
        f"{points:.3g} recorded points of {fields.heads} heads",
        "give fewer seeds, or fewer times to save",
    )
    drawn = (fields.sequences or 0) * (fields.context + 1) * size
    if drawn > DRAWN:
        raise ValueError(
            f"{fields.sequences} sequences of {fields.context} pairs are {drawn:.1e} numbers to "
            f"draw, and {DRAWN:.0e} take hours; give fewer sequences, or none: the population"
        )
    require_memory(
        32 * (fields.batch or 0) * (fields.context + 1) * (size + 1),
        f"batches of {fields.batch} sequences",
        "give a smaller batch",
    )


VARIABLES = 500  # a file of runs has some dozens


def load_runs(path: Path | str) -> xr.Dataset:
    """The runs of a NetCDF file, or `ValueError` in one line that names the file."""
    with opened(path) as lazy:
        if len(lazy.variables) > VARIABLES:
            raise ValueError(f"{path} has {len(lazy.variables)} variables; it holds no runs")
        require_memory(2 * lazy.nbytes, f"the runs in {path}", "save fewer times or seeds")
        runs = lazy.load()
    for name in runs.variables:
        kind = runs[name].dtype.kind
        if name in ("loss", "time", "step") and kind not in "fiu":
            raise ValueError(f"{path}: {name} must be numbers, got {runs[name].dtype}")
    if "loss" in runs and "time" not in runs["loss"].dims:
        raise ValueError(f"{path}: the loss must be over time, got {runs['loss'].dims}")
    empty = [str(name) for name, size in runs.sizes.items() if size == 0]
    if empty:
        raise ValueError(f"{path}: the dimension {empty[0]} is empty; it holds no runs")
    if "seed" in runs.dims:
        seeds = runs["seed"].values
        if seeds.dtype.kind not in "iu" or len(np.unique(seeds)) < len(seeds):
            raise ValueError(f"{path}: seeds must be different whole numbers")
    return runs


ADAM_RATE = 1e-3  # a step of Adam moves every weight by about this
SETTINGS_BYTES = 2**20  # a settings file is not larger


@dataclasses.dataclass(frozen=True)
class Settings(Fields):
    """Task, model, level of exactness and dynamics of one experiment."""

    @classmethod
    def read(cls, file: Path | str | None = None, given: Mapping[str, Any] | None = None) -> Any:
        """Settings of a file with some of them changed, refused if they cannot be run.

        - `file`: TOML, or a run that was saved; None for the defaults.
        - `given`: settings that win over those of the file.
        """
        given = given or {}
        found = {} if file is None else _stated(Path(file))
        if "steps" in given or "time" in given:  # two ways to say when a run ends: the given wins
            found = {name: value for name, value in found.items() if name not in ("steps", "time")}
        if "prompts" in given:  # another file than that of the run has another digest
            found.pop("prompts_digest", None)
        settings = cls(**{**found, **given})
        require_room(settings)
        return settings

    @classmethod
    def of_run(cls, attributes: Mapping[str, Any]) -> "Settings":
        """The settings that a saved run carries."""
        settings = cls(**_of_run(attributes))
        require_room(settings)
        return settings

    def source(self, seed_offset: int = 0) -> Task | Prompts:
        """What is trained on: the given prompts, or the task; `seed_offset` as in `task`."""
        if self.prompts is None:
            return self.task(seed_offset)
        found = Prompts.load(
            self.prompts, lengths=self.lengths, normaliser=Normaliser(self.normaliser)
        )
        if digest(self.prompts.split(",")) != self.prompts_digest:
            raise ValueError(
                f"{self.prompts} is not the file that this run was trained on, or was changed "
                f"since; give the prompts again"
            )
        return found

    def task(self, seed_offset: int = 0) -> Task:
        """The task that the settings state.

        - `seed_offset`: how far a seed is from the first one. It changes what is drawn: the
          eigenvectors, the pool of tasks and the fixed task.
        """
        if self.prompts is not None:
            raise ValueError(
                f"this needs a task whose law is known, and {self.prompts} holds prompts of any "
                f"law; state the task, for example --spectrum 0.4,0.3,0.2,0.1"
            )
        if isinstance(self.spectrum, str):
            if self.dim is None:
                raise ValueError(
                    f"the spectrum {self.spectrum!r} needs a dimension; give dim, for example 4"
                )
            trace = 1.0 if self.trace is None else self.trace
            spectrum = named_spectrum(self.spectrum, self.dim, trace)
        else:
            spectrum = np.asarray(self.spectrum, float)
            if self.dim is not None and self.dim != spectrum.size:
                raise ValueError(
                    f"dim is {self.dim}, but {spectrum.size} eigenvalues were given; a spectrum "
                    f"with a name has any number of them: power:1"
                )
            if self.trace is not None and spectrum.sum() > 0:
                spectrum = spectrum * (self.trace / spectrum.sum())
        require_choice("inputs", self.inputs.partition(":")[0], INPUTS)
        task = Task(
            spectrum,
            self.context,
            rotation=self._key(seed_offset, 0) if self.rotate else None,
            inputs=named_inputs(self.inputs),
            tasks=self._task_vectors(spectrum.size, seed_offset),
            label_noise=self.noise,
            target_noise=self.target_noise,
            lengths=self.lengths,
            normaliser=Normaliser(self.normaliser),
        )
        if isinstance(task.tasks, Commuting) and self.pool is not None:
            return task.replace(tasks=task.tasks.pool(self.pool, self._key(seed_offset, 1)))
        return task

    def _key(self, seed_offset: int, number: int) -> PRNGKeyArray:
        """The key of the eigenvectors, of the pool or of the fixed task, by its number from 0 on.

        Most tasks draw nothing, and need not wait for the programs that make keys.
        """
        return jax.random.split(jax.random.key(self.eigen_seed + seed_offset), 3)[number]

    def _task_vectors(self, size: int, seed_offset: int) -> AbstractTaskVectors:
        """The law of the tasks; a pool of commuting ones is drawn when their basis is known."""
        for name in ("task_covariance", "task_mean"):
            given = getattr(self, name)
            if given is not None and len(given) != size:
                what = "variances" if name == "task_covariance" else "numbers"
                raise ValueError(f"{name} needs {size} {what}, one a dimension, got {len(given)}")
        covariance = 1.0 if self.task_covariance is None else self.task_covariance
        if MODELS[self.model].vector:
            if self.fixed_fraction > 0 or (self.task_mean, self.nonzero) != (None, None):
                raise ValueError(
                    f"the model {self.model!r} has no fixed task, no task mean and no sparse tasks"
                )
            return Commuting(covariance)
        if self.pool is not None and (self.task_covariance, self.task_mean) != (None, None):
            raise ValueError("give one of: a pool, or a task covariance and mean")
        if self.nonzero is not None:
            given = (self.pool, self.task_covariance, self.task_mean)
            if given != (None, None, None) or self.fixed_fraction > 0:
                raise ValueError(
                    "nonzero says what the tasks are; leave out the pool, their covariance and "
                    "mean, and the fixed task"
                )
            return Sparse(self.nonzero)
        if self.pool is not None:
            law = Pool(jax.random.normal(self._key(seed_offset, 1), (self.pool, size)))
        else:
            law = Normal(0.0 if self.task_mean is None else self.task_mean, covariance)
        if self.fixed_fraction == 0:
            return law
        fixed = jax.random.normal(self._key(seed_offset, 2), (size,))
        fixed = fixed * jnp.sqrt(size) / jnp.linalg.norm(fixed)
        return Mixture(law, fixed, fraction=self.fixed_fraction)

    def initialiser(self, source: Task | Prompts) -> AbstractInitialiser:
        """The initialiser of the model, at scale `scale`, for what is trained on."""
        kind = MODELS[self.model]
        given = {
            "heads": self.heads,
            "rank": self.rank,
            "blocks": self.zero_blocks(),
            "layers": 2 if self.layers is None else self.layers,
            "tied": self.tied,
            "width": 8 * self.heads if self.width is None else self.width,
            "mlp": self.mlp,
            "norm": not self.no_norm,
            "causal": self.causal,
        }
        options = {name: given[name] for name in kind.options}
        return kind.initialiser(source, scale=self.scale, **options)

    def zero_blocks(self) -> Blocks | None:
        """Whether the zero blocks are trained: as asked, else on finite data; None without any."""
        if "blocks" not in MODELS[self.model].options:
            return None
        if self.blocks != "auto":
            return Blocks(self.blocks)
        moved = self.finite and not self.average  # the mean over tasks is even where w is
        return Blocks.FULL if moved or self.fixed_fraction > 0 else Blocks.FROZEN

    def choice(self, source: Task | Prompts) -> Choice:
        """The level of exactness, selected or as asked."""
        model = empty_model(self.initialiser(source))
        if self.batch is not None and self.loss in ("moments", *OF_TASKS):
            raise ValueError(f"minibatches need single sequences, which {self.loss} do not keep")
        if self.loss in ("large-context", "population") and self.sequences is not None:
            raise ValueError(f"the {self.loss} has no number of sequences; leave sequences out")
        if self.loss == "large-context":
            return Choice(self.loss, "approximate: of first order in 1/N, as asked")
        if self.loss not in ("auto", *OF_TASKS) and not self.finite:
            raise ValueError(f"the level {self.loss!r} needs a number of sequences")
        count = source.count if isinstance(source, Prompts) else self.sequences
        automatic = select(source, model, count)
        if self.loss == "auto":
            if self.batch is None or automatic.level != "moments":
                return automatic
            level = "statistics" if model.depth > 1 else "features"
            return Choice(level, "minibatches need single sequences", automatic.features)
        if automatic.level == "sequences" and self.loss in ("features", "moments"):
            raise ValueError(f"{self.loss} do not fit: {automatic.reason}; use sequences")
        return Choice(self.loss, "as asked", automatic.features)

    def build_loss(
        self,
        source: Task | Prompts,
        choice: Choice,
        seed_offset: int = 0,
        progress: Progress | None = None,
    ) -> AbstractLoss:
        """The training loss, of given prompts or sampled with the data seed.

        - `source`: what is trained on.
        - `choice`: the level of exactness.
        - `seed_offset`: how far a seed is from the first one, where data vary with the seeds.
        - `progress`: called while prompts are sampled.
        """
        if isinstance(source, Prompts):
            loss = choice.of(source, progress=progress)
        else:
            key = jax.random.key(self.data_seed + seed_offset)
            loss = choice.build(
                source,
                self.sequences,
                key,
                matched=self.match,
                averaged=self.average,
                progress=progress,
            )
        if self.fresh:
            assert isinstance(source, Task)  # given prompts are refused beside fresh ones
            batch = int(self.batch or 1)
            loss = Fresh(task=source, evaluation=loss, size=batch, averaged=self.average)
        elif self.batch is not None:
            loss = Minibatch(loss, self.batch)  # pyright: ignore
        if self.change is None:
            return loss
        pieces = {0.0: loss}
        for step, other in self.variants("change").items():
            task = other.task(seed_offset if self.vary == "all" else 0)
            pieces[float(step)] = other.build_loss(task, choice, seed_offset)
        return Curriculum(pieces)

    def variants(self, name: str) -> "dict[str, Settings]":
        """The settings of each test (`test`), or from each step on (`change`), by its name."""
        found = (variant(name, item) for item in getattr(self, name) or ())
        alone = {"test": None, "change": None, "test_context": None}
        return {called: dataclasses.replace(self, **alone, **fields) for called, fields in found}

    def build_dynamics(self, loss: AbstractLoss, init: AbstractInitialiser) -> AbstractDynamics:
        """Descent or flow; the default rate is a quarter of the stability limit."""
        if self.dynamics == "flow":
            tolerance = 1e-9 if self.tolerance is None else self.tolerance
            return Flow(tolerance, solver=_flow_solver(loss, empty_model(init)))
        rate = self.rate
        if rate is None and self.optimiser == "adam":
            rate = ADAM_RATE
        elif rate is None:
            rate = float(stable_rate(loss, init(jax.random.key(self.seed))))
            if not np.isfinite(rate):
                what = "the task" if self.prompts is None else self.prompts
                raise ValueError(
                    f"nothing can be learned from {what}: E[y x] is zero in every prompt, so that "
                    f"the loss is flat and no rate is too large; look at x and y, or give a rate"
                )
        return Descent(rate, self._optimiser())

    def _optimiser(self) -> AbstractOptimiser:
        kinds: dict[str, Callable[[], AbstractOptimiser]] = {
            "gd": GradientDescent,
            "momentum": lambda: Momentum(0.9 if self.momentum is None else self.momentum),
            "adam": Adam,
        }
        return kinds[self.optimiser]()


def _flow_solver(loss: AbstractLoss, model: AbstractModel) -> Any:
    """The solver of a flow: implicit for few weights of several layers, else that of `Flow`.

    Two layers with a small init scale are stiff long before their last drop.
    """
    if model.depth <= 1 or not isinstance(loss, Population):
        return None
    from iclflow.dynamics.rosenbrock import Rosenbrock  # loads Diffrax, which only a flow needs

    solver = Rosenbrock()
    return solver if solver.on(loss, model, 0.0, 0.0).dense else None


def _stated(path: Path) -> dict[str, Any]:
    """What a settings file, or a saved run, states."""
    if path.suffix.lower() == ".nc":
        return _of_run(load_runs(path).attrs)
    return from_names(read_toml(path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary, or `ValueError` in one line that names the file."""
    try:
        return tomllib.loads(read_text(path, SETTINGS_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is not a readable settings file: {reason}") from None


def _of_run(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a saved run states."""
    try:
        found = parse_json(attributes["settings"], "settings")
        kind = found.pop("kind")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        kind, found = None, {}
    if kind != Settings.__name__:
        raise ValueError(
            "this file does not say which task it was trained on; only runs written by "
            "iclflow simulate --out do"
        )
    return from_names(found, "this run")


STEPS = 10_001  # where the theory predicts no end
MOST_STEPS = 1_000_001  # that a run takes without being asked to
BEYOND = 1.3  # times the last predicted drop: the end of a run that was given none
PREDICTED = 4  # seeds whose drops are predicted for that
TEST_DIMS = ("test", "test_context")  # of test_loss
TEST_SEQUENCES = 5000  # for test losses of models without a population in closed form


@dataclasses.dataclass
class Study:
    """What settings stand for, built once: the objects that a sweep takes.

    - `settings`: in plain values.
    - `source`: the task, or the given prompts.
    - `init`, `loss`, `dynamics`: what is trained, on what, and how.
    - `choice`: the level of exactness, with the reason for it.
    - `tests`: what is measured besides the training loss, name -> recorder.
    """

    settings: Settings
    source: Task | Prompts
    init: AbstractInitialiser
    choice: Choice
    loss: AbstractLoss
    dynamics: AbstractDynamics
    tests: dict[str, Callable[[AbstractModel], Any]]

    @classmethod
    def of(cls, settings: Settings, progress: Progress | None = None) -> "Study":
        """Build source, loss, initialiser and dynamics.

        - `settings`: in plain values.
        - `progress`: called while prompts are sampled.
        """
        source = settings.source()
        init = settings.initialiser(source)
        choice = settings.choice(source)
        loss = settings.build_loss(source, choice, progress=progress)
        dynamics = settings.build_dynamics(loss, init)
        tests = tests_of(settings, source, init)
        return cls(settings, source, init, choice, loss, dynamics, tests)

    @property
    def task(self) -> Task:
        """The task; `ValueError` in one line where given prompts stand for it."""
        return self.source if isinstance(self.source, Task) else self.settings.task()

    def run(self, progress: Progress | None = None, store: Path | str | None = None) -> xr.Dataset:
        """Train all seeds.

        - `progress`: as in `sweep`.
        - `store`: a folder from which the same run goes on.
        """
        settings, vary = self.settings, Vary(self.settings.vary)

        def other(key: Any) -> AbstractLoss:
            offset = int(jax.random.key_data(key)[-1]) - settings.seed  # it is the key of a seed
            source = settings.task(offset) if vary is Vary.ALL else self.source
            return settings.build_loss(source, self.choice, offset)

        return sweep(
            self.loss if vary is Vary.WEIGHTS else other,
            self.init,
            self.dynamics,
            seeds=range(settings.seed, settings.seed + settings.seeds),
            vary=vary,
            until=self.until,
            saveat=self.saveat,
            record={name: name for name in self.record} | self.tests,
            final=["sharpness"],
            progress=progress,
            store=store,
            settings=settings,
        )

    @cached_property
    def drops(self) -> np.ndarray:
        """Predicted drop times t/τ of the first seeds; empty where no theory covers the study."""
        if self.settings.scale == 0 or not self.dynamics.keeps_time:
            return np.zeros(0)
        if self._not_covered() is not None:
            return np.zeros(0)
        seeds = range(self.settings.seed, self.settings.seed + self.settings.seeds)[:PREDICTED]
        pairs = zip(self.sources(seeds), self._starts(seeds), strict=True)
        times = [theory_times(source, model) for source, model in pairs]
        return np.unique(np.concatenate(times))

    @cached_property
    def until(self) -> float | int:
        """The end: t/τ of a flow, steps of descent; past the predicted drops if not given."""
        settings, dynamics = self.settings, self.dynamics
        if not dynamics.whole:
            assert settings.time is not None
            return settings.time
        if settings.steps is not None:
            return settings.steps
        if settings.time is not None:
            steps = float(dynamics.steps(settings.time))
            if steps > LONGEST:
                raise ValueError(
                    f"time {settings.time:g} at rate {dynamics.rate_at(0):g} is {steps:.2g} steps"
                )
            return max(1, int(steps))
        needed = self.needed_steps
        return STEPS if needed is None else min(MOST_STEPS, needed)

    @property
    def needed_steps(self) -> int | None:
        """Steps past the last predicted drop, in thousands and one; None where there is none."""
        dynamics = self.dynamics
        if not dynamics.whole or self.drops.size == 0:
            return None
        return 1000 * int(np.ceil(dynamics.steps(BEYOND * float(self.drops[-1])) / 1000)) + 1

    @cached_property
    def saveat(self) -> np.ndarray:
        """The save points.

        The setting `save` says how they are placed: evenly in the logarithm of time, evenly in
        time, both, both and more of them around predicted drops, or as a list.
        """
        save, end, whole = self.settings.save, self.until, self.dynamics.whole
        kind, _, argument = save.partition(":")
        try:
            if kind in ("log", "linear", "mixed", "auto"):
                count = int(argument or 200)
                log = self.dynamics.spread(end, count)
                linear = linear_steps(int(end), count) if whole else np.linspace(0, end, count)
                mixed = np.union1d(log, linear)
                dense = self._around_drops(end, count) if save.startswith("auto") else mixed[:0]
                auto = np.union1d(mixed, dense)
                return {"log": log, "linear": linear, "mixed": mixed, "auto": auto}[kind]
            if save == "all" and whole:
                return np.arange(end + 1)
            points = np.asarray([float(x) for x in save.split(",")])
        except ValueError:
            raise ValueError(
                f"save must be log:COUNT, linear:COUNT, mixed:COUNT, auto:COUNT, all (descent), "
                f"or a list, got {save!r}"
            ) from None
        return points

    def _around_drops(self, end: float, count: int) -> np.ndarray:
        """Further marks around the predicted drops of a long run.

        - `end`: where the run ends. Where it is so short that the even marks lie close, there are
          none.
        - `count`: about how many marks are wanted.
        """
        whole = self.dynamics.whole
        if (whole and end <= 2 * count) or self.drops.size == 0:
            return np.zeros(0)
        marks = self.dynamics.steps(self.drops)
        share = np.linspace(0.85, 1.15, max(8, count // len(marks)))
        near = np.outer(marks, share).ravel()
        near = near[near <= end]
        return np.round(near).astype(int) if whole else near

    @cached_property
    def record(self) -> tuple[str, ...]:
        """What is recorded: what was asked for, or else the loss and the value weights.

        Nothing asked for also means all weights, as long as they take little room.
        """
        asked = self.settings.record
        if asked is not None:
            return tuple(dict.fromkeys(("loss", *asked)))
        count = sum(leaf.size for leaf in jax.tree.leaves(empty_model(self.init)))
        small = 8 * count * len(self.saveat) * self.settings.seeds <= SMALL
        single = empty_model(self.init).as_attention() is not None  # else no one set of values
        found = ("loss", "values") if single else ("loss",)
        return (*found, "weights") if small else found

    def levels(self) -> np.ndarray:
        """The plateau losses of the task, or of given prompts; empty where theory has none."""
        from iclflow.theory.drops.quadratic import not_quadratic
        from iclflow.theory.fixed_points.modes import covered_levels, visited_levels

        if self.settings.change:  # the plateaus are those of one task
            return np.zeros(0)
        model = empty_model(self.init)
        if isinstance(self.source, Task):
            return covered_levels(self.source, model)
        loss = self.loss.reported
        return np.zeros(0) if not_quadratic(loss) else visited_levels(loss, model)

    def prediction(self, runs: xr.Dataset) -> "TheoryComparison | None":
        """The theory from the same initial weights, where it covers the study."""
        if self._not_covered() is not None or not is_timed(runs):
            return None
        seeds = runs["seed"].values.tolist()
        return compare(self.sources(seeds), self._starts(seeds), runs)

    def _not_covered(self) -> str | None:
        """What in the settings keeps the drops from being predicted, in words; None if nothing."""
        if self.settings.fixed_fraction > 0:
            return "a share of the prompts has one fixed task"
        if self.source.outputs > 1:
            return f"the theory covers one output, got {self.source.outputs}"
        if self.settings.change:
            return "the task changes during training, and the theory is of one task"
        return None

    def without_prediction(self) -> str:
        """Why `prediction` has none."""
        from iclflow.theory.predict import ENGINES

        reason = self._not_covered()
        if reason is None and not self.dynamics.keeps_time:
            reason = "this rule has no clock t/τ: gradient descent and gradient flow do"
        if reason is None:
            seeds = [self.settings.seed]
            source, model = next(iter(self.sources(seeds))), next(iter(self._starts(seeds)))
            reason = ENGINES[model.depth > 1].admits(source, model)
        return reason or "no engine predicts this run"

    def sources(self, seeds: Iterable[int]) -> Iterator[Any]:
        """What the theory of each seed is of: the prompts it was trained on, or the population.

        Training on batches of prompts has the theory of all of them.
        """
        vary, settings = Vary(self.settings.vary), self.settings
        sampled = settings.finite and isinstance(self.loss.reported, AbstractPromptLoss)
        for seed in seeds:
            offset = int(seed) - settings.seed
            source = settings.task(offset) if vary is Vary.ALL else self.source
            if not sampled:
                yield source
            elif vary is Vary.WEIGHTS:
                yield self.loss.reported
            else:
                yield settings.build_loss(source, self.choice, offset).reported

    def _starts(self, seeds: Iterable[int]) -> Iterator[AbstractModel]:
        """The initial weights of each seed."""
        first, same = self.settings.seed, self.settings.vary == "data"
        for seed in seeds:
            place = 0 if same else int(seed) - first
            yield jax.tree.map(lambda a, place=place: jax.device_put(a[place]), self._models)

    @cached_property
    def _models(self) -> AbstractModel:
        """The initial weights of all seeds, drawn by the program that the sweep draws them with."""
        first = self.settings.seed
        return jax.device_get(draw_models(self.init, range(first, first + self.settings.seeds)))

    def title(self) -> str:
        """One line that names the experiment."""
        s, source = self.settings, self.source
        words = [f"linear attention ({s.model})" if s.model in ("merged", "separate") else s.model]
        if s.model in DEEP.values():
            words.append(f"{s.layers or 2} {'tied ' if s.tied else ''}layers")
        if s.model != "linear-transformer":
            ranked = s.rank > 1 and ("separate" in s.model or s.model == "conv")
            rank = f" of rank {s.rank}" if ranked else ""
            words.append(f"{s.heads} head{'s' * (s.heads > 1)}{rank}")
        words.append(f"{source.size} inputs")
        count = f"{s.sequences:,}" if s.sequences else "infinitely many"
        if isinstance(source, Prompts):
            count = f"{source.count:,}"
        file = f" from {s.prompts}" if isinstance(source, Prompts) else ""
        words.append(f"{count} prompts of {source.context} pairs{file}")
        return ", ".join(words)

    def summary(self, runs: xr.Dataset, theory: "TheoryComparison | None" = None) -> dict[str, Any]:
        """Numbers of the runs, ready for JSON."""
        runs = in_order(runs)
        settings, blocks = self.settings, self.settings.zero_blocks()
        rate = self.dynamics.rate_at(0)
        rate = None if rate is None else float(rate)
        last = [_last(row) for row in runs["loss"].values]
        tests = {name: _final(runs[name]) for name in self.tests}
        tests |= {name: runs[name].values.tolist() for name in TEST_DIMS if name in runs.coords}
        return {
            "title": self.title(),
            "model": settings.model,
            "level": self.choice.level,
            "level_reason": self.choice.reason,
            "blocks": blocks and blocks.value,
            "engine": runs.attrs["engine"],
            "rate": rate,
            "rate_times_sharpness": None
            if rate is None
            else (rate * runs["final_sharpness"].values).tolist(),
            "steps": int(runs["step"].values[-1]) if rate is not None else None,
            "needed_steps": None if settings.steps or settings.time else self.needed_steps,
            "time": float(runs["time"].values[-1]) if is_timed(runs) else None,
            "seeds": runs["seed"].values.tolist(),
            "result": [OUTCOMES[code] for code in runs["result"].values],
            "stopped": runs["stopped"].values.tolist(),
            "initial_loss": runs["loss"].values[:, 0].tolist(),
            "final_loss": last,
            **tests,
            "plateau_losses": self.levels().tolist(),
            "predicted_drop_times": None if theory is None else theory.predicted.tolist(),
            "measured_drop_times": None if theory is None else theory.measured.tolist(),
            "drop_time_error": None if theory is None else theory.error,
            "worst_drop_time_error": None if theory is None else theory.worst,
            "theory_notes": [] if theory is None else list(theory.notes),
            "content_key": runs.attrs["content_key"],
        }


def tests_of(
    settings: Settings, source: Task | Prompts, init: AbstractInitialiser
) -> dict[str, Any]:
    """What a study measures that its training loss does not know of, name -> recorder.

    - `settings`: they name other tasks, context lengths and quantities.
    - `source`: what is trained on.
    - `init`: the initialiser of the models that are tested.
    """
    tests: dict[str, Any] = {}
    if isinstance(source, Prompts):
        if "population_loss" in (settings.record or ()):
            raise ValueError("given prompts have no population_loss; leave it out of record")
        return tests
    task = source
    if settings.fixed_fraction > 0:
        labels = ContextLabels(settings.in_weight_test)
        tests["in_context_loss"] = test_loss(task.in_context(), init)
        tests["in_weight_loss"] = test_loss(task.in_weight(labels), init)
    if settings.test or settings.test_context:
        named = {name: one.task() for name, one in settings.variants("test").items()}
        axes = {"context": settings.test_context} if settings.test_context else {}
        found = Tests(named or task, sequences=TEST_SEQUENCES, **axes)
        tests[TEST_LOSS] = found.recorder(empty_model(init))
    record = settings.record or ()
    if "population_loss" in record:
        tests["population_loss"] = test_loss(task, init)
    if "fixed_point_distance" in record:
        if settings.vary == "all":
            raise ValueError("fixed_point_distance needs one task; vary weights or data")
        tests["fixed_point_distance"] = OfModel(FixedPointDistance.of(task))
    return tests


def test_loss(task: Task, init: AbstractInitialiser) -> AbstractLoss:
    """The population loss of a task for the models an initialiser draws.

    It is sampled for softmax and for three layers or more, which have no closed form.
    """
    return population_of(task, empty_model(init), TEST_SEQUENCES)


def _final(recorded: xr.DataArray) -> list[Any]:
    """The last number of each run that is one, of each of its further dimensions."""
    rows = recorded.transpose("seed", ..., "time").values
    return np.apply_along_axis(_last, -1, rows).tolist()


def _last(row: np.ndarray) -> float:
    finite = row[np.isfinite(row)]
    return float(finite[-1]) if finite.size else float("nan")


@dataclasses.dataclass(frozen=True)
class TheoryComparison:
    """Predicted loss curves beside the measured ones, and the drop times of both."""

    curves: xr.Dataset  # loss [seed, time]
    predicted: np.ndarray  # [seed, drop], t/τ; NaN where there is none
    measured: np.ndarray  # [seed, drop], NaN where the run ended before
    notes: tuple[str, ...] = ()  # what is less than sure about the predictions

    @property
    def errors(self) -> np.ndarray:
        """Relative errors of the drop times that were both predicted and seen."""
        both = np.isfinite(self.predicted) & np.isfinite(self.measured)
        return np.abs(self.predicted[both] / self.measured[both] - 1)

    @property
    def error(self) -> float:
        """The median of the errors; NaN without any."""
        return float(np.median(self.errors)) if self.errors.size else float("nan")

    @property
    def worst(self) -> float:
        """The largest of the errors; NaN without any."""
        return float(self.errors.max()) if self.errors.size else float("nan")


def compare(
    sources: Iterable[AbstractTask | AbstractLoss],
    models: Iterable[AbstractModel],
    runs: xr.Dataset,
) -> TheoryComparison | None:
    """The theory of each run from its initial weights; None where no theory covers the model.

    Drop times are when the loss crosses the middle between two levels that the model visits.

    - `sources`: what each run was trained on, the task of a population or the loss of a sample.
    - `models`: the initial weights of each run.
    - `runs`: the measured losses.
    """
    from iclflow.theory.predict import select  # SciPy's integrators: only when asked for

    times, curves, predicted, measured = runs["time"].values, [], [], []
    notes: dict[str, list[int]] = {}
    for i, (source, model) in enumerate(zip(sources, models, strict=True)):
        engine = select(source, model)
        if engine is None:
            return None
        found = engine(source, model)
        for note in found.notes:
            notes.setdefault(note, []).append(int(runs["seed"].values[i]))
        expected = np.full(len(found.levels) - 1, np.nan)
        expected[: len(found.times)] = found.times
        curves.append(found.curve(times).loss)
        predicted.append(expected)
        middles = (found.levels[:-1] + found.levels[1:]) / 2
        loss = runs["loss"].isel(seed=i).values
        measured.append(first_crossings(times, loss, middles))
    data = xr.Dataset(
        {"loss": (("seed", "time"), np.stack(curves))},
        coords={"seed": runs["seed"].values, "time": times},
    )
    said = tuple(
        note if len(seeds) == len(curves) else f"of seed {', '.join(map(str, seeds))}: {note}"
        for note, seeds in notes.items()
    )
    return TheoryComparison(data, _padded(predicted), _padded(measured), said)


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array: two samples need not have as many drops."""
    whole = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole
