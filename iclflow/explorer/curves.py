"""Which saves of recorded runs a page shows; for reports also the curves and their script."""

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from iclflow.explorer.page import glue, text

DIGITS = 5  # more than a screen shows
MARKS = 240  # saves evenly in log time; more where the loss moves
MOVED = 1 / 250  # of the largest loss
MOST = 4000  # saves that the page takes


def panels(
    data: xr.Dataset,
    *,
    panels: str,
    title: str,
    of: tuple[tuple[str, str], ...] = (),
    **names: Any,
) -> Iterator[dict[str, Any]]:
    """What `web/page/figure.js` mounts of a Dataset, by the names of an `experiments.base.Live`.

    - `of`: pairs of a dimension and its one value that is shown.
    - `panels`: a dimension with a panel for each of its values; one panel if empty.
    - `title`: of the panel, with the value of the dimension behind it.
    """
    data = data.sel(dict(of))
    if not panels:
        yield {"title": title, **_panel(data, **names)}
        return
    for i in range(data.sizes[panels]):
        value = data[panels].values[i] if panels in data.coords else i
        yield {"title": f"{title}{value}", **_panel(data.isel({panels: i}), **names)}


def _panel(
    data: xr.Dataset,
    *,
    loss: str,
    theory: str,
    levels: str,
    times: str,
    time: str,
    clock: str,
    theory_time: str,
    until: str,
    tests: tuple[tuple[str, str], ...],
    lines: str,
    lines_theory: str,
    ends: str,
    lines_name: str,
    runs: str,
    front: int,
    dashed: str,
    model: str,
    loss_name: str,
) -> dict[str, Any]:
    losses, clocks = np.atleast_2d(data[loss].values), data[time].values
    dim = str(data[loss].dims[0]) if data[loss].ndim == 2 else ""
    found = []
    for i, own in enumerate(losses):
        at = clocks if clocks.ndim == 1 else clocks[i]
        kept = np.asarray(shown(at, own[None]))
        run: dict[str, Any] = {
            "name": f"{data[dim].values[i]:.3g}" if dim in data.coords else str(i),
            "time": at[kept],
            "loss": own[kept],
            "tests": [_of(data, name, i, dim)[kept] for name, _ in tests],
            "levels": _of(data, levels, i, dim),
            "drops": np.atleast_1d(_of(data, times, i, dim)),
            "lines": np.atleast_2d(_of(data, lines, i, dim).T)[:, kept] if lines else [],
        }
        if lines_name.endswith("|"):
            run["lines"] = np.abs(run["lines"])
        if lines_theory:
            run["linesTheory"] = _of(data, lines_theory, i, dim).T[:, kept]
        if theory in data:
            run |= _theory(data, theory, theory_time, i, dim, at, kept)
        if until and "theory" in run:
            run["theory"] = np.where(at[kept] <= _of(data, until, i, dim), run["theory"], np.nan)
        found.append({name: _short(value) for name, value in run.items()})
    return {
        "clock": clock,
        "runs": runs,
        "all": found,
        "front": min(front, len(found) - 1),
        "tests": [name for _, name in tests],
        "lines": lines_name if lines else "",
        "ends": _short(data[ends].values) if ends else [],
        "dashed": dashed if theory in data or lines_theory else "",
        "model": model,
        "lossName": loss_name,
    }


def _of(data: xr.Dataset, name: str, i: int, dim: str) -> np.ndarray:
    """A variable of run `i`, or one that all runs share; nothing without a name."""
    if not name:
        return np.zeros(0)
    return np.asarray(data[name].isel({dim: i}) if dim in data[name].dims else data[name])


def _theory(
    data: xr.Dataset, name: str, clock: str, i: int, dim: str, at: np.ndarray, kept: np.ndarray
) -> dict[str, np.ndarray]:
    """The predicted loss of run `i`, where there is one."""
    if not clock:
        mine = dim in data[name].dims or i == 0
        return {"theory": _of(data, name, i, dim)[kept]} if mine else {}
    own = data[name].dims[0]  # its coordinate says which run a row belongs to
    same = np.flatnonzero(np.isclose(data[own].values, data[dim].values[i], rtol=1e-9))
    if not same.size:
        return {}
    times, values = (data[variable].values[same[0]] for variable in (clock, name))
    return {"theory": np.interp(at[kept], times, values, left=values[0], right=np.nan)}


def element(name: str, found: list[dict[str, Any]]) -> str:
    """The panels as an element of the page, for the figure of that name."""
    packed = base64.b64encode(zlib.compress(json.dumps(found).encode(), 9)).decode()
    return f'<script type="text/plain" class="curves" data-figure="{name}">{packed}</script>'


def script() -> str:
    """What mounts all curves of a page."""
    return glue("page/figure.js")


def style() -> str:
    """How they look, given the page's own colours of paper and ink."""
    return text("plot.css")


def _short(values: Any) -> Any:
    """Numbers of a few digits, as JSON has them; null for what is not finite."""
    if isinstance(values, str):
        return values
    if np.ndim(values):
        return [_short(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if np.isfinite(values) else None


def shown(times: np.ndarray, losses: np.ndarray) -> list[int]:
    """The saves that a page needs: evenly in the logarithm of time, and wherever a loss moves."""
    first = times[times > 0][0]
    wanted = set(np.searchsorted(times, np.geomspace(first, times[-1], MARKS)).tolist())
    kept, tolerance = [0], np.max(np.abs(losses)) * MOVED
    for i in range(1, len(times)):
        if i in wanted or np.max(np.abs(losses[:, i] - losses[:, kept[-1]])) > tolerance:
            kept.append(i)
    if len(kept) <= MOST:
        return kept
    return [kept[i] for i in np.linspace(0, len(kept) - 1, MOST).astype(int)]
