"""The claims about merged key and query, from the data of Fig. 1."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.four_inputs import label_deviation, regression_deviation
from iclflow.theory.drops.scalar_ode import paper_duration


def distance(data: xr.Dataset, weights: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """|B^(1/2) (M - M') Λ^(1/2)|/|B^(1/2) M' Λ^(1/2)|: predictors compared in the population."""
    second, covariance = data["second"].values, data["covariance"].values

    def square(m: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("...dc,de,...ef,fc->...", m, second, m, covariance))

    return np.asarray(np.sqrt(square(weights - reference) / square(reference)))


def claims(data: xr.Dataset) -> list[Claim]:
    """Equivalence, one drop, its levels and time, least squares, duality, parallel heads."""
    loss, levels = data["loss"].values, data["levels"].values
    sequences = int(data.attrs["sequences"])
    formula = data["formula"].values
    explained = float(levels[0] - levels[1])
    statistical = 3 * regression_deviation(sequences, 60, float(levels[1]), explained)
    narrow = 3 * regression_deviation(sequences, 16, float(levels[1]), explained)
    half, theory = data["half_time"].values, data["half_time_theory"].values
    paper, whole = data["half_time_paper"].values, data["half_time_population"].values
    scale, constant = float(data.attrs["scale"]), float(np.log(4 * np.linalg.norm(formula)) / 2)
    ends = np.abs(loss[:, [0, -1]] - levels).max()
    gap = np.abs(loss - data["loss_mlp"].values).max() / levels[0]
    white = np.abs(data["white_loss"] - data["white_theory"]).max() / data["white_loss"][0]
    off = np.abs(data["white_loss"] - data["white_paper"]).max() / data["white_loss"][0]
    return [
        below(
            "merged-equals-mlp",
            "Merged attention and the MLP on cubic features have the same training", "(11)(12)",
            float(np.abs(data["check_attention"] - data["check_mlp"]).max()), 1e-12,
            "rounding; the two are computed by different code, on prompts",
            f"{data.sizes['check']} save points of training on prompts, zero blocks frozen",
        ),
        below(
            "merged-mlp-finite-sample",
            "Loss curves of attention (all blocks trained) and MLP match on finite data", "Fig. 1",
            float(gap), 5 * sequences**-0.5,
            "the extra blocks grow as P^(-1/2) and move the drop by as much; five times that",
            f"share of L(0), P = {sequences:,}; training the extra blocks is the only difference",
        ),
        near(
            "merged-single-drop",
            "Merged attention drops once: share of seeds with one detected drop", "Sec. 3.3", 1.0,
            float(np.mean(data["drop_count"].values == 1)),
            0.0, "a count, by the detector of stages",
        ),
        below(
            "merged-levels", "The plateau is at L(0) = tr Λ, the end at the loss of (16)",
            "(14)(16)", float(ends), 3 * label_deviation(sequences),
            "three standard errors of a mean of P squared labels",
        ),
        below(
            "least-squares-at-convergence", "Training ends at in-context least squares", "(16)",
            float(distance(data, data["trained"].values, formula).max()), statistical,
            "three standard errors of a regression on the 60 features from P sequences",
            "relative distance between predictors in the population",
        ),
        below(
            "regression-duality", "Regression on cubic features is regression in context",
            "(16)(41)(42)", float(distance(data, data["regression_population"].values, formula)),
            1e-10, "rounding; E[zzᵀ] from Wick's theorem against the formula",
            "on the P training sequences: "
            f"{float(distance(data, data['regression_sample'].values, formula)):.2g} "
            f"(three standard errors: {narrow:.2g})", population=True,
        ),
        near(
            "heads-parallel", "All heads become parallel: smallest |cos| between two heads",
            "(17), Sec. 3.5", 1.0, float(data["head_cosine"].min()),
            float(data["head_cosine_bound"].max()),
            "what the conserved w₂w₂ᵀ - W₁W₁ᵀ of this start allows the weakest of the heads",
            f"rows of W₁ after {int(data.attrs['window']):,} steps; attention with all blocks "
            f"trained on P = {sequences:,}: {float(data['head_cosine_attention'].min()):.6f}, and "
            f"after {int(data['step'][-1]):,} steps {float(data['head_cosine_late'].min()):.4f}, "
            f"as the heads share out the extra blocks",
        ),
        below(
            "merged-zero-blocks", "The blocks that (M) leaves out stay zero in the population",
            "App. C.1", float(data["population_blocks"].max()), 1e-12, "rounding",
            f"largest entry over training; on P = {sequences:,} sequences "
            f"{float(data['attention_blocks'].max()):.2g}", population=True,
        ),
        below(
            "merged-conserved", "w₂w₂ᵀ - W₁W₁ᵀ does not change under gradient flow", "(17)",
            float(data["conserved_drift"].max()), 1e-8, "the tolerance of the solver, 1e-9 a step",
            population=True,
        ),
        below(
            "white-closed-form", "The closed form for white inputs is the loss from small weights",
            "(15)(45)-(48)", float(white), 10 * float(data.attrs["white_scale"]) ** 2,
            "the closed form is the limit w → 0 and its error of order w²; w = 1e-3",
            f"with s(0) = ¼|w₂ + W₁m̂|² (E2); with the paper's |w₂(0)|²: {float(off):.2f} of L(0)",
            population=True,
        ),
        below(
            "merged-duration-paper", "The plateau lasts ln(1/w)/‖Λ²‖", "(49)-(51)",
            float(np.abs(paper / half - 1).max()), constant / np.log(1 / scale),
            "½ ln(4‖M*‖)/ln(1/w): by E2 the drop is at (ln(1/w) + ½ ln(4‖M*‖))/‖Λ²‖ where only the "
            "values have size w, and (51) leaves the constant out",
            f"largest relative error over the seeds; the estimate is short by "
            f"{float((1 - paper / half).mean()):.0%} on average",
        ),
        below(
            "merged-duration-reduced-flow",
            "The reduced flow from the initial weights tells the time of the drop", "E2, (Q6)",
            float(np.abs(theory / half - 1).max()), float(sequences**-0.5 + data.attrs["rate"]),
            "P^(-1/2) for the blocks that the theory leaves out, plus the rate for descent against "
            "flow",
            f"theory of the P = {sequences:,} sequences that were trained on; that of the "
            f"population: {float(np.abs(whole / half - 1).max()):.2g}", beyond=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `merged-equals-mlp`: the MLP from weights with the same function and another balance between
      the layers, which trains differently.
    - `merged-mlp-finite-sample`: the MLP of the next seed.
    - `merged-single-drop`: separate key and query of rank one, which drops several times.
    - `merged-levels` and `least-squares-at-convergence`: the levels and the weights Λ⁻¹ of N → ∞.
    - `regression-duality`: the regression on the P sequences instead of the population.
    - `heads-parallel`: the heads of attention at the last step, which share out the extra blocks.
    - `merged-zero-blocks`: the blocks on the P sequences instead of the population.
    - `merged-conserved`: W₁W₁ᵀ alone, which grows.
    - `white-closed-form`: the closed form with the paper's s(0).
    - `merged-duration-paper`: the power law (68) of separate key and query, at the same w.
    - `merged-duration-reduced-flow`: the paper's estimate (51).
    """
    loss = data["loss"]
    covariance, formula = data["covariance"].values, data["formula"]
    paper = data["half_time_paper"]
    rate = np.linalg.norm(covariance @ covariance)
    start = np.exp(-rate * paper.values)  # the w that (51) was given
    power_law = paper_duration(start, np.linalg.eigvalsh(covariance).max() ** 2)
    return {
        "merged-equals-mlp": data.assign(check_mlp=data["check_unbalanced"]),
        "merged-mlp-finite-sample": data.assign(
            loss_mlp=loss.copy(data=np.roll(data["loss_mlp"].values, 1, axis=0))
        ),
        "merged-single-drop": data.assign(
            loss=data["separate_loss"], drop_count=data["separate_drop_count"]
        ),
        "merged-levels": data.assign(levels=("level", [np.trace(covariance), 0.0])),
        "least-squares-at-convergence": data.assign(
            formula=formula.copy(data=np.linalg.inv(covariance))
        ),
        "regression-duality": data.assign(regression_population=data["regression_sample"]),
        "heads-parallel": data.assign(head_cosine=data["head_cosine_late"]),
        "merged-zero-blocks": data.assign(population_blocks=data["attention_blocks"]),
        "merged-conserved": data.assign(conserved_drift=data["merged_drift"]),
        "white-closed-form": data.assign(white_theory=data["white_paper"]),
        "merged-duration-paper": data.assign(half_time_paper=paper.copy(data=power_law)),
        "merged-duration-reduced-flow": data.assign(half_time_theory=paper),
    }
