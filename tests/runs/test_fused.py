"""Fused loops: the same trajectories as `simulate`, whatever the engine, the batch, the record."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import iclflow as icl
from iclflow.dynamics.descent import Adam
from iclflow.models import Blocks, draw_models
from iclflow.runs import cost
from iclflow.runs.device import vmapped
from iclflow.runs.fused import cpp, engine, rules
from iclflow.runs.fused.program import write

TASK = icl.Task([0.6, 0.3], 15)
POPULATION = icl.Population(TASK)
MOMENTS = icl.Moments.sample(TASK, 50, key=jax.random.key(1))
SEPARATE = icl.Separate.initialiser(TASK, heads=2, scale=0.3)
MERGED = icl.Merged.initialiser(TASK, heads=2, scale=0.3)
FULL = icl.Separate.initialiser(TASK, heads=1, rank=2, scale=0.3, blocks=Blocks.FULL)
DESCENT = icl.Descent(0.1)


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


COMPILER = pytest.mark.skipif(cpp.compiler() is None, reason="there is no C++ compiler")


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
    monkeypatch.setattr("iclflow.runs.batch.BRIEF", 0.0)
    pieces = icl.sweep(POPULATION, SEPARATE, DESCENT, seeds=9, axes=axes, **options)
    np.testing.assert_array_equal(fused["loss"], pieces["loss"])
    monkeypatch.setattr("iclflow.runs.batch.LONG", 0.0)  # most of them record nothing
    pieces = icl.sweep(POPULATION, SEPARATE, DESCENT, seeds=9, axes=axes, **options)
    np.testing.assert_array_equal(fused["loss"], pieces["loss"])
    np.testing.assert_array_equal(fused["stopped"], pieces["stopped"])


@pytest.mark.parametrize(
    ("dynamics", "word"),
    [
        (icl.Flow(1e-6, solver=icl.Chebyshev()), "Tsit5"),
        (icl.Flow(1e-6), "too few"),
        (DESCENT, "too few"),
    ],
)
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


@pytest.fixture
def always(monkeypatch):
    """Every batch is worth compiling, by C++."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    for kept in (cpp._compiled, write):
        kept.cache_clear()
    yield
    for kept in (cpp._compiled, write):
        kept.cache_clear()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("script", "word"),
    [
        (None, "no-such-compiler"),
        ("echo cc1plus: out of memory >&2; exit 1", "out of memory"),
        ("sleep 60", "took longer"),
    ],
)
def test_a_compiler_that_fails_or_never_returns_is_said(monkeypatch, tmp_path, script, word):
    """The sweep goes on under `vmap`, and a compiler that failed is not called a second time."""
    path, calls = tmp_path / "no-such-compiler", tmp_path / "calls"
    if script is not None:
        path.write_text(f"#!/bin/sh\necho call >> {calls}\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setattr(cpp, "compiler", lambda: str(path))
    monkeypatch.setattr(cpp, "PATIENCE", 0.5)
    for _ in range(2):
        said = icl.sweep(POPULATION, SEPARATE, DESCENT, until=2).attrs["engine"]
        assert said.startswith("vmap")
        assert word in said
    if script == "sleep 60":
        assert calls.read_text() == "call\n"


@pytest.mark.usefixtures("always")
def test_any_exception_while_the_loop_is_written_is_a_fall_back(monkeypatch):
    def broken(*_):
        raise RuntimeError("something else\nentirely")

    monkeypatch.setitem(rules.RULES, "dot_general", broken)
    monkeypatch.setitem(rules.RULES, "mul", broken)
    said = icl.sweep(POPULATION, SEPARATE, DESCENT, until=2).attrs["engine"]
    assert said == "vmap (the fused loop failed: RuntimeError: something else)"


def swapping(rate):
    """Two masks that change places at each step."""

    def init(weights):
        masks = [jax.tree.map(lambda w, m=m: jnp.full_like(w, m), weights) for m in (1.0, 0.25)]
        return tuple(masks)

    def update(gradient, state, weights=None):
        first, second = state
        return jax.tree.map(lambda g, m: -rate * m * g, gradient, first), (second, first)

    return optax.GradientTransformation(init, update)


def remembering(rate):
    """An optimiser that remembers its last two updates."""

    def init(weights):
        zero = jax.tree.map(jnp.zeros_like, weights)
        return zero, zero

    def update(gradient, state, weights=None):
        last, before = state
        new = jax.tree.map(lambda g, a, b: -rate * g + 0.3 * a + 0.1 * b, gradient, last, before)
        return new, (new, last)

    return optax.GradientTransformation(init, update)


OPTIMISERS = {
    "states that change places": swapping,
    "a state that moves on": remembering,
    "sums in single precision": partial(optax.sgd, momentum=0.9, accumulator_dtype=jnp.float32),
    "means in single precision": partial(optax.adam, mu_dtype=jnp.float32),
    "a literal False": optax.optimistic_gradient_descent,
    "signs": optax.lion,
}


@COMPILER
@pytest.mark.parametrize("name", OPTIMISERS)
def test_states_of_any_type_that_move_anywhere(monkeypatch, name):
    """Mixed precision keeps each number's own type; new values are computed before any is kept."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    dynamics = icl.Descent(1e-2, OPTIMISERS[name])
    both(monkeypatch, POPULATION, SEPARATE, dynamics, saveat=[1, 2, 40], seeds=17)


@COMPILER
def test_single_weights_under_a_double_loss_and_half_precision(monkeypatch):
    """The first are fused, each number with its own type; the second has no rule and says so."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    record = {"loss": lambda model, loss: loss(model)}
    for kind in (jnp.float32, jnp.bfloat16):
        models = jax.tree.map(lambda a, k=kind: a.astype(k), draw_models(SEPARATE, range(3)))
        start = eqx.filter_vmap(lambda m: DESCENT.init(POPULATION, m, jax.random.key(0)))(models)
        parts = (POPULATION, DESCENT, eqx.tree_at(lambda s: s.step, start, start.step[0]))
        fused = engine.Fused.of(*parts, (False, False))
        reason = engine.why_not(fused, parts, record, 3, np.asarray([9]))
        if kind == jnp.bfloat16:
            assert "bfloat16" in str(reason)
            continue
        assert reason is None
        found = fused.advance(parts, np.asarray([9]), record)
        plain = vmapped(parts, (None, None), np.asarray([9]), record)
        assert found.record["loss"].dtype == plain.record["loss"].dtype == np.float64
        np.testing.assert_allclose(found.record["loss"], plain.record["loss"], rtol=1e-6)


@COMPILER
def test_zero_times_what_is_not_finite_is_nan(monkeypatch):
    """A sum drops zeros only where the other factor is finite."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    record = {"odd": lambda model, loss: loss(model) + 0.0 * jnp.sqrt(model.keys.sum())}
    fused = both(monkeypatch, POPULATION, SEPARATE, DESCENT, saveat=[0, 5], seeds=9, record=record)
    assert 0 < np.isnan(fused["odd"].values).sum() < 18


@COMPILER
def test_a_healthy_run_beside_a_failing_one_keeps_every_bit(monkeypatch):
    """The same runs alone, in a block with runs that diverge, and in pieces."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    options = {"saveat": [3, 50, 300], "final": ["weights"], "seeds": 5}
    mixed = icl.sweep(POPULATION, SEPARATE, DESCENT, axes={"rate": [0.1, 40.0]}, **options)
    alone = icl.sweep(POPULATION, SEPARATE, DESCENT, axes={"rate": [0.1, 0.05]}, **options)
    assert (mixed["result"].values[1] != 0).any()
    monkeypatch.setattr("iclflow.runs.batch.BRIEF", 0.0)
    monkeypatch.setattr("iclflow.runs.batch.LONG", 0.0)
    pieces = icl.sweep(POPULATION, SEPARATE, DESCENT, axes={"rate": [0.1, 40.0]}, **options)
    for other in (alone, pieces):
        for name in ("loss", "weights_keys") if "weights_keys" in mixed else ("loss",):
            np.testing.assert_array_equal(mixed[name][0], other[name][0])


@COMPILER
def test_two_layers_in_the_loop_of_the_cpu(monkeypatch):
    """Against descent written out, step by step."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    layers = icl.Layers.initialiser(TASK, layers=2, heads=2, scale=0.3)
    models = draw_models(layers, range(9))
    start = eqx.filter_vmap(lambda m: DESCENT.init(POPULATION, m, jax.random.key(0)))(models)
    parts = (POPULATION, DESCENT, eqx.tree_at(lambda s: s.step, start, start.step[0]))
    fused = engine.Fused.of(*parts, (False, False))
    record, marks = {"loss": lambda model, loss: loss(model)}, np.asarray([0, 5])
    assert engine.why_not(fused, parts, record, 9, marks) is None
    found = fused.advance(parts, marks, record).record["loss"]
    value = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: POPULATION(m)))
    for run in (0, 8):
        model, losses = jax.tree.map(lambda a, i=run: a[i], models), []
        for _ in range(6):
            loss, gradient = value(model)
            losses.append(float(loss))
            model = jax.tree.map(lambda w, g: w - 0.1 * g, model, gradient)
        np.testing.assert_allclose(found[run], [losses[0], losses[5]], rtol=1e-12)


def test_layers_that_are_too_wide_say_so(monkeypatch):
    """At D = 4 with five heads a layer has 45 weights: two are too many for implicit steps."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    record = {"loss": lambda model, loss: loss(model)}
    for size, heads, dynamics, word in (
        (4, 5, icl.Flow(1e-6, solver=icl.Rosenbrock()), "90 weights are too many"),
        (8, 9, DESCENT, "numbers per run"),
    ):
        task = icl.Task([1 / (d + 1) for d in range(size)], 31)
        loss = icl.Population(task)
        models = draw_models(
            icl.Layers.initialiser(task, layers=2, heads=heads, scale=0.1), range(2)
        )
        state = eqx.filter_vmap(
            lambda m, loss=loss, d=dynamics: d.init(loss, m, jax.random.key(0))
        )(models)
        if dynamics is DESCENT:
            state = eqx.tree_at(lambda s: s.step, state, state.step[0])
        parts = (loss, dynamics, state)
        fused = engine.Fused.of(*parts, (False, False))
        reason = engine.why_not(fused, parts, record, 2, np.asarray([9]))
        assert word in str(reason)


def test_what_numbers_cannot_do_is_left_to_vmap(monkeypatch):
    """A recorded function with an operation that has no rule, and a model that is too wide."""
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    odd = {"sine": lambda model, loss: jnp.sin(loss(model))}
    assert "sin" in icl.sweep(POPULATION, SEPARATE, DESCENT, until=2, record=odd).attrs["engine"]
    wide = icl.Separate.initialiser(TASK, heads=80, scale=0.3)
    assert "too many" in icl.sweep(POPULATION, wide, DESCENT, until=2).attrs["engine"]
