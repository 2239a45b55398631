"""Answers by curve: a number of the runs along an axis, the theory's beside it, and their error."""

from typing import Any

import numpy as np
import xarray as xr

from iclflow.sweeps.design import Design
from iclflow.sweeps.examples.base import Example, ExampleAnswer
from iclflow.sweeps.look import look


def answer(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """Medians along the axis, relative errors run by run, and slopes in log-log."""
    del design
    data = look(store, example.x, example.y, None, example.name)
    theory = look(store, example.x, example.theory, None, example.name)
    data["theory"] = theory["middle"]
    ratio = store[example.theory].values / store[example.y].values
    error = np.abs(ratio - 1)
    numbers: dict[str, Any] = {"runs": int(store["content"].size)}
    numbers |= {"drops_compared": int(np.isfinite(error).sum())}
    numbers |= {"median_error": _quantile(error, 0.5), "error_90": _quantile(error, 0.9)}
    lines = [
        f"{numbers['drops_compared']} drops seen and predicted, from the same initial weights: "
        f"relative error {numbers['median_error']:.2%} (median), {numbers['error_90']:.2%} (90%)"
    ]
    rows = _rows(store, example, error)
    numbers["by_value"] = rows
    lines += [
        f"  {example.x} = {row['value']}: first drop at {row['time']:.5g}, theory "
        f"{row['theory']:.5g}, error {row['error']:.2%}"
        for row in rows
    ]
    slopes = _slopes(data)
    if slopes is not None:
        numbers |= {"slope": slopes[0], "slope_of_theory": slopes[1]}
        lines.append(f"first drop ~ {example.x}^{slopes[0]:.3f}; theory ^{slopes[1]:.3f}")
    return ExampleAnswer(numbers, lines, data)


def _rows(store: xr.Dataset, example: Example, error: np.ndarray) -> list[dict[str, Any]]:
    """The first drop along the axis: medians over runs, and the error over all drops."""
    measured, theory = (np.asarray(store[n].values) for n in (example.y, example.theory))
    place = store[example.y].dims.index(store[example.x].dims[0])
    values = store[example.x].values.tolist()
    rows = []
    for i, value in enumerate(values):
        first, said, off = (np.take(a, i, axis=place) for a in (measured, theory, error))
        both = np.isfinite(first[..., 0]) & np.isfinite(said[..., 0])
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        row = {"value": shown, "time": _quantile(first[..., 0][both], 0.5)}
        row |= {"theory": _quantile(said[..., 0][both], 0.5), "error": _quantile(off, 0.5)}
        rows.append(row)
    return rows


def _quantile(values: np.ndarray, share: float) -> float:
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.quantile(finite, share)) if finite.size else float("nan")


def _slopes(data: xr.Dataset) -> tuple[float, float] | None:
    """Of the first drop and of the theory's, by least squares in log-log."""
    x = data["x"].values
    if x.dtype.kind not in "fiu" or x.min() <= 0:
        return None
    pair = [data[name].values[0, 0] for name in ("middle", "theory")]
    ok = np.isfinite(pair[0]) & np.isfinite(pair[1])
    if ok.sum() < 3:
        return None
    first, second = (float(np.polyfit(np.log(x[ok]), np.log(y[ok]), 1)[0]) for y in pair)
    return first, second


def figure(example: Example, answer: ExampleAnswer) -> Any:
    """The curve, theory dashed."""
    from iclflow.plots.sweeps import sweep_figure

    return sweep_figure(answer.data, title=example.question)
