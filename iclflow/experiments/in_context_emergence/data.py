"""In-context learning emerges in attention-only transformers of two and more layers (Figs 5, 6).

Figure numbers are those of Mainali & Teixeira (2025). Two corpora: repeated tokens, where the
period is drawn for each sequence, for the figures' depths; and Markov chains, each with its own
transition probabilities, where the best possible loss is known, for one and two layers.

What the weights do around the emergence depends on how long and at which rate one trains, so every
depth is trained by several courses: the rate stays, or falls to zero as a cosine, over some
multiples of the steps that the emergence takes. One more course repeats the usual one on text in
which there is nothing to copy.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.dynamics import Adam, Descent
from iclflow.dynamics.base import log_steps
from iclflow.experiments.runs import Variable, finished, named, train
from iclflow.measures import find_stages
from iclflow.measures.subspace import consecutive_distances, log_intervals
from iclflow.results.messages import Progress
from iclflow.runs.compute import final_models
from iclflow.runs.folder import own_folder
from iclflow.transformers import (
    CIRCUITS,
    AbstractCorpus,
    AttentionOnly,
    AttentionOnlyInitialiser,
    FreshTokens,
    Markov,
    NextToken,
    Repeated,
    distances_to_end,
    effective_ranks,
    in_context_score,
    late_loss,
    prefix_matching,
    repeated_accuracy,
    spectrum,
)

WEIGHT_DECAY = 0.01
RANK = 8  # leading right singular vectors that make the subspaces
LEARNED = 0.25  # of ln V: a late loss below this is in-context learning
WARMUP = 0.1  # of the emergence: how long the rate rises
MARKOV_TOKENS, MARKOV_CONCENTRATION = 8, 0.5
EVALUATION_KEY, TRAINING_KEY = 2**20, 2**20 + 1  # beside the seeds of the weights


@dataclasses.dataclass(frozen=True)
class TrainingCourse:
    """How one trains: how long, whether the rate falls, and on which text.

    - `multiple`: the length, in multiples of the emergence.
    - `cosine`: whether the rate falls to zero as a cosine; otherwise it stays where it is after
      the warm-up.
    - `shuffled`: whether there is nothing to copy in the text.
    """

    multiple: int
    cosine: bool
    shuffled: bool = False

    @property
    def name(self) -> str:
        """As the data and the figures call it."""
        text = ", nothing to copy" if self.shuffled else ""
        return f"{'cosine' if self.cosine else 'constant'}, {self.multiple} times{text}"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the models and of their training.

    - `emergence`: the steps after which in-context learning has emerged at a constant rate. It was
      read off seeds that take no part in the claims, and so were the lengths and the warm-up.
    - `usual`: the course of the claims: the multiple of the emergence that a cosine ends at.
    - `courses`: all of them.
    - `seeds`: those of the weights and of the text.
    - `few`: how many train in one batch; a course of more than `long` steps takes only so many.
    - `marks`: save points of a run, evenly in the logarithm.
    - `sequences`: kept for evaluation.
    """

    vocabulary: int
    context: int
    width: int
    heads: int
    batch: int
    emergence: int
    usual: int
    courses: tuple[TrainingCourse, ...]
    markov_steps: int
    rate: float
    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    few: int
    marks: int
    sequences: int
    long: int = 5_000

    def steps(self, course: TrainingCourse) -> int:
        """How long a course lasts."""
        return course.multiple * self.emergence

    def seeds_of(self, course: TrainingCourse) -> tuple[int, ...]:
        """The seeds that a course is trained with."""
        return self.seeds[: self.few] if self.steps(course) > self.long else self.seeds


def _both(*multiples: int, shuffled: bool = False) -> list[TrainingCourse]:
    """Both schedules at every length."""
    pairs = itertools.product(multiples, (True, False))
    return [TrainingCourse(multiple, cosine, shuffled) for multiple, cosine in pairs]


