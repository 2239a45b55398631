import argparse
import json
import re
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.checkpoints import read_curve
from iclflow.cli.diagnose import theory_of
from iclflow.diagnosis import (
    diagnose_curve,
    diagnose_run,
    diagnose_runs,
    measure_along,
    stage_rows,
)
from iclflow.diagnosis.identify import LEAST_SQUARES
from iclflow.models import Separate
from iclflow.results.netcdf import load
from iclflow.results.netcdf import save as store
from iclflow.runs.record import CURVATURE, CURVATURE_TIMES, recorded_models
from iclflow.study.study import Settings, Study
from iclflow.tasks.task import Task
from iclflow.theory import nearest_fixed_point, plateau_losses
from iclflow.theory.drops.staircase import staircase
from tests.helpers.commands import call, refused
from tests.helpers.written_checkpoints import FAMILIES, save, write_safetensors

SPECTRUM = (0.5, 0.3, 0.15)


@pytest.fixture(scope="module")
def staircase_file(tmp_path_factory):
    """A rank-one run through all its plateaus."""
    settings = Settings(
        spectrum=SPECTRUM, context=31, heads=3, scale=0.1, steps=6000, seed=2,
        record=("loss", "weights"), save="mixed:120", rotate=True,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "run.nc"
    return store(Study.of(settings).run(), path)


@pytest.mark.long
def test_plateau_m_is_component_regression_and_the_end_least_squares(staircase_file):
    found = diagnose_run(load(staircase_file), sequences=200)
    levels = plateau_losses(Settings(spectrum=SPECTRUM, context=31).task())
    names = found["stage_algorithm"].values.tolist()
    assert names == ["zero", "PCR-1", "PCR-2", LEAST_SQUARES]
    np.testing.assert_allclose(found["level"], levels, atol=2e-3)
    assert found["stage_margin"].values.min() > 0.8
    # rank m on plateau m, and its heads on their eigenvectors
    middle = [(a + b) / 2 for a, b in zip(found["start"], found["end"], strict=True)]
    for m in (1, 2):
        there = found.sel(time=middle[m], method="nearest")
        assert abs(float(there["effective_rank"]) - m) < 0.15
        assert float(there["alignment"][:m].min()) > 0.99
    assert float(found["alignment"][-1].min()) > 0.99


def test_one_line_for_each_stage(capsys, staircase_file, tmp_path):
    plot = tmp_path / "run.png"
    arguments = ("diagnose", staircase_file, "--samples", 200)
    code, out, err = call(capsys, *arguments, "--plot", plot)
    assert code == 0, err
    lines = out.splitlines()
    titles = ["stage", "first step", "last step", "first t/τ", "last t/τ", "loss", "margin"]
    assert [title for title in re.split(r" {2,}| (?=first|last)", lines[0]) if title] == [
        *titles, "algorithm"
    ]  # fmt: skip
    assert [line.split()[7] for line in lines[1:5]] == ["zero", "PCR-1", "PCR-2", "least"]
    first, last = lines[4].split()[1:3]
    assert (int(first) < 6000, last) == (True, "6000")  # as many steps as were asked for
    assert lines[-1].startswith("margin: ")
    assert plot.stat().st_size > 10_000
    code, out, err = call(capsys, *arguments, "--json", "--test-scale", 2, "--test-context", 60)
    assert code == 0, err
    found = json.loads(out)
    (run,) = found["runs"]
    assert run["seed"] == 2
    assert [row["algorithm"] for row in run["stages"]] == [
        "zero",
        "PCR-1",
        "PCR-2",
        LEAST_SQUARES,
    ]
    assert set(run["stages"][0]) >= {"start", "end", "level", "algorithm", "margin"}
    rate = float(Study.of(Settings.of_run(load(staircase_file).attrs)).dynamics.rate)
    for row in run["stages"]:  # the two clocks are one
        assert row["end"] == pytest.approx(2 * rate * row["end_step"], abs=2 * rate)


def test_quantities_along_a_run(staircase_file):
    """Against the saved weights themselves and the dense Hessian at the end."""
    runs = load(staircase_file)
    chosen = np.append(np.arange(0, runs.sizes["time"] - 1, 40), runs.sizes["time"] - 1)
    runs = runs.isel(time=chosen)
    found, run = measure_along(runs), runs.isel(seed=0)
    k, q, v = (run[name].values for name in ("keys", "queries", "values"))
    norms = (k**2).sum((2, 3)), (q**2).sum((2, 3)), v**2
    gaps = [norms[0] - norms[1], norms[0] - norms[2]]
    drift = np.max([np.abs(gap - gap[:1]).max(axis=1) for gap in gaps], axis=0)
    np.testing.assert_allclose(found["conserved_drift"], drift, atol=1e-14)
    assert 0 < drift[-1] < 0.05
    study = Study.of(
        Settings(spectrum=SPECTRUM, context=31, heads=3, scale=0.1, seed=2, rotate=True)
    )
    shapes = [a[-1].shape for a in (v[:, :, None, None], k, q)]
    sizes = np.cumsum([np.prod(shape) for shape in shapes])[:-1]

    def loss(flat):
        parts = [a.reshape(s) for a, s in zip(jnp.split(flat, sizes), shapes, strict=True)]
        return study.loss(Separate(*parts))

    last = jnp.concatenate([v[-1].ravel(), k[-1].ravel(), q[-1].ravel()])
    dense = np.linalg.eigvalsh(np.asarray(jax.jit(jax.hessian(loss))(last)))[::-1]
    np.testing.assert_allclose(found["top_eigenvalues"][-1], dense[:3], rtol=1e-6)
    rate = float(study.dynamics.rate)
    np.testing.assert_allclose(found["rate_times_sharpness"][-1], rate * dense[0], rtol=1e-6)
    gradient = np.linalg.norm(np.asarray(jax.jit(jax.grad(loss))(last)))
    np.testing.assert_allclose(found["gradient_norm"][-1], gradient, rtol=1e-6, atol=1e-15)
    assert found["fixed_point_modes"].values.tolist() == sorted(found["fixed_point_modes"].values)
    assert int(found["fixed_point_modes"][-1]) == 3
    assert float(found["fixed_point_distance"][-1]) < 0.02


def test_a_run_records_what_is_measured_after_the_fact():
    """Every quantity by name in the run, and again from its saved weights: the same numbers."""
    names = ("conserved_drift", "gradient_norm", "sharpness", "top_eigenvalues")
    names += ("rate_times_sharpness", "fixed_point_distance")
    settings = Settings(
        spectrum=SPECTRUM, context=31, heads=3, scale=0.3, steps=900, rate=0.3, seeds=2,
        sequences=400, record=("loss", "weights", *names), save="log:40",
    )  # fmt: skip
    runs = Study.of(settings).run()
    assert runs.sizes["time"] > CURVATURE_TIMES
    for seed in (0, 1):
        run, along = runs.sel(seed=seed), measure_along(runs, seed=seed)
        kept = np.isfinite(run["sharpness"].values)
        assert kept.sum() == CURVATURE_TIMES
        assert kept[0]
        assert kept[-1]
        for name in names:
            here = kept if name in CURVATURE else np.ones_like(kept)
            assert run[name].dims == along[name].dims, name
            assert run[name].attrs == along[name].attrs, name
            np.testing.assert_allclose(
                run[name].values[here], along[name].values[here], rtol=1e-5, atol=1e-12
            )
    # the trained zero blocks are left out of the distance to a fixed point
    models = recorded_models(runs.isel(seed=1), settings.initialiser(settings.task()))
    near = [
        nearest_fixed_point(jax.tree.map(lambda a, i=i: a[i], models).reduce(), settings.task())
        for i in (0, 20, -1)
    ]
    np.testing.assert_allclose(
        runs["fixed_point_distance"][1, [0, 20, -1]], [float(n.distance) for n in near], rtol=1e-9
    )


@pytest.mark.slow
def test_the_in_weight_run_shows_the_fixed_task_first(capsys, tmp_path):
    """After its first drop it knows w* by heart and nothing in context; least squares follows."""
    path = tmp_path / "run.nc"
    settings = Settings(
        model="merged", spectrum="white", dim=4, fixed_fraction=0.6, heads=8, scale=0.001,
        steps=2500, record=("loss", "weights"), save="mixed:80",
    )  # fmt: skip
    store(Study.of(settings).run(), path)
    code, out, err = call(capsys, "diagnose", path, "--samples", 300, "--json")
    assert code == 0, err
    (run,) = json.loads(out)["runs"]
    start, first, last = run["stages"]
    assert start["algorithm"] == "zero"
    assert first["algorithm"] == "in-weight w*, shrunk to E[w]"
    assert first["margin"] > 0.4
    assert last["algorithm"] == LEAST_SQUARES
    # against losses that know nothing of the candidates, zero being 1 on either test
    assert first["in_weight_loss"] < 0.2
    assert first["in_context_loss"] > 0.95
    assert last["in_context_loss"] < 0.25


@pytest.mark.slow
def test_all_seeds_of_a_file_are_padded_and_labelled(capsys, tmp_path):
    settings = Settings(
        spectrum=(0.6, 0.3), context=31, heads=2, scale=0.05, steps=2500, seeds=2, seed=4,
        record=("loss", "weights"), save="mixed:80",
    )  # fmt: skip
    runs = Study.of(settings).run()
    # the second run stops on its first plateau
    stopped = runs["loss"].where((runs["seed"] == 4) | (runs["step"] < 60))
    runs = runs.assign(loss=stopped)
    both = diagnose_runs(runs, sequences=100)
    assert both["start"].dims == ("seed", "stage")
    assert both["stage_algorithm"].dims == ("seed", "stage")
    assert both["stage_count"].values.tolist() == [3, 1]
    assert both["level"][1, 1:].isnull().all()
    assert both["stage_algorithm"].values[1].tolist() == ["zero", "", ""]
    alone = diagnose_run(runs, seed=5, sequences=100)
    assert stage_rows(both.sel(seed=5)) == stage_rows(alone)
    path, plot, saved = (tmp_path / name for name in ("run.nc", "runs.png", "found.nc"))
    store(runs, path)
    arguments = ("diagnose", path, "--samples", 100, "--json")
    code, out, err = call(capsys, *arguments, "--plot", plot, "--out", saved)
    assert code == 0, err
    found = json.loads(out)["runs"]
    assert [run["seed"] for run in found] == [4, 5]
    assert [len(run["stages"]) for run in found] == [3, 1]
    assert plot.stat().st_size > 10_000
    assert load(saved)["level"].dims == ("seed", "stage")
    # another question does not overwrite the answer, and is refused before any work
    assert "holds something else" in refused(capsys, *arguments, "--seed", 4, "--out", saved)


def test_a_run_without_weights_shows_its_loss_and_says_how_to_record_them(capsys, tmp_path):
    path = tmp_path / "run.nc"
    settings = Settings(spectrum=(0.5, 0.3), heads=2, steps=20, record=("loss",))
    store(Study.of(settings).run(), path)
    code, out, err = call(capsys, "diagnose", path)
    assert code == 0
    assert "plateau 0 of the theory" in out
    assert "--record loss,weights" in err
    assert "there is no seed 7" in refused(capsys, "diagnose", path, "--seed", 7)
    assert "there is no file" in refused(capsys, "diagnose", tmp_path / "none.nc")


# --- loss curves


def write_curve(path, steps, losses):
    rows = [f"{s:g},{loss:.9g}" for s, loss in zip(steps, losses, strict=True)]
    path.write_text("\n".join(["step,loss", *rows]))


@pytest.fixture(scope="module")
def stopped_curve():
    """A predicted loss curve of known drops, cut in the middle of plateau 1, on rate 0.1."""
    task = Task(SPECTRUM, 31)
    init = Separate.initialiser(task, heads=3, scale=0.01)
    stairs = staircase(task, init(jax.random.key(11)), probes=0)
    times = stairs.time[stairs.time < (stairs.times[0] + stairs.times[1]) / 2]
    return task, init, stairs, times / 0.2, stairs.at(times).loss


def test_the_next_drop_of_the_start_itself(stopped_curve):
    """With the true start among the starts, and alone, the prediction is its own drop."""
    task, init, stairs, steps, losses = stopped_curve
    found = diagnose_curve(steps, losses, task=task, starts=[init(jax.random.key(11))], rate=0.1)
    assert found.attrs["now"] == 1
    assert found["plateau_number"].values.tolist() == [0, 1]
    assert np.abs(found["gap"]).max() < 1e-3
    np.testing.assert_allclose(found["drop_steps"][:, 1], stairs.times / 0.2, rtol=1e-6)
    np.testing.assert_allclose(found["predicted"], stairs.times[1] / 0.2, rtol=0.01)


def test_the_last_plateau_has_no_next_drop(stopped_curve):
    task, init, stairs, _, _ = stopped_curve
    times = stairs.time
    losses = stairs.at(times).loss
    found = diagnose_curve(times, losses, task=task, starts=[init(jax.random.key(11))], rate=0.5)
    assert found.attrs["now"] == 3
    assert found.sizes["next"] == 0


def test_curves_that_match_no_level_or_are_nan_get_no_prediction(stopped_curve):
    task, init, _, steps, losses = stopped_curve
    theory = {"task": task, "starts": [init(jax.random.key(11))], "rate": 0.1}
    levels = plateau_losses(task)
    other = losses + 0.5 * float(levels[0] - levels[1])  # every plateau halfway between two levels
    found = diagnose_curve(steps, other, **theory)
    assert not found["matches"].values.any()
    assert "now" not in found.attrs
    assert "predicted" not in found
    assert diagnose_curve(steps, losses, **theory)["matches"].values.all()
    with pytest.raises(ValueError, match="at least 3 finite points, got 0"):
        diagnose_curve(steps, np.full_like(losses, np.nan), **theory)


def test_a_curve_on_the_command_line(capsys, stopped_curve, tmp_path):
    _, _, _, steps, losses = stopped_curve
    path, plot = tmp_path / "loss.csv", tmp_path / "loss.png"
    write_curve(path, steps, losses)
    code, out, err = call(capsys, "diagnose", path)
    assert code == 0, err
    assert out.count("stage") == 2
    task = ("--spectrum", "0.5,0.3,0.15", "--context", 31, "--heads", 3, "--rate", 0.1)
    start = ("--init", 0.01, "--starts", 6)
    code, out, err = call(capsys, "diagnose", path, *task, *start, "--plot", plot)
    assert code == 0, err
    assert "now on plateau 1 of 3" in out
    assert "next drop: " in out
    assert plot.stat().st_size > 10_000


def test_published_rates_and_inits():
    """One 1/N apart: rate times N^(2/3), weights times N^(1/3)."""
    args = argparse.Namespace(
        spectrum=SPECTRUM, context=31, heads=3, rank=1, scale=0.02, rate=0.02, starts=200,
        convention="published", model="separate",
    )  # fmt: skip
    _, starts, rate = theory_of(args)
    assert rate == pytest.approx(0.02 * 31 ** (2 / 3))
    values = np.stack([np.asarray(model.values).ravel() for model in starts])
    assert values.shape == (200, 3)
    assert np.std(values) == pytest.approx(0.02 * 31 ** (1 / 3), rel=0.1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "no column for the step (step, global_step"),
        ("step,loss\n0,1\n1,x\n2,1\n", "line 3"),
        ("step,loss\n0,1\n", "at least 3 points"),
        (
            "step,train/loss,train_loss\n0,1,1\n",
            "2 columns may be the loss (train/loss, train_loss)",
        ),
        ("step,error\n0,1\n", "Choose one with --column; there are error"),
        ("step,loss\n0,1\n0,2\n0,3\n", "at least 3 steps, got 1"),
    ],
)
def test_broken_curves(capsys, tmp_path, text, complaint):
    path = tmp_path / "loss.csv"
    path.write_text(text)
    assert complaint in refused(capsys, "diagnose", path)


