"""The assumption-breaking atlas: the error of the theory where one assumption is broken."""

from typing import Any

import numpy as np
import xarray as xr

from iclflow.sweeps.design import Design
from iclflow.sweeps.examples.base import Example, ExampleAnswer

# The field whose value says how strongly an assumption is broken.
STRENGTH = {
    "init scale": "scale",
    "rate": "rate",
    "momentum": "momentum",
    "Adam": "rate",
    "finite P": "sequences",
    "minibatch": "batch",
    "free zero blocks": "blocks",
    "inputs": "inputs",
    "softmax": "context",
}
CLOCKLESS = ("Adam",)  # no time to compare: the ratio of the drop times is
BY_DETECTOR = ("softmax",)  # no levels to cross: the stage detector says when
GAUSSIAN = ("inputs",)  # the theory knows these inputs: broken is the one for Gaussian inputs


def answer(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """The median relative error of the drop times of each case, over runs and drops."""
    del example
    labels = store["label"].values.tolist()
    base = store["predicted_times"].values[labels.index("none")]
    errors, seen = np.full((2, len(labels)), np.nan)
    for i, label in enumerate(labels):
        measured = store["detected_times" if label in BY_DETECTOR else "drop_times"].values[i]
        measured = measured[:, : base.shape[1]]
        said = store["predicted_times"].values[i]
        said = base if label in GAUSSIAN or not np.isfinite(said).any() else said
        said = said[:, : measured.shape[1]]
        settings = design.settings((i,))
        if label == "momentum":  # a step of the heavy ball is 1/(1 - β) steps
            measured = measured * 2 * settings.rate / (1 - settings.momentum)  # pyright: ignore
        if label in CLOCKLESS:
            measured, said = measured[:, 1:] / measured[:, :1], said[:, 1:] / said[:, :1]
        error = np.abs(measured / said - 1)
        errors[i] = np.median(error[np.isfinite(error)]) if np.isfinite(error).any() else np.nan
        seen[i] = np.isfinite(error).mean()
    strength = [_strength(design, i, label) for i, label in enumerate(labels)]
    data = xr.Dataset(
        {"error": ("case", errors), "seen": ("case", seen)}
        | {n: (("case", "seed"), store[n].values) for n in ("lyapunov", "regime") if n in store},
        {"label": ("case", labels), "strength": ("case", strength)},
    )
    lines = [
        f"{label} {value}: error {error:.2%}, {share:.0%} of the drops seen{_regimes(data, i)}"
        for i, (label, value, error, share) in enumerate(
            zip(labels, strength, errors, seen, strict=True)
        )
    ]
    names = ("label", "strength", "error", "seen")
    rows = zip(labels, strength, errors, seen, strict=True)
    return ExampleAnswer(
        {"cases": [dict(zip(names, row, strict=True)) for row in rows]}, lines, data
    )


def _strength(design: Design, place: int, label: str) -> str:
    value = getattr(design.settings((place,)), STRENGTH.get(label, "rate"))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _regimes(data: xr.Dataset, place: int) -> str:
    """How descent ends and its exponent, where the rate is what is broken."""
    if data["label"].values[place] != "rate":
        return ""
    kinds = sorted({str(kind) for kind in data["regime"].values[place]})
    exponents = data["lyapunov"].values[place]
    finite = exponents[np.isfinite(exponents)]
    exponent = float(np.median(finite)) if finite.size else np.nan
    return f"; {' or '.join(kinds)}, exponent {exponent:z.3f}"


def figure(example: Example, answer: ExampleAnswer) -> Any:
    """The errors as colours, and the regimes of descent with their exponents."""
    from iclflow.plots.sweeps import atlas_figure

    return atlas_figure(answer.data, title=example.question)
