"""Regression on the context itself: ordinary least squares, ridge, steps of gradient descent."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from iclflow.tasks.base import Prompt
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory.algorithms.linear import AbstractPredictor


def context_pairs(prompt: Prompt) -> tuple[Float[Array, "n D"], Float[Array, "n O"]]:
    """The labelled pairs as rows; the query's row, and every hidden one, is zero."""
    length = prompt.context if prompt.length is None else prompt.length
    shown = jnp.arange(prompt.context + 1)[:, None] < length
    return jnp.where(shown, prompt.inputs, 0.0), jnp.where(shown, prompt.labels, 0.0)


def regularised_solution(
    design: Float[Array, "n D"], labels: Float[Array, "n O"], ridge: Float[Array, ""]
) -> Float[Array, "D O"]:
    """(XᵀX + ρ I)⁻¹ Xᵀ Y by the singular values of X; the least-norm solution at ρ = 0."""
    left, values, right = jnp.linalg.svd(design, full_matrices=False)
    cutoff = max(design.shape) * jnp.finfo(values.dtype).eps * jnp.max(values, initial=0.0)
    kept = values > cutoff
    safe = jnp.where(kept, values, 1.0)
    factors = jnp.where(kept, safe / (safe**2 + ridge), 0.0)
    return right.T @ (factors[:, None] * (left.T @ labels))


class OrdinaryLeastSquares(AbstractPredictor):
    """ŵ = Λ̂⁺ β: least squares on the prompt; the solution of least norm when N < D.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> prompt = task.sample(jax.random.key(0))
    >>> bool(np.allclose(icl.theory.OrdinaryLeastSquares()(prompt), prompt.target, atol=1e-4))
    True
    """

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        design, labels = context_pairs(prompt)
        zero = jnp.zeros((), design.dtype)
        return prompt.query @ regularised_solution(design, labels, zero)

    def population_loss(self, task: Task) -> Float[Array, ""]:
        """The excess risk of least squares on Gaussian inputs, plus the target's noise.

        n ≥ D: σ² D/(n - D - 1) an output (infinite for n = D, D + 1 with noise; D counts the
        positive eigenvalues). n < D: equal eigenvalues only, (1 - n/D) tr(Λ S_w) +
        σ² n/(D - n - 1).
        """
        if not isinstance(task.inputs, Gaussian):
            raise ValueError("the risk of least squares is closed for Gaussian inputs only")
        if task.context_labels is ContextLabels.NOISE:
            raise ValueError("the closed form of the risk needs labels made by the task")
        spectrum = np.asarray(task.spectrum)
        positive = spectrum[spectrum > 0]
        size = positive.size
        noise = float(task.label_noise) ** 2 * task.outputs
        power = float(jnp.einsum("ocod,cd->", task.second_moment(), task.covariance))
        white = size > 0 and np.ptp(positive) <= 1e-12 * positive.max()
        losses = []
        for n in task.lengths:
            if n >= size:
                bias, gap, share = 0.0, n - size - 1, size
            elif white:
                bias, gap, share = power * (1 - n / size), size - n - 1, n
            else:
                raise ValueError(
                    f"with fewer pairs ({n}) than dimensions ({size}) the risk of least squares "
                    f"is closed for equal eigenvalues only; use `monte_carlo_loss`"
                )
            if noise == 0 or share == 0:
                losses.append(bias)
            else:
                losses.append(bias + noise * share / gap if gap > 0 else np.inf)
        target = task.outputs * task.target_noise**2
        return jnp.asarray(np.mean(losses), task.spectrum.dtype) + target


class Ridge(AbstractPredictor):
    """ŵ = (XᵀX + ρ I)⁻¹ Xᵀ y; ρ = σ² is the Bayes estimate for w ~ N(0, I).

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.theory.Ridge(0.1)(task.sample(jax.random.key(0))).shape
    (1,)
    """

    ridge: Float[Array, ""]

    def __init__(self, ridge: ArrayLike) -> None:
        """`ridge`: ρ ≥ 0, on the sum over pairs (not their mean)."""
        self.ridge = jnp.asarray(ridge, dtype=float)

    def __check_init__(self) -> None:
        if not isinstance(self.ridge, Tracer) and not float(self.ridge) >= 0:
            raise ValueError(f"the ridge must be at least 0, got {float(self.ridge):g}")

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return prompt.query @ regularised_solution(*context_pairs(prompt), self.ridge)

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError("ridge regression has no closed population loss; use `monte_carlo_loss`")


class GradientSteps(AbstractPredictor):
    """k steps w ← w + P (β - Λ̂ w) from zero; P = η I is plain descent on |Y - X w|²/(2n).

    n is the prompt's normaliser. One step is linear in β: see `gradient_step`, which has the
    closed loss.

    - `preconditioner`, `steps`: P and k.
    """

    preconditioner: Float[Array, "D D"]
    steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"the number of steps must be at least 0, got {self.steps}")

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        design, labels = context_pairs(prompt)

        def step(w: Float[Array, "D O"], _: None) -> tuple[Float[Array, "D O"], None]:
            gradient = design.T @ (labels - design @ w) / prompt.divisor
            return w + self.preconditioner @ gradient, None

        start = jnp.zeros((design.shape[1], labels.shape[1]), design.dtype)
        final, _ = jax.lax.scan(step, start, None, length=self.steps)
        return prompt.query @ final

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(
            "several steps of descent have no closed population loss here; use "
            "`monte_carlo_loss`, or `gradient_step` for one step"
        )
