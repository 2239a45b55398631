"""What can attention learn from prompts that I already have?

Prompts may come from anywhere: files, a simulator, measurements. `Moments.of` reads them once,
batch by batch, and training then costs the same for any number of them. How far linear attention
can get is known from the same moments before training: L* = E[y²] - gᵀG⁺g.
"""

# %%
import time

import jax
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# Here they are steps of a saturating sensor with a gain that changes from prompt to prompt: 40
# readings of three inputs, the last of which is asked for. A prompt is (x, y) with the query last.


# %%
def batches(count, size, seed=0):
    """Yield prompts with a leading axis."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        inputs = rng.normal(size=(size, 41, 3)) * [1.0, 0.8, 0.6]
        gains = rng.normal(size=(size, 3, 1))
        readings = np.tanh(inputs @ gains) + 0.1 * rng.normal(size=(size, 41, 1))
        yield icl.Prompt(*map(jax.numpy.asarray, (inputs, readings, readings)))


loss = icl.Moments.of(batches(10, 1_000), features=icl.ReducedFeatures())
g, G = np.asarray(loss.cross)[0], np.asarray(loss.second)
least = float(loss.power) - g @ np.linalg.pinv(G) @ g

# %% [markdown]
# Nothing else changes: an initialiser takes its sizes from the loss, and `icl.predict` gives the
# theory of these prompts. Arrays and files (`.npz`, `.npy`, NetCDF) are read by `icl.Prompts`.

# %%
init = icl.Separate.initialiser(loss, heads=4, scale=0.05)
theory = icl.predict(loss, init(jax.random.key(0)), probes=0)
steps = np.unique(np.linspace(0, 20_000, 1_001).astype(int))
runs = icl.sweep(loss, init, icl.Descent(rate=0.1), saveat=steps, seeds=3)
figure = icl.plots.loss(runs, levels=theory.levels, theory=theory)
figure.savefig("your_own_prompts.png")

# %%
answer = float(runs.loss.isel(time=-1).min() / least)
print(f"E[y²] = {float(loss.power):.4f}, L* = {least:.4f}")
print(f"{answer:.4f} is the last loss of the best run over the least that is possible")
print(f"run time {time.process_time():.0f} s, in processor time")