FULL = Sizes(
    64, 64, 128, 4, 64, 320, 4, (*_both(2, 4, 60), *_both(4, shuffled=True)), 5_000, 1e-3,
    (1, 2, 3, 4), tuple(range(2, 10)), 4, 60, 256,
)  # fmt: skip
QUICK = Sizes(
    32, 32, 64, 4, 32, 290, 2, (*_both(2), *_both(2, shuffled=True)), 600, 2e-3,
    (1, 2), (2, 3), 2, 40, 128,
)  # fmt: skip


class _Rate(eqx.Module):
    """The rate of every step: a linear rise, and then a constant or a cosine to zero.

    Its numbers are arrays, so that both kinds are one program and train in one batch.
    """

    peak: Float[Array, ""]
    warmup: Float[Array, ""]
    steps: Float[Array, ""]
    falls: Float[Array, ""]  # 1, or 0 for a constant rate

    @classmethod
    def of(cls, preset: Sizes, course: TrainingCourse) -> "_Rate":
        numbers = (preset.rate, WARMUP * preset.emergence, preset.steps(course), course.cosine)
        return cls(*(jnp.asarray(number, jnp.float32) for number in numbers))

    def __call__(self, step: Any) -> Array:
        rise = jnp.minimum(1.0, (step + 1) / self.warmup)
        way = jnp.clip((step - self.warmup) / (self.steps - self.warmup), 0, 1)
        return self.peak * rise * (1 - self.falls * 0.5 * (1 - jnp.cos(jnp.pi * way)))


def compute(
    *, quick: bool = False, progress: Progress | None = None, folder: Path | str | None = None
) -> xr.Dataset:
    """Losses, scores and circuits of every depth and course over training; goes on in `folder`."""
    return train_courses(QUICK if quick else FULL, progress, folder, quick=quick)


def train_courses(
    preset: Sizes,
    progress: Progress | None = None,
    folder: Path | str | None = None,
    *,
    quick: bool = False,
) -> xr.Dataset:
    """The same with sizes of one's own.

    - `preset`: what is trained.
    - `progress`: called with work done and all work, in steps of layers.
    - `folder`: where checkpoints are kept, to go on from them.
    - `quick`: said in the attributes.
    """
    folder = own_folder(folder, __name__, preset)
    jobs = _jobs(preset)
    chains = Markov(MARKOV_TOKENS, preset.context, MARKOV_CONCENTRATION)
    markov = [_Job(preset, n, preset.seeds[: preset.few], chains=chains) for n in (1, 2)]
    work = [job.work for job in (*jobs, *markov)]
    done: list[xr.Dataset] = []
    for i, job in enumerate((*jobs, *markov)):
        report = _part(progress, sum(work[:i]), work[i], sum(work))
        done.append(job.train(None if folder is None else folder / job.name, report))
    trained = done[: len(jobs)]
    data = xr.merge(trained, join="outer", compat="no_conflicts")
    names = [course.name for course in preset.courses]
    data = data.sel(course=names, layers=list(preset.layers), seed=list(preset.seeds))
    marks = [_marks(preset, preset.steps(course)) for course in preset.courses]
    data = data.assign_coords(
        step=(("course", "mark"), np.stack(marks), {"long_name": "training steps", "units": "1"}),
        multiple=("course", [course.multiple for course in preset.courses]),
        schedule=("course", ["cosine" if c.cosine else "constant" for c in preset.courses]),
        circuit=list(CIRCUITS),
    )
    data = data.merge(_markov_data(chains, preset, done[len(jobs) :]))
    about = "steps in which the in-context score drops"
    window = _windows(data.assign_attrs(vocabulary=preset.vocabulary))
    data = data.assign(named({"window": (("layers", "course", "seed", "edge"), window, about)}))
    usual = data.sel(course=TrainingCourse(preset.usual, cosine=True).name, drop=True)
    live = usual[["late_loss", "accuracy"]].rename(mark="usual_mark")
    data = data.assign({f"usual_{name}": values for name, values in live.items()})
    data = data.assign_coords(usual_step=("usual_mark", usual["step"].values))
    plain = {k: v for k, v in dataclasses.asdict(preset).items() if k not in ("courses", "seeds")}
    settings = {
        **plain, "weight_decay": WEIGHT_DECAY, "rank": RANK, "learned": LEARNED,
        "warmup": WARMUP, "markov_tokens": MARKOV_TOKENS,
        "markov_concentration": MARKOV_CONCENTRATION, "optimiser": "AdamW", "quick": quick,
        "seeds": ", ".join(map(str, preset.seeds)), "layers": ", ".join(map(str, preset.layers)),
        **_names(preset),
    }  # fmt: skip
    return finished(data, settings)


