"""Does the staircase appear on real data?

The map is a digital elevation model of the Jacksboro fault in Tennessee, which comes with
Matplotlib. A prompt is a square of 16 by 16 cells of it. Somebody has looked in one direction that
they do not tell, the same at all 25 points of the prompt, and read the height two cells away. What
the model sees at each point is the relief right around it. It has to find out from 24 examples
where they looked. Nobody has chosen a covariance here, and no task vector is Gaussian.
"""

# %%
import time

import jax
import numpy as np
import xarray as xr
from matplotlib.cbook import get_sample_data

import iclflow as icl

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# The eight heights around a point are given relative to it, along their five largest principal
# axes. The first two are the slopes of the ground, the third is its curvature.

# %%
with get_sample_data("jacksboro_fault_dem.npz") as file:
    heights = file["elevation"].astype(float)
rng = np.random.default_rng(0)
count, pairs, side, far = 6_000, 24, 16, 2
corner = [rng.integers(far, size - far - side, (count, 1)) for size in heights.shape]
cells = np.stack([rng.permutation(side**2)[: pairs + 1] for _ in range(count)])
row, column = corner[0] + cells // side, corner[1] + cells % side


def relief(up, right):
    """Return the height at an offset from every point, relative to the point."""
    return heights[row + up, column + right] - heights[row, column]


around = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
x = np.stack([relief(i, j) for i, j in around], axis=-1)
x = x @ np.linalg.svd(x.reshape(-1, 8), full_matrices=False)[2].T[:, :5]
ring = [
    (i, j) for i in range(-far, far + 1) for j in range(-far, far + 1) if far in map(abs, (i, j))
]
looked = np.array(ring)[rng.integers(len(ring), size=count)]
y = relief(looked[:, :1], looked[:, 1:])
np.savez("map.npz", x=x / np.sqrt(np.mean(np.sum(x**2, -1))), y=y / y.std())

# %% [markdown]
# A file of prompts is all that is needed. `icl.predict` gives the theory of these very prompts:
# which plateaus there are, and from the initial weights when each of them ends. The shell does the
# same: `iclflow simulate --prompts map.npz --heads 6 --scale 0.05 --blocks frozen --plot map.png`.

# %%
loss = icl.Moments.of(icl.Prompts.load("map.npz"), features=icl.ReducedFeatures())
init = icl.Separate.initialiser(loss, heads=6, scale=0.05)
theory = [icl.predict(loss, init(jax.random.key(seed)), probes=0) for seed in range(2)]
print("plateaus:", np.round(theory[0].levels, 3))
print("predicted drops at t/τ =", np.round(theory[0].times[:3], 1))

# %%
steps = np.unique(np.linspace(0, 15_000, 1_501).astype(int))
runs = icl.sweep(loss, init, icl.Descent(rate=0.1), saveat=steps, seeds=2)
predicted = [one.to_dataset(runs.time.values)[["loss"]] for one in theory]
curves = xr.concat(predicted, "seed")
figure = icl.plots.loss(runs, levels=theory[0].levels[:4], theory=curves)
figure.savefig("prompts_from_a_map.png")

# %% [markdown]
# A drop is counted where the loss is halfway from one level to the next.

# %%
halfway = [(one.levels[1:4] + one.levels[:3]) / 2 for one in theory]
pairs = zip(runs.loss.values, halfway, strict=True)
found = [icl.measures.first_crossings(runs.time.values, *pair) for pair in pairs]
answer = max(np.nanmax(np.abs(a.times[:3] / b - 1)) for a, b in zip(theory, found, strict=True))
print("simulated drops at t/τ =", np.round(found[0], 1))
print(
    f"{answer:.4f} is the largest relative error of a predicted drop time, three drops of two runs"
)
print(f"run time {time.process_time():.0f} s, in processor time")
