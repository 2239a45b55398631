"""The claims about the staircase of rank-one attention, from the data of Figs 3 and 7."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, level_tolerance, near
from iclflow.experiments.four_inputs import label_deviation
from iclflow.theory.drops.one_drop import logistic_strength
from iclflow.theory.drops.scalar_ode import X_MID

SHOWN = (0.15, 0.95)  # of its final value: where a value weight is compared with (26)


def _of(data: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    """The runs on P sequences, and the same starts in the population."""
    sampled, exact = (data.sel(source=name, drop=True) for name in ("sequences", "population"))
    return sampled, exact


def claims(data: xr.Dataset) -> list[Claim]:
    """All of them."""
    return [*_function_claims(data), *_weight_claims(data), *_time_claims(data)]


def _function_claims(data: xr.Dataset) -> list[Claim]:
    levels, size = data["levels"].values, data.sizes["component"]
    sequences, scale = int(data.attrs["sequences"]), float(data.attrs["scale"])
    own, population = _of(data)
    sampled, exact = (np.abs(r["plateau_loss"].values - levels).max() for r in (own, population))
    drift, times = data["conserved_drift"].values, own["drop_time"].values
    finished = np.isfinite(times).all(axis=1)
    inside = times[:, -1] <= 2 * data.attrs["rate"] * data.attrs["window"]
    return [
        below(
            "separate-equals-convolution",
            "Rank-one attention and the three-layer convolutional network train alike",
            "Sec. 4.1, Fig. 2",
            float(np.abs(data["check_attention"] - data["check_convolution"]).max()), 1e-12,
            "rounding; the two are computed by different code, on prompts",
        ),
        near(
            "separate-d-drops",
            "Separate rank-one attention drops D times: share of seeds with D detected drops",
            "Sec. 4.3, Fig. 3a", 1.0, float(np.mean(data["drop_count"].values == size)), 0.05,
            "a count, by the detector of stages; one seed in twenty may join two drops",
            f"{int(finished.sum())} of {finished.size} seeds finish in the run, "
            f"{int(inside.sum())} in the paper's window of {int(data.attrs['window']):,} steps",
        ),
        below(
            "plateau-levels", "The loss on plateau m is L(M_m)", "(24)", float(sampled),
            level_tolerance(levels, label_deviation(sequences)),
            "three standard errors of a mean of P squared labels, at most half the smallest step",
            f"in the population, where only the size of the start matters: {exact:.1g}",
        ),
        below(
            "plateau-levels-population", "The loss on plateau m is L(M_m), without sampling noise",
            "(24)", float(exact), scale**2,
            "heads of size w that are still small add terms of their size squared to the loss",
            population=True,
        ),
        below(
            "principal-component-regression",
            "On plateau m attention does principal component regression with m components", "(27)",
            float(_regression_distance(data)[:, 1:].max()), 2 * scale,
            "each learned direction is off by the size w of the start; twice that",
            "largest relative distance between predictors in the population, all m and seeds; "
            f"median {float(np.median(_regression_distance(data)[:, 1:])):.2g}", population=True,
        ),
        below(
            "zero-blocks-population",
            "The blocks that the reduced model leaves out stay zero in the population", "App. E.1",
            float(population["blocks"].max()), 1e-12, "rounding",
            f"on P = {sequences:,} sequences they grow to "
            f"{float(own['blocks'].isel(time=-1).max()):.2g}", population=True,
        ),
        near(
            "separate-conserved",
            "‖k‖² - ‖q‖² and ‖k‖² - v² are conserved: drift in descent over drift at half the rate",
            "(79)", 2.0, float(drift[0] / drift[1]), 0.2,
            "conserved by the flow, they drift in proportion to the rate of descent; corrections "
            "are of relative order rate times curvature, about a tenth",
            f"largest drift over all heads at the figure's rate {drift[0]:.2g}, beside weights of "
            f"squared size {float(data['value_limit'].max()) ** 2:.2g}", population=True,
        ),
    ]  # fmt: skip


def _regression_distance(data: xr.Dataset) -> np.ndarray:
    """|B^(1/2) (M - M_m) Λ^(1/2)| over that of M_m, for every seed and level."""
    basis, limit = data["eigenvectors"].values, data["value_limit"].values ** 3
    weight = data["curvature"].values  # λ a: the loss's weight on a diagonal entry
    b = weight / data["eigenvalues"].values
    _, population = _of(data)
    turned = np.einsum("dk,smdc,cl->smkl", basis, population["plateau_effective"].values, basis)
    metric = b[:, None] * data["eigenvalues"].values[None, :]
    learned = np.tril(np.ones((len(limit) + 1, len(limit))), -1)  # plateau m has modes < m
    target = learned[:, :, None] * np.diag(limit)[None]
    square = np.sum(metric * (turned - target) ** 2, axis=(2, 3))
    size = np.sum(metric * target**2, axis=(1, 2))
    return np.sqrt(square / np.maximum(size, size[1]))  # plateau 0 over the first step


def _alignment(data: xr.Dataset, name: str) -> np.ndarray:
    """|cos| between each learned head and its eigenvector, [seed, plateau, mode]; NaN if later."""
    _, population = _of(data)
    vectors, heads = population[f"plateau_{name}"].values, population["drop_head"].values
    chosen = np.take_along_axis(vectors, heads[:, None, :, None], axis=2)
    along = np.einsum("smkd,dk->smk", chosen, data["eigenvectors"].values)
    cosine = np.abs(along) / np.linalg.norm(chosen, axis=-1)
    count = heads.shape[1]
    later = np.arange(count)[None, None, :] >= np.arange(count + 1)[None, :, None]
    return np.where(later, np.nan, cosine)


def _order(runs: xr.Dataset) -> float:
    """The share of drops m made by a head whose key then is nearest to eigenvector m."""
    heads = runs["drop_head"].values
    after = runs["plateau_keys"].values[:, 1:]  # [seed, drop, head, row]
    keys = np.take_along_axis(after, heads[:, :, None, None], axis=2)[:, :, 0]
    along = np.abs(np.einsum("skd,de->ske", keys, runs["eigenvectors"].values))
    return float(np.mean(np.argmax(along, axis=2) == np.arange(heads.shape[1])[None, :]))


def _value_errors(data: xr.Dataset) -> np.ndarray:
    """Largest |v - v(26)|/v* through each drop, [seed, component]."""
    _, population = _of(data)
    heads, limit = population["drop_head"].values, data["value_limit"].values
    values = np.take_along_axis(population["values"].values, heads[:, None, :], axis=2)
    theory = population["value_course"].values
    low, high = SHOWN
    rising = (np.abs(theory) > low * limit) & (np.abs(theory) < high * limit)
    return np.where(rising, np.abs(values - theory) / limit, 0.0).max(axis=1)


def _weight_claims(data: xr.Dataset) -> list[Claim]:
    scale = float(data.attrs["scale"])
    cosines = [_alignment(data, name) for name in ("keys", "queries")]
    by_seed = np.nanmin(np.stack(cosines), axis=(0, 2, 3))
    smallest = float(by_seed.min())
    errors = _value_errors(data)
    own, population = _of(data)
    heads = population["drop_head"].values
    final = np.abs(np.take_along_axis(population["plateau_values"].values[:, -1], heads, 1))
    shifts = np.abs(final / data["value_limit"].values - 1)
    return [
        near(
            "eigenvector-order", "Eigenvectors are learned in the order of their eigenvalues",
            "Sec. 4.3", 1.0, _order(population), 0.0, "a count, over all drops of all seeds",
            f"in the population; on the sampled data {_order(own):.2f}", population=True,
        ),
        near(
            "key-query-alignment",
            "On every plateau key and query of a learned head are its eigenvector: median |cos|",
            "(25), Fig. 3c", 1.0, float(np.nanmedian(np.stack(cosines))), 2 * scale**2,
            "a direction off by the size w of the start has cosine 1 - w²/2; four times that",
            population=True,
        ),
        near(
            "key-query-alignment-worst",
            "Without exception: smallest |cos| of a key or query with its eigenvector, all seeds",
            "(25), Fig. 3c", 1.0, smallest, 2 * scale**2, "as for the median",
            f"smallest by seed {_listed(by_seed)}: where two drops nearly coincide, two heads end "
            f"up sharing two eigenvectors (their sum is the same fixed point)", population=True,
        ),
        below(
            "minimal-norm-values",
            "At the end the value weights are (λ/a)^(1/3): median relative error", "(25)(78)",
            float(np.median(shifts)), scale**2,
            "the conserved differences of squares are of size w², and shift v by as much",
            f"largest {shifts.max():.2g}, in the seed whose heads share eigenvectors",
            population=True,
        ),
        below(
            "value-weights-ode",
            "The value weight of the growing head follows the scalar equation: median error",
            "(26)", float(np.median(errors)), scale,
            "the head is off its eigenvector by the size w of the start",
            f"largest error through a drop over v*, the time of the drop fitted; worst of all "
            f"seeds and drops {float(errors.max()):.2g}", population=True,
        ),
    ]  # fmt: skip


def _decades(ratio: np.ndarray) -> float:
    return float(np.median(np.abs(np.log10(ratio))))


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{v:.3g}" for v in values)


def _time_claims(data: xr.Dataset) -> list[Claim]:
    scale = float(data.attrs["scale"])
    sampled, population = _of(data)
    times, own = population["drop_time"].values, sampled["drop_time"].values
    durations = np.diff(times, axis=1, prepend=0.0)
    ratio = population["paper_duration"].values / durations
    same = np.exp(np.log(durations).mean()) / durations
    error = np.abs(sampled["staircase_time"].values / own - 1)
    right = np.mean(sampled["staircase_head"].values == sampled["drop_head"].values)
    exact = np.abs(population["staircase_time"].values / times - 1)
    other = np.abs(population["staircase_time"].values / own - 1)
    spread = times.std(axis=0, ddof=1)
    middle = np.median(durations, axis=0)
    return [
        near(
            "separate-duration-paper",
            "A plateau lasts τ/(λ² v): median of predicted over measured", "(68)(73)", 1.0,
            float(np.median(ratio)), 0.2, "an approximate equality, read as within a fifth",
            f"medians of the plateaus {_listed(np.median(ratio, axis=0))}; over all "
            f"{ratio.min():.2g} to {ratio.max():.2g}: it takes an aligned head for granted; off "
            f"by a factor {10 ** _decades(ratio):.2g} in the median, {10 ** _decades(same):.2g} if "
            "all plateaus were said to last as long", population=True,
        ),
        below(
            "staircase-times",
            "The times of all drops follow from the initial weights: median relative error",
            "from the initial weights, (Q1)-(Q5)", float(np.median(error)), scale,
            "the prediction is the limit of small w, its error of order w or less",
            f"theory of the P = {int(data.attrs['sequences']):,} sequences that were trained on; "
            f"worst {error.max():.2g}; right head in {right:.0%} of drops. The theory of the "
            f"population against the same runs: median {float(np.median(other)):.2g}, worst "
            f"{other.max():.2g}; against runs in the population: {float(np.median(exact)):.2g}, "
            f"{exact.max():.2g}", beyond=True,
        ),
        near(
            "later-plateaus-longer",
            "Later plateaus last longer: share of increases of the median duration", "(73)", 1.0,
            float(np.mean(np.diff(middle) > 0)), 0.0, "an order, over six seeds",
            f"medians of the durations in t/τ: {_listed(middle)}", population=True,
        ),
        near(
            "later-drops-vary-more",
            "Later drops vary more across seeds: share of increases of the deviation", "App. D.6",
            1.0, float(np.mean(np.diff(spread) > 0)), 0.0, "an order, over six seeds",
            f"standard deviations of t_m/τ: {_listed(spread)}", population=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `separate-equals-convolution`: the network from weights with the same function and another
      balance between the layers, which trains differently.
    - `separate-d-drops`: two heads, which can learn only two eigenvectors.
    - `plateau-levels`: the levels as N → ∞.
    - `plateau-levels-population`: the levels if the smallest eigenvalue were learned first.
    - `principal-component-regression`: the weights of the plateau before, with one component fewer.
    - `zero-blocks-population`: the blocks on the P sequences.
    - `separate-conserved`: ‖k‖² alone, which changes as much at half the rate.
    - `eigenvector-order` and `key-query-alignment`: the eigenvectors in reverse.
    - `key-query-alignment-worst`: one seed, without the exception.
    - `minimal-norm-values`: the values λ^(-1/3) as N → ∞.
    - `value-weights-ode`: the logistic course of merged key and query, with the same limit and the
      same time of the drop.
    - `separate-duration-paper`: the durations that the initial weights predict, (Q1)-(Q5).
    - `staircase-times`: the times predicted from the initial weights of the next seed.
    - `later-plateaus-longer`: heads of full rank, which leave later plateaus soon.
    - `later-drops-vary-more`: heads of full rank, whose later drops follow the first.
    """
    limit, seed = data["value_limit"], int(data.attrs["shown_seed"])
    eigenvalues, levels = data["eigenvalues"].values, data["levels"]
    all_of_it = np.concatenate([[0.0], np.cumsum(eigenvalues)])
    smallest_first = np.concatenate([[0.0], np.cumsum(-np.diff(levels.values)[::-1])])
    own, population = _of(data)
    effective = population["plateau_effective"]
    before = effective.isel(level=[0, *range(effective.sizes["level"] - 1)])
    predicted, vectors = data["staircase_time"], data["eigenvectors"]
    stairs = population["staircase_time"]
    order = vectors.copy(data=vectors.values[:, ::-1])
    lasted = stairs.copy(data=np.diff(stairs.values, axis=1, prepend=0.0))
    full_rank = _in_population(data, drop_time=data["full_rank_drop_time"])
    return {
        "separate-equals-convolution": data.assign(check_convolution=data["check_unbalanced"]),
        "separate-d-drops": data.assign(
            loss=data["two_heads_loss"], drop_count=data["two_heads_drop_count"]
        ),
        "plateau-levels": data.assign(levels=levels.copy(data=levels.values[0] - all_of_it)),
        "plateau-levels-population": data.assign(
            levels=levels.copy(data=levels.values[0] - smallest_first)
        ),
        "principal-component-regression": _in_population(data, plateau_effective=before),
        "zero-blocks-population": _in_population(data, blocks=own["blocks"]),
        "separate-conserved": data.assign(conserved_drift=data["key_drift"]),
        "eigenvector-order": data.assign(eigenvectors=order),
        "key-query-alignment": data.assign(eigenvectors=order),
        "key-query-alignment-worst": data.isel(seed=[seed] * data.sizes["seed"]),
        "minimal-norm-values": data.assign(value_limit=limit.copy(data=eigenvalues ** (-1 / 3))),
        "value-weights-ode": _in_population(data, value_course=_logistic_course(population)),
        "separate-duration-paper": _in_population(data, paper_duration=lasted),
        "staircase-times": data.assign(
            staircase_time=predicted.copy(data=np.roll(predicted.values, 1, axis=1))
        ),
        "later-plateaus-longer": full_rank,
        "later-drops-vary-more": full_rank,
    }


def _in_population(data: xr.Dataset, **changes: xr.DataArray) -> xr.Dataset:
    """The data with other values in the runs of the population, and the same on sequences."""
    changed = data["source"] == "population"
    return data.assign({
        name: xr.where(changed, values, data[name]) for name, values in changes.items()
    })  # fmt: skip


def _logistic_course(runs: xr.Dataset) -> xr.DataArray:
    """τ dv/dt = g v (v* - v) in place of (26), through the same value at mid-drop."""
    course, drops = runs["value_course"], runs["drop_time"].values
    limit, gain = (runs[name].values[None, None] for name in ("value_limit", "gain"))
    elapsed = runs["time"].values[None, :, None] - drops[:, None, :]
    size = logistic_strength(elapsed, X_MID * limit, gain * limit / 2, gain / 2)
    return course.copy(data=np.sign(course.values) * np.asarray(size))
