"""The gradient flow of the reduced models, literally in NumPy and SciPy: τ dW/dt = -½ ∂L/∂W."""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq


class FlowRun:
    """Weights and loss along an accurate flow; `loss(times)`, `values(times)`."""

    def __init__(self, population, slope, start, matrix, end, heads, tolerance):
        self.moments = [
            np.asarray(a) for a in (population.second, population.cross[0], population.covariance)
        ]
        self.power, self.matrix, self.heads = float(population.power), matrix, heads
        size = np.abs(start).max()
        self.solution = solve_ivp(
            slope, (0, end), start, "LSODA",
            rtol=tolerance, atol=1e-2 * tolerance * size, dense_output=True,
        )  # fmt: skip
        assert self.solution.success

    def weights(self, times):
        return self.solution.sol(np.atleast_1d(times))

    def values(self, times):
        return self.weights(times)[: self.heads].T

    def loss(self, times):
        B, G, L = self.moments
        M = self.matrix(self.weights(times))
        return self.power + np.einsum("tdc,tdc->t", M, B @ M @ L - 2 * G)

    def crossings(self, levels):
        """When the loss is halfway between consecutive levels (infinite: never)."""
        grid, found = self.solution.t, []
        losses = self.loss(grid)
        for middle in (levels[:-1] + levels[1:]) / 2:
            below = np.flatnonzero(losses < middle)
            if below.size == 0:
                found.append(np.inf)
                continue
            bracket = grid[below[0] - 1], grid[below[0]]
            found.append(brentq(lambda t, m=middle: self.loss(t)[0] - m, *bracket, rtol=1e-12))
        return np.asarray(found)


def separate_flow(population, model, end, tolerance=1e-9):
    """(19)(80) for any rank."""
    v, k, q = (np.asarray(a, float) for a in (model.values[:, 0, 0], model.keys, model.queries))
    heads, rank, size = k.shape
    count = k.size
    B, G, L = (
        np.asarray(a) for a in (population.second, population.cross[0], population.covariance)
    )

    def slope(t, y):
        v = np.repeat(y[:heads], rank)[:, None]
        k, q = y[heads : heads + count].reshape(-1, size), y[heads + count :].reshape(-1, size)
        A = G - B @ ((v * k).T @ q) @ L
        Aq, Ak = q @ A.T, k @ A
        dv = (k * Aq).sum(1).reshape(heads, rank).sum(1)
        return np.concatenate([dv, (v * Aq).ravel(), (v * Ak).ravel()])

    def matrix(y):
        k, q = (
            a.reshape(heads, rank, size, -1) for a in (y[heads : heads + count], y[heads + count :])
        )
        return np.einsum("ht,hrdt,hrct->tdc", y[:heads], k, q, optimize=True)

    start = np.concatenate([v, k.ravel(), q.ravel()])
    return FlowRun(population, slope, start, matrix, end, heads, tolerance)


def merged_flow(population, model, end, tolerance=1e-10):
    """(13)."""
    v, U = np.asarray(model.values[:, 0, 0], float), np.asarray(model.merged, float)
    heads, size, _ = U.shape
    B, G, L = (
        np.asarray(a) for a in (population.second, population.cross[0], population.covariance)
    )

    def slope(t, y):
        v, U = y[:heads], y[heads:].reshape(U_shape)
        A = G - B @ np.einsum("h,hdc->dc", v, U) @ L
        return np.concatenate([np.einsum("hdc,dc->h", U, A), (v[:, None, None] * A).ravel()])

    def matrix(y):
        return np.einsum("ht,hdct->tdc", y[:heads], y[heads:].reshape(*U_shape, -1))

    U_shape = (heads, size, size)
    start = np.concatenate([v, U.ravel()])
    return FlowRun(population, slope, start, matrix, end, heads, tolerance)
