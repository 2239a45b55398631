"""He, Pan, Chen and Yang: softmax heads with given parameters, and what training makes of them."""

import math
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclflow.dynamics import Adam, Descent
from iclflow.experiments.field.comparisons.cells import Cells, Found, Report
from iclflow.experiments.field.comparisons.end_points import seed_of, spread_over
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.losses.sequences import Sequences
from iclflow.losses.stochastic import Fresh
from iclflow.models import Merged, Softmax
from iclflow.runs.simulate import simulate
from iclflow.tasks.base import Prompt
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.regression import Ridge

AT_ONCE = 5_000


def _task(table: PublishedTable, length: int) -> tuple[Task, float]:
    """x ~ N(0, I), w ~ N(0, I/d) with noise on labels and target, and its variance."""
    d = int(table.setting("d"))
    variance = table.number(rf"eps ~ N\(0, {NUMBER}\)", "variance of the noise")
    spread = variance**0.5
    law = Normal(covariance=1 / d)
    return Task([1.0] * d, length, tasks=law, label_noise=spread, target_noise=spread), variance


def _heads(omega: list[float], mu: list[float], size: int, query_key: bool) -> Softmax:
    """Heads with scores ω x·x_q and values μ y."""
    values = jnp.asarray(mu)[:, None, None]
    scores = jnp.asarray(omega)[:, None, None] * jnp.eye(size)
    return Softmax(Merged(values=values, merged=scores), query_key)


def _estimators(table: PublishedTable, task: Task, variance: float) -> Any:
    """Prompt -> squared error of every estimator, then of every one with the mistake."""
    size, count = task.size, task.context
    omega, mu = _pair(table)
    reference = table.number(rf"d e / {NUMBER}", "length in the value of one head")
    single = size**0.5 / (1 + (1 + variance) * size * math.e / reference)
    two = [_heads([omega, -omega], [mu, -mu], size, key) for key in (False, True)]
    one = [_heads([size**-0.5], [single], size, key) for key in (False, True)]
    rate = 2 * omega * mu

    def errors(prompt: Prompt) -> jax.Array:
        x, y, query = prompt.inputs[:-1], prompt.labels[:-1, 0], prompt.query
        step = y @ x / count
        centred = step - jnp.mean(y) * jnp.mean(x, axis=0)
        along, middle = rate * step @ query, rate * centred @ query
        # the mistake: the query is one more key, with the label 0
        share = count / (count + 1)
        means = share**2 * jnp.mean(y) * (jnp.mean(x, axis=0) + query / count)
        mistaken = rate * (share * step - means) @ query
        said = [
            two[0](prompt)[0], along, middle, one[0](prompt)[0],
            Ridge(variance * size)(prompt)[0],
            two[1](prompt)[0], share * along, mistaken, one[1](prompt)[0],
            Ridge(variance)(prompt)[0],
        ]  # fmt: skip
        return (prompt.target[0] - jnp.stack(said)) ** 2

    return errors


NAMES = ("two_heads", "gd", "debiased_gd", "one_head", "ridge")


def estimators(table: PublishedTable, quick: bool, report: Report) -> Found:
    """Five estimators at every length, on the same prompts."""
    count = 15_000 if quick else 100_000
    theirs = table.number(r"over ([\d,]+) prompts", "number of prompts")
    rows = spread_over([f"L {int(n):06d}" for n in table["L"]], 5) if quick else range(len(table))
    cells = Cells()
    for done, row in enumerate(rows):
        task, variance = _task(table, int(table["L"][row]))
        errors = _estimators(table, task, variance)
        values = _values(errors, task, count, seed_of("estimators", task.context))
        means, spread = values.mean(axis=0), values.std(axis=0)
        for i, name in enumerate(NAMES):
            ours = means[i]
            error = spread[i] * (1 / theirs + 1 / count) ** 0.5
            if name == "gd":  # exact
                eta, d = 2 * math.prod(_pair(table)), task.size
                moment = 1 + (d + 1 + variance * d) / task.context
                ours = variance + 1 - 2 * eta + eta**2 * moment
                error = spread[i] / theirs**0.5
            label = f"{name}, L {task.context}"
            cells.add(label, table[name][row], ours, error, means[i + len(NAMES)])
        report((done + 1) / len(rows))
    return Found(
        cells, "the query is among its own keys; ridge without the factor d",
        len(NAMES) * len(table),
    )  # fmt: skip


