"""A linearly implicit solver: flows over a million time scales in some thousand steps."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.dynamics.chebyshev import flatten
from iclflow.dynamics.pair_system import PairSystem
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel

Vector = Float[Array, " W"]
Map = Callable[[Vector], Vector]

# RODAS of the reference, for y' = f(y), J = ∂f/∂y and W = 1 - γhJ: stage i is at
# y + Σ_j A_ij k_j, and W k_i = γ (h f + Σ_j C_ij k_j); the end is the last stage plus its k.
GAMMA = 0.25
LAST = [1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950]
A = [
    [],
    [1.544],
    [0.9466785280815826, 0.2557011698983284],
    [3.314825187068521, 2.896124015972201, 0.9986419139977817],
    LAST,
    [*LAST, 1.0],
]
C = [
    [],
    [-5.6688],
    [-2.430093356833875, -0.2063599157091915],
    [-0.1073529058151375, -9.594562251023355, -20.47028614809616],
    [7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160],
    [8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136,
     -6.058818238834054],
]  # fmt: skip
# y(t + θh) = (1 - θ) y + θ (y₁ + (1 - θ) (D₁ k + θ D₂ k))
D = [
    [10.12623508344586, -7.487995877610167, -34.80091861555747, -7.992771707568823,
     1.025137723295662],
    [-0.6762803392801253, 6.087714651680015, 16.43084320892478, 24.76722511418386,
     -6.594389125716872],
]  # fmt: skip
# The error of a linear system may be SHARE · rtol^(1/4) times the tolerance of a step. The estimate
# of a step of size h is of the order h⁴ and meets the tolerance. Its error is of the order h⁵, and
# thus smaller by rtol^(1/4). SHARE is small because later stages amplify what earlier ones leave:
# with a tenth of the tolerance, a flow of 1e-9 through a drop was off a hundred times as much.
SHARE = 5e-3
ROUNDING = 4  # units of rounding error that no linear system is asked to undercut
# Systems of so many weights are factorised: as many products make J, and six stages share it.
DENSE = 256
COLUMNS = 2**28  # bytes of scratch that the products for J may take together
A, C, D = (np.array([row + [0.0] * (6 - len(row)) for row in rows]) for rows in (A, C, D))


class Rosenbrock(diffrax.AbstractAdaptiveSolver[None]):
    """Rosenbrock steps of fourth order (RODAS): no step is too long for a stiff direction.

    Each of the six stages solves one linear system, (1 - γhJ) k = …, with the Jacobian J of the
    flow. J is symmetric, so the system is positive as long as no direction grows by more than e⁴
    in a step, and conjugate gradients need only products with J. A longer step is rejected.

    The linear systems are solved to a small share of the tolerance of a step, so that the accuracy
    of a flow follows its tolerance. `Flow` tells the solver which tolerance that is. Where Diffrax
    calls the solver without `Flow`, no tolerance is known, and the systems are solved to rounding
    errors.

    For attention whose weights are pairs of key and query (`AbstractModel.pairs`) in the
    population, `Flow` gives the system in the eigenvectors of the task, where learned modes are
    almost decoupled, and a block preconditioner: some ten products per stage, whatever the step.
    Elsewhere, as for several layers, J itself is made and factorised if there are at most 256
    weights, which takes one product per weight and step. Beyond 256 there is no preconditioner,
    and the number of products grows as the root of step times sharpness. Interpolation between
    steps is of third order. There is no reverse-mode gradient.

    A sweep of up to 64 weights per run takes another method of this kind where a C++ compiler is
    at hand: Rodas5P, of fifth order, which factorises the matrix of each run.

    - `products`: the most products a system may take before its step is rejected.

    Reference: E. Hairer, G. Wanner, "Solving Ordinary Differential Equations II", 2nd ed. (1996),
    Section IV.7 and the code RODAS.

    - `system`: that in the eigenvectors of the task, which `Flow` gives.

    >>> import iclflow as icl
    >>> icl.Flow(1e-8, solver=icl.Rosenbrock()).solver.products
    2000
    """

    products: int = eqx.field(static=True, default=2000)
    system: PairSystem | None = None
    tolerances: tuple[Any, Any] | None = None  # relative and absolute, of a step
    dense: bool = eqx.field(static=True, default=False)  # whether J is made and factorised

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = diffrax.ThirdOrderHermitePolynomialInterpolation

    def order(self, terms: Any) -> int:
        return 4

    def on(self, loss: AbstractLoss, model: AbstractModel, rtol: Any, atol: Any) -> Self:
        """The same solver with what it can know of the flow of a model on a loss.

        - `loss`, `model`: what flows. Where their linear system is known, it is used.
        - `rtol`, `atol`: the tolerances of the step size controller.
        """
        system = PairSystem.of(loss, model)
        weights = sum(a.size for a in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
        dense = system is None and weights <= DENSE and weights * loss.scratch() <= COLUMNS
        return type(self)(self.products, system, (rtol, atol), dense)

    def func(self, terms: diffrax.AbstractTerm, t0: Any, y0: Any, args: Any) -> Any:
        return terms.vf(t0, y0, args)

    def init(self, terms: diffrax.AbstractTerm, t0: Any, t1: Any, y0: Any, args: Any) -> None:
        return None

    def step(
        self,
        terms: diffrax.AbstractTerm,
        t0: Any,
        t1: Any,
        y0: Any,
        args: Any,
        solver_state: None,
        made_jump: Any,
    ) -> tuple[Any, Any, dict[str, Any], None, diffrax.RESULTS]:
        y, slope, restore = flatten(terms, y0, args)
        size = jnp.asarray(t1 - t0, y.dtype)
        solve = self._solver(lambda y: slope(t0, y), y, y0, GAMMA * size)

        def stage(stages: Float[Array, "6 W"], i: Any) -> tuple[Float[Array, "6 W"], Vector]:
            at = y + jnp.asarray(A, y.dtype)[i] @ stages
            mixed = size * slope(t0, at) + jnp.asarray(C, y.dtype)[i] @ stages
            return stages.at[i].set(solve(GAMMA * mixed)), at

        stages, at = jax.lax.scan(stage, jnp.zeros((6, y.size), y.dtype), jnp.arange(6))
        after, estimate = at[-1] + stages[-1], stages[-1]
        bent, turned = jnp.asarray(D, y.dtype) @ stages
        y1, change = restore(after), after - y
        slopes = {"k0": restore(change + bent), "k1": restore(change - bent - turned)}
        estimate = jnp.where(jnp.all(jnp.isfinite(estimate)), estimate, jnp.inf)
        done = diffrax.RESULTS.successful
        return y1, restore(estimate), {"y0": y0, "y1": y1, **slopes}, None, done

    def _solver(self, slope: Map, y: Vector, y0: Any, width: Float[Array, ""]) -> Map:
        """b -> (1 - width · J)⁻¹ b; NaN where that is not positive."""
        if self.system is not None:
            system = self.system.at(y0, width)
            allowed = self._allowed(system.turned(y))
            solve = _conjugate_gradients(system.product, system.inverse, allowed, self.products)
            return lambda b: system.back(solve(system.turned(b)))
        _, tangent = jax.linearize(slope, y)
        if self.dense:
            return _factorised(tangent, y, width)
        allowed = self._allowed(y)
        return _conjugate_gradients(
            lambda x: x - width * tangent(x), lambda x: x, allowed, self.products
        )

    def _allowed(self, y: Vector) -> Vector:
        """The error that each entry of the solution of a linear system may have."""
        if self.tolerances is None:
            return jnp.zeros_like(y)
        rtol, atol = self.tolerances
        return SHARE * rtol**0.25 * (atol + rtol * jnp.abs(y))


def _factorised(tangent: Map, y: Vector, width: Float[Array, ""]) -> Map:
    """b -> (1 - width · J)⁻¹ b by Cholesky's factors of all of it; NaN where it is not positive."""
    identity = jnp.eye(y.size, dtype=y.dtype)
    matrix = identity - width * jax.vmap(tangent)(identity)
    factor = jax.scipy.linalg.cho_factor((matrix + matrix.T) / 2, lower=True)
    return lambda b: jax.scipy.linalg.cho_solve(factor, b)


