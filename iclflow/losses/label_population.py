"""The loss of weights on [β; mean y²] in the limit of infinitely many prompts, in closed form.

All of it is Wick's theorem for Gaussian inputs given w, and then the mean over w. Write m = Λ w,
c = wᵀΛw, σ² for the variance of the label noise, z for the divisor, and K for the covariance along
the context (the identity without memory). With an independent query E[φφᵀ] = B ⊗ Λ, where

    z² B_ββ = (tr K)² m mᵀ + tr K² (c Λ + m mᵀ) + σ² tr K Λ
    z² B_βs = tr K (c tr K + N σ²) m + 2 (c tr K² + σ² tr K) m
    z² B_ss = (c tr K + N σ²)² + 2 (c² tr K² + 2 c σ² tr K + N σ⁴)

and E[y_q β x_qᵀ] = (tr K/z) m mᵀ, E[y_q s x_q] = (c tr K + N σ²) m/z. A query with memory has more
pairings, and E[φφᵀ] is no product.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses.base import AbstractLoss
from iclflow.losses.features import LabelFeatures, refusal
from iclflow.losses.population import bilinear_form, lengths_and_divisors
from iclflow.models import AbstractModel
from iclflow.tasks.laws import AbstractTaskVectors, Gaussian, Mixture, Normal, Pool
from iclflow.tasks.memory import Memory
from iclflow.tasks.task import ContextLabels, Task


class TaskPowers(NamedTuple):
    """Means over the law of w of what the label row needs, with c = wᵀΛw.

    - `mean`, `second`: E[w] and E[wwᵀ].
    - `power`, `square`: E[c] and E[c²].
    - `first`, `outer`: E[c w] and E[c wwᵀ].
    """

    mean: Float[Array, " D"]
    second: Float[Array, "D D"]
    power: Float[Array, ""]
    square: Float[Array, ""]
    first: Float[Array, " D"]
    outer: Float[Array, "D D"]


def task_powers(law: AbstractTaskVectors, covariance: Float[Array, "D D"]) -> TaskPowers:
    """The means over a law of tasks; `ValueError` for a law that has none in closed form."""
    if isinstance(law, Pool):
        w = law.members[:, 0]
        c = jnp.sum((w @ covariance) * w, axis=1)
        many = len(w)
        return TaskPowers(
            jnp.mean(w, axis=0), w.T @ w / many, jnp.mean(c), jnp.mean(c**2),
            c @ w / many, (w * c[:, None]).T @ w / many,
        )  # fmt: skip
    if isinstance(law, Normal):
        mu, spread = law.mean[0], law.covariance
        second = spread + jnp.outer(mu, mu)
        power = jnp.sum(covariance * second)
        turned = covariance @ spread
        square = power**2 + 2 * jnp.sum(turned * turned.T)
        square = square + 4 * mu @ turned @ covariance @ mu
        pulled = spread @ covariance @ mu
        outer = power * second + 2 * spread @ turned
        outer = outer + 2 * (jnp.outer(pulled, mu) + jnp.outer(mu, pulled))
        return TaskPowers(mu, second, power, square, power * mu + 2 * pulled, outer)
    if isinstance(law, Mixture):
        drawn = task_powers(law.random, covariance)
        fixed = task_powers(Pool(law.in_weight().mean), covariance)
        share = law.fraction
        both = zip(drawn, fixed, strict=True)
        return TaskPowers(*((1 - share) * a + share * b for a, b in both))
    raise ValueError(
        f"the population of a label row is known for Normal tasks, a Pool or a Mixture, got "
        f"{type(law).__name__}; use Moments.sample with features=icl.LabelFeatures()"
    )


def third_moment(law: AbstractTaskVectors) -> Float[Array, "D D D"]:
    """E[w ⊗ w ⊗ w]."""
    if isinstance(law, Pool):
        w = law.members[:, 0]
        return jnp.einsum("mi,mj,mk->ijk", w, w, w) / len(w)
    if isinstance(law, Mixture):
        fixed = third_moment(Pool(law.in_weight().mean))
        return (1 - law.fraction) * third_moment(law.random) + law.fraction * fixed
    assert isinstance(law, Normal)
    mu, spread = law.mean[0], law.covariance
    one = jnp.einsum("i,jk->ijk", mu, spread)
    turned = one + jnp.transpose(one, (1, 0, 2)) + jnp.transpose(one, (2, 1, 0))
    return turned + jnp.einsum("i,j,k->ijk", mu, mu, mu)


class LabelPopulation(AbstractLoss):
    """L = E y² - 2 ⟨W, G⟩ + ⟨W, B W Λ⟩ for weights W on [β; mean y²] ⊗ x_q, P → ∞.

    It is the exact error of any `LabelRow`, and of the reduced models, on a task: train on one
    task and evaluate on another, with other task vectors, covariance, length, noise or memory.

    - `power`, `cross`: E y² and G = E[y a x_qᵀ], a = [β; mean y²].
    - `second`, `covariance`: B = E[a aᵀ] and Λ.
    - `joint`: E[φφᵀ] where the query has memory and this is no product B ⊗ Λ; else None.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.theory.least_squares(task)
    >>> both = icl.Population(task)(model), icl.LabelPopulation(task)(model)
    >>> bool(abs(both[0] - both[1]) < 1e-6)
    True
    >>> other = icl.LabelPopulation(task.replace(context=7, label_noise=0.5))
    >>> bool(other(model) > both[1])
    True
    """

    power: Float[Array, ""]
    cross: Float[Array, "K D"]
    second: Float[Array, "K K"]
    covariance: Float[Array, "D D"]
    joint: Float[Array, "F F"] | None

    def __init__(self, task: Task | Memory) -> None:
        """Evaluate the closed forms.

        - `task`: a `Task` with Gaussian inputs, one output and one context length, or `Memory`.
        """
        plain = task.task if isinstance(task, Memory) else task
        if not isinstance(plain, Task):
            raise ValueError(
                f"the population of a label row is known for a Task or Memory, got "
                f"{type(task).__name__}; use Moments.sample with features=icl.LabelFeatures()"
            )
        gaussian = isinstance(plain.inputs, Gaussian)
        labels = plain.context_labels is ContextLabels.TASK
        if not gaussian or not labels or plain.outputs != 1 or len(plain.lengths) != 1:
            raise ValueError(
                "the population of a label row is known for Gaussian inputs, one output, one "
                "context length and labels made by the task; use Moments.sample with "
                "features=icl.LabelFeatures()"
            )
        points = plain.lengths[0] + 1
        along = np.asarray(task.covariance) if isinstance(task, Memory) else np.eye(points)
        found = _closed_form(plain, jnp.asarray(along), isinstance(task, Memory))
        self.power, self.cross, self.second, self.covariance, self.joint = found

    def shown(self) -> dict[str, Any]:
        return {"D": self.covariance.shape[-1], "power": self.power}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        weights = LabelFeatures().weights(model)
        if self.joint is not None:
            flat = weights.reshape(-1)
            return self.power - 2 * flat @ self.cross.reshape(-1) + flat @ self.joint @ flat
        return self.power + bilinear_form(weights, self.second, self.covariance, self.cross[None])

    def admits(self, model: AbstractModel) -> str | None:
        return refusal(LabelFeatures(), model, *self.dims())

    def dims(self) -> tuple[int, int]:
        return self.covariance.shape[0], 1


@eqx.filter_jit
def _closed_form(
    task: Task, along: Float[Array, "n n"], memory: bool
) -> tuple[Array, Array, Array, Array, Array | None]:
    """E y², G, B, Λ and E[φφᵀ]."""
    cov, law = task.covariance, task.tasks
    z = float(lengths_and_divisors(task)[1][0])
    w = task_powers(law, cov)
    inside, kappa, own = along[:-1, :-1], along[:-1, -1], along[-1, -1]
    count, noise = len(inside), task.label_noise**2
    trace, traces = jnp.trace(inside), jnp.sum(inside**2)
    m, mm = cov @ w.mean, cov @ w.second @ cov
    cm = cov @ w.first  # E[c m]
    ones = trace**2 + traces
    bb = ones * mm + (traces * w.power + noise * trace) * cov
    bs = ones * cm + traces * cm + (count + 2) * noise * trace * m
    ss = (trace**2 + 2 * traces) * w.square + 2 * trace * noise * (count + 2) * w.power
    ss = ss + count * (count + 2) * noise**2
    second = jnp.block([[bb, bs[:, None]], [bs[None], ss[None, None]]]) / z**2
    power = own * w.power + task.target_noise**2
    near = jnp.sum(kappa**2)
    top = own * trace * mm + near * (w.power * cov + mm)
    last = own * (trace * cm + count * noise * m) + 2 * near * cm
    cross = jnp.concatenate([top, last[None]]) / z
    if not memory:
        return power, cross, second, cov, None
    joint = _joint(task, w, mm, m, cm, kappa, inside)
    joint = joint / z**2 + own * jnp.einsum("ij,cd->icjd", second, cov)
    size = joint.shape[0] * joint.shape[1]
    return power, cross, second, cov, joint.reshape(size, size)


def _joint(
    task: Task, w: TaskPowers, mm: Array, m: Array, cm: Array, kappa: Array, inside: Array
) -> Float[Array, "K D K D"]:
    """z² times the pairings of both factors x_q with the context: K[n, q] = kappa."""
    cov, noise, count = task.covariance, task.label_noise**2, len(inside)
    trace, near, far = jnp.trace(inside), jnp.sum(kappa**2), kappa @ inside @ kappa
    # ββ: y and x of one pair, of two pairs, both labels, both inputs.
    one = jnp.einsum("cj,id->icjd", mm, cov) + jnp.einsum("dj,ic->icjd", mm, cov)
    both = one + jnp.transpose(one, (2, 1, 0, 3))
    inputs = jnp.einsum("ic,jd->icjd", cov, cov) + jnp.einsum("id,jc->icjd", cov, cov)
    bb = (near * trace + far) * both + 2 * far * jnp.einsum("cd,ij->icjd", mm, cov)
    bb = bb + (far * w.power + noise * near) * inputs
    # βs and ss; tr Y = c tr K + N σ².
    third = jnp.einsum("ia,jb,kc,abc->ijk", cov, cov, cov, third_moment(task.tasks))
    weighted = trace * near * cm + count * noise * near * m + 2 * (far * cm + noise * near * m)
    turned = jnp.einsum("c,id->icd", weighted, cov) + jnp.einsum("d,ic->icd", weighted, cov)
    bs = turned + (2 * near * trace + 4 * far) * third
    cmm = cov @ w.outer @ cov
    ss = (4 * near * trace + 8 * far) * cmm + (4 * near * count + 8 * near) * noise * mm
    size = len(m)
    joint = jnp.zeros((size + 1, size, size + 1, size), cov.dtype)
    joint = joint.at[:size, :, :size].set(bb)
    joint = joint.at[:size, :, size].set(bs)
    joint = joint.at[size, :, :size].set(jnp.transpose(bs, (1, 0, 2)))
    return joint.at[size, :, size].set(ss)
