"""Does softmax attention drop when linear attention does?

Softmax weighs the tokens of the context by exp(score), linear attention by the score itself. While
the scores are small the exponential is a straight line, and its constant, the average label,
vanishes as the context grows. So the longer the context, the nearer the drop of softmax attention
is to the one that the theory of linear attention predicts from the same weights.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

contexts, prompts, rate = [8, 32, 128], 1_000, 0.2
steps = np.arange(201)

# %% [markdown]
# Softmax attention is linear in no fixed features of the prompt, so it trains on the prompts
# themselves (`Sequences`). Theory: merged linear attention from the same initial weights, on
# infinitely many prompts. A drop is counted where half of it is done, each on its own way down.

# %%
curves, errors = [], []
for context in contexts:
    task = icl.Task(spectrum=[0.6, 0.4], context=context)
    model = icl.Merged.initialiser(task, heads=2, scale=0.02)(jax.random.key(1))
    loss = icl.Sequences.sample(task, prompts, jax.random.key(1), matched=True)
    run = icl.simulate(loss, icl.Softmax(model), icl.Descent(rate), saveat=steps)
    theory = icl.theory.predict(task, model, probes=0)
    clock = np.asarray(run.time)
    pair = np.stack([np.asarray(run.loss), theory.curve(clock).loss])
    pair /= pair[:, :1]  # the labels of so few prompts have a variance of their own
    seen, said = (clock[np.argmax(one < (1 + one[-1]) / 2)] for one in pair)
    print(f"N = {context}: softmax drops at t/τ = {seen:.1f}, linear theory {said:.1f}")
    curves.append(pair)
    errors.append(abs(seen / said - 1))

# %%
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.6, 2.9))
    for i, (context, pair) in enumerate(zip(contexts, curves, strict=True)):
        axes.plot(clock, pair[0], color=f"C{i}", label=f"softmax, N = {context}")
        axes.plot(clock, pair[1], "--", color=f"C{i}", linewidth=1)
    axes.plot([], [], "k--", linewidth=1, label="theory, linear attention")
    axes.set(xlabel=r"training time $t/\tau$", ylabel="loss, as a share of the first")
    axes.set(xlim=(0, clock[-1]), ylim=(0, 1.05))
    axes.legend(loc="upper right")
    figure.savefig("softmax_and_linear.png")

# %%
answer = errors[-1]
print(f"{answer:.2f} is how far the theory of linear attention is off at N = {contexts[-1]}")
print(f"run time {time.process_time():.0f} s, in processor time")
