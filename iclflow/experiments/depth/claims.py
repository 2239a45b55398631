"""What several layers do, measured against their theory."""

from typing import Any

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, at_least, below, less, near
from iclflow.theory.scaling import fitted_exponent

MARK: dict[str, Any] = {"population": True, "beyond": True}


def claims_losses(data: xr.Dataset) -> list[Claim]:
    """The limit of large D and N, its error at finite size, and where training ends."""
    size = data["size"].values
    excess = data["by_size"].values - data["by_size_limit"].values[None]
    slopes = [np.polyfit(np.log(size), np.log(excess[:, kind, 1]), 1)[0] for kind in (0, 1)]
    exact = data["by_context"].sel(context=31).values
    limit = data["by_context_limit"].sel(context=31).values
    ends = exact[:, : data.sizes["trained_layers"]]
    return [
        near(
            "depth-limit-error", "The error of the Marchenko-Pastur limit of two layers falls as "
            "1/D at D/N = 1/2: exponent farthest from -1", "(D9)", -1.0,
            float(max(slopes, key=lambda s: abs(s + 1))), 0.1,
            f"corrections are of relative order 1/D, at D from {size[0]}", **MARK,
        ),
        at_least(
            "depth-limit-low", "At D = 4, N = 31 the limit is far below the loss of two layers: "
            "share that it leaves out, the smaller of tied and untied", "(D6)(D8)(D9)",
            float(np.min(1 - limit[:, 1] / exact[:, 1])), 0.3, "a third, where 1/D is a quarter",
            f"tied {1 - limit[0, 1] / exact[0, 1]:.3f}, untied {1 - limit[1, 1] / exact[1, 1]:.3f}",
            **MARK,
        ),
        below(
            "depth-trained", "White layers trained from small random steps end in the least loss, "
            "tied and untied, one to four layers: largest relative difference", "(D6)(D8)",
            float(np.abs(data["trained"].values / ends - 1).max()), 1e-3,
            "the slowest direction has relaxed to this", **MARK,
        ),
    ]  # fmt: skip


