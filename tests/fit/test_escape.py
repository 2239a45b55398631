"""Laws of the drop times: exponents with intervals, beside those of the theory."""

import json

import jax
import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow.fit import escape
from tests.helpers.commands import call, refused

TASK = icl.Task([1.0, 0.5], context=8)
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.1)
HOW = {"until": 3000, "seeds": 5, "record": ["loss", "drop_times"]}


@pytest.fixture(scope="module")
def runs():
    """A sweep over scales and heads."""
    return icl.sweep(TASK, INIT, icl.Descent(0.1), axes={"scale": [0.05, 0.1, 0.2]}, **HOW)


def test_the_exponent_of_separate_attention_is_that_of_its_theory(runs):
    found = escape(runs)
    assert found.data.slope.shape == (2,)
    assert np.all(found.data.low < found.data.slope)
    assert np.all(found.data.slope < found.data.high)
    # Descent at rate η is later than the flow by a share of order ηλ, which changes along the axis.
    np.testing.assert_allclose(found.data.slope, found.data.theory, atol=0.03)
    assert float(found.data.limit) == -1.0
    assert np.abs(found.data.slope + 1).max() < 0.1
    assert "T ~ scale^-" in str(found)
    assert "5 seeds" in str(found)
    assert "<table>" in found._repr_html_()


def test_exponents_approach_the_limit_as_the_weights_vanish():
    """Prediction instead of training: local exponents come nearer to -1 with smaller scales."""
    x = np.array([1e-4, 1e-3, 1e-2, 1e-1])
    times = [
        icl.theory.drop_times(TASK, [icl.Separate.initialiser(TASK, heads=3, scale=w)(
            jax.random.key(s)) for s in range(3)])
        for w in x
    ]  # fmt: skip
    made = xr.Dataset(
        {"drop_times": (("scale", "seed", "drop_number"), np.asarray(times)),
         "result": (("scale", "seed"), np.zeros((4, 3), np.int8))},
        {"scale": x, "seed": [0, 1, 2]},
    )  # fmt: skip
    found = escape(made, starts=0)
    gaps = np.abs(found.data.local.values[0] + 1)
    assert gaps[0] < gaps[2] / 10
    assert gaps[0] < 1e-3
    # Nothing says what these were trained on, so there is nothing beside the fit.
    assert np.isnan(found.data.theory).all()
    assert np.isnan(found.data.limit)


def test_merged_attention_escapes_with_the_logarithm():
    """(51): T = ln(1/w)/‖Λ²‖ and a constant; so the exponent of a power tends to nothing."""
    init = icl.Merged.initialiser(TASK, heads=3, scale=0.1)
    axes = {"scale": [1e-5, 1e-4, 1e-3]}
    runs = icl.sweep(TASK, init, icl.Descent(0.02), until=2000, seeds=5, axes=axes,
                     record=["drop_times"])  # fmt: skip
    found = escape(runs, law="logarithm")
    rate = float(np.linalg.norm(np.asarray(TASK.spectrum) ** 2))
    assert float(found.data.limit) == pytest.approx(-1 / rate, rel=1e-9)
    assert float(found.data.theory[0]) == pytest.approx(-1 / rate, rel=1e-3)
    # The step of descent multiplies the rate by ln(1 + 2ηr)/(2ηr).
    step = 2 * 0.02 * rate
    expected = -1 / rate * step / np.log1p(step)
    assert float(found.data.slope[0]) == pytest.approx(expected, rel=2e-3)
    power = escape(runs, starts=0)
    assert abs(float(power.data.slope[0])) < 0.15
    assert np.isnan(power.data.limit)


def test_times_are_taken_from_the_loss_where_no_summary_was_kept(runs):
    one, other = escape(runs, starts=0), escape(runs.drop_vars("drop_times"), starts=0)
    np.testing.assert_allclose(one.data.time, other.data.time, rtol=1e-12)


def test_runs_that_ended_early_are_counted(runs):
    times = runs.drop_times.copy(deep=True)
    slowest = int(np.argmax(times.values[0, :, 1]))
    times[0, slowest, 1] = np.nan
    found = escape(runs.assign(drop_times=times), starts=0)
    assert found.data.missing.values.tolist() == [0, 1]
    assert any("had not come" in note for note in found.notes)


