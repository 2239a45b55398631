"""A look at a sweep: a variable against one axis or over two, pooled over what is not asked for."""

import warnings
from pathlib import Path

import numpy as np
import xarray as xr

from iclflow.results.messages import require_choice
from iclflow.sweeps.design import DRAW

QUANTILES = {"low": 0.1, "middle": 0.5, "high": 0.9}
LINES = 12  # at most, of one colour or kind


def look(store: xr.Dataset, x: str, y: str, colour: str | None, path: Path | str) -> xr.Dataset:
    """`y` against `x`: quantiles over seeds, or single points, ready to be drawn.

    With `x` an axis: `low`, `middle`, `high` [colour, kind, x], the quantiles 0.1, 0.5 and 0.9 over
    all other dimensions; `kind` is a further dimension of y (the drop). With `x` random, or a
    variable: `x` and `y` [colour, kind, point].
    """
    whole = _read(store, [x, y, *([] if colour is None else [colour])], path)
    _require_number(whole, y, "--y")
    if colour is not None and (colour not in store.coords or colour == x):
        raise ValueError(f"--color needs another axis than --x, got {colour}")
    lead = {*store["result"].dims}
    kinds = [str(d) for d in whole[y].dims if d not in lead]
    on = whole[x].dims[0] if x in store.coords else None
    whole = (
        whole.rename({kinds[0]: "_kind"}) if kinds else whole.assign({y: _alone(whole[y], "_kind")})
    )
    names = [""] if colour is None else _names(whole[colour])
    if colour is not None:
        whole = whole.swap_dims({whole[colour].dims[0]: "_colour"})
    found = whole[y] if colour is not None else _alone(whole[y], "_colour")
    label = {
        "x": x,
        "y": y,
        "colour": colour or "",
        "kind": kinds[0].removesuffix("_number") if kinds else "",
    }
    label |= {f"{n}_label": _label(whole[v]) for n, v in (("x", x), ("y", y))}
    if on is not None and on != DRAW:
        others = [d for d in found.dims if d not in ("_colour", "_kind", on)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # no run had this drop: NaN
            values = {
                n: found.quantile(q, others).drop_vars("quantile") for n, q in QUANTILES.items()
            }
        order = ("_colour", "_kind", on)
        data = {
            name: (("colour", "kind", "x"), a.transpose(*order).values)
            for name, a in values.items()
        }
        labels = whole[x].values
        return xr.Dataset(data, {"x": labels, "colour": names}, label)
    beside = (
        whole[x].rename({kinds[0]: "_kind"}) if kinds and kinds[0] in whole[x].dims else whole[x]
    )
    left, right = xr.broadcast(beside.astype(float), found)
    rest = [d for d in right.dims if d not in ("_colour", "_kind")]
    flat = [a.stack(_point=rest).transpose("_colour", "_kind", "_point").values
            for a in (left, right)]  # fmt: skip
    dims = ("colour", "kind", "point")
    return xr.Dataset({"x": (dims, flat[0]), "y": (dims, flat[1])}, {"colour": names}, label)


STATISTICS = {
    "median": "median",
    "mean": "mean",
    "spread": "10-90 % range",
    "share": "share of runs with a finite value",
}


def look_map(
    store: xr.Dataset, x: str, y: str, z: str, statistic: str = "median", path: Path | str = "sweep"
) -> xr.Dataset:
    """`z` over two axes of a sweep, one number per square, ready to be drawn as a map.

    - `store`: what `sweep` or a design returned.
    - `x`, `y`: two axes of it.
    - `z`: a number of each run, or one per drop: then there is one map per drop.
    - `statistic`: what is shown of all runs of a square, over the seeds and the axes that were not
      named: `median`, `mean`, `spread` (from 10 to 90 %) or `share` (how many have a finite value).
      A drop that a run did not reach counts as later than all others in the median, so that the
      median is missing where half of the runs did not reach it.
    - `path`: what messages call the store.

    Gives `z` [kind, y, x] with the coordinates x and y, and in its attributes the labels, the
    number of runs per square and how many values were missing.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=15)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> axes = {"scale": [0.1, 0.2], "context": [7, 15, 31]}
    >>> runs = icl.sweep(
    ...     task, init, icl.Descent(0.2), until=9, seeds=3, axes=axes, record=["final_loss"]
    ... )
    >>> found = icl.sweeps.look_map(runs, "scale", "context", "final_loss")
    >>> dict(found.z.sizes), found.attrs["runs"]
    ({'kind': 1, 'y': 3, 'x': 2}, 3)
    """
    require_choice("statistic", statistic, STATISTICS)
    whole = _read(store, [x, y, z], path)
    _require_number(whole, z, "--z")
    for option, name in (("--x", x), ("--y", y)):
        if name not in store.coords or store[name].dims == () or name == z:
            axes = [str(n) for n in store.coords if store[n].dims and n not in ("time", "step")]
            raise ValueError(f"{option} of a map needs an axis of the sweep, got {name}; the axes "
                             f"are {', '.join(axes) or 'none'}")  # fmt: skip
    across, up = whole[x].dims[0], whole[y].dims[0]
    if across == up:
        raise ValueError(f"a map needs two different axes, and {x} and {y} vary together")
    lead = {*store["result"].dims}
    kinds = [str(d) for d in whole[z].dims if d not in lead]
    found = whole[z] if kinds else _alone(whole[z], "_kind")
    kind = kinds[0] if kinds else "_kind"
    over = [d for d in found.dims if d not in (across, up, kind)]
    array = found.transpose(kind, up, across, *over).values.astype(float)
    flat = array.reshape(*array.shape[:3], -1)
    label = {
        "x": x, "y": y, "z": z, "kind": kinds[0].removesuffix("_number") if kinds else "",
        "statistic": statistic, "runs": flat.shape[-1],
        "over": ", ".join(str(d) for d in over), "missing": int(np.sum(~np.isfinite(flat))),
        "statistic_label": STATISTICS[statistic],
    }  # fmt: skip
    label |= {f"{n}_label": _label(whole[v]) for n, v in (("x", x), ("y", y), ("z", z))}
    drops = kind == "drop_number"
    data = {"z": (("kind", "y", "x"), _statistic(flat, statistic, drops))}
    return xr.Dataset(data, {"x": whole[x].values, "y": whole[y].values}, label)


def _statistic(values: np.ndarray, name: str, late: bool) -> np.ndarray:
    """One number of all runs of a square; with `late` a missing one counts as infinite."""
    finite = np.isfinite(values)
    if name == "share":
        return finite.mean(axis=-1)
    known = finite.any(axis=-1)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no run has this number: NaN
        if name == "mean":
            found = np.nanmean(np.where(finite, values, np.nan), axis=-1)
        else:
            ranked = np.where(finite, values, np.inf if late else np.nan)
            if name == "median":
                found = np.nanmedian(ranked, axis=-1)
            else:
                low, high = np.nanquantile(ranked, (QUANTILES["low"], QUANTILES["high"]), axis=-1)
                found = high - low
    return np.where(known & np.isfinite(found), found, np.nan)


def _read(store: xr.Dataset, names: list[str], path: Path | str) -> xr.Dataset:
    """These variables, in memory; `ValueError` in one line where one is not there or damaged."""
    if "result" not in store:
        raise ValueError(f"{path} holds no runs of a sweep: it has no variable result")
    for name in names:
        require_choice(f"variable in {path}", name, [str(n) for n in store.variables])
    try:
        return store[names].load()
    except Exception as error:  # damaged bytes raise almost anything
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} is damaged: {reason}; the sweep's own command mends it") from None


