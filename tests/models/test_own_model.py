"""A model of a user's own, in this one file: everything works from the contract."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import iclflow as icl
from iclflow.diagnosis import diagnose_run
from iclflow.losses.features import is_linear
from iclflow.plots.losses import loss_figure

TASK = icl.Task([0.5, 0.3, 0.2], 15)


class Gated(icl.AbstractModel):
    """ŷ = tanh(a) βᵀ W x_q: one matrix and a gate. It is linear in β x_qᵀ, and does not say so."""

    gate: Float[Array, ""]
    matrix: Float[Array, "D D"]

    def __call__(self, prompt):
        return jnp.tanh(self.gate) * (prompt.correlation @ self.matrix @ prompt.query)

    def axes(self):
        return {"gate": (), "matrix": ("row", "column")}


class GatedInitialiser(icl.AbstractInitialiser):
    scale: Float[Array, ""] = eqx.field(converter=jnp.asarray)

    def __call__(self, key):
        one, two = jax.random.split(key)
        return Gated(
            self.scale * jax.random.normal(one), self.scale * jax.random.normal(two, (3, 3))
        )


INIT = GatedInitialiser(0.3)
LOSS = icl.Sequences.sample(TASK, 64, jax.random.key(1))


def test_a_model_of_ones_own(tmp_path):
    one = icl.simulate(LOSS, INIT(jax.random.key(1)), icl.Descent(0.2), until=400)
    record = ["loss", "weights", "gradient_norm", "sharpness"]
    runs = icl.sweep(LOSS, INIT, icl.Descent(0.2), until=400, seeds=2, record=record)
    np.testing.assert_allclose(runs["loss"].sel(seed=1), one.loss, atol=1e-12)
    assert runs["matrix"].dims == ("seed", "time", "row", "column")
    again = icl.load(icl.save(runs, tmp_path / "runs.nc"))
    found = diagnose_run(again, seed=1, source=TASK, init=INIT, sequences=200)
    assert found["algorithm"].values[-1] != "zero"
    assert found["loss"].values[-1] < 0.8 * found["loss"].values[0]
    assert len(loss_figure(again).axes) > 0
    with pytest.raises(ValueError, match="no value weights"):
        icl.sweep(LOSS, INIT, icl.Descent(0.2), until=1, record=["values"])


class Matrix(icl.AbstractLinearModel):
    """ŷ = βᵀ W x_q: the effective weights are the weights."""

    matrix: Float[Array, "D D"]

    @property
    def blocks(self):
        return icl.Blocks.FROZEN

    def reduced_weights(self):
        return self.matrix[None, None]

    def effective_weights(self):
        return jnp.zeros((1, 4, 4, 3)).at[0, 3, :3].set(self.matrix)

    def __call__(self, prompt):
        return prompt.correlation @ self.matrix @ prompt.query


class Squared(Matrix):
    """ŷ = βᵀ W Wᵀ x_q: linear, and no product that the theory knows."""

    def reduced_weights(self):
        return (self.matrix @ self.matrix.T)[None, None]

    def __call__(self, prompt):
        return prompt.correlation @ self.matrix @ self.matrix.T @ prompt.query


class Named(Matrix):
    """The same as `Merged` with one head, which it says."""

    gain: Float[Array, " H"] = eqx.field(converter=jnp.asarray, default=(0.02,))

    def reduced_weights(self):
        return (self.gain[0] * self.matrix)[None, None]

    def __call__(self, prompt):
        return self.gain[0] * prompt.correlation @ self.matrix @ prompt.query

    def as_attention(self):
        return icl.Merged(values=self.gain[:, None, None], merged=self.matrix[None])


POPULATION = icl.Population(TASK)
MATRIX = 0.01 * jax.random.normal(jax.random.key(5), (3, 3))


def test_a_linear_model_that_does_not_say_so_is_told_the_truth():
    model = INIT(jax.random.key(0))
    assert is_linear(model, 3, 1)
    for loss in (POPULATION, icl.Moments.sample(TASK, 20, jax.random.key(1))):
        told = str(loss.admits(model))
        assert "is linear in S ⊗ x_q (checked" in told
        assert "subclass icl.AbstractLinearModel" in told
    softmax = icl.Softmax.initialiser(TASK, heads=2, scale=0.1)(jax.random.key(0))
    assert not is_linear(softmax, 3, 1)
    assert "is not linear in S ⊗ x_q" in str(POPULATION.admits(softmax))
    assert "not linear" in icl.select(TASK, softmax, 100).reason
    assert "is linear in" in icl.select(TASK, model, 100).reason
    assert jax.jit(lambda m: jnp.zeros(()) * len(str(POPULATION.admits(m))))(softmax) == 0

    class Broken(icl.AbstractModel):
        def __call__(self, prompt):
            raise RuntimeError("no")

    assert is_linear(Broken(), 3, 1) is None
    assert "it is no AbstractLinearModel" in str(POPULATION.admits(Broken()))


def test_effective_weights_that_are_linear_in_the_weights_are_predicted_exactly():
    """The closed form of the linear flow against the integrated one, population and sample."""
    for loss in (POPULATION, icl.Moments.sample(TASK, 300, jax.random.key(1))):
        found = icl.predict(loss, Matrix(MATRIX))
        times = [1.0, float(found.times[0]), 40.0, 300.0]
        flow = icl.simulate(loss, Matrix(MATRIX), icl.Flow(1e-11), saveat=times)
        np.testing.assert_allclose(found.curve(np.array(times)).loss, flow.loss, rtol=1e-8)
        np.testing.assert_allclose(flow.loss[1], found.levels.mean(), rtol=1e-8)
        np.testing.assert_allclose(found.levels[1], least_loss(loss), rtol=1e-6)


def least_loss(loss):
    found = icl.theory.Quadratic.of(loss)
    return found.loss(found.least_squares)


def test_a_linear_model_of_ones_own_is_predicted_where_it_says_its_attention():
    known = Named(MATRIX)
    merged = known.as_attention()
    np.testing.assert_array_equal(
        icl.predict(POPULATION, known).times, icl.predict(POPULATION, merged).times
    )
    with pytest.raises(ValueError, match=r"Squared is linear.*as_attention\(\)"):
        icl.predict(POPULATION, Squared(MATRIX))


def test_a_linear_model_of_ones_own_has_a_stable_rate():
    """At four times the rate descent is at its limit of stability; the reference is the end."""
    exact = Matrix(MATRIX)
    assert float(icl.stable_rate(POPULATION, exact)) == pytest.approx(
        0.5 / float(icl.sharpness(POPULATION, exact)), rel=1e-6
    )
    squared = Squared(20 * MATRIX)
    end = icl.simulate(POPULATION, squared, icl.Flow(1e-9), until=3000.0).model
    rate = float(icl.stable_rate(POPULATION, squared))
    assert rate == pytest.approx(0.5 / float(icl.sharpness(POPULATION, end)), rel=0.05)
