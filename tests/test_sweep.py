import itertools

import jax
import numpy as np
import pytest
import xarray as xr

from iclflow.dynamics import Adam, Descent, Flow
from iclflow.losses import Features, Moments, Population
from iclflow.models import Separate, SoftmaxInitialiser
from iclflow.results.netcdf import check_free, load, save
from iclflow.runs.labels import OUTCOMES, from_dataset, to_dataset
from iclflow.runs.simulate import simulate
from iclflow.runs.sweep import Vary, sweep
from iclflow.tasks.task import Task
from tests.cases import KEY

TASK = Task([0.5, 0.3, 0.2], 9)
LOSS = Population(TASK)
INIT = Separate.initialiser(TASK, heads=3, rank=1, scale=0.5)
DESCENT = Descent(0.3, 60)


def test_every_seed_is_a_simulation():
    runs = sweep(LOSS, INIT, DESCENT, seeds=[0, 4], record=["loss", "weights"])
    assert runs["loss"].dims == ("seed", "time")
    for seed in (0, 4):
        one = simulate(LOSS, INIT(jax.random.key(seed)), DESCENT, record=["loss", "weights"])
        row = runs.sel(seed=seed)
        np.testing.assert_allclose(row["loss"], one.loss, atol=1e-14)
        np.testing.assert_allclose(row["keys"], one["weights"]["keys"], atol=1e-13)
        np.testing.assert_array_equal(row["time"], one.time)
    assert np.all(runs["result"] == OUTCOMES.index("finished"))
    assert "units" in runs["loss"].attrs


def test_axes_of_every_kind():
    axes = {"context": [5, 9], "rank": [1, 2], "rate": [0.1, 0.3], "scale": [0.5]}
    runs = sweep(TASK, INIT, DESCENT, seeds=2, axes=axes, record=["loss", "weights"])
    assert dict(runs["loss"].sizes) | {"time": 0} == {
        "context": 2, "rank": 2, "rate": 2, "scale": 1, "seed": 2, "time": 0,
    }  # fmt: skip
    init = Separate.initialiser(TASK, heads=3, rank=2, scale=0.5)
    one = simulate(Population(TASK.replace(context=5)), init(jax.random.key(1)), Descent(0.1, 60))
    point = runs.sel(context=5, rank=2, rate=0.1, seed=1).isel(scale=0)
    np.testing.assert_allclose(point["loss"], one.loss, atol=1e-14)
    np.testing.assert_allclose(point["clock"], one.time)
    assert np.isnan(runs.sel(rank=1)["keys"].isel(pair=1)).all()


def test_an_axis_inside_a_wrapper():
    from iclflow.losses import Sequences

    loss = Sequences.sample(TASK, 30, KEY)
    runs = sweep(loss, SoftmaxInitialiser(INIT), Descent(0.1, 5), axes={"scale": [0.1, 1.0]})
    assert not np.array_equal(runs["loss"][0], runs["loss"][1])


@pytest.mark.parametrize("vary", Vary)
def test_what_the_seeds_change(vary):
    runs = sweep(
        lambda key: Moments.sample(TASK, 30, key), INIT, Descent(0.1, 5),
        seeds=3, vary=vary, record=["loss", "weights"],
    )  # fmt: skip
    first = runs["keys"].isel(time=0).values
    losses = runs["loss"].isel(time=0).values
    assert np.array_equal(first[0], first[1]) is (vary is Vary.DATA)
    same = [
        float(Moments.sample(TASK, 30, jax.random.key(s))(INIT(jax.random.key(0)))) for s in (0, 1)
    ]
    if vary is Vary.DATA:
        np.testing.assert_allclose(losses[:2], same, atol=1e-14)
    if vary is Vary.WEIGHTS:
        expected = Moments.sample(TASK, 30, jax.random.key(0))(INIT(jax.random.key(1)))
        assert losses[1] == pytest.approx(float(expected), abs=1e-14)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="contxt"):
        sweep(TASK, INIT, DESCENT, axes={"contxt": [1]})
    with pytest.raises(ValueError, match="at least one seed"):
        sweep(TASK, INIT, DESCENT, seeds=0)
    with pytest.raises(ValueError, match="key -> loss"):
        sweep(LOSS, INIT, DESCENT, vary=Vary.DATA)