def _names(preset: Sizes) -> dict[str, str]:
    """What the claims call some of the courses: the usual one, and what it is held against."""
    longest = max(course.multiple for course in preset.courses)
    return {
        "usual": TrainingCourse(preset.usual, cosine=True).name,
        "steady": TrainingCourse(preset.usual, cosine=False).name,
        "long": TrainingCourse(longest, cosine=False).name,
        "usual_without": TrainingCourse(preset.usual, cosine=True, shuffled=True).name,
        "steady_without": TrainingCourse(preset.usual, cosine=False, shuffled=True).name,
        "short": TrainingCourse(min(c.multiple for c in preset.courses), cosine=True).name,
    }


def _jobs(preset: Sizes) -> list["_Job"]:
    """What is trained, depth by depth, in batches of the same size, which share their programs."""
    texts: dict[tuple[int, bool], list[TrainingCourse]] = {}
    for course in preset.courses:
        texts.setdefault((course.multiple, course.shuffled), []).append(course)
    found = []
    for layers, courses in itertools.product(preset.layers, texts.values()):
        seeds = preset.seeds_of(courses[0])
        parts = [seeds[i : i + preset.few] for i in range(0, len(seeds), preset.few)]
        found += [_Job(preset, layers, part, courses) for part in parts]
    return found


def _marks(preset: Sizes, steps: int) -> np.ndarray:
    """As many distinct steps for every length, 0 and the last among them."""
    count = preset.marks
    while len(found := log_steps(steps, count)) < min(preset.marks, steps + 1):
        count += 1
    return found


def _part(
    progress: Progress | None, before: float, work: float, total: float
) -> Callable[[float, float], None] | None:
    if progress is None:
        return None
    return lambda done, steps: progress(before + work * done / steps, total)


@dataclasses.dataclass(frozen=True)
class _Job:
    """One batch: some seeds of one depth, by courses of one length on one text, or on chains."""

    preset: Sizes
    layers: int
    seeds: tuple[int, ...]
    courses: Sequence[TrainingCourse] = ()
    chains: AbstractCorpus | None = None

    @property
    def name(self) -> str:
        """The folder of its checkpoints."""
        if self.chains is not None:
            return f"markov-{self.layers}"
        text = "shuffled" if self.courses[0].shuffled else "repeated"
        return f"{text}-{self.layers}-{self.steps}-{self.seeds[0]}"

    @property
    def steps(self) -> int:
        """How long it trains."""
        return self.preset.steps(self.courses[0]) if self.courses else self.preset.markov_steps

    @property
    def work(self) -> float:
        """Steps, times the layers and what is around them, times the runs."""
        return (self.layers + 1) * self.steps * len(self.seeds) * max(1, len(self.courses))

    def train(self, folder: Path | None, progress: Callable[[float, float], None] | None) -> Any:
        """What is kept of its runs."""
        preset, text = self.preset, self.chains
        if text is None:
            shuffled = jnp.asarray(self.courses[0].shuffled)
            text = Repeated(preset.vocabulary, preset.context, shuffled=shuffled)
        init = AttentionOnlyInitialiser(
            text.vocabulary, text.context, self.layers, preset.width, preset.heads
        )
        evaluation = NextToken.sample(text, preset.sequences, jax.random.key(EVALUATION_KEY))
        optimiser = Adam(weight_decay=WEIGHT_DECAY)
        options: dict[str, Any] = {
            "saveat": _marks(preset, self.steps), "seeds": self.seeds, "progress": progress,
            "key": jax.random.key(TRAINING_KEY), "store": folder,
        }  # fmt: skip
        loss = FreshTokens(text, evaluation, preset.batch)
        if not self.courses:
            return train(
                loss, init, Descent(preset.rate, optimiser), record={"measures": _losses}, **options
            )
        rates = {course.name: _Rate.of(preset, course) for course in self.courses}
        runs = train(
            loss, init, Descent(preset.rate, optimiser), axes={"rate": rates},
            record={"measures": _measures}, final=["weights"], **options,
        )  # fmt: skip
        return _kept(
            runs, init, max(preset.layers), options["saveat"], copies=not self.courses[0].shuffled
        )


