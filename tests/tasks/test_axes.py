"""The axes of a task: they stay where they were given, and their order shows in no result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from iclflow.diagnosis import diagnose_run
from iclflow.diagnosis.film import film_scene
from iclflow.diagnosis.identify import candidates
from iclflow.dynamics import Descent
from iclflow.explorer.payload import payload
from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.runs.record import FixedPointDistance
from iclflow.runs.simulate import simulate
from iclflow.study.study import Settings, Study
from iclflow.tasks.laws import Commuting, Normal
from iclflow.tasks.task import Task
from iclflow.theory import Modes, least_squares, plateau_losses, predict, summary
from iclflow.theory.linear_transformer import TransformerModes, transformer_summary

SPECTRUM, VARIANCES = np.array([0.5, 0.3, 0.15, 0.05]), np.array([1.0, 0.8, 2.0, 1.5])
ORDER = np.array([2, 0, 3, 1])  # axis i of the turned task is axis ORDER[i] of the other


def task(order=slice(None), **options) -> Task:
    law = Normal(covariance=VARIANCES[order])
    return Task(SPECTRUM[order], 31, tasks=law, label_noise=0.2, **options)


def turned(model):
    """The same weights on the axes of the turned task."""
    if isinstance(model, Merged):
        return Merged(model.values, model.merged[:, ORDER][:, :, ORDER])
    return Separate(model.values, model.keys[..., ORDER], model.queries[..., ORDER])


def start_of(kind):
    return kind.initialiser(task(), heads=5, scale=0.02)(jax.random.key(3))


def test_a_shifted_test_covariance_is_another_task():
    """What was learned on 0.4, 0.3, 0.2, 0.1 fails where the last axis is the largest."""
    trained = Task(spectrum=[0.4, 0.3, 0.2, 0.1], context=31)
    given = [0.1, 0.2, 0.3, 0.4]
    predictor = least_squares(trained)
    for shifted in (Task(spectrum=given, context=31), trained.replace(spectrum=given)):
        assert shifted.spectrum.tolist() == given
        assert float(Population(shifted)(predictor)) == pytest.approx(2.113992106246502, rel=1e-12)
    assert float(Population(trained)(predictor)) == pytest.approx(0.1359950715980247, rel=1e-12)


def test_task_variances_stay_with_their_axes():
    """E[y²] = Σ λ s = 0.5 · 4 + 1 · 1, from Python and from settings."""
    stated = Task([0.5, 1.0], 31, tasks=Normal(covariance=[4.0, 1.0]))
    settings = Settings(spectrum=(0.5, 1.0), task_covariance=(4.0, 1.0)).task()
    for one in (stated, settings):
        assert float(Population(one).power) == pytest.approx(3.0, rel=1e-14)
    commuting = Task([0.5, 1.0], 31, tasks=Commuting([4.0, 1.0]))
    assert float(Population(commuting).power) == pytest.approx(3.0, rel=1e-14)


def test_an_eigenvector_stays_with_its_eigenvalue():
    rotation = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0])
    given = Task([0.2, 0.5, 0.3], 4, rotation=rotation)
    expected = np.asarray(rotation) @ np.diag([0.2, 0.5, 0.3]) @ np.asarray(rotation).T
    np.testing.assert_array_equal(given.basis, rotation)
    ordered = given.largest_first()
    np.testing.assert_array_equal(ordered.spectrum, [0.5, 0.3, 0.2])
    for one in (given, ordered, Task.from_covariance(expected, 4)):
        np.testing.assert_allclose(one.covariance, expected, atol=1e-14)


def test_another_number_of_axes_is_refused_where_a_field_is_replaced():
    with pytest.raises(ValueError, match=r"has 4 axes, one eigenvalue per axis .* \(3,\)"):
        task().replace(spectrum=[0.5, 0.3, 0.2])


@pytest.mark.parametrize("kind", [Merged, Separate])
def test_levels_times_and_runs_do_not_depend_on_the_order_of_the_axes(kind):
    """Exactly, but for the times: they come from a solver with a tolerance of its own."""
    one, other, start = task(), task(ORDER), start_of(kind)
    np.testing.assert_allclose(plateau_losses(other), plateau_losses(one), rtol=1e-12)
    modes = [Modes.of(t) for t in (one, other)]
    np.testing.assert_allclose(modes[1].g, modes[0].g, rtol=1e-12)
    np.testing.assert_allclose(
        predict(other, turned(start), probes=0).times,
        predict(one, start, probes=0).times,
        rtol=1e-5,
    )
    pairs = ((one, start), (other, turned(start)))
    distance = [float(FixedPointDistance.of(t)(m)) for t, m in pairs]
    assert distance[1] == pytest.approx(distance[0], rel=1e-10)
    runs = [simulate(Population(t), m, Descent(0.3), saveat=[0, 20, 400]) for t, m in pairs]
    np.testing.assert_allclose(runs[1].loss, runs[0].loss, rtol=1e-12)


def test_the_summary_of_a_task_is_in_the_order_of_its_drops():
    """The eigenvalues alone are listed as they were given."""
    found = [summary.task_summary(t, 4, 1) for t in (task(), task(ORDER))]
    assert found[1]["eigenvalues"] == SPECTRUM[ORDER].tolist()
    for name in ("a", "plateau_losses", "drop_sizes", "gains", "value_weights"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-12)
    for one, other in zip(found[0]["saddles"], found[1]["saddles"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-12)
        assert other["cubic_gain"] == pytest.approx(one["cubic_gain"], rel=1e-12)
        assert (other["modes"], other["order"]) == (one["modes"], one["order"])


def test_the_linear_transformer_has_the_numbers_of_a_mode_at_its_axis():
    given = [
        TransformerModes.of(Task(SPECTRUM[o], 40, tasks=Commuting(VARIANCES[o])))
        for o in (np.arange(4), ORDER)
    ]
    one, other = (transformer_summary(modes, (0.01, 0.01)) for modes in given)
    for name in ("timescales", "a_optimum", "overshoot", "exact_half_times"):
        np.testing.assert_allclose(other[name], np.asarray(one[name])[ORDER], rtol=1e-6)
    for name in ("optimum_loss", "plateau_losses", "drift_time"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-10)


def test_diagnosis_names_components_from_the_largest_eigenvalue():
    """Algorithms by name, and the alignment of each component, whatever the order of the axes."""
    one, other = (task(o).replace(tasks=Normal(), label_noise=0.0) for o in (np.arange(4), ORDER))
    init = Separate.initialiser(one, heads=4, scale=0.1)
    start = init(jax.random.key(1))
    found = []
    for t, m in ((one, start), (other, turned(start))):
        run = simulate(
            Population(t), m, Descent(1.0), saveat=[0, 10, 30, 100, 300, 1000, 3000],
            record=["loss", "weights"],
        )  # fmt: skip
        found.append(diagnose_run(run.to_dataset(), source=t, init=init, sequences=100))
    first, second = found
    assert second["algorithm"].values.tolist() == first["algorithm"].values.tolist()
    assert "PCR-1" in second["algorithm"].values
    np.testing.assert_allclose(second["alignment"], first["alignment"], rtol=1e-8)
    names = [list(candidates(t, sequences=100)) for t in (one, other)]
    assert names[1] == names[0]
    assert "PCR-1" in names[0]


def recorded(order) -> xr.Dataset:
    """A file of the command line whose weights are those of one run, on either order of axes."""
    settings = Settings(
        spectrum=tuple(SPECTRUM[order]), task_covariance=tuple(VARIANCES[order]), heads=3,
        scale=0.3, rate=0.5, steps=60, save="log:8", record=("loss", "weights"),
    )  # fmt: skip
    runs = Study.of(settings).run()
    if order is ORDER:
        same = recorded(np.arange(4))
        for name in ("keys", "queries"):
            runs[name].values[:] = same[name].values[..., ORDER]
        runs["values"].values[:], runs["loss"].values[:] = same["values"], same["loss"]
    return runs


def test_film_and_page_show_a_run_largest_component_first():
    one, other = recorded(np.arange(4)), recorded(ORDER)
    first, second = film_scene(one), film_scene(other)
    for name in ("keys", "queries", "effective", "levels"):
        np.testing.assert_allclose(second[name], first[name], atol=1e-12)
    assert payload(other, "x") == payload(one, "x")


def test_a_turned_basis_is_the_same_task_in_other_coordinates():
    """Λ = E diag(λ) Eᵀ: eigenvalues and eigenvectors in one order or another."""
    basis = jnp.asarray(np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0])
    one, other = task(rotation=basis), task(ORDER, rotation=basis[:, ORDER])
    model = start_of(Separate)
    losses = [float(Population(t)(model)) for t in (one, other)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
