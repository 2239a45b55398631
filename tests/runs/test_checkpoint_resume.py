"""Checkpoints are exact and whole; a run that was killed goes on as if it had not been."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from iclflow.checkpoints import find_series, measure_series
from iclflow.results.tensors import load_tree, open_tensors, save_tree, write_tensors
from iclflow.runs.compute import final_models
from iclflow.runs.folder import PLAN, own_folder
from iclflow.runs.record import OUTCOMES
from iclflow.transformers import effective_ranks, spectrum
from tests.helpers.resumable_run import INIT, STEPS, run

ROOT = Path(__file__).parents[2]


def tree(zero=False):
    """Arrays of many kinds; zero, to be filled."""
    rng = np.random.default_rng(3)
    arrays = {
        "single": jnp.asarray(rng.normal(size=(3, 4)).astype(np.float32)),
        "double": [jnp.asarray(rng.normal(size=5)), jnp.asarray(np.pi)],
        "whole": (jnp.asarray(np.arange(3, dtype=np.int32)), np.array([True, False]), np.int8(7)),
        "nothing": jnp.asarray(np.zeros((0, 2))),
    }
    if zero:
        arrays = jax.tree.map(_zero, arrays)
    return arrays | {
        "keys": jax.random.split(jax.random.key(0 if zero else 3)),
        "words": "no array",
    }


def _zero(array):
    empty = np.zeros(array.shape, array.dtype)
    return jnp.asarray(empty) if isinstance(array, jax.Array) else empty


def same(first, second):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if isinstance(a, str):
            assert a == b
        elif isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
        else:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_a_tree_comes_back_in_every_bit(tmp_path):
    saved = tree()
    path = save_tree(tmp_path / "tree.safetensors", saved, {"content_key": "abc"})
    same(load_tree(path, tree(zero=True)), saved)
    with open_tensors(path) as file:
        assert file.metadata() == {"content_key": "abc"}
    assert [p.name for p in tmp_path.iterdir()] == ["tree.safetensors"]  # nothing left over


def test_the_file_is_safetensors_by_its_own_description(tmp_path):
    path = write_tensors(
        tmp_path / "a.safetensors", {"x": np.arange(6.0).reshape(2, 3)}, {"a": "b"}
    )
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert header["__metadata__"] == {"a": "b"}
    assert header["x"] == {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]}
    assert data[8 + length :] == np.arange(6.0).tobytes()


def damage(path, how):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if how == "cut in the data":
        return data[:-4]
    if how == "cut in the header":
        return data[: length // 2]
    if how == "empty":
        return b""
    if how == "not JSON":
        return data[:8] + b"?" * length + data[8 + length :]
    if how == "no table":
        return data[:8] + b"[]".ljust(length) + data[8 + length :]
    if how == "entry damaged":
        header["['single']"] = {"dtype": "F32"}
    text = json.dumps(header).encode().ljust(length)
    return data[:8] + text + data[8 + length :]


@pytest.mark.parametrize(
    "how",
    ["cut in the data", "cut in the header", "empty", "not JSON", "no table", "entry damaged"],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, how):
    path = save_tree(tmp_path / "tree.safetensors", tree())
    path.write_bytes(damage(path, how))
    with pytest.raises(ValueError, match=r"tree\.safetensors") as error:
        load_tree(path, tree())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"a": np.zeros(3)}, r"tensor \['b'\] is not expected"),
        ({"a": np.zeros(3), "b": np.zeros(2), "c": np.zeros(1)}, r"tensor \['c'\] is missing"),
        ({"a": np.zeros(4), "b": np.zeros(2)}, r"'a'\] is float64\[3\], needed float64\[4\]"),
        ({"a": np.zeros(3), "b": np.zeros(2, int)}, r"'b'\] is float64\[2\], needed int64\[2\]"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, like, words):
    path = save_tree(tmp_path / "x.safetensors", {"a": np.ones(3), "b": np.ones(2)})
    with pytest.raises(ValueError, match=words):
        load_tree(path, like)


def test_a_type_without_a_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tensor a has type complex128"):
        write_tensors(tmp_path / "x.safetensors", {"a": np.zeros(2, complex)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing interrupts, in as many pieces as those that are stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with mock.patch("iclflow.runs.batch.SAVE_EVERY", 0.0):
        return run(folder), folder


@pytest.fixture
def saving(monkeypatch):
    """Every piece goes to disk."""
    monkeypatch.setattr("iclflow.runs.batch.SAVE_EVERY", 0.0)


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*.*"))}


def require_equal(resumed, whole, folder=None):
    xr.testing.assert_identical(resumed, whole[0])
    if folder is not None:  # every file too: states and weights
        assert contents(folder) == contents(whole[1])


@pytest.mark.long
def test_without_a_folder_the_run_is_the_same(whole):
    """In other pieces, other programs: to rounding, which is single here."""
    for name, found in run().items():
        np.testing.assert_allclose(found, whole[0][name], rtol=1e-4, atol=1e-4, err_msg=str(name))
    losses = whole[0]["loss"].values
    assert losses.shape == (2, len(whole[0]["step"]))
    assert np.all(losses[:, -1] < losses[:, 0])
    models = final_models(whole[0], INIT)
    assert models.query.dtype == jnp.float32  # the rate is in double precision
    np.testing.assert_allclose(jnp.sum(models.query[1]), whole[0]["sum"][1, -1], rtol=1e-5)


def test_a_seed_does_not_depend_on_those_beside_it(whole):
    alone = run(seeds=[1])
    np.testing.assert_allclose(alone["loss"][0], whole[0]["loss"][1], rtol=1e-4)


@pytest.mark.usefixtures("saving")
def test_stopped_between_pieces_it_goes_on(tmp_path, whole):
    reached = []
    for stop in (1, 37, 90):

        def interrupt(done, total, stop=stop):
            reached.append(done)
            assert total == STEPS
            if done == stop:
                raise KeyboardInterrupt

        part = run(tmp_path, progress=interrupt)
        assert np.all(part["result"] == OUTCOMES.index("interrupted"))
        seen = part["step"].values <= stop
        np.testing.assert_array_equal(part["loss"][:, seen], whole[0]["loss"][:, seen])
        assert np.all(np.isnan(part["loss"][:, ~seen]))
    assert len(reached) <= 90 + 3  # only the pieces that were interrupted are trained again
    require_equal(run(tmp_path), whole, tmp_path)


def test_a_finished_run_is_not_trained_again(whole):
    pieces = []
    again = run(whole[1], progress=lambda done, total: pieces.append(done))
    assert pieces == []
    require_equal(again, whole)


@pytest.mark.usefixtures("saving")
@pytest.mark.slow
def test_in_several_batches_it_goes_on_as_planned(tmp_path, whole, monkeypatch):
    """Also if more memory is free then; the runs are those of one batch."""
    three = run(seeds=3)
    with monkeypatch.context() as patch:
        patch.setattr("iclflow.runs.batch.device_bytes", lambda: 1)

        def interrupt(done, total):
            assert total == 3 * STEPS
            if done == STEPS + 20:
                raise KeyboardInterrupt

        part = run(tmp_path / "a", seeds=3, progress=interrupt)
        np.testing.assert_array_equal(part["result"], [0, *2 * [OUTCOMES.index("interrupted")]])
        np.testing.assert_array_equal(part["stopped"][:2], [STEPS, 20])
        assert np.all(np.isnan(part["loss"][2]))
        once = run(tmp_path / "b", seeds=3)
    rest = run(tmp_path / "a", seeds=3)
    assert sorted(p.name for p in tmp_path.glob("a/batch-*")) == [
        f"batch-000{i}.safetensors" for i in range(3)
    ]
    require_equal(rest, (once, tmp_path / "b"), tmp_path / "a")
    for name in ("loss", "sum", "final_query"):
        np.testing.assert_allclose(rest[name], three[name], rtol=1e-3, atol=1e-5)


def kill_at(folder, line, delay=0.0):
    """Train in another process and kill it after it has printed so many lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.resumable_run", str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    seen = 0
    for _ in process.stdout:
        seen += 1
        if seen == line:
            time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
            break
    process.communicate()
    return seen, process.returncode


