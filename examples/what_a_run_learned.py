"""What did the model learn on each plateau of a run of my own?

A run is a Dataset, whether it was made in Python or on the command line, and `icl.diagnose`,
`icl.measure_along`, `icl.animate` and `icl.explore` take any that has its weights. It says itself
what it was trained on; a source that it cannot say, such as own prompts, is given as an argument.
"""

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# Three components learned one after the other, and kept in a file as anybody would.

# %%
task = icl.Task(spectrum=[0.6, 0.3, 0.1], context=31)
init = icl.Separate.initialiser(task, heads=4, scale=0.05)
steps = np.unique(np.geomspace(1, 60_000, 400).astype(int))
runs = icl.sweep(
    task, init, icl.Descent(rate=0.2), saveat=steps, seeds=2, record=["loss", "weights"]
)
icl.save(runs, "mine.nc")

# %% [markdown]
# The file is all that is needed. The diagnosis names the algorithm of every moment: it predicts
# zero, then is principal component regression with one component, with two, and least squares.
# `measure_along` adds how sharp the loss is where the run passes.

# %%
mine = icl.load("mine.nc")
found = icl.diagnose(mine, seed=0)
along = icl.measure_along(mine, seed=0)

# %%
names = [str(name) for name in found.algorithm.values]
order = list(dict.fromkeys(names))
figure, (above, below) = plt.subplots(2, 1, figsize=(5.2, 4.4), sharex=True, layout="constrained")
above.plot(found.step, found.loss, color="black")
for index, name in enumerate(order):
    inside = found.step.values[[name == other for other in names]]
    colour = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")[index % 6]
    above.axvspan(inside[0], inside[-1], color=colour, alpha=0.2, linewidth=0, label=name)
above.set(xscale="log", ylabel=r"loss  $E(y-\hat y)^2$", ylim=(0, 1.05))
above.legend(fontsize=8, title="algorithm in context", title_fontsize=8, loc="lower left")
below.plot(along.step, along.sharpness, color="#0072B2")
below.set(xlabel="training steps", ylabel="sharpness", ylim=(0, None))
figure.savefig("what_a_run_learned.png", dpi=160)

# %%
answer = float(found.sizes["drop_number"])
print(", then ".join(order))
print(f"{answer:.0f} drops, at steps {', '.join(f'{s:.0f}' for s in found.drop_step.values)}")
print(f"run time {time.process_time():.0f} s, in processor time")
