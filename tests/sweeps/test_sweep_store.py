"""Sweeps on disk: the runs they hold, going on, growing, and everything that may go wrong."""

import dataclasses
import errno
import json
import multiprocessing
import os
import shutil
import signal
import warnings

import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow import cli
from iclflow.cli import sweep as cli_sweep
from iclflow.measures import first_crossing, first_crossings
from iclflow.runs import batch, sweep
from iclflow.runs import compute as computing
from iclflow.runs import store as storing
from iclflow.runs.fused import engine
from iclflow.runs.store import Store, checksums, load
from iclflow.study.study import Settings, Study
from iclflow.sweeps.design import Design, run
from iclflow.sweeps.look import look

zarr = pytest.importorskip("zarr", reason="the extra sweep is not installed")

COMPILER = pytest.mark.skipif(engine.available() != engine.CPP, reason="there is no C++ compiler")
SMALL = {"spectrum": [1.0, 0.5], "context": 8, "heads": 2, "rate": 0.1, "steps": 60}
SMALL |= {"save": "linear:30", "scale": [0.3, 0.6]}
RUN = {**SMALL, "spectrum": (1.0, 0.5)}
SUMMARIES = ["final_loss", "drop_times", "plateau_lengths", "predicted_times", "prediction_error"]


def design(**words):
    return Design.of(**{**SMALL, "seeds": 3, **words})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed sweep, in blocks of two cells."""
    return run(design(), tmp_path_factory.mktemp("whole") / "s.zarr", block=2).load()


def assert_same(found, expected, **where):
    assert set(found.variables) == set(expected.variables)
    for name, variable in expected.isel(**where).variables.items():
        np.testing.assert_array_equal(found.isel(**where)[name].values, variable.values)


def test_cells_are_the_runs_that_simulate_makes(whole):
    for i, scale in enumerate(SMALL["scale"]):
        settings = Settings(**{**RUN, "scale": scale, "seeds": 3, "record": ("loss",)})
        runs = Study.of(settings).run()
        np.testing.assert_allclose(whole["loss"].values[i], runs["loss"].values, rtol=1e-12)
        np.testing.assert_array_equal(whole["clock"].values[i], runs["time"].values)
        np.testing.assert_array_equal(whole["step"].values[i], runs["step"].values)
    assert (whole["result"] == 0).all()
    assert whole["loss"].dims == ("scale", "seed", "time")


def test_xarray_opens_it_plainly(whole, tmp_path):
    run(design(), tmp_path / "s.zarr", block=2)
    with xr.open_zarr(tmp_path / "s.zarr") as plain:
        assert_same(plain.load(), whole)
        assert plain["final_loss"].sel(scale=0.6, seed=1) == whole["loss"].values[1, 1, -1]
        assert plain.attrs["iclflow_version"] == icl.__version__


def test_stopped_anywhere_it_goes_on_to_the_same_bits(whole, tmp_path, monkeypatch):
    path, compute, calls = tmp_path / "s.zarr", computing.compute, []

    def stopping(block):
        calls.append(block)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return compute(block)

    monkeypatch.setattr(sweep, "compute", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(design(), path, block=2)
    assert_same(run(design(), path, block=2).load(), whole)
    assert len(calls) == 4 + 2  # four blocks, and two that were stopped
    run(design(), path, block=2)
    assert len(calls) == 6  # finished: nothing is computed


def test_a_signal_while_a_block_is_written_waits_for_its_end(tmp_path, monkeypatch):
    write = Store.write

    def struck(store, region, answer):
        os.kill(os.getpid(), signal.SIGINT)
        write(store, region, answer)

    monkeypatch.setattr(Store, "write", struck)
    with pytest.raises(KeyboardInterrupt):
        run(design(), tmp_path / "s.zarr", block=2)
    assert int((load(tmp_path / "s.zarr")["content"] != 0).sum()) == 2


def test_values_and_seeds_that_are_added_are_computed_alone(whole, tmp_path, monkeypatch):
    path, compute, cells = tmp_path / "s.zarr", computing.compute, []
    run(design(), path, block=2)

    def counting(block):
        cells.append(int(block.wanted.sum()))
        return compute(block)

    monkeypatch.setattr(sweep, "compute", counting)
    grown = run(design(scale=[0.4, 0.6, 0.3], seeds=4), path).load()
    assert sum(cells) == 12 - 6
    assert grown["scale"].values.tolist() == [0.3, 0.6, 0.4]  # what was there keeps its place
    assert np.isfinite(grown["final_loss"]).all()
    for name in ("loss", "drop_times", "final_loss", "content"):
        np.testing.assert_array_equal(grown[name].values[:2, :3], whole[name].values)
    fresh = run(design(scale=[0.4], seeds=4), tmp_path / "fresh.zarr").load()
    np.testing.assert_allclose(grown["loss"][2], fresh["loss"][0], rtol=1e-12)


def test_fewer_values_another_design_and_what_is_no_sweep_are_refused(whole, tmp_path):
    path = tmp_path / "s.zarr"
    run(design(), path, block=2)
    for other in (design(seeds=2), design(steps=61), design(scale=[0.3, 0.7]), design(scale=0.3)):
        with pytest.raises(ValueError, match="another name or move it away"):
            run(other, path)
    assert_same(load(path).load(), whole)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    zarr.create_group(tmp_path / "other.zarr")
    for name in ("notes", "other.zarr"):
        with pytest.raises(ValueError, match="is no sweep"):
            run(design(), tmp_path / name)
        with pytest.raises(ValueError, match=r"no sweep"):
            load(tmp_path / name)
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="does not exist"):
        run(design(), tmp_path / "missing" / "s.zarr")


@pytest.mark.parametrize(("name", "value", "message"), [
    ("__version__", "0.0.1", "written by iclflow"), ("code", lambda cells: "0", "other code"),
])  # fmt: skip
def test_a_store_of_another_version_is_refused(name, value, message, tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    run(design(scale=0.3, seeds=1), path)
    monkeypatch.setattr(icl if name == "__version__" else storing, name, value)
    with pytest.raises(ValueError, match=message):
        run(design(scale=0.3, seeds=1), path)


def chunks(path, name):
    return sorted(file for file in (path / name / "c").rglob("*") if file.is_file())


@pytest.mark.parametrize("name", ["loss", "content", "clock"])
def test_a_damaged_chunk_is_found_and_its_cells_computed_anew(name, whole, tmp_path):
    path = tmp_path / "s.zarr"
    run(design(), path, block=2)
    file = chunks(path, name)[1]
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"is damaged: .* own command") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    lost = 3 if name == "clock" else 1  # three seeds share the clock of a point
    with pytest.warns(UserWarning, match=f"chunks: {lost} cells are computed anew"):
        found = run(design(), path)
    assert_same(found.load(), whole)


@pytest.mark.parametrize("what", ["a chunk", "an array", "two chunks", "the clock"])
def test_what_is_missing_or_exchanged_does_not_pass_as_data(what, whole, tmp_path, capsys):
    """The metadata is in order and each chunk has its own checksum: only sums over cells tell."""
    path, told = tmp_path / "s.zarr", []
    run(design(), path, block=2)
    first, _, third = chunks(path, "final_loss")[:3]
    if what == "a chunk":
        first.unlink()
    elif what == "two chunks":
        both = first.read_bytes(), third.read_bytes()
        first.write_bytes(both[1])
        third.write_bytes(both[0])
    else:
        shutil.rmtree(path / ("loss" if what == "an array" else "clock"))
    lost = {"a chunk": 2, "two chunks": 4}.get(what, 6)
    with pytest.raises(ValueError, match=f"{lost} cells lack their numbers"):
        load(path)
    with pytest.warns(UserWarning, match=f"chunks: {lost} cells are computed anew"):
        found = run(design(), path, progress=lambda *now: told.append(now)).load()
    assert told[0] == (6 - lost, 6)
    assert_same(found, whole)
    assert_same(load(path).load(), whole)


def test_sums_over_cells_see_every_number_and_no_padding():
    rng = np.random.default_rng(0)
    array = rng.normal(size=(3, 2, 4, 5))
    sums = checksums("loss", array, 2)
    assert len(np.unique(sums)) == 6
    wide = np.full((3, 2, 6, 7), np.nan)
    wide[:, :, :4, :5] = array
    np.testing.assert_array_equal(checksums("loss", wide, 2), sums)
    for place in np.ndindex(array.shape):
        other = array.copy()
        other[place] = np.nextafter(other[place], 9)
        changed = np.argwhere(checksums("loss", other, 2) != sums)
        assert changed.tolist() == [list(place[:2])]
    assert (checksums("loss", array[..., ::-1], 2) != sums).all()
    assert (checksums("other", array, 2) != sums).all()


def test_a_linked_folder_inside_a_store_is_refused(whole, tmp_path):
    path, elsewhere = tmp_path / "s.zarr", tmp_path / "elsewhere"
    run(design(), path, block=2)
    (path / "loss").rename(elsewhere)
    (path / "loss").symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=r"has a link inside \(loss\)"):
        run(design(seeds=4), path)
    assert before == {f: f.read_bytes() for f in elsewhere.rglob("*") if f.is_file()}
    whole_store = tmp_path / "linked.zarr"
    (path / "loss").unlink()
    elsewhere.rename(path / "loss")
    whole_store.symlink_to(path)  # the store itself may lie on another disk
    assert_same(run(design(), whole_store).load(), whole)


def test_a_store_of_vmap_opens_where_there_is_no_compiler(whole, tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    run(design(), path, block=2)
    monkeypatch.setattr(engine, "available", lambda: engine.VMAP)
    monkeypatch.setattr(sweep, "available", lambda: engine.VMAP)
    monkeypatch.setattr("iclflow.runs.cost.available", lambda: engine.VMAP)
    grown = run(design(seeds=4), path).load()
    assert (grown["engine"] == 0).all()
    assert_same(grown.isel(seed=slice(3)), whole)


@COMPILER
def test_keys_name_the_engine_that_ran(whole, tmp_path, monkeypatch):
    """A compiler that fails in the middle: the cells say so, and a second call makes no others."""
    path, why_not = tmp_path / "s.zarr", batch.why_not
    monkeypatch.setattr("iclflow.runs.cost.worth_compiling", lambda *_: True)
    calls = []

    def failing(*given):
        calls.append(given)
        return "the compiler is out of memory" if len(calls) == 4 else why_not(*given)

    monkeypatch.setattr(batch, "why_not", failing)
    found = run(design(), path, block=2).load()  # the plan asks once, then every block
    codes = found["engine"].values
    assert sorted(np.unique(codes).tolist()) == [0, 1]
    assert cli_sweep.outcome(found)["advanced_by"] == {"vmap": 2, "C++": 4}
    shown = cli_sweep.lines(cli_sweep.outcome(found) | {"out": "", "seconds": 0})
    assert "cells of two engines" in " ".join(shown)
    assert len(np.unique(found["content"])) == 6
    monkeypatch.setattr(sweep, "available", lambda: engine.VMAP)
    with pytest.raises(ValueError, match="fused loop in C\\+\\+, which is not here") as caught:
        run(design(), path)
    assert "\n" not in str(caught.value)
    np.testing.assert_allclose(found["loss"], whole["loss"], rtol=1e-12)


def test_a_store_of_version_0_2_opens(whole, tmp_path):
    """It has no checksums and no engines."""
    path = tmp_path / "s.zarr"
    run(design(), path, block=2)
    for name in ("checksum", "engine"):
        shutil.rmtree(path / name)
    zarr.open_group(path, mode="r+").attrs["sweep_format"] = 1
    with pytest.warns(zarr.errors.ZarrUserWarning, match="Consolidated"):
        zarr.consolidate_metadata(path)
    np.testing.assert_array_equal(load(path)["loss"], whole["loss"])
    with pytest.raises(ValueError, match=r"written by iclflow 0.2.*run the same sweep into a new"):
        run(design(), path)


def test_progress_is_said_in_lines_where_stderr_is_no_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_sweep, "EVERY", 0.0)
    text = [f"{name} = {json.dumps(value)}" for name, value in SMALL.items()]
    (tmp_path / "design.toml").write_text("\n".join(["[sweep]", *text]))
    assert cli.main(["sweep", "design.toml", "--out", "s.zarr", "--block", "1"]) == 0
    assert "iclflow: 1 of 2 cells, " in capsys.readouterr().err


def test_a_full_disk_loses_nothing(whole, tmp_path, monkeypatch):
    from zarr.storage import LocalStore

    path, put, left = tmp_path / "s.zarr", LocalStore.set, [25]

    async def full(store, key, value):
        left[0] -= "/c/" in key
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await put(store, key, value)

    with monkeypatch.context() as here:
        here.setattr(LocalStore, "set", full)
        with pytest.raises(OSError, match="the disk is full"):
            run(design(), path, block=2)
    there = (load(path)["content"] != 0).values
    assert 0 < there.sum() < 6
    np.testing.assert_array_equal(load(path)["loss"].values[there], whole["loss"].values[there])
    assert_same(run(design(), path, block=2).load(), whole)


def test_a_folder_that_may_not_be_written_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "design.toml").write_text("[sweep]\nsteps = 5\nrate = 0.1\nheads = 2\n")
    place = tmp_path / "locked"
    place.mkdir()
    mkdir = type(place).mkdir

    def refuse(path, *args, **options):
        if place in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return mkdir(path, *args, **options)

    monkeypatch.setattr(type(place), "mkdir", refuse)
    given = ["sweep", str(tmp_path / "design.toml"), "--out", str(place / "s.zarr")]
    with pytest.raises(SystemExit, match="2"):
        cli.main(given)
    assert capsys.readouterr().err.count("\n") == 1


def hold(path, ready, leave):
    storing.locked(path)
    ready.set()
    leave.wait()


@pytest.mark.long
def test_two_processes_cannot_write_one_store(whole, tmp_path):
    path = tmp_path / "s.zarr"
    run(design(), path, block=2)
    spawn = multiprocessing.get_context("spawn")
    ready, leave = spawn.Event(), spawn.Event()
    other = spawn.Process(target=hold, args=(path, ready, leave))
    other.start()
    assert ready.wait(60)
    with pytest.raises(ValueError, match="another process writes"):
        run(design(seeds=4), path)
    assert_same(load(path).load(), whole)  # reading is free
    leave.set()
    other.join()
    assert run(design(seeds=4), path).sizes["seed"] == 4


def test_a_cell_that_fails_is_recorded_and_the_rest_goes_on(whole, tmp_path, monkeypatch):
    path, train = tmp_path / "s.zarr", computing.run_batch

    def failing(batch, *others):
        if np.any((batch.cells[:, 0] == 1) & (batch.cells[:, 1] == 2)):
            raise RuntimeError("no such\nmemory")
        return train(batch, *others)

    with monkeypatch.context() as here:
        here.setattr(computing, "run_batch", failing)
        found = run(design(), path).load()
    assert found.attrs["reasons"] == ["no such memory"]
    assert np.argwhere(found["failure"].values > 0).tolist() == [[1, 2]]
    assert np.argwhere(np.isnan(found["final_loss"].values)).tolist() == [[1, 2]]
    again = run(design(), path).load()  # the same call tries it again
    assert (again["failure"] == 0).all()
    np.testing.assert_allclose(again["loss"], whole["loss"], rtol=1e-12)


def test_a_point_that_cannot_be_built_fails_alone(tmp_path):
    words = {**SMALL, "scale": 0.3, "spectrum": [[1.0, 0.5], [1.0, 0.5, 0.2]]}
    found = run(Design.of(**words, task_covariance=[1, 1]), tmp_path / "s.zarr").load()
    assert found["failure"].values.ravel().tolist() == [0, 1]
    assert "task_covariance needs 3 variances" in found.attrs["reasons"][0]


def test_a_rate_that_diverges_is_a_result(tmp_path):
    found = run(design(scale=0.6, rate=[0.1, 50.0], seeds=2), tmp_path / "s.zarr").load()
    assert (found["result"].values == [[0, 0], [1, 1]]).all()
    assert (found["failure"] == 0).all()


def test_summaries_are_those_of_the_curves(tmp_path):
    words = {"scale": 0.3, "rate": 0.2, "steps": 1500, "save": "linear:300", "seeds": 3}
    found = run(design(**words, summaries=[*SUMMARIES, "detected_times", "algorithm"]),
                tmp_path / "s.zarr").load()  # fmt: skip
    study = Study.of(Settings(**{**RUN, **words}))
    for seed in range(3):
        time, loss = found["clock"].values, found["loss"].values[seed]
        literal = []
        for level, after in zip(study.levels()[:-1], study.levels()[1:], strict=True):
            j = next(i for i, value in enumerate(loss) if value < (level + after) / 2)
            literal.append(
                np.interp(-(level + after) / 2, -loss[j - 1 : j + 1], time[j - 1 : j + 1])
            )
        np.testing.assert_allclose(found["drop_times"][seed], literal, rtol=1e-12)
        np.testing.assert_allclose(found["detected_times"][seed], literal, rtol=0.05)
    np.testing.assert_array_equal(found["final_loss"], found["loss"][:, -1])
    compared = study.prediction(study.run())
    np.testing.assert_allclose(found["predicted_times"], compared.predicted, rtol=1e-10)
    error = found["predicted_times"] / found["drop_times"] - 1
    np.testing.assert_allclose(found["prediction_error"], error, rtol=1e-12)
    ends = found["plateau_lengths"].values.cumsum(axis=1)
    assert (ends < found["drop_times"]).all()
    assert all("least squares" in name or "PCR-2" in name for name in found["algorithm"].values)


def test_crossings_of_many_curves_are_those_of_each():
    rng = np.random.default_rng(0)
    time = np.linspace(0, 1, 50)
    loss = np.sort(rng.uniform(0, 1, (4, 50)), axis=1)[:, ::-1]
    loss[0, 20:] = np.nan
    levels = np.array([1.6, 0.9, 0.4, -2.4])
    many = first_crossings(time, loss, levels)
    for row, curve in zip(many, loss, strict=True):
        alone = [first_crossing(time, curve, level) for level in levels]
        np.testing.assert_array_equal(row, alone)
        for level, found in zip(levels[1:3], row[1:3], strict=True):
            kept = np.isfinite(curve)
            if np.isfinite(found):
                there = np.interp(found, time[kept], curve[kept])
                assert there == pytest.approx(level, rel=1e-12)
    assert np.isnan(many[:, 0]).all()  # above the start
    assert np.isnan(many[:, -1]).all()  # below the end


def test_runs_of_other_shapes_and_lengths_share_a_store(tmp_path):
    words = {**SMALL, "scale": 0.3, "heads": [1, 3], "steps": [10, 20], "save": "all"}
    found = run(Design.of(**words, record=["loss", "values"]), tmp_path / "s.zarr").load()
    assert found["values"].dims == ("heads", "steps", "seed", "time", "head")
    assert found["values"].shape == (2, 2, 1, 21, 3)
    there = np.isfinite(found["values"].values[..., 0, :, :])
    assert there.sum(axis=(-1, -2)).tolist() == [[11, 21], [33, 63]]


def test_the_shell_runs_says_and_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = [f"{name} = {json.dumps(value)}" for name, value in SMALL.items()]
    (tmp_path / "design.toml").write_text("\n".join(["[sweep]", *text]))
    assert cli.main(["sweep", "design.toml", "--dry-run", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert (expected["cells"], expected["programs"]) == (2, 1)
    given = ["sweep", "design.toml", "--set", "seeds=2", "--out", "s.zarr", "--json"]

    def stopped(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as here:
        here.setattr(sweep, "compute", stopped)
        assert cli.main(given) == 130
    assert "Go on: iclflow" in capsys.readouterr().err
    assert cli.main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cells"], found["finished"], found["failed"]) == (4, 4, 0)
    assert [name.partition(" (")[0] for name in found["engines"]] == ["vmap"]
    for options in (["--x", "scale"], ["--x", "final_loss", "--color", "scale"]):
        assert cli.main(["plot", "s.zarr", *options, "--y", "drop_times"]) == 0
    assert (tmp_path / "s.png").stat().st_size > 1000


@pytest.mark.parametrize(("given", "message"), [
    (["sweep"], "give a design"),
    (["sweep", "design.toml"], "give --out"),
    (["sweep", "design.toml", "--out", "s.nc"], "ending must be .zarr"),
    (["sweep", "design.toml", "--out", "s.zarr", "--set", "x"], "NAME=VALUE"),
    (["sweep", "design.toml", "--out", "s.zarr", "--workers", "1", "--scheduler", "a"], "or"),
    (["sweep", "none.toml", "--out", "s.zarr"], "none.toml"),
    (["plot", "none.zarr", "--x", "scale", "--y", "loss"], "there is no sweep"),
])  # fmt: skip
def test_bad_commands_are_one_line(given, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "design.toml").write_text("[sweep]\nsteps = 5\n")
    with pytest.raises(SystemExit, match="2"):
        cli.main(given)
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "s.zarr").exists()


def test_without_the_extra_one_line_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(storing.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "iclflow\[sweep\]"'):
        run(design(), tmp_path / "s.zarr")


def test_a_design_survives_a_change_of_its_order(whole, tmp_path):
    run(design(scale=[0.6, 0.3]), tmp_path / "s.zarr", block=2)
    found = run(design(), tmp_path / "s.zarr").load()
    assert found["scale"].values.tolist() == [0.6, 0.3]
    np.testing.assert_array_equal(found["loss"].sortby("scale"), whole["loss"])


def test_designs_are_plain_values():
    assert dataclasses.replace(design(), seeds=5).shape == (2, 5)


def test_a_store_of_an_earlier_version_has_the_name_of_this_one(whole, tmp_path):
    """The dimension over drops was called `drop`, which is an argument of xarray's `isel`."""
    old = xr.Dataset({"drop_times": (("seed", "drop"), np.ones((2, 3)))}, attrs={"sweep_format": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata are not in the standard yet
        old.to_zarr(tmp_path / "old.zarr", zarr_format=3, consolidated=True)
    old.to_netcdf(tmp_path / "old.nc", engine="h5netcdf")
    for found in (load(tmp_path / "old.zarr"), icl.load(tmp_path / "old.nc")):
        assert found["drop_times"].dims == ("seed", "drop_number")
        assert found["drop_times"].isel(drop_number=0).dims == ("seed",)
    assert "drop" not in whole.dims


def test_an_axis_is_nothing_to_plot_against_an_axis(whole):
    with pytest.raises(ValueError, match="scale is an axis of the sweep; --y needs a number of"):
        look(whole, "seed", "scale", None, "s.zarr")
