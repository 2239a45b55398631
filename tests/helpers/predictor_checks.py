"""What the tests of the in-context algorithms share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclflow.tasks.base import map_prefixes
from iclflow.tasks.laws import Mixture, Normal
from iclflow.tasks.task import Task
from iclflow.theory import InWeight
from tests.helpers.theory_tasks import key, random_covariance

COUNT = 20_000
NORMAL = Task(
    [0.8, 0.5, 0.2],
    6,
    tasks=Normal([0.5, -0.2, 0.3], random_covariance(3, 3)),
    label_noise=0.5,
    target_noise=0.3,
)


@eqx.filter_jit
def predict(predictor, prompt):
    return predictor(prompt)


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def agrees(estimate, value, errors=4.5):
    assert abs(float(estimate.mean) - float(value)) < errors * float(estimate.error)


def in_weight(task):
    """The predictor that knows the sum of the eigenvectors by heart, as a mixture's fixed task."""
    mixture = task.replace(tasks=Mixture(task.tasks.in_context(), fraction=1.0))
    return InWeight.of(mixture)


def sample(task, seed=0):
    return task.sample(key(seed))


def pairs(prompt):
    """Context inputs, labels and the query as NumPy arrays."""
    n = prompt.context if prompt.length is None else int(prompt.length)
    x, y = np.asarray(prompt.inputs), np.asarray(prompt.labels)
    return x[:n], y[:n], x[n]


@eqx.filter_jit
def squared_errors(predictors, task, keys):
    """One column a predictor, one row a prompt, averaged over the task's lengths."""

    def one(k):
        def every(prompt):
            return jnp.stack([jnp.sum((prompt.target - f(prompt)) ** 2) for f in predictors])

        return jnp.mean(map_prefixes(every, task.sample(k), task.lengths), axis=0)

    return jax.vmap(one)(keys)
