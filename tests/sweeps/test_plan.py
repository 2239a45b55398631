"""How descent ends where it does not settle, and with what probability a run gets there."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow import cli
from iclflow.dynamics import Descent
from iclflow.models import draw_models
from iclflow.runs.compute import final_models
from iclflow.study.study import Settings
from iclflow.sweeps.plan import law, plan
from iclflow.sweeps.summaries import STEPS, orbit, regimes


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
