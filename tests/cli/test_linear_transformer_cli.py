"""The linear transformer on the command line, and its experiments in quick form."""

import json

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from iclflow.experiments import linear_transformer
from iclflow.experiments.linear_transformer_stages import claims as linear_transformer_stages_claims
from iclflow.experiments.linear_transformer_stages import data as linear_transformer_stages
from iclflow.experiments.linear_transformer_stages import figure as stages_plots
from iclflow.results.netcdf import load, save
from tests.helpers.commands import call, refused

MODEL = ["--model", "linear-transformer"]
TASK = ["--spectrum", "1,0.6,0.36", "--context", "8"]

# Claims that the exact theory contradicts, in the quick form as at paper scale.
REFUTED = {"lt-exact", "lt-mode-conserved", "lt-final-loss"}


def theory(capsys, *arguments):
    code, out, err = call(capsys, "theory", *MODEL, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_theory_as_json(capsys):
    found = theory(capsys, *TASK)
    s, n = np.asarray([1, 0.6, 0.36]), 8
    np.testing.assert_allclose(found["timescales"], 1 / s**2)
    np.testing.assert_allclose(found["a_infinity"], n / ((n + 1) * s + s.sum()))
    final = 0.5 * np.sum(s * (s + s.sum()) / ((n + 1) * s + s.sum()))
    assert found["paper_final_loss"] == pytest.approx(final)
    root = np.sqrt(s)
    best = n / ((n + 1) * s) * (1 - root.sum() / ((n + 4) * root))
    np.testing.assert_allclose(found["a_optimum"], best)
    least = (s.sum() + n * root.sum() ** 2 / (n + 4)) / (2 * (n + 1))
    assert found["optimum_loss"] == pytest.approx(least)
    assert "escape_times" not in found


def test_theory_from_a_start(capsys, tmp_path):
    picture = tmp_path / "theory.png"
    found = theory(
        capsys, *TASK, "--init", "0.01", "--query-init", "0.02", "--epoch-rate", "0.02",
        "--plot", picture,
    )  # fmt: skip
    assert picture.stat().st_size > 10_000
    np.testing.assert_allclose(found["timescales"], 50 / np.asarray([1, 0.6, 0.36]) ** 2)
    assert found["conserved"] == pytest.approx(3 * (0.01**2 - 0.02**2))
    assert np.all(np.diff(found["exact_half_times"]) > 0)
    assert found["exact_half_times"][-1] > found["paper_half_times"][-1]
    code, out, _ = call(capsys, "theory", *MODEL, *TASK, "--init", "0.01")
    assert code == 0
    assert "least loss, exact" in out
    assert "a∞" in out


def test_a_mode_that_is_not_worth_learning(capsys):
    found = theory(capsys, "--spectrum", "2,1,0.01", "--context", "3", "--task-covariance", "1,2,1")
    assert found["active"] == [True, True, False]
    assert found["a_optimum"][-1] == 0
    assert found["task_variances"] == [1, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--spectrum", "1,0", "--context", "8"], "eigenvalues above 0"),
        ([*TASK, "--noise", "0.1"], "noise on the labels"),
        ([*TASK, "--task-mean", "1,1,1"], "no fixed task, no task mean and no sparse tasks"),
        ([*TASK, "--task-covariance", "1,1"], "3 variances"),
        ([*TASK, "--init", "5"], "between 0 and a∞/2"),
        ([*TASK, "--plot", "x.png"], "give --scale"),
        ([*TASK, "--lengths", "1-8"], "varying context lengths"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    assert reason in refused(capsys, "theory", *MODEL, *arguments)
    assert not list(tmp_path.iterdir())


def test_options_of_this_model_alone(capsys):
    assert "needs --model linear-transformer" in refused(capsys, "theory", "--query-init", "0.1")


def test_simulate_ends_at_the_least_loss(capsys):
    """Without the ½ of the paper: twice the least loss."""
    code, out, err = call(
        capsys, "simulate", *MODEL, *TASK, "--init", "0.1", "--steps", "3000", "--theory", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["level"] == "population"
    assert found["predicted_drop_times"] is None
    least = theory(capsys, *TASK)["optimum_loss"]
    assert found["final_loss"][0] == pytest.approx(2 * least, rel=1e-6)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick data as a report reads them."""
    folder = tmp_path_factory.mktemp("data")
    found = {}
    for module in (linear_transformer, linear_transformer_stages):
        data = module.compute(quick=True)
        path = folder / f"{module.__name__}.nc"
        save(data, path)
        found[module] = load(path)
    return found


@pytest.mark.slow
def test_quick_claims(quick):
    settled = [
        *linear_transformer.claims(quick[linear_transformer]),
        *linear_transformer_stages_claims.claims(quick[linear_transformer_stages]),
    ]
    assert all(claim.id.startswith("lt-") for claim in settled)
    assert {claim.id for claim in settled if not claim.holds} == REFUTED


@pytest.mark.slow
def test_figures(quick):
    for data, draws in (
        (quick[linear_transformer], (linear_transformer.draw_fig1, linear_transformer.draw_fig2)),
        (
            quick[linear_transformer_stages],
            (stages_plots.draw_fig3, stages_plots.draw_fig4),
        ),
    ):
        assert isinstance(data, xr.Dataset)
        for draw in draws:
            assert isinstance(draw(data), Figure)


@pytest.mark.slow
def test_a_lost_bend_does_not_pass(quick):
    staged = quick[linear_transformer_stages]
    lost = staged.assign(baseline_bends=staged["baseline_bends"] * np.nan)
    held = {claim.id: claim.holds for claim in linear_transformer_stages_claims.claims(lost)}
    assert not held["lt-detects-baseline"]
