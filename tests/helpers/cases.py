"""Tasks, models and literal computations that several tests share."""

import jax
import numpy as np

from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate, Softmax
from iclflow.tasks.base import Normaliser
from iclflow.tasks.laws import Mixture, Normal, Pool, Rademacher, StudentT
from iclflow.tasks.task import ContextLabels, Task

KEY = jax.random.key(7)

TASKS = {
    "plain": lambda: Task([0.5, 0.3, 0.2], 9),
    "mixture": lambda: Task([0.5, 0.3, 0.2], 9, rotation=KEY, tasks=Mixture(fraction=0.4)),
    "noise": lambda: Task([0.5, 0.3, 0.2], 9, label_noise=0.3, target_noise=0.2),
    "lengths": lambda: Task(
        [0.5, 0.3, 0.2], 9, lengths=(2, 5, 9), normaliser=Normaliser.TOKENS, rotation=KEY
    ),
    "mean": lambda: Task(
        [0.5, 0.3, 0.2], 9, tasks=Normal(mean=[1.0, 0.0, 2.0], covariance=[1, 0.5, 2])
    ),
    "pool": lambda: Task([0.5, 0.3, 0.2], 9, tasks=Pool(jax.random.normal(KEY, (5, 3)))),
    "outputs": lambda: Task([0.6, 0.4], 6, tasks=Normal(outputs=2), label_noise=0.5),
    "labels": lambda: Task(
        [0.5, 0.3, 0.2], 9, tasks=Mixture(fraction=1.0), context_labels=ContextLabels.NOISE
    ),
    "heavy": lambda: Task([0.5, 0.3, 0.2], 9, inputs=StudentT(9.0), normaliser=Normaliser.NONE),
    "signs": lambda: Task(
        [0.5, 0.3, 0.2],
        9,
        inputs=Rademacher(),
        rotation=KEY,
        lengths=(3, 9),
        normaliser=Normaliser.CONTEXT,
    ),
}

MODELS = {
    "merged": lambda t, b, w: Merged.initialiser(t, heads=3, scale=w, blocks=b),
    "separate": lambda t, b, w: Separate.initialiser(t, heads=3, rank=2, scale=w, blocks=b),
}

NETWORKS = {
    "mlp": lambda t, w: MLP.initialiser(t, heads=3, scale=w),
    "conv": lambda t, w: ConvNet.initialiser(t, heads=3, rank=2, scale=w),
}


def softmax(task, heads=2, scale=0.5, blocks=Blocks.FULL):
    return Softmax.initialiser(task, heads=heads, scale=scale, blocks=blocks)


def filled(model, key=KEY, size=0.1):
    """The model with noise on every weight, so that no block is zero."""
    leaves, treedef = jax.tree.flatten(model)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        treedef,
        [a + size * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)],
    )


def literal_attention(model, prompt):
    """The whole output matrix of (5), every token attending, in NumPy; its bottom-right entries."""
    soft = isinstance(model, Softmax)
    attention = model.attention if soft else model
    tokens = np.asarray(prompt.tokens)
    if prompt.length is not None:
        tokens = tokens[: int(prompt.length) + 1]
    x = tokens.T
    size, token = attention.input_size, tokens.shape[1]
    output = x.copy()
    key_query = np.asarray(attention.key_query())
    values = np.asarray(attention.value_rows())
    for head in range(values.shape[0]):
        w_v = np.random.default_rng(head).normal(size=(token, token))  # the * rows do not matter
        w_v[size:] = values[head]
        w_kq = np.random.default_rng(head + 99).normal(size=(token, token))
        w_kq[:, :size] = key_query[head]
        scores = x.T @ w_kq @ x  # column j: what token j attends to
        if soft:
            scores = np.exp(scores - scores.max(axis=0))
            weights = scores / scores.sum(axis=0)
        else:
            weights = scores / float(prompt.divisor)
        output += w_v @ x @ weights
    return output[size:, -1]


def stacked(function, count, key=KEY):
    return jax.jit(jax.vmap(function))(jax.random.split(key, count))


def standardised(estimates, exact):
    """Deviation of the mean of independent estimates from `exact`, in standard errors."""
    estimates = np.stack(estimates)
    error = estimates.std(axis=0, ddof=1) / len(estimates) ** 0.5
    return (estimates.mean(axis=0) - np.asarray(exact)) / np.maximum(error, 1e-12)
