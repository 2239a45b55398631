"""Does the staircase survive if keys and queries are tied?

A model of your own is one class: what it predicts from a prompt, and its effective weights, if it
is linear in them. Recording, sweeps, plots and the levels of the theory then work as for the
models that ship. Here keys are used as queries too, k = q.
"""

# %%
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)


# %%
class Tied(icl.AbstractLinearModel):
    """ŷ = Σᵢ vᵢ βᵀ kᵢ kᵢᵀ x_q."""

    values: jax.Array  # H
    keys: jax.Array  # H D
    blocks = icl.Blocks.FROZEN

    def reduced_weights(self):  # M[output, label, row, column] of ŷ = βᵀ M x_q
        return jnp.einsum("h,hd,hc->dc", self.values, self.keys, self.keys)[None, None]

    def effective_weights(self):  # the same among all pairs of tokens' slots
        size = self.keys.shape[1]
        return (
            jnp.zeros((1, size + 1, size + 1, size))
            .at[:, size:, :size]
            .set(self.reduced_weights()[0])
        )

    def __call__(self, prompt):
        return jnp.einsum(
            "od,dc,c->o", prompt.correlation, self.reduced_weights()[0, 0], prompt.query
        )


class TiedInitialiser(icl.AbstractInitialiser):
    """Every layer has the norm `scale`, as (36) has it."""

    scale: jax.Array = eqx.field(converter=jnp.asarray)
    heads: int = eqx.field(static=True, default=4)
    size: int = eqx.field(static=True, default=3)

    def __call__(self, key):
        one, two = jax.random.split(key)
        values = self.scale / self.heads**0.5 * jax.random.normal(one, (self.heads,))
        entries = (self.heads * self.size) ** 0.5
        return Tied(values, self.scale / entries * jax.random.normal(two, (self.heads, self.size)))


# %% [markdown]
# The contract is checked in one line: on any prompts the closed form of the loss, which sees the
# effective weights, and the mean over predictions agree.

# %%
task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=31)
init = TiedInitialiser(0.3)
model = init(jax.random.key(0))
prompts, moments = (
    kind.sample(task, 50, jax.random.key(1)) for kind in (icl.Sequences, icl.Moments)
)
print("two ways to the same loss differ by", f"{abs(float(prompts(model) - moments(model))):.0e}")

# %%
levels = icl.theory.plateau_losses(task)
steps = np.unique(np.linspace(0, 12_000, 1_201).astype(int))
runs = icl.sweep(task, TiedInitialiser(0.02), icl.Descent(0.2), saveat=steps, seeds=3)
figure = icl.plots.loss(runs, levels=levels)
figure.savefig("your_own_model.png")

# %% [markdown]
# The levels (24) of untied heads hold: tied ones reach the same fixed points, since the weights
# there are symmetric. The plateaus of the first run, found without knowing the levels:

# %%
stages = icl.measures.find_stages(runs.time.values, runs.loss.values[0])
found = np.array([plateau.level for plateau in stages.plateaus])
print("plateaus:", np.round(found, 4), "theory:", np.round(levels, 4))
answer = float(np.max(np.abs(found - levels)))
print(f"{answer:.4f} is the largest distance of a plateau from its level")
print(f"run time {time.process_time():.0f} s, in processor time")
