"""When does the loss drop, and how far?

Linear attention with separate key and query learns in context one principal component of the
inputs after another. Between two of them nothing seems to happen for a long time; then the loss
falls within a moment. The theory gives the levels (24) from the task, and the times from the
initial weights, before anything is trained.
"""

# %%
import time

import jax
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.4, 0.3, 0.2, 0.1], context=31)
init = icl.Separate.initialiser(task, heads=5, scale=0.07)
theory = icl.theory.predict(task, init(jax.random.key(1)), probes=0)
print("predicted drops at t/τ =", np.round(theory.times, 1))

# %% [markdown]
# Now the same start is trained, on infinitely many prompts: `Task` stands for its population.

# %%
steps = np.unique(np.linspace(0, 9_000, 1_801).astype(int))
runs = icl.sweep(task, init, icl.Descent(rate=0.2), saveat=steps, seeds=[1])
figure = icl.plots.loss(runs, theory=theory, levels=theory.levels)
figure.savefig("staircase.png")

# %% [markdown]
# A drop is counted where the loss is halfway from one level to the next.

# %%
halfway = (theory.levels[1:] + theory.levels[:-1]) / 2
found = icl.measures.first_crossings(runs.time.values, runs.loss.values, halfway)[0]
print("simulated drops at t/τ =", np.round(found, 1))
answer = np.max(np.abs(theory.times / found - 1))
print(f"{answer:.4f} is the largest relative error of a predicted drop time")
print(f"run time {time.process_time():.0f} s, in processor time")
