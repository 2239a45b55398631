"""Li, Bai and Huang: Adam on one matrix or on a product of two, from weights that are not small."""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclflow.dynamics import Adam, Descent
from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.end_points import seed_of
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.experiments.field.comparisons.tokens import spin_task
from iclflow.losses.label_population import LabelPopulation
from iclflow.losses.label_rows import label_rows
from iclflow.models import LabelRow
from iclflow.runs.simulate import simulate
from iclflow.theory.ridge import ridge


@eqx.filter_jit
def _trained(losses, models, rate, epochs, rule):
    """The weights after so many steps of Adam, of all repeats at once."""

    def one(loss, model):
        run = simulate(loss, model, Descent(rate, rule), saveat=[0, epochs], record=())
        return run.model

    return eqx.filter_vmap(one)(losses, models)


def sample(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The test error after training on P prompts, below and above P = D²."""
    size, context = int(table.setting("D")), int(table.setting("N"))
    rate = table.number(rf"settings:.* rate {NUMBER}", "rate")
    epochs = int(table.number(r"settings:.* (\d+) epochs", "number of epochs"))
    rule = _adam(table)
    task = spin_task(size, context)
    population = LabelPopulation(task)
    repeats = 8 if quick else 50
    rows = sorted(range(len(table)), key=lambda i: (table["P"][i], table["model"][i]))
    if quick:  # one of each kind below D² prompts, where the optimiser decides
        rows = [next((i for i in rows if table["model"][i] == kind), rows[0])
                for kind in dict.fromkeys(table["model"].tolist())]  # fmt: skip
    cells = Cells()
    for done, row in enumerate(rows):
        kind, prompts = str(table["model"][row]), int(table["P"][row])
        rank = None if kind == "merged" else size + 1
        init = LabelRow.initialiser(task, rank=rank)
        keys = jax.random.split(jax.random.key(seed_of(kind, prompts)), repeats)
        samples = [label_rows(task, prompts, key) for key in keys]
        models = [init(jax.random.fold_in(key, 1)) for key in keys]
        loss, start = (jax.tree.map(lambda *a: jnp.stack(a), *n) for n in (samples, models))
        ended = _trained(loss, start, rate, epochs, rule)
        matrices = jax.vmap(lambda m: m.matrix)(ended)
        ours = np.asarray([float(population(LabelRow(left=None, right=m))) for m in matrices])
        least = np.mean([float(population(ridge(sample, 0.0))) for sample in samples])
        error = error_of_difference(table["test_std"][row], table["repeats"][row], ours)
        label = f"{kind}, P {prompts}"
        cells.add(label, table["test_mean"][row], ours.mean(), error, least)
        report((done + 1) / len(rows))
    return Found(
        cells, "the minimum of least norm instead of where Adam ends", len(table),
        note="below P = D² the end depends on the initial weights and on Adam",
    )  # fmt: skip


def _adam(table: PublishedTable) -> Adam:
    """Adam with the constants of the header; weight decay is added to the gradient."""
    found = re.search(rf"Adam \({NUMBER}, {NUMBER}, eps {NUMBER}\)", table.header)
    if found is None:
        raise ValueError(
            f"the header of {table.name} states no constants of Adam; write them as "
            f"'Adam (0.9, 0.999, eps 1e-8)'"
        )
    decay = table.number(rf"settings:.* weight decay {NUMBER}", "weight decay", 0.0)
    first, second, small = (float(found[i]) for i in (1, 2, 3))
    return Adam(first, second, small, weight_decay=decay, decay_inside=True)


def curves(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The exact error of final weights, beside their last test error."""
    cells, total = Cells(), 0
    names = sorted({
        name.removesuffix(end) for name in table.columns for end in ("_W", "_W_q")
        if name.endswith(end)
    })  # fmt: skip
    for done, name in enumerate(names):
        if f"{name}_W" in table.columns:
            matrix = table[f"{name}_W"].astype(float)
        else:
            matrix = table[f"{name}_W_q"].astype(float).T @ table[f"{name}_W_k"].astype(float)
        test = table.columns.get(f"{name}_test")
        if test is None or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"{table.name} needs {name}_test and a square matrix {name}_W, got shape "
                f"{matrix.shape}"
            )
        total += 1
        size = len(matrix) - 1
        family = name.split("_")[0]
        task = spin_task(size, int(_said_of(table, family, r"N = (\d+)")))
        prompts = _said_of(table, family, r"test error on (\d+) prompts")
        right, wrong = (LabelRow(None, jnp.asarray(m[:, :size])) for m in (matrix, matrix.T))
        population = LabelPopulation(task)
        rows = label_rows(task, 20_000, jax.random.key(seed_of(name)))
        predicted = np.einsum(
            "pk,kc,pc->p", rows.statistic[:, 0], right.matrix, rows.query[:, 0], optimize=True
        )
        errors = (np.asarray(rows.target[:, 0, 0]) - predicted) ** 2
        error = errors.std() / math.sqrt(prompts)
        cells.add(
            f"{name}, last test", float(test[-1]), population(right), error, population(wrong)
        )
        report((done + 1) / len(names))
    return Found(
        cells, "the final weights transposed", total,
        note="the curves themselves are not recomputed: their prompts are not known",
    )  # fmt: skip


def _said_of(table: PublishedTable, family: str, pattern: str) -> float:
    """What the header states last of a family of runs up to the end of its own part.

    A family that is "the same" as the one before it takes what that one states.
    """
    start = table.header.find(f"{family}_*:")
    if start < 0:
        raise ValueError(f"the header of {table.name} has no part that begins with {family}_*:")
    following = re.search(r"\b\w+_\*:|\*_\w+\[", table.header[start + len(family) + 3 :])
    end = start + len(family) + 3 + following.start() if following else len(table.header)
    found = re.findall(pattern, table.header[:end])
    if not found:
        raise ValueError(f"the header of {table.name} states no {pattern} for {family}")
    return float(found[-1])
