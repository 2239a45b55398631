"""The Hessian of the loss L as a linear map, at any weights.

It is the Hessian that a run records as `sharpness`: of L, which has no factor ½ (9). Gradient flow
is τ dW/dt = -∂(L/2)/∂W, so a direction with eigenvalue h grows at the rate -h/2 in t/τ.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes
from iclflow.theory.fixed_points.stationarity import Attention, residual_matrix


def hessian_product(
    model: Attention, direction: Attention, source: Task | Population | Modes
) -> Attention:
    """H d for the Hessian H of L at given weights, without forming it: O(H R D² + D³).

    With dM the change of M along d and dA = -B dM Λ, separate attention has
    (H d)_v = -2 Σ_r (dkᵀ A q + kᵀ A dq + kᵀ dA q), (H d)_k = -2 (dv A q + v A dq + v dA q),
    (H d)_q = -2 (dv Aᵀ k + v Aᵀ dk + v dAᵀ k); merged (H d)_v = -2 (⟨dU, A⟩ + ⟨U, dA⟩),
    (H d)_U = -2 (dv A + v dA).

    - `model`: the weights at which the Hessian is taken, merged or separate attention.
    - `direction`: d, weights of the same shape.
    - `source`: the task, its population or its modes.
    """
    modes = Modes.of(source)
    a = residual_matrix(model, modes)
    v, dv = model.values[:, 0, 0], direction.values[:, 0, 0]
    if isinstance(model, Merged):
        assert isinstance(direction, Merged)
        change = jnp.einsum("h,hdc->dc", dv, model.merged)
        change = change + jnp.einsum("h,hdc->dc", v, direction.merged)
        da = -modes.second @ change @ modes.covariance
        value = jnp.einsum("hdc,dc->h", direction.merged, a)
        value = value + jnp.einsum("hdc,dc->h", model.merged, da)
        merged = dv[:, None, None] * a[None] + v[:, None, None] * da[None]
        return type(model)(values=-2 * value[:, None, None], merged=-2 * merged)
    assert isinstance(direction, Separate)
    k, q, dk, dq = model.keys, model.queries, direction.keys, direction.queries
    change = jnp.einsum("h,hrd,hrc->dc", dv, k, q)
    change = change + jnp.einsum("h,hrd,hrc->dc", v, dk, q)
    change = change + jnp.einsum("h,hrd,hrc->dc", v, k, dq)
    da = -modes.second @ change @ modes.covariance
    # A q, A dq + dA q and their transposes for the keys; every entry below is built from these.
    aq, ak = q @ a.T, k @ a
    daq, dak = dq @ a.T + q @ da.T, dk @ a + k @ da
    value = jnp.sum(dk * aq, axis=(1, 2)) + jnp.sum(k * daq, axis=(1, 2))
    dv, v = dv[:, None, None], v[:, None, None]
    return type(model)(
        values=-2 * value[:, None, None],
        keys=-2 * (dv * aq + v * daq),
        queries=-2 * (dv * ak + v * dak),
    )


def hessian_matrix(
    model: Merged | Separate, source: Task | Population | Modes
) -> Float[Array, "n n"]:
    """The dense Hessian of L, weights in the order of `ravel_pytree` (values first).

    - `model`: the weights at which it is taken, merged or separate attention.
    - `source`: the task, its population or its modes.
    """
    return _dense(model, Modes.of(source))


@eqx.filter_jit
def _dense(model: Merged | Separate, modes: Modes) -> Float[Array, "n n"]:
    flat, unravel = ravel_pytree(model)

    def column(unit: Float[Array, " n"]) -> Float[Array, " n"]:
        return ravel_pytree(hessian_product(model, unravel(unit), modes))[0]

    return jax.vmap(column)(jnp.eye(flat.shape[0], dtype=flat.dtype))
