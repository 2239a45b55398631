"""Which drop is in-context learning: shares of falls by position, their errors and labels."""

import numpy as np
import pytest

from iclflow.checkpoints import Monitor
from iclflow.measures import Clock, by_position, find_stages, stages_dataset
from iclflow.measures.in_context import in_context_share

TIME = np.geomspace(1, 1e5, 600)
SHARES = {"same amount": 0.0, "same factor": -0.25, "a third": 1 / 3, "all": 1.0}


def fall(middle=7.0, width=0.2):
    return 1 / (1 + np.exp((np.log(TIME) - middle) / width))


def curves(kind):
    """Early and late losses without noise."""
    if kind == "same factor":
        return 2 + fall(), 0.8 * (2 + fall())
    return 2 + (1 - SHARES[kind]) * fall(), 1.5 + fall()


@pytest.mark.parametrize("kind", SHARES)
def test_the_share_of_clean_curves_is_exact_and_labelled(kind):
    early, late = curves(kind)
    (drop,) = find_stages(TIME, late, early=early, late=late, resamples=0).drops
    found = drop.in_context
    assert found is not None
    np.testing.assert_allclose(found.share, SHARES[kind], atol=1e-12)
    np.testing.assert_allclose(found.early, (1 - found.share) * found.late, rtol=1e-12)
    assert found.label == (SHARES[kind] > 0.1)
    assert "in-context" in str(found)


def test_the_error_of_the_share_is_the_spread_over_draws_of_the_noise():
    """100 draws: the pulls have unit spread; independent noise, then one that both share."""
    x, (early, late) = np.log(TIME), curves("a third")
    for together in (False, True):
        rng, pulls = np.random.default_rng(5), []
        for _ in range(100):
            common = 0.1 * rng.normal(size=TIME.size)
            own = [common if together else 0.1 * rng.normal(size=TIME.size) for _ in range(2)]
            found = in_context_share(x, early + own[0], late + own[1], (3, 6), (8, 10))
            pulls.append((found.share - 1 / 3) / found.error)
        assert abs(np.mean(pulls)) < 0.25
        assert 0.8 < np.std(pulls) < 1.2


@pytest.mark.long
def test_drops_that_all_positions_have_are_rarely_called_in_context_learning():
    """A fixed small share of `benchmarks/in_context.py`: 60 pairs that fall together, 30 not."""
    rng, labels = np.random.default_rng(11), {"same amount": 0, "same factor": 0, "a third": 0}
    found = 0
    for kind in labels:
        for _ in range(30):
            noisy = [c + 0.1 * rng.standard_t(3, TIME.size) for c in curves(kind)]
            stages = find_stages(
                TIME, np.mean(noisy, 0), early=noisy[0], late=noisy[1], resamples=0
            )
            for drop in stages.drops:
                assert drop.in_context is not None
                labels[kind] += drop.in_context.label
                found += 1
    assert found > 80
    assert labels["same amount"] + labels["same factor"] <= 0.05 * 60
    assert labels["a third"] > 25


def test_late_positions_that_start_worse_and_end_no_better_do_not_learn_in_context():
    early, late = 2 + fall(), 2 + 1.5 * fall()
    (drop,) = find_stages(TIME, late, early=early, late=late, resamples=0).drops
    assert drop.in_context is not None
    np.testing.assert_allclose(drop.in_context.share, 1 / 3, atol=1e-12)
    assert not drop.in_context.label
    assert drop.in_context.p_value == 1


def test_a_drop_of_early_positions_alone_has_no_share():
    (drop,) = find_stages(
        TIME, 2 + fall(), early=2 + fall(), late=np.full(600, 1.5), resamples=0
    ).drops
    assert drop.in_context is not None
    assert np.isnan(drop.in_context.share)
    assert not drop.in_context.label
    assert str(drop.in_context) == "late positions do not fall"


