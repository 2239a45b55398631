"""Fused loops: the same trajectories as `simulate`, whatever the engine, the batch, the record."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.dynamics.optimisers import Adam, GradientDescent, Momentum
from iclflow.models import Blocks, draw_models
from iclflow.runs import cost
from iclflow.runs.fused import cpp_loop, engine
from iclflow.runs.fused.numbers import Arithmetic, constants
from iclflow.runs.fused.program import numbers_of
from iclflow.runs.vmapped import vmapped

TASK = icl.Task([0.6, 0.3], 15)
POPULATION = icl.Population(TASK)
MOMENTS = icl.Moments.sample(TASK, 50, key=jax.random.key(1))
SEPARATE = icl.Separate.initialiser(TASK, heads=2, scale=0.3)
MERGED = icl.Merged.initialiser(TASK, heads=2, scale=0.3)
FULL = icl.Separate.initialiser(TASK, heads=1, rank=2, scale=0.3, blocks=Blocks.FULL)
DESCENT = icl.Descent(0.1)
# A backend without a compiler: a number is a NumPy array of lanes.
VECTORS = Arithmetic(
    multiply_add=lambda x, y, z: x * y + z,
    choose=np.where,
    sqrt=np.sqrt,
    power=np.power,
    cast=lambda x, dtype: np.asarray(x, dtype),
)


def by_numbers(loss, init, dynamics, steps, seeds):
    """The losses of a sweep after `steps`, step by step on numbers."""
    models = draw_models(init, range(seeds))
    start = eqx.filter_vmap(lambda m: dynamics.init(loss, m, jax.random.key(0)))(models)
    state = eqx.tree_at(lambda s: s.step, start, start.step[0])
    fused = engine.Fused.of(loss, dynamics, state, (False, False))
    program = fused.program((loss, dynamics, state), {"loss": lambda model, loss: loss(model)})
    assert program.reason() is None
    values = []
    leaves = jax.tree.leaves(eqx.filter((loss, dynamics, state), eqx.is_array))
    for array, leaf in zip(leaves, program.leaves, strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            values.append(None)
        elif leaf.own:
            rows = np.asarray(array).reshape(seeds, -1).T
            values.append(numbers_of(list(rows), leaf.shape))
        else:
            values.append(constants(array))
    for step in range(steps):
        values[program.clock] = constants(step)
        _, values = program.after(values, VECTORS)
    return program.seen(values, VECTORS)[0].value


@pytest.mark.parametrize(
    ("loss", "init", "optimiser"),
    [
        (POPULATION, SEPARATE, GradientDescent()),
        pytest.param(POPULATION, MERGED, Momentum(), marks=pytest.mark.long),
        pytest.param(POPULATION, SEPARATE, Adam(), marks=pytest.mark.long),
        pytest.param(MOMENTS, MERGED, GradientDescent(), marks=pytest.mark.long),
        pytest.param(MOMENTS, FULL, Momentum(nesterov=True), marks=pytest.mark.long),
    ],
)
def test_a_step_on_numbers_is_the_step(loss, init, optimiser):
    """One step is written once: models, losses and optimisers need nothing of their own here."""
    dynamics = icl.Descent(0.05, optimiser)
    plain = icl.sweep(loss, init, dynamics, saveat=[15], seeds=3)["loss"].values[:, -1]
    np.testing.assert_allclose(by_numbers(loss, init, dynamics, 15, 3), plain, rtol=1e-12)


def both(monkeypatch, *arguments, **options):
    """The sweep by `vmap` and by the fused loop."""
    plain = icl.sweep(*arguments, **options)
    assert plain.attrs["engine"].startswith("vmap")
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    fused = icl.sweep(*arguments, **options)
    assert fused.attrs["engine"].startswith("fused")
    assert set(plain.variables) == set(fused.variables)
    for name in plain.variables:
        np.testing.assert_allclose(fused[name], plain[name], rtol=1e-10, atol=1e-12)
    return fused


COMPILER = pytest.mark.skipif(cpp_loop.compiler() is None, reason="there is no C++ compiler")


@COMPILER
def test_the_loop_of_the_cpu(monkeypatch):
    """Odd batch, saves at step 0 and the last, lanes with their own rate of which some diverge."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    options = {"saveat": [0, 7, 60], "record": ["loss", "effective"], "final": ["weights"]}
    axes = {"rate": [0.1, 40.0]}
    fused = both(monkeypatch, POPULATION, SEPARATE, DESCENT, seeds=9, axes=axes, **options)
    assert fused.attrs["engine"] == f"fused ({engine.CPP})"
    ended = fused["result"].values
    assert (ended[0] == 0).all()
    assert (ended[1] != 0).any()
    assert np.isfinite(fused["loss"].values[0]).all()
    monkeypatch.setattr("iclflow.runs.plan.BRIEF", 0.0)
    pieces = icl.sweep(POPULATION, SEPARATE, DESCENT, seeds=9, axes=axes, **options)
    np.testing.assert_array_equal(fused["loss"], pieces["loss"])
    monkeypatch.setattr("iclflow.runs.plan.LONG", 0.0)  # most of them record nothing
    pieces = icl.sweep(POPULATION, SEPARATE, DESCENT, seeds=9, axes=axes, **options)
    np.testing.assert_array_equal(fused["loss"], pieces["loss"])
    np.testing.assert_array_equal(fused["stopped"], pieces["stopped"])


