"""Conserved quantities: exact under gradient flow, with a drift O(rate) under descent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax.flatten_util import ravel_pytree

from iclflow.losses import Moments, Population, Sequences
from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate, Softmax
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory import conservation_drift, conserved_quantities
from tests.helpers.theory_tasks import key, random_covariance

TASK = Task([0.5, 0.3, 0.2], 8, tasks=Normal(covariance=random_covariance(0, 3)), label_noise=0.2)
TWO = Task([0.6, 0.4], 5, tasks=Normal(outputs=2))


def cases():
    population = Population(TASK)
    merged = Merged.initialiser(TASK, heads=3, scale=1.0)(key(0))
    separate = Separate.initialiser(TASK, heads=2, rank=2, scale=1.5)(key(1))
    full = Moments.sample(TASK, 200, key(2))
    softmax = Separate.initialiser(TASK, heads=2, rank=2, scale=1.5)(key(3))
    return {
        "merged": (population, merged),
        "separate": (population, separate),
        "rank one": (population, Separate.initialiser(TASK, heads=2, scale=1.5)(key(4))),
        "mlp": (population, MLP.from_attention(merged)),
        "convnet": (population, ConvNet.from_attention(separate)),
        "merged, two outputs": (
            Population(TWO),
            Merged.initialiser(TWO, heads=3, scale=1.0)(key(5)),
        ),
        "separate, two outputs": (
            Population(TWO),
            Separate.initialiser(TWO, heads=2, rank=2, scale=1.5)(key(6)),
        ),
        "merged, full blocks": (
            full,
            Merged.initialiser(TASK, heads=2, scale=1.0, blocks=Blocks.FULL)(key(7)),
        ),
        "separate, full blocks": (
            full,
            Separate.initialiser(TASK, heads=2, rank=2, scale=1.5, blocks=Blocks.FULL)(key(8)),
        ),
        "softmax": (Sequences.sample(TASK, 10, key(9)), Softmax(softmax)),
    }


@pytest.fixture(scope="module")
def systems():
    return cases()


NAMES = [
    "merged",
    "separate",
    "rank one",
    "mlp",
    "convnet",
    "merged, two outputs",
    "separate, two outputs",
    "merged, full blocks",
    "separate, full blocks",
    "softmax",
]


@pytest.mark.parametrize("name", NAMES)
def test_exact_under_flow(systems, name):
    """(17)(79)(85), E7, along SciPy's flow of any loss."""
    loss, model = systems[name]
    flat, unravel = ravel_pytree(model)
    velocity = jax.jit(jax.grad(lambda w: -loss(unravel(w)) / 2))
    flow = scipy.integrate.solve_ivp(
        lambda _, w: np.asarray(velocity(w)),
        (0.0, 8.0),
        np.asarray(flat),
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
        t_eval=np.linspace(0, 8, 5),
    )
    assert flow.success
    moved = np.abs(flow.y[:, -1] - flow.y[:, 0]).max()
    assert moved > 0.05  # the weights went somewhere
    series = jax.jit(jax.vmap(lambda w: conserved_quantities(unravel(w))))(jnp.asarray(flow.y.T))
    for drift in conservation_drift(series).values():
        assert float(drift.max()) < 1e-10


@pytest.mark.parametrize("name", ["merged", "separate", "rank one"])
def test_drift_is_first_order_in_the_rate(systems, name):
    """E7: at one final time, halving η halves the drift."""
    loss, model = systems[name]

    def drift(rate):
        def step(weights, _):
            gradient = jax.grad(lambda m: loss(m))(weights)
            return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), conserved_quantities(
                weights
            )

        series = jax.lax.scan(step, model, None, length=round(3.0 / rate))[1]
        return {name: float(d[-1]) for name, d in conservation_drift(series).items()}

    coarse, fine = drift(0.01), drift(0.005)
    for quantity, value in coarse.items():
        assert value > 1e-6
        slope = np.log2(value / fine[quantity])
        assert 0.9 < slope < 1.1


def test_definitions():
    model = Separate.initialiser(TASK, heads=2, rank=2, scale=1.0)(key(0))
    found = conserved_quantities(model)
    k, q = np.asarray(model.keys), np.asarray(model.queries)
    v = np.asarray(model.values[:, 0, 0])
    for head in range(2):
        literal = k[head] @ k[head].T - q[head] @ q[head].T
        np.testing.assert_allclose(found["key_query"][head], literal, atol=1e-15)
        total = np.sum(k[head] ** 2) - v[head] ** 2
        np.testing.assert_allclose(found["key_value"][head], total, atol=1e-15)
    merged = Merged.initialiser(TASK, heads=3, scale=1.0)(key(0))
    w2, w1 = np.asarray(merged.values[:, 0, 0]), np.asarray(merged.merged).reshape(3, -1)
    literal = np.outer(w2, w2) - w1 @ w1.T
    np.testing.assert_allclose(conserved_quantities(merged)["value_merged"], literal, atol=1e-15)


def test_drift_of_a_series():
    series = {"a": jnp.array([[1.0, 2.0], [1.5, 2.0], [1.0, -1.0]])}
    np.testing.assert_allclose(conservation_drift(series)["a"], [0.0, 0.5, 3.0])


def test_no_known_quantity():
    merged = Merged.initialiser(TASK, heads=1, scale=1.0)(key(0))
    with pytest.raises(ValueError, match="no conserved quantity is known for Softmax"):
        conserved_quantities(Softmax(merged))