def test_a_curve_needs_the_task_for_its_theory(capsys, tmp_path):
    path = tmp_path / "loss.csv"
    path.write_text("Step, Loss\n0,1\n1,1\n2,0.5\n")
    assert read_curve(path)[1].tolist() == [1.0, 1.0, 0.5]
    assert "--spectrum" in refused(capsys, "diagnose", path, "--rate", 0.1)
    both = refused(capsys, "diagnose", path, "--spectrum", "1,0.5", "--rate", 0.1)
    assert "both --rate and --scale" in both


# --- checkpoints


@pytest.fixture
def series(tmp_path):
    """Three steps of a small model in safetensors."""
    for step in (0, 10, 100):
        tensors, config = FAMILIES["GPT-NeoX"](np.random.default_rng(step))
        save(tmp_path / "run" / f"step{step}", tensors, config)
    return tmp_path / "run"


def test_checkpoints(capsys, series, tmp_path):
    plot, out = tmp_path / "heads.png", tmp_path / "heads.nc"
    code, text, err = call(capsys, "diagnose", series, "--json", "--plot", plot, "--out", out)
    assert code == 0, err
    found = json.loads(text)
    assert found["steps"] == [0, 10, 100]
    assert (found["layers"], found["heads"]) == (2, 4)
    assert found["problems"] == []
    assert plot.stat().st_size > 10_000
    data = load(out)
    assert data["norm"].dims == ("step", "circuit", "layer", "head")
    pattern = f"{series}/step*/model.safetensors"
    code, text, err = call(capsys, "diagnose", pattern, "--measures", "norm", "--subspace", 2)
    assert code == 0, err
    assert "3 steps from 0 to 100" in text
    # the same command again is the same result; another does not overwrite it
    assert call(capsys, "diagnose", series, "--out", out)[0] == 0
    other = refused(capsys, "diagnose", series, "--measures", "norm", "--out", out)
    assert "holds something else" in other


