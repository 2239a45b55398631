"""The real Trainer of transformers: watched, taken up again, and its folder read by one command."""

import json
import os
from importlib.util import find_spec

import numpy as np
import pytest

from iclflow import cli
from iclflow.checkpoints import Monitor, TrainerCallback

# Looked for, and imported by the one process that runs these tests: that takes seconds.
NEEDED = ("torch", "transformers", "accelerate")
pytestmark = [
    pytest.mark.skipif(None in map(find_spec, NEEDED), reason="not needed by the package"),
    pytest.mark.filterwarnings("ignore"),  # those of the libraries
]


class Words:
    """Sequences that repeat their first half."""

    def __init__(self, count=64):
        import torch

        first = torch.randint(0, 11, (count, 4), generator=torch.Generator().manual_seed(0))
        self.rows = torch.cat([first, first], dim=1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def trainer(folder, callbacks=(), **options):
    import torch
    import transformers

    torch.set_num_threads(1)  # for matrices this small, more of them wait for each other
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.set_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_pdrop=0.1))
    settings = {
        "max_steps": 12, "per_device_train_batch_size": 8, "logging_steps": 1, "save_steps": 4,
        "learning_rate": 3e-3, "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "seed": 0,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(str(folder), **settings | options)
    made = transformers.Trainer(
        model=model, args=arguments, train_dataset=Words(), callbacks=list(callbacks)
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2") / "output"
    monitor = Monitor(budget=1e9)
    watched = trainer(folder, [TrainerCallback(monitor)])
    watched.train()
    return folder, watched, monitor


def test_training_is_the_same_in_every_bit(run, tmp_path):
    _, watched, _ = run
    alone = trainer(tmp_path, save_strategy="no")
    alone.train()
    for name, weight in alone.model.state_dict().items():
        assert weight.equal(watched.model.state_dict()[name]), name
    assert [e.get("loss") for e in alone.state.log_history] == [
        e.get("loss") for e in watched.state.log_history
    ]


def test_the_initial_and_the_last_weights_are_measured(run):
    _, watched, monitor = run
    data = monitor.to_dataset()
    assert data.attrs["family"] == "GPT-2"
    assert (data.sizes["layer"], data.sizes["head"]) == (2, 2)
    assert list(data["step"].values) == [*range(10), 11, 12]  # 12 because it is the last
    assert list(data["loss_step"].values) == list(range(1, 13))
    fused = watched.model.transformer.h[1].attn.c_attn.weight.detach().numpy()
    product = fused[:, 8:16] @ fused[:, 24:32].T
    found = data["norm"].sel(step=12, circuit="QK", layer=1, head=1)
    np.testing.assert_allclose(found, np.linalg.norm(product), rtol=1e-5)


def test_a_second_train_counts_on(run, tmp_path):
    monitor = Monitor(budget=1e9, measures=["norm"])
    again = trainer(tmp_path, [TrainerCallback(monitor)], max_steps=3, save_strategy="no")
    again.train()
    again.train()
    assert list(monitor.to_dataset()["step"].values) == list(range(7))


def test_one_command_reads_the_folder(run, capsys, tmp_path):
    folder, watched, _ = run
    watched.save_model()  # the last weights beside the checkpoints
    watched.save_state()
    plot = tmp_path / "run.png"
    assert cli.main(["diagnose", str(folder), "--json", "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == "GPT-2"
    assert found["steps"] == [4, 8, 12]
    assert found["log"].endswith("trainer_state.json")
    assert found["stages"][0].startswith("plateau 0: ")
    assert plot.stat().st_size > 10_000
