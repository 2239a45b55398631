"""How does attention learn to tell digits apart from a few examples?

A prompt is a small classification problem: 30 images of two handwritten digits, each with the label
+1 or -1, and one more image without. Which two digits it is about, and which of them is +1, changes
from prompt to prompt. Training sees the digits 0 to 7; 8 against 9 is left for the test. The images
are those of scikit-learn, which is all that this example needs in addition.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import iclflow as icl

try:
    from sklearn.datasets import load_digits
except ImportError:
    missing = "this example needs the digits of scikit-learn: pip install scikit-learn"
    raise SystemExit(missing) from None

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# The model sees each image along the six largest principal axes of the digits 0 to 7.

# %%
images, digits = load_digits(return_X_y=True)
known = images[digits < 8]
mean = known.mean(axis=0)
axes = np.linalg.svd(known - mean, full_matrices=False)[2][:6]
points = (images - mean) @ axes.T
points /= np.sqrt(np.mean(np.sum(points[digits < 8] ** 2, axis=-1)))
of_digit = [points[digits == digit] for digit in range(10)]
rng = np.random.default_rng(0)


def prompts(among, count, examples=30):
    """Draw prompts that tell two of some digits apart."""
    x, y = np.empty((count, examples + 1, 6)), rng.choice([-1.0, 1.0], (count, examples + 1))
    for image, label in zip(x, y, strict=True):
        plus, minus = rng.permutation(among)[:2]
        for sign, digit in ((1, plus), (-1, minus)):
            image[label == sign] = rng.choice(of_digit[digit], np.sum(label == sign))
    return icl.Moments.of(icl.Prompts(x, y), features=icl.ReducedFeatures())


loss, unseen = prompts(range(8), 6_000), prompts([8, 9], 2_000)

# %% [markdown]
# `icl.predict` gives the theory of these very prompts, and from the initial weights when each
# plateau ends. Nothing here is Gaussian, and nobody has chosen a covariance.

# %%
init = icl.Separate.initialiser(loss, heads=7, scale=0.05)
theory = [icl.predict(loss, init(jax.random.key(seed)), probes=0) for seed in range(2)]
steps = np.unique(np.append(0, np.geomspace(10, 80_000, 1_500)).astype(int))
descent = icl.Descent(rate=0.5)
runs = icl.sweep(loss, init, descent, saveat=steps, seeds=2, test={"8 or 9": unseen})
print("plateaus:", np.round(theory[0].levels, 3))
for seed, one in enumerate(theory):
    print(f"predicted drops of seed {seed} at t/τ =", np.round(one.times, 1))

# %% [markdown]
# Not every drop helps to tell 8 from 9. The first is worth nothing there, and some make the test
# worse for a while.

# %%
curves = xr.concat([one.to_dataset(runs.time.values)[["loss"]] for one in theory], "seed")
with icl.plots.style():
    figure, panel = plt.subplots(figsize=(4.6, 3.2))
    for seed in range(2):
        colour = f"C{seed}"
        panel.plot(runs.time, runs.loss[seed], color=colour, alpha=0.4, linewidth=2.5)
        panel.plot(runs.time, curves.loss[seed], color=colour, linestyle="--")
        panel.plot(runs.time, runs.test_loss[seed].squeeze(), color=colour, linestyle=":")
    panel.plot([], [], color="0.3", alpha=0.4, linewidth=2.5, label="digits 0 to 7 (training)")
    panel.plot([], [], color="0.3", linestyle="--", label="theory of these prompts")
    panel.plot([], [], color="0.3", linestyle=":", label="8 against 9, never seen")
    panel.set(xscale="log", xlim=(50, runs.time[-1]), ylim=(0, 1.05), ylabel="loss")
    panel.set_xlabel(r"training time $t/\tau$")
    panel.legend(loc="lower left")
    figure.savefig("real_digits.png")

# %%
halfway = [(one.levels[1:] + one.levels[:-1]) / 2 for one in theory]
pairs = zip(runs.loss.values, halfway, strict=True)
found = [icl.measures.first_crossings(runs.time.values, *pair) for pair in pairs]
answer = max(np.nanmax(np.abs(a.times / b - 1)) for a, b in zip(theory, found, strict=True))
print("loss on 8 against 9 at the end:", round(float(runs.test_loss.isel(time=-1).mean()), 3))
print(f"{answer:.3f} is the largest relative error of a predicted drop time, six drops of two runs")
print(f"run time {time.process_time():.0f} s, in processor time")
