"""Logs in the forms in which others write them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from iclflow import cli
from iclflow.checkpoints import find_log, read_curve
from iclflow.checkpoints.logs import masked_crc, read_events
from tests.helpers.written_checkpoints import llama, save

DATA = Path(__file__).parents[1] / "data"
STATE = {  # as the Trainer writes it
    "best_metric": None,
    "global_step": 40,
    "log_history": [
        {"epoch": 0.1, "grad_norm": 2.5, "learning_rate": 1e-3, "loss": 3.0, "step": 10},
        {"epoch": 0.2, "eval_loss": 9.0, "eval_runtime": 1.0, "step": 10},
        {"epoch": 0.2, "grad_norm": 2.5, "learning_rate": 1e-3, "loss": 2.0, "step": 20},
        {"epoch": 0.4, "grad_norm": 2.5, "learning_rate": 1e-3, "loss": 1.0, "step": 40},
        {"epoch": 0.4, "total_flos": 1.0, "train_loss": 2.1, "train_runtime": 3.0, "step": 40},
    ],
}
LOGS = {
    "trainer_state.json": json.dumps(STATE),
    # TensorBoard, download of one tag
    "tensorboard.csv": "Wall time,Step,Value\n1.7e9,10,3.0\n1.7e9,20,2.0\n1.7e9,40,1.0\n",
    # W&B, download of a panel
    "wandb.csv": '"Step","run-1 - train/loss","run-1 - train/loss__MIN","run-1 - train/loss__MAX"\n'
    '"10","3.0","3.0","3.0"\n"20","2.0","2.0","2.0"\n"40","1.0","1.0","1.0"\n',
    # W&B, history of a run
    "wandb.jsonl": '{"_step": 10, "loss": 3.0, "_runtime": 1}\n{"_step": 15, "lr": 1}\n'
    '{"_step": 20, "loss": 2.0}\n\n{"_step": 40, "loss": 1.0}\n',
    # MLflow, table of a metric
    "mlflow.csv": "Run ID,timestamp,step,value\na,1,10,3\na,2,20,2\na,3,40,1\n",
    "metrics/train/loss": "1700000000000 3.0 10\n1700000000001 2.0 20\n1700000000002 1.0 40\n",
    # Lightning
    "metrics.csv": "epoch,step,train_loss_epoch,train_loss_step,val_loss\n0,10,,3.0,\n0,20,,2.0,\n"
    "0,20,2.5,,9.0\n1,40,,1.0,\n",
    # cells without a number, a step twice (the run was taken up again), out of order
    "odd.csv": "step;loss;lr\n40;1.0;1\n10;7.0;1\n;;\n20;2.0;1\n30;;1\n10;3.0;1\n",
    "tabs.tsv": "global_step\ttraining loss\n10\t3\n20\t2\n40\t1\n",
}


@pytest.mark.parametrize("name", LOGS)
def test_every_form_gives_the_same_curve(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LOGS[name])
    steps, losses = read_curve(path)
    assert steps.tolist() == [10, 20, 40]
    assert losses.tolist() == [3, 2, 1]


def test_events_of_tensorboard(tmp_path):
    """Written by PyTorch's SummaryWriter, and as tensors by TensorBoard's own writer."""
    steps, losses = read_curve(DATA / "events.out.tfevents.scalars")  # train/loss, not eval/loss
    assert steps.tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(losses, 1 / (1 + steps), rtol=1e-7)
    _, other = read_curve(DATA / "events.out.tfevents.scalars", "eval/loss")
    assert other.tolist() == [2.0] * 5
    tensors = read_events(DATA / "events.out.tfevents.tensors")
    assert tensors == {
        "loss": [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125)],
        "acc": [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)],
    }
    cut = tmp_path / "events.out.tfevents.cut"  # a job that is still writing
    cut.write_bytes((DATA / "events.out.tfevents.scalars").read_bytes()[:-20])
    assert len(read_events(cut)["train/loss"]) == 5
    assert len(read_events(cut)["eval/loss"]) == 4
    with pytest.raises(ValueError, match=r"no column 'train/los'; did you mean 'train/loss'"):
        read_curve(DATA / "events.out.tfevents.scalars", "train/los")
    noise = tmp_path / "events.out.tfevents.noise"
    noise.write_bytes(b"\x05" + bytes(11) + b"\xff" * 5 + bytes(4))
    with pytest.raises(ValueError, match="not an event file of TensorBoard"):
        read_events(noise)


def test_events_of_a_run_taken_up_again_are_one_curve(tmp_path):
    for part in ("1.a", "2.b"):
        shutil.copy(DATA / "events.out.tfevents.scalars", tmp_path / f"events.out.tfevents.{part}")
    assert read_curve(tmp_path)[0].tolist() == [0, 10, 20, 30, 40]


def test_tensorboard_reads_the_same():
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader", reason="tensorboard is not needed"
    )
    path = DATA / "events.out.tfevents.scalars"
    found = [
        (value.tag, event.step, value.tensor.float_val[0])
        for event in loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]
    ours = [(tag, *point) for tag, points in read_events(path).items() for point in points]
    assert sorted(found) == sorted(ours)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.json", "[1, 2]", "needed log_history"),
        ("a.json", "{", "not JSON"),
        ("a.jsonl", "{\n", "line 1: not JSON"),
        ("a.jsonl", '{"step": 1, "loss": 1}\n{\n{"step": 2, "loss": 1}', "line 2: not JSON"),
        ("a.log", "loss went down\n", "no line like 'step 250: train loss 1.23'"),
        ("a.wandb", ":W&B", "the offline format of W&B"),
        ("a.csv", "step,run-1 - loss,run-2 - loss\n0,1,1\n", "choose one: --column 'run-1 - loss'"),
        ("a.csv", "day,loss\n0,1\n", "no column for the step"),
        ("a.csv", "", "no columns; a log needs a first row"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, name, text, complaint):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=complaint) as error:
        read_curve(tmp_path / name)
    assert "\n" not in str(error.value)


def test_folders_without_a_log(tmp_path):
    assert find_log(tmp_path) is None
    with pytest.raises(ValueError, match=r"no trainer_state\.json, TensorBoard events"):
        read_curve(tmp_path)


def test_one_command_for_the_folder_of_a_trainer(tmp_path, capsys):
    """Weights and loss of `checkpoint-*`, the state in the last of them, into one picture."""
    folder = tmp_path / "gpt2"
    at = np.unique(np.geomspace(1, 4000, 300).astype(int)).tolist()
    losses = [2 - 1 / (1 + np.exp(-(s - 400) / 25)) for s in at]
    history = [{"step": s, "loss": v} for s, v in zip(at, losses, strict=True)]
    for step in (1000, 2000, 4000):
        save(folder / f"checkpoint-{step}", *llama(np.random.default_rng(step)))
        seen = [entry for entry in history if entry["step"] <= step]
        state = json.dumps({"global_step": step, "log_history": seen})
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    plot, out = tmp_path / "run.png", tmp_path / "run.nc"
    assert cli.main(["diagnose", str(folder), "--plot", str(plot), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "3 steps from 1000 to 4000" in text
    assert "loss, plateau 1: " in text
    assert "step 400" in text or "step 39" in text or "step 40" in text
    assert plot.exists()
    assert out.exists()
    # a folder with a log alone is a curve
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.csv").write_text(LOGS["metrics.csv"])
    assert cli.main(["diagnose", str(tmp_path / "logs"), "--json"]) == 0
    assert "stages" in json.loads(capsys.readouterr().out)
    # a log that cannot be used is no reason not to measure
    bad = folder / "checkpoint-4000" / "trainer_state.json"
    bad.write_text('{"global_step": 4000, "log_history": []}')
    assert cli.main(["diagnose", str(folder), "--json"]) == 0
    found = capsys.readouterr()
    assert "warning: without a loss" in found.err
    assert json.loads(found.out)["log"] is None
    with pytest.raises(SystemExit):
        cli.main(["diagnose", str(folder), "--log", str(bad)])


def test_a_flipped_byte_in_an_event_file_is_found_by_its_checksum(tmp_path):
    """CRC-32C of the standard's test vector, and every byte of a record is protected."""
    plain = (masked_crc(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (plain << 15 | plain >> 17) & 0xFFFFFFFF == 0xE3069283
    whole = (DATA / "events.out.tfevents.scalars").read_bytes()
    path = tmp_path / "events.out.tfevents.harmed"
    for place in range(0, len(whole), 37):
        harmed = bytearray(whole)
        harmed[place] ^= 16
        path.write_bytes(harmed)
        with pytest.raises(ValueError, match="the checksum of"):
            read_curve(path)


NANOGPT = """number of parameters: 10.65M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2649, time 33114.52ms, mfu -100.00%
iter 10: loss 3.1462, time 95.11ms, mfu 3.93%
iter 20: loss 2.7320, time 96.20ms, mfu 3.92%
step 250: train loss 1.9600, val loss 2.0600
step 500: train loss nan, val loss nan
saving checkpoint to out-shakespeare-char
"""
LINES = "".join(f'{{"step": {s}, "loss": {3 - s}}}\n' for s in range(3))
FORMS = {
    "cut.jsonl": LINES + '{"step": 3',
    "nested.jsonl": re.sub(r'"loss": (\d)', r'"eval": {"loss": 9}, "train": {"loss": \1}', LINES),
    "epoch.csv": "epoch,loss\n0,3\n1,2\n2,1\n",
    "history.csv": "_step,_runtime,train/loss\n0,1.5,3\n1,2.5,2\n2,3.5,1\n",
    "columns.json": '{"_step": {"0": 0, "1": 1, "2": 2}, "loss": {"0": 3, "1": 2, "2": 1}}',
    "lists.json": '{"_step": [0, 1, 2], "loss": [3, 2, 1]}',
    "text.log": "step 0 | loss: 3.0 | lr 1e-3\nstep=1, loss=2.0\n[step 2] loss 1e0\n",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_other_forms_of_logs_are_read(tmp_path, name):
    (tmp_path / name).write_text(FORMS[name])
    steps, losses = read_curve(tmp_path / name)
    np.testing.assert_array_equal(steps, [0, 1, 2])
    np.testing.assert_array_equal(losses, [3, 2, 1])


def test_the_text_log_of_nanogpt_is_read(tmp_path):
    (tmp_path / "out.log").write_text(NANOGPT)
    steps, losses = read_curve(tmp_path / "out.log")
    np.testing.assert_array_equal(steps, [0, 10, 20])
    np.testing.assert_array_equal(losses, [4.2649, 3.1462, 2.7320])
    steps, losses = read_curve(tmp_path / "out.log", "val loss")
    np.testing.assert_array_equal(steps, [0, 250, 500])
    np.testing.assert_array_equal(losses, [4.2823, 2.06, np.nan])