def test_another_axis_and_several_panels():
    runs = icl.sweep(TASK, INIT, icl.Descent(0.1), until=2000, seeds=4, record=["drop_times"],
                     axes={"scale": [0.1, 0.2], "heads": [2, 4]})  # fmt: skip
    found = escape(runs, against="heads", starts=0)
    assert found.data.slope.dims == ("scale", "drop_number")
    assert np.isnan(found.data.limit)
    figure = icl.plots.escape(escape(runs, starts=1).data)
    assert [axes.get_title() for axes in figure.axes] == ["heads 2", "heads 4"]
    assert "note: an interval from 4 seeds is rough" in str(found)


def test_own_prompts_and_own_initialiser_are_given():
    loss = icl.Moments.sample(TASK, 500, jax.random.key(1), features=icl.ReducedFeatures())
    init = icl.Separate.initialiser(loss, heads=3, scale=0.1)
    runs = icl.sweep(loss, init, icl.Descent(0.1), until=3000, seeds=3, axes={"scale": [0.1, 0.2]},
                     record=["drop_times"])  # fmt: skip
    alone = escape(runs)
    assert np.isnan(alone.data.theory).all()
    assert any("source=" in note for note in alone.notes)
    found = escape(runs, source=loss, init=init)
    np.testing.assert_allclose(found.data.slope, found.data.theory, atol=0.03)
    assert not np.isnan(found.data.limit)


def test_a_design_and_a_rule_without_a_clock(tmp_path):
    design = icl.sweeps.Design.of(steps=3000, seeds=3, rate=0.1, heads=3, spectrum=[1.0, 0.5],
                                  context=8, scale=[0.1, 0.2])  # fmt: skip
    found = escape(icl.sweeps.run(design, tmp_path / "s.zarr"))
    assert np.isfinite(found.data.theory).all()
    adam = icl.sweep(TASK, INIT, icl.Descent(0.01, icl.Adam()), until=400, seeds=3,
                     axes={"scale": [0.1, 0.2]}, record=["loss", "drop_times"])  # fmt: skip
    notes = escape(adam).notes
    assert any("clock t/τ" in note for note in notes)


@pytest.mark.parametrize(("change", "options", "message"), [
    (lambda r: r, {"against": "heads"}, "no axis heads"),
    (lambda r: r, {"law": "expo"}, "unknown law"),
    (lambda r: r, {"times": "nothing"}, "unknown variable"),
    (lambda r: r, {"times": "loss"}, "over time"),
    (lambda r: r, {"confidence": 2}, "between 0 and 1"),
    (lambda r: r.isel(seed=0), {}, "no dimension seed"),
    (lambda r: r.isel(scale=[0]), {}, "at least two values"),
    (lambda r: r.drop_vars(["loss", "drop_times"]), {}, "record="),
    (lambda r: r.assign_coords(scale=[0.0, 0.1, 0.2]), {}, "positive numbers"),
])  # fmt: skip
def test_what_cannot_be_fitted_is_refused_in_one_line(runs, change, options, message):
    with pytest.raises(ValueError, match=message) as error:
        escape(change(runs), **options)
    assert "\n" not in str(error.value)


def test_a_fit_is_drawn_as_it_is(runs):
    fit = icl.fit.escape(runs, starts=0)
    assert len(icl.plots.escape(fit).axes) == len(icl.plots.escape(fit.data).axes)
    with pytest.raises(ValueError, match=r"icl.plots.escape\(icl.fit.escape\(runs\)\)"):
        icl.plots.escape(runs)


def test_the_shell_fits_prints_and_draws(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    icl.save(runs, "own.nc")
    given = ["plot", "own.nc", "--x", "scale", "--y", "drop_times", "--fit"]
    code, out, _ = call(capsys, *given)
    assert code == 0
    assert "drop 2: T ~ scale^-" in out
    assert (tmp_path / "own.png").stat().st_size > 5000
    code, out, _ = call(capsys, *given, "logarithm", "--json")
    assert json.loads(out)["law"] == "logarithm"
    assert "unknown law" in refused(capsys, *given, "cubic")
    assert "--color" in refused(capsys, *given, "--color", "scale")
    assert "--fit" in refused(capsys, *given[:-1], "--json")
