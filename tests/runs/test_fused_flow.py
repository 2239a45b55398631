"""Fused flows: the trajectories of `Flow` by Diffrax, each run with a step of its own."""

import functools
import shutil
import subprocess

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import iclflow as icl
from iclflow.losses import Population
from iclflow.models import Blocks, draw_models
from iclflow.runs import cost
from iclflow.runs.device import vmapped
from iclflow.runs.fused import cpp, cuda, engine, flow_cuda, rock4, tsit5
from iclflow.runs.fused.flow_cpp import ROCK4, TSIT5
from iclflow.runs.fused.program import write
from iclflow.theory import conserved_quantities
from tests.helpers.fused_fuzz import explicit_step, fuzz_flows, stabilised_step
from tests.helpers.one_thread import cupy_of_one_thread

TASK = icl.Task([0.6, 0.3], 15)
POPULATION = icl.Population(TASK)
SEPARATE = icl.Separate.initialiser(TASK, heads=2, scale=0.1)
MARKS = np.asarray([0.0, 1.0, 7.0, 30.0, 30.5, 200.0])
RECORD = {"loss": lambda model, loss: loss(model), "keys": lambda model, loss: model.keys}

COMPILER = pytest.mark.skipif(cpp.compiler() is None, reason="there is no C++ compiler")
GPU = pytest.mark.skipif(engine.available() != engine.CUDA, reason="needs a GPU and CuPy")


@pytest.fixture
def always(monkeypatch):
    """Every batch is worth compiling, by C++."""
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)


def parts_of(flow, init=SEPARATE, loss=POPULATION, seeds=range(5)):
    models = draw_models(init, seeds)
    return loss, flow, eqx.filter_vmap(lambda m: flow.init(loss, m, jax.random.key(0)))(models)


def advance(parts, marks=MARKS, record=RECORD, own=(False, False)):
    """The runs by the fused loop in C++."""
    fused = engine.Fused.of(*parts, own)
    fused.engine = engine.CPP
    assert fused.prepare(parts, record) is None
    return fused.advance(parts, np.asarray(marks), record)


def same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_the_pair_and_its_dense_output_are_those_of_diffrax():
    """To rounding: the table, the estimate of the error, and the polynomials between the steps."""
    tableau = diffrax.Tsit5.tableau
    for ours, theirs in zip(tsit5.A[1:], tableau.a_lower, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-15)
    np.testing.assert_allclose(tsit5.ERROR, tableau.b_error, rtol=1e-13)
    for theta in (0.0, 0.3, 0.9, 1.0):
        inside = diffrax.Tsit5.interpolation_cls(
            t0=0.0, t1=1.0, y0=jnp.zeros(7), y1=None, k=jnp.eye(7)
        ).evaluate(theta)
        ours = [
            c * theta ** min(n + 1, 2) * np.polynomial.Polynomial(rest)(theta)
            for n, (c, rest) in enumerate(tsit5.DENSE)
        ]
        np.testing.assert_allclose(ours, inside, atol=1e-13)


@COMPILER
@pytest.mark.usefixtures("always")
def test_a_sweep_of_flows_is_fused_and_is_that_of_diffrax(monkeypatch):
    """Save points, tolerances and losses of their own, an odd batch, final weights."""
    options = {"saveat": MARKS, "seeds": 5, "record": ["loss", "effective"], "final": ["weights"]}
    options["axes"] = {"tolerance": [1e-9, 1e-11], "context": [15, 40]}
    fused = icl.sweep(TASK, SEPARATE, icl.Flow(), **options)
    assert fused.attrs["engine"] == f"fused ({engine.CPP}, Tsit5)"
    monkeypatch.setattr(engine, "available", lambda: engine.VMAP)
    plain = icl.sweep(TASK, SEPARATE, icl.Flow(), **options)
    assert plain.attrs["engine"].startswith("vmap")
    assert set(plain.variables) == set(fused.variables)
    for name in plain.variables:
        np.testing.assert_allclose(fused[name], plain[name], rtol=1e-6, atol=1e-8)