def test_failure_of_one_run_is_its_result():
    runs = sweep(LOSS, INIT, DESCENT, axes={"rate": [0.3, 80.0]}, seeds=2)
    assert OUTCOMES[int(runs["result"].sel(rate=0.3)[0])] == "finished"
    assert np.all(runs["result"].sel(rate=80.0) == OUTCOMES.index("diverged"))
    assert np.isfinite(runs["loss"].sel(rate=80.0)[:, 0]).all()


def test_interruption_keeps_what_was_computed():
    def stop(done, total):
        if done > 10:
            raise KeyboardInterrupt

    runs = sweep(LOSS, INIT, DESCENT, seeds=2, progress=stop)
    loss = runs["loss"].values
    assert np.isfinite(loss[:, 0]).all()
    assert np.isnan(loss[:, -1]).all()
    assert np.all(runs["result"] == OUTCOMES.index("interrupted"))
    whole = sweep(LOSS, INIT, DESCENT, seeds=2)["loss"].values
    kept = np.isfinite(loss)
    np.testing.assert_array_equal(loss[kept], whole[kept])


def test_progress_reaches_the_end():
    seen = []
    sweep(LOSS, INIT, DESCENT, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (60.0, 60.0)
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(seen))


def test_flow_and_adam():
    flow = sweep(LOSS, INIT, Flow(20.0), seeds=2)
    one = simulate(LOSS, INIT(jax.random.key(1)), Flow(20.0))
    np.testing.assert_allclose(flow["loss"][1], one.loss, rtol=1e-7)
    adam = sweep(LOSS, INIT, Descent(0.01, 20, Adam()), seeds=1)
    assert np.isnan(adam["time"]).all()
    assert adam["step"][-1] == 20


def test_final_sharpness_is_of_the_last_weights():
    from iclflow.dynamics import sharpness

    loss = Features.sample(TASK, 40, KEY)
    runs = sweep(loss, INIT, DESCENT, seeds=1)
    run = simulate(loss, INIT(jax.random.key(0)), DESCENT)
    assert float(runs["final_sharpness"][0]) == pytest.approx(
        float(sharpness(loss, run.model)), rel=1e-6
    )


def test_round_trip_through_a_file(tmp_path):
    runs = sweep(LOSS, INIT, DESCENT, seeds=2, record=["loss", "weights"])
    path = save(runs, tmp_path / "runs.nc")
    again = load(path)
    xr.testing.assert_identical(again.drop_attrs(), runs.drop_attrs())
    assert again.attrs["settings"] == runs.attrs["settings"]
    save(runs, path)  # the same run may be written again
    assert list(tmp_path.iterdir()) == [path]


def test_trajectory_round_trip():
    run = simulate(LOSS, INIT(KEY), DESCENT, record=["loss", "values"])
    back = from_dataset(to_dataset(run, {"what": "test"}))
    np.testing.assert_array_equal(back.loss, run.loss)
    np.testing.assert_array_equal(back["values"], run["values"])
    assert back.result == run.result
    with pytest.raises(ValueError, match="many runs"):
        from_dataset(sweep(LOSS, INIT, DESCENT, seeds=2))


def test_no_run_overwrites_another(tmp_path):
    path = save(sweep(LOSS, INIT, DESCENT), tmp_path / "runs.nc")
    other = sweep(LOSS, INIT, Descent(0.2, 60))
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="something else"):
        save(other, path)
    assert path.read_bytes() == before
    stranger = tmp_path / "note.nc"
    stranger.write_text("not a run")
    with pytest.raises(FileExistsError, match="something else"):
        save(other, stranger)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check_free(tmp_path / "no" / "runs.nc", "key")


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_truncated_files_are_one_line(tmp_path, keep):
    path = save(sweep(LOSS, INIT, DESCENT), tmp_path / "runs.nc")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="not a readable") as error:
        load(path)
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "missing.nc")
