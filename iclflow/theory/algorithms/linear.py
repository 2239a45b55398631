"""In-context algorithms as predictors: the same call as a model, so every loss takes them.

Linear in β x_qᵀ, hence with a population loss in closed form: the limit predictor (16), which
the paper calls least squares; principal component regression (27); one step of gradient descent;
zero. `regression` and `bayes` hold the others.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from iclflow.linalg import symmetric_power
from iclflow.losses import Population
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes


class AbstractPredictor(AbstractModel):
    """An in-context algorithm: predicts the label of the query, has nothing to train.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> isinstance(icl.theory.least_squares(task), icl.AbstractPredictor)
    True
    """

    @abc.abstractmethod
    def population_loss(self, task: Task) -> Float[Array, ""]:
        """E(y_q - ŷ_q)² in closed form; `ValueError` says why where there is none."""


class LinearPredictor(AbstractLinearModel, AbstractPredictor):
    """ŷ_o = Σ_p β_pᵀ M[o, p] x_q, with β the prompt's correlation under its normaliser (8).

    - `weight`: M.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.theory.least_squares(task).weight.shape
    (1, 1, 2, 2)
    """

    weight: Float[Array, "O O D D"]

    @property
    def blocks(self) -> Blocks:
        return Blocks.FROZEN

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return jnp.einsum("opdc,pd,c->o", self.weight, prompt.correlation, prompt.query)

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return self.weight

    def effective_weights(self) -> Float[Array, "O T T D"]:
        outputs, _, size, _ = self.weight.shape
        token = size + outputs
        full = jnp.zeros((outputs, token, token, size), self.weight.dtype)
        return full.at[:, size:, :size, :].set(self.weight)

    def as_weights(self) -> Float[Array, "D D"]:
        """M of a single-output predictor βᵀ M x_q."""
        if self.weight.shape[0] != 1:
            raise ValueError(
                f"one matrix describes a predictor with one output, this one has "
                f"{self.weight.shape[0]}; use `reduced_weights()`"
            )
        return self.weight[0, 0]

    def population_loss(self, task: Task) -> Float[Array, ""]:
        return Population(task)(self)


def _population(source: AbstractTask | Population) -> Population:
    return Population(source) if isinstance(source, AbstractTask) else source


def zero_predictor(source: AbstractTask | Population) -> LinearPredictor:
    """ŷ = 0, what a model at the first plateau does; its loss is E[y²].

    - `source`: the task or its population, which say the sizes.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> round(float(icl.Population(task)(icl.theory.zero_predictor(task))), 6)
    0.9
    """
    population = _population(source)
    outputs, size = population.cross.shape[0], population.covariance.shape[0]
    return LinearPredictor(jnp.zeros((outputs, outputs, size, size), population.cross.dtype))


def least_squares(source: AbstractTask | Population) -> LinearPredictor:
    """M = B⁺ G Λ⁺: the best predictor linear in β x_qᵀ, which the paper calls least squares (16).

    For the paper's task M = (Λ + (Λ + tr(Λ) I)/N)⁻¹. It is least squares only as N → ∞ (then
    Λ⁻¹); `OrdinaryLeastSquares` inverts the prompt's own Λ̂ instead.

    - `source`: the task or its population.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> round(float(icl.Population(task)(icl.theory.least_squares(task))), 4)
    0.0791
    """
    population = _population(source)
    outputs, size = population.cross.shape[0], population.covariance.shape[0]
    if outputs == 1:
        modes = Modes.of(population)
        return LinearPredictor(modes.weight(range(modes.rank))[None, None])
    left = symmetric_power(population.second, -1.0)
    right = symmetric_power(population.covariance, -1.0)
    weight = jnp.einsum("jk,okd,dc->ojc", left, population.cross, right)
    return LinearPredictor(weight.reshape(outputs, outputs, size, size))


def principal_component_regression(
    source: AbstractTask | Population | Modes, components: int
) -> LinearPredictor:
    """βᵀ Σ_{d≤m} (λ_d/a_d) e_d e_dᵀ x_q (27): what attention does on its m-th plateau.

    The m modes with the largest drops; these are the leading principal components of x
    wherever the task vectors are isotropic (E1 has the other cases).

    - `source`: the task, its population or its modes.
    - `components`: m.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> one = icl.theory.principal_component_regression(task, components=1)
    >>> levels = icl.theory.plateau_losses(task)
    >>> bool(np.isclose(icl.Population(task)(one), levels[1]))
    True
    """
    modes = Modes.of(source)
    if not 0 <= components <= modes.rank:
        raise ValueError(
            f"this task has {modes.rank} components to regress on, got {components}; "
            f"give 0 to {modes.rank}"
        )
    return LinearPredictor(modes.weight(range(components))[None, None])


def gradient_step(
    source: AbstractTask | Population,
    *,
    rate: ArrayLike | None = None,
    preconditioner: Float[Array, "D D"] | None = None,
) -> LinearPredictor:
    """One step from zero: ŵ = η P β, so ŷ = βᵀ M x_q with M = η Pᵀ; η the best if not given.

    The step descends |Y - X w|²/(2n) of the prompt, with n the prompt's normaliser; the best rate
    is η = ⟨G, Pᵀ⟩/⟨Pᵀ, B Pᵀ Λ⟩. With Pᵀ = M of (16) and η = 1 this is `least_squares`.

    - `source`: the task or its population.
    - `rate`, `preconditioner`: η and P; the identity if P is omitted.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> round(float(icl.Population(task)(icl.theory.gradient_step(task))), 4)
    0.1327
    """
    # As an array, so that another rate is no other program.
    known = None if rate is None else jnp.asarray(rate, dtype=float)
    return _gradient_step(_population(source), known, preconditioner)


@eqx.filter_jit
def _gradient_step(
    population: Population,
    rate: Float[Array, ""] | None,
    preconditioner: Float[Array, "D D"] | None,
) -> LinearPredictor:
    outputs, size = population.cross.shape[0], population.covariance.shape[0]
    dtype = population.cross.dtype
    matrix = jnp.eye(size, dtype=dtype) if preconditioner is None else preconditioner
    # Each output's step uses its own correlation: M[o, p] = δ_op Pᵀ.
    weight = jnp.einsum("op,cd->opdc", jnp.eye(outputs, dtype=dtype), matrix)
    if rate is None:
        flat = weight.reshape(outputs, outputs * size, size)
        curved = jnp.einsum("jk,okd,dc->ojc", population.second, flat, population.covariance)
        curvature = jnp.sum(flat * curved)
        rate = jnp.where(
            curvature > 0,
            jnp.sum(flat * population.cross) / jnp.where(curvature > 0, curvature, 1.0),
            0.0,
        )
    return LinearPredictor(jnp.asarray(rate, dtype) * weight)


class InWeight(AbstractPredictor):
    """ŷ = W x_q for one fixed W, whatever the context: what is learned in weight (Sec. 7.1).

    - `task_matrix`: W.
    """

    task_matrix: Float[Array, "O D"]

    @classmethod
    def of(cls, task: Task) -> "InWeight":
        """The predictor that knows the fixed task w* of a mixture by heart."""
        return cls(task.tasks.in_weight().mean)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return self.task_matrix @ prompt.query

    def population_loss(self, task: Task) -> Float[Array, ""]:
        """E[y²] - 2 tr(W Λ E[W_task]ᵀ) + tr(W Λ Wᵀ)."""
        power = Population(task).power
        product = self.task_matrix @ task.covariance
        cross = jnp.sum(product * task.tasks.mean)
        return power - 2 * cross + jnp.sum(product * self.task_matrix)
