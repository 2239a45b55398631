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
    whole = whole.rename({kinds[0]: "_kind"}) if kinds else whole
    found = whole[y] if kinds else whole[y].astype(float).expand_dims(_kind=[0])
    found = found.expand_dims(_colour=[0]) if colour is None else _along(found, whole, colour)
    label = {"x": x, "y": y, "colour": colour or "", "kind": kinds[0] if kinds else ""}
    label |= {f"{n}_label": _label(whole[v]) for n, v in (("x", x), ("y", y))}
    names = _names(whole, colour, found)
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


def _along(found: xr.DataArray, whole: xr.Dataset, colour: str) -> xr.DataArray:
    (dim,) = whole[colour].dims
    if whole.sizes[dim] > LINES:
        raise ValueError(
            f"--color {colour} has {whole.sizes[dim]} values; {LINES} can be told apart"
        )
    return found.rename({dim: "_colour"})


def _names(whole: xr.Dataset, colour: str | None, found: xr.DataArray) -> list[str]:
    if colour is None:
        return [""] * found.sizes["_colour"]
    return [f"{value:g}" if isinstance(value, float) else str(value)
            for value in whole[colour].values.tolist()]  # fmt: skip


def _label(variable: xr.DataArray) -> str:
    name = str(variable.attrs.get("long_name", variable.name))
    return name if len(name) < 60 else str(variable.name)
