"""Small first drops, and how sure they are."""

import numpy as np
import pytest

from iclflow.measures import small_drops

TIME = np.geomspace(1, 1e5, 300)


def fall(time, middle, size, power=2.0):
    return -size / (1 + (middle / time) ** power)


def test_a_tenth_of_the_range_is_found():
    rng = np.random.default_rng(0)
    heights = 4 + rng.normal(0, 0.3, (8, 1))
    curves = heights + fall(TIME, 100, 0.2) + fall(TIME, 8000, 2.0)
    [found] = small_drops(TIME, curves)
    assert found.confidence == 1.0
    assert 60 < found.time < 160
    assert found.time < found.rest < 2000
    assert found.after == pytest.approx(heights.mean() - 0.2, abs=0.03)


def test_one_fall_is_no_small_drop():
    curves = 4 + np.stack([fall(TIME, 1000, 2.0), fall(TIME, 1100, 1.9)])
    assert small_drops(TIME, curves) == []
    line = np.stack([4 - np.log(TIME)] * 2)
    assert small_drops(TIME, line) == []


def test_a_drop_of_few_curves_is_uncertain():
    """Two of eight measurements have a first fall, and no mean of the others does."""
    plain = 4 + fall(TIME, 8000, 2.0)
    curves = np.stack([plain] * 7 + [plain + fall(TIME, 100, 1.5, 4.0)])
    [found] = small_drops(TIME, curves)
    assert 0.4 < found.confidence < 0.9


@pytest.mark.parametrize(
    ("time", "curves", "complaint"),
    [
        (TIME, np.zeros(300), "curves must be"),
        (TIME, np.zeros((2, 200)), "curves must be"),
        (TIME[::-1], np.zeros((2, 300)), "must increase"),
        (TIME, np.full((2, 300), np.nan), "must be finite"),
    ],
)
def test_bad_input_is_one_line(time, curves, complaint):
    with pytest.raises(ValueError, match=complaint):
        small_drops(time, curves)
