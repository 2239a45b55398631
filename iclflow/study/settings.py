"""One experiment stated in plain values: a TOML file or the command line writes it."""

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Mapping
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
from iclflow.losses import AbstractLoss, Curriculum, Fresh, Minibatch, Population
from iclflow.losses.memory import require_memory
from iclflow.losses.select import Choice, select
from iclflow.models import AbstractInitialiser, AbstractModel, Blocks, Layers, empty_model
from iclflow.models.registry import MODELS
from iclflow.results.choices import require_choice
from iclflow.results.files import digest, parse_json, read_text
from iclflow.results.netcdf import opened
from iclflow.results.progress import Progress
from iclflow.runs.cost import COPIES
from iclflow.study.fields import OF_TASKS, Fields, from_names, variant
from iclflow.tasks.base import Normaliser
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
from iclflow.tasks.task import Task

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
        keys = jax.random.split(jax.random.key(self.eigen_seed + seed_offset), 3)
        require_choice("inputs", self.inputs.partition(":")[0], INPUTS)
        task = Task(
            spectrum,
            self.context,
            rotation=keys[0] if self.rotate else None,
            inputs=named_inputs(self.inputs),
            tasks=self._task_vectors(spectrum.size, keys[1], keys[2]),
            label_noise=self.noise,
            target_noise=self.target_noise,
            lengths=self.lengths,
            normaliser=Normaliser(self.normaliser),
        )
        if isinstance(task.tasks, Commuting) and self.pool is not None:
            return task.replace(tasks=task.tasks.pool(self.pool, keys[1]))
        return task

    def _task_vectors(
        self, size: int, pool_key: PRNGKeyArray, fixed_key: PRNGKeyArray
    ) -> AbstractTaskVectors:
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
            law = Pool(jax.random.normal(pool_key, (self.pool, size)))
        else:
            law = Normal(0.0 if self.task_mean is None else self.task_mean, covariance)
        if self.fixed_fraction == 0:
            return law
        fixed = jax.random.normal(fixed_key, (size,))
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
            level = "statistics" if isinstance(model, Layers) else "features"
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
    if not isinstance(model, Layers) or model.layers == 1 or not isinstance(loss, Population):
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
