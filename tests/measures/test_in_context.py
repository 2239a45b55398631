"""Which drop is in-context learning: shares of falls by position, their errors and labels."""

import json

import jax
import numpy as np
import pytest

from iclflow import cli
from iclflow.checkpoints import Monitor, find_series, read_columns
from iclflow.diagnosis.curves import UNKNOWN, diagnose_curve
from iclflow.measures import Clock, by_position, find_stages, stages_dataset
from iclflow.measures.in_context import in_context_share
from iclflow.results.netcdf import load
from iclflow.results.tensors import write_tensors
from iclflow.transformers import AttentionOnlyInitialiser, Repeated, prefix_matching, score_series

TIME = np.geomspace(1, 1e5, 400)
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
    assert str(drop.in_context).endswith("but are no better than early ones after it")


def test_a_drop_of_early_positions_alone_has_no_share():
    (drop,) = find_stages(
        TIME, 2 + fall(), early=2 + fall(), late=np.full(TIME.size, 1.5), resamples=0
    ).drops
    assert drop.in_context is not None
    assert np.isnan(drop.in_context.share)
    assert not drop.in_context.label
    assert str(drop.in_context) == "no in-context learning, late positions do not fall"


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


def test_a_drop_that_the_two_losses_do_not_span_has_no_share():
    """Early losses that end before a drop say nothing about it, and the next drop keeps its own."""
    time = np.arange(1.0, 4001)
    falls = [1 / (1 + np.exp(-(time - at) / 10)) for at in (300, 2000)]
    late = 3 - falls[0] - falls[1]
    early = np.where(time > 1000, np.full(time.size, 3.0), np.nan)
    stages = find_stages(time, late, early=early, late=late)
    first, second = stages.drops
    assert first.in_context is None
    assert second.in_context.label
    table = stages_dataset([stages])["in_context_share"].values[0]
    assert np.isnan(table[0])
    assert table[1] > 0.9
    found = diagnose_curve(time, late, early=early, late=late)
    assert found["in_context"].values[0] == UNKNOWN
    assert np.isnan(found["in_context_label"].values[0])


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
        ({"early": np.ones(TIME.size)}, "got only early="),
        ({"early": np.ones(TIME.size), "late": np.ones(5)}, "one loss for each time"),
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


@pytest.fixture
def log(tmp_path):
    """A table of losses at four positions: all fall near e^5, the last ones again near e^9."""
    first, second = fall(5), 1 - fall(9)
    table = [2 + first - drop * second for drop in (0.0, 0.1, 0.9, 1.2)]
    names = [f"loss_{k}" for k in (1, 2, 9, 10)]
    lines = [",".join(["step", *names[::-1], "induction"])]
    for i, step in enumerate(TIME):
        cells = [f"{row[i]:.6f}" for row in table[::-1]]
        lines.append(",".join([f"{step:.4f}", *cells, f"{second[i]:.6f}" if i % 5 == 0 else ""]))
    (tmp_path / "log.csv").write_text("\n".join(lines))
    return tmp_path / "log.csv"


def test_columns_of_a_log_are_in_the_order_of_their_numbers(log):
    steps, values = read_columns(log, ["loss_*", "induction"])
    assert list(values) == ["loss_1", "loss_2", "loss_9", "loss_10", "induction"]
    assert steps.size == TIME.size
    assert np.isfinite(values["induction"]).sum() == TIME.size // 5


