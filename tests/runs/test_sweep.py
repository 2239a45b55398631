import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from iclflow.checkpoints.series import find_series
from iclflow.dynamics import Adam, Descent, Flow, sharpness
from iclflow.losses import Features, Minibatch, Moments, Population
from iclflow.models import Separate, SoftmaxInitialiser, draw_models, empty_model
from iclflow.results.netcdf import check_free, load, save
from iclflow.results.tensors import open_tensors
from iclflow.runs import compute, cost, device
from iclflow.runs.compute import final_models
from iclflow.runs.cost import COPIES
from iclflow.runs.folder import Snapshots
from iclflow.runs.record import OUTCOMES
from iclflow.runs.simulate import simulate
from iclflow.runs.sweep import Vary, sweep
from iclflow.tasks.checks import RESERVE
from iclflow.tasks.task import Task
from tests.helpers.cases import KEY, TASKS

TASK = Task([0.5, 0.3, 0.2], 9)
LOSS = Population(TASK)
INIT = Separate.initialiser(TASK, heads=3, rank=1, scale=0.5)
DESCENT, UNTIL = Descent(0.3), 60


def test_every_seed_is_a_simulation():
    runs = sweep(LOSS, INIT, DESCENT, until=UNTIL, seeds=[0, 4], record=["loss", "weights"])
    assert runs["loss"].dims == ("seed", "time")
    for seed in (0, 4):
        start = INIT(jax.random.key(seed))
        one = simulate(LOSS, start, DESCENT, until=UNTIL, record=["loss", "weights"])
        row = runs.sel(seed=seed)
        np.testing.assert_allclose(row["loss"], one.loss, atol=1e-14)
        np.testing.assert_allclose(row["keys"], one["weights"]["keys"], atol=1e-13)
        np.testing.assert_array_equal(row["time"], one.time)
    assert np.all(runs["result"] == OUTCOMES.index("finished"))
    assert "units" in runs["loss"].attrs


def test_axes_of_every_kind():
    axes = {"context": [5, 9], "rank": [1, 2], "rate": [0.1, 0.3], "scale": [0.5]}
    runs = sweep(TASK, INIT, DESCENT, until=UNTIL, seeds=2, axes=axes, record=["loss", "weights"])
    assert dict(runs["loss"].sizes) | {"time": 0} == {
        "context": 2, "rank": 2, "rate": 2, "scale": 1, "seed": 2, "time": 0,
    }  # fmt: skip
    init = Separate.initialiser(TASK, heads=3, rank=2, scale=0.5)
    short = Population(TASK.replace(context=5))
    one = simulate(short, init(jax.random.key(1)), Descent(0.1), until=UNTIL)
    point = runs.sel(context=5, rank=2, rate=0.1, seed=1).isel(scale=0)
    np.testing.assert_allclose(point["loss"], one.loss, atol=1e-14)
    np.testing.assert_allclose(point["clock"], one.time)
    assert np.isnan(runs.sel(rank=1)["keys"].isel(pair=1)).all()


def test_an_axis_inside_a_wrapper():
    from iclflow.losses import Sequences

    loss = Sequences.sample(TASK, 30, KEY)
    init = SoftmaxInitialiser(INIT)
    runs = sweep(loss, init, Descent(0.1), until=5, axes={"scale": [0.1, 1.0]})
    assert not np.array_equal(runs["loss"][0], runs["loss"][1])


