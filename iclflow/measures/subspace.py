"""Where the row space of a weight matrix points, against its last or its previous value.

Equation numbers are those of Mainali & Teixeira (2025). A basis is k orthonormal rows. For the
column space, pass the transpose.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.linalg import FactoredMatrix


def right_basis(
    matrix: Float[Array, "m n"] | FactoredMatrix, count: int | None = None
) -> Float[Array, "k n"]:
    """The `count` leading right singular vectors, as rows.

    Without `count`, all of them, where rows that belong to a singular value at rounding level
    are zero: the projector VᵀV is then the one on the row space.

    - `matrix`: M.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> abs(icl.measures.right_basis(jnp.diag(jnp.asarray([1.0, 2.0])), count=1)).tolist()
    [[0.0, 1.0]]
    """
    if isinstance(matrix, FactoredMatrix):
        _, values, vt = matrix.svd()
    else:
        _, values, vt = jnp.linalg.svd(jnp.asarray(matrix), full_matrices=False)
    if count is None:
        cutoff = max(matrix.shape) * jnp.finfo(values.dtype).eps * values[0]
        return jnp.where((values > cutoff)[:, None], vt, 0)
    if not 1 <= count <= vt.shape[0]:
        raise ValueError(
            f"the subspace must have between 1 and {vt.shape[0]} dimensions, got {count}"
        )
    return vt[:count]


def subspace_distance(
    matrix: Float[Array, "m n"] | FactoredMatrix,
    final: Float[Array, "l n"] | FactoredMatrix,
    count: int | None = None,
) -> Float[Array, ""]:
    """min over A of ‖A M - M∞‖_F / ‖M∞‖_F = ‖M∞ (I - V Vᵀ)‖_F / ‖M∞‖_F (16).

    V holds the right singular vectors of M; it is 0 for any invertible M unless only the top
    `count` are used. For M∞ = 0 there is nothing to reach and the distance is 0.

    - `matrix`: M, at some time.
    - `final`: M∞, at the end.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> now, end = jnp.diag(jnp.asarray([1.0, 0.0])), jnp.diag(jnp.asarray([4.0, 3.0]))
    >>> round(float(icl.measures.subspace_distance(now, end)), 6)
    0.6
    """
    return unexplained(final, right_basis(matrix, count))


def unexplained(
    final: Float[Array, "m n"] | FactoredMatrix, basis: Float[Array, "k n"]
) -> Float[Array, ""]:
    """‖M∞ (I - V Vᵀ)‖_F / ‖M∞‖_F: the share of M∞ outside the span of the rows of `basis`.

    - `final`: M∞.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> end = jnp.diag(jnp.asarray([4.0, 3.0]))
    >>> round(float(icl.measures.unexplained(end, jnp.eye(2)[:1])), 6)
    0.6
    """
    if isinstance(final, FactoredMatrix):
        outer = jnp.linalg.qr(final.left, mode="r")
        inner = final.right
        final = outer @ inner  # r x n, with the row space and the norms of M∞
        rest = outer @ (inner - (inner @ basis.T) @ basis)
    else:
        rest = final - (final @ basis.T) @ basis
    size = jnp.linalg.norm(final)
    return jnp.linalg.norm(rest) / jnp.where(size > 0, size, 1)


def projector_distance(first: Float[Array, "k n"], second: Float[Array, "k n"]) -> Float[Array, ""]:
    """‖P₁ - P₂‖_F / √(2k), the root mean square sine of the principal angles: 0 to 1.

    From the residual rather than from k - ‖V₁V₂ᵀ‖², which would lose half the digits.

    - `first`, `second`: the subspaces, as orthonormal rows.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> round(float(icl.measures.projector_distance(jnp.eye(3)[:2], jnp.eye(3)[1:])), 4)
    0.7071
    """
    rest = second - (second @ first.T) @ first
    return jnp.linalg.norm(rest) / jnp.sqrt(first.shape[0])


def principal_angles(first: Float[Array, "k n"], second: Float[Array, "l n"]) -> Float[Array, " p"]:
    """The angles between two subspaces given by orthonormal rows, largest first, in radians.

    From cosines where they are small and sines where they are small, so that every angle has
    full precision.

    - `first`, `second`: the subspaces, as orthonormal rows.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> icl.measures.principal_angles(jnp.eye(3)[:2], jnp.eye(3)[1:]).round(4).tolist()
    [1.5708, 0.0]
    """
    if first.shape[0] < second.shape[0]:
        first, second = second, first
    cosines = jnp.linalg.svd(first @ second.T, compute_uv=False)
    rest = second - (second @ first.T) @ first
    sines = jnp.linalg.svd(rest, compute_uv=False)[::-1]  # ascending, to match the cosines
    cosines, sines = jnp.clip(cosines, 0, 1), jnp.clip(sines, 0, 1)
    return jnp.where(cosines**2 < 0.5, jnp.arccos(cosines), jnp.arcsin(sines))[::-1]


def consecutive_distances(bases: Float[Array, "T k n"]) -> Float[Array, " T-1"]:
    """Projector distance from each saved subspace to the one before: needs no last checkpoint.

    - `bases`: orthonormal rows of the subspace at every saved time.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> bases = jnp.eye(3)[jnp.asarray([[0], [0], [1]])]
    >>> icl.measures.consecutive_distances(bases).tolist()
    [0.0, 1.0]
    """
    previous, following = bases[:-1], bases[1:]
    overlap = jnp.einsum("tkn,tln->tkl", following, previous)
    rest = following - jnp.einsum("tkl,tln->tkn", overlap, previous)
    return jnp.sqrt(jnp.sum(rest**2, axis=(1, 2)) / bases.shape[1])


def log_intervals(steps: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T-1"]:
    """ln(s'/s) between consecutive steps; a first step 0 stands at half the second one.

    That is the convention of `Clock.LOG`.
    """
    steps = np.asarray(steps, float)
    ends = steps[1:]
    return np.log(ends / np.where(steps[:-1] > 0, steps[:-1], ends / 2))


def subspace_speed(
    bases: Float[Array, "T k n"], steps: Float[np.ndarray, " T"]
) -> Float[Array, " T-1"]:
    """The projector distance between consecutive subspaces per unit of the logarithm of the step.

    The distance (16) to the last checkpoint needs an end, and what it shows depends on where that
    end is. The speed needs none: it is known while a training still runs. It is large where the
    subspace turns and near zero where the subspace has settled.

    - `bases`: the orthonormal bases at increasing steps, as `right_basis` gives them.
    - `steps`: the training steps at which the bases were taken.

    >>> import jax.numpy as jnp, numpy as np, iclflow as icl
    >>> angle = jnp.array([0.0, 0.5, 1.0, 1.0])
    >>> bases = jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1)[:, None]
    >>> speed = icl.measures.subspace_speed(bases, np.array([1.0, 2.0, 4.0, 8.0]))
    >>> [round(float(s), 3) for s in speed]  # sin(0.5) / ln(2), then at rest
    [0.692, 0.692, 0.0]
    """
    return consecutive_distances(bases) / log_intervals(steps)