def test_the_stabilised_step_its_estimate_and_its_inside_have_their_orders():
    """Four, three and three: the errors of one step fall as h⁵, h⁴ and h⁴."""

    def slope(y):
        return np.asarray([np.sin(y[1]) - y[0] ** 3, y[0] * np.cos(y[1]) - 0.5 * y[1]])

    start, sizes, errors = np.asarray([0.7, -0.4]), 0.1 * 2.0 ** -np.arange(4), []
    exact = solve_ivp(lambda t, y: slope(y), (0, 0.1), start, "DOP853", rtol=1e-13, atol=1e-15,
                      dense_output=True).sol  # fmt: skip
    for h in sizes:
        end, last, estimate, inside = stabilised_step(slope, start, slope(start), h, float)
        np.testing.assert_array_equal(last, slope(end))
        np.testing.assert_allclose(inside(1.0), end, rtol=1e-14)
        within = max(np.abs(inside(theta) - exact(theta * h)).max() for theta in (0.25, 0.5, 0.75))
        errors.append([np.abs(end - exact(h)).max(), np.abs(estimate).max(), within])
    slopes = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert (np.abs(slopes - [5, 4, 4]) < 0.4).all()


def test_the_stabilised_step_is_stable_as_far_as_is_said():
    """|R(z)| ≤ 1 on the real axis down to -REACH and no further; five times as far as Tsitouras."""
    for pair, step in ((rock4, stabilised_step), (tsit5, explicit_step)):
        z = -np.linspace(0, 1.02 * pair.REACH, 5000)
        grown, *_ = step(functools.partial(np.multiply, z), np.ones_like(z), z, 1.0, float)
        assert (np.abs(grown[z > -pair.REACH]) <= 1 + 1e-12).all()
        assert np.abs(grown[-1]) > 1
    slopes = len(rock4.RECURRENCE) + len(rock4.A) + 1  # per step: the last is the first of the next
    assert 4 * tsit5.REACH / (len(tsit5.A) - 1) < rock4.REACH / slopes


@COMPILER
@pytest.mark.parametrize(
    ("solver", "tolerances", "power"),
    [
        (None, (1e-4, 1e-5, 1e-6, 1e-7), (3.6, 4.9)),
        (diffrax.Tsit5(), (1e-5, 1e-7, 1e-9), (4.5, 6.5)),
    ],
)
def test_the_error_falls_as_the_power_of_the_step_that_the_order_says(solver, tolerances, power):
    """At times at which accuracy bounds the step; the size of the next one is in the state."""
    exact = advance(parts_of(icl.Flow(1e-13)), [20.0]).state.model
    steps, errors = [], []
    for tolerance in tolerances:
        found = advance(parts_of(icl.Flow(jnp.asarray(tolerance), solver=solver)), [20.0]).state
        apart = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), found.model, exact)
        errors.append(max(jax.tree.leaves(apart)))
        steps.append(float(np.mean(found.step.size)))
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert power[0] < slope < power[1]


@COMPILER
def test_errors_are_on_a_line_with_those_of_diffrax():
    """By the same pair, and by the one that is chosen: no larger, at any tolerance."""
    marks, tolerances = np.geomspace(1.0, 200.0, 30), np.asarray([1e-4, 1e-5, 1e-6, 1e-8])
    record = {"loss": RECORD["loss"]}
    exact = advance(parts_of(icl.Flow(1e-12)), marks, record).record["loss"]
    ours, chosen, theirs = [], [], []
    for tolerance in tolerances:
        parts = parts_of(icl.Flow(jnp.asarray(tolerance), solver=diffrax.Tsit5()))
        for errors, found in (
            (ours, advance(parts, marks, record)),
            (chosen, advance(parts_of(icl.Flow(jnp.asarray(tolerance))), marks, record)),
            (theirs, vmapped(parts, (None, None), marks, record)),
        ):
            errors.append(np.sqrt(np.mean((np.asarray(found.record["loss"]) - exact) ** 2)))
    for errors in (ours, chosen):
        assert (np.asarray(errors) < 1.5 * np.asarray(theirs)).all()
        assert 0.6 < np.polyfit(np.log(tolerances), np.log(errors), 1)[0] < 1.2


