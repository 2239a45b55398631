"""Prompts of D pairs that have the XᵀX and Xᵀy of N."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from tests.helpers.cases import KEY

TASK = icl.Task([0.6, 0.3], 12, rotation=KEY, label_noise=0.5, target_noise=0.2)
POOL = TASK.replace(tasks=icl.Pool([[1.0, -0.5], [0.3, 2.0], [-0.2, 0.1]]))


def statistics(prompts):
    """XᵀX, Xᵀy and what goes with the query, one row per prompt."""
    x, y = prompts.inputs[:, :-1], prompts.labels[:, :-1, 0]
    gram = np.einsum("pnd,pne->pde", x, x).reshape(len(y), -1)
    cross = np.einsum("pnd,pn->pd", x, y)
    return np.concatenate([gram, cross, cross * np.asarray(prompts.targets[:, -1])], axis=1)


@pytest.mark.parametrize("task", [TASK, POOL], ids=["normal", "pool"])
def test_the_statistics_have_the_law_of_whole_prompts(task):
    count = 20_000
    keys = jax.random.split(jax.random.key(1), count)
    whole = statistics(jax.jit(jax.vmap(task.sample))(keys))
    short = statistics(icl.compressed_prompts(task, count, jax.random.key(2)))
    for power in (1, 2):
        a, b = whole**power, short**power
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / count)
        assert np.abs((a.mean(axis=0) - b.mean(axis=0)) / error).max() < 4


def test_predictors_err_as_on_whole_prompts():
    count = 4000
    prompts = icl.compressed_prompts(POOL, count, jax.random.key(3))
    for predictor in (icl.theory.bayes_predictor(POOL), icl.theory.Ridge(0.25)):
        errors = jax.jit(jax.vmap(lambda p, f=predictor: jnp.sum((p.target - f(p)) ** 2)))(prompts)
        whole = icl.theory.monte_carlo_loss(predictor, POOL, count, jax.random.key(4))
        spread = (errors.std() ** 2 / count + whole.error**2) ** 0.5
        assert abs(errors.mean() - whole.mean) < 4 * spread


def test_short_contexts_are_whole():
    task = TASK.replace(context=1)
    assert icl.compressed_prompts(task, 3, KEY).inputs.shape == (3, 2, 2)


@pytest.mark.parametrize(
    "task",
    [
        TASK.replace(inputs=icl.Sphere()),
        TASK.replace(lengths=(3, 12)),
        icl.Memory(TASK, np.eye(13)),
    ],
)
def test_what_cannot_be_compressed_is_refused(task):
    with pytest.raises(ValueError, match=r"task\.sample"):
        icl.compressed_prompts(task, 3, KEY)