def damage(kind, folder):
    """Break one checkpoint; what the complaint must name besides the file."""
    file = folder / "model.safetensors"
    tensors, _ = FAMILIES["GPT-NeoX"](np.random.default_rng(0))
    part = "dense" if kind == "missing" else "query_key_value"
    broken = f"gpt_neox.layers.1.attention.{part}.weight"
    if kind == "truncated":
        file.write_bytes(file.read_bytes()[:-500])
        return "truncated or not a safetensors file"
    if kind == "missing":
        del tensors[broken]
    else:
        tensors[broken] = tensors[broken][:, :-1]
    write_safetensors(file, tensors)
    return broken if kind == "missing" else "gpt_neox.layers.1.attention."


@pytest.mark.parametrize("kind", ["truncated", "missing", "mixed"])
def test_a_broken_checkpoint_is_named_and_the_rest_kept(capsys, series, kind):
    tensor = damage(kind, series / "step10")
    line = refused(capsys, "diagnose", series)
    assert str(series / "step10") in line
    assert tensor in line
    code, out, err = call(capsys, "diagnose", series, "--keep-going", "--json")
    assert code == 1  # a result, with parts missing
    assert json.loads(out)["steps"] == [0, 100]
    problems = [line for line in err.splitlines() if "warning: " not in line]
    assert len(problems) == 1
    assert tensor in problems[0]


