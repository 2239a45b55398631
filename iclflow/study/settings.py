"""One experiment stated in plain values: a TOML file or the command line writes it."""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
from iclflow.losses import AbstractLoss, Fresh, Minibatch
from iclflow.losses.select import LEVELS, Choice, select
from iclflow.models import AbstractInitialiser, Blocks, empty_model
from iclflow.models.registry import MODELS
from iclflow.results.choices import require_choice
from iclflow.results.progress import Progress
from iclflow.results.trajectory import linear_steps
from iclflow.runs.sweep import Vary
from iclflow.tasks.commuting import Commuting
from iclflow.tasks.inputs import INPUTS, named_inputs
from iclflow.tasks.prompt import Normaliser
from iclflow.tasks.spectra import named_spectrum
from iclflow.tasks.task import ContextLabels, Task
from iclflow.tasks.task_vectors import AbstractTaskVectors, Mixture, Normal, Pool

OPTIMISERS = ("gd", "momentum", "adam")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Task, model, level of exactness and dynamics of one experiment."""

    # Task
    spectrum: tuple[float, ...] | str = (0.4, 0.3, 0.2, 0.1)
    dim: int | None = None
    trace: float | None = None
    context: int = 31
    lengths: tuple[int, ...] | None = None
    normaliser: str = "pairs"
    inputs: str = "gaussian"
    noise: float = 0.0
    target_noise: float = 0.0
    task_covariance: tuple[float, ...] | None = None
    task_mean: tuple[float, ...] | None = None
    pool: int | None = None
    fixed_fraction: float = 0.0
    in_weight_test: str = "task"
    rotate: bool = True
    # Model
    model: str = "separate"
    heads: int = 5
    rank: int = 1
    init: float = 0.01
    blocks: str = "auto"
    # Data and level
    sequences: int | None = None
    match: bool = False
    loss: str = "auto"
    batch: int | None = None
    fresh: bool = False
    # Dynamics
    dynamics: str = "descent"
    optimiser: str = "gd"
    momentum: float = 0.9
    rate: float | None = None
    steps: int = 10_001
    time: float | None = None
    tolerance: float = 1e-9
    # Runs
    seeds: int = 1
    seed: int = 0
    vary: str = "weights"
    data_seed: int = 1
    eigen_seed: int = 2
    save: str = "mixed:400"
    record: tuple[str, ...] = ("loss", "values")

    def __post_init__(self) -> None:
        choices = {
            "model": MODELS,
            "normaliser": [n.value for n in Normaliser],
            "in_weight_test": [c.value for c in ContextLabels],
            "blocks": ("auto", "full", "frozen"),
            "loss": ("auto", *LEVELS),
            "dynamics": ("descent", "flow"),
            "optimiser": OPTIMISERS,
            "vary": [v.value for v in Vary],
        }
        for name, allowed in choices.items():
            require_choice(name, getattr(self, name), allowed)
        for name in ("context", "heads", "rank", "seeds", "steps", "sequences", "batch", "pool"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
        if self.dynamics == "flow" and self.time is None:
            raise ValueError("the flow needs an end time t/τ; give time, for example 4000")
        if self.fresh and self.batch is None:
            raise ValueError("fresh data need a batch size; give batch, for example 512")
        if self.init < 0 or not np.isfinite(self.init):
            raise ValueError(f"the init scale must be a number of at least 0, got {self.init}")

    @classmethod
    def from_toml(cls, path: Path | str, **overrides: Any) -> "Settings":
        """Settings from a TOML file of field = value lines, some overridden."""
        try:
            found = tomllib.loads(Path(path).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} is not a readable settings file: {error}") from None
        found = {name.replace("-", "_"): value for name, value in found.items()}
        names = [field.name for field in dataclasses.fields(cls)]
        for name in found:
            require_choice(f"setting in {path}", name, names)
        hints = typing.get_type_hints(cls)
        typed = {name: _as_type(name, value, hints[name]) for name, value in found.items()}
        return cls(**{**typed, **overrides})

    def task(self, seed_offset: int = 0) -> Task:
        """The task; `seed_offset` changes the eigenvectors."""
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
                raise ValueError(f"dim is {self.dim}, but {spectrum.size} eigenvalues were given")
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
        covariance = 1.0 if self.task_covariance is None else self.task_covariance
        if MODELS[self.model].vector:
            if self.fixed_fraction > 0 or self.task_mean is not None:
                raise ValueError(f"the model {self.model!r} has no fixed task and no task mean")
            return Commuting(covariance)
        if self.pool is not None and (self.task_covariance, self.task_mean) != (None, None):
            raise ValueError("give one of: a pool, or a task covariance and mean")
        if self.pool is not None:
            law = Pool(jax.random.normal(pool_key, (self.pool, size)))
        else:
            law = Normal(0.0 if self.task_mean is None else self.task_mean, covariance)
        if self.fixed_fraction == 0:
            return law
        fixed = jax.random.normal(fixed_key, (size,))
        fixed = fixed * jnp.sqrt(size) / jnp.linalg.norm(fixed)
        return Mixture(law, fixed, fraction=self.fixed_fraction)

    def initialiser(self, task: Task) -> AbstractInitialiser:
        """The initialiser of the model, at scale `init`."""
        kind = MODELS[self.model]
        given = {"heads": self.heads, "rank": self.rank, "blocks": self._blocks()}
        options = {name: given[name] for name in kind.options}
        return kind.initialiser(task, scale=self.init, **options)

    def _blocks(self) -> Blocks:
        if "blocks" not in MODELS[self.model].options:
            if self.blocks == "full":
                raise ValueError(f"the model {self.model!r} has no zero blocks; leave blocks out")
            return Blocks.FROZEN
        if self.blocks != "auto":
            return Blocks(self.blocks)
        finite = self.sequences is not None or self.fixed_fraction > 0
        return Blocks.FULL if finite else Blocks.FROZEN

    def choice(self, task: Task) -> Choice:
        """The level of exactness, selected or as asked."""
        model = empty_model(self.initialiser(task))
        if self.batch is not None and self.loss in ("moments", "population"):
            raise ValueError(f"minibatches need single sequences, which {self.loss} do not keep")
        chosen = select(task, model, self.sequences) if self.loss in ("auto",) else None
        if chosen is not None and self.batch is not None and chosen.level == "moments":
            return Choice("features", "minibatches need single sequences", chosen.features)
        if chosen is not None:
            return chosen
        if self.loss == "population" and self.sequences is not None:
            raise ValueError("the population has no number of sequences; leave sequences out")
        if self.loss != "population" and self.sequences is None:
            raise ValueError(f"the level {self.loss!r} needs a number of sequences")
        automatic = select(task, model, self.sequences)
        if automatic.level == "sequences" and self.loss in ("features", "moments"):
            raise ValueError(f"{self.loss} do not fit: {automatic.reason}; use sequences")
        return Choice(self.loss, "as asked", automatic.features)

    def build_loss(
        self, task: Task, choice: Choice, seed_offset: int = 0, progress: Progress | None = None
    ) -> AbstractLoss:
        """The training loss, sampled with the data seed."""
        key = jax.random.key(self.data_seed + seed_offset)
        loss = choice.build(task, self.sequences, key, matched=self.match, progress=progress)
        if self.fresh:
            return Fresh(task=task, evaluation=loss, size=int(self.batch or 1))
        return loss if self.batch is None else Minibatch(loss, self.batch)  # pyright: ignore

    def build_dynamics(self, loss: AbstractLoss, init: AbstractInitialiser) -> AbstractDynamics:
        """Descent or flow; the default rate is a quarter of the stability limit."""
        if self.dynamics == "flow":
            return Flow(self.tolerance)
        rate = self.rate
        if rate is None:
            rate = float(stable_rate(loss, init(jax.random.key(self.seed))))
        return Descent(rate, self._optimiser())

    def until(self, dynamics: AbstractDynamics) -> float | int:
        """The end of the run: t/τ of a flow, steps of descent."""
        if not isinstance(dynamics, Descent):
            assert self.time is not None
            return self.time
        if self.time is None:
            return self.steps
        return max(1, round(self.time / (2 * float(dynamics.rate))))

    def _optimiser(self) -> AbstractOptimiser:
        kinds: dict[str, Callable[[], AbstractOptimiser]] = {
            "gd": GradientDescent,
            "momentum": lambda: Momentum(self.momentum),
            "adam": Adam,
        }
        return kinds[self.optimiser]()

    def saveat(self, dynamics: AbstractDynamics) -> np.ndarray:
        """Save points: `log:COUNT`, `linear:COUNT`, both (`mixed:COUNT`), `all`, or a list."""
        kind, _, argument = self.save.partition(":")
        end, whole = self.until(dynamics), isinstance(dynamics, Descent)
        try:
            if kind in ("log", "linear", "mixed"):
                count = int(argument or 200)
                log = dynamics.spread(end, count)
                linear = linear_steps(int(end), count) if whole else np.linspace(0, end, count)
                mixed = np.union1d(log, linear)
                return {"log": log, "linear": linear, "mixed": mixed}[kind]
            if self.save == "all" and whole:
                return np.arange(end + 1)
            return np.asarray([float(x) for x in self.save.split(",")])
        except ValueError:
            raise ValueError(
                f"save must be log:COUNT, linear:COUNT, mixed:COUNT, all (descent), or a list, "
                f"got {self.save!r}"
            ) from None


def _as_type(name: str, value: Any, hint: Any) -> Any:
    """A value from a file as the type of its field, or `ValueError`."""
    for kind in typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        if typing.get_origin(kind) is tuple and isinstance(value, list):
            item = typing.get_args(kind)[0]
            return tuple(_as_type(name, v, item) for v in value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(kind, type) and type(value) is kind:
            return value
    raise ValueError(f"the setting {name} cannot be {value!r}")
