"""The rank-one and merged experiments: pieces against other computations, and their quick forms."""

import jax
import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp

from iclflow.dynamics import Descent
from iclflow.experiments import init_scale, plateau_alignment, runs, schematics, varying_length
from iclflow.experiments.abrupt_drop import data as abrupt_drop
from iclflow.experiments.fixed_points import data as fixed_points
from iclflow.experiments.four_inputs import correlations, four_input_population, four_input_task
from iclflow.experiments.saddle_to_saddle import data as saddle_to_saddle
from iclflow.experiments.zero_blocks import slope
from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.report.figures import FIGURES
from iclflow.results.netcdf import load, save
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.points import FixedPoint
from iclflow.theory.fixed_points.stationarity import conditions

TASK = Task([0.5, 0.3], 7)

# Claims that the data contradict, in the quick form as at paper scale.
REFUTED = {"key-query-alignment-worst", "separate-duration-paper", "plateau-alignment-later"}
REFUTED |= {"lt-null-blocks-any-start"}


def test_seeds_are_those_of_simulate():
    init = Separate.initialiser(TASK, heads=2, scale=0.5)
    marks = np.array([0, 3, 10])
    record = ["loss", "weights"]
    found = runs.train(Population(TASK), init, Descent(0.2), saveat=marks, seeds=2, record=record)
    for seed in range(2):
        model = init(jax.random.key(seed))
        one = simulate(Population(TASK), model, Descent(0.2), saveat=marks, record=record)
        np.testing.assert_allclose(found["loss"][seed], one.loss, atol=1e-14)
        np.testing.assert_allclose(found["keys"][seed], one["weights"]["keys"], atol=1e-14)


def test_marks_are_distinct_and_reach_the_end():
    marks = runs.spread(20_000)
    assert len(marks) == runs.MARKS
    assert marks[0] == 0
    assert marks[-1] == 20_000
    assert np.all(np.diff(marks) > 0)
    with pytest.raises(ValueError, match="too few"):
        runs.spread(500)


def test_correlations_are_those_of_the_paper():
    """(41)(42) in NumPy."""
    task = four_input_task()
    cross, second = correlations(four_input_population())
    covariance = np.asarray(task.covariance)
    square = covariance @ covariance
    np.testing.assert_allclose(cross.reshape(4, 4), square, atol=1e-14)
    b = square + (square + np.trace(covariance) * covariance) / task.context
    np.testing.assert_allclose(second, np.kron(b, covariance), atol=1e-14)


def test_published_init_is_converted():
    # 0.01·√5·31^(1/3) = 0.0702 and 0.02·31^(2/3) = 0.1974: linear attention divided by N = 31.
    assert pytest.approx(0.07024, abs=1e-5) == saddle_to_saddle.SCALE
    assert pytest.approx(0.19736, abs=1e-5) == saddle_to_saddle.RATE
    assert pytest.approx(5.568e-6, rel=1e-3) == abrupt_drop.ENTRY
    assert pytest.approx(0.031) == abrupt_drop.RATE
    assert "0.07" in saddle_to_saddle.CONVERSION
    assert "0.197" in saddle_to_saddle.CONVERSION


@pytest.mark.parametrize("merged_trained", [True, False])
def test_lazy_loss_is_the_flow_of_the_frozen_kernel(merged_trained):
    population = Population(TASK)
    model = Merged.initialiser(TASK, heads=3, scale=2.0)(jax.random.key(0))
    time = np.linspace(0, 20, 9)
    values, first = np.asarray(model.values)[:, 0, 0], np.asarray(model.merged)
    b, g, c = (np.asarray(a) for a in (population.second, population.cross[0], TASK.covariance))

    def slope(t, m):
        residual = g - b @ m.reshape(2, 2) @ c
        moved = values @ values * residual if merged_trained else 0 * residual
        moved = moved + sum(u * np.sum(u * residual) for u in first)
        return moved.ravel()

    start = np.einsum("h,hdc->dc", values, first).ravel()
    path = solve_ivp(slope, (0, 20), start, t_eval=time, rtol=1e-10, atol=1e-12).y.T
    expected = [
        float(population.power) + np.sum(m * (b @ m @ c - 2 * g)) for m in path.reshape(-1, 2, 2)
    ]
    found = init_scale._lazy_loss(population, model, time, merged_trained)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_levels_of_varying_length_by_a_sampled_loss():
    """E3 at one length, as `_by_length` has it, against the package's own closed form."""
    task = varying_length.varying_task()
    weights = np.random.default_rng(0).normal(size=(4, 4))
    dims = ("seed", "time", "head")
    merged = xr.Dataset({
        "values": (dims, np.ones((1, 1, 1))),
        "merged": ((*dims, "row", "column"), weights[None, None, None]),
    })  # fmt: skip
    found = varying_length._by_length(merged, Population(task))
    model = Merged(values=jax.numpy.ones((1, 1, 1)), merged=jax.numpy.asarray(weights)[None])
    for n in (1, 7, 31):
        expected = float(Population(task.replace(lengths=(n,)))(model))
        assert found["length_trained"][1][n - 1] == pytest.approx(expected, rel=1e-12)
    mean = np.mean(found["length_best"][1])
    assert mean == pytest.approx(float(varying_length.plateau_losses(task)[-1]), rel=1e-12)


