"""Can I watch my own PyTorch training, and does the theory know it?

A `Monitor` is called at every step, measures weights now and then, and finds plateaus and drops of
the loss while it runs. The loop below is plain PyTorch with its own conventions (a sum over tokens
without 1/N, a loss with ½); `published.normalised` and the factor ½ bring it to the clock of the
theory.
"""

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch

import iclflow as icl
from iclflow.checkpoints import Monitor

jax.config.update("jax_enable_x64", True)
torch.manual_seed(0)
double = {"dtype": torch.float64}

# %% [markdown]
# Rank-one linear attention, ŷ = Σ v (k·Σ y x)(q·x_q), and prompts.

# %%
count, pairs, heads = 20_000, 31, 4
weights = {
    "value": (0.02 * torch.randn(heads, **double)).requires_grad_(),
    "key": (0.012 * torch.randn(heads, 3, **double)).requires_grad_(),
    "query": (0.012 * torch.randn(heads, 3, **double)).requires_grad_(),
}
first = {name: jnp.asarray(w.detach().numpy()) for name, w in weights.items()}

spread = torch.tensor([0.5, 0.3, 0.2], **double).sqrt()
inputs = torch.randn(count, pairs, 3, **double) * spread
query = torch.randn(count, 3, **double) * spread
tasks = torch.randn(count, 3, 1, **double)
labels, target = (inputs @ tasks)[..., 0], (query[:, None] @ tasks)[:, 0, 0]
context = (labels[..., None] * inputs).sum(1)  # no 1/N

# %%
rate, steps = 0.04, 850
optimiser = torch.optim.SGD(weights.values(), lr=rate)
monitor = Monitor(measures=["norm"], budget=1.0)
for step in range(steps + 1):
    scores = (context @ weights["key"].T) * (query @ weights["query"].T)
    loss = 0.5 * ((scores @ weights["value"] - target) ** 2).mean()
    monitor(step, loss=loss, weights=weights, last=step == steps)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
data, drops = monitor.to_dataset(), monitor.stages().drops
print("drops seen by the monitor at steps", [round(drop.time) for drop in drops])

# %% [markdown]
# The same start in the units of the theory: the loss without ½ halves the rate.

# %%
task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=pairs)
parts = first["value"][:, None, None], first["key"][:, None], first["query"][:, None]
model, paper_rate = icl.published.normalised(icl.Separate(*parts), rate / 2, pairs)
theory = icl.theory.predict(task, model, probes=0)
in_steps = theory.times / (2 * paper_rate)
print("theory of infinitely many prompts:", np.round(in_steps).astype(int))

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    axes.plot(data.loss_step, 2 * data.loss, label="PyTorch, times 2")
    axes.plot(theory.time / (2 * paper_rate), theory.loss, "k--", linewidth=1, label="theory")
    for drop in drops:
        axes.axvline(drop.time, color="0.7", linewidth=0.8, zorder=0)
    axes.plot([], [], color="0.7", linewidth=0.8, label="drop seen by the monitor")
    axes.set(xlim=(0, steps), ylim=(0, 1.1), xlabel="training step")
    axes.set_ylabel(r"loss $\mathbb{E}(y_q - \hat{y}_q)^2$")
    axes.legend()
    figure.savefig("monitor_in_torch.png")

# %%
answer = abs(drops[0].time / in_steps[0] - 1)
print(f"{answer:.3f} is the relative error of the theory for the first drop")
print(f"run time {time.process_time():.0f} s, in processor time")
