"""Kunin et al.: a run of rank-one attention with four drops, from its initial weights."""

import re

import jax.numpy as jnp
import numpy as np

from iclflow.experiments.field.comparisons.cells import Cells, Check, Found, Report
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.models import Separate
from iclflow.tasks.base import Normaliser
from iclflow.tasks.task import Task
from iclflow.theory.predict import predict

SHARP = 3  # drops that batches of this size move by less than the tolerance
DROP = 5e-3


def staircase(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The loss at the printed steps, which head ends each plateau, and when."""
    covariance = table["Lambda"]
    pairs = int(table.setting("N"))
    batch = table.number(r"batch of ([\d,]+)", "size of the batches")
    # of a loss without their factor 1/2, so that t/τ is the rate of theirs times the step
    clock = table.number(rf"SGD, rate {NUMBER}", "rate")
    task = Task.from_covariance(covariance, pairs, normaliser=Normaliser.NONE)
    values, keys, queries = (jnp.asarray(table[n]) for n in ("values", "keys", "queries"))
    shape = (len(values), len(covariance))
    if values.ndim != 1 or keys.shape != shape or queries.shape != shape:
        raise ValueError(
            f"{table.name} needs keys and queries of shape {shape}, one row per value and one "
            f"column per input, got {keys.shape} and {queries.shape}"
        )
    model = Separate(values=values[:, None, None], keys=keys[:, None], queries=queries[:, None])
    # the mistake: 1/N of another convention, which would be the usual one here
    scaled = predict(Task.from_covariance(covariance, pairs), model, probes=0)
    report(0.3)
    theory = predict(task, model, probes=0)
    report(0.9)
    steps, losses = table["sgd_loss_values"].T
    said, wrong = (np.asarray(found.curve(clock * steps).loss) / 2 for found in (theory, scaled))
    cells = Cells()
    for i, step in enumerate(steps):
        error = said[i] * (2 / batch) ** 0.5
        cells.add(f"loss at step {step:,.0f}", losses[i], said[i], error, wrong[i])
    drops, heads = table["agf_values"].T
    ours, ours_heads = np.asarray(theory.times) / clock, np.asarray(theory.heads)
    late = np.asarray(scaled.times) / clock
    checks = []
    for step, head in zip(drops, heads, strict=True):
        place = int(np.argmin(np.abs(ours - step)))
        found = place + 1
        checks.append(Check(
            f"head-{found}", f"the head that ends plateau {found}", float(head),
            float(ours_heads[place]), 0.1, float((ours_heads[place] + 1) % len(values)),
        ))  # fmt: skip
        if place < SHARP:
            checks.append(Check(
                f"drop-{found}", f"the step of drop {found}, theirs over ours", 1.0,
                float(step / ours[place]), DROP, float(step / late[min(place, len(late) - 1)]),
            ))  # fmt: skip
    report(1.0)
    return Found(
        cells, "attention divided by N", len(steps), tuple(checks),
        note="the last of four drops is 4 % later than theirs, whose batches are finite",
        authors=_stated_cost(table),
    )  # fmt: skip


def _stated_cost(table: PublishedTable) -> float:
    """The authors' seconds, "wall time stated: 8 min 51 s"; NaN where they state none."""
    found = re.search(r"wall time stated: (?:(\d+) min )?(\d+) s", table.header)
    return 60.0 * int(found[1] or 0) + int(found[2]) if found else float("nan")
