"""Do more heads make training faster?

A sweep is the same call as a run with axes: here the number of heads, with 16 starts each. It is
labelled, resumable (`store=`), and compared with the theory start by start. At the same norm of
each layer more heads are smaller heads: the first plateau gets longer, and the last one, which
waits for the third-fastest head, shorter.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
heads, seeds = [4, 8, 16], 16
init = icl.Separate.initialiser(task, heads=heads[0], scale=0.05)
steps = np.unique(np.concatenate([[0], np.geomspace(100, 40_000, 600).astype(int)]))
runs = icl.sweep(
    task, init, icl.Descent(rate=0.2), saveat=steps, axes={"heads": heads}, seeds=seeds,
    store="runs",
)  # fmt: skip

# %%
levels = np.asarray(icl.theory.plateau_losses(task))
halfway = (levels[1:] + levels[:-1]) / 2
curves = runs.loss.values.reshape(-1, len(steps))
found = icl.measures.first_crossings(runs.time.values, curves, halfway)
found = found.reshape(len(heads), seeds, 3)
theory = np.stack([
    icl.theory.drop_times(task, [
        icl.Separate.initialiser(task, heads=h, scale=0.05)(jax.random.key(s)) for s in range(seeds)
    ])
    for h in heads
])  # fmt: skip

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    for m in (0, 2):
        low, middle, high = np.nanquantile(found[..., m], [0.25, 0.5, 0.75], axis=1)
        bars = [middle - low, high - middle]
        axes.errorbar(
            heads, middle, bars, fmt="o", capsize=2, label=f"drop {m + 1}, median of runs"
        )
        label = "theory, the same starts" if m else None
        axes.plot(heads, np.median(theory[..., m], axis=1), "k--", linewidth=1, label=label)
    axes.set(xscale="log", yscale="log", xlabel="heads $H$", ylabel=r"time of the drop $t/\tau$")
    axes.set_xticks(heads, [str(h) for h in heads])
    axes.set_yticks([200, 500, 1_000, 2_000], ["200", "500", "1000", "2000"])
    axes.minorticks_off()
    axes.legend()
    figure.savefig("a_sweep.png")

# %%
medians = np.median(found[..., 0], axis=1)
answer = float(np.polyfit(np.log(heads), np.log(medians), 1)[0])
of_theory = np.polyfit(np.log(heads), np.log(np.median(theory[..., 0], axis=1)), 1)[0]
print(f"exponent by theory: {of_theory:.2f}")
print(f"{answer:.2f} is the exponent with which the first drop grows with the heads")
print(f"run time {time.process_time():.0f} s, in processor time")
