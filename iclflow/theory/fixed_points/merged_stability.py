"""Stability of the fixed points of merged attention: the zero set and the minimum (14)(16)."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses import Population
from iclflow.models import Merged
from iclflow.tasks.checks import require_size
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes
from iclflow.theory.fixed_points.points import merged_weights
from iclflow.theory.fixed_points.stability import Order

DENSE_LIMIT = 3000  # size of the one dense eigenproblem at the minimum of a non-commuting task


class MergedStability(eqx.Module):
    """The Hessian of L of merged attention at named weights, and its rates of escape in t/τ."""

    model: Merged
    eigenvalues: Float[Array, " n"]  # ascending, one for every weight
    rates: Float[Array, " index"]  # minus half the negative eigenvalues, fastest first
    value_parts: Float[Array, "index H"]  # of each unit direction that grows at `rates`
    layer_parts: Float[Array, "index H"]  # the same for U, times `unit`
    unit: Float[Array, "D D"]  # G/‖G‖
    order: Order = eqx.field(static=True)

    @property
    def index(self) -> int:
        """The number of negative eigenvalues."""
        return self.rates.shape[0]

    def direction(self, number: int) -> Merged:
        """The unit direction that grows at `rates[number]`."""
        if not 0 <= number < self.index:
            raise ValueError(f"there are {self.index} unstable directions, got number {number}")
        return Merged(
            values=self.value_parts[number][:, None, None],
            merged=self.layer_parts[number][:, None, None] * self.unit[None],
        )


def merged_stability_at_zero(
    source: Task | Population | Modes, model: Merged | int
) -> MergedStability:
    """The zero function {w₂ = 0, W₁ vec(G) = 0}, at given weights or H heads all zero.

    With p the eigenvalues of Pᵢⱼ = ⟨Uᵢ, B Uⱼ Λ⟩: p ± (p² + 4‖G‖²)^(1/2), one pair per head, and
    H(D² - 1) zeros; ±2‖G‖ at zero weights, where (v, U) ∝ (1, G/‖G‖) grows at rate ‖G‖ = ‖Λ²‖.
    """
    modes = Modes.of(source)
    size = modes.size
    if isinstance(model, int):
        require_size("heads", model)
        zero = jnp.zeros((model, size, size), modes.cross.dtype)
        model = Merged(values=zero[:, :1, :1], merged=zero)
    heads = model.values.shape[0]
    norm = float(jnp.linalg.norm(modes.cross))
    overlap = jnp.einsum("hdc,dc->h", model.merged, modes.cross)
    slack = 1e-9 * norm * max(float(jnp.linalg.norm(model.merged)), 1.0)
    if bool(jnp.any(model.values != 0)) or float(jnp.abs(overlap).max()) > slack:
        raise ValueError(
            "the zero set of merged attention is v = 0 and ⟨Uᵢ, G⟩ = 0 for every head; "
            "these weights are not on it"
        )
    curved = jnp.einsum("jk,hkd,dc->hjc", modes.second, model.merged, modes.covariance)
    gram = np.asarray(jnp.einsum("idc,jdc->ij", model.merged, curved))
    p, a = np.linalg.eigh((gram + gram.T) / 2)
    p = p.clip(min=0.0)
    upper = p / 2 + np.hypot(p / 2, norm)
    lower = -(norm**2) / np.where(upper > 0, upper, 1.0)
    zeros = np.zeros(heads * (size**2 - 1))
    dtype = modes.cross.dtype
    if norm == 0.0:  # nothing to learn: the labels do not depend on the context
        eigenvalues = np.concatenate([p, np.zeros(heads * size**2)])
        order, growing = Order.MINIMUM, np.zeros(0, dtype=int)
    else:
        eigenvalues = np.concatenate([upper, lower, zeros])
        order, growing = Order.SECOND, np.argsort(lower, kind="stable")
    # Eigenvector of [[p, -‖G‖], [-‖G‖, 0]] for the lower eigenvalue: (-lower, ‖G‖).
    value, layer = -lower[growing], np.full(growing.size, norm)
    length = np.hypot(value, layer)
    along = a[:, growing] / np.where(length > 0, length, 1.0)[None, :]
    unit = modes.cross / (norm if norm > 0 else 1.0)
    return MergedStability(
        model=model,
        eigenvalues=jnp.asarray(2 * np.sort(eigenvalues), dtype),
        rates=jnp.asarray(-lower[growing], dtype),
        value_parts=jnp.asarray(value[:, None] * along.T, dtype),
        layer_parts=jnp.asarray(layer[:, None] * along.T, dtype),
        unit=unit,
        order=order,
    )


def merged_stability_at_minimum(source: Task | Population | Modes, heads: int) -> MergedStability:
    """The least-squares manifold at its balanced weights `merged_weights(source, heads)`.

    The nonzero part is twice the spectrum of K^(1/2)(s I + s m̂ m̂ᵀ)K^(1/2) with K = Λ ⊗ B, m̂ = M*/s,
    s = ‖M*‖: in eigenbases of B and Λ, a diagonal matrix plus rank one. H(D² + 1) - D² zeros.
    """
    modes = Modes.of(source)
    model = merged_weights(modes, heads)
    target = np.asarray(modes.weight(range(modes.rank)))
    s = float(np.linalg.norm(target))
    if modes.commuting:  # one basis for both, so that M* is diagonal in it
        lam, b, _ = (np.asarray(a) for a in modes.directions())
        mean = np.zeros_like(target)
        np.fill_diagonal(mean[: modes.rank, : modes.rank], np.asarray(modes.m))
    else:
        b, left = np.linalg.eigh(np.asarray(modes.second))
        lam, right = np.linalg.eigh(np.asarray(modes.covariance))
        mean = left.T @ target @ right
    stiffness = s * np.outer(b.clip(min=0.0), lam.clip(min=0.0)).ravel()
    z = np.sqrt(stiffness) * mean.ravel() / (s if s > 0 else 1.0)
    coupled = np.abs(z) > np.finfo(z.dtype).eps * max(float(np.abs(z).max(initial=0.0)), 1e-300)
    if int(coupled.sum()) > DENSE_LIMIT:
        raise ValueError(
            f"the spectrum at the minimum of a non-commuting task needs a dense eigenproblem of "
            f"size {int(coupled.sum())} (at most {DENSE_LIMIT}); use `hessian_product`"
        )
    dense = np.diag(stiffness[coupled]) + np.outer(z[coupled], z[coupled])
    zeros = np.zeros(heads * (modes.size**2 + 1) - stiffness.size)
    values = np.concatenate([stiffness[~coupled], np.linalg.eigvalsh(dense), zeros])
    dtype = modes.cross.dtype
    none = jnp.zeros((0, heads), dtype)
    return MergedStability(
        model=model,
        eigenvalues=jnp.asarray(2 * np.sort(values.clip(min=0.0)), dtype),
        rates=jnp.zeros(0, dtype),
        value_parts=none,
        layer_parts=none,
        unit=modes.cross / jnp.where(s > 0, jnp.linalg.norm(modes.cross), 1.0),
        order=Order.MINIMUM,
    )
