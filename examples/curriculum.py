"""What does attention keep when the task changes during training?

Training begins on long contexts and goes on, from step 3,000, on short and noisy ones. `Curriculum`
says which loss begins at which step, and `test=` measures both tasks at every save point, also the
one that training does not see then. Each test is exact, since it is a population.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

easy = icl.Task(spectrum=[0.6, 0.3, 0.1], context=63)
hard = easy.replace(context=7, label_noise=0.5)
init = icl.Separate.initialiser(easy, heads=5, scale=0.1)
steps = np.unique(np.linspace(0, 6_000, 301).astype(int))
tests = {"long, no noise": easy, "short, noisy": hard}
runs = icl.sweep(
    icl.Curriculum({0: easy, 3_000: hard}), init, icl.Descent(rate=0.4), saveat=steps, seeds=3,
    test=tests,
)  # fmt: skip

# %% [markdown]
# Dotted are the least losses of the two tasks by theory. The weights that are best for short and
# noisy contexts shrink the estimate, and cost on long ones.

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.2, 2.7))
    for n, (name, task) in enumerate(tests.items()):
        for seed in runs.seed:
            curve = runs.test_loss.sel(seed=seed, test=name)
            axes.plot(runs.step, curve, color=f"C{n}", label=name if seed == 0 else None)
        axes.axhline(icl.theory.plateau_losses(task)[-1], color=f"C{n}", linestyle=":")
    axes.axvline(3_000, color="0.6", linewidth=0.7)
    axes.text(3_050, 1.0, "task changes", color="0.4", fontsize=7)
    axes.set(xlabel="training step", ylabel="test loss", ylim=(0, 1.1))
    axes.legend()
    figure.savefig("curriculum.png")

# %%
last = runs.test_loss.isel(time=-1).mean("seed")
least = {name: float(icl.theory.plateau_losses(task)[-1]) for name, task in tests.items()}
print("loss at the end:", {name: round(float(last.sel(test=name)), 4) for name in tests})
print("least possible: ", {name: round(value, 4) for name, value in least.items()})
answer = float(last.sel(test="long, no noise") / least["long, no noise"])
print(f"{answer:.2f} times its least loss is the loss on the first task at the end")
print(f"run time {time.process_time():.0f} s, in processor time")
