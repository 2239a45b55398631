"""Ahn, Cheng, Daneshmand and Sra: layers that move inputs and labels, trained by Adam."""

import re
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from iclflow.dynamics import Adam, Descent
from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.reading import PublishedTable
from iclflow.losses.sequences import Sequences
from iclflow.losses.stochastic import Fresh
from iclflow.models import AbstractModel
from iclflow.runs.simulate import simulate
from iclflow.tasks.base import Prompt
from iclflow.tasks.task import Task


class MovingLayers(AbstractModel):
    """Z ← Z + (1/N) P_l Z M Zᵀ Q_l Z, P_l = diag(A_l, 1) and Q_l = diag(B_l, 0); ŷ = - label.

    Unlike `Layers` it moves the inputs of the tokens too; M leaves the query out as a key.

    - `move`, `match`: A_l and B_l of every layer.
    """

    move: Float[Array, "L D D"]
    match: Float[Array, "L D D"]

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        tokens = prompt.tokens
        size = prompt.inputs.shape[1]
        inputs, labels = tokens[:, :size], tokens[:, size:]
        count = len(tokens) - 1

        def layer(state: tuple, weights: tuple) -> tuple[tuple, None]:
            x, y = state
            moved, matched = weights
            scores = x[:-1] @ matched @ x.T / count  # [pair, token]
            return (x + scores.T @ x[:-1] @ moved.T, y + scores.T @ y[:-1]), None

        (_, labels), _ = jax.lax.scan(layer, (inputs, labels), (self.move, self.match))
        return -labels[-1]

    @classmethod
    def start(cls, layers: int, size: int, deviation: float, key: jax.Array) -> "MovingLayers":
        """Small normal entries."""
        drawn = deviation * jax.random.normal(key, (2, layers, size, size))
        return cls(drawn[0], drawn[1])


def _stated(table: PublishedTable, pattern: str) -> float:
    found = re.search(pattern, table.header)
    if found is None:
        raise ValueError(f"the header of {table.name} states no number like {pattern!r}")
    return float(found[1])


def three_layers(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The training loss of white inputs, seeds together, at iterations evenly in the logarithm."""
    size, pairs = int(table.setting("d")), int(table.setting("N"))
    layers = int(_stated(table, r"model: (\d+) layers"))
    batch = int(_stated(table, r"fresh batch of (\d+)"))
    rate, start = _stated(table, r"rate ([\d.]+), fresh"), _stated(table, r"N\(0, ([\de.-]+)\)")
    white = np.flatnonzero(table["inputs"] == "white")
    steps = table["iteration"][white]
    last = 200 if quick else 6000
    known = np.unique(steps[(steps > 0) & (steps <= last)])
    wanted = np.unique(known[np.linspace(0, len(known) - 1, min(10, len(known))).astype(int)])
    task = Task([1.0] * size, pairs)
    seeds = 1 if quick else 2
    runs = {}
    for many in (layers, 1):
        runs[many] = np.stack([
            _losses(task, many, batch, rate, start**0.5, wanted, seed) for seed in range(seeds)
        ])  # fmt: skip
        report(0.5 if many == layers else 1.0)
    cells = Cells()
    for i, step in enumerate(wanted):
        some = table["loss"][white][steps == step]
        ours = runs[layers][:, i]
        # seeds differ by a fifth; a batch of our own scatters besides
        spread = max(float(some.std()), 0.1 * float(some.mean()))
        error = error_of_difference(spread, max(len(some), 2), ours if seeds > 2 else None)
        error = (error**2 + (0.1 * float(ours.mean())) ** 2) ** 0.5
        cells.add(
            f"white, iteration {step:.0f}", some.mean(), ours.mean(), error, runs[1][:, i].mean()
        )
    return Found(
        cells, "one layer instead of three", len(np.unique(steps)),
        note="weak: seeds of theirs differ by a fifth, taken as a tenth at least; the rotated "
        "inputs are not recomputed",
    )  # fmt: skip


def _losses(
    task: Task, layers: int, batch: int, rate: float, deviation: float, steps: np.ndarray,
    seed: int,
) -> np.ndarray:  # fmt: skip
    """The loss on fresh prompts at some steps."""
    fixed = Sequences.sample(task, batch, jax.random.key(90 + seed))  # the loss that is reported
    model = MovingLayers.start(layers, task.size, deviation, jax.random.key(seed))
    run: Any = simulate(
        Fresh(task, fixed, batch), model, Descent(rate, Adam(b1=0.9, b2=0.9)),
        saveat=[0, *steps.astype(int).tolist()], record=("loss",), key=jax.random.key(50 + seed),
    )  # fmt: skip
    return np.asarray(run.loss)[1:]
