"""What Figs 4, 8 and 9 say about the rank of key and query, measured."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.experiments.base import Claim, at_least, level_tolerance, near
from iclflow.experiments.four_inputs import label_deviation

CONSPICUOUS = 3.0  # long plateaus last at least this many times as long as brief ones


def claims_fig4(data: xr.Dataset) -> list[Claim]:
    """The rank rule, its heads and its levels, for the ranks of Fig. 4."""
    return _rank_claims("fig4", data)


def claims_fig9(data: xr.Dataset) -> list[Claim]:
    """The same for the ranks of Fig. 9."""
    return _rank_claims("fig9", data)


def claims_fig8(data: xr.Dataset) -> list[Claim]:
    """The value weights that grow, and where they end."""
    deviations = []
    for rank in data["rank"].values:
        run = data.sel(rank=rank)
        final = np.sort(np.abs(run["values"].values[:, -1]), axis=-1)[:, ::-1]
        target = run["final_values"].values
        grown = target > 0
        for values, times in zip(final, run["drop_times"].values, strict=True):
            if np.all(np.isfinite(times)):
                deviations.append(np.max(np.abs(values[grown] / target[grown] - 1)))
    tolerance = 0.01 + float(data.attrs["scale"]) ** 2
    return [
        near(
            "fig8-final-values", "rank-R heads end at the minimal-norm value weights",
            "(25)(78), rank R: v = (Σ m_d)^(1/3)", 0.0,
            _quantile(deviations, 0.5), tolerance,
            "w², the size of the conserved differences (85), plus 1% for the sampled data",
            f"largest relative deviation in a run, median over {len(deviations)} finished runs "
            f"of R = {_listed(data)}; worst {max(deviations, default=np.nan):.3f}",
        ),
        _heads_claim("fig8", data),
    ]  # fmt: skip


def _rank_claims(name: str, data: xr.Dataset) -> list[Claim]:
    levels, modes = data["levels"].values, data.sizes["drop_number"]
    ratios, gaps = {}, []
    for rank in data["rank"].values.tolist():
        dwell = _dwell(data, rank)
        long = np.arange(modes) % rank == 0
        if not long.all():
            runs = dwell[np.isfinite(dwell).all(axis=1)]
            logs = np.log(runs)
            each = np.exp(logs[:, long].mean(axis=1) - logs[:, ~long].mean(axis=1))
            ratios[rank] = _quantile(each, 0.5)
        gaps += [level - levels[m] for m, level, _ in _plateaus(data, rank)]
    final = data["loss"].values[..., -1]
    done = np.isfinite(data["drop_times"].values[..., -1])
    error = label_deviation(int(data.attrs["sequences"]), data["spectrum"].values)
    features = modes * (modes + 1) * (modes + 2) // 2
    smallest = min(ratios.values(), default=float("nan"))
    return [
        at_least(
            f"{name}-rank-rule",
            "conspicuous plateaus at m = 0, R, 2R, …, brief ones in between: ratio of durations",
            "Section 5, App. E.4", smallest, CONSPICUOUS,
            "half a decade between what the eye calls long and brief",
            "mean duration (geometric) of plateaus at multiples of R over that of the others, "
            "median over seeds, smallest over ranks; "
            + ", ".join(f"R = {r}: {ratio:.1f}" for r, ratio in ratios.items()),
        ),
        _heads_claim(name, data),
        near(
            f"{name}-levels", "the loss on conspicuous plateaus is that of the fixed points",
            "(24)", 0.0, _quantile(np.abs(gaps), 0.5), level_tolerance(levels, error),
            "three standard errors of the mean of P squared labels, at most half the smallest step",
            f"median of {len(gaps)} plateaus; nine in ten within "
            f"{_quantile(np.abs(gaps), 0.9):.2g}",
        ),
        near(
            f"{name}-final", "every rank ends at the loss of least squares in context", "(16)(24)",
            float(levels[-1]), float(np.mean(final[done])) if done.any() else float("nan"),
            (3 * error + features / int(data.attrs["sequences"])) * float(levels[-1]),
            "three standard errors of the mean of P squared residuals, heavy-tailed as labels "
            "are, and the share F/P that F features of P sequences fit by chance",
            f"mean of the {int(done.sum())} of {done.size} runs that have learned all modes; "
            f"spread {np.ptp(final[done]) if done.any() else np.nan:.1g}",
        ),
    ]  # fmt: skip


def controls_fig4(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim of Fig. 4 other data or another theory that turns its verdict round."""
    return _rank_controls("fig4", data)


