"""`iclflow animate`: what is in the film, its formats, its errors."""

import dataclasses
import json
import subprocess

import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow.cli import main
from iclflow.diagnosis.film import film_scene
from iclflow.plots.weights import weights_film
from iclflow.results import pictures
from iclflow.results.netcdf import load
from iclflow.study.study import Settings, Study
from iclflow.theory.fixed_points.modes import plateau_losses

SEPARATE = Settings(
    spectrum=(0.6, 0.3, 0.1), heads=4, rank=2, scale=0.3, rate=0.2, steps=300, seeds=2,
    save="linear:40", record=("loss", "weights"), rotate=True,
)  # fmt: skip
MERGED = Settings(
    spectrum=(0.6, 0.3, 0.1), model="merged", heads=3, scale=0.1, rate=0.2, steps=300,
    save="linear:40", record=("loss", "weights"), rotate=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def separate() -> xr.Dataset:
    return Study.of(SEPARATE).run()


@pytest.fixture(scope="module")
def merged() -> xr.Dataset:
    return Study.of(MERGED).run()


@pytest.fixture(scope="module")
def runs(separate, tmp_path_factory):
    return icl.save(separate, tmp_path_factory.mktemp("runs") / "run.nc")


def film_of(path, *arguments) -> int:
    return main(["animate", str(path), "--seconds", "0.5", "--fps", "8", *map(str, arguments)])


# What is shown


@pytest.mark.parametrize("kind", ["separate", "merged"])
def test_the_scene_is_the_run_in_the_eigenbasis(request, kind):
    runs = request.getfixturevalue(kind)
    run = runs.sel(seed=0)
    found = film_scene(runs, 0)
    basis = np.asarray(SEPARATE.task().basis)  # both have the same
    last = run.isel(time=-1)
    effective = np.zeros((3, 3))
    for h, v in enumerate(last["values"].values):
        if kind == "merged":
            effective += v * last["merged"].values[h]
        else:
            effective += v * last["keys"].values[h].T @ last["queries"].values[h]
    seen = found["effective"].values[-1]
    np.testing.assert_allclose(basis @ seen @ basis.T, effective, atol=1e-12)
    # Population and aligned axes: off the diagonal there is only what the start left.
    assert np.abs(seen - np.diag(np.diag(seen))).max() < 0.1 * np.abs(seen).max()
    np.testing.assert_array_equal(found["loss"].values, run["loss"].values)
    levels = np.asarray(plateau_losses(SEPARATE.task()))
    np.testing.assert_allclose(found["levels"], levels if kind == "separate" else levels[[0, -1]])
    assert found.attrs["basis"] == "eigenvectors of the inputs"


@pytest.mark.parametrize(
    ("network", "kind"),
    [("mlp", "merged"), pytest.param("conv", "separate", marks=pytest.mark.slow)],
)
def test_a_network_is_shown_as_the_attention_it_is(network, kind):
    like = dataclasses.replace(
        SEPARATE if kind == "separate" else MERGED, steps=60, save="linear:5", seeds=1
    )
    ours = film_scene(Study.of(dataclasses.replace(like, model=network)).run())
    theirs = film_scene(Study.of(like).run())
    assert set(ours) == set(theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-12, err_msg=str(name))


def test_keys_keep_head_and_pair(separate):
    found = film_scene(separate, 1)
    assert found["part"].values.tolist()[:3] == ["1.1", "1.2", "2.1"]
    basis = np.asarray(SEPARATE.task().basis)
    key = separate.sel(seed=1)["keys"].values[-1, 1, 0]
    np.testing.assert_allclose(found["keys"].sel(part="2.1").values[-1], basis.T @ key, atol=1e-14)


def test_eigenvectors_that_differ_by_seed():
    settings = Settings(
        spectrum=(0.6, 0.4), heads=2, seeds=2, vary="all", steps=5, save="linear:3",
        record=("loss", "weights"), rotate=True,
    )  # fmt: skip
    runs = Study.of(settings).run()
    key = runs.sel(seed=1)["keys"].values[-1, 0, 0]
    shown = film_scene(runs, 1)["keys"].values[-1, 0]
    np.testing.assert_allclose(shown, np.asarray(settings.task(1).basis).T @ key, atol=1e-14)
    assert not np.allclose(settings.task(0).basis, settings.task(1).basis)


def test_a_run_without_settings_is_shown_in_its_own_basis(merged):
    task = MERGED.task()
    init = icl.Merged.initialiser(task, heads=3, scale=0.1)
    runs = icl.sweep(
        icl.Population(task), init, icl.Descent(0.2), until=300, record=["loss", "weights"]
    )
    found = film_scene(runs)
    assert found.attrs["basis"] == "eigenvectors of the final weights"
    assert len(found["levels"]) == 2  # of the population that the runs describe
    last = found["effective"].values[-1]
    assert np.abs(last - np.diag(np.diag(last))).max() < 1e-3 * np.abs(last).max()


def test_softmax_has_no_levels():
    settings = Settings(
        spectrum=(0.6, 0.4), model="softmax-separate", heads=2, sequences=16, steps=5,
        save="linear:3", record=("loss", "weights"),
    )  # fmt: skip
    found = film_scene(Study.of(settings).run())
    assert found["levels"].size == 0
    weights_film(found, dpi=40)[1](1)


def test_a_run_that_stopped_early_ends_there(separate):
    runs = separate.copy(deep=True)
    runs["loss"][:, 10:] = np.nan
    assert film_scene(runs, 0).sizes["time"] == 10
    runs["loss"][:, 1:] = np.nan
    with pytest.raises(ValueError, match="fewer than two recorded points"):
        film_scene(runs, 0)


def test_frames_are_even_in_time():
    clock = np.array([0.0, 1.0, 2.0, 10.0])
    assert pictures.frame_indices(clock, 6).tolist() == [0, 2, 2, 2, 2, 3]


@pytest.mark.parametrize("kind", ["separate", "merged"])
def test_a_frame_shows_its_moment(request, kind):
    found = film_scene(request.getfixturevalue(kind), 0)
    figure, update = weights_film(found, dpi=50)
    artists = update(20)
    marker = next(a for a in artists if getattr(a, "get_marker", lambda: None)() == "o")
    assert marker.get_xydata().tolist() == [[found["time"].values[20], found["loss"].values[20]]]
    shown = [np.asarray(a.get_array()) for a in artists if hasattr(a, "get_clim")]
    assert any(np.array_equal(s, found["effective"].values[20]) for s in shown)
    scales = [a.get_clim() for a in artists if hasattr(a, "get_clim")]
    assert all(low == -high for low, high in scales)
    bars = [a for a in artists if hasattr(a, "get_height")]
    heights = np.array([bar.get_height() for bar in bars])
    if kind == "separate":  # squared cosines of eight keys and eight queries
        np.testing.assert_allclose(heights.sum(), 16)
    else:
        np.testing.assert_allclose(heights, found["values"].values[20])
    assert len(figure.axes) >= 5


def test_the_film_has_the_turning_of_the_subspaces(separate):
    """The query of a head of rank two is read by a plane: literal NumPy, head by head."""
    found, run = film_scene(separate, 1), separate.sel(seed=1)
    keys, queries = run["keys"].values, run["queries"].values  # [time, head, pair, D]
    products = np.einsum("thra,thrc->thac", keys, queries)
    count = min(queries.shape[2], queries.shape[3] // 2)
    bases = np.linalg.svd(products)[2][:, :, :count]
    ends = np.linalg.norm(products[-1], axis=(1, 2))
    for k in (1, 12):
        planes = np.einsum("hkc,hkd->hcd", bases[k], bases[k])
        rest = products[-1] - products[-1] @ planes
        distance = np.mean(np.linalg.norm(rest, axis=(1, 2)) / ends)
        assert float(found["subspace_distance"][k]) == pytest.approx(distance, abs=1e-9)
        before = np.einsum("hkc,hkd->hcd", bases[k - 1], bases[k - 1])
        moved = np.mean(np.linalg.norm(planes - before, axis=(1, 2)) / np.sqrt(2 * count))
        clock = found["time"].values
        interval = np.log(clock[k] / clock[k - 1]) if k > 1 else np.log(2)
        assert float(found["subspace_speed"][k]) == pytest.approx(moved / interval, abs=1e-9)
    assert np.isnan(found["subspace_speed"][0])


# Files


def test_a_gif_has_its_frames(runs, tmp_path, capsys):
    from PIL import Image

    assert film_of(runs, "--seed", 0, "--out", tmp_path / "film.gif", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["frames"], found["fps"], found["recorded_points"]) == (4, 8, 4)
    with Image.open(tmp_path / "film.gif") as picture:
        assert picture.n_frames == 4
        assert picture.info["duration"] == 120  # hundredths of a second are its unit
        first = np.asarray(picture.convert("RGB")).astype(float)
        picture.seek(3)
        assert np.abs(np.asarray(picture.convert("RGB")) - first).max() > 50
    assert [p.name for p in tmp_path.iterdir()] == ["film.gif"]


@pytest.mark.skipif(pictures.ffmpeg() is None, reason="there is no ffmpeg")
def test_an_mp4_can_be_played(runs, tmp_path, capsys):
    path = tmp_path / "film.mp4"
    assert film_of(runs, "--seed", 1, "--out", path) == 0
    assert "4 frames at 8 per second" in capsys.readouterr().out
    check = [
        pictures.ffmpeg(),
        "-v",
        "error",
        "-i",
        path,
        "-f",
        "rawvideo",
        "-pix_fmt",
        "gray",
        "-",
    ]
    found = subprocess.run(check, capture_output=True, check=True)
    assert found.stderr == b""
    assert len(found.stdout) == 4 * 1280 * 720


def test_without_ffmpeg_it_is_a_gif(separate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "ffmpeg", lambda: None)
    path = icl.save(separate.isel(seed=[0]), tmp_path / "run.nc")
    assert film_of(path) == 0
    assert (tmp_path / "run.gif").is_file()
    assert "run.gif" in capsys.readouterr().out


def test_few_recorded_points_are_mentioned(separate, tmp_path, capsys):
    few = separate.isel(seed=[0], time=[0, -1])
    path = icl.save(few, tmp_path / "run.nc")
    assert film_of(path, "--out", tmp_path / "film.gif", "--seconds", 1) == 0
    assert "--save linear:300" in capsys.readouterr().out


def test_a_failing_encoder_leaves_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "ffmpeg", lambda: "false")
    with pytest.raises(SystemExit) as stop:
        film_of(runs, "--seed", 0, "--out", tmp_path / "film.mp4")
    assert stop.value.code == 2
    assert list(tmp_path.iterdir()) == []


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "this file has 2 seeds, 0 to 1; choose one with --seed"),
        (["--seed", 7], "there is no seed 7 in this file; it has 0 to 1"),
        (["--seed", 0, "--out", "film.avi"], "the ending must be .mp4 or .gif"),
        (["--seed", 0, "--out", "nowhere/film.gif"], "the folder nowhere does not exist"),
        (["--seed", 0, "--seconds", "-1"], "must be above 0"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(runs, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as stop:
        film_of(runs, *arguments)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


def test_films_that_are_not_ours_stay(runs, tmp_path, capsys):
    film = tmp_path / "mine.gif"
    film.write_bytes(b"holiday")
    with pytest.raises(SystemExit):
        film_of(runs, "--seed", 0, "--out", film)
    assert "did not draw it" in capsys.readouterr().err
    assert film.read_bytes() == b"holiday"


def test_files_that_cannot_be_animated(runs, tmp_path, capsys):
    full = load(runs)
    bad = {
        "did not record its weights": full[["loss"]],
        "no loss": full.drop_vars("loss"),
        "vary scale": full.expand_dims(scale=2),
    }
    for i, (complaint, dataset) in enumerate(bad.items()):
        path = icl.save(dataset, tmp_path / f"{i}.nc")
        with pytest.raises(SystemExit):
            film_of(path, "--seed", 0)
        assert complaint in capsys.readouterr().err
    (tmp_path / "text.nc").write_text("no")
    for path, complaint in ((tmp_path / "text.nc", "not a readable"), (tmp_path / "x", "no file")):
        with pytest.raises(SystemExit):
            film_of(path)
        assert complaint in capsys.readouterr().err
    with pytest.raises(SystemExit):
        film_of(runs, "--seed", 0, "--out", tmp_path / "film.mp4", "--fps", "0")
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("film.txt", "the ending must be .mp4 or .gif"),
        ("film", "the ending must be"),
        ("", "out must be the name of a file or folder"),
    ],
)
def test_what_is_no_film_is_refused_before_the_runs_are_read(out, complaint):
    with pytest.raises(ValueError, match=complaint):
        icl.animate(xr.Dataset(), out)


def test_mp4_without_ffmpeg_says_what_to_do(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "ffmpeg", lambda: None)
    with pytest.raises(SystemExit):
        film_of(runs, "--seed", 0, "--out", tmp_path / "film.mp4")
    assert "iclflow[video]" in capsys.readouterr().err
