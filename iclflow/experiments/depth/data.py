"""Several layers: least losses at finite size, the staircase of two, splitting, laws, other tests.

Everything is in the population. Losses of white layers are exact by recursions in fractions; runs
are gradient flow on the closed forms.
"""

from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.diagnosis.identify import identify
from iclflow.dynamics import Descent, Flow
from iclflow.experiments.runs import Variable, at, finished, named
from iclflow.losses import Population
from iclflow.losses.wishart import trace_moments
from iclflow.measures import first_crossings
from iclflow.models import Layers, Steps, draw_models
from iclflow.results.messages import Progress
from iclflow.runs.simulate import simulate
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory.depth import (
    best_tied,
    best_untied,
    layer_minima,
    limit_moments,
    plateau_table,
    step_algorithms,
    tied_curvature,
)
from iclflow.theory.predict import predict
from iclflow.theory.scaling import PowerLaw, fitted_exponent

DEEPEST = 6
SIZES, QUICK_SIZES = (4, 8, 16, 32, 64), (4, 8, 16, 32)  # D, at N = 2 D
RATIO = Fraction(1, 2)
SIZE, CONTEXT = 4, 31
CONTEXTS = (4, 8, 16, 31, 64, 128, 256)
TRAINED = (1, 2, 3, 4)  # layers that are trained to their end
RATE, TRAIN_STEPS = 0.1, 20_000  # of descent on white steps; t/τ = 2 η a step

CLOCK = {"long_name": r"training time $t/\tau$", "units": "1"}


def spread_marks(last: int, count: int) -> np.ndarray:
    """Steps from 0 to the last, evenly in the logarithm."""
    return np.unique(np.round(np.geomspace(1, last + 1, count)).astype(int)) - 1