@pytest.mark.parametrize("vary", Vary)
def test_what_the_seeds_change(vary):
    runs = sweep(
        lambda key: Moments.sample(TASK, 30, key), INIT, Descent(0.1),
        until=5, seeds=3, vary=vary, record=["loss", "weights"],
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
    for wrong, words in (
        ({"axes": {"contxt": [1]}}, "contxt"),
        ({"axes": {"context": []}}, "at least one value on every axis"),
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": [0, -1]}, "a seed must be a whole number of at least 0, got -1"),
        ({"seeds": [2**32]}, "got 4294967296"),
        ({"seeds": [3, 1, 3]}, "different whole numbers .* got one twice"),
        ({"vary": Vary.DATA}, "key -> loss"),
        ({"saveat": [0, 61]}, "saveat asks for 61, but the run ends at 60"),
        ({"until": None}, "say when the run ends: until="),
        ({"record": ["rate"]}, "quantity to record"),
        ({"final": ["rate"]}, "quantity to record"),
        ({"final": ["conserved_drift"]}, "change since the start"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            sweep(TASK, INIT, DESCENT, **{"until": UNTIL, **wrong})
        assert "\n" not in str(error.value)


def test_a_flow_refuses_losses_that_draw():
    loss = Minibatch(Features.sample(TASK, 20, KEY), 5)
    with pytest.raises(ValueError, match="Minibatch draws a new batch for every step; use Descent"):
        sweep(loss, INIT, Flow(), until=1.0)


def test_the_end_is_always_saved():
    runs = sweep(LOSS, INIT, DESCENT, until=UNTIL, saveat=[0, 7])
    assert runs["step"].values.tolist() == [0, 7, 60]
    one = simulate(LOSS, INIT(jax.random.key(0)), DESCENT, until=UNTIL)
    assert float(runs["loss"][0, -1]) == pytest.approx(float(one.loss[-1]), abs=1e-14)


def test_starts_are_drawn_from_their_own_keys():
    """Together, as `draw_models` does: seed s is `init(jax.random.key(s))`, up to the largest."""
    seeds = [5, 0, 2**32 - 1]
    runs = sweep(LOSS, INIT, DESCENT, until=0, seeds=seeds, record=["weights"])
    models = draw_models(INIT, seeds)
    for i, seed in enumerate(seeds):
        one = INIT(jax.random.key(seed)).weights()
        for name, array in models.weights().items():
            np.testing.assert_allclose(array[i], one[name], rtol=0, atol=1e-15)
            recorded = runs[name].values[i, 0].reshape(array[i].shape)
            np.testing.assert_allclose(recorded, one[name], rtol=0, atol=1e-15)


def test_several_sources_are_an_axis():
    """Losses of one shape or not; a task stands for its population."""
    long = TASK.replace(context=20)
    sources = {"a": LOSS, "b": long, "c": Moments.sample(TASK, 40, KEY)}
    runs = sweep(sources, INIT, DESCENT, until=UNTIL, seeds=2, axes={"rate": [0.1, 0.3]})
    assert runs["loss"].dims == ("source", "rate", "seed", "time")
    assert runs["source"].values.tolist() == list(sources)
    for name, loss in {**sources, "b": Population(long)}.items():
        alone = sweep(loss, INIT, DESCENT, until=UNTIL, seeds=2)
        found = runs["loss"].sel(source=name, rate=0.3)
        np.testing.assert_allclose(found, alone["loss"], atol=1e-14)


@pytest.mark.parametrize("memory", [1, 5000, 10**9], ids=["one by one", "a few", "together"])
def test_batches_are_made_to_fit(memory, monkeypatch):
    """However many, the runs are the same runs, and progress counts them all."""
    whole = sweep(LOSS, INIT, DESCENT, until=UNTIL, seeds=5, axes={"rate": [0.1, 0.3]})
    monkeypatch.setattr("iclflow.runs.batch.device_bytes", lambda: memory)
    seen = []
    runs = sweep(
        LOSS, INIT, DESCENT, until=UNTIL, seeds=5, axes={"rate": [0.1, 0.3]},
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    count = {1: 10, 5000: 5, 10**9: 1}[memory]
    assert len(seen) == count
    assert seen[-1] == (UNTIL * count, UNTIL * count)
    np.testing.assert_allclose(runs["loss"], whole["loss"], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(runs["clock"], whole["clock"])


@pytest.mark.parametrize("dynamics", [DESCENT, pytest.param(Flow(), marks=pytest.mark.long)])
def test_shares_on_several_cores_change_nothing(dynamics, monkeypatch):
    """Fourteen runs at once, and in shares of four of which the last two have two in common."""
    axes = {"context": [5, 9]}
    monkeypatch.setattr(device, "cores", lambda: 2)

    def run(fewest, row, most):
        for name, value in (("FEWEST", fewest), ("ROW", row)):
            monkeypatch.setattr(device, name, value)
        monkeypatch.setattr("iclflow.runs.cost.share", lambda *_: most)
        return sweep(TASK, INIT, dynamics, until=9, seeds=7, axes=axes, record=["loss", "weights"])

    whole = run(100, 1, 100)
    assert device.share_size(14, 4) == 14
    shared = run(2, 2, 4)
    assert device.share_size(14, 4) == 4
    xr.testing.assert_allclose(shared, whole, rtol=1e-14, atol=1e-14)


def test_a_share_of_runs_fits_into_the_caches_of_a_core(monkeypatch):
    monkeypatch.setattr(device, "cores", lambda: 3)
    size = device.share_size
    assert [size(n) for n in (1, 127, 128, 193, 3000)] == [1, 127, 64, 80, 1008]
    assert size(3000, 300) == 256  # four shares for each of three cores
    assert size(3000, 1) == 64
    like = INIT(jax.random.key(0))
    weights = cost.numbers(like)
    assert cost.share(like, 0) * cost.run_bytes(like, 0, 0) <= cost.SHARE
    assert cost.share(like, cost.SHARE) == 1
    assert cost.share(like, 64 * weights) == cost.share(like, 0) // 2


def test_a_compiler_without_the_option_is_not_given_it(monkeypatch):
    assert device._options() in ({}, device.OPTIONS)
    monkeypatch.setattr(device, "OPTIONS", {"xla_cpu_no_such_option": "1"})
    assert device._options() == {}


def test_failure_of_one_run_is_its_result():
    runs = sweep(LOSS, INIT, DESCENT, until=UNTIL, axes={"rate": [0.3, 80.0]}, seeds=2)
    assert OUTCOMES[int(runs["result"].sel(rate=0.3)[0])] == "finished"
    assert np.all(runs["result"].sel(rate=80.0) == OUTCOMES.index("diverged"))
    assert np.isfinite(runs["loss"].sel(rate=80.0)[:, 0]).all()


def test_interruption_keeps_what_was_computed(monkeypatch):
    monkeypatch.setattr("iclflow.runs.batch.BRIEF", 0.0)  # also a short run is cut into pieces

    def stop(done, total):
        if done > 10:
            raise KeyboardInterrupt

    runs = sweep(LOSS, INIT, DESCENT, until=UNTIL, seeds=2, progress=stop)
    loss = runs["loss"].values
    assert np.isfinite(loss[:, 0]).all()
    assert np.isnan(loss[:, -1]).all()
    assert np.all(runs["result"] == OUTCOMES.index("interrupted"))
    whole = sweep(LOSS, INIT, DESCENT, until=UNTIL, seeds=2)["loss"].values
    kept = np.isfinite(loss)
    np.testing.assert_array_equal(loss[kept], whole[kept])


def test_progress_reaches_the_end(monkeypatch):
    monkeypatch.setattr("iclflow.runs.batch.BRIEF", 0.0)
    seen = []
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    sweep(LOSS, INIT, DESCENT, until=UNTIL, progress=report)
    assert len(seen) > 1
    assert seen[-1] == (60.0, 60.0)
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(seen))


@pytest.mark.slow
def test_flow_and_adam():
    flow = sweep(LOSS, INIT, Flow(), until=20.0, seeds=2)
    one = simulate(LOSS, INIT(jax.random.key(1)), Flow(), until=20.0)
    np.testing.assert_allclose(flow["loss"][1], one.loss, rtol=1e-7)
    adam = sweep(LOSS, INIT, Descent(0.01, Adam()), until=20, seeds=1)
    assert adam["time"].attrs["long_name"] == "training steps"
    np.testing.assert_array_equal(adam["time"], adam["step"])
    assert adam["step"][-1] == 20


def test_final_is_of_the_last_weights():
    loss = Features.sample(TASK, 40, KEY)
    final = {"sharpness": lambda model, loss: sharpness(loss, model), "weights": "weights"}
    runs = sweep(loss, INIT, DESCENT, until=UNTIL, seeds=2, final=final)
    run = simulate(loss, INIT(jax.random.key(1)), DESCENT, until=UNTIL)
    found = float(runs["final_sharpness"].sel(seed=1))
    assert found == pytest.approx(float(sharpness(loss, run.model)), rel=1e-6)
    assert runs["final_keys"].dims == ("seed", "head", "pair", "row")
    models = final_models(runs, INIT)
    for mine, other in zip(jax.tree.leaves(models), jax.tree.leaves(run.model), strict=True):
        np.testing.assert_allclose(mine[1], other, rtol=0, atol=1e-13)


def test_final_curvature_is_that_of_the_last_save_point():
    options = {"until": UNTIL, "saveat": [UNTIL], "seeds": 2}
    runs = sweep(LOSS, INIT, DESCENT, record=["sharpness"], final=["sharpness"], **options)
    assert set(runs) == {"sharpness", "final_sharpness", "result", "stopped"}
    np.testing.assert_array_equal(runs["final_sharpness"], runs["sharpness"].isel(time=-1))


def test_final_names_alone():
    runs = sweep(LOSS, INIT, DESCENT, until=UNTIL, final=["loss", "effective"])
    np.testing.assert_array_equal(runs["final_loss"], runs["loss"][:, -1])
    assert runs["final_effective"].dims == ("seed", "row", "column")


def test_arrays_have_the_axes_of_the_model_or_numbers():
    """Several outputs too: the effective weights are [output, label, row, column]."""
    task = TASKS["outputs"]()
    init = Separate.initialiser(task, heads=3, rank=1, scale=0.5)
    record = {"effective": "effective", "square": lambda model, loss: model.keys[:, 0] ** 2}
    runs = sweep(Population(task), init, DESCENT, until=2, saveat=[2], record=record)
    assert runs["effective"].dims == ("seed", "time", "output", "label", "row", "column")
    assert runs["effective"].shape == (1, 1, 2, 2, 2, 2)
    assert runs["square"].dims == ("seed", "time", "square_0", "square_1")


@pytest.mark.parametrize(
    "dynamics",
    [
        pytest.param(DESCENT, id="descent"),
        pytest.param(Flow(), id="flow", marks=pytest.mark.slow),
    ],
)
def test_a_store_goes_on_in_every_bit(dynamics, tmp_path, monkeypatch):
    """Interrupted after every few pieces, the run is the run that was not."""
    monkeypatch.setattr("iclflow.runs.batch.SAVE_EVERY", 0.0)
    monkeypatch.setattr("iclflow.runs.batch.MANY_PIECES", 8)
    options = {"until": UNTIL, "saveat": [0, 5, 6, 50], "seeds": 2, "record": ["loss", "weights"]}
    whole = sweep(LOSS, INIT, dynamics, store=tmp_path / "whole", **options)
    for _ in range(20):
        left = iter(range(3))

        def stop(done, total, left=left):
            if next(left) == 2:
                raise KeyboardInterrupt

        part = sweep(LOSS, INIT, dynamics, store=tmp_path / "parts", progress=stop, **options)
        if np.all(part["result"] == 0):
            break
        assert np.all(part["result"] == OUTCOMES.index("interrupted"))
    xr.testing.assert_identical(part, whole)
    free = sweep(LOSS, INIT, dynamics, **options)
    np.testing.assert_allclose(free["loss"], whole["loss"], rtol=1e-7)


def test_pieces_with_and_without_a_save_point_are_one_program(tmp_path, monkeypatch, caplog):
    """Step 6 to step 50 are several pieces, and only the last of them records."""
    monkeypatch.setattr("iclflow.runs.batch.SAVE_EVERY", 0.0)
    monkeypatch.setattr("iclflow.runs.batch.MANY_PIECES", 8)
    asked = {"saveat": [0, 5, 6, 50], "seeds": 7, "record": ["loss", "weights"]}
    with jax.log_compiles(), caplog.at_level("WARNING"):
        runs = sweep(LOSS, INIT, DESCENT, store=tmp_path / "many", **asked)
    made = [m for m in caplog.messages if "Finished XLA compilation of jit(_advanced)" in m]
    assert len(made) == 1
    free = sweep(LOSS, INIT, DESCENT, **asked)
    for name in runs.data_vars:
        np.testing.assert_allclose(runs[name], free[name], rtol=1e-7)


def test_snapshots_of_a_flow_below_one_have_names_of_their_own(tmp_path):
    marks = [0.0, 0.25, 0.5, 1.5]
    watch = Snapshots(tmp_path, lambda model: {"keys": model.keys})
    runs = sweep(LOSS, INIT, Flow(), saveat=marks, observers=[watch], record=["weights"])
    files = find_series(tmp_path / "seed-0")
    assert [file.step for file in files] == [0, 1, 2, 3]
    for i, file in enumerate(files):
        with open_tensors(file.label) as tensors:
            assert float(tensors.metadata()["time"]) == marks[i]
            np.testing.assert_allclose(tensors.get_tensor("keys"), runs["keys"][0, i], rtol=1e-12)


@pytest.mark.parametrize("record", [["loss"], ["loss", "weights"]])
def test_what_is_recorded_counts_in_the_size_of_a_batch(monkeypatch, record):
    """Memory for the weights at 30 save points of two runs, and no more."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(empty_model(INIT)))
    each = 8 * (COPIES * weights + 30 * (1 + weights * ("weights" in record))) + LOSS.scratch()
    found, batch = [], compute.run_batch
    monkeypatch.setattr("iclflow.runs.batch.device_bytes", lambda: 2.5 * each / RESERVE)
    monkeypatch.setattr(compute, "run_batch", lambda b, *a: found.append(b.count) or batch(b, *a))
    sweep(LOSS, INIT, DESCENT, saveat=np.arange(30), seeds=4, record=record)
    assert found == [2, 2]


def test_a_store_knows_a_function_by_its_code(tmp_path, monkeypatch):
    monkeypatch.setattr("iclflow.runs.batch.SAVE_EVERY", 0.0)  # a run of many pieces is kept

    def power(n):
        return {"loss": "loss", "power": lambda model, loss: jnp.sum(model.keys**n)}

    options = {"until": 5, "store": tmp_path}
    first = sweep(LOSS, INIT, DESCENT, record=power(2), **options)
    again = sweep(LOSS, INIT, DESCENT, record=power(2), **options)
    xr.testing.assert_identical(first, again)
    with pytest.raises(ValueError, match="holds another run"):
        sweep(LOSS, INIT, DESCENT, record=power(3), **options)


def test_a_run_that_is_over_before_it_would_be_saved_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "run"
    first = sweep(LOSS, INIT, DESCENT, until=5, store=folder)
    assert list(folder.iterdir()) == []
    xr.testing.assert_identical(first, sweep(LOSS, INIT, DESCENT, until=5, store=folder))


def test_an_interrupt_before_the_second_batch_keeps_the_first(monkeypatch):
    monkeypatch.setattr("iclflow.runs.batch.device_bytes", lambda: 1)
    batch = compute.run_batch

    def stopped(b, number, *rest):
        if number == 1:
            raise KeyboardInterrupt
        return batch(b, number, *rest)

    monkeypatch.setattr(compute, "run_batch", stopped)
    runs = sweep(LOSS, INIT, DESCENT, until=5, seeds=2)
    np.testing.assert_array_equal(runs["result"], [0, OUTCOMES.index("interrupted")])
    assert np.isfinite(runs["loss"].values[0]).all()


def test_round_trip_through_a_file(tmp_path):
    runs = sweep(LOSS, INIT, DESCENT, until=UNTIL, seeds=2, record=["loss", "weights"])
    path = save(runs, tmp_path / "runs.nc")
    again = load(path)
    xr.testing.assert_identical(again.drop_attrs(), runs.drop_attrs())
    assert again.attrs["settings"] == runs.attrs["settings"]
    save(runs, path)  # the same run may be written again
    assert list(tmp_path.iterdir()) == [path]


def test_no_run_overwrites_another(tmp_path):
    path = save(sweep(LOSS, INIT, DESCENT, until=UNTIL), tmp_path / "runs.nc")
    other = sweep(LOSS, INIT, Descent(0.2), until=UNTIL)
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
    path = save(sweep(LOSS, INIT, DESCENT, until=UNTIL), tmp_path / "runs.nc")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="not a readable") as error:
        load(path)
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "missing.nc")


@pytest.mark.long
def test_a_flow_that_used_up_its_steps_records_no_more(monkeypatch):
    """In several pieces as in one: what comes after the limit is NaN, and the result says so."""
    monkeypatch.setattr("iclflow.runs.batch.BRIEF", 0.0)
    runs = sweep(LOSS, INIT, Flow(1e-12, max_steps=30), until=200.0, seeds=2)
    assert np.all(runs["result"] == OUTCOMES.index("step_limit"))
    known = np.isfinite(runs["loss"].values)
    assert known[:, 0].all()
    assert not known[:, -1].any()
    assert np.all(np.diff(known.astype(int), axis=1) <= 0)  # never again after the limit
