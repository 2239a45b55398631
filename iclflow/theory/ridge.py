"""Where training on a sample ends: the ridge minimum, and what is known of its error beforehand.

Weights W on features φ = a ⊗ x_q minimise the mean over P prompts of (y - ⟨W, φ⟩)², plus
`penalty` · |W|². A gradient flow without decay ends, from zero, where the penalty goes to 0.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, ArrayLike, Float, Int

from iclflow.losses.base import AbstractLoss
from iclflow.losses.features import Features, LabelFeatures, ReducedFeatures
from iclflow.losses.label_population import LabelPopulation
from iclflow.losses.moments import Moments
from iclflow.models import LabelRow
from iclflow.results.messages import require_choice
from iclflow.tasks.checks import require_memory, require_real, require_size, require_within
from iclflow.theory.algorithms.linear import LinearPredictor

METHODS = ("primal", "dual", "iterations")
ENOUGH = 1.15  # prompts per feature from which iterations converge quickly
TOLERANCE = 1e-11  # of the residual, relative to its start
LARGEST = 4000  # iterations


def ridge_weights(
    loss: AbstractLoss, penalty: ArrayLike, *, method: str | None = None,
    tolerance: float = TOLERANCE,
) -> Float[Array, "O K D"]:  # fmt: skip
    """The weights on the features with the least mean squared error + `penalty` · |W|².

    - `loss`: what is known of the prompts; `Moments` have the primal form only.
    - `penalty`: on the mean over prompts. A penalty λ' on the sum is λ'/P here; what is added to
      the gradient of the mean squared error as λ W (weight decay) is λ/2 here.
    - `method`: "primal" solves with E[φφᵀ], of K·D rows; "dual" with the kernel of the prompts,
      the elementwise product (a·a')(x·x'), of P rows; "iterations" are conjugate gradients that
      need neither matrix, preconditioned by E[a aᵀ] ⊗ E[x xᵀ]. All give the same weights. The
      cheapest is taken if omitted.
    - `tolerance`: where the iterations stop, as the residual relative to its start. 1e-6 takes half
      of the time, and is enough for errors to six digits.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, label_noise=0.1)
    >>> loss = icl.label_rows(task, 50, jax.random.key(0))
    >>> one, other = (icl.theory.ridge_weights(loss, 1e-2, method=m) for m in ("primal", "dual"))
    >>> bool(np.allclose(one, other, atol=1e-4))
    True
    """
    value = require_real("penalty", penalty, ndim=0)
    require_within("penalty", value, lower=0.0)
    if method is not None:
        require_choice("method", method, METHODS)
    if not 0 < tolerance < 1:
        raise ValueError(f"the tolerance must be above 0 and below 1, got {tolerance}")
    if isinstance(loss, Moments):
        if method not in (None, "primal"):
            raise ValueError(f"Moments have the primal form only, got {method}; give Features")
        size = _size(loss)
        weights = _solved(loss.second, loss.cross.T, value).T
        return weights.reshape(weights.shape[0], -1, size)
    if not isinstance(loss, Features):
        raise ValueError(f"a ridge minimum needs Features or Moments, got {type(loss).__name__}")
    statistic, query, target = (
        a.reshape(-1, a.shape[-1]) for a in (loss.statistic, loss.query, loss.target)
    )
    if not len(statistic) == len(query) == len(target):
        raise ValueError(
            f"one statistic, query and target per prompt are needed, got {len(statistic)}, "
            f"{len(query)} and {len(target)}"
        )
    if not bool(jnp.isfinite(target).all()):
        raise ValueError("the targets must be finite, got NaN or inf; leave these prompts out")
    rows, features = len(target), statistic.shape[1] * query.shape[1]
    if method is None:
        method = "dual" if rows <= features else "primal"
        if rows >= ENOUGH * features and target.shape[1] == 1 and features > 200:
            method = "iterations"
    side = rows if method == "dual" else features
    if method != "iterations":
        require_memory(24 * side * side, f"a matrix of {side} rows", "give fewer prompts")
    if method == "dual":
        return _dual(statistic, query, target, value)
    if method == "primal":
        return _primal(statistic, query, target, value)
    if target.shape[1] != 1:
        raise ValueError(f"iterations are for one output, got {target.shape[1]}; use primal")
    found, steps = _iterated(statistic, query, target[:, 0], value, jnp.asarray(tolerance))
    if int(steps) >= LARGEST:  # nearly as many features as prompts: too ill-conditioned
        return _primal(statistic, query, target, value)
    return found[None]


def ridge(
    loss: AbstractLoss, penalty: ArrayLike, *, method: str | None = None
) -> LabelRow | LinearPredictor:
    """The model at the ridge minimum: `LabelRow` on `LabelFeatures`, else linear in β x_qᵀ.

    The arguments are those of `ridge_weights`.

    - `loss`, `penalty`, `method`: as there.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, label_noise=0.1)
    >>> pool = task.replace(tasks=icl.Pool([[1.0, 0.0], [0.0, 1.0]]))
    >>> model = icl.theory.ridge(icl.label_rows(pool, 500, jax.random.key(0)), 1e-6)
    >>> errors = [float(icl.LabelPopulation(t)(model)) for t in (pool, task)]
    >>> errors[0] < errors[1]
    True
    """
    map_ = loss.map if isinstance(loss, Features | Moments) else None
    if map_ is not None and not isinstance(map_, LabelFeatures | ReducedFeatures):
        raise ValueError(
            f"no model has exactly the weights on {type(map_).__name__}; use ridge_weights, or "
            f"features=icl.LabelFeatures()"
        )
    weights = ridge_weights(loss, penalty, method=method)
    if isinstance(map_, LabelFeatures):
        return LabelRow(None, weights[0])
    outputs, _, size = weights.shape
    return LinearPredictor(weights.reshape(outputs, outputs, size, size))


def _size(loss: Moments) -> int:
    dims = loss.dims()
    if dims is None:
        raise ValueError(f"the size of {type(loss.map).__name__} is not known from Moments")
    return dims[0]


def _solved(matrix: Array, right: Array, penalty: Array) -> Array:
    """(C + penalty I)⁻¹ right; the least-norm solution where C is singular and penalty is 0."""
    regular = matrix + penalty * jnp.eye(len(matrix), dtype=matrix.dtype)
    found = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(regular, lower=True), right)
    if bool(jnp.isfinite(found).all()):
        return found
    return jnp.linalg.lstsq(regular, right)[0]


@eqx.filter_jit
def _gram(statistic: Array, query: Array, target: Array) -> tuple[Array, Array]:
    phi = jnp.einsum("pk,pc->pkc", statistic, query).reshape(len(query), -1)
    return phi.T @ phi, phi.T @ target


def _primal(statistic: Array, query: Array, target: Array, penalty: Array) -> Array:
    rows, features = len(target), statistic.shape[1] * query.shape[1]
    matrix = jnp.zeros((features, features), statistic.dtype)
    right = jnp.zeros((features, target.shape[1]), statistic.dtype)
    block = max(256, int(2e8 // (8 * features)))  # 200 MB of features at once
    for start in range(0, rows, block):
        some = slice(start, start + block)
        more, cross = _gram(statistic[some], query[some], target[some])
        matrix, right = matrix + more, right + cross
    weights = _solved(matrix / rows, right / rows, penalty)
    return weights.T.reshape(-1, statistic.shape[1], query.shape[1])


@eqx.filter_jit
def _kernel(statistic: Array, query: Array) -> Array:
    return (statistic @ statistic.T) * (query @ query.T) / len(query)


def _dual(statistic: Array, query: Array, target: Array, penalty: Array) -> Array:
    rows = len(target)
    kernel = _kernel(statistic, query)
    shares = _solved(kernel, target, penalty) / rows
    return jnp.einsum("po,pk,pc->okc", shares, statistic, query, optimize="optimal")


@eqx.filter_jit
def _iterated(
    statistic: Float[Array, "P K"], query: Float[Array, "P D"], target: Float[Array, " P"],
    penalty: Float[Array, ""], tolerance: Float[Array, ""],
) -> tuple[Float[Array, "K D"], Int[Array, ""]]:  # fmt: skip
    """Conjugate gradients on the normal equations; a product costs 4 P K D operations."""
    rows = len(target)
    left = jnp.linalg.eigh(statistic.T @ statistic / rows)
    right = jnp.linalg.eigh(query.T @ query / rows)
    floor = jnp.finfo(statistic.dtype).eps * left[0][-1] * right[0][-1]
    scale = 1 / (jnp.maximum(jnp.outer(left[0], right[0]), floor) + penalty)

    def precondition(r: Array) -> Array:
        return left[1] @ (scale * (left[1].T @ r @ right[1])) @ right[1].T

    def apply(w: Array) -> Array:
        predicted = jnp.sum((statistic @ w) * query, axis=1)
        return statistic.T @ (query * predicted[:, None]) / rows + penalty * w

    start = statistic.T @ (query * target[:, None]) / rows
    z = precondition(start)
    size = jnp.sum(start * z)

    def going(state: tuple) -> Array:
        return (state[-2] > tolerance**2 * size) & (state[-1] < LARGEST)

    def step(state: tuple) -> tuple:
        w, r, p, rz, count = state
        image = apply(p)
        rate = rz / jnp.sum(p * image)
        w, r = w + rate * p, r - rate * image
        z = precondition(r)
        new = jnp.sum(r * z)
        return w, r, z + (new / rz) * p, new, count + 1

    first = (jnp.zeros_like(start), start, z, size, jnp.asarray(0))
    w, _, _, _, count = jax.lax.while_loop(going, step, first)
    return w, count


class Errors(eqx.Module):
    """What a formula says of a ridge minimum.

    - `new`: the error on new tasks, e_ICL.
    - `pool`: the error on the tasks of training, e_IDG.
    """

    new: Float[Array, ""]
    pool: Float[Array, ""]


POINTS = 4000  # of the spectrum of a pool


def ridge_limit(
    prompts: float, context: float, tasks: float, noise: float, penalty: float = 0.0
) -> Errors:
    """e_ICL and e_IDG of the label row at its ridge minimum, as D → ∞ in fixed proportions.

    x ~ N(0, I/D), |w|² = D, a pool of K tasks and P prompts: Lu, Letey, Zavatone-Veth, Maiti and
    Pehlevan (PNAS 2025), for any penalty. The features are replaced by Gaussian ones with the same
    covariance (b/D) ⊗ I, b = q + r: r follows the law of Marchenko and Pastur, q = (1 + ρ)/α.

    - `prompts`: τ = P/D².
    - `context`: α = N/D.
    - `tasks`: κ = K/D.
    - `noise`: ρ, the variance of the noise on labels and target.
    - `penalty`: λ in the authors' convention, Σ (y - ŷ)² + (P/D) λ |Γ|².

    At D = 100 the limit is 4 to 13 % below the true error for τ > 1.

    >>> import iclflow as icl
    >>> limit = icl.theory.ridge_limit(prompts=10.0, context=10.0, tasks=0.5, noise=0.01)
    >>> bool(limit.pool < limit.new)
    True
    """
    for name, value in (("prompts", prompts), ("context", context), ("tasks", tasks)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be finite and above 0, got {value}")
    for name, value in (("noise", noise), ("penalty", penalty)):
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and at least 0, got {value}")
    tau, q = prompts, (1 + noise) / context
    r, share = _pool_spectrum(tasks)
    b = q + r
    k = _effective_penalty(np.asarray(b), share, tau, tau * penalty)
    over = b / (b + k)
    variance = np.sum(share * over**2) / tau
    left = noise + np.sum(share * r * q / b)
    pool = (left + k**2 * np.sum(share * r**2 / (b * (b + k) ** 2))) / (1 - variance)
    bent = r / (b + k)
    new = 1 + noise - 2 * np.sum(share * bent) + (1 + q) * np.sum(share * bent**2)
    new = new + (1 + q) * pool / tau * np.sum(share * b / (b + k) ** 2)
    return Errors(jnp.asarray(new), jnp.asarray(pool))


def _pool_spectrum(tasks: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of WᵀW/K as D → ∞ at κ = K/D, and their shares (Marchenko and Pastur)."""
    ratio = 1 / tasks
    angle = (np.arange(POINTS) + 0.5) * np.pi / POINTS
    values = 1 + ratio + 2 * math.sqrt(ratio) * np.cos(angle)
    shares = 2 * np.sin(angle) ** 2 / np.maximum(values, 1e-300) / POINTS
    if tasks < 1:
        values, shares = np.append(values, 0.0), np.append(shares, 1 - tasks)
    return values, shares


