"""Bayes-optimal prediction: the posterior mean of y_q given the prompt, for each law of tasks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models import AbstractModel
from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.laws import Mixture, Normal, Pool, Sparse
from iclflow.tasks.task import ContextLabels, Task, require_task
from iclflow.theory.algorithms.functions import sparse_bayes
from iclflow.theory.algorithms.linear import AbstractPredictor, InWeight
from iclflow.theory.algorithms.monte_carlo import Estimate, monte_carlo_loss, monte_carlo_mean
from iclflow.theory.algorithms.regression import context_pairs, regularised_solution

NO_CLOSED_FORM = (
    "the Bayes-optimal predictor is not linear in β x_qᵀ and has no closed population loss; "
    "use `bayes_loss` or `monte_carlo_loss`"
)


class NormalBayes(AbstractPredictor):
    """The posterior mean for rows of W ~ N(μ, S = RᵀR) and label noise σ².

    ŵ = μ + Rᵀ (FᵀF + σ² I)⁻¹ Fᵀ (y - X μ), F = X Rᵀ. At σ = 0 the conditional mean given the
    exact labels (a pseudo-inverse). Ridge with ρ = σ² is μ = 0, S = I.

    - `mean`, `root`, `noise`: μ, R and σ².
    """

    mean: Float[Array, "O D"]
    root: Float[Array, "D D"]
    noise: Float[Array, ""]

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        design, labels = context_pairs(prompt)
        residual = labels - design @ self.mean.T
        shift = regularised_solution(design @ self.root.T, residual, self.noise**2)
        return self.mean @ prompt.query + prompt.query @ self.root.T @ shift

    def posterior_covariance(self, prompt: Prompt) -> Float[Array, "D D"]:
        """S - Rᵀ (FᵀF + σ² I)⁻¹ FᵀF R, of each row of W; it depends on the inputs only."""
        features = context_pairs(prompt)[0] @ self.root.T
        explained = regularised_solution(features, features, self.noise**2)
        return (
            self.root.T
            @ (jnp.eye(explained.shape[0], dtype=explained.dtype) - explained)
            @ (self.root)
        )

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(NO_CLOSED_FORM)


class PoolBayes(AbstractPredictor):
    """The discrete minimum-mean-square-error predictor (dMMSE): a finite pool of tasks.

    ŷ = Σ_m p_m W_m x_q with p_m ∝ prior_m exp(-|Y - X W_mᵀ|²/(2σ²)); at σ = 0 the prior shared
    among the tasks that fit the labels best.

    - `tasks`, `prior`, `noise`: the W_m, their weights and σ².
    """

    tasks: Float[Array, "M O D"]
    prior: Float[Array, " M"]
    noise: Float[Array, ""]

    def posterior(self, prompt: Prompt) -> Float[Array, " M"]:
        """The probability of each task of the pool given the context."""
        design, labels = context_pairs(prompt)
        fits = jnp.einsum("nd,mod->mno", design, self.tasks)
        errors = jnp.sum((labels[None] - fits) ** 2, axis=(1, 2))
        errors = errors - jnp.min(errors)
        variance = self.noise**2
        log_prior = jnp.log(self.prior)
        soft = log_prior - errors / jnp.where(variance > 0, 2 * variance, 1.0)
        # Without noise any error beyond rounding rules a task out.
        scale = jnp.sum(labels**2) + jnp.sum(fits**2, axis=(1, 2))
        tied = errors <= 1e2 * jnp.finfo(errors.dtype).eps * scale
        hard = jnp.where(tied, log_prior, -jnp.inf)
        return jax.nn.softmax(jnp.where(variance > 0, soft, hard))

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return jnp.einsum("m,mod,d->o", self.posterior(prompt), self.tasks, prompt.query)

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(NO_CLOSED_FORM)


class MixtureBayes(AbstractPredictor):
    """The in-weight mixture: W = w* with probability c, else normal (App. F).

    The two posterior means, weighted by the evidence of the labels under each hypothesis.

    - `normal`: the predictor of the normal tasks.
    - `fixed`: w*.
    - `fraction`: c.
    """

    normal: NormalBayes
    fixed: Float[Array, "O D"]
    fraction: Float[Array, ""]

    def fixed_probability(self, prompt: Prompt) -> Float[Array, ""]:
        """P(W = w* | context)."""
        design, labels = context_pairs(prompt)
        left, values, _ = jnp.linalg.svd(design @ self.normal.root.T, full_matrices=False)
        wrong = jnp.sum((labels - design @ self.fixed.T) ** 2)
        residual = labels - design @ self.normal.mean.T
        variance = jnp.where(self.normal.noise > 0, self.normal.noise**2, 1.0)
        shrink = (values**2 / (values**2 + variance))[:, None]
        misfit = jnp.sum(residual**2) - jnp.sum(shrink * (left.T @ residual) ** 2)
        volume = labels.shape[1] * jnp.sum(jnp.log1p(values**2 / variance))
        odds = jnp.log(self.fraction) - jnp.log1p(-self.fraction)
        odds = odds + 0.5 * volume + 0.5 * (misfit - wrong) / variance
        # Without noise an exact fit is certain evidence, a misfit excludes w*.
        tolerance = 1e2 * jnp.finfo(values.dtype).eps * jnp.sum(labels**2)
        certain = jnp.where(wrong <= tolerance, 1.0, 0.0)
        return jnp.where(self.normal.noise > 0, jax.nn.sigmoid(odds), certain)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        share = self.fixed_probability(prompt)
        return share * (self.fixed @ prompt.query) + (1 - share) * self.normal(prompt)

    def population_loss(self, task: Task) -> Float[Array, ""]:
        raise ValueError(NO_CLOSED_FORM)


def bayes_predictor(task: AbstractTask) -> AbstractPredictor:
    """The best predictor there is for a task: E[y_q | prompt], whatever the law of the inputs.

    - `task`: linear regression, or one of the laws of functions.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> predictor = icl.theory.bayes_predictor(task)
    >>> predictor(task.sample(jax.random.key(0))).shape
    (1,)
    """
    task = require_task(task, "the posterior is")
    law, noise = task.tasks, task.label_noise
    if task.context_labels is ContextLabels.NOISE:
        return InWeight(law.mean)  # the labels say nothing
    share = law.fraction if isinstance(law, Mixture) else jnp.zeros(())
    if float(share) == 1.0:
        return InWeight.of(task)
    match law.in_context():
        case Normal(mean=mean, root=root) if root is not None:
            normal = NormalBayes(mean, root, noise)
            return MixtureBayes(normal, law.in_weight().mean, share) if law.mixed() else normal
        case Pool(members=pool):
            prior = jnp.full(len(pool), (1 - float(share)) / len(pool), pool.dtype)
            if law.mixed():
                pool = jnp.concatenate([pool, law.in_weight().mean[None]])
                prior = jnp.concatenate([prior, share[None]])
            return PoolBayes(pool, prior, noise)
        case Sparse() if not law.mixed():
            return sparse_bayes(task)
        case other:
            raise ValueError(
                f"the posterior of {type(other).__name__} is not known; Bayes-optimal "
                f"prediction covers normal and sparse task vectors and finite pools"
            )


def bayes_loss(task: Task, sequences: int, key: PRNGKeyArray) -> Estimate:
    """The least loss any predictor has, by Monte Carlo, with its standard error.

    For normal task vectors only the inputs are sampled: given them the loss is
    tr(Λ posterior covariance) an output, plus the target's noise.

    - `task`: the task.
    - `sequences`: how many prompts are drawn.
    - `key`: draws them.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, label_noise=0.1)
    >>> found = icl.theory.bayes_loss(task, 500, jax.random.key(0))
    >>> bool(0 < found.mean < icl.theory.plateau_losses(task)[-1])
    True
    """
    predictor = bayes_predictor(task)
    if isinstance(predictor, InWeight):
        return Estimate(predictor.population_loss(task), jnp.zeros((), task.spectrum.dtype))
    if not isinstance(predictor, NormalBayes):
        return monte_carlo_loss(predictor, task, sequences, key)
    return monte_carlo_mean(_conditional_risk, predictor, task, sequences, key)


def _conditional_risk(bayes: AbstractModel, task: AbstractTask, prompt: Prompt) -> Float[Array, ""]:
    assert isinstance(bayes, NormalBayes)
    assert isinstance(task, Task)
    risk = jnp.sum(bayes.posterior_covariance(prompt) * task.covariance)
    # A variance: what rounding leaves below zero is zero.
    return task.outputs * (jnp.maximum(risk, 0.0) + task.target_noise**2)