def test_the_command_says_which_drop_is_in_context(log, capsys, tmp_path):
    out, picture = tmp_path / "found.nc", tmp_path / "found.png"
    command = ["diagnose", str(log), "--early", "loss_1", "--late", "loss_10"]
    assert cli.main([*command, "--out", str(out), "--plot", str(picture)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("drop")]
    assert [line.split(": ")[1].split(",")[0] for line in lines] == [
        "no in-context learning",
        "in-context learning",
    ]
    assert picture.stat().st_size > 10_000
    found = load(out)
    np.testing.assert_allclose(found["in_context_share"], [0, 1], atol=2e-3)


def test_a_table_by_position_and_a_metric_are_one_dataset(log, capsys, tmp_path):
    out = tmp_path / "found.nc"
    options = ["--positions", "loss_*", "--metrics", "induction", "--out", str(out), "--json"]
    assert cli.main(["diagnose", str(log), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in said["in_context"]] == [False, True]
    found = load(out)
    assert found["induction"].dims == ("metric_step",)
    np.testing.assert_allclose(found["loss"][-1], 2 - (0.1 + 0.9 + 1.2) / 4, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--early", "loss_1"], "--early and --late go together; give --late too"),
        (["--early", "loss_1", "--late", "los_10"], "no column 'los_10'"),
        (["--positions", "loss"], "needs a pattern as 'loss_*'"),
        (["--positions", "acc_*"], "0 columns match 'acc_*'"),
        (["--positions", "loss_*", "--column", "loss_1"], "--positions stands alone"),
        (["--early", "loss_1", "--late", "loss_10", "--metrics", "copy"], "no column 'copy'"),
    ],
)
def test_impossible_columns_are_one_line(log, capsys, options, complaint):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["diagnose", str(log), *options])
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


DUMPS = {  # of the history of a run, as W&B's API gives it
    "records.json": '[{"_step": 0, "loss": 3, "lr": null}, {"_step": 1, "loss": 2}, '
    '{"_step": 2, "loss": "NaN"}, {"_step": 3, "loss": 1}]',
    "texts.json": json.dumps(
        {"history": [json.dumps({"_step": i, "loss": v}) for i, v in enumerate([3, 2, "NaN", 1])]}
    ),
    "columns.json": '{"_step": {"0": 0, "1": 1, "2": 2, "3": 3}, '
    '"loss": {"0": 3.0, "1": 2.0, "2": "NaN", "3": 1.0}}',
}


@pytest.mark.parametrize("name", DUMPS)
def test_the_history_of_the_api_of_wandb_is_read(tmp_path, name):
    (tmp_path / name).write_text(DUMPS[name])
    steps, values = read_columns(tmp_path / name, ["loss"])
    np.testing.assert_array_equal(steps, [0, 1, 2, 3])
    np.testing.assert_array_equal(values["loss"], [3, 2, np.nan, 1])


@pytest.mark.long
def test_the_scores_of_checkpoints_are_those_of_the_models(tmp_path, log, capsys):
    init = AttentionOnlyInitialiser(8, 16, layers=2, width=8, heads=2)
    models = [init(jax.random.key(seed)) for seed in range(2)]
    for step, model in zip((10, 20_000), models, strict=True):
        (tmp_path / "kept" / f"step{step}").mkdir(parents=True)
        write_tensors(tmp_path / "kept" / f"step{step}" / "model.safetensors", model.tensors())
    scores = score_series(find_series(tmp_path / "kept"), sequences=4, seed=3)
    tokens = Repeated(8, 16).batch(jax.random.key(3), 4)
    np.testing.assert_allclose(
        scores["prefix_matching"][1], prefix_matching(models[1], tokens), rtol=1e-5
    )
    command = ["diagnose", str(log), "--positions", "loss_*", "--scores", str(tmp_path / "kept")]
    assert cli.main([*command, "--out", str(tmp_path / "found.nc")]) == 0
    best = load(tmp_path / "found.nc")["prefix_matching_of_the_best_head"]
    assert best["metric_step"].values.tolist() == [10, 20_000]
    (tmp_path / "kept" / "step10" / "model.safetensors").unlink()
    broken = dict(models[0].tensors()) | {"blocks.0.mlp.W_in": np.ones((2, 2))}
    write_tensors(tmp_path / "kept" / "step10" / "model.safetensors", broken)
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        cli.main(command)
    assert "it also has blocks.0.mlp.W_in" in capsys.readouterr().err
