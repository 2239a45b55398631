"""Reference predictors of the function classes: sparse regression, and regression with a kernel."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import require_kind, require_real, require_size, require_within
from iclflow.tasks.functions import AbstractFunctions
from iclflow.tasks.laws import Sparse, bound
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.linear import AbstractPredictor
from iclflow.theory.algorithms.regression import context_pairs

MOST = 20_000  # supports that are enumerated
SMALL = 1e-10  # noise that stands for none, over the power of the labels
NO_LOSS = "it has no closed population loss; use `monte_carlo_loss`"


class SparseBayes(AbstractPredictor):
    """The posterior mean for rows of W with s entries N(0, v) at unknown places, label noise σ².

    Every support is a hypothesis with its own evidence N(y; 0, v X_S X_Sᵀ + σ² I) and its own
    ridge regression, and the prediction is their mean, weighed by the evidence. Without noise the
    supports that fit exactly share it, which here is the limit of a small σ.

    - `supports`: the places of the s entries, one row for each hypothesis.
    - `basis`: the directions in which the tasks are sparse, as columns.
    - `variance`, `noise`: v and σ².
    """

    supports: Int[Array, "C s"]
    basis: Float[Array, "D D"]
    variance: Float[Array, ""]
    noise: Float[Array, ""]

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        design, labels = context_pairs(prompt)
        design, query = design @ self.basis, prompt.query @ self.basis
        length = prompt.context if prompt.length is None else prompt.length
        size = self.supports.shape[1]
        scale = jnp.sqrt(jnp.mean(design**2)) + 1e-300
        noise = jnp.maximum(self.noise**2, SMALL * self.variance * scale**2)

        def of_support(index: Int[Array, " s"]) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
            part = design[:, index]
            gram = part.T @ part + noise / self.variance * jnp.eye(size)
            seen = jnp.linalg.solve(gram, part.T @ labels)
            left = jnp.sum(labels**2, axis=0) - jnp.sum(seen * (part.T @ labels), axis=0)
            volume = jnp.linalg.slogdet(gram * self.variance / noise)[1] + length * jnp.log(noise)
            return query[index] @ seen, -0.5 * (left / noise + volume)

        guesses, evidence = jax.vmap(of_support)(self.supports)
        return jnp.sum(jax.nn.softmax(evidence, axis=0) * guesses, axis=0)

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(NO_LOSS)


def sparse_bayes(task: Task) -> SparseBayes:
    """The exact posterior mean of a task with `Sparse` task vectors."""
    law = require_kind("tasks", task.tasks, Sparse, "a task with tasks=Sparse(nonzero=3)")
    size, kept = law.dims[1], law.nonzero
    count = math.comb(size, kept)
    if count > MOST:
        raise ValueError(
            f"{kept} of {size} entries are {count:,} supports, more than the {MOST:,} that are "
            f"enumerated; use theory.Lasso"
        )
    supports = np.array(list(itertools.combinations(range(size), kept)))
    return SparseBayes(jnp.asarray(supports), bound(law.basis), law.variance, task.label_noise)


class Lasso(AbstractPredictor):
    """ŵ minimises |y - Xw|²/(2n) + α|w|₁, by steps of proximal gradient descent with momentum.

    - `penalty`: α.
    - `steps`: how many; 500 are enough for a few digits.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([1.0] * 8, context=6, tasks=icl.Sparse(nonzero=2))
    >>> icl.theory.Lasso(0.01)(task.sample(jax.random.key(0))).shape
    (1,)
    """

    penalty: Float[Array, ""]
    steps: int = eqx.field(static=True)

    def __init__(self, penalty: ArrayLike, steps: int = 500) -> None:
        """State the penalty and the number of steps."""
        self.penalty = require_real("the penalty", penalty, ndim=0)
        require_within("the penalty", self.penalty, lower=0.0)
        self.steps = require_size("steps", steps)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return prompt.query @ self.weights(prompt)

    def weights(self, prompt: Prompt) -> Float[Array, "D O"]:
        """ŵ, a column per output."""
        design, labels = context_pairs(prompt)
        n = prompt.context if prompt.length is None else prompt.length
        rate = n / (jnp.linalg.norm(design, ord=2) ** 2 + 1e-300)

        def step(
            state: tuple[Float[Array, "D O"], Float[Array, "D O"]], k: Array
        ) -> tuple[tuple[Float[Array, "D O"], Float[Array, "D O"]], None]:
            old, ahead = state
            moved = ahead - rate * (design.T @ (design @ ahead - labels)) / n
            new = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - rate * self.penalty, 0.0)
            return (new, new + k / (k + 3) * (new - old)), None

        zero = jnp.zeros((design.shape[1], labels.shape[1]), design.dtype)
        return jax.lax.scan(step, (zero, zero), jnp.arange(self.steps, dtype=design.dtype))[0][0]

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(NO_LOSS)


class KernelRegression(AbstractPredictor):
    """ŷ = k(x_q, X)(k(X, X) + σ² I)⁻¹ y with the covariance k of a law of functions.

    Of all predictors that are linear in the labels it has the least loss, whatever the law is
    besides its covariance. It is the best of all where the functions are a Gaussian process.

    - `task`: the law; it says k and σ².
    """

    task: AbstractFunctions

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        inputs, labels = context_pairs(prompt)
        length = prompt.context if prompt.length is None else prompt.length
        shown = jnp.arange(len(inputs)) < length
        both = shown[:, None] & shown[None, :]
        noise = jnp.maximum(self.task.label_noise**2, SMALL)
        gram = jnp.where(both, self.task.covariance(inputs, inputs), 0.0)
        gram = gram + jnp.diag(jnp.where(shown, noise, 1.0))
        read = jnp.where(shown, self.task.covariance(prompt.query[None], inputs)[0], 0.0)
        return read @ jnp.linalg.solve(gram, labels)

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(NO_LOSS)


def kernel_predictor(task: AbstractFunctions) -> KernelRegression:
    """The best predictor among those linear in the labels, for a law of functions.

    - `task`: `TwoLayerNetworks` or `DecisionTrees`.

    >>> import jax, iclflow as icl
    >>> task = icl.TwoLayerNetworks(4, context=32)
    >>> predictor = icl.theory.kernel_predictor(task)
    >>> bool(icl.theory.monte_carlo_loss(predictor, task, 200, jax.random.key(0)).mean < 0.3)
    True
    """
    return KernelRegression(task)
