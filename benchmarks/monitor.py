"""What a Monitor costs a small run of the Hugging Face Trainer, in processor time.

python benchmarks/monitor.py --steps 300 --repeats 3
"""

import argparse
import os
import tempfile
import time

import numpy as np

from iclflow.checkpoints import Monitor, TrainerCallback


def train(steps: int, monitor: Monitor | None) -> float:
    """Seconds of the processor for a GPT-2 of 4 layers, 8 heads and width 256."""
    import torch
    import transformers

    transformers.set_seed(0)
    sizes = {"vocab_size": 512, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    words = torch.randint(0, 512, (256, 128), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in words]
    with tempfile.TemporaryDirectory() as folder:
        how = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, logging_steps=1, use_cpu=True,
            save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        callbacks = [] if monitor is None else [TrainerCallback(monitor)]
        trainer = transformers.Trainer(
            model=model, args=how, train_dataset=rows, callbacks=callbacks
        )
        trainer.remove_callback(transformers.PrinterCallback)
        began = time.process_time()
        trainer.train()
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    train(5, None)
    pairs = []
    for _ in range(args.repeats):
        monitor = Monitor()
        alone, watched = train(args.steps, None), train(args.steps, monitor)
        pairs.append((alone, watched))
        measured = monitor.to_dataset().sizes["step"]
        print(f"alone {alone:.1f} s, watched {watched:.1f} s, {measured} steps measured, "
              f"{monitor.spent:.1f} s by the monitor's own watch")  # fmt: skip
    extra = [watched / alone - 1 for alone, watched in pairs]
    print(f"extra processor time: median {100 * np.median(extra):+.1f} %")


if __name__ == "__main__":
    main()
