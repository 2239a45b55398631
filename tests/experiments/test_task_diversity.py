"""Transformers on pools of tasks: the pools, the distances, and what is compared with what."""

import dataclasses

import jax
import numpy as np
import pytest
import xarray as xr

from iclflow.experiments.task_diversity import (
    PUBLISHED,
    QUICK,
    SMALL,
    TO,
    claims,
    draw_pool,
    preference,
    references,
    share_of_training,
    train_pools,
)
from iclflow.tasks.laws import Pool
from iclflow.tasks.task import Task
from iclflow.theory import Ridge, bayes_predictor
from tests.helpers.verdicts import unmoved


def test_pools_have_mean_zero_and_second_moment_one():
    for tasks, size in ((4, 2), (16, 2), (64, 8)):
        pool = draw_pool(tasks, size)
        assert pool.shape == (tasks, size)
        np.testing.assert_allclose(pool.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(pool.T @ pool / tasks, np.eye(size), atol=1e-12)
        drawn = draw_pool(tasks, size, white=False)
        assert np.abs(drawn.T @ drawn / tasks - np.eye(size)).max() > 0.05


@pytest.mark.parametrize("lengths", [None, (1, 2, 3)])
def test_distances_of_the_predictors_themselves(lengths):
    world = Task([1.0, 1.0], 3, lengths=lengths, label_noise=0.5)
    pool = world.replace(tasks=Pool(draw_pool(4, 2)))
    tests, apart = references(world, pool, 16)
    predictors = dict(zip(TO, (bayes_predictor(pool), Ridge(0.25)), strict=True))
    measure = jax.jit(lambda loss, model: loss(model))
    for index, on in enumerate(("new tasks", "the pool")):
        for to, predictor in predictors.items():
            other = next(name for name in TO if name != to)
            assert float(measure(tests[f"{on}, {to}"], predictor)) < 1e-20
            found = float(measure(tests[f"{on}, {other}"], predictor))
            assert found == pytest.approx(apart[index], rel=1e-12)


def test_preference_is_one_at_dmmse_and_linear_between():
    dmmse, ridge = np.array([1.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.0])
    beside = np.array([0.0, 0.0, 3.0])  # does not count
    apart = xr.DataArray(np.sum((dmmse - ridge) ** 2))
    for share, wanted in ((0.0, 1.0), (0.5, 0.0), (1.0, -1.0)):
        model = (1 - share) * dmmse + share * ridge + beside
        distance = xr.DataArray(
            [np.sum((model - dmmse) ** 2), np.sum((model - ridge) ** 2)], {"to": list(TO)}, "to"
        )
        assert float(preference(distance, apart)) == pytest.approx(wanted)


def test_the_share_of_training():
    steps, dims = [0, 10, 20, 40], ("tasks", "seed", "step", "on", "to")
    ridge = np.array([0.0, 2.0, 2.0, 2.0])  # nearer to dMMSE from step 10 on
    distance = np.stack([np.ones(4), ridge], axis=-1)[None, None, :, None]
    data = xr.Dataset(
        {"distance": (dims, distance), "apart": (("tasks", "on"), [[1.0]])},
        {"step": steps, "on": ["the pool"], "to": list(TO), "tasks": [4]},
    )
    assert share_of_training(data).item() == pytest.approx(35 / 40)


def test_presets():
    for sizes in (QUICK, SMALL, PUBLISHED):
        assert all(tasks % (2 * sizes.inputs) == 0 for tasks in sizes.pools)
        assert list(sizes.pools) == sorted(sizes.pools)
        assert sizes.width % sizes.heads == 0
    assert (PUBLISHED.inputs, PUBLISHED.layers, PUBLISHED.steps) == (8, 8, 500_000)


@pytest.mark.long
def test_a_few_steps_on_two_pools():
    tiny = dataclasses.replace(
        QUICK, layers=1, width=8, batch=4, steps=6, marks=4, prompts=8, seeds=1
    )
    data = train_pools(tiny)
    assert data["distance"].dims == ("tasks", "seed", "step", "on", "to")
    assert bool(np.isfinite(data["distance"]).all())
    # This does not need the training of the transformers.
    assert {claim.id: claim.holds for claim in claims(data)}["diversity-linear-same"]


@pytest.mark.slow
def test_the_quick_form_holds_and_every_verdict_turns_round():
    from iclflow.experiments.task_diversity import compute, controls

    data = compute(quick=True)
    assert [claim.id for claim in claims(data) if not claim.holds] == []
    assert unmoved(data, claims, controls) == []