def controls_fig9(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """The same for Fig. 9."""
    return _rank_controls("fig9", data)


def controls_fig8(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """The same for Fig. 8.

    - `fig8-final-values`: the final values (25) of the heads of another rank.
    - `fig8-heads`: the runs of the smallest and the largest rank under each other's name.
    """
    final = data["final_values"]
    return {
        "fig8-final-values": data.assign(final_values=final.copy(data=final.values[::-1])),
        "fig8-heads": _exchanged(data),
    }


def _rank_controls(name: str, data: xr.Dataset) -> dict[str, xr.Dataset]:
    """What turns the verdicts of Figs 4 and 9 round.

    - `rank-rule` and `heads`: the runs of the smallest and of the largest rank under each other's
      name.
    - `levels`: the levels (24) of a context of half the length, beside the smallest rank, which has
      the most plateaus. The first plateau is at tr Λ for every length, so it cannot tell.
    - `final`: the last of these levels.
    """
    half = data.assign(levels=("plateau", _levels(data, int(data.attrs["context"]) // 2)))
    return {
        f"{name}-rank-rule": _exchanged(data),
        f"{name}-heads": _exchanged(data),
        f"{name}-levels": half.isel(rank=[0]),
        f"{name}-final": half,
    }


def _exchanged(data: xr.Dataset) -> xr.Dataset:
    """The smallest and the largest rank alone, each with the runs of the other."""
    ends = data.isel(rank=[0, -1])
    return ends.assign_coords(rank=ends["rank"].values[::-1])


def _levels(data: xr.Dataset, pairs: float) -> Float[np.ndarray, " m"]:
    """L(M_m) = tr Λ - Σ_{d≤m} λ³/a (24) of the same spectrum with another number of pairs (32)."""
    spectrum = data["spectrum"].values
    drops = spectrum / (1 + (1 + spectrum.sum() / spectrum) / pairs)
    return spectrum.sum() - np.concatenate([[0.0], np.cumsum(drops)])


def _heads_claim(name: str, data: xr.Dataset) -> Claim:
    """On a conspicuous plateau at m there are m/R grown value weights, at the end ⌈D/R⌉."""
    right, half = [], _half_grown(data)
    for rank in data["rank"].values.tolist():
        run = data.sel(rank=rank)
        right += [count == -(-m // rank) for m, _, count in _plateaus(data, rank)]
        ended = np.sum(np.abs(run["values"].values[:, -1]) > half, axis=-1)
        done = np.isfinite(run["drop_times"].values[:, -1])
        right += (ended[done] == -(-data.sizes["drop_number"] // rank)).tolist()
    return near(
        f"{name}-heads", "a new value weight grows for every R modes, none in between",
        "Section 5, App. E.4", 1.0, float(np.mean(right)) if right else float("nan"), 0.1,
        "heads may escape together by chance; the rule is for vanishing initialisation",
        f"share of {len(right)} plateaus and ends, R = {_listed(data)}, with as many value "
        f"weights above {half:.2f}, half the smallest of (25), as the rule says",
    )  # fmt: skip


def _dwell(data: xr.Dataset, rank: int) -> Float[np.ndarray, "seeds D"]:
    """How long each run stays at m = 0 … D-1 learned modes: from drop to drop."""
    return np.diff(data["drop_times"].sel(rank=rank).values, axis=1, prepend=0.0)


def _plateaus(data: xr.Dataset, rank: int) -> list[tuple[int, float, int]]:
    """In the middle of each stay at m = 0, R, 2R, …: m, the loss, the grown value weights."""
    run, half = data.sel(rank=rank), _half_grown(data)
    clock, found = run["clock"].values, []
    for s, times in enumerate(run["drop_times"].values):
        for m in range(0, len(times), rank):
            begin, end = times[m - 1] if m else 0.0, times[m]
            if np.isfinite(begin) and np.isfinite(end):
                i = int(np.argmin(np.abs(clock - (begin + end) / 2)))
                values = np.abs(run["values"].values[s, i])
                found.append((m, float(run["loss"].values[s, i]), int(np.sum(values > half))))
    return found


def _half_grown(data: xr.Dataset) -> float:
    """Half the smallest value weight of one mode, v = (λ/a)^(1/3) (25): larger ones have escaped.

    With N pairs λ/a = 1/(λ + (λ + tr Λ)/N) (32).
    """
    spectrum, pairs = data["spectrum"].values, int(data.attrs["context"])
    weights = 1 / (spectrum + (spectrum + spectrum.sum()) / pairs)
    return float(np.min(weights) ** (1 / 3) / 2)


def _quantile(values: Any, share: float) -> float:
    """The quantile of a sample, NaN (which holds no claim) of an empty one."""
    return float(np.quantile(values, share)) if len(values) else float("nan")


def _listed(data: xr.Dataset) -> str:
    return ", ".join(str(rank) for rank in data["rank"].values)
