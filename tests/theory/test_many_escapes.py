"""Escapes of many starts at once, against those of each alone."""

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.models import draw_models
from iclflow.theory.drops.limit import many_escapes, vanishing_limit

TASK = icl.Task(spectrum=[0.4, 0.3, 0.1], context=20)


@pytest.mark.parametrize(("heads", "rank"), [(4, 1), (2, 1), (3, 2)])
def test_many_are_those_of_each_start(heads, rank):
    init = icl.Separate.initialiser(TASK, heads=heads, rank=rank, scale=0.01)
    models = draw_models(init, range(12))
    found = many_escapes(TASK, models)
    for seed in range(12):
        alone = vanishing_limit(TASK, init(jax.random.key(seed))).times
        np.testing.assert_allclose(found.times[seed, : len(alone)], alone, rtol=1e-6)
        assert np.isinf(found.times[seed, len(alone) :]).all()


def test_the_papers_durations_are_those_of_its_formula():
    """(68): τ/(g |v|) of one of the heads."""
    init = icl.Separate.initialiser(TASK, heads=4, scale=0.01)
    found = many_escapes(TASK, draw_models(init, range(5)))
    gain = float(icl.theory.Modes.of(TASK).gains(()).values.max())
    for seed in range(5):
        values = np.abs(init(jax.random.key(seed)).values[:, 0, 0])
        assert np.isclose(1 / (gain * values), found.paper[seed, 0], rtol=1e-12).any()


def test_what_has_no_such_escapes_is_refused():
    merged = draw_models(icl.Merged.initialiser(TASK, heads=2, scale=0.1), range(2))
    with pytest.raises(ValueError, match="separate key and query"):
        many_escapes(TASK, merged)
    white = icl.Task(spectrum=[1.0, 1.0], context=20)
    models = draw_models(icl.Separate.initialiser(white, heads=2, scale=0.1), range(2))
    with pytest.raises(ValueError, match="no fixed order"):
        many_escapes(white, models)
