"""Alignment on a plateau: small keys and queries turn towards the unlearned modes (62)(63)(70)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from iclflow.models import Separate
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.quadratic import separate_weights


def aligned_weights(
    keys: Float[Array, "*R D"],
    queries: Float[Array, "*R D"],
    residual: Float[Array, "D D"],
    phase: ArrayLike,
) -> tuple[Float[Array, "*R D"], Float[Array, "*R D"]]:
    """Key and query of one head after the phase s = ∫ v dt/τ on a plateau with residual A_S.

    τ dk/dt = v A q, τ dq/dt = v Aᵀ k (62) has the solution (63)(70): along the singular vectors
    (u_d, w_d) of A with gain g_d, `k_d = cosh(g_d s) k_d + sinh(g_d s) q_d` and the same with k
    and q exchanged, that is k ± q times e^{±g_d s}. On learned modes, g_d = 0, each of k and q
    is frozen by itself (E6; (70) has their sum instead). Linear in v only through s: exact while
    the head is small.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> e = jnp.eye(2)[:1]
    >>> k, q = icl.theory.aligned_weights(e, e, jnp.diag(jnp.asarray([0.3, 0.1])), 1.0)
    >>> bool(jnp.allclose(k, q)), round(float(jnp.log(k[0, 0])), 4)
    (True, 0.3)
    """
    left, gains, right = jnp.linalg.svd(residual)
    angle = gains * jnp.asarray(phase, residual.dtype)
    cosh, sinh = jnp.cosh(angle), jnp.sinh(angle)
    k, q = keys @ left, queries @ right.T

    def along(scale: Array, part: Array) -> Array:
        return part * jnp.broadcast_to(scale, part.shape)

    new_k = (along(cosh, k) + along(sinh, q)) @ left.T
    new_q = (along(sinh, k) + along(cosh, q)) @ right
    return new_k, new_q


def plateau_weights(
    model: Separate, residual: Float[Array, "D D"] | Float[np.ndarray, "D D"], time: float
) -> Separate:
    """All weights of small heads a time t/τ later on a plateau with residual A_S.

    `ValueError` if a head escapes before; `DormantHeads.blow_up` says when.
    """
    values, keys, queries = separate_weights(model)
    left, _, right = np.linalg.svd(np.asarray(residual, np.float64))
    later = DormantHeads.of(values, keys, queries, np.asarray(residual, np.float64)).after(time)
    dtype = model.values.dtype
    return Separate(
        values=jnp.asarray(later.values[:, None, None], dtype),
        keys=jnp.asarray((later.sums + later.differences) / 2 @ left.T, dtype),
        queries=jnp.asarray((later.sums - later.differences) / 2 @ right, dtype),
    )
