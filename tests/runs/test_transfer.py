"""Arrays on their way to the host, and answers that are found once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.models.base import empty_model, once_a_kind
from iclflow.runs import device


def test_to_the_host():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": [np.ones(2), jnp.asarray(True)]}
    found = device.to_host(tree)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))
    np.testing.assert_array_equal(found["a"], tree["a"])
    assert found["b"][1].item() is True


@pytest.mark.parametrize("most", [device.MOST, 0], ids=["pinned", "too large"])
def test_from_a_gpu_by_way_of_pinned_memory(monkeypatch, most):
    """A CPU has such a memory too; whether it is faster shows on a GPU alone."""
    ways = []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(device, "MOST", most)
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda a, to: ways.append(to.memory_kind) or put(a, to))
    found = device.to_host((jnp.arange(3), np.arange(2)))
    assert ways == (["pinned_host"] if most else [])
    np.testing.assert_array_equal(found[0], [0, 1, 2])


@pytest.mark.parametrize("cores", [1, 16])
@pytest.mark.parametrize("shape", [(7, 3), (2, 1), (1024, 1025)])
def test_copies(monkeypatch, cores, shape):
    monkeypatch.setattr(device, "cores", lambda: cores)
    monkeypatch.setattr(device, "LARGE", 8 * 7 * 3)
    given = np.random.default_rng(0).normal(size=shape[::-1]).T  # not in the order of rows
    given.flags.writeable = False
    found = device.copied(given)
    np.testing.assert_array_equal(found, given)
    assert found.flags.writeable
    assert not np.shares_memory(found, given)


def test_once_a_kind():
    asked = []

    @once_a_kind
    def size(tree, factor):
        asked.append(tree)
        return factor * sum(leaf.size for leaf in jax.tree.leaves(tree))

    assert size([jnp.ones(3)], 2) == size([jnp.zeros(3)], 2) == size([np.ones(3)], 2) == 6
    assert len(asked) == 1
    assert isinstance(asked[0][0], jax.ShapeDtypeStruct)
    assert size([jnp.ones(4)], 2) == 8
    assert size((jnp.ones(3),), 2) == 6
    assert size([jnp.ones(3, int)], 2) == 6
    assert isinstance(size([jnp.ones(3)], 2.0), float)  # equal to 2, and another kind
    assert len(asked) == 5


def test_an_empty_model_is_of_its_initialiser():
    task = icl.Task([0.6, 0.4], 5)
    two, three = (icl.Separate.initialiser(task, heads=h, scale=0.1) for h in (2, 3))
    other = icl.Separate.initialiser(task, heads=2, scale=0.7)
    assert empty_model(two) is empty_model(other)  # the scale changes no shape
    assert empty_model(three).keys.shape == (3, 1, 2)
    assert not np.any(empty_model(two).keys)


def test_the_precision_is_part_of_a_kind():
    @once_a_kind
    def numbers(size):
        return jnp.zeros(size)

    assert numbers(2).dtype == np.float64
    with jax.enable_x64(False):
        assert numbers(2).dtype == np.float32
