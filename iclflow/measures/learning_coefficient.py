"""The local learning coefficient of a loss at given weights, by Langevin sampling.

λ says how the volume of weights around w* with a loss below L(w*) + ε shrinks with it, as ε^λ up to
powers of ln ε: half the number of weights at a regular minimum, and less where the minimum is
degenerate. The estimate is that of Lau et al. (The local learning coefficient, arXiv 2308.12108):

    λ̂ = nβ (E[L(w)] - L(w*)),   w ~ exp(-nβ L(w) - γ/2 |w - w*|²),   β = 1/ln n.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.measures.curvature import hessian_vector_product, top_eigenvalues

SAMPLES = 100_000  # n, where the loss is no sum over prompts
TARGET = 0.8  # share of proposals that are accepted
PRIOR = 512  # draws around w* from which the scale of the loss is taken
STRETCHES = 10  # of each chain, whose means say how much of a control to take
PRODUCTS = 20  # of the Hessian, for the first size of the steps
UNEQUAL = 1.25  # how much more than with equal constants may be missing
MOVED = 0.01  # share of proposals accepted, below which the chains have not moved
FIRST, FIXED = 0.5, 0.02  # of 1/(nβ · sharpness + γ): the size ε of a step, with and without a test


class LearningCoefficient(eqx.Module):
    """An estimate λ̂ of the learning coefficient, and how far it may be from λ.

    - `value`: λ̂ = nβ (E[L] - L(w*)).
    - `standard_error`: of λ̂ as an expectation at this temperature. It is the spread of the means of
      the chains, together with half of the difference between the first and the second half of the
      draws, which is large where the chains have not forgotten their start.
    - `slope`: dλ̂/d ln(nβ) = λ̂ - (nβ)² Var L, exactly. It is 0 where λ̂ no longer depends on the
      temperature.
    - `hotter`: λ̂ at the temperature (nβ)^(1/2), from as many draws.
    - `drift`: how much λ̂ may still lack. With a multiplicity m > 1 the estimate approaches λ only
      as λ - (m - 1)/x with x = ln(nβ) + a constant. So slope · x is missing, and equally
      (λ̂ - `hotter`)(x - d)/d with d = ln(nβ)/2. Either is taken two standard errors above its
      estimate, because m is not known, and `drift` is the smaller of the two bounds. The constant
      is taken from the losses at the distance γ^(-1/2): ln(A²/G) with their arithmetic and
      geometric mean. It is a mean of m - 1 constants, and Σ 1/(x + cᵢ) is more than with all of
      them equal: a quarter is added for that.
    - `error`: what is stated, two standard errors and the drift.
    - `accepted`: the share of proposals accepted, 1 for a loss of minibatches, which has no test.
      Where it is below a hundredth the chains have not moved, and `value` is NaN.
    - `nbeta`: nβ.
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]
    slope: Float[Array, ""]
    hotter: Float[Array, ""]
    drift: Float[Array, ""]
    accepted: Float[Array, ""]
    nbeta: Float[Array, ""]

    @property
    def error(self) -> Float[Array, ""]:
        """The stated error: two standard errors, and what the temperature may still hide."""
        return 2 * self.standard_error + self.drift

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return (
                f"no learning coefficient: {float(self.accepted):.0%} of the proposals were "
                f"accepted; the weights are no minimum, or the step is too long"
            )
        return f"learning coefficient {float(self.value):.3f} ± {float(self.error):.3f}"


