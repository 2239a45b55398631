"""The linearly implicit solver: its order, its linear systems, and flows made with it."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import iclflow as icl
from iclflow.dynamics.beyond import Predictive, StepMemory
from iclflow.dynamics.pair_system import PairSystem
from iclflow.theory import conserved_quantities

STIFF = jnp.geomspace(1.0, 1e5, 30)


def power_law(size):
    spectrum = 1 / np.arange(1, size + 1)
    return icl.Task(spectrum / spectrum.sum(), 31, rotation=jax.random.key(0))


def start(task, heads, scale=0.1, seed=0, **options):
    return icl.Separate.initialiser(task, heads=heads, scale=scale, **options)(jax.random.key(seed))


def drop_times(task, run):
    """When the loss is halfway between two levels, in the logarithm of time."""
    drops = np.asarray(icl.theory.Modes.of(task).drops)
    middles = 1 - np.cumsum(drops) + drops / 2
    return np.exp(np.interp(-middles, -np.asarray(run.loss[1:]), np.log(run.time[1:])))


def test_fourth_order():
    """The error falls as the fourth power of the step; between steps as the third at least."""

    def field(t, y, args):  # the gradient of something that is not quadratic
        return -jax.grad(lambda y: jnp.sum(y**4) / 4 + jnp.sum(y**2) + jnp.sin(y[0] * y[1]))(y)

    y0, marks = jnp.asarray([1.0, -0.5, 0.3]), diffrax.SaveAt(ts=[0.33, 1.0])

    def solve(solver, step, controller):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), solver, 0.0, 1.0, step, y0, saveat=marks,
            stepsize_controller=controller,
        ).ys  # fmt: skip

    exact = solve(diffrax.Tsit5(), None, diffrax.PIDController(rtol=1e-12, atol=1e-12))
    steps, solver = 1 / np.array([8, 16, 32, 64]), icl.Rosenbrock()
    errors = [
        np.abs(solve(solver, h, diffrax.ConstantStepSize()) - exact).max(axis=1) for h in steps
    ]
    inside, end = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert end == pytest.approx(4.0, abs=0.25)
    assert inside > 2.8


def test_stable_far_beyond_the_explicit_limit():
    """Rates up to 1e5 in steps of any size."""
    run = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -STIFF * (y - 1.0)), icl.Rosenbrock(), 0.0, 20.0,
        None, jnp.zeros(30), stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    )  # fmt: skip
    np.testing.assert_allclose(run.ys[-1], 1.0, atol=1e-5)
    assert int(run.stats["num_steps"]) < 200


def test_predictive_control_is_that_of_the_reference():
    """Hairer and Wanner, Section IV.8: after steps of given errors, kept and refused, by hand."""
    control, state = Predictive(rtol=1e-3, atol=1e-6), (StepMemory.none(), StepMemory.none())
    weights, t, size, before, refused = jnp.ones(3), 2.0, 0.5, None, False
    for error in (0.5, 1e-6, 0.8, 1.7, 40.0, 0.6, 0.9, 0.3):
        keeps, begin, end, _, state, _ = control.adapt_step_size(
            jnp.asarray(t), jnp.asarray(t + size), weights, weights, None,
            error * (1e-3 + 1e-6) * jnp.ones(3), 4, state,
        )  # fmt: skip
        factor, most = 0.9 * error**-0.25, 0.9
        if error < 1:
            if before is not None:
                factor = min(factor, 0.9 * size / before[1] * (before[0] / error**2) ** 0.25)
            before, most, t = (max(error, 1e-2), size), 1.0 if refused else 10.0, t + size
        refused = error >= 1
        size *= np.clip(factor, 0.2, most)
        assert keeps != refused
        np.testing.assert_allclose([begin, end - begin], [t, size], rtol=1e-12)


@pytest.fixture(scope="module")
def three_drops():
    """A loss, a start and marks, and the flow by Kvaerno's and Tsitouras' methods at 1e-12."""
    task = icl.Task([0.5, 0.3, 0.2], 31)
    loss, model = icl.Population(task), start(task, 4, scale=0.05, seed=11)
    marks = np.concatenate([[0.0], np.geomspace(10.0, 1e4, 200)])

    def flow(solver):
        @jax.jit
        def solve(tolerance):
            dynamics = icl.Flow(tolerance, solver=solver)
            run = icl.simulate(loss, model, dynamics, saveat=marks)
            first, last = conserved_quantities(model), conserved_quantities(run.state.model)
            drift = [jnp.max(jnp.abs(last[name] - first[name])) for name in first]
            return run.loss, run.stopped, jnp.max(jnp.stack(drift))

        return lambda tolerance: solve(jnp.asarray(tolerance))

    return flow, flow(None)


def test_the_accuracy_follows_the_tolerance(three_drops):
    """Through three drops the worst error of the loss falls with the tolerance, down to 1e-11.

    The error of a step has the order five and its estimate the order four, so that the slope is
    expected between 1 and 5/4. Linear systems that stop at a fixed residual have the slope 0.
    """
    flow, tsit = three_drops
    exact, rosenbrock = tsit(1e-12)[0], flow(icl.Rosenbrock())
    tolerances = np.array([1e-3, 1e-5, 1e-7, 1e-9, 1e-11])
    errors = []
    for tolerance in tolerances:
        loss, stopped, drift = rosenbrock(tolerance)
        assert stopped == 1e4
        assert drift < 10 * tsit(tolerance)[2]
        errors.append(np.abs(loss - exact).max())
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert 0.9 < slope < 1.3
    assert np.all(errors < 100 * tolerances)


@pytest.mark.slow
def test_two_other_methods_agree_on_the_truth(three_drops):
    """The reference of the test above is not the opinion of one solver."""
    flow, tsit = three_drops
    implicit = flow(diffrax.Kvaerno5())(1e-12)[0]
    np.testing.assert_allclose(implicit, tsit(1e-12)[0], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("commuting", [True, False])
def test_linear_system(rank, commuting):
    """W is 1 - wJ by automatic differentiation; its blocks are blocks of it, entry by entry."""
    root = np.random.default_rng(0).normal(size=(4, 4))
    tasks = icl.Normal(covariance=np.eye(4) if commuting else root @ root.T)
    task = icl.Task([0.4, 0.3, 0.2, 0.1], 11, rotation=jax.random.key(3), tasks=tasks)
    loss, model = icl.Population(task), start(task, 5, scale=1.5, rank=rank)
    weights, restore = ravel_pytree(model)
    width, one = 0.5, np.eye(weights.size)
    exact = one + width / 2 * np.asarray(jax.hessian(lambda y: loss(restore(y)))(weights))
    system = PairSystem.of(loss, model).at(model, jnp.asarray(width))
    found = jax.vmap(lambda x: system.back(system.product(system.turned(x))))(one)
    np.testing.assert_allclose(found, exact, atol=1e-12)
    basis = np.asarray(jax.vmap(system.turned)(one))
    blocks = np.linalg.inv(jax.vmap(system.inverse)(one))
    there = np.abs(blocks) > 1e-11
    np.testing.assert_allclose(blocks[there], (basis.T @ exact @ basis)[there], atol=1e-11)
    assert there.sum() > 2 * weights.size  # more than the diagonal


@pytest.mark.slow
def test_blocks_are_almost_all_of_a_learned_state():
    """At the minimum, where heads hold one mode each, the blocks alone solve the system."""
    task = power_law(6)
    loss = icl.Population(task)
    model = icl.dynamics.reference_minimum(loss, start(task, 7))
    # Conjugate gradients know the minimum to 1e-8; what that leaves grows with the width.
    system = PairSystem.of(loss, model).at(model, jnp.asarray(1e3))
    x = jax.random.normal(jax.random.key(0), ravel_pytree(model)[0].shape)
    np.testing.assert_allclose(system.inverse(system.product(x)), x, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "end"),
    [(4, 2e4), pytest.param(16, 1e6, marks=pytest.mark.slow)],
)
def test_drop_times(size, end):
    """To 0.1 % of the exact flow's; the final loss too, and the loss at every mark."""
    task, marks = power_law(size), np.concatenate([[0.0], np.geomspace(20, end, 1500)])
    loss, model = icl.Population(task), start(task, size + 1)
    exact = icl.simulate(loss, model, icl.Flow(1e-10, max_steps=10**7), saveat=marks)
    found = icl.simulate(loss, model, icl.Flow(3e-4, solver=icl.Rosenbrock()), saveat=marks)
    assert found.result == icl.RESULTS.finished
    np.testing.assert_allclose(drop_times(task, found), drop_times(task, exact), rtol=1e-3)
    assert float(found.loss[-1]) == pytest.approx(float(exact.loss[-1]), rel=1e-6)
    np.testing.assert_allclose(found.loss, exact.loss, atol=3e-3)


