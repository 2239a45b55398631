"""Which head learned what, judging by checkpoints alone?

Somebody trained attention and left a folder of weights. Any of the known families of names will
do; here the names are those of TransformerLens, and the weights those of linear attention, so that
the theory knows where each head must end: the QK circuit of a head that has learned component d
has norm (λ/a)^(2/3) (balanced weights), all others stay small.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl
from iclflow.checkpoints import find_series, measure_series

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# The somebody: 200 checkpoints of one run with four heads, as `.npz` files.

# %%
task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
init = icl.Separate.initialiser(task, heads=4, scale=0.02)
steps = np.linspace(0, 8_000, 201).astype(int)
runs = icl.sweep(
    task, init, icl.Descent(rate=0.2), saveat=steps, seeds=[1], record=["loss", "weights"]
).isel(seed=0)
for i, step in enumerate(steps):
    saved = runs.isel(time=i)
    keys, queries = (np.swapaxes(saved[name].values, 1, 2) for name in ("keys", "queries"))
    value = saved["values"].values[:, None, None] * np.ones((1, 3, 1))
    names = {"W_Q": queries, "W_K": keys, "W_V": value, "W_O": np.swapaxes(value, 1, 2)}
    np.savez(f"step{step}.npz", **{f"blocks.0.attn.{n}": w for n, w in names.items()})

# %% [markdown]
# From here on only the files are known. `iclflow diagnose .` does the same on the shell.

# %%
found = measure_series(find_series("step{step}.npz"), measures=["norm", "effective_rank"])
norms = found["norm"].sel(circuit="QK", layer=0)
levels = np.linalg.svd(icl.theory.least_squares(task).as_weights())[1] ** (2 / 3)

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    for head in norms["head"].values:
        axes.plot(norms.step, norms.sel(head=head), label=f"head {head}")
    for d, level in enumerate(sorted(levels)):
        axes.axhline(level, color="k", linestyle="--", linewidth=1, label=None if d else "theory")
    axes.set(xlabel="training step", ylabel=r"norm of QK, $\|W_Q W_K^\top\|$", xlim=(0, steps[-1]))
    axes.legend(loc=(0.18, 0.08))
    figure.savefig("diagnose_a_checkpoint.png")

# %%
last = np.sort(norms.isel(step=-1).values)[::-1][: len(levels)]
answer = float(np.max(np.abs(last / np.sort(levels)[::-1] - 1)))
print("last norms:", np.round(last, 3), "theory:", np.round(np.sort(levels)[::-1], 3))
print(f"{answer:.4f} is the largest relative error of the theory for a head that has learned")
print(f"run time {time.process_time():.0f} s, in processor time")
