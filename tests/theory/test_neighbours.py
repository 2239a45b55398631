"""Numbers of other groups: the theory from their initial weights, against what they printed."""

import json

import jax.numpy as jnp
import numpy as np

import iclflow as icl
from iclflow.experiments.field.comparisons.reading import HERE
from iclflow.published import Convention, Shape, Stated

RECORDED = json.loads((HERE / "agf_staircase.json").read_text("utf-8"))


def test_the_staircase_of_alternating_gradient_flows():
    task = icl.Task.from_covariance(RECORDED["Lambda"], 32, normaliser=icl.Normaliser.NONE)
    values, keys, queries = (jnp.asarray(RECORDED[n]) for n in ("values", "keys", "queries"))
    model = icl.Separate(values[:, None, None], keys[:, None], queries[:, None])
    theory = icl.theory.predict(task, model, probes=0)
    theirs = Stated(
        Shape(heads=5, dim=4, context=32), Convention.ENTRIES, 0.01, (1e-3, 1e-3),
        icl.Normaliser.NONE, loss_factor=0.5,
    )  # fmt: skip
    ours = theirs.to(Convention.ENTRIES, normaliser=icl.Normaliser.NONE)
    assert ours.rate == 0.005
    steps, heads = np.asarray(RECORDED["agf_values"]).T
    # their algorithm runs on batches of 8192, whose noise moves a drop by about half a percent
    np.testing.assert_allclose(theory.times[:2] / (2 * ours.rate), steps, rtol=5e-3)
    np.testing.assert_array_equal(theory.heads[:2], heads)
    steps, losses = np.asarray(RECORDED["sgd_loss_values"]).T
    said = theory.curve(2 * ours.rate * steps).loss / 2
    assert np.max(np.abs(losses / said - 1)) < 4 * np.sqrt(2 / 8192)  # one batch each
