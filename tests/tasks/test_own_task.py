"""A task that is not linear regression, in this one file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import iclflow as icl
from iclflow.diagnosis import diagnose_run
from iclflow.plots.losses import loss_figure


class Waves(icl.AbstractTask):
    """y = sin(w·x), w afresh for each prompt."""

    size = 3
    outputs = 1
    context = 12
    lengths = (12,)
    width: Float[Array, ""]

    def sample(self, key):
        one, two = jax.random.split(key)
        inputs = jax.random.normal(one, (self.context + 1, self.size))
        labels = jnp.sin(inputs @ jax.random.normal(two, (self.size,)) * self.width)[:, None]
        return icl.Prompt(inputs, labels, labels)


TASK = Waves(jnp.asarray(0.8))
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.3)


def test_a_task_of_ones_own(tmp_path):
    key = jax.random.key(2)
    prompts = icl.Sequences.sample(TASK, 200, key)
    moments = icl.Moments.sample(TASK, 200, key, features=icl.ReducedFeatures())
    model = INIT(jax.random.key(0))
    np.testing.assert_allclose(moments(model), prompts(model), rtol=1e-12)
    one = icl.simulate(moments, model, icl.Descent(0.05), until=500)
    runs = icl.sweep(
        moments, INIT, icl.Descent(0.05), until=500, seeds=2, record=["loss", "weights"]
    )
    np.testing.assert_allclose(runs["loss"].sel(seed=0), one.loss, atol=1e-12)
    again = icl.load(icl.save(runs, tmp_path / "runs.nc"))
    found = diagnose_run(again, seed=0, source=TASK, init=INIT)
    assert found["loss"].values[-1] < found["loss"].values[0]
    assert "algorithm" not in found
    assert len(loss_figure(again).axes) > 0
    with pytest.raises(ValueError, match="Waves"):
        icl.sweep(TASK, INIT, icl.Descent(0.05), until=5)
