"""How many tasks does it take to learn in context?

Training on a pool of M tasks instead of ever new ones, a model learns the covariance of the pool
rather than that of the world. Linear attention cannot memorise the tasks one by one; what few
tasks cost is the difference of these covariances, so its end is known in closed form.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

world = icl.Task(spectrum=[0.4, 0.3, 0.2, 0.1], context=16)
pool_sizes = [2, 4, 8, 16, 32, 64, 128]
draws = jax.random.normal(jax.random.key(3), (max(pool_sizes), 4))
tasks = {f"{size}": world.replace(tasks=icl.Pool(draws[:size])) for size in pool_sizes}

# %% [markdown]
# Merged attention is trained on each pool, and tested on new tasks: the record is the loss on the
# world's population. Theory: the minimum of the pool's loss, evaluated on the world.

# %%
init = icl.Merged.initialiser(world, heads=4, scale=0.2)
runs = icl.sweep(
    {name: icl.Population(task) for name, task in tasks.items()},
    init, icl.Descent(rate=0.3), until=20_000, record={"test": icl.Population(world)},
)  # fmt: skip
tested = runs.test.isel(time=-1, seed=0).values
ends = [icl.theory.least_squares(task).population_loss(world) for task in tasks.values()]
theory = np.array([float(end) for end in ends])
best = float(icl.theory.plateau_losses(world)[-1])

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.7))
    axes.loglog(pool_sizes, tested / best - 1, "o", label="trained on a pool, tested on new tasks")
    axes.plot(pool_sizes, theory / best - 1, "k--", linewidth=1, label="theory")
    axes.set_xticks(pool_sizes, [str(size) for size in pool_sizes])
    axes.minorticks_off()
    axes.set(xlabel="tasks in the pool, M", ylabel=r"excess loss on new tasks, $L/L_* - 1$")
    axes.legend()
    figure.savefig("task_diversity.png")

# %%
answer = float(tested[-1] / best - 1)
print("excess loss:", np.round(tested / best - 1, 4), "theory:", np.round(theory / best - 1, 4))
print(f"{answer:.4f} is the excess loss on new tasks after training on {pool_sizes[-1]}")
print(f"run time {time.process_time():.0f} s, in processor time")
