"""Dimensions mean what their names say: a run with its dimensions in another order is the same."""

import json

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot

import iclflow as icl
from iclflow.cli import main
from iclflow.diagnosis import diagnose_run, diagnose_runs, measure_along
from iclflow.diagnosis.film import film_scene
from iclflow.explorer.payload import payload
from iclflow.plots.diagnose import checkpoints_figure, run_figure, runs_figure
from iclflow.plots.losses import loss_figure
from iclflow.plots.sweeps import sweep_figure
from iclflow.plots.weights import weights_film
from iclflow.results.netcdf import load
from iclflow.runs.compute import final_models
from iclflow.runs.record import recorded_models
from iclflow.study.study import Settings
from iclflow.sweeps.look import look

# Sizes that differ from each other cannot be mistaken; sizes that are equal (3 heads, D = 3) can.
KINDS = {
    "separate": {"model": "separate", "heads": 3, "rank": 2},
    "merged": {"model": "merged", "heads": 3},
    "softmax": {"model": "softmax-merged", "heads": 3, "sequences": 50},
    "mlp": {"model": "mlp", "heads": 3},
    "conv": {"model": "conv", "heads": 3, "rank": 2},
}


def turned(data: xr.Dataset) -> xr.Dataset:
    """The same Dataset with the dimensions of every variable in reverse."""
    found = data.transpose(*list(data.dims)[::-1])
    for name in data.variables:
        found[name] = data[name].transpose(*data[name].dims[::-1])
    assert any(found[n].dims != data[n].dims for n in data.variables)
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The command line of a run, its file, and a file with the same run transposed."""
    folder = tmp_path_factory.mktemp("runs")
    command = [
        "simulate", "--spectrum", "0.5,0.3,0.2", "--context", "9", "--heads", "3", "--scale", "0.3",
        "--rank", "2", "--seeds", "2", "--steps", "400", "--save", "linear:30", "--rotate",
        "--record", "loss,weights", "--json",
    ]  # fmt: skip
    assert main([*command, "--out", str(folder / "run.nc")]) == 0
    turned(load(folder / "run.nc")).to_netcdf(folder / "turned.nc", engine="h5netcdf")
    assert load(folder / "turned.nc")["loss"].dims == ("time", "seed")
    return command, folder / "run.nc", folder / "turned.nc"


def said(capsys, *arguments):
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def without(found, *names):
    return {k: v for k, v in found.items() if k not in names}


@pytest.mark.long
def test_diagnose_animate_and_the_same_command_again_say_the_same(capsys, written, tmp_path):
    command, run, other = written
    for more in (["--seed", "1"], []):
        one, two = (said(capsys, "diagnose", p, "--samples", "50", "--json", *more)
                    for p in (run, other))  # fmt: skip
        assert without(one, "path") == without(two, "path")
    again = [said(capsys, *command, "--out", path) for path in (run, other)]
    assert without(again[0], "out", "seconds") == without(again[1], "out", "seconds")
    film = ("--seed", "0", "--seconds", "0.2", "--fps", "5", "--json")
    for path, name in ((run, "a.gif"), (other, "b.gif")):
        said(capsys, "animate", path, "--out", tmp_path / name, *film)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()


@pytest.mark.parametrize(
    "kind", ["separate", *(pytest.param(k, marks=pytest.mark.long) for k in list(KINDS)[1:])]
)
def test_weights_come_back_by_the_names_of_their_axes(kind):
    settings = Settings(
        spectrum=(0.5, 0.3, 0.2), context=5, scale=0.3, rate=0.1, steps=20, save="linear:4",
        record=("loss", "weights"), **KINDS[kind],
    )  # fmt: skip
    from iclflow.study.study import Study

    run = Study.of(settings).run().isel(seed=0)
    init = settings.initialiser(settings.task())
    for given in (init, None):
        one, two = recorded_models(run, given), recorded_models(turned(run), given)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
            np.testing.assert_array_equal(a, b)


def test_film_page_and_measures_along_a_run_are_the_same(written):
    run, other = map(load, written[1:])
    xr.testing.assert_identical(film_scene(run, 1), film_scene(other, 1))
    xr.testing.assert_identical(measure_along(run, seed=1), measure_along(other, seed=1))
    xr.testing.assert_identical(
        diagnose_runs(run, sequences=50), diagnose_runs(other, sequences=50)
    )
    assert payload(run, "a run") == payload(other, "a run")


def drawn(figure):
    """All numbers of the lines and images of a figure."""
    found = [line.get_xydata() for axes in figure.axes for line in axes.lines]
    found += [image.get_array() for axes in figure.axes for image in axes.images]
    pyplot.close("all")
    return [np.ma.filled(np.ma.asarray(a), np.nan) for a in found]


def test_pictures_draw_the_same_lines(written):
    run = load(written[1])
    one, many = diagnose_run(run, seed=0, sequences=50), diagnose_runs(run, sequences=50)
    heads = xr.Dataset(
        {"norm": (("step", "circuit", "layer", "head"), np.random.default_rng(0).random((2,) * 4))},
        {"step": [0, 1], "circuit": ["QK", "OV"], "layer": [0, 1], "head": [0, 1]},
    )
    for draw, data in (
        (loss_figure, run), (run_figure, one), (runs_figure, many),
        (lambda d: checkpoints_figure(d, "norm"), heads),
        (lambda d: weights_film(d)[0], film_scene(run, 0)),
    ):  # fmt: skip
        for a, b in zip(drawn(draw(data)), drawn(draw(turned(data))), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_look_at_a_sweep_and_its_last_models_go_by_name():
    task = icl.Task([0.5, 0.3, 0.2], 9)
    init = icl.Separate.initialiser(task, heads=3, scale=0.3)
    sweep = icl.sweep(task, init, icl.Descent(0.1), until=20, seeds=2, record=["loss"],
                      final=["weights", "loss"])  # fmt: skip
    models = [final_models(data, init) for data in (sweep, turned(sweep))]
    for a, b in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_array_equal(a, b)
    rng = np.random.default_rng(1)
    store = xr.Dataset(
        {
            "drop_times": (("scale", "seed", "number"), rng.random((3, 2, 2))),
            "final_loss": (("scale", "seed"), rng.random((3, 2))),
            "result": (("scale", "seed"), np.full((3, 2), "ok")),
            "content": (("scale", "seed"), np.ones((3, 2), int)),
        },
        {"scale": [0.1, 0.2, 0.3], "seed": [0, 1]},
    )
    for x, y in (("scale", "drop_times"), ("final_loss", "drop_times")):
        one, two = (look(data, x, y, None, "s") for data in (store, turned(store)))
        pairs = [drawn(sweep_figure(data)) for data in (one, turned(two))]
        for a, b in zip(*pairs, strict=True):
            np.testing.assert_array_equal(np.sort(a, axis=0), np.sort(b, axis=0))