def controls_losses(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `depth-limit-error`: the limit at D/N = 1/4.
    - `depth-limit-low`: the largest D, at D/N = 1/2.
    - `depth-trained`: tied layers in the place of untied ones, and the other way round.
    """
    exact, limit = data["by_context"].copy(), data["by_context_limit"].copy()
    exact.loc[{"context": 31}] = data["by_size"].values[-1]
    limit.loc[{"context": 31}] = data["by_size_limit"].values
    return {
        "depth-limit-error": data.assign(by_size_limit=data["other_limit"]),
        "depth-limit-low": data.assign(by_context=exact, by_context_limit=limit),
        "depth-trained": data.assign(
            trained=data["trained"].copy(data=data["trained"].values[::-1])
        ),
    }


def claims_stairs(data: xr.Dataset) -> list[Claim]:
    """The steps of two layers, their levels and their times."""
    error = np.abs(data["predicted_time"].values / data["drop_time"].values - 1)
    table = data["table"].values
    active = data["plateau_active"].values.astype(int)
    layers = data["predicted_layer"].values
    first, second = (np.cumsum(layers == layer, axis=1) for layer in (0, 1))
    first, second = (np.pad(count, ((0, 0), (1, 0))) for count in (first, second))
    gap = data["levels"].values / table[first, second] - 1
    ends = active[:, -1].sum(axis=-1)
    seeds, drops = error.shape
    return [
        near(
            "depth-steps", "Two layers of rank-one heads end with D active heads in each layer, "
            "after 2D steps: least number of heads", "(D20)", float(drops), float(ends.min()), 0.0,
            f"a count, over {seeds} starts", **MARK,
        ),
        at_least(
            "depth-levels", "No predicted plateau is below the level L*(r0, r1) of its pair of "
            "ranks, which a search finds: least relative difference", "(D20)", float(gap.min()),
            -1e-6, "rounding of two searches for one minimum",
            f"the median is {np.median(gap):.1e}, the largest {gap.max():.2f}", **MARK,
        ),
        below(
            "depth-drop-times", "Every drop of two layers is predicted from the initial weights: "
            "worst relative error of its time", "(D19)(D20)", float(error.max()), 0.02,
            "the init scale w = 0.05: corrections are of relative order w",
            f"{seeds * drops} drops of {seeds} starts, median {np.median(error):.1e}", **MARK,
        ),
    ]  # fmt: skip


def controls_stairs(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `depth-steps`: the heads that are active one plateau earlier.
    - `depth-levels`: the table of the pairs exchanged end for end: what other ranks reach.
    - `depth-drop-times`: the predictions of the next start.
    """
    early = data["plateau_active"].roll(level=1, roll_coords=False)
    times = data["predicted_time"]
    return {
        "depth-steps": data.assign(plateau_active=early),
        "depth-levels": data.assign(
            table=data["table"].copy(data=data["table"].values[::-1, ::-1])
        ),
        "depth-drop-times": data.assign(predicted_time=times.roll(seed=1, roll_coords=False)),
    }


def claims_splitting(data: xr.Dataset) -> list[Claim]:
    """Untied layers split, at the rate of the saddle, into a large and a small step."""
    time = data["time"].values
    gap = np.ptp(data["near_steps"].values, axis=1)
    early = gap < 30 * gap[0]
    rate = float(np.polyfit(time[early], np.log(gap[early]), 1)[0])
    ends = np.sort(data["random_steps"].values[:, -1], axis=-1)
    off = np.abs(ends / data["best_steps"].values[None] - 1).max()
    known = float(data["rate"])
    return [
        near(
            "depth-splitting-rate", "Two almost equal layers move apart at the rate of the tied "
            "saddle", "(D8)", known, rate, 0.02 * known,
            "over a factor of 30, where the quadratic term is a hundredth", **MARK,
        ),
        below(
            "depth-splitting-ends", "From random steps the two layers end as a large and a small "
            "step: largest relative difference of a step to (D8)", "(D8)", float(off), 1e-2,
            "what is left of the slowest direction", f"over {len(ends)} starts", **MARK,
        ),
        less(
            "depth-tied-worse", "Tied layers end above untied ones", "(D6)(D8)",
            float(data["random_loss"].values[:, -1].max()), float(data["tied_loss"][-1]),
            "an order", f"least losses {float(data['best_untied']):.6f} untied and "
            f"{float(data['best_tied']):.6f} tied", **MARK,
        ),
    ]  # fmt: skip


def controls_splitting(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `depth-splitting-rate`: the steps of a random start.
    - `depth-splitting-ends`: the step of tied layers as both steps.
    - `depth-tied-worse`: the loss of the tied layers in the place of the untied ones.
    """
    random = data["random_steps"].isel(seed=0, drop=True)
    tied = data["tied_step"].broadcast_like(data["random_steps"])
    steps = data["random_steps"].copy(data=tied.transpose("seed", "time", "layer").values)
    loss = data["tied_loss"].broadcast_like(data["random_loss"]).transpose("seed", "time")
    return {
        "depth-splitting-rate": data.assign(near_steps=random),
        "depth-splitting-ends": data.assign(random_steps=steps),
        "depth-tied-worse": data.assign(random_loss=data["random_loss"].copy(data=loss.values)),
    }


LIMITS = {  # of the largest difference of an exponent to the theory
    "time": (0.01, "the range of the fit is finite"),
    "time, 3 factors": (0.01, "the number of modes is finite"),
    "time, 5 factors": (0.03, "the number of modes is finite, and γ grows fastest"),
    "depth": (0.06, "from 16 layers on the law is still a few per cent too steep"),
    "time, Γ trained": (0.01, "the range of the fit is finite"),
}
EQUATIONS = {"time, Γ trained": "Γ trained itself"}


def claims_laws(data: xr.Dataset) -> list[Claim]:
    """Exponents of the loss in time, depth and context, and one layer, which has none."""
    found = []
    for law, (limit, reason) in LIMITS.items():
        part = data.sel(law=law)
        values = _beside(part["measured"], part["error"], part["theory"])
        name = law.replace(",", "").replace(" ", "-").replace("Γ", "matrix")
        found.append(
            below(
                f"depth-law-{name}",
                f"Power law of deep layers ({law}): largest difference of an exponent",
                EQUATIONS.get(law, "Γ = γI"), _farthest(part["measured"], part["theory"]), limit,
                reason, values, **MARK,
            )
        )  # fmt: skip
    early, late = np.moveaxis(data["one_layer"].values, 1, 0)
    context = data["context"].values
    fits = {
        name: [fitted_exponent(context, row) for row in data[name].values]
        for name in ("context_loss", "context_limit")
    }
    slopes, limits = (np.array([slope for slope, _ in fits[name]]) for name in fits)
    steep = data["decay"].values > 1
    far = data[["long_measured", "long_error", "long_theory"]].isel(context_pair=steep)
    return [
        *found,
        below(
            "depth-law-context",
            f"Deep layers in contexts of {context[0]} to {context[-1]} pairs have the exponents of "
            "the deterministic equivalent there: largest difference", "Γ = γI",
            float(np.abs(slopes - limits)[: len(data["pair"])].max()), 0.12,
            "corrections of relative order 1/N, and the error of the mean over draws",
            ", ".join(
                f"{found:.3f} and {limit:.3f} at ({pair})"
                for pair, found, limit in zip(
                    data["pair"].values, slopes, limits, strict=False
                )
            ), **MARK,
        ),
        below(
            "depth-law-context-long",
            "In long contexts the exponent is -ν min(β, 2) for ν > 1: largest difference of that "
            "of the deterministic equivalent", "Γ = γI",
            _farthest(far["long_measured"], far["long_theory"]), 0.05,
            "the number of modes and the range of the fit are finite",
            _beside(far["long_measured"], far["long_error"], far["long_theory"]), **MARK,
        ),
        at_least(
            "depth-one-layer-saturates", "One layer γI has no power law in time, it saturates: "
            "least ratio of the loss at t/τ = 1e4 to that at 1e2", "Γ = γI",
            float(np.min(late / early)), 0.99, "a constant",
            f"losses {', '.join(f'{x:.2f}' for x in late)}", **MARK,
        ),
    ]  # fmt: skip


def _farthest(measured: xr.DataArray, theory: xr.DataArray) -> float:
    return float(np.abs(measured.values - theory.values).max())


def _beside(measured: xr.DataArray, error: xr.DataArray, theory: xr.DataArray) -> str:
    rows = zip(measured.values, error.values, theory.values, strict=True)
    return ", ".join(f"{m:.3f} ± {e:.3f} for {t:.3f}" for m, e, t in rows)


def controls_laws(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - Exponents: the theory of the next pair (ν, β).
    - `depth-one-layer-saturates`: deep layers at the ends of the range of the fit.
    """
    other = data.assign(theory=data["theory"].roll(pair=1, roll_coords=False))
    for name in ("context_limit", "long_theory"):
        other = other.assign({name: data[name].roll(context_pair=1, roll_coords=False)})
    deep = data["curve"].sel(law="time").values[:, [0, -1]]
    claims = (claim.id for claim in claims_laws(data))
    return dict.fromkeys(claims, other) | {
        "depth-one-layer-saturates": data.assign(one_layer=(("pair", "moment"), deep))
    }


def claims_shift(data: xr.Dataset) -> list[Claim]:
    """Two layers are better where they were trained and worse far from it."""
    last = data["test_loss"].isel(time=-1)
    reference = data["reference"]
    known = np.isfinite(reference.values)
    off = np.abs(last.values / reference.values - 1)[known]
    one, two = last.sel(run="one layer"), last.sel(run="two, large step first")
    ratio = float(two.sel(test="reversed") / one.sel(test="reversed"))
    near_by = float(two.sel(test="as trained") / one.sel(test="as trained"))
    nearest = [str(x) for x in data["algorithm"].values[np.argmin(data["distance"].values, axis=1)]]
    last_distance = data["distance"].isel(some=-1)
    best = str(data["algorithm"].values[int(np.argmin(last_distance.values))])
    return [
        below(
            "depth-test-losses", "Losses on three other covariances at the end of training: "
            "largest relative difference to their exact values", "(D16)", float(off.max()), 6e-3,
            "the values are stated to three digits", **MARK,
        ),
        at_least(
            "depth-brittle", "On the reversed spectrum two layers are worse than one by a factor",
            "(D16)", ratio, 5.0, "far from one",
            f"where they were trained they are better, by {1 / near_by:.1f}", **MARK,
        ),
        below(
            "depth-identified", "Two trained layers run two preconditioned steps of gradient "
            "descent: relative distance of the predictions to them", "(D2)",
            float(last_distance.min()), 0.01, "what is left of the slowest direction",
            f"at the end: {best}; on the way: {', '.join(dict.fromkeys(nearest))}", **MARK,
        ),
    ]  # fmt: skip


def controls_shift(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `depth-test-losses`: the runs in another order.
    - `depth-brittle`: the losses on the covariance of the training.
    - `depth-identified`: one preconditioned step and none as the only algorithms.
    """
    losses = data["test_loss"]
    same = losses.copy(data=np.repeat(losses.values[..., :1], losses.sizes["test"], axis=-1))
    few = data["algorithm"].values[:2]
    return {
        "depth-test-losses": data.assign(test_loss=losses.roll(run=1, roll_coords=False)),
        "depth-brittle": data.assign(test_loss=same),
        "depth-identified": data.sel(algorithm=few),
    }
