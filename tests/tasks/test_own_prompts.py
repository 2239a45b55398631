"""Prompts that somebody has, from arrays and files, in the library and in every command."""

import json
import re

import jax
import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow.losses.select import select
from iclflow.runs.record import FixedPointDistance, PlateauDistance
from iclflow.study.study import Settings, Study
from iclflow.sweeps.design import Design
from iclflow.sweeps.design import run as run_design
from tests.helpers.commands import call

COUNT, PAIRS, SIZE = 60, 9, 2


@pytest.fixture(scope="module")
def arrays():
    """Prompts of a non-linear teacher, which no task of the library is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, PAIRS + 1, SIZE)) * [1.0, 0.6]
    return x, np.tanh(x @ rng.normal(size=(COUNT, SIZE, 1)))[..., 0]


@pytest.fixture(scope="module")
def folder(arrays, tmp_path_factory):
    """The same prompts in all forms, and forms that are none."""
    (x, y), path = arrays, tmp_path_factory.mktemp("prompts")
    np.savez(path / "mine.npz", x=x, y=y)
    np.savez_compressed(path / "packed.npz", x=x, y=y[..., None])
    np.save(path / "x.npy", x)
    np.save(path / "y.npy", y)
    xr.Dataset({"x": (("p", "n", "d"), x), "y": (("p", "n"), y)}).to_netcdf(
        path / "mine.nc", engine="h5netcdf"
    )
    square = {"x": (("p", "n", "d"), x[: PAIRS + 1]), "y": (("n", "p"), y[: PAIRS + 1].T)}
    xr.Dataset(square).to_netcdf(path / "turned.nc", engine="h5netcdf")
    bad = y.copy()
    bad[7, 2] = np.nan
    np.savez(path / "nan.npz", x=x, y=bad)
    np.savez(path / "huge.npz", x=x * 1e200, y=y)
    np.savez(path / "disagree.npz", x=x, y=y[:-1])
    np.savez(path / "text.npz", x=x.astype(str), y=y)
    np.savez(path / "single.npz", x=x[:, :1], y=y[:, :1])
    np.savez(path / "names.npz", inputs=x, labels=y)
    np.savez(path / "columns.npz", x=np.asfortranarray(x), y=y)
    (path / "junk.npz").write_text("no archive")
    (path / "mine.csv").write_text("1,2,3")
    return path


def literal_moments(x, y):
    """E[y²], E[y φ] and E[φφᵀ] of φ = β x_qᵀ with β = Σ y x/N, in plain NumPy (Q1)."""
    beta = np.einsum("pn,pnd->pd", y[:, :-1], x[:, :-1]) / (x.shape[1] - 1)
    phi = np.einsum("pd,pc->pdc", beta, x[:, -1]).reshape(len(x), -1)
    return np.mean(y[:, -1] ** 2), y[:, -1] @ phi / len(x), phi.T @ phi / len(x)


@pytest.mark.parametrize("name", ["mine.npz", "packed.npz", "mine.nc", "x.npy,y.npy"])
def test_a_file_is_read_in_pieces_and_has_the_moments_of_its_prompts(
    arrays, folder, name, monkeypatch
):
    monkeypatch.setattr("iclflow.tasks.own_prompts.BATCH_BYTES", 20 * 8 * (PAIRS + 1) * (SIZE + 2))
    prompts = icl.Prompts.load(",".join(str(folder / part) for part in name.split(",")))
    assert (prompts.count, prompts.context, prompts.size, prompts.outputs) == (
        COUNT,
        PAIRS,
        SIZE,
        1,
    )
    assert len(list(prompts)) == 3
    seen = []
    loss = icl.Moments.of(
        prompts, features=icl.ReducedFeatures(), progress=lambda *done: seen.append(done)
    )
    assert seen == [(20, COUNT), (40, COUNT), (60, COUNT)]
    power, cross, second = literal_moments(*arrays)
    np.testing.assert_allclose(loss.power, power, rtol=1e-12)
    np.testing.assert_allclose(loss.cross[0], cross, rtol=0, atol=1e-14)
    np.testing.assert_allclose(loss.second, second, rtol=0, atol=1e-14)


def test_arrays_lengths_and_targets_are_taken(arrays):
    x, y = arrays
    short = icl.Prompts(x, y, lengths=[4])
    cut = icl.Prompts(x[:, :5], y[:, :5])
    one, other = (icl.Moments.of(p, features=icl.ReducedFeatures()) for p in (short, cut))
    np.testing.assert_allclose(one.second, other.second, rtol=1e-12)
    asked = icl.Prompts(x, y, 2 * y)
    twice = icl.Moments.of(asked, features=icl.ReducedFeatures())
    np.testing.assert_allclose(twice.power, 4 * literal_moments(x, y)[0], rtol=1e-12)
    with pytest.raises(ValueError, match=r"^context lengths must lie between 1 and the 9 pairs"):
        icl.Prompts(x, y, lengths=[10])
    with pytest.raises(ValueError, match="have their own lengths"):
        icl.Sequences.of(short, lengths=(3,))


def test_an_initialiser_takes_sizes_prompts_or_a_loss(arrays):
    prompts = icl.Prompts(*arrays)
    task = icl.Task([1.0, 0.5], context=9)
    losses = [level.of(prompts) for level in (icl.Moments, icl.Features, icl.Sequences)]
    losses += [icl.Statistics.of(prompts), icl.Minibatch(losses[1], 4), icl.Population(task)]
    losses += [icl.Fresh(task, losses[-1], 4)]
    for source in (SIZE, (SIZE, 1), prompts, task, *losses):
        for kind in (icl.Separate, icl.Merged, icl.MLP, icl.Softmax, icl.Layers):
            found = kind.initialiser(source, heads=2, scale=0.1)(jax.random.key(0))
            assert found.dims() in (None, (SIZE, 1))
    for bad in ("four", None, (1, 2, 3), 2.5):
        with pytest.raises(ValueError, match=r"needs the sizes of a task, of prompts"):
            icl.Separate.initialiser(bad, heads=2, scale=0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nan.npz", "prompt number 7 "),
        ("disagree.npz", r"got x \(60, 10, 2\) and y \(59, 10\)"),
        ("text.npz", "x must be numbers"),
        ("single.npz", "at least one labelled pair and a query"),
        ("names.npz", "has inputs, labels, and no x"),
        ("columns.npz", "ascontiguousarray"),
        ("huge.npz", "up to 2e.51, and prompt number 0 "),
        ("turned.nc", "y has n, p; transpose y to the order of x"),
        ("junk.npz", "not an .npz file"),
        ("missing.npz", "there is no file"),
        ("mine.csv", "prompts come as .npz or .nc"),
        ("x.npy", "give both, x.npy,y.npy"),
    ],
)
def test_a_bad_file_of_prompts_gets_one_line_and_loses_nothing(
    folder, tmp_path, monkeypatch, capsys, name, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.nc").write_bytes(b"somebody's work")
    for arguments in (("simulate", "--out", "other.nc", "--steps", "10"), ("theory",)):
        code, out, err = call(capsys, *arguments, "--prompts", folder / name)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert re.search(said, err), err
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]


def test_the_theory_of_prompts_says_that_it_is_of_one_layer(folder, capsys):
    code, out, err = call(capsys, "theory", "--prompts", folder / "mine.npz", "--layers", "2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "covers one layer of attention" in err


def test_prompts_too_large_for_the_memory_are_refused_before_they_are_read(arrays, monkeypatch):
    monkeypatch.setattr("iclflow.tasks.checks.available_bytes", lambda *_: 10_000)
    prompts = icl.Prompts(*arrays)
    monkeypatch.setattr(icl.Prompts, "__iter__", lambda self: pytest.fail("it was read"))
    for level in (icl.Sequences, icl.Features, icl.Statistics):
        with pytest.raises(ValueError, match=r"60 sequences.* need .* are free"):
            level.of(prompts)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"spectrum": (0.5, 0.5)}, "spectrum does nothing with prompts"),
        ({"sequences": 10}, "sequences does nothing with prompts"),
        ({"vary": "data"}, "the prompts are given; vary weights"),
        ({"loss": "population"}, "given prompts have no population"),
        ({"record": ("population_loss",)}, "no population_loss"),
    ],
)
def test_what_prompts_say_themselves_is_not_said_again(folder, given, said):
    with pytest.raises(ValueError, match=said):
        Study.of(Settings(prompts=str(folder / "mine.npz"), **given))


def test_a_run_knows_its_file_of_prompts_again(arrays, folder, tmp_path):
    path = tmp_path / "mine.npz"
    path.write_bytes((folder / "mine.npz").read_bytes())
    settings = Settings(prompts=str(path))
    assert settings.source().count == COUNT
    np.savez(path, x=arrays[0], y=2 * arrays[1])
    with pytest.raises(ValueError, match="is not the file that this run was trained on"):
        settings.source()
    assert Settings(prompts=str(path)).prompts_digest != settings.prompts_digest


@pytest.mark.long
def test_the_shell_trains_on_prompts_with_their_theory(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = ("--prompts", folder / "mine.npz", "--heads", 3, "--scale", 0.02, "--json")
    run = ("simulate", *common, "--blocks", "frozen", "--out", "run.nc", "--plot", "run.png")
    code, out, err = call(capsys, *run, "--theory")
    assert code == 0, err
    found = json.loads(out)
    assert found["title"].endswith(f"{COUNT} prompts of 9 pairs from {folder / 'mine.npz'}")
    assert found["worst_drop_time_error"] < 0.02
    code, out, err = call(capsys, "theory", *common)
    theory = json.loads(out)
    np.testing.assert_allclose(theory["plateau_losses"], found["plateau_losses"], rtol=1e-9)
    power, cross, second = literal_moments(*(np.load(folder / f"{n}.npy") for n in "xy"))
    least = power - cross @ np.linalg.solve(second, cross)
    np.testing.assert_allclose(theory["least_squares_loss"], least, rtol=1e-9)
    np.testing.assert_allclose(theory["plateau_losses"][-1], least, rtol=1e-6)
    np.testing.assert_allclose(found["predicted_drop_times"][0], theory["drop_times"], rtol=1e-6)
    again = call(capsys, "simulate", "--from", "run.nc", "--steps", 10, "--json")
    assert again[0] == 0, again[2]


@pytest.mark.long
def test_a_design_trains_on_prompts_and_predicts_their_drops(folder, tmp_path):
    design = Design.of(
        prompts=str(folder / "mine.npz"), blocks="frozen", steps=6000, heads=3, rate=0.3,
        scale=[0.05, 0.1], summaries=["prediction_error"],
    )  # fmt: skip
    store = run_design(design, tmp_path / "s.zarr")
    assert np.nanmax(np.abs(store.prediction_error.values)) < 0.05
    assert np.isfinite(store.prediction_error.values).any()


def test_the_theory_of_a_drawn_sample_is_of_that_sample_also_in_batches():
    plain = {"spectrum": (0.6, 0.3), "context": 9, "sequences": 40, "rate": 0.1, "steps": 5}
    whole = Study.of(Settings(**plain, loss="features"))
    batches = Study.of(Settings(**plain, batch=4))
    (one,), (other,) = (list(study.sources([0])) for study in (whole, batches))
    assert one is whole.loss
    np.testing.assert_array_equal(one.statistic, other.statistic)
    assert isinstance(next(iter(Study.of(Settings(spectrum=(0.6,))).sources([0]))), icl.Task)


def test_distances_to_the_plateaus_of_moments_are_those_of_the_population():
    task = icl.Task([0.6, 0.3], context=20)
    known = FixedPointDistance.of(task)
    found = PlateauDistance.of(icl.population_moments(task))
    points = found.plateaus.reshape(-1, 2, 2)
    assert len(points) == 3
    for model in (icl.Separate.initialiser(task, heads=2, scale=0.4),):
        for seed in range(3):
            start = model(jax.random.key(seed))
            np.testing.assert_allclose(found(start), known(start), rtol=1e-5)
    merged = icl.Merged.initialiser(task, heads=1, scale=0.1)(jax.random.key(0))
    middle = merged.at_minimum(np.asarray(points[1])[None, None])
    # One drop: the plateau in the middle is no place that merged key and query visit.
    assert float(found(middle)) > 0.1
    np.testing.assert_allclose(found(middle), known(middle), rtol=1e-5)


def test_the_distance_to_plateaus_of_prompts_is_recorded_by_name(arrays):
    loss = icl.Moments.of(icl.Prompts(*arrays), features=icl.ReducedFeatures())
    model = icl.Separate.initialiser(loss, heads=3, scale=0.1)(jax.random.key(0))
    run = icl.simulate(
        loss, model, icl.Descent(0.3), saveat=[0, 5000], record=["loss", "fixed_point_distance"]
    )
    first, last = np.asarray(run["fixed_point_distance"])
    assert last < 1e-3 < first * 10
    choice = select(icl.Prompts(*arrays), model, COUNT)
    assert choice.of(icl.Prompts(*arrays)).dims() == (SIZE, 1)


def test_a_store_of_prompts_that_were_changed_is_refused_and_keeps_its_runs(arrays, tmp_path):
    x, y = arrays
    path, store = tmp_path / "mine.npz", tmp_path / "s.zarr"
    np.savez(path, x=x, y=y)

    def design():
        return Design.of(
            prompts=str(path), blocks="frozen", steps=5, heads=2, rate=0.1, record=["loss"]
        )

    first = run_design(design(), store).loss.values.copy()
    np.savez(path, x=x, y=2 * y)
    with pytest.raises(ValueError, match=r"a file of prompts was changed") as error:
        run_design(design(), store)
    assert "\n" not in str(error.value)
    np.savez(path, x=x, y=y)
    np.testing.assert_array_equal(run_design(design(), store).loss.values, first)


def test_prompts_without_labels_or_with_two_say_what_the_theory_lacks(arrays, folder, capsys):
    x, y = arrays
    np.savez(folder / "flat.npz", x=x, y=0 * y)
    np.savez(folder / "two.npz", x=x, y=np.stack([y, x[..., 0]], axis=-1))
    common = ("--heads", 2, "--steps", 3, "--theory")
    code, out, err = call(capsys, "simulate", "--prompts", folder / "flat.npz", *common)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "nothing can be learned from" in err
    two = ("simulate", "--prompts", folder / "two.npz", *common, "--rate", 0.01)
    code, out, err = call(capsys, *two)
    assert code == 0, err
    assert "theory: no drop times (the theory covers one output, got 2)" in out
    trained = ("simulate", "--prompts", folder / "mine.npz", *common, "--rate", 0.01)
    code, out, err = call(capsys, *trained)
    assert code == 0, err
    assert "note: the zero blocks that training moves are left out" in out
