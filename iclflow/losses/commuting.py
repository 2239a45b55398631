"""Population losses of layers that commute with the covariance: diagonal matrices beside W (D10).

W = Σ zzᵀ/n is a white Wishart matrix and Δ = W - I. With diagonal layers G_l and a diagonal T each
term of the loss is E tr[C₁ Δ C₂ Δ ⋯ C_k Δ] with diagonal C_i, and Wick's theorem gives

    E tr[C₁Δ⋯C_kΔ] = Σ_ρ c_ρ(n) Π_{B ∈ ρ} tr(Π_{i ∈ B} C_i)                                    (D10)

over the set partitions ρ of {1 … k}. The coefficient c_ρ counts pairings, each with a power of n.
For white inputs and layers γ_l I the loss is an average over one eigenvalue of W, at any depth
(D6).
"""

import functools
import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses.wishart import trace_moments

MOST_LAYERS = 3  # four layers have eight Δ, whose pairings are two millions
DELTA = -1  # of a word: the place of a Δ; other letters are numbers of diagonal matrices
Word = tuple[int, ...]
Factor = tuple[tuple[int, Word], ...]  # a sum of words with signs


class WickTable(NamedTuple):
    """(D10) for one k: rows are set partitions.

    - `blocks`: the blocks of each partition as sets of bits, filled up with 0.
    - `counts`: how many pairings have n^(-j), j = 0 … k.
    """

    blocks: np.ndarray
    counts: np.ndarray