@COMPILER
def test_a_run_has_the_same_bits_alone_and_beside_any_others():
    """Neighbours with other tolerances, among them some that use up their steps."""
    flow = icl.Flow(jnp.asarray([1e-6, 1e-12, 1e-3] * 7), max_steps=400)
    state = parts_of(icl.Flow(1e-6), seeds=range(21))[2]
    together = advance((POPULATION, flow, state), own=(False, True))
    ends = np.asarray(together.state.result == icl.RESULTS.step_limit)
    assert ends[1]
    assert not ends[0]
    assert np.isnan(together.record["loss"][1, -1])
    for run in (0, 1, 20):
        one = eqx.filter(jax.tree.map(lambda a, r=run: a[r : r + 1], (flow, state)), eqx.is_array)
        one = eqx.combine(one, (flow, state))
        alone = advance((POPULATION, *one), own=(False, True))
        same_bits(alone, jax.tree.map(lambda a, r=run: a[r : r + 1], together))


class Steep(Population):
    """A loss without a lowest value: keys that are large enough grow until time stands still."""

    def __call__(self, model):
        return super().__call__(model) - 2.0 * jnp.sum(model.keys**4)


@COMPILER
def test_a_flow_that_fails_ends_as_by_diffrax_and_does_not_touch_its_neighbours():
    """Weights that grow past any bound in a finite time, and weights that are not numbers."""
    loss, flow = Steep(TASK), icl.Flow(1e-6, max_steps=1500)
    _, _, state = parts_of(flow, loss=loss)
    keys = state.model.keys.at[2:].multiply(0.01).at[1].set(jnp.nan)
    state = eqx.tree_at(lambda s: s.model.keys, state, keys)
    marks = [0.0, 0.5, 30.0]
    found = advance((loss, flow, state), marks)
    plain = vmapped((loss, flow, state), (None, None), np.asarray(marks), RECORD)
    same_bits(found.state.result, plain.state.result)
    assert not np.asarray(found.state.running[:2]).any()
    assert np.asarray(found.state.running[2:]).all()
    np.testing.assert_allclose(found.state.stopped, plain.state.stopped, rtol=1e-4)
    np.testing.assert_allclose(found.record["loss"], plain.record["loss"], rtol=1e-4)
    some = jax.tree.map(lambda a: a[2:] if eqx.is_array(a) else a, state)
    same_bits(advance((loss, flow, some), marks), jax.tree.map(lambda a: a[2:], found))
    again = advance((loss, flow, found.state), [40.0])
    np.testing.assert_array_equal(again.state.stopped[:2], found.state.stopped[:2])
    assert np.isnan(again.record["loss"][:2]).all()


@COMPILER
def test_pieces_change_no_bit():
    """Stops between the save points and without any record, on the disk and back."""
    whole = advance(parts_of(icl.Flow(1e-7)))
    loss, flow, state = parts_of(icl.Flow(1e-7))
    records = []
    for marks, record in (([0.0, 1.0], RECORD), ([3.3], {}), ([7.0, 30.0, 30.0], RECORD),
                          ([30.5], RECORD), ([50.0], {}), ([200.0], RECORD)):  # fmt: skip
        found = advance((loss, flow, state), marks, record)
        state = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), found.state)
        records += [found.record] if record else []
    losses = np.concatenate([r["loss"] for r in records], axis=1)
    np.testing.assert_array_equal(np.delete(losses, 4, axis=1), whole.record["loss"])
    same_bits(state.model, whole.state.model)


@pytest.mark.parametrize("solver", [None, icl.Chebyshev(), icl.Rosenbrock()])
def test_pieces_change_no_bit_by_diffrax(solver):
    """A pair that needs no state of its own, one that needs it, and an implicit solver."""
    flow, found = icl.Flow(1e-4, solver=solver), []
    start = parts_of(flow, seeds=range(3))[2]
    for pieces in ([[0.0, 200.0]], [[0.0, 1.0], [3.3, 3.3], [3.3, 30.0], [31.0, 200.0]]):
        state, losses = start, []
        for piece in pieces:  # as many marks in each: one compiled program
            run = vmapped((POPULATION, flow, state), (None, None), np.asarray(piece), RECORD)
            state = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), run.state)
            losses.append(run.record["loss"])
        found.append((state, losses[0][:, 0], losses[-1][:, -1]))
    same_bits(*found)
    assert (np.asarray(found[0][0].step.time) < 200.0).all()
    assert (np.asarray(found[0][0].step.end) > 200.0).all()