def _effective_penalty(
    values: np.ndarray, shares: np.ndarray, rows: float, penalty: float
) -> float:
    """k > 0 with rows = Σ shares · b/(b + k) + penalty/k; 0 where there is none."""

    def gap(log: float) -> float:
        k = math.exp(log)
        return float(np.sum(shares * values / (values + k)) + penalty / k - rows)

    full = float(np.sum(shares[values > 0]))
    if penalty == 0 and rows >= full:
        return 0.0
    top = math.log(values.max() * full / rows + penalty / rows) + 1e-9
    bottom = top - 1
    while gap(bottom) < 0:
        bottom -= 5
    root: Any = scipy.optimize.brentq(gap, bottom, top + 1, xtol=1e-13)
    return math.exp(root)


def ridge_equivalent(
    train: LabelPopulation, test: LabelPopulation, prompts: int, penalty: float = 0.0
) -> Float[Array, ""]:
    """The error on `test` of the ridge minimum of P prompts of `train`, features taken as Gaussian.

    The deterministic equivalent for any covariances, tasks, lengths and noise: features are
    replaced by Gaussian ones with the same covariance B ⊗ Λ. What it leaves out is that φ is a
    product: at D = 100 and P near the number of features it is some per cent low.

    - `train`, `test`: populations, of a pool and of new tasks for example; no query with memory.
    - `prompts`: P.
    - `penalty`: as in `ridge`, on the mean over prompts.

    >>> import iclflow as icl
    >>> task = icl.Task([1.0] * 4, context=20, label_noise=0.1, target_noise=0.1)
    >>> loss = icl.LabelPopulation(task)
    >>> many, few = (icl.theory.ridge_equivalent(loss, loss, prompts=p) for p in (10_000, 40))
    >>> bool(many < few)
    True
    """
    prompts = require_size("prompts", prompts)
    if train.joint is not None or test.joint is not None:
        raise ValueError("the equivalent is known for an independent query, got one with memory")
    (b, left), (d, right) = (
        np.linalg.eigh(np.asarray(m)) for m in (train.second, train.covariance)
    )
    values = np.maximum(np.outer(b, d), 0.0)
    cross = left.T @ np.asarray(train.cross) @ right
    k = _effective_penalty(values.ravel(), np.ones(values.size), prompts, float(penalty) * prompts)
    safe = np.where(values > 0, values, 1.0)
    best = np.where(values > 0, cross / safe, 0.0)  # the population's own minimum
    floor = float(train.power) - np.sum(best * cross)
    denominator = np.where(values + k > 0, values + k, 1.0)
    freedom = np.sum((values / denominator) ** 2) / prompts
    inside = (floor + k**2 * np.sum(best**2 * values / denominator**2)) / (1 - freedom)
    mean = left @ (cross / denominator) @ right.T
    spread = values / denominator**2 * inside / prompts
    second = left.T @ np.asarray(test.second) @ left
    covariance = right.T @ np.asarray(test.covariance) @ right
    error = float(test.power) - 2 * np.sum(mean * np.asarray(test.cross))
    error += np.sum((np.asarray(test.second) @ mean @ np.asarray(test.covariance)) * mean)
    return jnp.asarray(error + np.diagonal(second) @ spread @ np.diagonal(covariance))
