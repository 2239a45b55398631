"""Does label noise delay in-context learning?

Noise on the labels in the context makes the prompt a worse teacher: every level of the loss rises.
But the drops do not come later. Heads that have not learned yet are driven by the correlation of
context and query alone, in which independent noise averages out.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=16)
init = icl.Separate.initialiser(task, heads=4, scale=0.05)
noises = [0.0, 0.5, 1.0, 2.0]
steps = np.unique(np.linspace(0, 3_600, 901).astype(int))
runs = icl.sweep(
    task, init, icl.Descent(rate=0.2), saveat=steps, axes={"label_noise": noises}, seeds=[1]
).isel(seed=0)

# %%
firsts, theories = [], []
for noise in noises:
    noisy = task.replace(label_noise=noise)
    theory = icl.theory.predict(noisy, init(jax.random.key(1)), probes=0)
    loss = runs.loss.sel(label_noise=noise)
    halfway = (theory.levels[1:] + theory.levels[:-1]) / 2
    found = icl.measures.first_crossings(runs.time.values, loss.values[None], halfway)[0]
    print(f"noise {noise}: drops {np.round(found, 1)}, theory {np.round(theory.times, 1)}")
    firsts.append(found[0])
    theories.append(theory.curve(runs.time.values).loss)

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    for n, (noise, predicted) in enumerate(zip(noises, theories, strict=True)):
        loss, name = runs.loss.sel(label_noise=noise), f"noise {noise:g}"
        axes.plot(runs.time, loss, color=f"C{n}", linewidth=2.5, alpha=0.4, label=name)
        axes.plot(runs.time, predicted, "--", color=f"C{n}", linewidth=1)
    axes.plot([], [], "--", color="0.3", linewidth=1, label="theory")
    axes.set(xlabel=r"training time $t/\tau$", ylabel=r"loss $\mathbb{E}(y_q - \hat{y}_q)^2$")
    axes.set(xlim=(0, runs.time.values[-1]), ylim=(0, 1.05))
    axes.legend(ncols=2)
    figure.savefig("label_noise.png")

# %%
answer = max(firsts) / min(firsts) - 1
print(f"{answer:.4f} is the most that noise moves the first drop, relatively")
print(f"run time {time.process_time():.0f} s, in processor time")
