"""The examples of sweeps: every design holds, and small forms of them answer their question."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow import cli
from iclflow.dynamics import Descent
from iclflow.models import draw_models
from iclflow.runs.compute import final_models
from iclflow.study.study import Settings
from iclflow.sweeps.examples import atlas, heads, laws
from iclflow.sweeps.examples.base import NAMES, Example, ExampleAnswer
from iclflow.sweeps.plan import law, plan
from iclflow.sweeps.summaries import STEPS, orbit, regimes

pytest.importorskip("zarr", reason="the extra sweep is not installed")


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_a_design_that_can_run(name):
    example = Example.read(name)
    design = example.design()
    assert design.cells >= 48
    assert example.question
    if example.x:
        assert example.x in [field for axis in design.axes for field in axis.fields]
        assert {example.y, example.theory} <= {*design.summaries}


@pytest.mark.long
def test_a_small_example_finds_that_theory_and_runs_agree(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = ["scale=[0.1,0.2,0.3]", "seeds=2", "steps=3000", "spectrum=[1.0,0.5]", "heads=2"]
    changes += ["rate=0.05", "save=linear:600"]
    given = [word for change in changes for word in ("--set", change)]
    assert cli.main(["sweep", "--example", "rich-to-lazy", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert found["drops_compared"] >= 6
    assert found["median_error"] < 0.03
    assert abs(found["slope"] - found["slope_of_theory"]) < 0.05
    assert (tmp_path / "rich-to-lazy.png").stat().st_size > 10_000


def test_the_fastest_of_heads_has_the_law_of_order_statistics():
    single = np.random.default_rng(0).exponential(size=200_000)  # its minimum over H is known
    for count in (1, 4, 16):
        assert heads.fastest(single, count) == pytest.approx(
            np.sqrt(count) * np.log(2) / count, rel=0.02
        )


def test_kolmogorov_distances_are_those_of_scipy():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=300), rng.normal(0.3, 1, size=200)
    assert laws.distance(one, other, np.inf) == pytest.approx(ks_2samp(one, other).statistic)
    late = np.where(one > 1, np.nan, one)  # runs that ended before: compared up to there
    assert laws.distance(late, other, 1.0) <= laws.distance(one, other, np.inf) + 1e-12


def test_laws_of_drop_times_are_those_of_theory(tmp_path):
    example = Example.read("drop-laws")
    words = {"spectrum": [1.0, 0.5], "heads": 3, "seeds": 200, "scale": 0.02, "rate": 0.1}
    design = example.design({**words, "steps": 3000})
    found = icl.sweeps.run(design, tmp_path / "s.zarr")
    answer = example.answer(found, design)
    assert answer.numbers["distance"][0] < 0.06  # the same 200 starts: no sampling error
    assert answer.numbers["distance_of_73"][0] > 0.3
    example.figure(answer)


def scalar(rate):
    """Descent of one head on one input: a map of three numbers."""
    task = icl.Task(spectrum=[1.0], context=8)
    models = draw_models(icl.Separate.initialiser(task, heads=1, scale=0.5), range(2))
    return icl.Population(task), Descent(rate), models


def test_the_exponent_at_a_minimum_is_that_of_its_curvature():
    loss, dynamics, models = scalar(0.1)
    first = jax.tree.map(lambda a: a[0], models)
    run = icl.simulate(loss, first, dynamics, until=4000)
    model = run.state.model
    losses, exponent = orbit(loss, dynamics, jax.tree.map(lambda a: a[None], model))
    assert losses.shape == (1, STEPS)
    # The flow's conserved quantities leave directions that neither grow nor shrink.
    assert abs(exponent[0]) < 1e-3
    assert regimes(np.asarray(run.loss)[None], losses, exponent).tolist() == ["monotone"]
    _, none = orbit(loss, icl.Descent(0.1, icl.Adam()), models)
    assert np.isnan(none).all()  # no map


def test_an_orbit_past_stability_is_periodic_then_chaotic_then_gone():
    task, found = icl.Task(spectrum=[1.0], context=8), []
    init = icl.Separate.initialiser(task, heads=1, scale=0.5)
    for rate in (0.5, 0.9, 3.0):
        loss, dynamics, _ = scalar(rate)
        run = icl.sweep(loss, init, dynamics, until=2000, seeds=1, final=["weights"])
        losses, exponent = orbit(loss, dynamics, final_models(run, init))
        found.append((regimes(run["loss"].values, losses, exponent)[0], float(exponent[0])))
    kinds = [kind for kind, _ in found]
    assert kinds[-1] == "divergent"
    assert {"periodic", "chaotic"} & set(kinds)
    for kind, exponent in found[:-1]:
        assert (exponent > 0) == (kind == "chaotic")


def test_the_atlas_reads_errors_where_they_are():
    example = Example.read("atlas")
    heavy = {"optimiser": "momentum", "momentum": 0.5, "rate": 0.01}
    cases = [{"label": "none"}, {"label": "rate", "rate": 0.7}, {"label": "momentum", **heavy}]
    design = example.design({"cases": cases, "seeds": 2})
    said = np.array([[[10.0, 20.0]] * 2] * 3)
    measured = said * np.array([1.0, 1.5, 1.1])[:, None, None]
    measured[2] *= 0.5 / (2 * 0.01)  # in steps
    store = xr.Dataset(
        {
            "predicted_times": (("case", "seed", "drop_number"), said),
            "drop_times": (("case", "seed", "drop_number"), measured),
            "lyapunov": (("case", "seed"), [[0.0, 0.0], [0.3, 0.4], [np.nan, np.nan]]),
            "regime": (("case", "seed"), [["monotone"] * 2, ["chaotic"] * 2, [""] * 2]),
        },
        {"label": ("case", [case["label"] for case in cases])},
    )
    answer: ExampleAnswer = atlas.answer(example, store, design)
    np.testing.assert_allclose(answer.data["error"], [0, 0.5, 0.1], atol=1e-12)
    assert "chaotic, exponent 0.350" in answer.lines[1]
    atlas.figure(example, answer)


PLANNED = Settings(spectrum=(1.0, 0.5), context=8, heads=3, scale=0.05, rate=0.1, steps=1500)


@pytest.mark.long
def test_a_plan_gives_the_probabilities_that_runs_have(capsys):
    given = ["plan", "--spectrum", "1,0.5", "--context", "8", "--heads", "3", "--scale", "0.05"]
    assert cli.main([*given, "--rate", "0.1", "--steps", "1500", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for said, error, seen, spread in zip(found["left"], found["standard_error"],
            found["check"]["left"], found["check"]["standard_error"], strict=True):  # fmt: skip
        assert abs(said - seen) < 4 * np.hypot(error, spread) + 0.02  # the limit is that of w -> 0
    assert cli.main([*given, "--rate", "0.1", "--steps", "1500"]) == 0
    assert "--scale" in capsys.readouterr().out


@pytest.mark.slow
def test_the_scale_that_a_plan_asks_for_makes_it():
    found = plan(PLANNED, 0.9)
    other = dataclasses.replace(PLANNED, scale=found["scale"])
    assert law(other).left(found["time"])[-1] == pytest.approx(0.9, abs=0.005)
    longer = dataclasses.replace(PLANNED, steps=3 * 1500)
    assert plan(longer, 0.9)["left"][-1] > found["left"][-1]


def test_a_plan_needs_steps_and_a_theory():
    with pytest.raises(ValueError, match="give steps"):
        plan(dataclasses.replace(PLANNED, steps=None), 0.9)
    softmax = dataclasses.replace(PLANNED, model="softmax-merged", rate=None)
    with pytest.raises(ValueError, match="no theory predicts"):
        plan(softmax, 0.9)