@pytest.mark.parametrize("by", ["fused", "vmap"])
@pytest.mark.long
@pytest.mark.usefixtures("always")
def test_an_interrupted_sweep_of_flows_goes_on_to_the_same_bits(monkeypatch, tmp_path, by):
    """It also has the bits of a sweep in one piece."""
    if by == "vmap":
        monkeypatch.setattr(engine, "available", lambda: engine.VMAP)
    elif cpp.compiler() is None:
        pytest.skip("there is no C++ compiler")
    options = {"saveat": MARKS, "seeds": 3, "record": ["loss"], "final": ["weights"]}
    once = icl.sweep(TASK, SEPARATE, icl.Flow(1e-7), **options)
    monkeypatch.setattr("iclflow.runs.batch.BRIEF", 0.0)
    monkeypatch.setattr("iclflow.runs.batch.SAVE_EVERY", 0.0)
    whole = icl.sweep(TASK, SEPARATE, icl.Flow(1e-7), **options)

    class Stop:
        def stops(self, marks):
            return [7.0]

        def __call__(self, piece):
            if piece.mark == 7.0:
                raise KeyboardInterrupt

    kept = {"store": tmp_path / "runs", **options}
    part = icl.sweep(TASK, SEPARATE, icl.Flow(1e-7), observers=[Stop()], **kept)
    assert np.isnan(part["loss"][..., -1]).all()
    resumed = icl.sweep(TASK, SEPARATE, icl.Flow(1e-7), **kept)
    assert resumed.attrs["engine"].startswith(by)
    for name in whole.variables:
        np.testing.assert_array_equal(resumed[name], whole[name])
        np.testing.assert_array_equal(whole[name], once[name])


@COMPILER
def test_conserved_quantities_drift_no_more_than_by_diffrax():
    """The same tolerance and times; theirs is the yardstick."""
    record = {"conserved": lambda model, loss: conserved_quantities(model)}
    parts = parts_of(icl.Flow(1e-6))
    drifts = [
        jax.tree.map(lambda a: np.abs(np.asarray(a) - np.asarray(a)[:, :1]).max(), found.record)
        for found in (advance(parts, MARKS, record), vmapped(parts, (None, None), MARKS, record))
    ]
    ours, theirs = (max(jax.tree.leaves(d)) for d in drifts)
    assert 0 < ours < 1.5 * theirs


@COMPILER
@pytest.mark.long
def test_moments_and_weights_in_single_precision():
    """Products with a large shared matrix; errors in proportion to the precision."""
    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    loss = icl.Moments.sample(task, 60, key=jax.random.key(1))
    init = icl.Separate.initialiser(task, heads=1, scale=0.3, blocks=Blocks.FULL)
    parts = parts_of(icl.Flow(1e-8), init, loss, range(9))
    record = {"loss": RECORD["loss"]}
    assert engine.Fused.of(*parts, (False, False)).program(parts, record).matrices
    plain = vmapped(parts, (None, None), np.asarray([2.0, 9.0]), record).record["loss"]
    np.testing.assert_allclose(advance(parts, [2.0, 9.0], record).record["loss"], plain, rtol=1e-6)
    single = lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a  # noqa: E731
    loss, state = jax.tree.map(single, (loss, parts[2]))
    found = advance((loss, icl.Flow(1e-4), state), [2.0, 9.0], record)
    assert found.record["loss"].dtype == found.state.mark.dtype == np.float32
    np.testing.assert_allclose(found.record["loss"], plain, rtol=1e-3)


@COMPILER
@pytest.mark.long
def test_why_a_flow_is_not_fused_is_said():
    """Another solver, weights too small for single precision, and a gradient through the runs."""
    parts = parts_of(icl.Flow(1e-6))
    fused = engine.Fused.of(*parts, (False, False))
    fused.engine = engine.CPP
    renewed = eqx.filter_vmap(lambda s: parts[1].renew(POPULATION, s))(advance(parts).state)
    assert not np.asarray(renewed.step.size).any()  # where a loss jumps, no old step goes on
    why = lambda some: engine.why_not(fused, some, RECORD, 5, MARKS)  # noqa: E731
    assert why(parts) is None
    assert why((POPULATION, icl.Flow(1e-6, solver=diffrax.Tsit5()), parts[2])) is None
    assert "Tsit5" in why((POPULATION, icl.Flow(1e-6, solver=icl.Chebyshev()), parts[2]))
    tiny = icl.Separate.initialiser(TASK, heads=2, scale=1e-40)
    with pytest.raises(engine.CannotFuse, match="below 1e-30"):
        advance(parts_of(icl.Flow(1e-6), tiny))
    said = []

    def total(factor):
        state = eqx.tree_at(lambda s: s.model.keys, parts[2], parts[2].model.keys * factor)
        said.append(why((POPULATION, parts[1], state)))
        run = vmapped((POPULATION, parts[1], state), (None, None), MARKS, RECORD)
        return jnp.sum(run.record["loss"])

    slope = jax.grad(total)(1.0)
    assert "gradient" in said[0]
    np.testing.assert_allclose(slope, (total(1 + 1e-5) - total(1 - 1e-5)) / 2e-5, rtol=1e-4)


