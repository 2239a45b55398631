"""How does the first plateau depend on the init scale?

From small weights training is rich: long plateaus, abrupt drops, one component at a time. From
large weights it is lazy: the loss falls at once. For rank-one heads the first plateau is as long
as 1/w, where w is the norm of each layer; the theory follows it until there is no plateau left.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
scales = np.geomspace(0.01, 1.0, 7)
init = icl.Separate.initialiser(task, heads=4, scale=scales[0])
steps = np.unique(np.concatenate([np.arange(200), np.geomspace(200, 40_000, 1_500).astype(int)]))
runs = icl.sweep(
    task, init, icl.Descent(rate=0.1), saveat=steps, axes={"scale": scales.tolist()}, seeds=[1]
).isel(seed=0)

# %%
levels = np.asarray(icl.theory.plateau_losses(task))
halfway = (levels[1:] + levels[:-1]) / 2
found = icl.measures.first_crossings(runs.time.values, runs.loss.values, halfway)
starts = [icl.Separate.initialiser(task, heads=4, scale=w)(jax.random.key(1)) for w in scales]
theory = np.stack([icl.theory.predict(task, model, probes=0).times for model in starts])

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    for m in range(3):
        axes.loglog(scales, found[:, m], "o", label=f"drop {m + 1}")
        axes.loglog(scales, theory[:, m], "k--", linewidth=1, label="theory" if m == 2 else None)
    axes.set(xlabel="init scale $w$", ylabel=r"time of the drop $t/\tau$")
    axes.legend()
    figure.savefig("rich_to_lazy.png")

# %%
answer = float(np.log(found[1, 0] / found[0, 0]) / np.log(scales[1] / scales[0]))
print("median error of the theory:", f"{np.median(np.abs(theory / found - 1)):.2%}")
print(f"{answer:.3f} is the exponent of the first drop time at small w; theory -1")
print(f"run time {time.process_time():.0f} s, in processor time")