def learning_coefficient(
    loss: Callable[[Any], Array],
    model: Any,
    *,
    samples: int | None = None,
    localisation: float = 1.0,
    step: float | None = None,
    chains: int = 16,
    draws: int = 1000,
    leaps: int = 32,
    burn: int | None = None,
    key: PRNGKeyArray | None = None,
) -> LearningCoefficient:
    """The local learning coefficient λ̂ of a loss at the weights of a model.

    - `loss`: a function of the model, as every loss of this package. It is meant as a mean over
      samples, such as a mean squared error; a constant factor changes nothing in the limit. Where
      it draws minibatches (`Minibatch`, `Fresh`), the chains are those of stochastic gradient
      Langevin dynamics, w ← w - ε/2 ∇(nβ L + γ/2 |w - w*|²) + ε^(1/2) ξ. Otherwise the chains keep
      their momentum over `leaps` steps and then have Metropolis' test, so that the size of the
      steps has no influence on what is sampled (with one leap: Metropolis-adjusted Langevin).
    - `model`: the weights w*, a pytree, which should be at a minimum. Elsewhere the chains find
      lower losses and λ̂ can be negative.
    - `samples`: n, which sets the temperature by nβ = n/ln n. The number of prompts of the loss
      where it keeps them, else 100,000.
    - `localisation`: γ, which keeps the chains within about γ^(-1/2) of w* in every direction. λ̂
      is local to that distance: minima farther away should not be reached.
    - `step`: ε. Without it, it is adapted while the chains are warming up, to accept 80 %. For
      minibatches it is then a fiftieth of 1/(nβ · sharpness + γ).
    - `chains`, `draws`: independent chains, all started at w*, and the draws kept of each.
    - `leaps`: steps from one draw to the next. Flat directions are explored in about
      (γ ε)^(-1)/leaps² draws.
    - `burn`: draws left out before, half of `draws` if not given.
    - `key`: of the random numbers, so that the same key gives the same estimate.

    >>> import jax, jax.numpy as jnp
    >>> from iclflow.measures import learning_coefficient
    >>> found = learning_coefficient(lambda w: jnp.sum(w**2), jnp.zeros(4), draws=500)
    >>> bool(abs(found.value - 4 / 2) < found.error)  # a regular minimum has d/2
    True
    """
    kept = getattr(loss, "whole", loss)  # the loss of all prompts from which minibatches are drawn
    count = getattr(kept, "count", SAMPLES) if samples is None else samples
    sizes = (
        ("samples", SAMPLES if samples is None else samples, 3),  # n/ln n grows from there on
        ("chains", chains, 2),
        ("draws", draws, 4),
        ("leaps", leaps, 1),
        ("burn", 0 if burn is None else burn, 0),
    )
    for name, value, least in sizes:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    for name, value in (("localisation", localisation), ("step", 1.0 if step is None else step)):
        if np.ndim(value) or np.asarray(value).dtype.kind not in "fiu" or not 0 < value < np.inf:
            raise ValueError(f"{name} must be a number above 0, got {value!r}")
    if not callable(loss) or isinstance(loss, type):
        raise ValueError(
            f"loss must be a function of the model, such as icl.Population(task), got "
            f"{type(loss).__name__}"
        )
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    if not jax.tree.leaves(weights):
        raise ValueError(f"{type(model).__name__} has no weights; give the model, not a function")
    try:
        found = eqx.filter_eval_shape(loss, model)
    except Exception as error:  # a function of the user's may raise anything
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"the loss cannot be taken at these weights, learning_coefficient(loss, model): "
            f"{type(error).__name__}: {reason}"
        ) from None
    if getattr(found, "shape", None) != ():
        shape = getattr(found, "shape", type(found).__name__)
        raise ValueError(f"the loss must be one number, got {shape}; take its mean")
    burn = draws // 2 if burn is None else burn
    key = jax.random.key(0) if key is None else key
    nbeta, gamma = jnp.asarray(count / math.log(count)), jnp.asarray(localisation, float)
    epsilon = None if step is None else jnp.asarray(step, float)
    return _estimate(loss, weights, static, nbeta, gamma, epsilon, chains, draws, leaps, burn, key)


