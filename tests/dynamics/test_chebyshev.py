"""The Runge-Kutta-Chebyshev solver: its order, its stability, and flows made with it."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.dynamics.chebyshev import Chebyshev

TASK = icl.Task([0.5, 0.3, 0.2], 11, rotation=jax.random.key(0))
STIFF = jnp.geomspace(1.0, 1e5, 30)


def model(rank=2, scale=0.3, seed=3):
    return icl.Separate.initialiser(TASK, heads=3, rank=rank, scale=scale)(jax.random.key(seed))


def coupled(t, y, args):
    """Not linear, with explicit time, in a pytree."""
    return {"a": -(y["a"] ** 2) * jnp.cos(t) + y["b"][0], "b": -y["b"] * (1 + t) + jnp.sin(y["a"])}


def relaxation(t, y, args):
    """Thirty rates up to 1e5 towards a target that moves slowly."""
    return -STIFF * (y - jnp.cos(t))


def solve(field, y0, end, solver, step=None, tolerance=None, **options):
    controller = diffrax.ConstantStepSize()
    if tolerance is not None:
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    options = {"stepsize_controller": controller, "max_steps": 10_000, **options}
    return diffrax.diffeqsolve(diffrax.ODETerm(field), solver, 0.0, end, step, y0, **options)


@pytest.mark.parametrize("stages", [2, 12], ids=["two stages", "many"])
def test_second_order(stages):
    """The error falls as the square of the step, at the end and between steps alike."""
    fast = stages**2 / 4 - 1  # a rate that no one sees makes the steps have more stages

    def field(t, y, args):
        return {**coupled(t, y, args), "fast": -fast * 20 * y["fast"]}

    start = {"a": jnp.asarray(1.0), "b": jnp.asarray([0.5, -0.2]), "fast": jnp.asarray(0.0)}
    saveat = diffrax.SaveAt(ts=[0.33, 1.1, 2.0])
    exact = solve(field, start, 2.0, diffrax.Tsit5(), tolerance=1e-11, saveat=saveat).ys
    errors, steps = [], 2.0 / np.array([20, 40, 80, 160])
    for step in steps:
        found = solve(field, start, 2.0, Chebyshev(), step, saveat=saveat).ys
        errors.append(np.abs(found["b"] - exact["b"]).max(axis=1))
    slopes = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    np.testing.assert_allclose(slopes, 2.0, atol=0.1)


def test_stable_far_beyond_the_explicit_limit():
    """Constant steps 2,500 times those of Euler's method follow the slow target."""
    run = solve(relaxation, jnp.ones(30), 2.0, Chebyshev(), 0.05)
    exact = solve(relaxation, jnp.ones(30), 2.0, diffrax.Kvaerno5(), tolerance=1e-9)
    np.testing.assert_allclose(run.ys, exact.ys, atol=1e-4)
    euler = solve(relaxation, jnp.ones(30), 2.0, diffrax.Heun(), 0.05)
    assert not np.all(np.abs(euler.ys) < 1e10)


def test_a_step_of_too_many_stages_is_rejected_or_fails():
    """Rejected where the size is controlled; a constant size is a failure, not a wrong answer."""
    run = solve(relaxation, jnp.ones(30), 2.0, Chebyshev(40), 0.5, tolerance=1e-3)
    exact = solve(relaxation, jnp.ones(30), 2.0, Chebyshev(), 0.5, tolerance=1e-5)
    np.testing.assert_allclose(run.ys, exact.ys, atol=1e-3)
    assert int(run.stats["num_rejected_steps"]) > 0
    failed = solve(relaxation, jnp.ones(30), 2.0, Chebyshev(40), 0.5, throw=False)
    assert failed.result == diffrax.RESULTS.nonlinear_divergence
    with pytest.raises(ValueError, match="two stages"):
        Chebyshev(1)


