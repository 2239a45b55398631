"""Where a second signal turns, and how sure that is."""

import numpy as np
import pytest

from iclflow.measures import turns

TIME = np.geomspace(1, 1e5, 160)
HILL = np.exp(-(np.log10(TIME / 1000) ** 2)) + 0.5 / (1 + np.exp(-8 * np.log10(TIME / 2e4)))


def test_a_hill_and_the_valley_after_it():
    found = turns(TIME, HILL)
    assert [turn.kind for turn in found] == ["maximum", "minimum", "level"]
    for turn, where in zip(
        found, (np.argmax(HILL[:110]), 100 + np.argmin(HILL[100:140])), strict=False
    ):
        assert turn.time == pytest.approx(TIME[where], rel=0.2)
    assert all(turn.confidence == 1.0 for turn in found[:2])


def test_noise_takes_the_confidence():
    rng = np.random.default_rng(0)
    quiet, loud = (
        turns(TIME, HILL + noise * rng.standard_normal(160), spread=noise)[0].confidence
        for noise in (0.02, 1.0)
    )
    assert quiet > 0.99
    assert loud < 0.97


def test_a_signal_that_only_rises_settles():
    [found] = turns(TIME, 1 / (1 + 100 / TIME))
    assert found.kind == "level"
    assert found.time == pytest.approx(1900, rel=0.3)  # where 1/(1 + 100/t) is 0.95


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((TIME, HILL[1:]), "one number per time"),
        ((TIME[::-1], HILL), "must increase"),
        ((TIME, HILL * np.nan), "must be finite"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint):
    with pytest.raises(ValueError, match=complaint) as found:
        turns(*arguments)
    assert "\n" not in str(found.value)
    with pytest.raises(ValueError, match="at least 0"):
        turns(TIME, HILL, spread=-1.0)