def test_slopes_of_powers():
    counts = np.array([100, 400, 1600])
    noise = 1 + 0.01 * np.random.default_rng(0).normal(size=(5, 3))
    data = xr.Dataset({"gap": (("dataset", "count"), noise * 3 / counts)}, {"count": counts})
    measured, error = slope(data, "gap")
    assert abs(measured + 1) < 4 * error
    assert error < 0.01


def test_schematic_has_the_numbers_of_a_prompt():
    data = schematics.compute()
    assert float(data["attention"]) == pytest.approx(float(data["network"]), abs=1e-14)
    assert float(data["outputs"].sum()) == pytest.approx(float(data["attention"]), abs=1e-14)
    z = np.outer(data["query"], data["correlation"]).ravel()
    np.testing.assert_allclose(data["features"], z, atol=1e-15)


NAMES = ["fig1", "fig2", "fig3", "fig6", "fixed-points", "plateau-alignment"]
NAMES += ["v2-init", "v2-length", "zero-blocks", "lt-blocks"]


@pytest.mark.parametrize("rank", [1, fixed_points.RANK])
@pytest.mark.parametrize("index_set", [(), (1,), (0, 3), (0, 1, 2, 3)])
def test_random_weights_of_a_fixed_point_meet_its_conditions(index_set, rank):
    """(C1)(C2)(C3)(84), the function (23)(83), and at rest though not at zero."""
    point = FixedPoint.of(four_input_task(), index_set)
    model = fixed_points.fixed_weights(point, rank, np.random.default_rng(3)).reduce()
    np.testing.assert_allclose(model.reduced_weights()[0, 0], point.weight, atol=1e-12)
    found = conditions(model, point.modes)
    assert found.satisfied(1e-11)
    assert int(found.active.sum()) == -(-len(index_set) // rank)
    dormant = model.keys[~found.active]
    assert float(abs(dormant[:, :rank]).min()) > 0


def test_phase_is_the_integral_of_the_value():
    """dv/dt = Σ g k q as in (62): with these slopes trapezoids are exact for a cubic."""
    time, gain = np.array([0.0, 0.5, 2.0]), np.array([2.0])
    values = 1 + time**3
    weights = np.stack([3 * time**2 / 2, np.ones(3)], axis=1)[:, None, :, None]  # k, q
    found = plateau_alignment._phase(time, values[:, None], weights, gain)
    np.testing.assert_allclose(found[:, 0], time + time**4 / 4, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_quick_form_settles_its_claims_as_at_paper_scale(name, tmp_path):
    seen, source = [], FIGURES[name].source
    data = source.compute(quick=True, progress=lambda done, total: seen.append(done / total))
    assert seen == sorted(seen)
    assert seen[-1] == 1
    found = source.claims(load(save(data, tmp_path / "data.nc")))
    assert {c.id for c in found if not c.holds} == {c.id for c in found} & REFUTED
    assert all(c.reason and c.equation and np.isfinite(c.measured) for c in found)
    assert data.attrs["quick"] == 1
    assert all("long_name" in data[name].attrs for name in data.data_vars)
    for figure in FIGURES.values():
        if figure.source == source:
            figure.draw(data).savefig(tmp_path / "figure.png", dpi=50)


@pytest.mark.slow
def test_the_staircase_lies_on_the_simulation():
    data = saddle_to_saddle.compute(quick=True)
    for source in saddle_to_saddle.SOURCES:  # each with the theory of what it was trained on
        one = data.sel(source=source)
        assert np.median(np.abs(one["staircase_time"] / one["drop_time"] - 1)) < 0.03
    population = data.sel(source="population")
    middle = population["plateau_loss"].values
    np.testing.assert_allclose(
        middle, np.broadcast_to(data["levels"].values, middle.shape), atol=0.005
    )
    # In the population the shown run ends on the eigenvectors up to the size of its start (25).
    run = population.isel(seed=data.attrs["shown_seed"])
    keys = run["plateau_keys"].values[-1, run["drop_head"].values]
    theory = (run["eigenvectors"].values * run["value_limit"].values).T
    cosine = np.abs(np.sum(keys * theory, axis=1)) / np.linalg.norm(keys, axis=1)
    np.testing.assert_allclose(
        cosine, np.linalg.norm(theory, axis=1), rtol=saddle_to_saddle.SCALE**2
    )
