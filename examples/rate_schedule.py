"""Has training converged, or has its rate only run out?

A schedule of the rate changes when drops happen in steps, and nothing else: gradient descent has a
clock, t/τ = 2 Σ ηₛ, on which every schedule gives the same staircase. So a rate that decays ends on
a plateau that looks like the end of learning. Going on from there with a rate that does not decay
shows the drops that were still to come, at the times that the theory gives for the first start.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
init = icl.Separate.initialiser(task, heads=4, scale=0.05)
theory = icl.predict(task, init(jax.random.key(1)), probes=0)
print("predicted drops at t/τ =", np.round(theory.times, 1))

# %% [markdown]
# Both runs begin with the same weights. The schedule of Optax warms up and decays to zero.

# %%
until = 2_000
steps = np.arange(0, until + 1, 4)
cosine = optax.warmup_cosine_decay_schedule(0.0, 0.25, warmup_steps=200, decay_steps=until)
constant, decayed = (
    icl.sweep(task, init, icl.Descent(rate), saveat=steps, seeds=[1], final=["weights"])
    for rate in (0.3, cosine)
)

# %% [markdown]
# `start=` goes on from where an earlier sweep ended, with all of its seeds and axes. Its clock
# begins anew, so that the time of the earlier sweep is added here.

# %%
after = icl.sweep(task, init, icl.Descent(0.3), saveat=steps, start=decayed)
curves = {
    "rate 0.3": (constant.step, constant.time, constant.loss[0]),
    "cosine to zero": (decayed.step, decayed.time, decayed.loss[0]),
    "cosine, then 0.3": (after.step + until, after.time + decayed.time[-1], after.loss[0]),
}

# %%
with icl.plots.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.8), sharey=True)
    for n, (name, (step, clock, loss)) in enumerate(curves.items()):
        left.plot(step, loss, color=f"C{n}", label=name)
        right.plot(clock, loss, color=f"C{n}", linewidth=2.5, alpha=0.5)
    right.plot(theory.time, theory.loss, "k--", linewidth=1, label="theory")
    left.axvline(until, color="0.6", linewidth=0.7)
    left.set(xlabel="training step", ylabel="loss", ylim=(0, 1.05), xlim=(0, 2 * until))
    left.set_xticks(range(0, 2 * until + 1, 1_000))
    right.set(xlabel=r"training time $t/\tau = 2\sum_s\eta_s$", xlim=(0, 1_300))
    figure.legend(loc="outside upper center", ncols=4)
    figure.savefig("rate_schedule.png")

# %%
middles = (theory.levels[1:] + theory.levels[:-1]) / 2
clock = np.append(curves["cosine to zero"][1], curves["cosine, then 0.3"][1])
resumed = np.append(decayed.loss[0], after.loss[0])
straight = icl.measures.first_crossings(constant.time.values, constant.loss.values[0], middles)
found = icl.measures.first_crossings(clock, resumed, middles)
print("drops at a rate of 0.3:", np.round(straight, 1))
print("with the schedule, and gone on:", np.round(found, 1))
print("loss where the rate has run out:", round(float(decayed.loss[0, -1]), 4))
answer = np.abs(np.concatenate([straight, found]) / np.tile(theory.times, 2) - 1).max()
print(f"{answer:.4f} is the largest relative error of a predicted drop time")
print(f"run time {time.process_time():.0f} s, in processor time")
