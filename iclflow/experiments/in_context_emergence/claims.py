"""What the transformers settle: depth, induction heads, and when subspaces and ranks move.

Losses and scores of seeds enter by their worst. What happens around the emergence is judged by
intervals over seeds, and belongs to a course: the usual one is a rate that falls to zero as a
cosine, some four times as long as the emergence takes. Beside it stand a constant rate of the same
length, a constant rate of sixty times that length, and both short courses on text in which there is
nothing to copy. For the latter "the drop" is that of the same seed on the plain text.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, Control, at_least, below
from iclflow.experiments.intervals import two_sided
from iclflow.measures import change_time

MARGIN = 4.0  # how many times the late loss of one layer is that of more
INDUCTION = 0.5  # prefix-matching score of an induction head
SETTLED = 0.9  # of the way from start to end
BESIDE = 1.1  # a factor in steps by which something may miss the drop and still be in it


def claims(data: xr.Dataset) -> list[Claim]:
    """One layer against more, on both corpora, and the order of events in the deeper ones."""
    return [*_depth(data), *_subspaces(data), *_speeds(data), *_ranks(data), _markov(data)]


def course(data: xr.Dataset, which: str) -> xr.Dataset:
    """One of the courses, by what the settings call it: "usual", "steady", "long" and so on.

    Courses without anything to copy have the windows of the same seeds on the plain text.
    """
    one = data.sel(course=data.attrs[which], drop=True)
    if not which.endswith("_without"):
        return one
    plain = data.sel(course=data.attrs[which.removesuffix("_without")], drop=True)
    return one.assign(window=plain["window"])


def _deep(data: xr.Dataset) -> xr.Dataset:
    return data.sel(layers=data["layers"] > 1)


def _each(function: Callable[..., float], one: xr.Dataset, name: str) -> xr.DataArray:
    """`function(steps, curve, start, end)` of every run; NaN where there is no drop."""

    def of(steps: np.ndarray, curve: np.ndarray, start: float, end: float) -> float:
        return function(steps, curve, start, end) if np.isfinite(start + end) else np.nan

    window = one["window"]
    return xr.apply_ufunc(
        of, one["step"], one[name], window.isel(edge=0), window.isel(edge=1), vectorize=True,
        input_core_dims=[["mark"], ["mark"], [], []],
    )  # fmt: skip


def lead(one: xr.Dataset) -> xr.DataArray:
    """log₁₀ of the end of the drop over the step at which a subspace is halfway to its last."""
    return _each(lambda s, c, a, b: np.log10(b / change_time(s, c)), one, "subspace_distance")


def share_done(one: xr.Dataset) -> xr.DataArray:
    """The share of a subspace's way from first to last that is done when the drop ends."""

    def share(steps: np.ndarray, curve: np.ndarray, start: float, end: float) -> float:
        return (curve[0] - np.interp(end, steps, curve)) / (curve[0] - curve[-1])

    return _each(share, one, "subspace_distance")


def _inside(steps: np.ndarray, start: float, end: float) -> np.ndarray:
    return (steps >= start / BESIDE) & (steps <= end * BESIDE)


def turns_inside(one: xr.Dataset) -> xr.DataArray:
    """1 where a subspace turns fastest inside the drop, and 0 where it does so elsewhere."""

    def inside(steps: np.ndarray, speed: np.ndarray, start: float, end: float) -> float:
        return float(_inside(steps, start, end)[np.nanargmax(speed)])

    return _each(inside, one, "subspace_speed")


def fastest_turn(one: xr.Dataset) -> xr.DataArray:
    """The largest speed of a subspace inside the drop."""

    def fastest(steps: np.ndarray, speed: np.ndarray, start: float, end: float) -> float:
        return float(np.nanmax(speed[_inside(steps, start, end)]))

    return _each(fastest, one, "subspace_speed")


def rank_rise(one: xr.Dataset) -> xr.DataArray:
    """The last effective rank less the lowest in the drop, in % of the first: above 0 for a dip."""

    def rise(steps: np.ndarray, rank: np.ndarray, start: float, end: float) -> float:
        return float(100 * (rank[-1] - rank[_inside(steps, start, end)].min()) / rank[0])

    return _each(rise, one, "effective_rank")