def test_any_loss_and_model():
    """Trained zero blocks on sampled moments: no system is known, products with J do."""
    task = icl.Task([0.5, 0.3, 0.2], 11)
    loss = icl.Moments.sample(task, 500, jax.random.key(1))
    model = start(task, 3, scale=0.3, rank=2, blocks=icl.models.Blocks.FULL)
    marks = np.array([0.0, 5.0, 20.0, 60.0, 200.0])
    exact = icl.simulate(loss, model, icl.Flow(), saveat=marks)
    found = icl.simulate(loss, model, icl.Flow(1e-5, solver=icl.Rosenbrock()), saveat=marks)
    np.testing.assert_allclose(found.loss, exact.loss, rtol=1e-4)
    found = icl.simulate(loss, model, icl.Flow(1e-9, solver=icl.Rosenbrock()), saveat=marks)
    assert found.stopped == marks[-1]
    np.testing.assert_allclose(found.loss, exact.loss, rtol=1e-8)


@pytest.mark.slow
def test_flows_together_are_flows_alone():
    task = power_law(3)
    init = icl.Separate.initialiser(task, heads=4, scale=0.3)
    how = {"saveat": np.array([0.0, 200.0, 600.0])}
    flow = icl.Flow(1e-4, solver=icl.Rosenbrock())
    runs = icl.sweep(task, init, flow, seeds=3, **how)
    alone = icl.simulate(icl.Population(task), init(jax.random.key(2)), flow, **how)
    np.testing.assert_allclose(runs.loss[2], alone.loss, rtol=1e-6)


