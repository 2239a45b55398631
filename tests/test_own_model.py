"""A model of a user's own, in this one file: everything works from the contract."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import iclflow as icl
from iclflow.diagnosis import diagnose_run
from iclflow.plots.losses import loss_figure

TASK = icl.Task([0.5, 0.3, 0.2], 15)


class Gated(icl.AbstractModel):
    """ŷ = tanh(a) βᵀ W x_q: one matrix and a gate, linear in no fixed features."""

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