def rank_moves_inside(one: xr.Dataset) -> xr.DataArray:
    """1 where the effective rank changes fastest in log time inside the drop, 0 elsewhere."""

    def inside(steps: np.ndarray, rank: np.ndarray, start: float, end: float) -> float:
        slope = np.abs(np.gradient(rank[1:], np.log(steps[1:])))
        return float(_inside(steps[1:], start, end)[np.argmax(slope)])

    return _each(inside, one, "effective_rank")


def _cells(values: Any) -> np.ndarray:
    """[depth and circuit, seed]."""
    others = [dim for dim in values.dims if dim != "seed"]
    return values.stack(cell=others).transpose("cell", "seed").values


def _listed(values: xr.DataArray, digits: int = 2) -> str:
    """Means over seeds by circuit and depth, in words."""
    means = values.mean("seed")
    depths = ", ".join(str(n) for n in means["layers"].values)
    circuits = "; ".join(
        f"{c} {', '.join(f'{v:.{digits}f}' for v in means.sel(circuit=c).values)}"
        for c in means["circuit"].values
    )
    return f"means with {depths} layers: {circuits}"


def _depth(data: xr.Dataset) -> list[Claim]:
    usual = course(data, "usual").isel(mark=-1)
    deep, last = _deep(usual), usual["late_loss"]
    one, more = last.sel(layers=1), deep["late_loss"]
    chance = float(np.log(data.attrs["vocabulary"]))
    heads = deep["prefix_matching"].max(("layer", "head"))
    single = usual["prefix_matching"].sel(layers=1).max()
    listed = ", ".join(f"{float(last.sel(layers=n).max()):.2f}" for n in data["layers"].values)
    accuracy = usual["accuracy"].mean("seed")
    shares = ", ".join(f"{100 * float(a):.0f}%" for a in accuracy)
    depths = ", ".join(str(n) for n in data["layers"].values)
    return [
        below(
            "lt-icl-emerges", "attention-only transformers of two and more layers learn in context",
            "Fig. 5", float(more.max()) / chance, float(data.attrs["learned"]),
            "share of ln V, set beforehand: a loss this low needs copying nearly everywhere",
            f"late loss {listed} of {chance:.2f} for {depths} layers, of the worst seed; accuracy "
            f"on repeats {shares}",
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


def _subspaces(data: xr.Dataset) -> list[Claim]:
    """How far the subspaces are when the in-context score has dropped, by the distance (16)."""
    usual, steady, without = (
        _deep(course(data, which)) for which in ("usual", "steady", "usual_without")
    )
    leads, done = lead(usual), share_done(usual)
    apart = done - share_done(without)
    order = leads.sel(circuit="OV") - leads.sel(circuit="QK")
    by_depth = leads.mean("circuit")
    long = course(data, "long")
    late = float(share_done(_deep(long)).mean())
    ends = ", ".join(
        f"{float(share_done(_deep(course(data, which))).mean()):.2f} ({data.attrs[which]})"
        for which in ("short", "usual", "steady", "long")
    )
    found = [
        two_sided(
            "lt-subspace-halfway", "subspaces are halfway before in-context learning has emerged",
            "Fig. 5, (16)", _cells(leads), 0.0,
            "log₁₀ of the end of the drop over the halfway step, worst depth and circuit",
            f"{_listed(leads)}; under {data.attrs['usual']} the emergence",
        ),
        two_sided(
            "lt-subspace-steady", "they are also at a constant rate, in a training as long",
            "Fig. 5, (16)", _cells(lead(steady)), 0.0, "the same",
            f"{_listed(lead(steady))}; under {data.attrs['steady']} the emergence; where there is "
            f"nothing to copy {_listed(lead(_deep(course(data, 'steady_without'))))}",
        ),
        two_sided(
            "lt-subspace-share", "most of the way of the subspaces is done when it has emerged",
            "Fig. 5, (16)", _cells(done), 0.5, "half of the way, worst depth and circuit",
            f"{_listed(done)}; the mean depends on the course: {ends}",
        ),
        two_sided(
            "lt-subspace-early", "subspaces have stabilised when in-context learning has emerged",
            "Fig. 5, (16)", _cells(done), SETTLED,
            "nine tenths of the way from first to last, worst depth and circuit",
            f"{_listed(done)}; (16) compares with the last weights, so that what moves after the "
            f"emergence counts: {late:.2f} of the way in the longest training",
        ),
        two_sided(
            "lt-subspace-copying", "more of the way is done than where there is nothing to copy",
            "(16)", _cells(apart), 0.0,
            "difference of the shares at the same step, worst depth and circuit",
            f"without anything to copy {_listed(share_done(without))}: under a rate that falls to "
            f"zero subspaces settle whether or not something emerges", beyond=True,
        ),
        two_sided(
            "lt-subspace-order", "OV settles before QK", "Fig. 5", order.mean("layers"), 0.0,
            "log₁₀ of the halfway step of QK over that of OV, mean over depths",
            "by depth " + ", ".join(f"{float(v):.3f}" for v in order.mean("seed").values),
        ),
    ]  # fmt: skip
    if usual.sizes["layers"] > 1:
        change = by_depth.isel(layers=-1) - by_depth.isel(layers=0)
        deepest = int(usual["layers"][-1])
        found.append(
            two_sided(
                "lt-subspace-deeper", "the deeper the model, the earlier its subspaces settle",
                "Fig. 5", change, 0.0,
                f"lead over the end of the drop of {deepest} layers less that of 2, in log₁₀",
                "QK "
                + "{:.3f}, OV {:.3f}".format(
                    *(leads.isel(layers=-1) - leads.isel(layers=0)).mean("seed").values
                ),
            )
        )  # fmt: skip
    return found


def _speeds(data: xr.Dataset) -> list[Claim]:
    """When and how fast the subspaces turn, which needs no last weights."""
    usual, without = (_deep(course(data, which)) for which in ("usual", "usual_without"))
    inside, speed = turns_inside(usual), fastest_turn(usual)
    other = fastest_turn(without)
    counts = "; ".join(
        f"{data.attrs[which]} {_count(turns_inside(_deep(course(data, which))))}"
        for which in ("usual", "steady", "long", "usual_without", "steady_without")
    )
    return [
        two_sided(
            "lt-subspace-turns", "subspaces turn fastest while in-context learning emerges", "",
            _cells(inside), 0.5, "more than half of the seeds, worst depth and circuit",
            f"inside the drop within a factor {BESIDE:g} of its ends, runs and circuits: {counts}",
            beyond=True, share=True,
        ),
        two_sided(
            "lt-subspace-speed", "they turn faster than where there is nothing to copy", "",
            _cells(np.log10(speed / other)), 0.0,
            "log₁₀ of the largest speed in the drop over that at the same steps, worst depth and "
            "circuit",
            f"projector distance per unit of ln(step), {_listed(speed)}; without anything to copy "
            f"{_listed(other)}", beyond=True,
        ),
    ]  # fmt: skip


def _count(inside: xr.DataArray) -> str:
    values = inside.values[np.isfinite(inside.values)]
    return f"{int(values.sum())} of {values.size}"


def _ranks(data: xr.Dataset) -> list[Claim]:
    """The dip of the effective rank of QK, which one layer and OV do not have."""
    usual = course(data, "usual")
    deep = _deep(usual)
    rise = rank_rise(deep)
    # One layer has no drop of its own; it is looked at in that of two layers and the same seed.
    single = usual.sel(layers=[1]).assign(window=usual["window"].sel(layers=[2]).assign_coords(
        layers=[1]))  # fmt: skip
    flat = rank_rise(single)
    moves = rank_moves_inside(deep)
    reason = "last rank less the lowest in the drop, in % of the first: above 0 for a dip"
    return [
        two_sided(
            "lt-rank-dip", "the effective rank of QK dips while in-context learning emerges",
            "Fig. 6, (15)", _cells(rise.sel(circuit="QK")), 0.0, f"{reason}; worst depth",
            f"{_listed(rise)}; the lowest rank of all the training is in the drop in "
            f"{_count(_lowest_inside(deep).sel(circuit='QK'))} runs",
        ),
        two_sided(
            "lt-rank-one", "with one layer, where nothing emerges, it does not dip", "Fig. 6, (15)",
            _cells(flat.sel(circuit="QK")), 0.0, f"{reason}; in the drop of two layers",
            f"it falls by {-_change(single, 'QK'):.1f}% until the end, that of deeper models by "
            f"{-_change(deep, 'QK'):.1f}%: the shape differs, not the size", above=False,
        ),
        two_sided(
            "lt-rank-ov", "the effective rank of OV has no dip: it falls on after the emergence",
            "Fig. 6, (15)", _cells(rise.sel(circuit="OV")), 0.0, f"{reason}; worst depth",
            above=False,
        ),
        two_sided(
            "lt-rank-moves", "the effective rank of QK changes fastest in the emergence",
            "Fig. 6, (15)", _cells(moves.sel(circuit="QK")), 0.5,
            "more than half of the seeds, worst depth",
            f"inside the drop within a factor {BESIDE:g}: QK {_count(moves.sel(circuit='QK'))}, "
            f"OV {_count(moves.sel(circuit='OV'))} runs",
            share=True,
        ),
    ]  # fmt: skip


def _lowest_inside(one: xr.Dataset) -> xr.DataArray:
    def inside(steps: np.ndarray, rank: np.ndarray, start: float, end: float) -> float:
        return float(_inside(steps, start, end)[np.argmin(rank)])

    return _each(inside, one, "effective_rank")


def _change(one: xr.Dataset, circuit: str) -> float:
    rank = one["effective_rank"].sel(circuit=circuit)
    return float((100 * (rank.isel(mark=-1) / rank.isel(mark=0) - 1)).mean())


def _markov(data: xr.Dataset) -> Claim:
    late = slice(-(data.sizes["position"] // 4), None)
    best, single = (
        float(data[name].isel(position=late).mean())
        for name in ("markov_optimal", "markov_unigram")
    )
    loss = data["markov_late_loss"]
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
    """For each claim another experiment that turns its verdict round.

    - One layer in the place of more: what learns in context, its heads, and the dip of QK.
    - Nothing to copy in the place of copying: where subspaces turn, how fast, ranks and dips, and
      where subspaces are at a constant rate.
    - The long training at a constant rate in the place of the usual one: how far subspaces are.
    - The shortest training for what has not yet settled in the usual one.
    - Exchanged circuits, depths or layers for what is about their order.
    """
    turned = data.isel(circuit=slice(None, None, -1))
    exchanged = turned.assign_coords(circuit=data["circuit"])
    depths = [0, *range(data.sizes["layers"] - 1, 0, -1)]  # one layer stays where it is
    backwards = data.isel(layers=depths).assign_coords(layers=data["layers"])
    single = data["layers"].copy(data=np.ones(data.sizes["layers"], int))
    one = data.sel(layers=single).assign_coords(layers=data["layers"])
    one = one.assign(window=data["window"])
    two = data.sel(layers=2 * single).assign_coords(layers=data["layers"])
    long, short = (_as(data, "usual", which) for which in ("long", "short"))
    text, steady_text = (
        _as(data, which, f"{which}_without", window=False) for which in ("usual", "steady")
    )
    unturned = _as(data, "usual", "steady_without", window=False)
    markov = data["markov_late_loss"]
    return {
        "lt-icl-emerges": one,
        "lt-icl-depth": _as(data, "usual", "usual_without"),
        "lt-induction": one,
        "lt-subspace-halfway": long,
        "lt-subspace-steady": steady_text,
        "lt-subspace-share": long,
        "lt-subspace-early": short,
        "lt-subspace-copying": text,
        "lt-subspace-order": exchanged,
        "lt-subspace-deeper": backwards,
        "lt-subspace-turns": unturned,
        "lt-subspace-speed": text,
        "lt-rank-dip": text,
        "lt-rank-one": two,
        "lt-rank-ov": exchanged,
        "lt-rank-moves": text,
        "lt-markov": data.assign(markov_late_loss=markov.copy(data=markov.values[::-1])),
    }


def _as(data: xr.Dataset, which: str, other: str, *, window: bool = True) -> xr.Dataset:
    """The data with one course in the place of another, with its windows or those that were."""
    names = [str(name) for name in data["course"].values]
    place = names.index(data.attrs[which])
    order = list(range(len(names)))
    order[place] = names.index(data.attrs[other])
    found = data.isel(course=order).assign_coords(course=data["course"])
    return found if window else found.assign(window=data["window"])
