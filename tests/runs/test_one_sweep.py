"""One sweep: the same cells in memory, in a store and on a cluster; own losses and summaries."""

import dataclasses
import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.runs import compute as computing
from iclflow.runs import sweep as sweeps
from iclflow.runs.batch import require_observers
from iclflow.study.study import Settings, Study
from iclflow.sweeps.design import Design, run

pytest.importorskip("zarr", reason="the extra sweep is not installed")

TASK = icl.Task([1.0, 0.5], context=8)
INIT = icl.Separate.initialiser(TASK, heads=2, scale=0.3)
AXES = {"scale": [0.3, 0.6]}


@cache
def sample():
    """A loss of prompts that no settings can state."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (64, 9, 2))
    y = jnp.tanh(x @ jnp.asarray([0.5, -1.0]))[..., None]
    return icl.Moments.of(icl.Prompt(x, y, y))


def square(model, loss):
    return jnp.sum(model.keys**2)


def least(runs):
    return runs.loss.min(axis=1)


OPTIONS = {
    "until": 60, "saveat": np.arange(0, 61, 2), "seeds": 3, "axes": AXES,
    "record": {"loss": "loss", "square": square, "drop_times": "drop_times",
               "least": icl.Summary(least, long_name="smallest loss")},
    "final": ["weights"],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    return icl.sweep(sample(), INIT, icl.Descent(0.1), **OPTIONS)


def assert_same(found, whole):
    for name, variable in whole.variables.items():
        assert found[name].dims == variable.dims, name
        np.testing.assert_array_equal(found[name].values, variable.values, err_msg=str(name))


def test_a_store_has_the_runs_that_memory_has(whole, tmp_path):
    """Own prompts, an own recorder and an own summary; the clock and the labels too."""
    found = icl.sweep(sample(), INIT, icl.Descent(0.1), store=tmp_path / "s.zarr", **OPTIONS)
    assert_same(found, whole)
    assert found["least"].attrs["long_name"] == "smallest loss"
    np.testing.assert_array_equal(whole["least"], whole["loss"].min("time"))
    for name in ("settings", "content_key", "rate", "clock", "engine"):
        assert found.attrs[name] == whole.attrs[name]


def test_it_goes_on_where_it_was_stopped_in_every_bit(whole, tmp_path, monkeypatch):
    path, compute, calls = tmp_path / "s.zarr", computing.compute, []
    monkeypatch.setattr("iclflow.runs.sweep.MOST", {"cpu": 2, "gpu": 2})  # cells of a block

    def stopping(block):
        calls.append(block)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return compute(block)

    monkeypatch.setattr(sweeps, "compute", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            icl.sweep(sample(), INIT, icl.Descent(0.1), store=path, **OPTIONS)
    found = icl.sweep(sample(), INIT, icl.Descent(0.1), store=path, **OPTIONS)
    assert len(calls) == 4 + 2  # four blocks, and two that were stopped
    for name in ("loss", "square", "drop_times", "final_keys"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-12)
    undisturbed = icl.sweep(sample(), INIT, icl.Descent(0.1), store=tmp_path / "u.zarr", **OPTIONS)
    assert_same(found, undisturbed)


def test_values_and_seeds_can_be_added_and_another_sweep_is_refused(tmp_path):
    path = tmp_path / "s.zarr"
    few = {**OPTIONS, "seeds": 2, "axes": {"scale": [0.6]}}
    first = icl.sweep(sample(), INIT, icl.Descent(0.1), store=path, **few).load()
    grown = icl.sweep(sample(), INIT, icl.Descent(0.1), store=path, **OPTIONS)
    assert grown["scale"].values.tolist() == [0.6, 0.3]
    kept = grown.sel(scale=[0.6], seed=[0, 1])
    np.testing.assert_array_equal(kept["loss"], first["loss"])
    for other in ({"until": 62}, {"final": []}, {"seeds": 1}, {"key": jax.random.key(3)}):
        with pytest.raises(ValueError, match="another name or move it away"):
            icl.sweep(sample(), INIT, icl.Descent(0.1), store=path, **{**OPTIONS, **other})
    with pytest.raises(ValueError, match="another name or move it away"):
        icl.sweep(TASK, INIT, icl.Descent(0.1), store=path, **OPTIONS)


class Here:
    """A client whose worker is this process; what is sent goes through bytes, as on a cluster."""

    loop = None

    def __init__(self):
        self.sent = 0

    def nthreads(self):
        return {"a": 1, "b": 1}

    def submit(self, function, block, pure):
        import cloudpickle

        self.sent += 1
        answer = function(cloudpickle.loads(cloudpickle.dumps(block)))
        return Done(self.sent, cloudpickle.loads(cloudpickle.dumps(answer)))


@dataclasses.dataclass
class Done:
    key: int
    answer: object
    status: str = "finished"

    def result(self):
        return self.answer


class Completed(list):
    add = list.append

    def __init__(self, loop):
        super().__init__()


class Temperature(icl.AbstractModel):
    """An own model: attention with a factor."""

    inner: icl.Separate
    factor: jax.Array

    def __call__(self, prompt):
        return self.factor * self.inner(prompt)


class Warm(icl.AbstractInitialiser):
    inner: icl.AbstractInitialiser

    def __call__(self, key):
        return Temperature(self.inner(key), jnp.asarray(1.1))


def own_loss(key):
    return icl.Sequences.sample(TASK, 8, key)


def test_a_cluster_takes_own_models_losses_optimisers_and_summaries(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra sweep is not installed")
    monkeypatch.setattr(distributed, "as_completed", Completed)
    options = {"until": 6, "seeds": 5, "vary": icl.Vary.DATA, "record": OPTIONS["record"]}
    options["record"] = {"loss": "loss", "least": icl.Summary(lambda runs: runs.loss.min(axis=1))}
    problem = (own_loss, Warm(INIT), icl.Descent(0.05, icl.Adam()))
    client = Here()
    monkeypatch.setattr("iclflow.runs.sweep.LEAST", 1)  # cells of a block
    found = icl.sweep(*problem, store=tmp_path / "s.zarr", client=client, **options)
    assert client.sent >= 2
    assert (found["failure"] == 0).all()
    expected = icl.sweep(*problem, **options)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)
    np.testing.assert_array_equal(found["least"], found["loss"].min("time"))
    assert found["time"].attrs == expected["time"].attrs  # steps: Adam keeps no clock


def test_a_cluster_without_a_store_is_one_line():
    with pytest.raises(ValueError, match="give its name too") as caught:
        icl.sweep(TASK, INIT, icl.Descent(0.1), until=5, client=Here())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"client": 3, "store": "s.zarr"}, r"client must be a distributed\.Client, .* got 3"),
        ({"store": ""}, "store must be the name of a file or folder, got ''"),
    ],
)
def test_what_cannot_look_on_compute_or_keep_is_one_line(given, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        icl.sweep(TASK, INIT, icl.Descent(0.1), until=5, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("observers", [3, None, print, [print], [3], "ab"])
def test_observers_are_a_list_of_what_can_look_on(observers):
    with pytest.raises(ValueError, match="observers must be a list of objects"):
        require_observers(observers)


def test_tests_of_a_design_are_those_of_each_point(tmp_path):
    """Points that differ in numbers are trained together, but each has a population of its own."""
    words = {"spectrum": [1.0, 0.5], "heads": 2, "rate": 0.1, "steps": 20, "save": "linear:3"}
    design = Design.of(**words, noise=[0.0, 1.0], record=["population_loss"])
    found = run(design, tmp_path / "s.zarr")
    for i, noise in enumerate((0.0, 1.0)):
        settings = Settings(**{**words, "spectrum": (1.0, 0.5), "noise": noise},
                            record=("population_loss",))  # fmt: skip
        alone = Study.of(settings).run()
        np.testing.assert_allclose(
            found["population_loss"][i], alone["population_loss"], rtol=1e-12
        )


def test_a_name_that_is_neither_a_quantity_nor_a_summary_is_refused_before_anything_runs(tmp_path):
    for store in (None, tmp_path / "s.zarr"):
        with pytest.raises(ValueError, match="did you mean 'drop_times'"):
            icl.sweep(TASK, INIT, icl.Descent(0.1), until=5, record=["drop_time"], store=store)
    assert not (tmp_path / "s.zarr").exists()


def test_drop_times_without_a_loss_keep_no_loss():
    runs = icl.sweep(TASK, INIT, icl.Descent(0.2), until=1500, seeds=2, record=["drop_times"])
    assert "loss" not in runs
    assert runs["drop_times"].dims == ("seed", "drop_number")
    assert np.isfinite(runs["drop_times"]).all()
    kept = icl.sweep(
        TASK, INIT, icl.Descent(0.2), until=1500, seeds=2, record=["loss", "drop_times"]
    )
    levels = icl.theory.plateau_losses(TASK)
    for row, times in zip(kept["loss"].values, kept["drop_times"].values, strict=True):
        middles = (np.asarray(levels[:-1]) + np.asarray(levels[1:])) / 2
        there = np.interp(times, kept["time"].values, row)
        np.testing.assert_allclose(there, middles, rtol=1e-9)


def test_the_public_sweep_loads_no_theory_until_it_is_asked():
    code = "import sys, iclflow as icl; icl.sweep; print([m for m in sys.modules if 'theory' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
