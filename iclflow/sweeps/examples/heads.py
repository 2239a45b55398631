"""More heads: the first plateau, and the law of the fastest of H dormant heads."""

import dataclasses

import numpy as np
import xarray as xr

from iclflow.models import draw_models
from iclflow.study.study import Study
from iclflow.sweeps.design import Design
from iclflow.sweeps.examples import curve
from iclflow.sweeps.examples.base import Example, ExampleAnswer
from iclflow.theory.drops.limit import many_escapes

SINGLE = 20_000  # single heads behind the law
figure = curve.figure


def answer(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """The curve, and the median of the fastest of H heads from the law of a single one."""
    found = curve.answer(example, store, design)
    settings = dataclasses.replace(design.settings((0,)), heads=1)
    study = Study.of(settings)
    single = many_escapes(study.task, draw_models(study.init, range(SINGLE))).times[:, 0]
    heads = store["heads"].values
    medians = [fastest(single, int(h)) for h in heads]
    found.data["formula"] = ("x", medians)
    seen = found.data["middle"].values[0, 0]
    error = np.abs(np.asarray(medians) / seen - 1)
    numbers = {**found.numbers, "fastest_of_heads": medians, "formula_error": error.tolist()}
    lines = [*found.lines, "median first drop by the law of the fastest of H:"]
    for h, time, off in zip(heads, medians, error, strict=True):
        lines.append(f"  H = {h}: {time:.5g}, {off:.1%} off")
    return ExampleAnswer(numbers, lines, found.data)


def fastest(single: np.ndarray, heads: int, share: float = 0.5) -> float:
    """The time by which the fastest of H heads has escaped with probability `share`.

    Dormant heads do not feel each other, and (36) gives each the weights of a single one over √H,
    so P(t₁ > t) = P(T > t/√H)^H, T the escape time of a single head at the same init scale.
    """
    needed = 1 - (1 - share) ** (1 / heads)
    return float(np.sqrt(heads) * np.quantile(single, needed))