def test_a_jump_of_the_slope_is_seen():
    """y' = 1 until t = 1, then -1: exact if no slope is carried across the jump."""
    controller = diffrax.ClipStepSizeController(
        diffrax.PIDController(rtol=1e-6, atol=1e-6), jump_ts=[1.0]
    )
    run = solve(
        lambda t, y, args: jnp.where(t < 1.0, 1.0, -1.0), jnp.zeros(()), 2.0, Chebyshev(), 0.4,
        stepsize_controller=controller,
    )  # fmt: skip
    assert run.ys[-1] == pytest.approx(0.0, abs=1e-10)
    assert int(run.stats["num_rejected_steps"]) == 0


@pytest.mark.parametrize("tolerance", [1e-3, pytest.param(1e-5, marks=pytest.mark.long)])
def test_flow_follows_the_flow(tolerance):
    """Second order: the error falls as tolerance^(2/3), and both solvers meet."""
    loss, marks = icl.Population(TASK), np.array([0.0, 5.0, 20.0, 60.0, 200.0])
    exact = icl.simulate(loss, model(), icl.Flow(), saveat=marks)
    flow = icl.Flow(tolerance, solver=Chebyshev())
    found = icl.simulate(loss, model(), flow, saveat=marks)
    np.testing.assert_allclose(found.loss, exact.loss, atol=0.5 * tolerance ** (2 / 3))
    assert float(found.stopped) == 200.0


def test_flows_together_are_flows_alone():
    loss, marks = icl.Population(TASK), np.array([0.0, 20.0, 60.0])
    flow = icl.Flow(1e-4, solver=Chebyshev())

    @eqx.filter_jit
    def curve(start):
        return icl.simulate(loss, start, flow, saveat=marks).loss

    starts = [model(seed=seed) for seed in range(3)]
    together = eqx.filter_vmap(curve)(jax.tree.map(lambda *a: jnp.stack(a), *starts))
    alone = [curve(start) for start in starts]
    np.testing.assert_allclose(together, jnp.stack(alone), rtol=1e-8)


def test_empty_pairs_stay_empty():
    """Looking beside the weights for the spectral radius leaves no trace in them."""
    start = model()
    start = eqx.tree_at(lambda m: m.keys, start, start.keys.at[:, 1].set(0.0))
    start = eqx.tree_at(lambda m: m.queries, start, start.queries.at[:, 1].set(0.0))
    flow = icl.Flow(1e-3, solver=Chebyshev())
    run = icl.simulate(icl.Population(TASK), start, flow, until=200.0)
    assert not np.any(run.model.keys[:, 1])
    assert float(run.loss[-1]) < 0.7 * float(run.loss[0])


def test_few_steps_on_a_long_plateau():
    """Their number stays far below what the limit 2/ρ of an Euler step asks for."""
    loss, start = icl.Population(TASK), model(rank=1, scale=1e-3)
    flow = icl.Flow(1e-3, max_steps=600, solver=Chebyshev())
    run = icl.simulate(loss, start, flow, saveat=np.array([0.0, 3e5]))
    assert run.result == icl.RESULTS.finished
    assert 3e5 * float(icl.sharpness(loss, run.model)) / 2 / 2 > 20 * 600


@pytest.mark.long
def test_the_limit_of_steps_is_a_result_and_the_rest_can_be_run():
    loss, marks = icl.Population(TASK), np.array([0.0, 10.0, 50.0])
    flow = icl.Flow(1e-6, solver=Chebyshev())
    once = icl.simulate(loss, model(), flow, saveat=marks)
    short = icl.Flow(1e-6, max_steps=5, solver=Chebyshev())
    half = icl.simulate(loss, model(), short, saveat=marks)
    assert half.result == icl.RESULTS.step_limit
    assert np.isnan(half.loss[-1])
    rest = icl.simulate(loss, model(), flow, saveat=marks[2:], state=half.state)
    np.testing.assert_allclose(rest.loss[-1], once.loss[-1], rtol=1e-4)
