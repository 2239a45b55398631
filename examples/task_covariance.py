"""Which direction is learned first if the tasks favour the weak one?

The inputs vary most along their first principal component. But a component is learned at a pace
that is the product of both laws, its gain λ²s: input variance squared times task variance. With λ
= (1, 0.5) the second component has the larger gain from s = 4 on. Near there chance decides too,
by the initial weights.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

spectrum = np.array([1.0, 0.5])
favours = np.array([1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.5, 5.5, 7.0, 9.0, 12.0])
seeds = 16

# %% [markdown]
# The task vectors have variance 1 along the first and s along the second eigenvector. The record
# is M, the effective weights of the prediction βᵀMx; its diagonal says what has been learned.


# %%
def learned(model, loss):
    """The diagonal of M, whose entries are 0 until their component is learned."""
    return jax.numpy.diagonal(model.reduced_weights()[0, 0])


tasks = {s: icl.Task(spectrum, 16, tasks=icl.Normal(covariance=[1.0, s])) for s in favours}
init = icl.Separate.initialiser(tasks[1.0], heads=2, scale=1e-3)
steps = np.unique(np.linspace(0, 20_000, 801).astype(int))
runs = icl.sweep(
    {f"{s:g}": icl.Population(task) for s, task in tasks.items()},
    init, icl.Descent(rate=0.05), saveat=steps, seeds=seeds, record=[learned],
)  # fmt: skip

# %%
half = np.stack([np.diag(icl.theory.least_squares(task).as_weights()) for task in tasks.values()])
reached = runs.learned.values > half[:, None, None, :] / 2  # source, seed, time, component
when = np.where(reached.any(axis=2), reached.argmax(axis=2), len(steps))
second_first = when[..., 1] < when[..., 0]
gains = spectrum**2 * np.stack([np.ones_like(favours), favours], axis=1)

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.7))
    axes.plot(favours, second_first.mean(axis=1), "o", label=f"share of {seeds} runs")
    axes.step([1, 4, 12], [0, 0, 1], "k--", linewidth=1, label="theory: the larger gain λ²s")
    axes.set(xscale="log", xlabel="task variance s along the weak direction", ylim=(-0.05, 1.05))
    axes.set_xticks([1, 2, 4, 8, 12], ["1", "2", "4", "8", "12"])
    axes.minorticks_off()
    axes.set_ylabel("weak direction learned first")
    axes.legend(loc="center left")
    figure.savefig("task_covariance.png")

# %%
answer = float(np.mean(second_first == (gains[:, 1] > gains[:, 0])[:, None]))
print(f"{answer:.3f} of the {second_first.size} runs learn the direction of larger gain first")
print(f"run time {time.process_time():.0f} s, in processor time")
