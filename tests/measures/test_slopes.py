"""Slopes that groups share: against least squares written out, and the size of their intervals."""

import numpy as np
import pytest

from iclflow.measures import shared_slope


def by_least_squares(x, y):
    """One slope and an intercept per group, by the normal equations of all of them."""
    points = [(i, g) for i, g in np.ndindex(y.shape) if np.isfinite(y[i, g])]
    design = np.zeros((len(points), 1 + y.shape[1]))
    for row, (i, g) in enumerate(points):
        design[row, 0], design[row, 1 + g] = x[i], 1.0
    return np.linalg.lstsq(design, np.array([y[p] for p in points]))[0][0]


def test_the_slope_is_least_squares_with_an_intercept_per_group():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=5), rng.normal(size=(5, 7))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    found = shared_slope(x, y)
    assert found.slope == pytest.approx(by_least_squares(x, y), rel=1e-10)
    assert found.missing == np.sum(~np.isfinite(y))
    assert found.low < found.slope < found.high


def test_missing_points_of_slow_groups_do_not_shift_the_slope():
    # The slowest groups have no time at the smallest scales, where a pooled fit would be too flat.
    x = np.log([0.01, 0.03, 0.1])
    y = np.linspace(0, 4, 9) - x[:, None]
    y[0, 5:] = np.inf
    y[1, 7:] = np.inf
    assert shared_slope(x, y).slope == pytest.approx(-1.0, abs=1e-12)
    assert shared_slope(x, y).groups == 7


@pytest.mark.parametrize("groups", [4, 16])
def test_the_interval_covers_the_slope_as_often_as_it_says(groups):
    rng, x, covered = np.random.default_rng(groups), np.linspace(-2, 0, 4), 0
    for _ in range(400):
        y = (-1 + 0.1 * rng.normal(size=groups)) * x[:, None] + rng.normal(size=groups)
        found = shared_slope(x, y, resamples=400)
        covered += found.low <= -1 <= found.high
    assert 0.88 < covered / 400 < 0.99


def test_few_groups_have_no_interval_or_no_slope():
    x = np.array([0.0, 1.0])
    one = shared_slope(x, np.array([[1.0], [3.0]]))
    assert one.slope == pytest.approx(2.0)
    assert np.isnan(one.low)
    none = shared_slope(x, np.array([[1.0, np.nan], [np.nan, 2.0]]))
    assert np.isnan(none.slope)
    assert none.groups == 0


def test_the_same_data_have_the_same_interval():
    x, y = np.arange(3.0), np.random.default_rng(1).normal(size=(3, 6))
    assert shared_slope(x, y) == shared_slope(x, y)
    assert "(" in str(shared_slope(x, y))


@pytest.mark.parametrize("options", [{"confidence": 0.0}, {"confidence": 1}, {"resamples": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        shared_slope(np.arange(2.0), np.ones((2, 2)), **options)