def test_each_of_two_drops_has_its_own_share():
    """First all positions learn, then late ones alone, and the curve ends in the second drop."""
    early = 2 + fall(5)
    late = early - 1.2 * (1 - fall(11.4, 0.1))
    stages = find_stages(TIME, (early + late) / 2, early=early, late=late, resamples=0)
    assert [round(np.log(drop.time)) for drop in stages.drops] == [5, 11]
    assert [drop.in_context.label for drop in stages.drops if drop.in_context] == [False, True]
    data = stages_dataset([stages])
    assert data["in_context_label"].values.tolist() == [[0.0, 1.0]]
    assert len(stages.lines()) == len(stages.plateaus) + 2


def test_a_table_of_losses_by_position_gives_mean_early_and_late():
    table = np.arange(40.0).reshape(2, 20)
    loss, early, late = by_position(table)
    np.testing.assert_array_equal(loss, table.mean(1))
    np.testing.assert_array_equal(early, table[:, :2].mean(1))
    np.testing.assert_array_equal(late, table[:, -2:].mean(1))
    with pytest.raises(ValueError, match="two positions or more"):
        by_position(np.ones(5))
    with pytest.raises(ValueError, match="part is a share"):
        by_position(table, part=0.7)


@pytest.mark.parametrize(
    ("sides", "complaint"),
    [
        ({"early": np.ones(600)}, "got only early="),
        ({"early": np.ones(600), "late": np.ones(5)}, "one loss for each time"),
    ],
)
def test_sides_that_do_not_fit_are_one_line(sides, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        find_stages(TIME, fall(), **sides)
    assert "\n" not in str(error.value)


def watched(**options):
    """A monitor of a training whose late positions learn alone, at steps 0 to 2999."""
    monitor = Monitor(**options)
    for step in range(3000):
        drop = 1 / (1 + np.exp(-(step - 1000) / 30))
        yield monitor, step, drop


def test_a_monitor_of_losses_by_position_labels_the_drop():
    for monitor, step, drop in watched():
        row = np.array([2.0, 2.0, 2 - 0.5 * drop, 2 - drop])
        monitor(step, by_position=row)
        row[:] = np.nan  # a buffer that is used again
    (found,) = monitor.stages().drops
    assert found.in_context is not None
    np.testing.assert_allclose(found.in_context.share, 1, atol=1e-12)
    assert "(in context)" in monitor.line()
    data = monitor.to_dataset()
    assert data["loss_by_position"].dims == ("loss_step", "position")
    np.testing.assert_allclose(data["loss"], data["loss_by_position"].mean("position"))
    np.testing.assert_allclose(data["late_loss"], data["loss_by_position"][:, -1])
    np.testing.assert_allclose(data["drop_in_context"], [1], atol=1e-12)


def test_a_monitor_takes_two_columns_and_metrics_by_name():
    for monitor, step, drop in watched():
        sides = {"early": 2.0 - 0.5 * drop, "late": 2.0 - drop}
        metrics = {"induction": drop} if step % 100 == 0 else None
        monitor(step, **sides, metrics=metrics)
    (found,) = monitor.stages().drops
    assert found.in_context is not None
    np.testing.assert_allclose(found.in_context.share, 0.5, atol=1e-9)
    data = monitor.to_dataset()
    np.testing.assert_array_equal(data["loss"], data["late_loss"])
    np.testing.assert_allclose(float(data["induction"][-1]), 1.0)
    assert data["induction"].dims == ("metric_step",)
    assert monitor.line().endswith("induction 1")
    with pytest.raises(ValueError, match="not taken by the monitor, got 'norm'"):
        monitor(3000, metrics={"norm": 1.0})
    with pytest.raises(ValueError, match="must be a row of losses"):
        monitor(3000, by_position=np.ones((2, 3)))
    with pytest.raises(ValueError, match="not both"):
        monitor(3000, by_position=[1.0, 2.0], early=1.0)


def test_the_linear_clock_gives_the_same_share():
    time = np.arange(1.0, 2001)
    drop = 1 / (1 + np.exp((time - 1000) / 20))
    sides = {"early": 2 + 0.25 * drop, "late": 1.7 + drop}
    for clock in Clock:
        (found,) = find_stages(time, sides["late"], **sides, clock=clock, resamples=0).drops
        assert found.in_context is not None
        np.testing.assert_allclose(found.in_context.share, 0.75, atol=2e-3)
