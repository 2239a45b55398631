"""Which drop of a loss is in-context learning?

A training log has several drops, and only some of them come from using the context. Two losses tell
which: one early and one late in the context. Here a log is written as a language model's would be:
the first drop is learned about the data as a whole and lowers the loss at every position, the
second one is learned from the context and lowers it at late positions alone.
"""

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl
from iclflow.measures import by_position, find_stages

rng, steps = np.random.default_rng(0), np.unique(np.geomspace(1, 1e5, 900).astype(int))
positions = np.arange(1, 65)
unigrams = 1 / (1 + (steps / 200) ** 3)
copying = 1 / (1 + (steps / 8_000) ** 4)
use = 1 - positions**-0.5  # what the context can tell grows with its length
table = 2 + 1.5 * unigrams[:, None] - np.outer(1 - copying, use)
table = table + 0.05 * rng.normal(size=table.shape)

# %%
curves = by_position(table)
stages = find_stages(steps, curves.loss, early=curves.early, late=curves.late, resamples=0)
for number, drop in enumerate(stages.drops):
    print(f"drop {number + 1}, step {drop.time:.0f}: {drop.in_context}")

# %% [markdown]
# The label needs a share that is significantly above a tenth. From the shell the same is
# `iclflow diagnose log.csv --positions 'loss_*'`.

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.8))
    for name in ("early", "late"):
        axes.plot(steps, getattr(curves, name), label=f"{name} positions", linewidth=1)
    for drop in stages.drops:
        about = drop.in_context
        axes.axvline(drop.time, color="0.6", linewidth=0.8)
        word = "in context" if about.label else "all positions"
        text = f"{word}\nshare {about.share:.3f} ± {about.error:.3f}"
        axes.text(drop.time * 1.1, 3.2, text, fontsize=7)
    axes.set(xscale="log", xlabel="training step", ylabel="loss", ylim=(0.9, 3.7), xlim=(1, 2e5))
    axes.legend(loc="lower left")
    figure.savefig("which_drop_is_in_context.png")

# %%
answer = float(stages.drops[-1].in_context.share)
print(f"{answer:.2f} of the last drop of late positions is theirs alone")
print(f"run time {time.process_time():.0f} s, in processor time")