@pytest.mark.parametrize(("dynamics", "word"), [(icl.Flow(1e-6), "descent"), (DESCENT, "too few")])
def test_the_reason_for_vmap_is_said(monkeypatch, dynamics, word):
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    assert word in icl.sweep(POPULATION, SEPARATE, dynamics, until=2).attrs["engine"]


@COMPILER
def test_optimisers_in_the_loop_of_the_cpu(monkeypatch):
    """Adam counts its steps in whole numbers, has roots and powers; single precision stays so."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    dynamics = icl.Descent(0.05, Adam())
    both(monkeypatch, POPULATION, SEPARATE, dynamics, saveat=[0, 12], seeds=3)
    models = draw_models(SEPARATE, range(3))
    loss, single = jax.tree.map(lambda a: a.astype(jnp.float32), (POPULATION, models))
    start = eqx.filter_vmap(lambda m: DESCENT.init(loss, m, jax.random.key(0)))(single)
    parts = (loss, DESCENT, eqx.tree_at(lambda s: s.step, start, start.step[0]))
    record = {"loss": lambda model, loss: loss(model)}
    fused = engine.Fused.of(*parts, (False, False)).advance(parts, np.asarray([9]), record)
    plain = vmapped(parts, (None, None), np.asarray([9]), record)
    assert fused.state.model.keys.dtype == fused.record["loss"].dtype == np.float32
    np.testing.assert_allclose(fused.record["loss"], plain.record["loss"], rtol=1e-6)


def test_a_compiler_that_does_not_work_is_said(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    for name in ("compiler", "trouble"):
        monkeypatch.setattr(cpp_loop, name, getattr(cpp_loop, name).__wrapped__)
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = icl.sweep(POPULATION, SEPARATE, DESCENT, until=2).attrs["engine"]
    assert said.startswith("vmap")
    assert "no-such-compiler" in said


def test_what_numbers_cannot_do_is_left_to_vmap(monkeypatch):
    """A recorded function with an operation that has no rule, and a model that is too wide."""
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    odd = {"sine": lambda model, loss: jnp.sin(loss(model))}
    assert "sin" in icl.sweep(POPULATION, SEPARATE, DESCENT, until=2, record=odd).attrs["engine"]
    wide = icl.Separate.initialiser(TASK, heads=80, scale=0.3)
    assert "too many" in icl.sweep(POPULATION, wide, DESCENT, until=2).attrs["engine"]
