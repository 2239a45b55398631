"""How curved, and how degenerate, is the loss where training rests?

On a plateau the Hessian has a negative end: that is what a saddle is about. At the minimum none is
left, yet with more heads than needed most directions are flat, and the local learning coefficient
counts how many there are in effect: half the number of entries of M, D²/2, whatever the heads.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl
from iclflow.measures import learning_coefficient

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.6, 0.4], context=31)
loss = icl.Population(task)
init = icl.Separate.initialiser(task, heads=4, scale=0.1)
steps = np.arange(421)
runs = icl.sweep(
    loss, init, icl.Descent(rate=0.2), saveat=steps, seeds=[2],
    record=["loss", "sharpness", "lowest_curvature"],
).isel(seed=0)  # fmt: skip

# %% [markdown]
# The Hessian is measured at 16 of the save points. Its lowest eigenvalue is negative on the first
# plateaus, most of all in the drops, and zero at the end: flat, because heads can trade scale.

# %%
known = np.isfinite(runs.lowest_curvature.values)
with icl.plots.style():
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(4.4, 3.6), sharex=True)
    top.plot(runs.time, runs.loss, color="0.2")
    for level in icl.theory.plateau_losses(task):
        top.axhline(level, color="0.6", linestyle=":")
    for n, name in enumerate(("sharpness", "lowest_curvature")):
        label = ("largest eigenvalue", "smallest eigenvalue")[n]
        bottom.plot(runs.time[known], runs[name][known], "o-", markersize=3, label=label)
    bottom.axhline(0, color="0.6", linewidth=0.6)
    top.set(ylabel="loss")
    bottom.set(xlabel=r"training time $t/\tau$", ylabel="of the Hessian of $L$")
    bottom.legend()
    figure.savefig("curvature.png")

# %% [markdown]
# λ by Langevin sampling, beside the exact value. It does not see the number of weights.

# %%
at = icl.dynamics.reference_minimum(loss, init(jax.random.key(2)))
found = learning_coefficient(loss, at, chains=32, draws=2000)
exact = icl.theory.attention_coefficient(at).coefficient
weights = sum(leaf.size for leaf in jax.tree.leaves(at))
print(f"{weights} weights: λ = {exact}, sampled {found}")
print(f"smallest eigenvalue: {float(runs.lowest_curvature[known].min()):.3f} at its lowest, "
      f"{float(runs.lowest_curvature[known][-1]):.1e} at the end")  # fmt: skip
answer = float(found.value)
print(
    f"{answer:.1f} is the sampled coefficient of a minimum with {weights} weights, "
    f"and D²/2 = {exact}"
)
print(f"run time {time.process_time():.0f} s, in processor time")
