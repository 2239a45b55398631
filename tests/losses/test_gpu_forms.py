"""What is computed otherwise is the same: small contractions, and the loop of descent on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow import linalg
from iclflow.dynamics import Descent
from iclflow.dynamics.descent import repeat
from iclflow.losses import Population
from iclflow.models import Separate
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from tests.helpers.cases import KEY

SIZES = dict(zip("abcdefgh", (2, 3, 4, 2, 3, 1, 2, 5), strict=True))


@pytest.fixture
def gpu(monkeypatch):
    """The programs for a GPU, on this machine; nothing compiled otherwise is taken for them."""
    jax.clear_caches()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield
    jax.clear_caches()


@pytest.mark.parametrize(
    "subscripts",
    ["ab,bc->ac", "ab,bc->ca", "a,a->", "ab->ba", "ab,cb,bde->dace", "ab,ab->a", "hac,hbc->ab",
     "fa,af->f", "ab,cd->dbca", "abcd,bd,ca->"],
)  # fmt: skip
def test_contractions(subscripts, monkeypatch):
    rng = np.random.default_rng(0)
    names = subscripts.split("->")[0].split(",")
    arrays = [jnp.asarray(rng.normal(size=[SIZES[n] for n in name])) for name in names]
    wanted = jnp.einsum(subscripts, *arrays)
    weights = jnp.asarray(rng.normal(size=wanted.shape))

    def total(form):
        return lambda arrays: jnp.sum(weights * form(subscripts, *arrays))

    gradient = jax.jit(jax.grad(total(jnp.einsum)))(arrays)
    monkeypatch.setattr(jnp, "einsum", None)  # so that it is the other form
    np.testing.assert_allclose(linalg.contract(subscripts, *arrays), wanted, rtol=0, atol=1e-13)
    ours = jax.jit(jax.grad(total(linalg.contract)))(arrays)
    for found, one in zip(ours, gradient, strict=True):
        np.testing.assert_allclose(found, one, rtol=0, atol=1e-13)
    batch = [jnp.stack([array, -array]) for array in arrays]
    both = jax.jit(jax.vmap(lambda *a: linalg.contract(subscripts, *a)))(*batch)
    np.testing.assert_allclose(both[1], (-1) ** len(arrays) * wanted, rtol=0, atol=1e-13)


def step(state):
    """Not linear, and no two numbers of steps end at the same state."""
    return {"x": 1.4 - 0.3 * state["x"] ** 2, "count": state["count"] + 1}


def after(start, count):
    return repeat(step, {"x": start, "count": jnp.zeros((), int)}, count)


@pytest.mark.usefixtures("gpu")
def test_the_loop_makes_as_many_steps():
    start = jnp.asarray([0.3, 0.9])
    found = jax.jit(jax.vmap(after, in_axes=(None, 0)))(start, jnp.arange(71))
    wanted = start
    for count in range(71):
        np.testing.assert_allclose(found["x"][count], wanted, rtol=0, atol=1e-14)
        wanted = step({"x": wanted, "count": 0})["x"]
    np.testing.assert_array_equal(found["count"], np.arange(71))


@pytest.mark.usefixtures("gpu")
def test_the_loop_has_a_gradient():
    start = jnp.asarray([0.3, 0.9])
    found = jax.jit(jax.grad(lambda x, n: jnp.sum(after(x, n)["x"])))
    x, slope = start, jnp.ones(2)
    for count in range(71):
        if count in (0, 1, 31, 32, 33, 64, 70):
            np.testing.assert_allclose(found(start, count), slope, rtol=1e-12)
        slope = slope * -0.6 * x
        x = step({"x": x, "count": 0})["x"]


def test_a_run_is_the_same_run(request):
    task = Task([0.5, 0.3, 0.2], 9)
    model = Separate.initialiser(task, heads=3, rank=2, scale=0.5)(KEY)

    def losses():
        return simulate(Population(task), model, Descent(0.3), saveat=[0, 1, 37, 100]).loss

    here = losses()
    request.getfixturevalue("gpu")
    np.testing.assert_allclose(losses(), here, rtol=0, atol=1e-14)