@eqx.filter_jit
def _estimate(
    loss: Any,
    weights: Any,
    static: Any,
    nbeta: Float[Array, ""],
    localisation: Float[Array, ""],
    step: Float[Array, ""] | None,
    chains: int,
    draws: int,
    leaps: int,
    burn: int,
    key: PRNGKeyArray,
) -> LearningCoefficient:
    centre, unravel = ravel_pytree(weights)
    noisy = bool(getattr(loss, "stochastic", False))

    def whole(vector: Array) -> Array:
        return loss(eqx.combine(unravel(vector), static))

    def raised(vector: Array, draw: Array) -> Array:
        """L(w) - L(w*), of the same minibatch if the loss draws them."""
        one = loss.draw(draw) if noisy else loss
        return one(eqx.combine(unravel(vector), static)) - one(eqx.combine(unravel(centre), static))

    sharp = jnp.zeros(())
    if step is None:
        product = hessian_vector_product(whole, centre)
        sharp = top_eigenvalues(product, centre.size, jax.random.key(0), steps=PRODUCTS)[0]
    adapts = step is None and not noisy

    def sampled(nbeta: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """λ̂, its standard error, its slope and that one's, and what was accepted, at one nβ."""
        if step is None:
            size = (FIXED if noisy else FIRST) / (nbeta * jnp.maximum(sharp, 0) + localisation)
        else:
            size = step.astype(centre.dtype)

        def energy(vector: Array, draw: Array) -> tuple[Array, Array]:
            above = raised(vector, draw)
            return nbeta * above + localisation / 2 * jnp.sum((vector - centre) ** 2), above

        slope_of = jax.value_and_grad(energy, has_aux=True)

        def langevin(carry: tuple, number: Array, start: Array) -> tuple[tuple, tuple]:
            """`leaps` steps of stochastic gradient Langevin dynamics, a minibatch for each."""

            def one(place: Array, draw: Array) -> tuple[Array, Array]:
                batch, noise = jax.random.split(draw)
                (_, above), gradient = slope_of(place, batch)
                drawn = jax.random.normal(noise, place.shape, place.dtype)
                return place - size / 2 * gradient + jnp.sqrt(size) * drawn, above

            place, excesses = jax.lax.scan(one, carry[0], jax.random.split(start, leaps))
            return (place, *carry[1:]), (nbeta * jnp.mean(excesses), jnp.ones(()))

        def hamiltonian(carry: tuple, number: Array, start: Array) -> tuple[tuple, tuple]:
            """`leaps` leapfrog steps with one momentum, then Metropolis' test."""
            place, ((here, above), gradient), size = carry
            noise, test, width = jax.random.split(start, 3)
            # The length of a step varies, so that no mode is carried round by whole turns, and so
            # that narrow valleys, which need short steps, are entered and left.
            pace = jnp.sqrt(size) * jax.random.uniform(width, (), place.dtype, 0.1, 1.3)
            kick = jax.random.normal(noise, place.shape, place.dtype)

            def one(state: tuple, _: None) -> tuple[tuple, None]:
                place, momentum, (_, gradient) = state
                momentum = momentum - pace / 2 * gradient
                place = place + pace * momentum
                found = slope_of(place, start)
                return (place, momentum - pace / 2 * found[1], found), None

            begin = (place, kick, ((here, above), gradient))
            (there, momentum, found), _ = jax.lax.scan(one, begin, None, length=leaps)
            change = here - found[0][0] + (jnp.sum(kick**2) - jnp.sum(momentum**2)) / 2
            share = jnp.nan_to_num(jnp.exp(jnp.minimum(change, 0.0)))
            moved = jax.random.uniform(test, dtype=place.dtype) < share
            old = (place, ((here, above), gradient))
            kept = jax.tree.map(lambda new, old: jnp.where(moved, new, old), (there, found), old)
            rate = jnp.where(number < burn, (1 + number) ** -0.6, 0.0) if adapts else 0.0
            return (*kept, size * jnp.exp(rate * (share - TARGET))), (nbeta * kept[1][0][1], share)

        def chain(start: Array) -> tuple[Array, Array]:
            def advance(carry: tuple, number: Array) -> tuple[tuple, tuple]:
                move = langevin if noisy else hamiltonian
                carry, (value, share) = move(carry, number, jax.random.fold_in(start, number))
                place, (_, gradient) = carry[:2]
                along = jnp.sum((place - centre) * gradient)
                change = along - localisation * jnp.sum((place - centre) ** 2)
                return carry, (jnp.stack([value, along, change]), share)

            begin = (centre, slope_of(centre, start), size)
            _, (values, shares) = jax.lax.scan(advance, begin, jnp.arange(burn + draws))
            return values[burn:], jnp.mean(shares[burn:])

        drawn, accepted = jax.vmap(chain)(jax.random.split(key, chains))
        excess, along, change = jnp.moveaxis(drawn, -1, 0)
        square = excess**2
        if not noisy:
            first = along - centre.size
            second = excess * first - change
            excess = _controlled(excess, [first])
            square = _controlled(square, [first, second])
        each = jnp.mean(excess, axis=1)
        value, half = jnp.mean(each), draws // 2
        halves = jnp.abs(jnp.mean(excess[:, :half]) - jnp.mean(excess[:, -half:])) / 2
        slopes = each - (jnp.mean(square, axis=1) - 2 * value * each + value**2)
        error = jnp.sqrt(jnp.var(each, ddof=1) / chains + halves**2)
        spread = jnp.std(slopes, ddof=1) / chains**0.5
        return value, error, jnp.mean(slopes), spread, jnp.mean(accepted)

    # Both temperatures in one program. The keys differ, or the noise would be common to both.
    keys = jnp.stack([key, jax.random.fold_in(key, chains)])
    both = jax.vmap(sampled)(jnp.stack([nbeta, jnp.sqrt(nbeta)]), keys)
    (value, hotter), (error, other), (slope, _), (spread, _), (accepted, _) = both
    distance = jnp.log(nbeta) + _constant(whole, centre, localisation)
    apart = jnp.log(nbeta) / 2
    by_slope = (jnp.maximum(slope, 0.0) + 2 * spread) * jnp.maximum(distance, 1.0)
    change = jnp.abs(value - hotter) + 2 * jnp.hypot(error, other)
    by_change = change * jnp.maximum(distance - apart, 1.0) / apart
    moved = accepted >= MOVED
    return LearningCoefficient(
        value=jnp.where(moved, value, jnp.nan),
        standard_error=error,
        slope=slope,
        hotter=hotter,
        drift=UNEQUAL * jnp.minimum(by_slope, by_change),
        accepted=accepted,
        nbeta=nbeta,
    )


def _controlled(
    values: Float[Array, "C S"], controls: list[Float[Array, "C S"]]
) -> Float[Array, "C S"]:
    """Values less the part that follows quantities whose mean is known to be zero.

    Integrating by parts, E[∇·F - F·∇U] = 0 for every vector field F. With F = w - w* and with
    F = nβ(L(w) - L(w*)) (w - w*) this gives two such quantities. Where L is homogeneous about w*,
    they take away all noise but that of the localisation. How much of each is taken is fitted to
    means over stretches of the chains, in which slow noise weighs as much as it does in the result.
    """

    def stretches(one: Array) -> Array:
        length = max(one.shape[1] // STRETCHES, 1)
        usable = one[:, : one.shape[1] // length * length]
        return jnp.mean(usable.reshape(one.shape[0], -1, length), axis=2).reshape(-1)

    columns = jnp.stack([stretches(control) for control in controls], axis=1)
    columns = columns - jnp.mean(columns, axis=0, keepdims=True)
    size = jnp.sqrt(jnp.mean(columns**2, axis=0)) + 1e-300
    goal = stretches(values)
    weights = jnp.linalg.lstsq(columns / size[None, :], goal - jnp.mean(goal))[0] / size
    return values - sum((w * c for w, c in zip(weights, controls, strict=True)), jnp.zeros(()))


def _constant(
    loss: Callable[[Array], Array], centre: Float[Array, " n"], localisation: Float[Array, ""]
) -> Float[Array, ""]:
    """ln(A²/G) with the arithmetic and geometric mean of |L(w) - L(w*)| at w ~ N(w*, 1/γ)."""
    drawn = jax.random.normal(jax.random.key(1), (PRIOR, centre.size), centre.dtype)
    far = (
        jnp.abs(jax.lax.map(loss, centre[None] + drawn / localisation**0.5) - loss(centre)) + 1e-300
    )
    return 2 * jnp.log(jnp.mean(far)) - jnp.mean(jnp.log(far))
