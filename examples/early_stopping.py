"""What does a model compute if training is stopped early?

On the m-th plateau attention predicts as principal component regression on m components does (27):
so stopping early is to choose m. Here the distance between the predictions of the model and of
each algorithm is followed through training; it is exact, from population moments.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl
from iclflow.diagnosis.identify import identify

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
init = icl.Separate.initialiser(task, heads=4, scale=0.02)
theory = icl.theory.predict(task, init(jax.random.key(1)), probes=0)
clock = np.linspace(0, 1.2 * theory.times[-1], 500)
run = icl.simulate(
    icl.Population(task),
    init(jax.random.key(1)),
    icl.Flow(tolerance=1e-6),
    saveat=clock,
    record={"loss": "loss", "model": lambda model, loss: model},
)

# %%
components = range(len(task.spectrum) + 1)
regressions = {f"PCR-{m}": icl.theory.principal_component_regression(task, m) for m in components}
distance = identify(run["model"], task, among=regressions).distance.values
losses = [float(one.population_loss(task)) for one in regressions.values()]

# %% [markdown]
# Above the loss, with the loss of each regression dotted; below the distance to each of them, in
# units of the labels' standard deviation. Where a line of the lower panel is lowest, the model and
# that regression predict the same.

# %%
with icl.plots.style():
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(4.6, 3.9), sharex=True)
    top.plot(clock, run.loss, color="0.2")
    for m, name in enumerate(regressions):
        top.axhline(losses[m], color=f"C{m}", linestyle=":")
        bottom.semilogy(clock, distance[:, m], color=f"C{m}", label=name)
    top.set(ylabel="loss", ylim=(0, 1.05))
    bottom.set(
        xlabel=r"training time $t/\tau$", ylabel="distance", ylim=(1e-7, 3), xlim=(0, clock[-1])
    )
    figure.legend(loc="outside upper center", ncols=4)
    figure.savefig("early_stopping.png")

# %%
closest = ", ".join(f"{d:.0e}" for d in distance.min(axis=0))
print(f"smallest distance to PCR-0 ... PCR-3: {closest}")
answer = float(np.mean(distance.min(axis=1) < 0.01))
print(f"{answer:.3f} of the training time the model is within 1% of one of the regressions")
print(f"run time {time.process_time():.0f} s, in processor time")
