"""Which head has learned which eigenvector of the inputs: alignment, assignment, parallelism.

A head is described by R vectors of the input space (its keys or its queries), [R, D]; stacked
heads are [H, R, D]. `basis` holds the eigenvectors as columns, [D, D], largest eigenvalue first.
"""

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Bool, Float, Int


def head_alignment(
    vectors: Float[Array, "H R D"], basis: Float[Array, "D K"]
) -> Float[Array, "H K"]:
    """Σᵣ (kᵢᵣ·e_d)² / Σᵣ |kᵢᵣ|²: the share of head i's squared norm along eigenvector d.

    Rows sum to 1 for a whole basis; signs, sizes and rotations among a head's R vectors do not
    matter. For equal eigenvalues, add the columns that belong to one eigenspace. A head of
    zeros has alignment 0.

    - `vectors`: keys or queries, R for each head.
    - `basis`: the eigenvectors e_d, as columns.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> keys = jnp.asarray([[[3.0, 0.0]], [[1.0, 1.0]]])
    >>> icl.measures.head_alignment(keys, jnp.eye(2)).round(3).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    along = jnp.einsum("hrc,cd->hrd", vectors, basis)
    total = jnp.sum(vectors**2, axis=(1, 2))
    return jnp.sum(along**2, axis=1) / jnp.where(total > 0, total, 1)[:, None]


def head_contributions(
    values: Float[Array, " H"],
    keys: Float[Array, "H R D"],
    queries: Float[Array, "H R D"],
    basis: Float[Array, "D K"],
) -> Float[Array, "H K"]:
    """vᵢ Σᵣ (e_d·kᵢᵣ)(qᵢᵣ·e_d): what head i adds to mode d of the linear predictor Σ vᵢKᵢᵀQᵢ.

    - `values`, `keys`, `queries`: the weights of the heads.
    - `basis`: the eigenvectors e_d, as columns.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> pairs = jnp.eye(2)[:, None]
    >>> values = jnp.asarray([2.0, 1.0])
    >>> icl.measures.head_contributions(values, pairs, pairs, jnp.eye(2)).tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    along_keys = jnp.einsum("hrc,cd->hrd", keys, basis)
    along_queries = jnp.einsum("hrc,cd->hrd", queries, basis)
    return values[:, None] * jnp.sum(along_keys * along_queries, axis=1)


def assign_heads(
    scores: Float[Array, "H K"] | Float[np.ndarray, "H K"], threshold: float = 0.0
) -> Int[np.ndarray, " K"]:
    """The head of each eigenvector, each head used at most once; -1 where none is left or fits.

    The assignment with the largest total score. Pairs whose score is `threshold` or less are
    undone. Use |contributions| as scores, or alignment times head strength: alignment alone also
    ranks heads that are still dormant.

    - `scores`: how well each head fits each eigenvector.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> icl.measures.assign_heads(jnp.asarray([[0.1, 0.9], [0.2, 0.8], [0.0, 0.0]])).tolist()
    [1, 0]
    """
    table = np.asarray(scores, dtype=float)
    heads, modes = scipy.optimize.linear_sum_assignment(table, maximize=True)
    chosen = np.full(table.shape[1], -1)
    keep = table[heads, modes] > threshold
    chosen[modes[keep]] = heads[keep]
    return chosen


def pairwise_cosines(heads: Float[Array, "H *shape"]) -> Float[Array, "H H"]:
    """cos of the angle between every two heads, as flattened vectors; 0 for a head of zeros.

    - `heads`: the weights of the heads, of any shape.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> icl.measures.pairwise_cosines(jnp.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    flat = heads.reshape(heads.shape[0], -1)
    size = jnp.linalg.norm(flat, axis=1, keepdims=True)
    unit = flat / jnp.where(size > 0, size, 1)
    return unit @ unit.T


def head_parallelism(heads: Float[Array, "H *shape"]) -> Float[Array, ""]:
    """Mean |cos| over pairs of heads: 1 when all lie on one line, of either sign; 1 for one head.

    With merged key and query it reaches 1 before the loss drops, by the conservation law (17)
    of Zhang et al. (2025).

    - `heads`: the weights of the heads, of any shape.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> float(icl.measures.head_parallelism(jnp.asarray([[1.0, 0.0], [-2.0, 0.0]])))
    1.0
    """
    count = heads.shape[0]
    if count == 1:
        return jnp.ones((), heads.dtype)
    cosines = jnp.abs(pairwise_cosines(heads))
    return (jnp.sum(cosines) - jnp.trace(cosines)) / (count * (count - 1))


def active_heads(
    strengths: Float[Array, " H"], *, relative: float = 0.1, floor: float = 0.0
) -> Bool[Array, " H"]:
    """Heads stronger than `floor` and than `relative` times the strongest one.

    Before the first drop all heads are alike; a `floor` (such as a tenth of the smallest
    fixed-point weight) then says that none is active.

    - `strengths`: the size of every head, such as |v|.
    - `relative`: the share of the strongest head that an active one has at least.
    - `floor`: the size that an active head has at least.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> icl.measures.active_heads(jnp.asarray([1.0, 0.5, 0.01])).tolist()
    [True, True, False]
    """
    size = jnp.abs(strengths)
    return (size > relative * jnp.max(size)) & (size > floor)


def active_head_count(
    strengths: Float[Array, " H"], *, relative: float = 0.1, floor: float = 0.0
) -> Int[Array, ""]:
    """The number of `active_heads`.

    - `strengths`, `relative`, `floor`: as in `active_heads`.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> int(icl.measures.active_head_count(jnp.asarray([1.0, 0.5, 0.01])))
    2
    """
    return jnp.sum(active_heads(strengths, relative=relative, floor=floor))
