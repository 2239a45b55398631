"""Stages of loss curves with known drops, and the other detectors on the same curves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter

from iclflow.measures.detectors import autocorrelation, autocorrelation_curvature, time_curvature
from iclflow.measures.stages import (
    Clock,
    find_stages,
    find_stages_of_runs,
    stages_dataset,
)

LEVELS = np.array([1.0, 0.640580, 0.377372, 0.209805, 0.135995])  # a four-step staircase
TIMES = np.array([60.0, 300.0, 1200.0, 6000.0])
WIDTH = 0.1  # of ln t


def staircase(time, times=TIMES, levels=LEVELS, width=WIDTH):
    falls = 1 / (1 + np.exp(np.clip(np.log(time[:, None] / times) / width, -60, 60)))
    return levels[-1] + falls @ -np.diff(levels)


@pytest.fixture(scope="module")
def clean():
    time = np.geomspace(1, 40_000, 300)
    return time, staircase(time)


def test_clean_staircase_gives_its_levels_and_times(clean):
    stages = find_stages(*clean)
    assert len(stages.drops) == 4
    assert len(stages.plateaus) == 5
    np.testing.assert_allclose([p.level for p in stages.plateaus], LEVELS, rtol=2e-3)
    np.testing.assert_allclose([d.time for d in stages.drops], TIMES, rtol=2e-3)
    # a logistic drop is 10% and 90% down at ±ln 9 widths
    np.testing.assert_allclose(
        [d.end / d.start for d in stages.drops], np.exp(2 * np.log(9) * WIDTH), rtol=0.02
    )
    assert all(d.complete and d.confidence == 1.0 for d in stages.drops)
    assert all(p.confidence == 1.0 for p in stages.plateaus)
    for before, drop, after in zip(
        stages.plateaus, stages.drops, stages.plateaus[1:], strict=False
    ):
        assert before.end == pytest.approx(drop.start)
        assert after.start == pytest.approx(drop.end)
        assert drop.size == pytest.approx(before.level - after.level, abs=2e-3)


def test_which_plateau_at_a_time(clean):
    stages = find_stages(*clean, resamples=0)
    assert [stages.at(t) for t in (10, 100, 1000, 3000, 30_000)] == [0, 1, 2, 3, 4]
    assert all(np.isnan(p.confidence) for p in stages.plateaus)
    assert len(stages.lines()) == 5


@pytest.mark.parametrize("scale", [1e-200, 1e-6, 1.0, 1e5, 1e250])
def test_units_do_not_matter(clean, scale):
    time, loss = clean
    base = find_stages(time, loss, resamples=0)
    for other, t, level in (
        (find_stages(time * min(scale, 1e100), loss, resamples=0), min(scale, 1e100), 1.0),
        (find_stages(time, loss * scale, resamples=0), 1.0, scale),
    ):
        np.testing.assert_allclose(
            [d.time for d in other.drops], [t * d.time for d in base.drops], rtol=1e-6
        )
        np.testing.assert_allclose(
            [p.level for p in other.plateaus], [level * p.level for p in base.plateaus], rtol=1e-6
        )


@pytest.mark.parametrize("seed", range(4))
def test_minibatch_noise(seed):
    time = np.arange(1, 20_001.0)
    rng = np.random.default_rng(seed)
    loss = staircase(time) * (1 + 0.1 * rng.normal(size=time.size))
    stages = find_stages(time, loss)
    sure = [d for d in stages.drops if d.confidence >= 0.5]
    assert len(sure) == 4
    np.testing.assert_allclose([d.time for d in sure], TIMES, rtol=2 * WIDTH)
    np.testing.assert_allclose([p.level for p in stages.plateaus], LEVELS, atol=0.03)


def test_early_stopping_in_the_middle_of_a_drop_is_seen(clean):
    time, loss = clean
    cut = time < 1250
    stages = find_stages(time[cut], loss[cut])
    assert [d.complete for d in stages.drops] == [True, True, False]
    assert len(stages.plateaus) == 3
    assert stages.drops[-1].after == pytest.approx(loss[cut][-1], abs=5e-3)


def test_times_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="a run without a clock has its steps"):
        find_stages(np.full(100, np.nan), np.linspace(1, 0, 100))


def test_a_run_that_stopped_holds_nan_at_the_end(clean):
    time, loss = clean
    loss = np.where(time < 3000, loss, np.nan)
    assert len(find_stages(time, loss, resamples=0).drops) == 3
    assert find_stages(time, np.full_like(time, np.nan)).plateaus == ()


def test_nothing_is_found_in_a_flat_or_purely_noisy_curve():
    time = np.arange(1, 4001.0)
    flat = find_stages(time, np.full(4000, 0.7))
    assert flat.drops == ()
    assert flat.plateaus[0].level == pytest.approx(0.7)
    for seed in range(5):
        noise = 1 + 0.1 * np.random.default_rng(seed).normal(size=4000)
        for clock in Clock:
            assert find_stages(time, noise, clock=clock, resamples=0).drops == ()


@pytest.mark.parametrize("points", range(1, 9))
@pytest.mark.parametrize("clock", list(Clock))
def test_very_short_curves_give_a_result(points, clock):
    time = np.arange(float(points))
    for loss in (np.ones(points), np.zeros(points), np.linspace(1, 0, points), np.arange(points)):
        stages = find_stages(time, loss, clock=clock, resamples=2)
        assert stages.plateaus[0].start == 0.0
        assert all(np.isfinite([p.start, p.end, p.level]).all() for p in stages.plateaus)


def test_a_spike_is_not_a_drop():
    time = np.arange(1, 2001.0)
    loss = staircase(time, np.array([300.0]), np.array([1.0, 0.4]))
    loss[1200:1215] += 0.5
    assert len(find_stages(time, loss, resamples=0, clock=Clock.LINEAR).drops) == 1


def test_two_drops_without_a_plateau_between_them_are_one():
    time = np.geomspace(1, 10_000, 400)
    levels = np.array([1.0, 0.6, 0.2])
    apart = find_stages(time, staircase(time, np.array([100.0, 300.0]), levels), resamples=0)
    close = find_stages(time, staircase(time, np.array([100.0, 130.0]), levels), resamples=0)
    assert len(apart.drops) == 2
    assert len(close.drops) == 1
    assert close.drops[0].size == pytest.approx(0.8, abs=0.01)


def test_confidence_is_lower_for_a_doubtful_drop(clean):
    time, _ = clean
    # 2.2% of the range, where a drop counts from 2% on: in or out with the thresholds' changes
    loss = staircase(time, np.array([100.0, 3000.0]), np.array([1.0, 0.022, 0.0]))
    first, second = find_stages(time, loss, resamples=60).drops
    assert first.confidence == 1.0
    # a factor 1.5^u, u even on [-1, 1], leaves the threshold below 1.1 times itself in 62%
    assert 0.4 < second.confidence < 0.8


def test_a_drop_narrower_than_a_bin_is_sure_all_the_same():
    time = np.arange(1, 20_001.0)
    noise = 0.05 * np.random.default_rng(0).normal(size=time.size)
    loss = np.where(time < 7000, 1.0, 0.6) + noise
    stages = find_stages(time, loss)
    assert [d.confidence for d in stages.drops] == [1.0]
    assert stages.drops[0].time == pytest.approx(7000, rel=1e-3)


def test_minibatch_training_agrees_with_the_exact_loss_of_the_same_weights():
    """Two-layer linear network on fresh batches of 16; the population loss is the truth."""
    target = jnp.diag(jnp.array([4.0, 2.0, 1.0]))

    def sampled(weights, key):
        x = jax.random.normal(key, (16, 3))
        return jnp.mean(jnp.sum((x @ (weights[0] @ weights[1] - target)) ** 2, axis=1)) / 2

    def step(weights, key):
        loss, slope = jax.value_and_grad(sampled)(weights, key)
        exact = jnp.sum((weights[0] @ weights[1] - target) ** 2) / 2
        return weights - 0.01 * slope, (loss, exact)

    keys = jax.random.split(jax.random.key(0), 4001)
    start = 1e-5 * jax.random.normal(keys[0], (2, 3, 3))
    noisy, exact = jax.lax.scan(step, start, keys[1:])[1]
    time = np.arange(1, 4001.0)
    seen, truth = find_stages(time, noisy), find_stages(time, exact, resamples=0)
    assert len(truth.drops) == 3
    assert len(seen.drops) == 3
    np.testing.assert_allclose(
        [d.time for d in seen.drops], [d.time for d in truth.drops], rtol=0.05
    )


SHARE = np.arange(1, 4001.0) / 4000
NO_DROP = {
    "line": 1 - 0.8 * SHARE,
    "parabola": 1 - 0.8 * SHARE**2,
    "root": 1 - 0.8 * np.sqrt(SHARE),
    "logarithm": 1 - 0.08 * np.log(4000 * SHARE),
    "power 0.1": (4000 * SHARE) ** -0.1,
    "power 0.3": (4000 * SHARE) ** -0.3,
    "power 1": 0.1 + 1 / (4000 * SHARE),
}


@pytest.mark.parametrize("clock", list(Clock))
@pytest.mark.parametrize("shape", NO_DROP)
def test_a_curve_without_a_drop_gives_none(shape, clock):
    assert find_stages(4000 * SHARE, NO_DROP[shape], clock=clock, resamples=0).drops == ()


@pytest.mark.parametrize(("size", "memory"), [(0.05, 0.0), (0.05, 0.5), (0.05, 0.9)])
def test_false_alarms_are_as_rare_as_stated(size, memory):
    """Independent and AR(1) noise, on seeds other than those the detector was made on."""
    rng = np.random.default_rng(4711)
    alarms = looser = 0
    for curve in NO_DROP.values():
        for clock in Clock:
            for scale in (curve, 1.0):
                drawn = rng.normal(size=4000) * np.sqrt(1 - memory**2)
                loss = curve + size * scale * lfilter([1], [1, -memory], drawn)
                found = [
                    find_stages(4000 * SHARE, loss, clock=clock, resamples=0, false_alarms=p)
                    for p in (0.01, 1.0)
                ]
                alarms += bool(found[0].drops)
                looser += bool(found[1].drops)
    assert alarms <= 2  # of 28: more than that has a chance of 0.003 at a rate of 1%
    assert looser >= 5  # the noise does look like drops to the fit alone


def autoregressive(rng, size, memory):
    drawn = rng.normal(size=size)
    drawn[1:] *= np.sqrt(1 - memory**2)
    return lfilter([1], [1, -memory], drawn)


HARD_NOISE = {
    "heavy tails": lambda rng, size: rng.standard_t(3, size),
    "skewed": lambda rng, size: np.exp(rng.normal(size=size)) - np.exp(0.5),
    "long memory": lambda rng, size: autoregressive(rng, size, 0.995),
    "longer than the curve": lambda rng, size: autoregressive(rng, size, 0.9995),
}


@pytest.mark.parametrize("clock", list(Clock))
@pytest.mark.parametrize("noise", HARD_NOISE)
@pytest.mark.parametrize(
    ("curves", "most"),
    [(25, 2), pytest.param(100, 4, marks=pytest.mark.long)],
)
def test_heavy_tails_and_long_memories_do_not_look_like_drops(noise, clock, curves, most):
    """A power law with 3% of noise. At a rate of 1%, more than `most` have a chance below 0.005."""
    time, alarms = np.arange(1, 2001.0), 0
    for seed in range(curves):
        loss = time**-0.2 * (1 + 0.03 * HARD_NOISE[noise](np.random.default_rng([31, seed]), 2000))
        alarms += bool(find_stages(time, loss, clock=clock, resamples=0).drops)
    assert alarms <= most


@pytest.mark.parametrize("noise", ["heavy tails", "skewed"])
def test_drops_are_found_in_noise_with_heavy_tails(noise):
    time = np.arange(1, 20_001.0)
    for seed in range(4):
        drawn = HARD_NOISE[noise](np.random.default_rng([32, seed]), time.size)
        stages = find_stages(time, staircase(time) * (1 + 0.05 * drawn), resamples=0)
        np.testing.assert_allclose([d.time for d in stages.drops], TIMES, rtol=2 * WIDTH)


def test_a_fall_from_the_start_is_no_drop_but_one_after_a_plateau_is():
    time = np.arange(0, 1000.0)
    decay = 0.2 + np.exp(-time / 40)
    assert find_stages(time, decay, clock=Clock.LINEAR, resamples=0).drops == ()
    (drop,) = find_stages(time, decay, resamples=0).drops  # on a log clock it waits first
    assert drop.time == pytest.approx(40 * np.log(2), rel=0.15)  # its plateau falls too


def test_p_values_are_small_for_clear_drops(clean):
    time, loss = clean
    assert all(drop.p_value < 1e-10 for drop in find_stages(time, loss, resamples=0).drops)
    noisy = loss * (1 + 0.05 * np.random.default_rng(0).normal(size=time.size))
    found = find_stages(time, noisy, resamples=0, false_alarms=1e-12).drops
    assert len(found) < 4
    assert all(drop.p_value <= 1e-12 for drop in found)


@pytest.mark.parametrize("clock", list(Clock))
def test_exactly_constant_pieces_place_the_drops_between_their_points(clock):
    time = np.arange(1, 2001.0)
    loss = np.select([time < 200, time < 520, time < 1700], [1.0, 0.7, 0.4], 0.1)
    stages = find_stages(time, loss, clock=clock, resamples=0)
    for drop, at in zip(stages.drops, (200, 520, 1700), strict=True):
        assert at - 1 <= drop.start <= drop.time <= drop.end <= at
    np.testing.assert_allclose([p.level for p in stages.plateaus], [1, 0.7, 0.4, 0.1], atol=1e-12)


@pytest.mark.parametrize("apart", [1.02, 1.05, 1.1, 1.2])
def test_drops_close_in_time_stay_apart_if_the_curve_shows_it(apart):
    time = np.arange(1, 20_001.0)
    times = 5000 * np.array([1, apart])
    loss = staircase(time, times, np.array([1.0, 0.5, 0.2]), width=np.log(apart) / 12)
    found = find_stages(time, loss, resamples=0).drops
    np.testing.assert_allclose([d.time for d in found], times, rtol=2e-3)


# The loss of a head that escapes at time 1, c v = (c v)(0)/(1 - t), until it leaves the plateau.
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99])
@pytest.mark.parametrize("points", [151, 400, 3000])
def test_a_curve_that_is_still_on_its_plateau_has_no_drop(share, points):
    for time in (np.linspace(0, share, points), np.geomspace(share / 1e3, share, points)):
        loss = 1 - 0.4 * (1e-3 / (1 - time)) ** 3
        for clock in Clock:
            assert find_stages(4160 * time, loss, clock=clock, resamples=0).drops == ()


def test_the_only_drop_of_a_curve_that_ends_in_it_counts_from_a_share_of_the_loss_on():
    time = np.arange(0, 3001, 20.0)
    assert find_stages(time, 1 - 0.4 * (1e-3 / (1 - time / 4160)) ** 3).drops == ()
    time = np.linspace(0, 0.999, 3000)
    for size, found in ((0.01, 0), (0.04, 1)):
        stages = find_stages(time, 1 - size * (1e-3 / (1 - time)) ** 3, resamples=0)
        assert [drop.complete for drop in stages.drops] == found * [False]


@pytest.mark.long
def test_the_answer_does_not_change_with_the_end_of_the_record():
    for end in (12_500, 13_001, 17_001, 25_001, 40_001):
        time = np.arange(0.0, end)
        first, second = (
            1 / (1 + np.exp(np.clip((time - at) / width, -60, 60)))
            for at, width in ((8287, 6), (12_278, 11))
        )
        stages = find_stages(time, 0.2 + 0.3 * first + 0.5 * second, resamples=4)
        assert [d.time for d in stages.drops] == pytest.approx([8287, 12_278], abs=0.1)
        assert [d.size for d in stages.drops] == pytest.approx([0.3, 0.5], abs=1e-3)
        assert all(d.complete and d.confidence == 1.0 for d in stages.drops)


def test_many_seeds(clean):
    time, loss = clean
    both = find_stages_of_runs(time, np.stack([loss, staircase(time, TIMES * 1.5)]), resamples=0)
    np.testing.assert_allclose(
        [d.time for d in both[1].drops], [1.5 * d.time for d in both[0].drops], rtol=0.01
    )


def test_many_seeds_as_one_padded_dataset(clean):
    time, loss = clean
    flat, cut = np.full_like(loss, 0.5), np.where(time < 1250, loss, np.nan)
    found = find_stages_of_runs(time, np.stack([loss, flat, cut]), resamples=2)
    data = stages_dataset(found, seeds=[7, 8, 9])
    assert data["level"].dims == ("seed", "stage")
    assert data["drop_time"].dims == ("seed", "drop_number")
    assert data["stage_count"].values.tolist() == [5, 1, 3]
    assert data["drop_count"].values.tolist() == [4, 0, 3]
    np.testing.assert_array_equal(np.isfinite(data["level"]).sum("stage"), [5, 1, 3])
    for seed, stages in zip((7, 8, 9), found, strict=True):
        one = data.sel(seed=seed)
        levels = [plateau.level for plateau in stages.plateaus]
        np.testing.assert_array_equal(one["level"][: len(levels)], levels)
        times = [drop.time for drop in stages.drops]
        np.testing.assert_array_equal(one["drop_time"][: len(times)], times)
    assert data["drop_complete"].sel(seed=9).values[:3].tolist() == [1.0, 1.0, 0.0]
    assert stages_dataset([find_stages([], [])]).sizes["stage"] == 0
    with pytest.raises(ValueError, match="3 runs need as many seeds, got 2"):
        stages_dataset(found, seeds=[1, 2])


@pytest.mark.parametrize(
    ("time", "loss", "words"),
    [
        (np.arange(3.0), np.ones(4), "one time for each loss"),
        (np.array([0.0, 2.0, 1.0]), np.ones(3), "must increase"),
        (np.array([-1.0, 2.0, 3.0]), np.ones(3), "negative"),
    ],
)
def test_bad_curves_are_refused(time, loss, words):
    with pytest.raises(ValueError, match=words):
        find_stages(time, loss)


# --- the other detectors ----------------------------------------------------------------------


def test_autocorrelation_is_the_mean_over_existing_pairs():
    loss = np.random.default_rng(0).normal(size=60)
    lags, values = autocorrelation(np.arange(60.0), loss)
    expected = [np.mean(loss[: 60 - k] * loss[k:]) for k in range(54)]
    np.testing.assert_allclose(values, expected, atol=1e-12)
    np.testing.assert_allclose(lags, np.arange(54))


def separated_modes(steps):
    """Second paper (14) of half-times 21, 92, 396, 1695: (13) from a₀ = 1e-4, ηP = 0.05."""
    s, context, start, rate = np.array([2.0, 1.0, 0.5, 0.25]), 4096, 1e-4, 0.05
    limit = context / ((context + 1) * s + s.sum())
    growth = np.exp(-2 * rate * s**2 * np.arange(steps)[:, None])
    a = limit * start / (start + (limit - start) * growth)
    half = np.log(limit / start - 1) / (2 * rate * s**2)
    return half, 0.5 * np.sum(s * (s * a**2 / limit - 2 * s * a + 1), axis=1)


def test_peaks_of_the_autocorrelation_curvature_mark_the_cliffs():
    half, loss = separated_modes(3000)
    np.testing.assert_allclose(half, [21, 92, 396, 1695], atol=0.5)
    curve = autocorrelation_curvature(np.arange(3000.0), loss)
    peaks = curve.peaks(prominence=0.0)
    near = [peaks[np.argmin(np.abs(np.log(peaks / h)))] for h in half]
    np.testing.assert_allclose(near, [20, 88, 390, 1739], rtol=0.02)
    logarithmic = autocorrelation_curvature(np.arange(3000.0), loss, clock=Clock.LOG)
    np.testing.assert_allclose(logarithmic.peaks(count=4), half, rtol=0.08)


def test_stages_of_separated_modes_are_at_their_half_levels():
    _, loss = separated_modes(4000)
    stages = find_stages(np.arange(4000.0), loss, resamples=0)
    assert len(stages.drops) == 4
    # L of one mode is (1 - a/a∞)²: half its drop is at a/a∞ = 1 - 1/√2
    s = np.array([2.0, 1.0, 0.5, 0.25])
    limit = 4096 / (4097 * s + s.sum())
    times = np.log((limit / 1e-4 - 1) * (1 - 2**-0.5) * 2**0.5) / (0.1 * s**2)
    np.testing.assert_allclose([d.time for d in stages.drops], times, rtol=0.03)


def test_curvature_of_a_logistic_drop_and_of_a_norm():
    time = np.geomspace(1, 1e4, 500)
    loss = staircase(time, np.array([100.0]), np.array([1.0, 0.0]), width=0.3)
    curve = time_curvature(time, loss)
    # the third derivative of a logistic vanishes at ±ln(2 + √3) widths
    shift = np.exp(0.3 * np.log(2 + np.sqrt(3)))
    np.testing.assert_allclose(curve.peaks(count=1), [100 * shift], rtol=0.03)
    np.testing.assert_allclose(
        time_curvature(time, 1 - loss).peaks(count=1), [100 / shift], rtol=0.03
    )
    exact = np.log(time) ** 2
    np.testing.assert_allclose(time_curvature(time, exact).value, 2.0, rtol=1e-2)
    linear = time_curvature(np.arange(50.0), np.arange(50.0) ** 2, clock=Clock.LINEAR, points=50)
    np.testing.assert_allclose(linear.value, 2.0, rtol=1e-8)


def test_detectors_refuse_too_little():
    with pytest.raises(ValueError, match="at least 4"):
        time_curvature(np.arange(3.0), np.arange(3.0))
    with pytest.raises(ValueError, match="one time for each value"):
        time_curvature(np.arange(3.0), np.arange(4.0))