def _conjugate_gradients(product: Map, inverse: Map, allowed: Vector, limit: int) -> Map:
    """b -> x with W x = b, for W > 0; NaN where W is not, or at the limit.

    The error of x, as the preconditioner sees it (`inverse` of the residual), has entries of the
    size of those of `allowed` in the root mean square, or is a rounding error.
    """

    def solve(b: Vector) -> Vector:
        better = inverse(b)
        rounding = ROUNDING * jnp.finfo(b.dtype).eps * jnp.sqrt(jnp.mean(better**2))
        weights = 1 / jnp.maximum(allowed + rounding, jnp.finfo(b.dtype).tiny)

        def error(better: Vector) -> Float[Array, ""]:
            return jnp.mean((better * weights) ** 2)

        def going(carry: Any) -> Any:
            _, _, better, _, size, count = carry
            return (error(better) > 1) & (size > 0) & (count < limit)

        def round_(carry: Any) -> Any:
            x, rest, _, direction, size, count = carry
            image = product(direction)
            curvature = jnp.sum(direction * image)
            step = size / jnp.where(curvature > 0, curvature, jnp.nan)
            x, rest = x + step * direction, rest - step * image
            better = inverse(rest)
            after = jnp.sum(rest * better)
            return x, rest, better, better + after / size * direction, after, count + 1

        start = (jnp.zeros_like(b), b, better, better, jnp.sum(b * better), 0)
        x, _, better, *_ = jax.lax.while_loop(going, round_, start)
        return jnp.where(error(better) <= 1, x, jnp.nan)

    return solve
