"""Will training get there? The law of the drop times over starts, from theory, against a budget."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from iclflow.dynamics import stable_rate
from iclflow.losses import Moments, ReducedFeatures
from iclflow.measures import first_crossings
from iclflow.models import AbstractModel, draw_model, draw_models, empty_model
from iclflow.results.messages import Progress
from iclflow.runs.record import theory_times
from iclflow.study.study import Settings, Study
from iclflow.tasks.base import Normaliser
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task
from iclflow.theory.drops.limit import many_escapes
from iclflow.theory.drops.quadratic import Quadratic
from iclflow.theory.fixed_points.modes import covered_levels, visited_levels

STARTS, FEW = 1000, 64  # starts behind a law: where they are computed together, and one by one
ROUGH = 16  # of them, for what else would do
CHECKED = 200  # runs that are simulated
QUANTILES = (0.1, 0.5, 0.9)
MOST_HEADS = 64
SEPARATE = ("separate", "conv")  # models whose dormant times go as one over the scale


@dataclasses.dataclass(frozen=True)
class Law:
    """The drop times of many starts, [start, drop], infinite where there is none; t/τ."""

    times: np.ndarray
    engine: str

    def left(self, time: float) -> np.ndarray:
        """The probability that each drop has come by then."""
        return np.mean(self.times <= time, axis=0)

    def quantiles(self) -> np.ndarray:
        """[quantile, drop]; infinite where too few starts have the drop."""
        return np.quantile(self.times, QUANTILES, axis=0, method="higher")


def law(settings: Settings, starts: int = STARTS, few: int = FEW) -> Law:
    """The law that theory gives to the drop times of the settings' initial weights.

    - `settings`: task, model and init scale.
    - `starts`: how many initial weights are drawn where their times are computed together.
    - `few`: how many where they are computed one by one.
    """
    source = settings.source()
    init = settings.initialiser(source)
    if isinstance(source, Prompts):
        about = (settings.prompts, settings.prompts_digest, settings.lengths, settings.normaliser)
        known = _moments(*about)
        levels = visited_levels(known, empty_model(init))
    else:
        known, levels = source, covered_levels(source, empty_model(init))
    if len(levels) < 2:
        raise ValueError(f"no theory predicts the drops of {settings.model} on this task")
    seeds = range(settings.seed, settings.seed + starts)
    together = settings.model in SEPARATE and (settings.rank == 1 or few == ROUGH)
    if isinstance(known, Task) and together:
        try:
            found = many_escapes(known, draw_models(init, seeds)).times
            return Law(found, "Jumps: vanishing initial weights")
        except ValueError:  # equal modes
            pass
    times = np.full((few, len(levels) - 1), np.inf)
    for row, seed in zip(times, seeds[:few], strict=True):
        model: AbstractModel = draw_model(init, jax.random.key(seed))
        found = theory_times(known, model)
        row[: len(found)] = found[: len(row)]
    if np.isinf(times).all():
        raise ValueError(f"no theory predicts the drops of {settings.model} on this task")
    return Law(times, "predict: small initial weights")


@functools.lru_cache(maxsize=1)
def _moments(path: str, digest: str, lengths: tuple[int, ...] | None, normaliser: str) -> Quadratic:
    """What the theory needs of a file of prompts: read once for all numbers of heads."""
    del digest
    prompts = Prompts.load(path, lengths=lengths, normaliser=Normaliser(normaliser))
    return Quadratic.of(Moments.of(prompts, features=ReducedFeatures()))


def plan(settings: Settings, probability: float) -> dict[str, Any]:
    """Whether training gets there: probabilities and quantiles of each drop within the steps.

    The result also names the init scale, the heads and the ranks that would make it.

    - `settings`: they need a rate and a number of steps.
    - `probability`: with which all drops shall come in time.
    """
    if settings.steps is None or settings.dynamics != "descent":
        raise ValueError("a plan needs a budget of training steps: give steps, for example 10000")
    found = law(settings)  # before the rate: without a theory there is no plan at any rate
    study = Study.of(dataclasses.replace(settings, seeds=1))
    rate = float(study.dynamics.rate)  # pyright: ignore[reportAttributeAccessIssue]
    start = draw_model(study.init, jax.random.key(settings.seed))
    limit = float(stable_rate(study.loss, start, fraction=1.0))
    if rate > limit:
        raise ValueError(
            f"descent diverges at rate {rate:g}: the largest stable one is {limit:.3g} on this "
            f"task; leave rate out for a quarter of it"
        )
    end = 2 * rate * settings.steps
    left = found.left(end)
    spread = np.sqrt(left * (1 - left) / len(found.times))
    return {
        "steps": settings.steps,
        "rate": rate,
        "time": end,
        "starts": len(found.times),
        "engine": found.engine,
        "left": left.tolist(),
        "standard_error": spread.tolist(),
        "quantiles": list(QUANTILES),
        "drop_times": found.quantiles().tolist(),
        "drop_steps": (found.quantiles() / (2 * rate)).tolist(),
        "probability": probability,
        "scale": _scale(settings, found, end, probability),
        "heads": _alternatives(settings, "heads", _more_heads(settings), end),
        "rank": _alternatives(settings, "rank", _ranks(settings, len(left)), end),
    }


def check(settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """The probabilities of `plan`, measured: 200 starts are trained for the steps.

    - `settings`: as in `plan`.
    - `progress`: called with (done, total).
    """
    saves = {"save": "mixed:400", "record": ("loss",), "seeds": CHECKED}
    study = Study.of(dataclasses.replace(settings, **saves))
    runs, levels = study.run(progress), study.levels()
    middles = (levels[:-1] + levels[1:]) / 2
    came = np.isfinite(first_crossings(runs["time"].values, runs["loss"].values, middles))
    left = came.mean(axis=0)
    return {"runs": CHECKED, "left": left.tolist(),
            "standard_error": np.sqrt(left * (1 - left) / CHECKED).tolist()}  # fmt: skip


def _scale(settings: Settings, found: Law, end: float, probability: float) -> float | None:
    """The init scale at which all drops come in time with that probability.

    Dormant times go as 1/w, so that scale is w times the quantile over the budget; with merged key
    and query they go as ln(1/w), and it is searched.
    """
    if settings.model in SEPARATE:
        late = float(np.quantile(found.times[:, -1], probability, method="higher"))
        return settings.scale * late / end if np.isfinite(late) else None
    low, high = -12.0, 0.0  # decades
    for _ in range(8):
        middle = (low + high) / 2
        other = law(dataclasses.replace(settings, scale=10.0**middle), few=ROUGH)
        low, high = (low, middle) if other.left(end)[-1] >= probability else (middle, high)
    return None if high == 0.0 else 10.0**high


def _more_heads(settings: Settings) -> list[int]:
    counts = {settings.heads // 4, settings.heads // 2, *(settings.heads * k for k in (2, 4, 8))}
    return sorted(h for h in counts if 1 <= h <= MOST_HEADS)


def _ranks(settings: Settings, drops: int) -> list[int]:
    ranks = range(1, drops + 1) if settings.model in SEPARATE else ()
    return [r for r in ranks if r != settings.rank]


def _alternatives(settings: Settings, name: str, values: list[int], end: float) -> list[dict]:
    """The probability of all drops with other heads or ranks."""
    rows = []
    for value in values:
        other = law(dataclasses.replace(settings, **{name: value}), STARTS // 4, ROUGH)
        reached = int(np.isfinite(other.times).any(axis=0).sum())
        rows.append({name: value, "drops": reached, "all": float(other.left(end)[-1])})
    return rows
