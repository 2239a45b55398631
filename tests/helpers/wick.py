"""Means of products of a white Wishart matrix by brute force: every pairing of Gaussians."""

import numpy as np


def pairings(places):
    """All ways to pair the places up."""
    if not places:
        yield ()
        return
    first, *rest = places
    for i, other in enumerate(rest):
        for others in pairings(rest[:i] + rest[i + 1 :]):
            yield ((first, other), *others)


def wishart_mean(size, n, count):
    """E[W ⊗ … ⊗ W] of `count` factors by Wick's theorem over the entries of Z: W = Z Zᵀ/n.

    Every pairing of the 2·count entries of Z is a product of Kronecker deltas over rows, and of
    loops over columns, each of which is a factor n. Nothing of (D11)-(D18) enters.
    """
    total = np.zeros((size,) * (2 * count))
    identity = np.eye(size)
    for pairing in pairings(list(range(2 * count))):
        parent = list(range(count))  # columns of Z: factor i has one, shared by its two entries

        def root(i, parent=parent):
            while parent[i] != i:
                i = parent[i]
            return i

        for a, b in pairing:
            parent[root(a // 2)] = root(b // 2)
        loops = len({root(i) for i in range(count)})
        letters = [""] * (2 * count)
        names = iter("abcdefghijklmnop")
        for a, b in pairing:
            letters[a], letters[b] = next(names), next(names)
        spec = ",".join(letters[a] + letters[b] for a, b in pairing) + "->" + "".join(letters)
        total += n**loops * np.einsum(spec, *[identity] * count)
    return total / n**count