def _require_number(whole: xr.Dataset, name: str, option: str) -> None:
    """Raise `ValueError` unless a variable has one number per run, or a few."""
    if name in whole.coords:
        hint = ""
        if option == "--y":
            hint = ", or --z of a map over two axes"
        raise ValueError(
            f"{name} is an axis of the sweep; {option} needs a number of each run, as "
            f"final_loss{hint}"
        )
    if whole[name].dtype.kind not in "fiu":
        raise ValueError(
            f"{name} is not made of numbers; {option} needs one that is, as final_loss"
        )
    if "time" in whole[name].dims:
        raise ValueError(
            f"{name} is a curve over time; {option} needs one number per run, such as final_loss"
        )


def _alone(found: xr.DataArray, dim: str) -> xr.DataArray:
    return found.astype(float).expand_dims({dim: [0]})


def _names(colour: xr.DataArray) -> list[str]:
    if colour.size > LINES:
        raise ValueError(
            f"--color {colour.name} has {colour.size} values; {LINES} can be told apart"
        )
    values = colour.values.tolist()
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values]


def _label(variable: xr.DataArray) -> str:
    name = str(variable.attrs.get("long_name", variable.name))
    name = name if len(name) < 60 else str(variable.name)
    return rf"{name}, $t/\tau$" if str(variable.attrs.get("units", "")).startswith("t/") else name
