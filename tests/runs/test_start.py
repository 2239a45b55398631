"""A sweep that goes on from the last weights of an earlier one."""

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.runs.cells import Given

TASK = icl.Task([1.0, 0.5], context=8)
INIT = icl.Separate.initialiser(TASK, heads=2, scale=0.3)
DESCENT = icl.Descent(0.1)
AXES = {"scale": [0.3, 0.6]}
OPTIONS = {"seeds": [3, 5, 8], "axes": AXES, "final": ["weights"]}


@pytest.fixture(scope="module")
def earlier():
    return icl.sweep(TASK, INIT, DESCENT, until=30, saveat=[0, 30], **OPTIONS)


def test_two_halves_are_one_run(earlier, tmp_path):
    """All seeds and axes go on, from memory, from a file, and into a store."""
    whole = icl.sweep(TASK, INIT, DESCENT, until=50, saveat=[30, 40, 50], **OPTIONS)
    icl.save(earlier, tmp_path / "earlier.nc")
    read = icl.load(tmp_path / "earlier.nc")
    options = {"until": 20, "saveat": [0, 10, 20]}
    for start, more in ((earlier, {}), (read, {"store": tmp_path / "s.zarr"})):
        later = icl.sweep(TASK, INIT, DESCENT, start=start, **options, **more)
        assert later["loss"].dims == ("scale", "seed", "time")
        assert later["seed"].values.tolist() == [3, 5, 8]
        np.testing.assert_allclose(later["loss"], whole["loss"], rtol=1e-13)
    some = icl.sweep(TASK, INIT, DESCENT, start=earlier, seeds=[8], **options)
    np.testing.assert_allclose(some["loss"], whole["loss"][:, 2:], rtol=1e-13)


def test_starts_are_read_by_the_names_of_their_axes():
    """Keys of as many heads as inputs, transposed since they were written."""
    options = {"until": 5, "seeds": 3, "final": ["weights"]}
    earlier = icl.sweep(TASK, INIT, DESCENT, axes=AXES, **options)
    turned = earlier.map(lambda a: a.transpose(*reversed(a.dims)))
    assert turned["final_keys"].dims == ("row", "pair", "head", "seed", "scale")
    first, second = (
        icl.sweep(TASK, INIT, DESCENT, until=5, start=start) for start in (earlier, turned)
    )
    np.testing.assert_array_equal(first["loss"], second["loss"])
    models = [icl.runs.compute.final_models(runs.isel(scale=1), INIT) for runs in (earlier, turned)]
    np.testing.assert_array_equal(models[0].keys, models[1].keys)


def test_another_task_and_further_axes(earlier):
    """The axis of the start chooses the start alone; a new one sets its field."""
    noisy = TASK.replace(label_noise=1.0)
    later = icl.sweep(noisy, INIT, DESCENT, until=10, saveat=[0, 10], start=earlier,
                      axes={"rate": [0.05, 0.1]})  # fmt: skip
    assert later["loss"].dims == ("scale", "rate", "seed", "time")
    models = icl.runs.compute.final_models(earlier.isel(scale=1), INIT)
    first = icl.simulate(icl.Population(noisy), _one(models, 2), icl.Descent(0.05), saveat=[0, 10])
    np.testing.assert_allclose(later["loss"].values[1, 0, 2], first.loss, rtol=1e-12)


def _one(models, index):
    return jax.tree.map(lambda a: a[index], models)


def test_sizes_that_vary_are_given_again():
    heads = {"heads": [1, 2]}
    earlier = icl.sweep(TASK, INIT, DESCENT, until=4, saveat=[4], axes=heads, final=["weights"])
    later = icl.sweep(TASK, INIT, DESCENT, until=2, saveat=[0, 2], axes=heads, start=earlier)
    np.testing.assert_allclose(later["loss"][:, :, 0], earlier["loss"][:, :, -1], rtol=1e-13)
    one = icl.Separate.initialiser(TASK, heads=1, scale=0.3)
    with pytest.raises(ValueError, match="axes of its sizes"):
        icl.sweep(TASK, one, DESCENT, until=2, start=earlier)


def test_what_cannot_be_gone_on_from_is_one_line(earlier):
    without = earlier.drop_vars([name for name in earlier if str(name).startswith("final_")])
    cases = [
        ({"start": without}, r'final=\["weights"\]'),
        ({"start": earlier["loss"].to_dataset().isel(seed=0)}, "with its seeds"),
        ({"start": earlier, "seeds": [4]}, "no seed 4"),
        ({"start": earlier, "axes": {"scale": [0.3, 0.7]}}, "give the same ones"),
        ({"start": earlier.assign(result=earlier["result"] * 0 + 4)}, "interrupted"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            icl.sweep(TASK, INIT, DESCENT, until=2, **options)
        assert "\n" not in str(caught.value)


def test_a_given_start_draws_nothing(earlier):
    model = INIT(jax.random.key(1))
    assert Given(model)(jax.random.key(7)) is model