@pytest.mark.long
def test_killed_it_goes_on(tmp_path, whole):
    seen, code = kill_at(tmp_path, 40, 0.003)
    assert (seen, code) == (40, -signal.SIGKILL)
    assert (tmp_path / PLAN).exists()
    pieces = []
    again = run(tmp_path, progress=lambda done, total: pieces.append(done))
    assert pieces[0] >= 39  # the first of the lines was of step 0
    require_equal(again, whole, tmp_path)


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on(tmp_path, whole):
    rng = np.random.default_rng()  # any moment: not the same ones each time
    for _ in range(8):
        moment = int(rng.integers(1, 30)), float(rng.uniform(0, 0.05))
        if kill_at(tmp_path, *moment)[1] == 0:
            break  # it had finished before
    require_equal(run(tmp_path), whole, tmp_path)


def test_a_folder_with_another_run_is_refused(whole):
    for other in ({"rate": 1e-3}, {"seeds": 1}, {"saveat": [0, 5]}):
        with pytest.raises(ValueError, match="holds another run") as error:
            run(whole[1], **other)
        assert "\n" not in str(error.value)


def test_folders_of_their_own(tmp_path, monkeypatch):
    assert own_folder(None, __name__, {"a": 1}) is None
    first = own_folder(tmp_path, __name__, {"a": 1})
    assert first == own_folder(tmp_path, __name__, {"a": 1})
    assert first != own_folder(tmp_path, __name__, {"a": 2})
    monkeypatch.setattr("iclflow.runs.folder.code_key", lambda *modules: "other code")
    assert first != own_folder(tmp_path, __name__, {"a": 1})


def test_a_run_that_diverges_is_a_result():
    broken = run(rate=1e12)
    assert np.all(broken["result"] != 0) or not np.all(np.isfinite(broken["loss"]))
    assert np.all(np.isfinite(broken["loss"][:, 0]))


def test_snapshots_are_of_seeds_alone(tmp_path):
    with pytest.raises(ValueError, match="named by their seed"):
        run(tmp_path, saveat=[0], axes={"rate": [1e-3, 2e-3]})


def test_diagnose_reads_the_weights(whole):
    """The measures of the saved weights are those taken on the device."""
    trained, folder = whole
    series = find_series(folder / "seed-1")
    assert [c.step for c in series] == trained["step"].values.tolist()
    data = measure_series(series, measures=("effective_rank", "norm"), rank=2)
    last = jax.tree.map(lambda a: a[1], final_models(trained, INIT))
    ranks = effective_ranks(spectrum(last, 2).values)
    found = data["effective_rank"].isel(step=-1).transpose("circuit", "layer", "head")
    np.testing.assert_allclose(found, ranks, rtol=1e-4)