def _losses(model: AttentionOnly, loss: FreshTokens) -> dict[str, Array]:
    return {"position_loss": jnp.mean(loss.evaluation.by_position(model)[0], axis=0)}


def _measures(model: AttentionOnly, loss: FreshTokens) -> dict[str, Any]:
    tokens = loss.evaluation.tokens
    losses, correct = loss.evaluation.by_position(model)
    return {
        "spectrum": spectrum(model, RANK),
        "position_loss": jnp.mean(losses, axis=0),
        "accuracy": repeated_accuracy(correct, tokens),
        "prefix_matching": prefix_matching(model, tokens),
    }


RUN = ("course", "seed", "mark")
ABOUT = {
    "late_loss": "loss in the last quarter of the context",
    "in_context_score": "loss late minus loss early",
    "accuracy": "accuracy where the segment has been seen",
    "prefix_matching": "prefix-matching score",
    "effective_rank": "effective rank (15), mean over heads",
    "subspace_distance": "subspace distance (16) to the end, mean over heads",
    "subspace_speed": "subspace speed per unit of ln(step), mean over heads",
}


def _kept(
    runs: xr.Dataset,
    init: AttentionOnlyInitialiser,
    layers: int,
    steps: np.ndarray,
    *,
    copies: bool,
) -> xr.Dataset:
    """What the figures and the claims need of the runs of one batch, by course.

    - `runs`: what `sweep` returned, with the courses as its axis `rate`.
    - `init`: the initialiser of the runs.
    - `layers`: how many layers the deepest model has; scores of layers that there are not are NaN.
    - `steps`: the save points.
    - `copies`: whether there was something to copy.
    """
    runs = runs.rename(rate="course")
    losses = runs["position_loss"].values
    measures = [_circuits(runs.isel(course=i), init, steps) for i in range(runs.sizes["course"])]
    ranks, distances, speeds = (np.stack(found) for found in zip(*measures, strict=True))
    values: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        "late_loss": (RUN, np.asarray(late_loss(jnp.asarray(losses)))),
        "in_context_score": (RUN, np.asarray(in_context_score(jnp.asarray(losses)))),
        "effective_rank": ((*RUN, "circuit"), ranks),
        "subspace_distance": ((*RUN, "circuit"), distances),
        "subspace_speed": ((*RUN, "circuit"), speeds),
    }
    # Shuffled text has no period: nothing comes back, and nothing can be matched.
    scores = np.full((*losses.shape[:3], layers, init.heads), np.nan)
    scores[..., : init.layers, :] = runs["prefix_matching"].values if copies else np.nan
    values["prefix_matching"] = ((*RUN, "layer", "head"), scores)
    values["accuracy"] = (RUN, runs["accuracy"].values if copies else scores[..., 0, 0] * np.nan)
    variables = {name: (*found, ABOUT[name]) for name, found in values.items()}
    labels = {"course": runs["course"], "seed": runs["seed"]}
    return xr.Dataset(named(variables), labels).expand_dims(layers=[init.layers])


