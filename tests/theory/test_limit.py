"""The limit of vanishing initial weights: drops on the clock ε t, and gaps inside a head."""

import jax
import numpy as np
import pytest

from iclflow.losses import Population
from iclflow.models import Separate
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory.drops.limit import in_head_gaps, vanishing_limit
from iclflow.theory.drops.staircase import staircase
from iclflow.theory.fixed_points.modes import Modes
from tests.helpers import gradient_flow

LINEAR = Task([0.4, 0.3, 0.2, 0.1], 31)
TILTED = np.array([[2, 0.5, 0, 0], [0.5, 1, 0.3, 0], [0, 0.3, 1, 0.2], [0, 0, 0.2, 0.5]])


def start(task, scale, seed=0, heads=5, rank=1):
    return Separate.initialiser(task, heads=heads, rank=rank, scale=scale)(jax.random.key(seed))


def true_times(task, model, levels, end):
    return gradient_flow.separate_flow(Population(task), model, end).crossings(levels)


def test_the_limit_is_a_function_of_the_direction():
    one, small = (vanishing_limit(LINEAR, start(LINEAR, scale)) for scale in (1.0, 1e-5))
    assert small.times * 1e-5 == pytest.approx(one.times, rel=1e-9)
    assert np.array_equal(one.heads, small.heads)
    assert np.allclose(one.levels, [1, 0.640580, 0.377372, 0.209805, 0.135995], atol=5e-7)


def limit_errors(seeds, scales):
    """|ε t - limit| relative, [scale, seed, drop]."""
    found = []
    for scale in scales:
        rows = []
        for seed in range(seeds):
            model = start(LINEAR, scale, seed)
            limit = vanishing_limit(LINEAR, model)
            for factor in (1.5, 6.0):
                end = factor * limit.times[-1] + 1000
                true = true_times(LINEAR, model, limit.levels, end)
                if np.isfinite(true).all():
                    break
            rows.append(np.abs(true / limit.times - 1))
        found.append(rows)
    return np.asarray(found)


def slope(scales, error):
    return np.polyfit(np.log(scales), np.log(error), 1)[0]


@pytest.mark.long
def test_the_flow_approaches_the_limit_to_first_order():
    scales = np.array([1e-2, 1e-4])
    errors = np.median(limit_errors(5, scales), axis=(1, 2))
    assert errors[-1] < 1e-3
    assert 0.6 < slope(scales, errors) < 1.5  # few seeds: see the slow test


@pytest.mark.slow
def test_the_flow_approaches_the_limit_to_first_order_over_many_starts():
    scales = np.array([1e-2, 3e-3, 1e-3, 3e-4])
    errors = np.median(limit_errors(20, scales), axis=1)
    assert 0.8 < slope(scales, np.median(errors, axis=1)) < 1.3
    assert 0.8 < slope(scales, errors[:, 0]) < 1.3


def test_the_staircase_approaches_the_limit_in_any_task():
    cases = [
        (LINEAR, 3, 2),
        (Task([0.35, 0.35, 0.15, 0.15], 31, rotation=jax.random.key(1)), 5, 1),
        (Task([0.35, 0.35, 0.15, 0.15], 31), 3, 3),
        (Task([0.4, 0.3, 0.2, 0.1], 31, tasks=Normal(covariance=TILTED)), 5, 1),
        (Task([1.0, 0.5], 200, tasks=Normal(covariance=[1.0, 3.0])), 3, 1),
        (Task([0.5, 0.5, 0.2, 0.0], 31), 2, 1),
    ]
    for task, heads, rank in cases:
        model = start(task, 1e-6, seed=1, heads=heads, rank=rank)
        limit, stairs = vanishing_limit(task, model), staircase(task, model, probes=0)
        first = np.concatenate([[0], limit.learned[:-1]])  # the drop with which each head comes
        assert np.array_equal(limit.heads, stairs.heads[first])
        assert np.array_equal(stairs.escapes.nonzero()[0], first)
        assert stairs.times[first] == pytest.approx(limit.times, rel=1e-4)
        assert limit.ended == stairs.ended
        assert limit.learned[-1] == min(heads * rank, Modes.of(task).rank)


@pytest.mark.slow
def test_gaps_inside_a_head_grow_with_the_logarithm():
    # The same direction at two scales: the gap per decade of 1/ε is the coefficient.
    for rank, expected in ((2, [8.5466]), (3, [8.5466, 18.4936])):
        gaps, scales = [], (1e-3, 1e-4)
        for scale in scales:
            model = start(LINEAR, scale, seed=1, heads=2, rank=rank)
            limit = vanishing_limit(LINEAR, model)
            levels = np.asarray([Modes.of(LINEAR).level(range(d)) for d in range(rank + 1)])
            true = true_times(LINEAR, model, levels, 1.2 * limit.times[0] + 2000)
            gaps.append(np.diff(true))
        measured = gaps[1] - gaps[0]
        assert measured == pytest.approx(limit.gaps[0] * np.log(10), rel=0.01)
        assert measured == pytest.approx(expected, rel=0.01)


def test_in_head_gaps_by_hand():
    g, m = np.array([0.16, 0.09]), np.array([2.0, 3.0])
    assert in_head_gaps(g, m) == pytest.approx((1 / 0.09 - 1 / 0.16) / 2 ** (1 / 3))
    assert in_head_gaps(g[:1], m[:1]).size == 0


def test_the_limit_as_a_trajectory():
    limit = vanishing_limit(LINEAR, start(LINEAR, 1e-3))
    times = np.sort(np.concatenate([[0.0], limit.times * 0.999, limit.times * 1.001]))
    loss = np.asarray(limit.at(times).loss)
    assert np.allclose(loss, np.repeat(limit.levels, 2)[:-1])


def test_equal_drops_without_common_eigenvectors_are_refused():
    task = Task([0.4, 0.3, 0.2, 0.1], 31, tasks=Normal(covariance=TILTED))
    modes = Modes.of(task)
    tied = jax.tree.map(lambda a: a, modes)
    object.__setattr__(tied, "singular", modes.singular.at[1].set(modes.singular[0]))
    with pytest.raises(ValueError, match="equal drops and no common eigenvectors"):
        vanishing_limit(tied, start(task, 1e-3))