@COMPILER
@pytest.mark.long
@pytest.mark.parametrize("pair", [TSIT5, ROCK4])
def test_random_flows_are_those_of_the_solver_written_out(pair):
    assert fuzz_flows(2, 0, pair=pair) == []


@COMPILER
@pytest.mark.slow
@pytest.mark.parametrize("pair", [TSIT5, ROCK4])
def test_very_many_random_flows_are_those_of_the_solver_written_out(pair):
    assert fuzz_flows(203, 2, pair=pair) == []


@GPU
@pytest.mark.slow
@pytest.mark.parametrize("pair", [TSIT5, ROCK4])
def test_random_flows_on_a_gpu_are_those_of_the_solver_written_out(pair):
    assert fuzz_flows(100, 0, engine.CUDA, pair=pair) == []


@COMPILER
def test_the_kernel_of_a_gpu_by_one_thread_of_a_cpu_is_the_loop(monkeypatch):
    """The same text and the code around it: tolerances of both pairs, a run that failed, pieces."""
    monkeypatch.setattr(flow_cuda, "cupy_module", cupy_of_one_thread)
    flow = icl.Flow(jnp.asarray([1e-6, 1e-9, 1e-6, 1e-7, 1e-8]))
    loss, _, state = parts_of(icl.Flow(1e-6))
    state = eqx.tree_at(lambda s: s.model.keys, state, state.model.keys.at[2].set(jnp.nan))
    own, marks = (False, True), [0.0, 1.0, 7.0, 30.0, 30.5]
    loop = advance((loss, flow, state), marks, own=own)
    fused, records = engine.Fused.of(loss, flow, state, own), []
    fused.engine = engine.CUDA
    assert fused.prepare((loss, flow, state), RECORD) is None
    for some, record in ((marks[:3], RECORD), ([9.0], {}), (marks[3:], RECORD)):
        found = fused.advance((loss, flow, state), np.asarray(some), record)
        state = found.state
        records += [found.record] if record else []
    for name, wanted in loop.record.items():
        ours = np.concatenate([r[name] for r in records], axis=1)
        np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-9)
    counted = eqx.tree_at(lambda s: s.step.crawled, loop.state, state.step.crawled)
    for ours, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(counted), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-6)


@COMPILER
@pytest.mark.long
@pytest.mark.parametrize("pair", [TSIT5, ROCK4])
def test_random_flows_by_the_kernel_are_those_of_the_solver_written_out(monkeypatch, pair):
    monkeypatch.setattr(flow_cuda, "cupy_module", cupy_of_one_thread)
    assert fuzz_flows(2, 0, engine.CUDA, pair=pair) == []


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler: nvcc")
@pytest.mark.parametrize(
    ("source", "pair"), [("population", ROCK4), ("population", TSIT5), ("moments", ROCK4)]
)
def test_the_cuda_text_of_a_flow_compiles(tmp_path, source, pair):
    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    moments = icl.Moments.sample(task, 60, key=jax.random.key(1))
    loss = moments if source == "moments" else icl.Population(task)
    init = icl.Separate.initialiser(task, heads=1, scale=0.3, blocks=Blocks.FULL)
    parts = parts_of(icl.Flow(1e-8), SEPARATE if source != "moments" else init, loss)
    if source != "moments":
        parts = parts_of(icl.Flow(1e-8))
    fused = engine.Fused.of(*parts, (False, False))
    program = fused.program(parts, RECORD)
    (tmp_path / "flow.cu").write_text(
        flow_cuda.source(program, write(program, fused.zeros(parts, RECORD)), pair)
    )
    call = ["nvcc", "-ptx", *cuda.OPTIONS, "flow.cu", "-o", "flow.ptx"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