def test_what_cannot_be_diagnosed(capsys, tmp_path):
    (tmp_path / "step1.pt").write_bytes(b"x")
    assert "safetensors" in refused(capsys, "diagnose", tmp_path / "step1.pt")
    assert "name a run" in refused(capsys, "diagnose")
    assert "--revisions step0,step512, or --files" in refused(capsys, "diagnose", "--hf", "a/b")
    assert "not both" in refused(capsys, "diagnose", "x", "--hf", "a/b", "--revisions", "step0")
    assert "no such file" in refused(capsys, "diagnose", tmp_path / "nothing")
    assert "a run: one file" in refused(capsys, "diagnose", "a.nc", "b.nc")


def test_revisions_of_the_hub(capsys, series, monkeypatch):
    """The download calls answered from a folder: the same result as reading it."""

    def download(repository, name, *, revision, token, local_dir):
        return shutil.copy(series / revision / name, local_dir)

    def listing(repository, *, revision, token):
        return [file.name for file in (series / revision).iterdir()]

    hub = types.SimpleNamespace(
        hf_hub_download=download,
        list_repo_files=listing,
        hf_hub_url=lambda repository, name, *, revision: (series / revision / name).as_uri(),
        build_hf_headers=lambda token: {},
    )
    monkeypatch.setattr("iclflow.checkpoints.hub._hub", lambda part="": hub)
    remote = ("--hf", "someone/model", "--revisions", "step0,step10,step100", "--json")
    _, out, err = call(capsys, "diagnose", *remote)
    assert err == ""
    _, local, _ = call(capsys, "diagnose", series, "--json")
    assert json.loads(out)["last"] == json.loads(local)["last"]
