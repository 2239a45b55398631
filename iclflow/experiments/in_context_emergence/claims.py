"""What the transformers settle: depth, induction heads, and when subspaces and ranks move.

Losses and scores of seeds enter by their worst, times by their median; times are compared by
log₁₀ of their ratio.
"""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, Control, at_least, below, less

MARGIN = 4.0  # how many times the late loss of one layer is that of more
INDUCTION = 0.5  # prefix-matching score of an induction head


def claims(data: xr.Dataset) -> list[Claim]:
    """One layer against more, on both corpora, and the order of events in the deeper ones."""
    deep = data.sel(layers=data["layers"] > 1)
    return [*_depth(data, deep), *_order(deep), *_ranks(data), _markov(data)]


def _depth(data: xr.Dataset, deep: xr.Dataset) -> list[Claim]:
    last = data["late_loss"].isel(step=-1)
    one, more = last.sel(layers=1), last.sel(layers=data["layers"] > 1)
    chance = float(np.log(data.attrs["vocabulary"]))
    heads = deep["prefix_matching"].isel(step=-1).max(("layer", "head"))
    single = data["prefix_matching"].isel(step=-1).sel(layers=1).max()
    listed = ", ".join(f"{float(last.sel(layers=n).max()):.2f}" for n in data["layers"].values)
    accuracy = data["accuracy"].isel(step=-1).mean("seed")
    shares = ", ".join(f"{100 * float(a):.0f}%" for a in accuracy)
    return [
        below(
            "lt-icl-emerges", "attention-only transformers of two and more layers learn in context",
            "Fig. 5", float(more.max()) / chance, float(data.attrs["learned"]),
            "share of ln V, set beforehand: a loss this low needs copying nearly everywhere",
            f"late loss {listed} of {chance:.2f} for {_depths(data)} layers; accuracy on repeats "
            f"{shares}",
        ),
        at_least(
            "lt-icl-depth", "one layer fails where two succeed", "Fig. 5",
            float(one.min() / more.max()), MARGIN,
            "late loss of one layer over the largest of more layers",
            "the period is drawn for each sequence; with a fixed one a single layer would do",
        ),
        at_least(
            "lt-induction", "those that learn have an induction head", "Fig. 5",
            float(heads.min()), INDUCTION, "prefix-matching score of the best head, worst run",
            f"the best head of one layer has {float(single):.2f}",
        ),
    ]  # fmt: skip


def _order(deep: xr.Dataset) -> list[Claim]:
    """Whether subspaces settle before or during the drop, and where the rank moves."""
    start, end = _edges(deep)
    settled = _log(deep["settled"].isel(share=-1))
    to_end, to_start = (end - settled).median("seed"), (start - settled).median("seed")
    by_depth = to_start.mean("circuit")
    times = "; ".join(_times(deep.sel(layers=n)) for n in deep["layers"].values)
    found = [
        at_least(
            "lt-subspace-early", "subspaces stabilise before or during the emergence of in-context "
            "learning", "Fig. 5, (16)", float(to_end.min(skipna=False)), 0.0,
            "log₁₀ of the end of the drop over the settling time, worst depth and circuit",
            f"{times}; settled is 90% of the way from start to end, to which (16) compares: slow "
            f"drift until the end counts",
        ),
        at_least(
            "lt-subspace-before", "subspaces stabilise before in-context learning emerges",
            "Fig. 5, (16)", float(to_start.min(skipna=False)), 0.0,
            "log₁₀ of the start of the drop over the settling time, worst depth and circuit",
        ),
    ]  # fmt: skip
    if deep.sizes["layers"] > 1:
        change = float(by_depth.isel(layers=-1) - by_depth.isel(layers=0))
        found.append(
            at_least(
                "lt-subspace-deeper", "the deeper the model, the earlier its subspaces stabilise",
                "Fig. 5", change, 0.0,
                f"lead over the drop of {int(deep['layers'][-1])} layers less that of 2, in log₁₀",
            )
        )  # fmt: skip
    outside = _rank_outside(deep)
    found.append(
        below(
            "lt-rank-moves", "the effective rank moves fastest while in-context learning emerges",
            "Fig. 6, (15)", float(outside.max()), float(np.log10(2)),
            "distance of the fastest change from the drop, in log₁₀ of steps: a factor of 2",
            _by_circuit(outside, outside["layers"].values),
        )
    )  # fmt: skip
    return found


def _ranks(data: xr.Dataset) -> list[Claim]:
    """Which way the effective rank goes, and whether it tells one layer from more."""
    rank = data["effective_rank"].mean(("layer", "head"))
    left = rank.isel(step=-1) / rank.isel(step=0)
    # The change from start to end of each drop, and that of one layer between the same steps.
    edges = data["window"].sel(layers=data["layers"] > 1)
    deep = left.where(edges.notnull().all("edge")).median("seed", skipna=False)
    inside = (data["step"] >= edges.isel(edge=0)) & (data["step"] <= edges.isel(edge=1))
    own, single = (
        (kept.max("step") - kept.min("step")).median("seed", skipna=False)
        for kept in (rank.where(inside), rank.sel(layers=1, drop=True).where(inside))
    )
    ratio = own / single
    return [
        less(
            "lt-rank-falls", "the effective ranks of QK and OV fall where in-context learning "
            "emerges", "Fig. 6, (15)", float(deep.max(skipna=False)), 1.0,
            "our reading of the figure: the last rank over the first, largest over depths and "
            "circuits",
            _by_circuit(left.median("seed"), data["layers"].values),
        ),
        at_least(
            "lt-rank-depth", "while it emerges they change more than with one layer, where it does "
            "not", "Fig. 6, (15)", float(ratio.min(skipna=False)), 1.0,
            "our reading of the figure: range of the rank in the drop over that of one layer in "
            "the same steps, least over depths and circuits",
            _by_circuit(ratio, ratio["layers"].values),
        ),
    ]  # fmt: skip