def compute_losses(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Least losses per tr T of white layers, tied and untied: exact, limits, and trained."""
    report = progress or (lambda done, total: None)
    sizes, layers = (QUICK_SIZES if quick else SIZES), tuple(range(1, DEEPEST + 1))
    kinds = (best_tied, best_untied)

    def table(moments: list) -> list:
        return [[kind(m, count).loss for count in layers] for m in moments for kind in kinds]

    def exact(pairs: list[tuple[int, int]]) -> np.ndarray:
        found = table([trace_moments(d, n, 2 * DEEPEST) for d, n in pairs])
        return np.reshape(found, (len(pairs), 2, DEEPEST))

    limits = [limit_moments(Fraction(SIZE, n), 2 * DEEPEST) for n in CONTEXTS]
    other = limit_moments(RATIO / 2, 2 * DEEPEST)
    half = limit_moments(RATIO, 2 * DEEPEST)
    report(1, 3)
    variables: dict[str, Variable] = {
        "by_size": (
            ("size", "kind", "layers"), exact([(d, 2 * d) for d in sizes]), "exact, N = 2D",
        ),
        "by_size_limit": (("kind", "layers"), np.reshape(table([half]), (2, -1)), "limit, N = 2D"),
        "other_limit": (("kind", "layers"), np.reshape(table([other]), (2, -1)), "limit, N = 4D"),
        "by_context": (
            ("context", "kind", "layers"), exact([(SIZE, n) for n in CONTEXTS]), "exact, D = 4",
        ),
        "by_context_limit": (
            ("context", "kind", "layers"),
            np.reshape(table(limits), (len(CONTEXTS), 2, -1)),
            "limit, D = 4",
        ),
    }  # fmt: skip
    ends = [[_trained_end(count, tied) for count in TRAINED] for tied in (True, False)]
    variables["trained"] = (("kind", "trained_layers"), ends, "where training ends, D = 4, N = 31")
    report(3, 3)
    coordinates = {
        "size": list(sizes), "kind": ["tied", "untied"], "layers": list(layers),
        "context": list(CONTEXTS), "trained_layers": list(TRAINED),
    }  # fmt: skip
    settings = {"figure": "depth: losses", "quick": quick, "data": "population"}
    return finished(xr.Dataset(named(variables), coordinates), settings)


def _white() -> Task:
    return Task([1.0] * SIZE, CONTEXT, tasks=Normal(covariance=[1 / SIZE] * SIZE))


def _trained_end(layers: int, tied: bool) -> float:
    """The last loss of descent of white layers from random small steps."""
    init = Steps.initialiser(SIZE, layers=layers, tied=tied, shared=True, scale=0.1)
    run = simulate(
        Population(_white()), init(jax.random.key(0)), Descent(RATE), saveat=[0, TRAIN_STEPS]
    )
    return float(run.loss[-1])


STAIR_SPECTRUM, STAIR_CONTEXT, HEADS, SCALE = (0.6, 0.3), 15, 3, 0.05
SEEDS, QUICK_SEEDS = 20, 2
SHOWN_SEED = 0
STAIR_MARKS = 2_000
ACTIVE = 0.3  # |v| of an active head; those of idle ones are of the order of the init scale


def stair_task() -> Task:
    """Two inputs, so that two layers take four steps."""
    return Task(STAIR_SPECTRUM, STAIR_CONTEXT)


def compute_stairs(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Two layers of rank-one heads: the flow of many starts, and what theory says of each."""
    report = progress or (lambda done, total: None)
    seeds = QUICK_SEEDS if quick else SEEDS
    task, total = stair_task(), 2 * seeds + 1
    init = Layers.initialiser(task, layers=2, heads=HEADS, scale=SCALE)
    models, predictions = draw_models(init, range(seeds)), []
    for seed in range(seeds):
        predictions.append(predict(task, at(models, seed), probes=0))
        report(seed + 1, total)
    times = np.array([p.times for p in predictions])
    levels = np.array([p.levels for p in predictions])
    heads = np.array([p.heads for p in predictions])
    count = STAIR_MARKS
    early, late = 0.5 * times.min(), 1.2 * times.max()
    marks = np.concatenate([[0.0], np.geomspace(early, late, count - 1)])
    loss, sizes = np.empty((seeds, count)), np.empty((seeds, count, 2, HEADS))
    for seed in range(seeds):  # one after another: to compile a flow of all together takes longer
        flow, start = Flow(1e-6), at(models, seed)
        run = simulate(Population(task), start, flow, saveat=marks, record=("loss", "weights"))
        loss[seed] = np.asarray(run.loss)
        sizes[seed] = np.abs(np.asarray(run["weights"]["values"])).reshape(count, 2, HEADS)
        report(seeds + seed + 1, total)
    middles = (levels[:, :-1] + levels[:, 1:]) / 2
    simulated = [first_crossings(marks, row, m) for row, m in zip(loss, middles, strict=True)]
    active = np.sum(sizes > ACTIVE, axis=-1)
    drops = np.arange(times.shape[1])
    before, after = (np.concatenate([t, u], axis=1) for t, u in (
        (np.zeros((seeds, 1)), times), (times, np.full((seeds, 1), late))
    ))  # fmt: skip
    middle = np.clip(
        np.searchsorted(marks, np.sqrt(np.maximum(before, early) * after)), 0, count - 1
    )
    seed = np.arange(seeds)[:, None]
    report(total, total)
    variables: dict[str, Variable] = {
        "loss": (("seed", "time"), loss, "loss"),
        "active": (("seed", "time", "layer"), active, "active heads of each layer"),
        "drop_time": (("seed", "drop_number"), simulated, "t/τ of the drops"),
        "predicted_time": (("seed", "drop_number"), times, "t/τ predicted from the start"),
        "levels": (("seed", "level"), levels, "predicted levels"),
        "plateau_active": (("seed", "level", "layer"), active[seed, middle], "heads active there"),
        "predicted_layer": (("seed", "drop_number"), heads // HEADS, "layer of each drop"),
        "table": (("rank_0", "rank_1"), plateau_table(task), "L*(r0, r1) (D20)"),
    }
    coordinates = {
        "seed": np.arange(seeds), "drop_number": drops + 1,
        "time": ("time", marks, {"long_name": r"training time $t/\tau$", "units": "1"}),
    }  # fmt: skip
    settings = {
        "figure": "depth: staircase", "quick": quick, "data": "population", "heads": HEADS,
        "scale": SCALE, "context": STAIR_CONTEXT, "shown_seed": SHOWN_SEED,
    }  # fmt: skip
    return finished(xr.Dataset(named(variables), coordinates), settings)


SPLITS, QUICK_SPLITS = 6, 3
APART = 1e-3  # of the first steps, g ± δ around the best tied step
SPLIT_MARKS, SPLIT_STEPS, SPLIT_RATE = 400, 12_000, 0.01


def compute_splitting(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Two white layers: tied, almost equal, and from random steps."""
    report = progress or (lambda done, total: None)
    task, moments = _white(), trace_moments(SIZE, CONTEXT, 4)
    tied, untied = best_tied(moments, 2), best_untied(moments, 2)
    marks = spread_marks(SPLIT_STEPS, SPLIT_MARKS)
    descent, population = Descent(SPLIT_RATE), Population(task)

    def run(steps: list[float], *, shared: bool) -> tuple[np.ndarray, np.ndarray]:
        """The loss and the steps over time."""
        stack = Steps(steps=jnp.asarray(steps)[:, None], size=SIZE, layers=2, tied=shared)
        found = simulate(population, stack, descent, saveat=marks, record=("loss", "weights"))
        return np.asarray(found.loss), np.asarray(found["weights"]["steps"])[..., 0]

    start = tied.steps[0]
    near_loss, near_steps = run([start + APART, start - APART], shared=False)
    seeds = QUICK_SPLITS if quick else SPLITS
    rng = np.random.default_rng(0)
    starts = 0.3 * np.abs(rng.normal(size=(seeds, 2)))
    spread = [run(row.tolist(), shared=False) for row in starts]
    looped_loss, looped_step = run([0.05], shared=True)
    report(1, 1)
    variables: dict[str, Variable] = {
        "near_loss": (("time",), near_loss, "loss, almost equal layers"),
        "near_steps": (("time", "layer"), near_steps, "steps, almost equal layers"),
        "random_loss": (("seed", "time"), [loss for loss, _ in spread], "loss, random layers"),
        "random_steps": (("seed", "time", "layer"), [s for _, s in spread], "steps, random"),
        "tied_loss": (("time",), looped_loss, "loss, tied layers"),
        "tied_step": (("time",), looped_step[:, 0], "step, tied layers"),
        "best_tied": ((), tied.loss, "least tied loss (D6)"),
        "best_untied": ((), untied.loss, "least untied loss (D8)"),
        "best_steps": (("layer",), untied.steps, "steps (D8)"),
        "rate": ((), -tied_curvature(SIZE, CONTEXT) / 4, "growth rate of the splitting"),
    }
    coordinates = {
        "seed": np.arange(seeds),
        "time": ("time", 2 * SPLIT_RATE * marks, CLOCK),
    }
    settings = {"figure": "depth: splitting", "quick": quick, "data": "population", "apart": APART}
    return finished(xr.Dataset(named(variables), coordinates), settings)


PAIRS = ((1.5, 0.75), (1.0, 1.5), (2.0, 0.5))  # (ν, β)
LAWS = ("time", "time, 3 factors", "time, 5 factors", "depth", "time, Γ trained")
MODES, QUICK_MODES = 100_000, 20_000
# In the context length, where β = 2 is a border. Losses are sampled with few modes, and their
# limit of large N and K is also known for many.
CONTEXT_PAIRS = (*PAIRS, (1.5, 1.5), (1.5, 2.5))
DRAWS, QUICK_DRAWS = 40, 10
CONTEXT_MODES, LONG_MODES = 1000, 1_000_000
LAW_CONTEXTS = (4, 8, 16, 32, 64)
LONG_CONTEXTS = np.geomspace(4, 4096, 11)
LONG_FROM = 500.0  # where the exponent of the limit is fitted


def compute_laws(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Exponents of the loss of deep layers in time, depth and context, for power-law spectra."""
    report, total = progress or (lambda done, total: None), len(PAIRS) + len(CONTEXT_PAIRS)
    modes = QUICK_MODES if quick else MODES
    end = 1e5 if quick else 1e6
    times, long = np.geomspace(1e3, end, 31), np.geomspace(1e2, end, 41)
    depths = np.round(np.geomspace(16, 256 if quick else 1024, 13))
    theory, measured, errors, curves, saturated = [], [], [], [], []
    for number, pair in enumerate(PAIRS):
        law = PowerLaw(*pair, modes)
        found = (
            (times, law.over_time(times, np.inf)),
            (times, law.over_time(times, np.inf, 3)),
            (times, law.over_time(times, np.inf, 5)),
            (depths, np.array([law.least(depth) for depth in depths])),
            (long, law.fixed_over_time(long)),
        )
        fits = [fitted_exponent(x, y) for x, y in found]
        theory.append([
            law.time_exponent, law.factor_exponent(3), law.factor_exponent(5), law.depth_exponent,
            law.fixed_exponent,
        ])  # fmt: skip
        measured.append([slope for slope, _ in fits])
        errors.append([error for _, error in fits])
        curves.append(
            [np.interp(np.linspace(0, 1, 31), np.linspace(0, 1, len(x)), y) for x, y in found]
        )
        saturated.append(law.over_time(np.array([0.0, 1e2, 1e4]), 1.0)[1:])
        report(number + 1, total)
    variables: dict[str, Variable] = {
        "theory": (("pair", "law"), theory, "exponent of the theory"),
        "measured": (("pair", "law"), measured, "exponent of a fit"),
        "error": (("pair", "law"), errors, "half the difference of the fit's two halves"),
        "curve": (("pair", "law", "point"), curves, "loss along the range of the fit"),
        "one_layer": (("pair", "moment"), saturated, "one layer γ I at t/τ = 1e2 and 1e4"),
        **_over_context(QUICK_DRAWS if quick else DRAWS, lambda n: report(len(PAIRS) + n, total)),
    }
    coordinates = {
        "pair": [_named(pair) for pair in PAIRS], "law": list(LAWS),
        "context_pair": [_named(pair) for pair in CONTEXT_PAIRS],
        "decay": ("context_pair", [decay for decay, _ in CONTEXT_PAIRS]),
        "source": ("context_pair", [source for _, source in CONTEXT_PAIRS]),
        "over_time": times, "over_depth": depths, "context": list(LAW_CONTEXTS),
        "long_context": LONG_CONTEXTS,
    }  # fmt: skip
    settings = {
        "figure": "depth: exponents", "quick": quick, "data": "population", "modes": modes,
        "context_modes": CONTEXT_MODES, "long_modes": LONG_MODES,
    }  # fmt: skip
    return finished(xr.Dataset(named(variables), coordinates), settings)


def _named(pair: tuple[float, float]) -> str:
    return f"{pair[0]:g}, {pair[1]:g}"


def _over_context(draws: int, report: Callable[[int], None]) -> dict[str, Variable]:
    """Sampled losses in the context length, their limit, and the exponent of that far out."""
    rng = np.random.default_rng(0)
    sampled, limits, far, theory = [], [], [], []
    for number, pair in enumerate(CONTEXT_PAIRS):
        law = PowerLaw(*pair, CONTEXT_MODES)
        normals = ((rng.normal(size=(law.modes, n)) for _ in range(draws)) for n in LAW_CONTEXTS)
        sampled.append([[law.in_context(one) for one in some] for some in normals])
        limits.append(law.context_limit(np.array(LAW_CONTEXTS)))
        far.append(PowerLaw(*pair, LONG_MODES).context_limit(LONG_CONTEXTS))
        theory.append(law.context_exponent)
        report(number + 1)
    late = LONG_CONTEXTS > LONG_FROM
    fits = np.array([fitted_exponent(LONG_CONTEXTS[late], row[late]) for row in far])
    losses, pairs = np.array(sampled), ("context_pair",)
    return {
        "context_loss": ((*pairs, "context"), losses.mean(axis=-1), "mean loss over contexts"),
        "context_error": (
            (*pairs, "context"), losses.std(axis=-1, ddof=1) / np.sqrt(draws), "its standard error",
        ),
        "context_limit": ((*pairs, "context"), limits, "deterministic equivalent, as many modes"),
        "long_limit": ((*pairs, "long_context"), far, "the same with a million modes"),
        "long_measured": (pairs, fits[:, 0], "exponent of its fit at long contexts"),
        "long_error": (pairs, fits[:, 1], "half the difference of the fit's two halves"),
        "long_theory": (pairs, theory, "exponent of the theory, -ν min(β, 2)"),
    }  # fmt: skip


SPECTRUM = (0.4, 0.3, 0.2, 0.1)
TESTS = {
    "as trained": SPECTRUM,
    "(.35, .3, .2, .15)": (0.35, 0.3, 0.2, 0.15),
    "white": (0.25,) * 4,
    "reversed": SPECTRUM[::-1],
}
REFERENCE = {  # (D16) at the minima, per test: one layer, large step first, small step first
    "(.35, .3, .2, .15)": (0.1593, 0.0459, 0.0416),
    "white": (0.461, 1.064, 0.936),
    "reversed": (2.11, 22.1, 20.5),
}
SHIFT_MARKS, SHIFT_STEPS, SHIFT_RATE = 300, 60_000, 2.0


def compute_shift(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Losses on other covariances along the training of one and of two layers."""
    report = progress or (lambda done, total: None)
    task = Task(SPECTRUM, CONTEXT)
    tests = {name: Task(spectrum, CONTEXT) for name, spectrum in TESTS.items()}
    marks = spread_marks(SHIFT_STEPS, SHIFT_MARKS)
    minima = layer_minima(task)
    ends = [np.array([np.diagonal(m) for m in layers]) for _, layers in minima]
    starts = [np.full((1, 4), 1e-2), *(1e-2 * end for end in ends)]
    runs = []
    for number, rows in enumerate(starts):
        stack = Steps(steps=jnp.asarray(rows), size=4, layers=len(rows))
        runs.append(
            simulate(
                Population(task), stack, Descent(SHIFT_RATE), saveat=marks,
                record=("loss", "weights"), test=tests,
            )
        )  # fmt: skip
        report(number + 1, len(starts) + 1)
    some = np.arange(0, len(marks), 6)
    steps = jnp.asarray(runs[1]["weights"]["steps"])[some]
    stacked = jax.vmap(lambda rows: Steps(steps=rows, size=4, layers=2))(steps)
    found = identify(stacked, task, among=step_algorithms(task), sequences=500)
    report(len(starts) + 1, len(starts) + 1)
    variables: dict[str, Variable] = {
        "loss": (("run", "time"), [run.loss for run in runs], "training loss"),
        "test_loss": (
            ("run", "time", "test"), [run["test_loss"] for run in runs],
            "loss on other covariances",
        ),
        "distance": (
            ("some", "algorithm"), found["distance"].values, "distance to k preconditioned steps",
        ),
        "reference": (("run", "test"), np.array([
            [np.nan, *(REFERENCE[name][i] for name in list(TESTS)[1:])] for i in range(3)
        ]), "loss at the minima"),
    }  # fmt: skip
    coordinates = {
        "run": ["one layer", "two, large step first", "two, small step first"],
        "test": list(TESTS),
        "some": ("some", 2 * SHIFT_RATE * marks[some], CLOCK),
        "algorithm": list(found["candidate"].values),
        "time": ("time", 2 * SHIFT_RATE * marks, CLOCK),
    }
    settings = {"figure": "depth: other covariances", "quick": quick, "data": "population"}
    return finished(xr.Dataset(named(variables), coordinates), settings)
