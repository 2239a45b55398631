"""A look at a sweep: one variable against another, pooled over what is not asked for."""

import warnings
from pathlib import Path

import xarray as xr

from iclflow.results.choices import require_choice
from iclflow.sweeps.axes import DRAW

QUANTILES = {"low": 0.1, "middle": 0.5, "high": 0.9}
LINES = 12  # at most, of one colour or kind


def look(store: xr.Dataset, x: str, y: str, colour: str | None, path: Path | str) -> xr.Dataset:
    """`y` against `x`: quantiles over seeds, or single points, ready to be drawn.

    With `x` an axis: `low`, `middle`, `high` [colour, kind, x], the quantiles 0.1, 0.5 and 0.9 over
    all other dimensions; `kind` is a further dimension of y (the drop). With `x` random, or a
    variable: `x` and `y` [colour, kind, point].
    """
    for name in (x, y, *(() if colour is None else (colour,))):
        require_choice(f"variable in {path}", name, [str(n) for n in store.variables])
    if y in store.coords:
        raise ValueError(
            f"{y} is an axis of the sweep; --y needs a number of each run, as final_loss"
        )
    try:
        whole = store[[x, y, *([] if colour is None else [colour])]].load()
    except Exception as error:  # damaged bytes raise almost anything
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} is damaged: {reason}; the sweep's own command mends it") from None
    if whole[y].dtype.kind not in "fiu":
        raise ValueError(f"{y} is not made of numbers; --y needs one that is, as final_loss")
    if "time" in whole[y].dims:
        raise ValueError(f"{y} is a curve over time; --y needs one number a run, as final_loss")
    if colour is not None and (colour not in store.coords or colour == x):
        raise ValueError(f"--color needs another axis than --x, got {colour}")
    lead = {*store["content"].dims}
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
