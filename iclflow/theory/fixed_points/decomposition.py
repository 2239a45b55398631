"""The singular triples of Y = B^(-1/2) G Λ^(-1/2), by common eigenvectors where there are any."""

import numpy as np

MIXTURES = ((1.0, 0.0, 0.0), (1.0, 0.618034, 0.414214), (1.0, -0.302776, 0.236068))


def joint_basis(
    covariance: np.ndarray, second: np.ndarray, cross: np.ndarray, eps: float
) -> tuple[np.ndarray, bool]:
    """Eigenvectors of Λ, and of B and G too if they have them in common.

    Equal eigenvalues of Λ leave its eigenvectors open; those of a mixture of the three matrices
    settle them, and one mixture that diagonalises all three proves that they commute.
    """
    matrices = [a / max(np.linalg.norm(a), np.finfo(float).tiny) for a in (covariance, second)]
    matrices.append(cross / max(np.linalg.norm(cross), np.finfo(float).tiny))
    best, error = np.eye(len(covariance)), np.inf
    for mixture in MIXTURES:
        mixed = sum(c * (a + a.T) / 2 for c, a in zip(mixture, matrices, strict=True))
        basis = np.linalg.eigh(mixed)[1]
        turned = [basis.T @ a @ basis for a in matrices]
        off = max(float(np.abs(a - np.diag(np.diagonal(a))).max()) for a in turned)
        if off < error:
            best, error = basis, off
    if error <= 1e3 * len(covariance) * eps:
        return best, True
    return np.linalg.eigh(matrices[0])[1], False


def diagonals(basis: np.ndarray, *matrices: np.ndarray) -> np.ndarray:
    """The diagonals of Eᵀ A E, one row a matrix."""
    return np.stack([np.sum(basis * (a @ basis), axis=0) for a in matrices])


def kept(values: np.ndarray, eps: float) -> np.ndarray:
    """Which of some non-negative numbers are more than rounding error of the largest."""
    return values > 8 * len(values) * eps * max(float(values.max(initial=0.0)), 0.0)


def commuting_modes(
    covariance: np.ndarray, second: np.ndarray, cross: np.ndarray, basis: np.ndarray, eps: float
) -> tuple[np.ndarray, ...]:
    """Y is diagonal in the common basis: σ_d = g_d/sqrt(λ_d b_d), u_d = w_d = e_d."""
    eigenvalue, b, g = diagonals(basis, covariance, second, cross)
    keep = kept(eigenvalue, eps)
    eigenvalue, b, g, basis = eigenvalue[keep], b[keep], g[keep], basis[:, keep]
    sigma = g / np.sqrt(eigenvalue * b)
    order = np.argsort(-sigma, kind="stable")
    order = order[kept(sigma[order], eps)]
    e = basis[:, order]
    keys, queries = e / np.sqrt(b[order])[None, :], e / np.sqrt(eigenvalue[order])[None, :]
    return sigma[order], e, e, keys, queries


def general_modes(
    covariance: np.ndarray, second: np.ndarray, cross: np.ndarray, basis: np.ndarray, eps: float
) -> tuple[np.ndarray, ...]:
    """The decomposition in coordinates that whiten Λ, where B is well conditioned.

    With Λ = F Fᵀ, B' = F⁻¹ B F⁻ᵀ (bounded below by the sampling noise tr(Λ S_w)/N) and
    G' = F⁻¹ G F⁻ᵀ, the matrix B'^(-1/2) G' has the singular values and right vectors of Y, and
    F⁻ᵀ B'^(-1/2) u' = B^(-1/2) u gives the left ones without inverting B.
    """
    (eigenvalue,) = diagonals(basis, covariance)
    keep = kept(eigenvalue, eps)
    basis, eigenvalue = basis[:, keep], eigenvalue[keep]
    whiten = basis / np.sqrt(eigenvalue)[None, :]  # F⁻ᵀ on the range of Λ
    values, vectors = np.linalg.eigh(whiten.T @ second @ whiten)
    root = (vectors / np.sqrt(values)[None, :]) @ vectors.T  # B'^(-1/2)
    left, sigma, right = np.linalg.svd(root @ (whiten.T @ cross @ whiten))
    positive = kept(sigma, eps)
    keys = whiten @ root @ left[:, positive]
    w = basis @ right[positive].T
    queries = whiten @ right[positive].T
    b, vectors = np.linalg.eigh(second)
    u = (vectors * np.sqrt(b.clip(min=0.0))[None, :]) @ vectors.T @ keys
    return sigma[positive], u, w, keys, queries