def _by_circuit(values: xr.DataArray, layers: np.ndarray) -> str:
    """Values of every circuit and depth in words."""
    listed = "; ".join(
        f"{c} {', '.join(f'{v:.2f}' for v in values.sel(circuit=c).values)}"
        for c in values["circuit"].values
    )
    return f"medians over seeds, {', '.join(map(str, layers))} layers: {listed}"


def fastest_change(data: xr.Dataset) -> xr.DataArray:
    """The step at which the mean effective rank changes fastest in log time, by run and circuit."""
    later = data["effective_rank"].isel(step=slice(1, None)).mean(("layer", "head"))
    clock = np.log(later["step"].values.astype(float))
    axis = later.get_axis_num("step")
    slope = np.abs(np.gradient(later.values, clock, axis=axis))
    steps = later["step"].values[np.nanargmax(slope, axis=axis)]
    return later.isel(step=0, drop=True).copy(data=steps.astype(float))


def _rank_outside(deep: xr.Dataset) -> xr.DataArray:
    """How far the fastest change lies outside the drop, in log₁₀ of steps; 0 inside."""
    at = _log(fastest_change(deep))
    start, end = _edges(deep)
    outside = xr.where(at < start, start - at, xr.where(at > end, at - end, 0 * (at + start)))
    return outside.median("seed", skipna=False)


def _markov(data: xr.Dataset) -> Claim:
    late = slice(-(data.sizes["position"] // 4), None)
    best, single = (
        float(data[name].isel(position=late).mean())
        for name in ("markov_optimal", "markov_unigram")
    )
    loss = data["markov_late_loss"].isel(markov_step=-1)
    excess = loss - best
    ratio = float(excess.sel(markov_layers=2).max() / excess.sel(markov_layers=1).min())
    return below(
        "lt-markov", "two layers read the transitions of a Markov chain off the context, one does "
        "not", "", ratio, 0.5, "loss above the Bayes-optimal predictor, two layers over one",
        f"late loss {float(loss.sel(markov_layers=1).mean()):.3f} with one layer, "
        f"{float(loss.sel(markov_layers=2).mean()):.3f} with two; Bayes-optimal {best:.3f}, token "
        f"frequencies {single:.3f}", beyond=True,
    )  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, Control]:
    """For each claim data that turn its verdict round; both ways where it is about an order."""
    settled, window, rank = data["settled"], data["window"], data["effective_rank"]
    start, end = (settled * 0 + window.isel(edge=i) for i in range(2))
    # A rank that changes fastest in the middle of the drop, and one that does so elsewhere.
    rise = np.tanh(4 * np.log(data["step"].clip(min=1) / np.sqrt(window.prod("edge"))))
    inside = data.assign(effective_rank=(rank * 0 + rise).transpose(*rank.dims))
    first, clock = rank.isel(step=0, drop=True), 1.0 + data["step"]
    late, markov = data["late_loss"], data["markov_late_loss"]
    last = data["layers"] == data["layers"][-1]
    return {
        "lt-icl-emerges": data.assign(late_loss=late * 0 + late[0]),
        "lt-icl-depth": data.assign(late_loss=late.where(data["layers"] > 1, 0.01)),
        "lt-induction": data.assign(prefix_matching=0.5 * data["prefix_matching"]),
        "lt-subspace-early": tuple(data.assign(settled=f * end) for f in (0.5, 2.0)),
        "lt-subspace-before": tuple(data.assign(settled=f * start) for f in (0.5, 2.0)),
        "lt-subspace-deeper": tuple(
            data.assign(settled=settled * xr.where(last, f, 1.0)) for f in (0.01, 100.0)
        ),
        "lt-rank-moves": (inside, inside.assign(window=100 * window)),
        "lt-rank-falls": tuple(
            data.assign(effective_rank=(rank * 0 + clock**power).transpose(*rank.dims))
            for power in (-1, 1)
        ),
        "lt-rank-depth": tuple(
            data.assign(effective_rank=(first + change * (rank - first)).transpose(*rank.dims))
            for change in (xr.where(data["layers"] > 1, f, 1.0) for f in (0.01, 100.0))
        ),
        "lt-markov": data.assign(markov_late_loss=markov.copy(data=markov.values[::-1])),
    }


def _times(data: xr.Dataset) -> str:
    """When a depth dropped and its circuits settled, in words."""
    start, end = (f"{float(data['window'].isel(edge=i).median()):.0f}" for i in range(2))
    half, whole = (
        " and ".join(f"{c} {float(settled.sel(circuit=c).median()):.0f}" for c in ("QK", "OV"))
        for settled in (data["settled"].isel(share=i) for i in range(2))
    )
    return (
        f"{int(data['layers'])} layers: drop from step {start} to {end}, halfway {half}, settled "
        f"{whole}"
    )


def _edges(data: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """log₁₀ of the start and of the end of the drop."""
    window = _log(data["window"])
    return window.isel(edge=0), window.isel(edge=1)


def _log(values: xr.DataArray) -> xr.DataArray:
    return values.copy(data=np.log10(values.values))


def _depths(data: xr.Dataset) -> str:
    return ", ".join(str(n) for n in data["layers"].values)