def _pair(table: PublishedTable) -> tuple[float, float]:
    """ω and μ of two heads, half of whose product is the rate of one gradient step."""
    pattern = rf"\(omega, mu\) = \({NUMBER}, {NUMBER}\)"
    found = re.search(pattern, table.header)
    if found is None:
        raise ValueError(
            f"the header of {table.name} states no '(omega, mu) = (0.13, 3.45)' of two heads"
        )
    return float(found[1]), float(found[2])


def _values(errors: Any, task: Task, count: int, seed: int) -> np.ndarray:
    """What a function gives of so many prompts."""

    @eqx.filter_jit
    def some(task: Task, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, AT_ONCE)
        return jax.vmap(lambda k: errors(task.sample(k)))(keys)

    key = jax.random.key(seed)
    parts = [some(task, jax.random.fold_in(key, i)) for i in range(-(-count // AT_ONCE))]
    return np.concatenate([np.asarray(part) for part in parts])[:count]


def trained(table: PublishedTable, quick: bool, report: Report) -> Found:
    """Models of one to eight heads, trained here and tested at every length."""
    at = int(table.number(r"fresh prompts with L = (\d+)", "length of training"))
    batch = int(table.number(r"steps of ([\d,]+) fresh", "size of the batches"))
    tests = table.number(r"mean squared error on ([\d,]+) fresh", "number of prompts of the test")
    alone = table.number(r"\(([\d,]+) for one head\)", "prompts of the test of one head", tests)
    steps, tested = (2_500, 20_000) if quick else (30_000, 100_000)
    groups = sorted(table.groups("heads"), key=lambda group: group[0])
    if quick and len(groups) > 2:
        groups = groups[:2]
    cells = Cells()
    for done, ((heads,), rows) in enumerate(groups):
        task, variance = _task(table, at)
        model = _trained(task, int(heads), batch, steps)
        some = range(len(rows))
        if quick:
            some = spread_over([f"L {int(n):06d}" for n in table["L"][rows]], 3)
        for row in rows[np.asarray(some)]:
            here = task.replace(context=int(table["L"][row]))
            seed = seed_of("trained", heads, here.context)
            values = _values(_squared(model), here, tested, seed)[:, 0]
            mean, spread = values.mean(), values.std()
            theirs = alone if heads == 1 else tests
            said = table["error_plus_0.1"][row]
            # one per cent for the training of one seed, on top of the prompts
            error = ((spread**2) * (1 / theirs + 1 / tested) + (0.01 * mean) ** 2) ** 0.5
            label = f"{heads:g} heads, L {here.context}"
            cells.add(label, said - variance, mean, error, mean - variance)
        report((done + 1) / len(groups))
    return Found(
        cells, "the noise variance subtracted twice", len(table),
        note="ours is trained for fewer steps; errors include one per cent for one training seed",
    )  # fmt: skip


def _squared(model: Softmax) -> Any:
    return lambda prompt: (prompt.target - model(prompt)) ** 2


def _trained(task: Task, heads: int, batch: int, steps: int) -> Softmax:
    init = Softmax.initialiser(task, heads=heads, scale=1.0, query_key=False)
    rate = optax.cosine_decay_schedule(0.01, steps)
    fixed = Sequences.sample(task, batch, jax.random.key(50 + heads))
    run = simulate(
        Fresh(task, fixed, batch), init(jax.random.key(heads)), Descent(rate, Adam()),
        saveat=[0, steps], record=(), key=jax.random.key(100 + heads),
    )  # fmt: skip
    found = run.model
    assert isinstance(found, Softmax)
    return found