@functools.cache
def wick_table(k: int) -> WickTable:
    """The coefficients c_ρ(n) of (D10) for k matrices Δ.

    Half-edges l_i and r_i belong to Δ_i, and C_i joins r_{i-1} to l_i. A pairing has none inside
    one Δ, for Δ has mean zero. Loops of pairing and {(l_i, r_i)} are factors n, and loops of
    pairing and C are traces.

    >>> from iclflow.losses.commuting import wick_table
    >>> [(len(wick_table(k).blocks), int(wick_table(k).counts.sum())) for k in (2, 3, 4)]
    [(2, 2), (5, 8), (15, 60)]
    """
    found: dict[tuple[int, ...], np.ndarray] = {}
    for pairing in _pairings(tuple(range(2 * k))):
        if any(a // 2 == b // 2 for a, b in pairing):
            continue
        partner = dict(pairing) | {b: a for a, b in pairing}
        columns = len(_loops(partner, [(2 * i, 2 * i + 1) for i in range(k)]))
        joints = [((2 * i - 1) % (2 * k), 2 * i) for i in range(k)]
        rows = tuple(sorted(sum(1 << i for i in loop) for loop in _loops(partner, joints)))
        counts = found.setdefault(rows, np.zeros(k + 1, int))
        counts[k - columns] += 1
    blocks = np.zeros((len(found), k), int)
    for row, sets in zip(blocks, found, strict=True):
        row[: len(sets)] = sets
    return WickTable(blocks, np.array(list(found.values())))


def _pairings(places: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to pair places up."""
    if not places:
        yield ()
        return
    for i in range(1, len(places)):
        for rest in _pairings(places[1:i] + places[i + 1 :]):
            yield ((places[0], places[i]), *rest)


def _loops(partner: dict[int, int], joints: list[tuple[int, int]]) -> list[list[int]]:
    """The loops of a pairing and of joints, each as the numbers of its joints."""
    across = {a: (b, i) for i, (a, b) in enumerate(joints)}
    across |= {b: (a, i) for i, (a, b) in enumerate(joints)}
    left, found = set(range(len(joints))), []
    while left:
        start = place = joints[min(left)][0]
        loop = []
        while True:
            place, joint = across[place]
            loop.append(joint)
            left.discard(joint)
            place = partner[place]
            if place == start:
                break
        found.append(loop)
    return found


def _expanded(factors: list[Factor]) -> list[tuple[int, Word]]:
    """The words of a product of sums, with their signs."""
    found = []
    for chosen in itertools.product(*factors):
        sign = int(np.prod([s for s, _ in chosen]))
        found.append((sign, tuple(itertools.chain.from_iterable(word for _, word in chosen))))
    return found


class WordTerms(NamedTuple):
    """The words with k matrices Δ, as E tr[C₁Δ⋯C_kΔ].

    - `signs`: of each word.
    - `letters`: how often each diagonal matrix is in each C_i.
    """

    signs: np.ndarray
    letters: np.ndarray


def _terms(words: list[tuple[int, Word]], count: int) -> dict[int, WordTerms]:
    """The words by their number of Δ; a trace is cyclic, so the last C joins the first."""
    found: dict[int, list[tuple[int, np.ndarray]]] = {}
    for sign, word in words:
        k = word.count(DELTA)
        letters = np.zeros((max(k, 1), count), int)
        place = 0
        for letter in word:
            if letter == DELTA:
                place = (place + 1) % k
            else:
                letters[place, letter] += 1
        found.setdefault(k, []).append((sign, letters))
    return {
        k: WordTerms(np.array([s for s, _ in rows]), np.stack([a for _, a in rows]))
        for k, rows in found.items()
        if k != 1  # E Δ = 0
    }


@functools.cache
def signal_terms(layers: int) -> dict[int, WordTerms]:
    """The words of tr[Q T Qᵀ], Q = Π (q_l - g_l Δ) with q_l = 1 - g_l.

    The diagonal matrices are numbered g_0 …, q_0 …, then T.
    """
    left: list[Factor] = [((1, (layers + i,)), (-1, (i, DELTA))) for i in range(layers)]
    right: list[Factor] = [((1, (layers + i,)), (-1, (DELTA, i))) for i in range(layers)]
    factors = [*left[::-1], ((1, (2 * layers,)),), *right]
    return _terms(_expanded(factors), 2 * layers + 1)


@functools.cache
def noise_terms(layers: int) -> dict[int, WordTerms]:
    """The words of tr[P W Pᵀ], P = Σ_l g_l Π_{j < l} (q_j - Δ g_j); numbered as in the signal."""
    words = []
    for one, other in itertools.product(range(layers), repeat=2):
        left: list[Factor] = [((1, (layers + j,)), (-1, (DELTA, j))) for j in range(one)]
        right: list[Factor] = [((1, (layers + j,)), (-1, (j, DELTA))) for j in range(other)]
        middle: Factor = ((1, ()), (1, (DELTA,)))
        factors = [((1, (one,)),), *left[::-1], middle, *right, ((1, (other,)),)]
        words += _expanded(factors)
    return _terms(words, 2 * layers + 1)


def _mean(
    terms: dict[int, WordTerms], letters: Float[Array, "A D"], n: Float[Array, ""]
) -> Float[Array, ""]:
    """Σ over words of E tr, the diagonal matrices given as rows."""
    powers = jnp.stack([jnp.ones_like(letters), letters, letters**2])
    total = jnp.zeros((), letters.dtype)
    for k, (signs, exponents) in terms.items():
        c = jnp.ones((*exponents.shape[:2], letters.shape[1]), letters.dtype)  # word, place, mode
        for number in range(len(letters)):
            c = c * powers[exponents[..., number], number]
        if k == 0:
            total += jnp.sum(jnp.asarray(signs, c.dtype)[:, None] * c[:, 0])
            continue
        products = jnp.ones((len(signs), 1, letters.shape[1]), c.dtype)
        for place in range(k):  # bit i of a number says whether C_i is in the product
            products = jnp.concatenate([products, products * c[:, place : place + 1]], axis=1)
        traces = products.sum(axis=-1).at[:, 0].set(1.0)
        table = wick_table(k)
        scales = jnp.asarray(table.counts, c.dtype) @ n ** -jnp.arange(k + 1.0)
        rows = jnp.ones((len(signs), len(table.blocks)), c.dtype)
        for column in table.blocks.T:
            rows = rows * traces[:, column]
        total += jnp.asarray(signs, c.dtype) @ (rows @ scales)
    return total


def _letters(
    layers: Float[Array, "L D"], tasks: Float[Array, " D"]
) -> tuple[int, Float[Array, "A D"]]:
    return len(layers), jnp.concatenate([layers, 1 - layers, tasks[None]])


def commuting_signal(
    layers: Float[Array, "L D"], tasks: Float[Array, " D"], n: Float[Array, ""]
) -> Float[Array, ""]:
    """E tr[Q T Qᵀ] of diagonal layers and tasks (D10), up to three layers.

    - `layers`: the diagonals g_l of the layers in white coordinates.
    - `tasks`: the diagonal of T.
    - `n`: the number of pairs in the context.

    >>> import jax.numpy as jnp
    >>> from iclflow.losses.commuting import commuting_signal
    >>> steps, tasks = jnp.array([[0.5, 0.5]]), jnp.array([0.6, 0.4])
    >>> round(float(commuting_signal(steps, tasks, jnp.array(9.0))), 6)  # (1 - g)² + g² (D + 1)/N
    0.333333
    """
    count, letters = _letters(layers, tasks)
    return _mean(signal_terms(count), letters, jnp.asarray(n, letters.dtype))


def commuting_noise(layers: Float[Array, "L D"], n: Float[Array, ""]) -> Float[Array, ""]:
    """E tr[P W Pᵀ] of diagonal layers, which σ²/n times is what label noise adds (D10)."""
    count, letters = _letters(layers, jnp.ones_like(layers[0]))
    return _mean(noise_terms(count), letters, jnp.asarray(n, letters.dtype))


@functools.cache
def eigenvalue_rule(
    size: int, context: int, nodes: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Gauss's nodes and weights for the mean over one eigenvalue of W, from (D7) in fractions.

    They average polynomials up to the degree 2 · nodes - 1 exactly and, as all weights are
    positive, without the cancellation of (D6). Where N < D, some eigenvalues are zero.

    - `size`, `context`: D and N.
    - `nodes`: how many.
    """
    moments = trace_moments(size, context, 2 * nodes)
    mean = lambda p: sum((c * m for c, m in zip(p, moments, strict=False)), Fraction(0))  # noqa: E731
    square = lambda p, q: [  # noqa: E731
        sum((p[i] * q[k - i] for i in range(len(p)) if 0 <= k - i < len(q)), Fraction(0))
        for k in range(len(p) + len(q) - 1)
    ]
    last, now, norm, before = [Fraction(0)], [Fraction(1)], Fraction(1), Fraction(0)
    diagonal, beside = [], []
    for _ in range(nodes):  # the three-term recurrence of the orthogonal polynomials
        a = mean([Fraction(0), *square(now, now)]) / norm
        diagonal.append(a)
        shifted, held = [Fraction(0), *now], [*now, Fraction(0)]
        older = [*last, *[Fraction(0)] * (len(shifted) - len(last))]
        following = [x - a * y - before * z for x, y, z in zip(shifted, held, older, strict=True)]
        after = mean(square(following, following))
        last, now, before, norm = now, following, after / norm, after
        beside.append(before)
    off = np.sqrt([float(b) for b in beside[: len(diagonal) - 1]])
    matrix = np.diag([float(a) for a in diagonal]) + np.diag(off, 1) + np.diag(off, -1)
    values, vectors = np.linalg.eigh(matrix)
    return tuple(values.tolist()), tuple((vectors[0] ** 2).tolist())
