"""Fused flows by implicit steps: for long plateaus, where stability bounds an explicit step."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import iclflow as icl
from iclflow.losses import Population
from iclflow.models import draw_models
from iclflow.runs import cost
from iclflow.runs.device import vmapped
from iclflow.runs.fused import cpp, engine, flow_cpp, rodas5p
from iclflow.runs.fused.flow_cpp import ROCK4, RODAS5P
from iclflow.theory import conserved_quantities
from tests.helpers.fused_fuzz import fuzz_flows, implicit_step

pytestmark = pytest.mark.skipif(cpp.compiler() is None, reason="there is no C++ compiler")

TASK = icl.Task([0.6, 0.3], 15)
POPULATION = icl.Population(TASK)
SEPARATE = icl.Separate.initialiser(TASK, heads=2, scale=0.1)
MARKS = np.asarray([0.0, 1.0, 30.0, 30.5, 200.0, 1000.0])
RECORD = {"loss": lambda model, loss: loss(model)}
IMPLICIT = icl.Rosenbrock()


def parts_of(flow, loss=POPULATION, seeds=range(5), init=SEPARATE):
    models = draw_models(init, seeds)
    return loss, flow, eqx.filter_vmap(lambda m: flow.init(loss, m, jax.random.key(0)))(models)


def advance(parts, marks=MARKS, record=RECORD, own=(False, False)):
    fused = engine.Fused.of(*parts, own)
    fused.engine = engine.CPP
    assert fused.prepare(parts, record) is None
    return fused.advance(parts, np.asarray(marks), record)


def same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def one_of(parts, run):
    """The parts of one run alone."""
    return (
        *parts[:2],
        jax.tree.map(lambda a: a[run : run + 1] if eqx.is_array(a) else a, parts[2]),
    )


@pytest.fixture
def hurried(monkeypatch):
    """Runs go on by implicit steps after 64 explicit ones that stability bounds."""
    monkeypatch.setattr(engine.FusedFlow, "patience", lambda self, program, zeros, t: 0.0 * t)


def test_the_step_its_estimate_and_its_dense_output_have_their_orders():
    """Five, four and four: the errors of one step fall as h⁶, h⁵ and h⁵."""

    def slope(y):
        return np.asarray([np.sin(y[1]) - y[0] ** 3, y[0] * np.cos(y[1]) - 0.5 * y[1]])

    def jacobian(y):
        c, s = np.cos(y[1]), np.sin(y[1])
        return np.asarray([[-3 * y[0] ** 2, c], [c, -y[0] * s - 0.5]])

    start, sizes, errors = np.asarray([0.7, -0.4]), 0.1 * 2.0 ** -np.arange(4), []
    exact = solve_ivp(lambda t, y: slope(y), (0, 0.1), start, "DOP853", rtol=1e-13, atol=1e-15,
                      dense_output=True).sol  # fmt: skip
    for h in sizes:
        end, _, estimate, inside = implicit_step(slope, jacobian, start, h, float)
        np.testing.assert_allclose(inside(1.0), end, rtol=1e-14)
        within = max(np.abs(inside(theta) - exact(theta * h)).max() for theta in (0.25, 0.5, 0.75))
        errors.append([np.abs(end - exact(h)).max(), np.abs(estimate).max(), within])
    slopes = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert (np.abs(slopes - [6, 5, 5]) < 0.4).all()
    assert rodas5p.END[-1] == 1.0


def test_errors_follow_the_tolerance_and_the_fifth_power_of_the_step():
    exact = advance(parts_of(icl.Flow(1e-13)), [20.0]).state.model
    tolerances, steps, errors = np.asarray([1e-4, 1e-6, 1e-8]), [], []
    for tolerance in tolerances:
        found = advance(parts_of(icl.Flow(jnp.asarray(tolerance), solver=IMPLICIT)), [20.0]).state
        apart = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), found.model, exact)
        errors.append(max(jax.tree.leaves(apart)))
        steps.append(float(np.mean(found.step.size)))
    assert 4.3 < np.polyfit(np.log(steps), np.log(errors), 1)[0] < 6.5
    assert (np.asarray(errors) < 300 * tolerances).all()
    assert 0.7 < np.polyfit(np.log(tolerances), np.log(errors), 1)[0] < 1.3


def test_it_is_the_rosenbrock_of_diffrax_in_fewer_steps():
    """Both follow a flow to convergence at a tolerance that makes them differ by less."""
    parts = parts_of(icl.Flow(1e-9, solver=IMPLICIT))
    found, plain = advance(parts), vmapped(parts, (None, None), MARKS, RECORD)
    np.testing.assert_allclose(found.record["loss"], plain.record["loss"], rtol=1e-7)
    same_bits(found.state.result, plain.state.result)


@pytest.mark.usefixtures("hurried")
def test_stiff_runs_change_to_implicit_steps_and_keep_their_accuracy():
    parts = parts_of(icl.Flow(1e-8))
    found = advance(parts, [0.0, 1.0, 1000.0])
    assert np.isinf(np.asarray(found.state.step.crawled)).all()
    plain = vmapped(parts, (None, None), np.asarray([0.0, 1.0, 1000.0]), RECORD)
    np.testing.assert_allclose(found.record["loss"], plain.record["loss"], rtol=1e-6)
    early = advance(parts, [1.0]).state.step.crawled
    assert (np.asarray(early) < 64).all()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("solver", [None, diffrax.Tsit5()])
def test_how_stiff_a_step_is_does_not_depend_on_the_unit_of_time(monkeypatch, solver):
    """Inputs a hundred times as strong: curvature is larger, and explicit steps are below 1."""
    parts = parts_of(icl.Flow(1e-6, solver=solver), icl.Population(icl.Task([60.0, 30.0], 15)))
    assert np.isinf(np.asarray(advance(parts, [0.0, 2.0]).state.step.crawled)).all()
    monkeypatch.setattr(engine.FusedFlow, "patience", lambda self, program, zeros, t: np.inf * t)
    assert (np.asarray(advance(parts, [0.0, 2.0]).state.step.size) < 0.5).all()


@pytest.mark.usefixtures("hurried")
def test_a_run_has_the_same_bits_alone_and_beside_others_in_any_pieces():
    """Among runs of other tolerances, some of which change to implicit steps later than others."""
    flow = icl.Flow(jnp.asarray([1e-6, 1e-9, 1e-4] * 6))
    parts = (POPULATION, flow, parts_of(icl.Flow(1e-6), seeds=range(18))[2])
    together = advance(parts, own=(False, True))
    assert np.isinf(np.asarray(together.state.step.crawled)).any()
    for run in (0, 1, 17):
        one = eqx.filter(jax.tree.map(lambda a, r=run: a[r : r + 1], parts[1:]), eqx.is_array)
        alone = advance((POPULATION, *eqx.combine(one, parts[1:])), own=(False, True))
        same_bits(alone, jax.tree.map(lambda a, r=run: a[r : r + 1], together))
    state, records = parts[2], []
    for marks, record in (([0.0, 1.0], RECORD), ([8.0], {}), ([30.0, 30.5], RECORD),
                          ([77.0], {}), ([200.0], RECORD), ([1000.0, 1000.0], RECORD)):  # fmt: skip
        found = advance((POPULATION, flow, state), marks, record, own=(False, True))
        state = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), found.state)
        records += [found.record["loss"]] if record else []
    np.testing.assert_array_equal(np.concatenate(records, 1)[:, :-1], together.record["loss"])
    same_bits(state.model, together.state.model)


class Steep(Population):
    """A loss without a lowest value: keys that are large enough grow until time stands still."""

    def __call__(self, model):
        return super().__call__(model) - 2.0 * jnp.sum(model.keys**4)


def test_a_run_that_fails_does_not_touch_its_neighbours():
    """Weights that grow past any bound in a finite time, and weights that are not numbers."""
    loss, flow = Steep(TASK), icl.Flow(1e-6, max_steps=1500, solver=IMPLICIT)
    _, _, state = parts_of(flow, loss)
    keys = state.model.keys.at[2:].multiply(0.01).at[1].set(jnp.nan)
    parts = (loss, flow, eqx.tree_at(lambda s: s.model.keys, state, keys))
    found = advance(parts, [0.0, 0.5, 30.0])
    assert not np.asarray(found.state.running[:2]).any()
    assert np.asarray(found.state.result == icl.RESULTS.diverged)[:2].all()
    assert np.asarray(found.state.running[2:]).all()
    for run in range(5):
        alone = advance(one_of(parts, run), [0.0, 0.5, 30.0])
        same_bits(alone, jax.tree.map(lambda a, r=run: a[r : r + 1], found))
    few = advance((loss, icl.Flow(1e-6, max_steps=7, solver=IMPLICIT), parts[2]), [0.5, 30.0])
    assert np.asarray(few.state.result == icl.RESULTS.step_limit)[2:].all()


@pytest.mark.usefixtures("hurried")
def test_conserved_quantities_drift_no_more_than_by_diffrax():
    record = {"conserved": lambda model, loss: conserved_quantities(model)}
    parts, drifts = parts_of(icl.Flow(1e-6)), []
    implicit = (POPULATION, icl.Flow(1e-6, solver=IMPLICIT), parts[2])
    for found in (
        vmapped(parts, (None, None), MARKS, record),
        vmapped(implicit, (None, None), MARKS, record),
        advance(parts, MARKS, record),
        advance(implicit, MARKS, record),
    ):
        each = jax.tree.leaves(found.record)
        drifts.append(max(np.abs(np.asarray(a) - np.asarray(a)[:, :1]).max() for a in each))
    *theirs, changed, ours = drifts
    assert 0 < changed < 1.5 * max(theirs)
    assert 0 < ours < 1.5 * max(theirs)


@pytest.mark.usefixtures("hurried")
def test_the_engine_is_named_and_says_why_it_is_another(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    options = {"saveat": [0.0, 2000.0], "seeds": 3, "record": ["loss"]}
    swept = lambda flow, init=SEPARATE: icl.sweep(TASK, init, flow, **options)  # noqa: E731
    implicit = swept(icl.Flow(1e-6, solver=IMPLICIT))
    assert implicit.attrs["engine"] == "fused (C++, Rosenbrock)"
    stiff = swept(icl.Flow(1e-6))
    assert stiff.attrs["engine"] == "fused (C++, ROCK4, Rosenbrock where stiff)"
    np.testing.assert_allclose(stiff["loss"], implicit["loss"], rtol=1e-5)
    parts = parts_of(icl.Flow(solver=IMPLICIT))
    fused = engine.Fused.of(*parts, (False, False))
    assert engine.why_not(fused, parts, RECORD, 5, MARKS) is None
    fused.engine = engine.CUDA
    assert "CPU" in engine.why_not(fused, parts, RECORD, 5, MARKS)
    wide = icl.Separate.initialiser(TASK, heads=13, scale=0.1)
    parts = parts_of(icl.Flow(solver=IMPLICIT), init=wide, seeds=range(2))
    fused = engine.Fused.of(*parts, (False, False))
    fused.engine = engine.CPP
    assert "65 weights are too many" in engine.why_not(fused, parts, RECORD, 5, MARKS)


def test_patience_is_the_price_of_the_implicit_steps():
    """It grows with the accuracy and with the share of a run in compiling; a GPU has none."""
    parts = parts_of(icl.Flow(1e-6))
    fused = engine.Fused.of(*parts, (False, False))
    fused.engine = engine.CPP
    program, zeros = fused.program(parts, RECORD), fused.zeros(parts, RECORD)
    many = fused.patience(program, zeros, np.asarray([1e-4, 1e-6, 1e-9]))
    assert (np.diff(many) > 0).all()
    fused.runs = 1000
    few = fused.patience(program, zeros, np.asarray([1e-4, 1e-6, 1e-9]))
    assert (few > many + 1000).all()
    fused.engine = engine.CUDA
    assert np.isinf(fused.patience(program, zeros, np.asarray([1e-6]))).all()


@pytest.mark.usefixtures("hurried")
def test_where_the_implicit_loop_does_not_compile_steps_stay_explicit(monkeypatch):
    parts, compiled = parts_of(icl.Flow(1e-6)), flow_cpp.compiled

    def refusing(program, zeros, options=(), pair=ROCK4):
        if pair == RODAS5P:
            raise engine.CannotFuse("no")
        return compiled(program, zeros, options, pair)

    monkeypatch.setattr(flow_cpp, "compiled", refusing)
    found = advance(parts)
    assert np.isfinite(np.asarray(found.state.step.crawled)).all()
    monkeypatch.setattr(engine.FusedFlow, "patience", lambda self, program, zeros, t: np.inf * t)
    plain = advance(parts)
    same_bits(found.record, plain.record)


@pytest.mark.long
def test_random_stiff_flows_are_those_of_the_solver_written_out():
    assert fuzz_flows(2, 0, pair=RODAS5P) == []


@pytest.mark.slow
def test_very_many_random_stiff_flows_are_those_of_the_solver_written_out():
    assert fuzz_flows(104, 2, pair=RODAS5P) == []
