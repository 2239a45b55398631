"""Where does the last drop come, over init scale and number of heads?

A sweep over two axes is a map. Each square pools eight starts: here the median, in which a drop
that did not come counts as later than all others, so that a square is grey where half of the starts
did not have the drop within the run.
"""

# %%
import time

import jax
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

task = icl.Task(spectrum=[0.6, 0.4], context=31)
init = icl.Separate.initialiser(task, heads=4, scale=0.1)
runs = icl.sweep(
    task, init, icl.Descent(rate=0.2), until=4_000, seeds=8, record=["drop_times"],
    axes={"scale": [0.02, 0.05, 0.1, 0.2, 0.5], "heads": [2, 3, 5, 9]},
)  # fmt: skip

# %%
found = icl.sweeps.look_map(runs, "scale", "heads", "drop_times")
figure = icl.plots.map(found)
figure.savefig("a_map.png")

# %% [markdown]
# At a given scale more heads delay the first drop, since each head is smaller. The second drop
# takes the fastest of the heads that are left, and with two heads there is only one. From a store
# the same picture is `iclflow plot s.zarr --x scale --y heads --z drop_times`.

# %%
share = icl.sweeps.look_map(runs, "scale", "heads", "drop_times", "share")
print("share of runs with the last drop, two heads:", np.round(share.z[-1, 0].values, 2))
last = found.z[-1].sel(x=0.1)
answer = float(last.sel(y=2) / last.sel(y=3))
print(f"{answer:.1f} times later comes the last drop with two heads than with three, at w = 0.1")
print(f"run time {time.process_time():.0f} s, in processor time")
