"""Summaries that a design may ask for: those of every sweep, of the last weights, of regimes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclflow.diagnosis.identify import identify
from iclflow.dynamics import Descent, GradientDescent
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.runs.cells import Vary
from iclflow.runs.record import SUMMARIES, Finished, Summary
from iclflow.tasks.task import Task

REGIMES = ("monotone", "catapult", "periodic", "chaotic", "divergent")
STEPS = 2048  # that an orbit is followed
SETTLED = 1e-6  # relative change of the loss over the orbit: it rests, or repeats itself

RISEN = 1.01  # times its start: a loss that once was there was thrown, and came back
APART = 1e-3  # exponent per step from which on neighbours part


def orbit(
    loss: AbstractLoss, dynamics: Any, models: AbstractModel
) -> tuple[np.ndarray, np.ndarray]:
    """The loss along 2,048 further steps [run, step], and the largest Lyapunov exponent [run].

    λ = lim (1/n) ln ‖J_n … J_1 u‖, J = I - η ∂²L along the orbit. NaN unless the rule is gradient
    descent on a loss that is the same at every step: else there is no map.
    """
    plain = isinstance(dynamics, Descent) and isinstance(dynamics.optimiser, GradientDescent)
    count = jax.tree.leaves(models)[0].shape[0]
    if not plain or loss.draw(jax.random.key(0)) is not loss:
        return np.full((count, STEPS), np.nan), np.full(count, np.nan)
    found = _orbits(loss, dynamics.rate, models)
    return np.asarray(found[0]), np.asarray(found[1])


@eqx.filter_jit
def _orbits(loss: AbstractLoss, rate: Any, models: AbstractModel) -> Any:
    def one(model: AbstractModel) -> Any:
        start, static = eqx.partition(model, eqx.is_inexact_array)

        def step(weights: Any) -> Any:
            slope = jax.grad(lambda w: loss(eqx.combine(w, static)))(weights)
            return jax.tree.map(lambda w, g: w - rate * g, weights, slope)

        def forward(carry: Any, _: None) -> Any:
            weights, tangent = carry
            after, moved = jax.jvp(step, (weights,), (tangent,))
            size = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(moved)))
            tangent = jax.tree.map(lambda leaf: leaf / size, moved)
            return (after, tangent), (loss(eqx.combine(weights, static)), jnp.log(size))

        # Any direction with a share of all of them.
        tangent = jax.tree.map(lambda a: jnp.cos(1 + jnp.arange(a.size)).reshape(a.shape), start)
        _, (losses, growth) = jax.lax.scan(forward, (start, tangent), None, length=STEPS)
        return losses, jnp.mean(growth[STEPS // 4 :])

    return eqx.filter_vmap(one)(models)


def regimes(curves: np.ndarray, losses: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """The regime of each run, from its curve [run, T], its orbit [run, step] and its exponent.

    Divergent: not finite in the end. Else, if the orbit rests: a catapult where the curve once rose
    above 1.01 times its start, monotone where it did not. Else chaotic where neighbours part, and
    periodic where they do not (a torus too).
    """
    found = np.full(len(curves), "", object)
    for i, (curve, orbit) in enumerate(zip(curves, losses, strict=True)):
        if np.isnan(orbit).all() and np.isfinite(curve[-1]):
            continue  # no map
        late = orbit[STEPS // 2 :]
        if not (np.isfinite(curve[-1]) and np.isfinite(orbit).all()):
            found[i] = "divergent"
        elif np.ptp(late) <= SETTLED * np.abs(late).max() or (exponent[i] < 0 and _slow(late)):
            found[i] = "catapult" if np.nanmax(curve) > RISEN * curve[0] else "monotone"
        else:
            found[i] = "chaotic" if exponent[i] > APART else "periodic"
    return found


def _slow(late: np.ndarray) -> bool:
    """Whether the loss only falls: still on its way to rest."""
    return bool(np.all(np.diff(late) <= SETTLED * np.abs(late).max()))


ALWAYS = ("final_loss", "drop_times", "plateau_lengths")  # computed without being asked for


def algorithm(runs: Finished) -> np.ndarray:
    """The in-context algorithm that the last weights are nearest to (`diagnosis.identify`)."""
    task = runs.point.source(runs.point.first)
    if not isinstance(task, Task) or task.outputs != 1 or runs.point.vary is Vary.ALL:
        return np.full(len(runs.seeds), "", object)
    return identify(runs.models(), task)["algorithm"].values.astype(object)


def lyapunov(runs: Finished) -> np.ndarray:
    """The largest Lyapunov exponent per step of descent, from the last weights on."""
    return _orbit(runs)[1]


def regime(runs: Finished) -> np.ndarray:
    """How descent at this rate ends: one of `REGIMES`."""
    losses, exponent = _orbit(runs)
    return regimes(runs.loss, losses, exponent)


def _orbit(runs: Finished) -> tuple[np.ndarray, np.ndarray]:
    return orbit(runs.point.loss(runs.point.first), runs.point.dynamics, runs.models())


ORBIT = 3.0 * STEPS  # training steps that an orbit with its tangent is worth
KINDS = SUMMARIES | {
    "algorithm": Summary(
        algorithm, (), "in-context algorithm at the end", weights=True, seconds=1e-3
    ),
    "lyapunov": Summary(
        lyapunov, (), "largest Lyapunov exponent per step, at the end", weights=True, steps=ORBIT
    ),
    "regime": Summary(
        regime, (), "how descent ends: " + ", ".join(REGIMES), weights=True, steps=ORBIT
    ),
}
