"""What is measured: trainings by level and model, and the sizes along which costs are compared."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclflow.losses import AbstractLoss, Features, Moments, Population, Sequences
from iclflow.models import AbstractInitialiser, AbstractModel, Blocks, empty_model
from iclflow.models.registry import MODELS
from iclflow.tasks.base import Prompt
from iclflow.tasks.task import Task

LEVELS: dict[str, Any] = {"moments": Moments, "features": Features, "sequences": Sequences}
POPULATION, LITERAL = "population", "literal"
SOFTMAX = "softmax-merged"
SCALE = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """A training: one of the levels or `literal`, a model, and sizes as the papers name them."""

    level: str
    model: str
    D: int = 4
    H: int = 5
    R: int = 1
    P: int = 1000
    N: int = 31
    runs: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Those that this training has."""
        names = ["D", "H", *(["R"] if self.model == "separate" else [])]
        names += [] if self.level == POPULATION else ["P", "N"]
        return {name: getattr(self, name) for name in names}

    def task(self) -> Task:
        """Eigenvalues in equal steps, of trace one: for D = 4 0.4, 0.3, 0.2 and 0.1."""
        spectrum = np.arange(self.D, 0, -1.0)
        return Task(spectrum / spectrum.sum(), self.N)

    def prompts(self) -> Prompt:
        """Drawn by NumPy, which has nothing to compile."""
        rng, task = np.random.default_rng(1), self.task()
        inputs = rng.normal(size=(self.P, self.N + 1, self.D)) * np.sqrt(task.spectrum)
        labels = np.einsum("pnd,pd->pn", inputs, rng.normal(size=(self.P, self.D)))[..., None]
        return Prompt(jnp.asarray(inputs), jnp.asarray(labels), jnp.asarray(labels))

    def loss(self) -> AbstractLoss:
        """How the loss is known; the literal one knows the prompts."""
        if self.level == POPULATION:
            return Population(self.task())
        return LEVELS.get(self.level, Sequences).of(self.prompts())

    def models(self) -> AbstractModel:
        """Small random weights of all runs, stacked: not by the initialiser's law, but at once."""
        rng = np.random.default_rng(0)
        draw = lambda a: jnp.asarray(SCALE * rng.normal(size=(self.runs, *a.shape)), a.dtype)  # noqa: E731
        return jax.tree.map(draw, eqx.filter(empty_model(self.init()), eqx.is_inexact_array))

    def init(self) -> AbstractInitialiser:
        """The model's start; with all blocks trained where prompts are sampled."""
        blocks = Blocks.FROZEN if self.level == POPULATION else Blocks.FULL
        given = {"heads": self.H, "rank": self.R, "blocks": blocks}
        kind = MODELS[self.model]
        options = {name: given[name] for name in kind.options}
        return kind.initialiser(self.task(), scale=SCALE, **options)


@dataclasses.dataclass(frozen=True)
class CostLine:
    """A job at several values of one of its sizes."""

    job: Job
    size: str  # D, H, R, P, N or runs
    values: tuple[int, ...]

    def jobs(self) -> list[Job]:
        """One a value."""
        return [dataclasses.replace(self.job, **{self.size: value}) for value in self.values]


def table(backend: str, quick: bool) -> list[Job]:
    """The rows of the table; more runs at once where the hardware is wider."""
    wide = backend == "gpu"
    many, some = (2**17, 256) if wide else (1024, 4)
    prompts = 200 if quick else 1000
    found = [
        Job(POPULATION, "merged", runs=many),
        Job(POPULATION, "separate", runs=many),
        Job(POPULATION, "separate", R=2, runs=many),
        Job("moments", "merged", P=prompts, runs=many // 4),
        Job("moments", "separate", P=prompts, runs=many // 4),
        Job("features", "merged", P=prompts, runs=some),
        Job("features", "separate", P=prompts, runs=some),
        Job("sequences", "merged", P=prompts, runs=some),
        Job("sequences", "separate", P=prompts, runs=some),
        Job("sequences", SOFTMAX, P=prompts, runs=some),
        Job(LITERAL, "merged", P=prompts),
        Job(LITERAL, SOFTMAX, P=prompts),
    ]
    if not quick:
        return found
    return [job for job in found if job.R == 1 and (job.model != "merged" or job.level == LITERAL)]


def lines(backend: str, quick: bool) -> list[CostLine]:
    """Along which sizes costs are fitted: far enough apart for the size to be what costs."""
    wide = 64 if backend == "gpu" else 1
    several = Job(POPULATION, "separate", D=8, H=8, runs=64 * wide)
    prompted = Job("sequences", "merged", P=250 * wide, N=32)
    found = [
        CostLine(several, "D", (8, 16, 32, 64)),
        CostLine(several, "H", (8, 16, 32, 64)),
        CostLine(several, "R", (1, 2, 4, 8)),
        CostLine(several, "runs", tuple(n * wide for n in (64, 256, 1024, 4096))),
        CostLine(prompted, "P", tuple(n * wide for n in (250, 500, 1000, 2000))),
        CostLine(prompted, "N", (32, 64, 128, 256)),
    ]
    if quick:
        return [dataclasses.replace(line, values=line.values[:3]) for line in found]
    moments = Job("moments", "merged", P=500, runs=64 * wide)
    features = Job("features", "merged", P=250 * wide)
    found += [
        CostLine(Job(LITERAL, "merged", P=250), "N", (32, 64, 128, 256)),
        CostLine(moments, "D", (4, 6, 8, 10)),
        CostLine(features, "P", tuple(n * wide for n in (250, 500, 1000, 2000))),
        CostLine(features, "D", (4, 6, 8, 12)),
        CostLine(dataclasses.replace(prompted, model=SOFTMAX), "N", (32, 64, 128, 256)),
    ]
    return found