@pytest.mark.long
def test_the_limit_of_steps_is_a_result():
    task, marks = power_law(3), np.array([0.0, 200.0, 600.0])
    flow = icl.Flow(1e-4, max_steps=5, solver=icl.Rosenbrock())
    run = icl.simulate(icl.Population(task), start(task, 4), flow, saveat=marks)
    assert run.result == icl.RESULTS.step_limit
    assert np.isnan(run.loss[-1])


@pytest.mark.long
def test_several_layers_have_their_jacobian_factorised():
    """Two layers to their end: the flow of Tsitouras; too large systems are left to products."""
    task = icl.Task([0.6, 0.3], 15)
    loss = icl.Population(task)
    model = icl.Layers.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    solver = icl.Rosenbrock()
    assert solver.on(loss, model, 1e-7, 1e-8).dense
    wide = icl.Layers.initialiser(task, heads=40, scale=0.1)(jax.random.key(0))
    assert not solver.on(loss, wide, 1e-7, 1e-8).dense  # 400 weights: products only
    many = icl.Statistics.sample(task, 50_000, jax.random.key(1))
    assert not solver.on(many, model, 1e-7, 1e-8).dense  # 20 products beside one another
    marks = np.concatenate([[0.0], np.geomspace(10.0, 4e3, 60)])
    exact = icl.simulate(loss, model, icl.Flow(1e-9), saveat=marks)
    found = icl.simulate(loss, model, icl.Flow(1e-7, solver=solver), saveat=marks)
    assert float(exact.loss[-1]) < 0.1 < float(exact.loss[0])
    np.testing.assert_allclose(found.loss, exact.loss, rtol=1e-5)