def _circuits(runs: xr.Dataset, init: AttentionOnlyInitialiser, steps: np.ndarray) -> list[Any]:
    """Effective ranks, distances to the end and speeds, [seed, mark, circuit]: means over heads."""
    values, basis = (runs[f"spectrum.{name}"].values for name in ("values", "basis"))
    variables = {str(name): variable for name, variable in runs.items()}
    final = final_models(variables, init)
    by_layer = lambda model: (model.query, model.key, model.value, model.output)  # noqa: E731
    each = []
    for layer in range(init.layers):  # by itself, so that all depths share one compiled program
        one = eqx.tree_at(by_layer, final, replace_fn=lambda a, n=layer: np.asarray(a)[:, [n]])
        each.append(
            _circuit_measures(values[..., [layer], :, :], basis[..., [layer], :, :, :], one)
        )
    found = (np.concatenate(parts, axis=-2) for parts in zip(*each, strict=True))
    ranks, distances, moved = (part.mean(axis=(-2, -1)) for part in found)
    speeds = np.full_like(ranks, np.nan)  # the first has no checkpoint before it
    speeds[:, 1:] = moved / log_intervals(steps.astype(float))[:, None]
    return [ranks, distances, speeds]


@eqx.filter_jit
def _circuit_measures(values: Any, basis: Any, models: Any) -> tuple[Array, Array, Array]:
    """Ranks and distances, to the end and to the save point before, [seed, mark, circuit, …]."""
    moved = consecutive_distances
    for _ in range(3):  # heads, layers and circuits are beside the time
        moved = jax.vmap(moved, 1, 1)
    distances = eqx.filter_vmap(distances_to_end)(basis, models)
    return effective_ranks(values), distances, jax.vmap(moved)(basis)


def _markov_data(corpus: Markov, preset: Sizes, runs: Sequence[xr.Dataset]) -> xr.Dataset:
    """Losses of one and two layers on Markov chains, and what could be had from the same text."""
    losses = np.stack([run["position_loss"].values for run in runs])
    tokens = NextToken.sample(corpus, preset.sequences, jax.random.key(EVALUATION_KEY)).tokens
    read = np.asarray(tokens)
    dims = ("markov_layers", "markov_seed")
    variables: dict[str, Variable] = {
        "markov_late_loss": (
            dims, np.asarray(late_loss(jnp.asarray(losses[:, :, -1]))), "loss, last quarter"
        ),
        "markov_loss": ((*dims, "position"), losses[:, :, -1], "loss after training"),
        "markov_optimal": (
            ("position",), corpus.optimal_losses(read), "loss of the Bayes-optimal predictor"
        ),
        "markov_unigram": (
            ("position",), corpus.unigram_losses(read), "loss of token frequencies"
        ),
    }  # fmt: skip
    return xr.Dataset(named(variables), {"markov_layers": [1, 2]})


def _windows(data: xr.Dataset) -> np.ndarray:
    """The steps in which in-context learning emerges, [layers, course, seed, edge].

    NaN where the late loss ends above `LEARNED`, or the score has no drop.
    """
    late, score = data["late_loss"], data["in_context_score"]
    learned = late.isel(mark=-1) < LEARNED * np.log(data.attrs["vocabulary"])
    window = np.full((*learned.shape, 2), np.nan)
    for index in zip(*np.nonzero(learned.values), strict=True):
        steps = data["step"].isel(course=index[1]).values
        window[index] = emergence_window(steps, score.values[index])
    return window


def emergence_window(steps: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """Where the largest drop found by the stage detector is 10% and 90% done; NaN without one.

    Of the in-context score rather than of the loss, which also falls by what needs no context.
    """
    drops = find_stages(steps, score, resamples=0).drops
    if not drops:
        return float("nan"), float("nan")
    largest = max(drops, key=lambda drop: drop.size)
    return largest.start, largest.end
