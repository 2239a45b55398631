"""The population loss of softmax attention, approximate: to first order in 1/N (S5), (S9).

Softmax attention is linear in no fixed features, so that its population has no closed form. But
for Gaussian inputs and many pairs each head is a ratio of two means over pairs, both close to their
limits: E[e^{xᵀa} F(x)] = e^{aᵀΛa/2} E F(x + Λa), so that attention moves the mean of the inputs
by Λa. Expanding in the fluctuations of both means gives the loss up to O(1/N²).

All matrices are in white coordinates, x = root z: G_h = rootᵀ A_h root is head h, whose score of
token n is x_nᵀ A_h x_q, and T = rootᵀ E[wwᵀ] root.

The equation numbers (S1), (S2), … are those of the page on softmax attention.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.linalg import contract, is_concrete
from iclflow.losses.base import AbstractLoss, misfit
from iclflow.losses.population import WhiteTask
from iclflow.models import AbstractModel, Blocks, Softmax
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.task import Task, require_task

Values = Float[Array, " H"]
Heads = Float[Array, "H D D"]
Number = Float[Array, ""]


class LargeContext(AbstractLoss):
    """The population loss of softmax attention with several heads, up to errors of order 1/N².

    It is an approximation, which is why `select` never takes it: give it yourself. L₁ of (S5) is
    exact to first order in 1/N, and the correction of (S9) makes it exact at any N for small keys.
    It is no bound: its minimum can lie below any loss that softmax attention reaches.

    It holds where ρ < 1, the largest eigenvalue of 2 A_hᵀΛA_h against Λ⁻¹ over the heads h: beyond,
    rare queries that attend to a single pair dominate. There the loss is infinite, so that a run
    ends; record `rho` to see how far it is from that. The error falls as N⁻² while ρ < 1/3, and as
    N^(-(1 + 1/ρ)/2) beyond. At N = 31 and D = 4 losses along a run are right to 2 to 3 %, up to 8 %
    in the middle of a drop; the first drop is to 1 %, later ones to about 10 %.

    - `white`: the task in white coordinates.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
    >>> loss = icl.LargeContext(task)
    >>> model = icl.Softmax.initialiser(task, heads=5, rank=1, scale=0.1)(jax.random.key(0))
    >>> round(float(loss(model)), 2), bool(loss.rho(model) < 1e-3)
    (1.0, True)
    """

    white: WhiteTask

    def __init__(self, task: AbstractTask) -> None:
        """Evaluate what the formulas need of a task.

        - `task`: a linear regression with Gaussian inputs and one output, whose task vectors and
          noise have mean 0.
        """
        known = require_task(task, "the loss of long contexts is")
        reason = _beyond(known)
        if reason is not None:
            raise ValueError(
                f"LargeContext cannot take this task: {reason}; use Sequences.sample(task, 1000, "
                f"key, averaged=True)"
            )
        white = WhiteTask.of(known)
        assert white is not None
        self.white = white

    def shown(self) -> dict[str, Any]:
        lengths = self.white.lengths
        context = lengths.reshape(()) if lengths.size == 1 else lengths
        return {"D": self.white.tasks.shape[-1], "context": context, "order": "1/N"}

    def __call__(self, model: AbstractModel) -> Number:
        self.require(model)
        assert isinstance(model, Softmax)
        query = model.query_key
        values, heads = self._heads(model)
        tasks, variance = self.white.tasks, self.white.label_variance

        def of_length(n: Number) -> Number:
            return corrected_loss(values, heads, tasks, variance, n, query=query)

        return jnp.mean(jax.vmap(of_length)(self.white.lengths)) + self.white.target_variance

    def rho(self, model: AbstractModel) -> Number:
        """How near the weights are to where the formula ends, ρ = 1.

        - `model`: softmax attention.
        """
        reason = _beyond_softmax(model)
        if reason is not None:
            raise ValueError(f"rho is a number of softmax attention: {reason}")
        return largest_exponent(self._heads(model)[1])

    def _heads(self, model: AbstractModel) -> tuple[Values, Heads]:
        """v_h and G_h of softmax attention with one output."""
        assert isinstance(model, Softmax)
        size, root = self.white.root.shape[0], self.white.root
        scores = model.attention.key_query()[:, :size]
        white = contract("dj,hdk->hjk", root, contract("hdc,ck->hdk", scores, root))
        return model.attention.values[:, 0, 0], white

    def admits(self, model: AbstractModel) -> str | None:
        reason = _beyond_softmax(model) or misfit(model, *self.dims())
        if reason is not None:
            return reason
        values, heads = self._heads(model)
        if values.shape[-1] < 2:
            return (
                "the formula needs two or more heads, got one: a single head leaves its region "
                "(ρ = 1) in training; use Sequences.sample(task, 1000, key, averaged=True)"
            )
        if is_concrete(heads) and heads.ndim == 3:
            rho = float(largest_exponent(heads))
            if rho >= 1:
                return (
                    f"the formula holds for ρ < 1, and these weights have ρ = {rho:.3g}; start "
                    f"from a smaller scale, or use Sequences.sample(task, 1000, key, averaged=True)"
                )
        return None

    def dims(self) -> tuple[int, int]:
        return self.white.tasks.shape[-1], 1


def _beyond(task: Task) -> str | None:
    """Why the formulas do not cover a task; None if they do."""
    if not isinstance(task.inputs, Gaussian):
        return f"it is for Gaussian inputs, got {type(task.inputs).__name__}"
    if task.outputs > 1:
        return f"it is for one output, got {task.outputs}"
    if WhiteTask.of(task) is None:
        return "the labels of its context are noise"
    if is_concrete(task.tasks.mean) and bool(jnp.any(task.tasks.mean != 0)):
        return "its task vectors have a mean, and the mean loss then has odd terms"
    return None


def _beyond_softmax(model: AbstractModel) -> str | None:
    """Why a model is not one that the formulas describe; None if it is."""
    if not isinstance(model, Softmax):
        return f"it is for softmax attention, got {type(model).__name__}"
    if model.attention.blocks is Blocks.FULL:
        return "the formula covers frozen zero blocks; freeze them, or use Sequences"
    return None


def largest_exponent(heads: Heads) -> Number:
    """ρ = max_h λ_max(2 G_hᵀG_h), below which the means of (S4) exist."""
    return 2 * jnp.max(jnp.linalg.norm(heads, ord=2, axis=(-2, -1)) ** 2)


def corrected_loss(
    values: Values, heads: Heads, tasks: Float[Array, "D D"], variance: Number, n: Number,
    *, query: bool = True,
) -> Number:  # fmt: skip
    """L_c = L₁ + L_sk - L_sk,1 (S9): as (S5) to first order in 1/N, and exact for small keys.

    - `values`, `heads`: v_h and G_h.
    - `tasks`: T.
    - `variance`: σ² of the labels.
    - `n`: the number of pairs N.
    - `query`: whether the query's token attends to itself.
    """
    given = (values, heads, tasks, variance, n)
    exact, first = small_keys(*given, query=query)
    return first_order(*given, query=query) + exact - first


def first_order(
    values: Values, heads: Heads, tasks: Float[Array, "D D"], variance: Number, n: Number,
    *, query: bool = True,
) -> Number:  # fmt: skip
    """L₁ of (S5), infinite where its means do not exist; arguments as of `corrected_loss`.

    A head is m_h = wᵀG_h z for the query z in the limit. Its mean is lower by a share e^{q_h}/N, to
    which the query's own token adds u_q/N (S2), and two heads vary together by e^{q_gh}(ω + m_gm_h)
    /N (S3), with q_gh = zᵀG_gᵀG_h z. The mean over z is a Gaussian integral (S4).
    """
    size = len(tasks)
    missed = jnp.eye(size) - contract("h,hij->ij", values, heads)  # R
    gram = contract("gki,hkj->ghij", heads, heads)
    gram = (gram + jnp.swapaxes(gram, 2, 3)) / 2  # Q_gh
    mean, second = exponential_means(gram)
    own = jnp.arange(len(values))
    lost = second[own, own]  # C(Q_hh)
    if query:
        alone = (heads + jnp.swapaxes(heads, 1, 2)) / 2 - gram[own, own] / 2
        lost = lost + exponential_means(alone)[1]
    seen = contract("ij,hjk->hik", missed.T @ tasks, heads)
    bias = 2 * jnp.sum(values * jnp.sum(seen * lost, axis=(1, 2)))
    weighed = contract("gki,hkj->ghij", heads, contract("kl,hlj->hkj", tasks, heads))
    powers = mean * (jnp.trace(tasks) + variance) + jnp.sum(weighed * second, axis=(2, 3))
    spread = values @ powers @ values
    found = jnp.sum(missed * (tasks @ missed)) + (bias + spread) / n
    return jnp.where(jnp.isfinite(found), found, jnp.inf)


def exponential_means(
    forms: Float[Array, "*batch D D"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch D D"]]:
    """E e^{zᵀQz} = det(I - 2Q)^(-1/2) and E[e^{zᵀQz} zzᵀ] for z ~ N(0, I) (S4).

    NaN where they do not exist: the factor of Cholesky is real only where I - 2Q is positive, while
    a determinant is positive with two negative factors as well.

    - `forms`: symmetric Q.
    """
    size = forms.shape[-1]
    identity = jnp.broadcast_to(jnp.eye(size, dtype=forms.dtype), forms.shape)
    factor = jnp.linalg.cholesky(identity - 2 * forms)
    mean = 1 / jnp.prod(jnp.diagonal(factor, axis1=-2, axis2=-1), axis=-1)
    half = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    return mean, mean[..., None, None] * (jnp.swapaxes(half, -1, -2) @ half)


def small_keys(
    values: Values, heads: Heads, tasks: Float[Array, "D D"], variance: Number, n: Number,
    *, query: bool = True,
) -> tuple[Number, Number]:  # fmt: skip
    """The loss for small keys, exact (S7) and to first order in 1/N (S8).

    The arguments are those of `corrected_loss`. V = Σ v_h and B = Σ v_hG_h are kept as the keys
    become small. Attention is then ŷ = Σ y_n [V + (x_n - x̄)ᵀBx_q]/N', with N' tokens and their
    mean x̄.
    """
    total, sums = jnp.sum(values), contract("h,hij->ij", values, heads)
    power = jnp.trace(tasks)
    labels = power + variance  # ω
    gain, squared = jnp.sum(tasks * sums), jnp.sum(sums * (tasks @ sums))  # c, μ
    size = jnp.sum(sums**2)  # α
    tokens = n + 1 if query else n
    exact = (
        power
        - 2 * gain * (n / tokens - n / tokens**2)
        + (n * (n + 1) * squared + n * labels * size) * (1 / tokens**2 - 2 / tokens**3)
        + n**2 * (labels * size + 2 * squared) / tokens**4
        + total**2 * n * labels / tokens**2
    )
    if query:
        trace, even = jnp.trace(sums), (sums + sums.T) / 2
        cubic = (trace**2 + 2 * jnp.sum(even**2)) / tokens**4
        exact = exact + n * labels * (cubic - 2 * total * trace / tokens**3)
    change = 2 * (2 if query else 1) * (gain - squared)
    rest = change + total**2 * labels + labels * size + squared
    return exact, power - 2 * gain + squared + rest / n
