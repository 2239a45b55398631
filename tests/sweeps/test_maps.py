"""Maps of a sweep: what a square shows, and what cannot be a map."""

import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow.sweeps import look_map
from tests.helpers.commands import call, refused


def made(times):
    """A sweep over two scales and three contexts with given drop times [2, 3, seed, drop]."""
    lead = ("scale", "context", "seed")
    return xr.Dataset(
        {
            "drop_times": ((*lead, "drop_number"), times,
                           {"long_name": "drop times", "units": "t/τ"}),
            "final_loss": (lead, times[..., 0], {"long_name": "last loss"}),
            "loss": ((*lead, "time"), times),
            "result": (lead, np.zeros(times.shape[:-1], np.int8)),
        },
        {"scale": [0.1, 0.2], "context": [7, 15, 31], "seed": np.arange(times.shape[2])},
    )  # fmt: skip


TIMES = np.random.default_rng(0).uniform(1, 100, (2, 3, 5, 2))


@pytest.mark.parametrize(("name", "function"), [
    ("median", np.median), ("mean", np.mean),
    ("spread", lambda a, axis: np.diff(np.quantile(a, [0.1, 0.9], axis=axis), axis=0)[0]),
    ("share", lambda a, axis: np.ones(a.shape[:2] + a.shape[3:])),
])  # fmt: skip
def test_a_square_is_the_statistic_of_its_runs(name, function):
    found = look_map(made(TIMES), "scale", "context", "drop_times", name)
    assert found.z.dims == ("kind", "y", "x")
    expected = function(TIMES, axis=2)  # [scale, context, drop]
    np.testing.assert_allclose(found.z.transpose("x", "y", "kind"), expected, rtol=1e-12)
    assert found.attrs["runs"] == 5
    assert found.attrs["over"] == "seed"
    assert "t/\\tau" in found.attrs["z_label"]


def test_a_drop_that_did_not_come_is_later_than_all_others():
    times = TIMES.copy()
    times[0, 0, :2, 1] = np.nan  # two of five: the median is that of five, with two at infinity
    times[0, 1, :3, 1] = np.nan  # three of five: there is no median
    found = look_map(made(times), "scale", "context", "drop_times").z.isel(kind=1, x=0)
    assert float(found[0]) == pytest.approx(np.sort(times[0, 0, 2:, 1])[2])
    assert np.isnan(found[1])
    share = look_map(made(times), "scale", "context", "drop_times", "share").z.isel(kind=1, x=0)
    np.testing.assert_allclose(share[:2], [0.6, 0.4])


def test_one_number_per_run_is_one_map():
    found = look_map(made(TIMES), "context", "scale", "final_loss")
    assert found.z.sizes == {"kind": 1, "y": 2, "x": 3}
    figure = icl.plots.map(found)
    assert len(figure.axes) == 2  # the map and its bar
    assert figure.axes[0].get_xlabel() == "context"
    assert "median of last loss" in figure.axes[1].get_ylabel()


def test_a_map_without_any_number_is_grey():
    icl.plots.map(look_map(made(np.full_like(TIMES, np.nan)), "scale", "context", "drop_times"))


@pytest.mark.parametrize(("names", "message"), [
    (("scale", "scale", "drop_times"), "two different axes"),
    (("scale", "final_loss", "drop_times"), "--y of a map needs an axis"),
    (("final_loss", "scale", "drop_times"), "--x of a map needs an axis"),
    (("scale", "context", "seed"), "--z needs a number"),
    (("scale", "context", "loss"), "curve over time"),
    (("scale", "contxt", "drop_times"), "did you mean 'context'"),
    (("scale", "context", "drop_times", "modus"), "unknown statistic"),
])  # fmt: skip
def test_what_is_no_map_is_refused_in_one_line(names, message):
    with pytest.raises(ValueError, match=message) as error:
        look_map(made(TIMES), *names)
    assert "\n" not in str(error.value)


def test_the_shell_draws_maps_and_says_which_statistic(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    icl.save(made(TIMES), "s.nc")
    given = ["plot", "s.nc", "--x", "scale", "--y", "context"]
    code, out, _ = call(capsys, *given, "--z", "drop_times")
    assert code == 0
    assert out.startswith("median over 5 runs per square (seed)")
    assert (tmp_path / "s.png").stat().st_size > 5000
    code, out, _ = call(
        capsys, *given, "--z", "drop_times", "--statistic", "share", "--plot", "b.pdf"
    )
    assert code == 0
    assert "--z of a map" in refused(capsys, *given)
    assert "--color" in refused(capsys, *given, "--z", "drop_times", "--color", "seed")
    assert "--z" in refused(capsys, *given, "--statistic", "mean")
    assert "unknown statistic" in refused(
        capsys, *given, "--z", "final_loss", "--statistic", "mode"
    )
