"""Claims with two sides: intervals against SciPy and by their coverage, and the three verdicts."""

import numpy as np
import pytest
from scipy import stats

from iclflow.experiments.intervals import around, interval, two_sided


def test_intervals_are_those_of_scipy():
    values = np.array([0.3, 0.1, 0.5, 0.2])
    middle, low, high = interval([*values, np.nan])  # a missing seed does not count
    assert middle == pytest.approx(values.mean())
    wanted = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([low, high], [wanted.low, wanted.high], rtol=1e-12)
    # Clopper and Pearson, by the tails of the binomial law
    share, low, high = interval([1, 1, 1, 0, 1], share=True)
    assert share == 0.8
    assert stats.binom.sf(3, 5, low) == pytest.approx(0.025)
    assert stats.binom.cdf(4, 5, high) == pytest.approx(0.025)
    assert np.isnan(interval([1.0])[1:]).all()


def test_a_claim_holds_is_refuted_or_undecided():
    far, near_zero = [0.9, 1.0, 1.1], [-1.0, 0.1, 1.0]

    def verdict(values, **options):
        claim = two_sided("a", "it is so", "", values, 0.0, "a sign", **options)
        return claim.holds, claim.decided

    assert verdict(far) == (True, True)
    assert verdict(np.negative(far)) == (False, True)
    assert verdict(near_zero) == (False, False)
    assert verdict([far, near_zero]) == (False, False)  # every cell counts
    assert verdict([far, np.negative(far)]) == (False, True)
    assert verdict(np.negative(far), above=False) == (True, True)
    assert verdict([1.0, np.nan, np.nan]) == (False, False)  # one seed has no interval
    worst = two_sided("a", "it is so", "", [far, [0.2, 0.3, 0.4]], 0.0, "a sign")
    assert worst.measured == pytest.approx(0.3)
    assert worst.interval is not None
    assert worst.interval[0] < 0.3 < worst.interval[1]


def test_a_ratio_is_one_within_a_factor_either_way():
    def verdict(ratios):
        claim = around("a", "together", "", ratios, 1.5, "half as much")
        return claim.holds, claim.decided

    close, late = [0.95, 1.0, 1.1], [2.0, 2.1, 2.2]
    assert verdict(close) == (True, True)
    assert verdict(late) == verdict(1 / np.array(late)) == (False, True)
    assert verdict([close, late]) == (False, True)
    assert verdict([0.5, 1.0, 3.0]) == (False, False)
    found = around("a", "together", "", [close, late], 1.5, "half as much")
    assert found.measured == pytest.approx(np.exp(np.log(late).mean()))
