"""What objects look like in a notebook, and what files say of themselves."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest

import iclflow as icl
from iclflow import cli
from iclflow.results.provenance import content_key


@pytest.fixture(scope="module")
def task():
    return icl.Task(spectrum=[0.4, 0.3], context=8)


@pytest.fixture(scope="module")
def init(task):
    return icl.Separate.initialiser(task, heads=2, scale=0.1)


def test_settings_show_their_numbers(task, init):
    assert repr(task) == "Task(spectrum=[0.4, 0.3], context=8)"
    turned = jnp.array([[0.6, -0.8], [0.8, 0.6]])
    other = icl.Task(
        [0.4, 0.3], 8, rotation=turned, inputs=icl.Sphere(), label_noise=0.1, lengths=[4]
    )
    said = "rotation=[[0.6, -0.8], [0.8, 0.6]], inputs=Sphere(), label_noise=0.1, lengths=(4,)"
    assert repr(other) == f"Task(spectrum=[0.4, 0.3], context=8, {said})"
    many = icl.Task(np.linspace(1, 0.1, 10), 8)
    assert repr(many) == "Task(spectrum=[1, 0.9, 0.8, …, 0.1] (10), context=8)"
    assert repr(icl.Descent(0.2)) == "Descent(rate=0.2, optimiser=GradientDescent())"
    assert repr(init).startswith("SeparateInitialiser(scale=0.1, heads=2, ")
    seen = []
    jax.make_jaxpr(lambda rate: (seen.append(repr(icl.Descent(rate))), rate)[1])(0.1)
    assert seen == ["Descent(rate=f64[], optimiser=GradientDescent())"]


def test_models_show_their_sizes_and_norms(task, init):
    model = init(jax.random.key(0))
    norms = {name: np.linalg.norm(array) for name, array in model.weights().items()}
    listed = ", ".join(f"|{name}|={norm:.4g}" for name, norm in norms.items())
    assert repr(model) == f"Separate(D=2, heads=2, rank=1, {listed})"
    assert "<td>heads</td><td>2</td>" in model._repr_html_()
    deep = icl.Layers.initialiser(task, layers=3, heads=2, scale=0.1)(jax.random.key(0))
    assert repr(deep).startswith("Layers(D=2, layers=3, heads=2, rank=1, |values|=")
    many = jax.vmap(init)(jax.random.split(jax.random.key(0), 3))
    assert repr(many).startswith("Separate(D=2, |values|=")  # three models at once
    seen = []
    jax.make_jaxpr(lambda m: (seen.append(repr(m)), m.values)[1])(model)
    assert seen == ["Separate(D=2, heads=2, rank=1, values=f64[2,1,1], keys=f64[2,1,2], "
                    "queries=f64[2,1,2])"]  # fmt: skip


def test_losses_show_how_many_prompts_they_have(task):
    key, prompts = jax.random.key(0), icl.Sequences.sample(task, 1200, jax.random.key(0))
    assert repr(prompts) == "Sequences(P=1,200, context=8, D=2)"
    assert repr(icl.Features.sample(task, 12, key)) == "Features(P=12, D=2, map=FullFeatures())"
    moments = icl.Moments.of(prompts.prompts)
    said = f"features=12, map=FullFeatures(), power={moments.power:.6g}"
    assert repr(moments) == f"Moments(P=1,200, {said})"
    assert "<td>P</td><td>1,200</td>" in moments._repr_html_()
    assert repr(icl.Population(task)) == "Population(spectrum=[0.4, 0.3], context=8, power=0.7)"
    small = repr(icl.Minibatch(icl.Features.sample(task, 12, key), 4))
    assert small == "Minibatch(whole=Features(P=12, D=2, map=FullFeatures()), size=4)"


def test_a_run_and_a_prediction_show_their_numbers(task, init):
    model, loss = init(jax.random.key(0)), icl.Population(task)
    run = icl.simulate(loss, model, icl.Descent(0.2), until=20, saveat=[0, 10, 20])
    first, last = float(run.loss[0]), float(run.loss[-1])
    fell = f"steps 0 to 20, loss {first:.6g} to {last:.6g}, reached the end (20)"
    assert repr(run) == f"Trajectory(3 points, {fell}, recorded: loss)"
    page = run._repr_html_()
    assert page.startswith("<b>Trajectory: reached the end, at 20</b><table>")
    assert page.count("<tr>") == 4
    several = jax.vmap(lambda key: icl.simulate(loss, init(key), icl.Descent(0.2), until=2))(
        jax.random.split(jax.random.key(0), 2)
    )
    assert several._repr_html_().startswith("<pre>Trajectory(")
    theory = icl.theory.predict(task, model)
    assert repr(theory).startswith(f"Prediction(times t/τ = [{theory.times[0]:.6g}")
    assert theory._repr_html_().count("<tr>") == 1 + len(theory.times)


def test_stages_show_a_table():
    step = np.geomspace(1, 1000, 200)
    stages = icl.measures.find_stages(step, 1 / (1 + (step / 30) ** 6), resamples=0)
    page = stages._repr_html_()
    assert f"drops at: {stages.drops[0].time:.6g}<table>" in page
    assert page.count("<tr>") == 1 + len(stages.plateaus)


def test_figures_show_without_a_backend(task, init):
    runs = icl.sweep(task, init, icl.Descent(0.2), until=4, seeds=2)
    before = plt.get_fignums()
    assert icl.plots.loss(runs)._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before  # nothing is left to pyplot


def test_a_notebook_takes_the_picture(task, init):
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not needed")
    figure = icl.plots.loss(icl.sweep(task, init, icl.Descent(0.2), until=4, seeds=1))
    assert "image/png" in formatters.DisplayFormatter().format(figure)[0]


def test_files_name_their_convention_and_the_rate_that_was_chosen(capsys, tmp_path):
    path = tmp_path / "run.nc"
    few = (
        "--context",
        "8",
        "--heads",
        "2",
        "--scale",
        "0.1",
        "--steps",
        "9",
        "--spectrum",
        "1,0.5",
    )
    assert cli.main(["simulate", *few, "--out", str(path)]) == 0
    capsys.readouterr()
    runs = icl.load(path)
    assert runs.attrs["Conventions"] == "CF-1.11"
    assert "2 * rate * step" in runs.attrs["clock"]
    np.testing.assert_allclose(runs["time"][-1], 2 * runs.attrs["rate"] * runs["step"][-1])


def test_an_optimiser_of_optax(task, init):
    model, loss = init(jax.random.key(0)), icl.Population(task)

    def train(optimiser, rate=1e-2):
        return icl.simulate(loss, model, icl.Descent(rate, optimiser), until=20)

    np.testing.assert_array_equal(train(optax.adamw).loss[:1], train(icl.Adam()).loss[:1])
    named = functools.partial(optax.adam, b1=0.5)
    ours, theirs = train(icl.Adam(b1=0.5)), train(named)
    np.testing.assert_allclose(theirs.loss, ours.loss, rtol=1e-12)
    assert not theirs.timed  # its steps are none of gradient flow's
    assert theirs.time[-1] == theirs.step[-1]
    keys = [content_key(icl.Descent(1e-2, functools.partial(optax.adam, b1=b))) for b in (0.5, 0.6)]
    assert keys[0] != keys[1]  # results of the two are not taken for each other
    for wrong, complaint in (
        (optax.adam(1e-3), "has a rate inside already"),
        (3, "must be one of iclflow"),
    ):
        with pytest.raises(ValueError, match=complaint):
            icl.Descent(1e-2, wrong)


@pytest.mark.parametrize("command", [["--help"], ["theory", "--help"]])
def test_a_reader_that_has_enough_ends_the_program_quietly(command):
    program = [sys.executable, "-m", "iclflow", *command]
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdout=pipe, stderr=pipe, env=buffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before a word is read, as `head -0` would
        assert process.stderr.read() == b""
        assert process.wait() == 141
