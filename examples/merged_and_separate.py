"""Does it matter whether key and query are one matrix or two?

Both models can express the same predictions, and end at the same loss. Merged, they learn all
components in one drop. Separate, they learn one component per drop, and the plateaus in between
make training much longer. Both theories start from the initial weights and have nothing to fit.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
scale, flow = 0.02, icl.Flow(tolerance=1e-6)
inits = {
    "merged": icl.Merged.initialiser(task, heads=4, scale=scale),
    "separate": icl.Separate.initialiser(task, heads=4, scale=scale),
}

# %% [markdown]
# The same task and the same init scale (the norm of each layer), by gradient flow.

# %%
least = float(icl.theory.plateau_losses(task)[-1])
ends, curves = {}, {}
for name, init in inits.items():
    theory = icl.theory.predict(task, init(jax.random.key(1)), probes=0)
    clock = np.geomspace(1, 5 * theory.times[-1], 800)
    run = icl.simulate(icl.Population(task), init(jax.random.key(1)), flow, saveat=clock)
    curves[name] = clock, run.loss, theory.curve(clock).loss
    near = np.asarray(run.loss) < 1.05 * least
    ends[name] = clock[near.argmax()]
    print(f"{name}: {len(theory.times)} drop(s), within 5% of the end at t/τ = {ends[name]:.1f}")

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    for n, (name, (clock, loss, predicted)) in enumerate(curves.items()):
        axes.plot(clock, loss, color=f"C{n}", linewidth=2.5, alpha=0.4, label=name)
        axes.plot(clock, predicted, "--", color=f"C{n}", linewidth=1)
    axes.plot([], [], "--", color="0.3", linewidth=1, label="theory")
    axes.axhline(least, color="0.5", linestyle=":", linewidth=0.8, label="$L_*$")
    axes.set(xscale="log", xlim=(5, 10_000), ylim=(0, 1.05))
    axes.set(xlabel=r"training time $t/\tau$", ylabel=r"loss $\mathbb{E}(y_q - \hat{y}_q)^2$")
    axes.legend(loc="center right")
    figure.savefig("merged_and_separate.png")

# %%
answer = ends["separate"] / ends["merged"]
print(f"{answer:.1f} times as long takes the model with separate key and query")
print(f"run time {time.process_time():.0f} s, in processor time")
