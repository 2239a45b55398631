"""Do a temperature, a LayerNorm or a second layer change when attention learns?

Three models of one's own, each one class: what it predicts from a prompt. What each gets for free:
any loss of prompts, recording, sweeps over seeds, and the stages of its loss. None is linear in
fixed features, so none has a theory or a rate that is known beforehand, and `icl.predict` says so.
"""

# %%
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)


# %%
def attend(weights, tokens, query):
    """Softmax attention of one query: Σ v softmax(query U x) y over the heads."""
    values, scores = weights
    inputs, labels = tokens[:, :-1], tokens[:, -1]
    shares = jax.nn.softmax(jnp.einsum("hij,i,nj->hn", scores, query, inputs), axis=1)
    return jnp.einsum("h,hn,n->", values, shares, labels)


class Temperature(icl.AbstractModel):
    """Scores are divided by a trained temperature."""

    attention: tuple
    log_temperature: jax.Array

    def __call__(self, prompt):
        query = prompt.query * jnp.exp(-self.log_temperature)
        return attend(self.attention, prompt.tokens, query)[None]


class LayerNorm(icl.AbstractModel):
    """Every input is brought to length √D before attention sees it."""

    attention: tuple

    def __call__(self, prompt):
        tokens = prompt.tokens
        size = jnp.sqrt(1e-6 + jnp.mean(tokens[:, :-1] ** 2, axis=1, keepdims=True))
        tokens = jnp.concatenate([tokens[:, :-1] / size, tokens[:, -1:]], axis=1)
        return attend(self.attention, tokens, tokens[-1, :-1])[None]


class TwoLayers(icl.AbstractModel):
    """The first layer corrects every label by its own prediction; the second reads the result."""

    first: tuple
    second: tuple

    def __call__(self, prompt):
        tokens = prompt.tokens
        corrections = jax.vmap(lambda x: attend(self.first, tokens, x))(tokens[:, :-1])
        seen = tokens[:, -1] - corrections
        tokens = jnp.concatenate([tokens[:, :-1], seen[:, None]], axis=1)
        answer = attend(self.second, tokens, prompt.query)
        return (answer + corrections[-1])[None]


class Random(icl.AbstractInitialiser):
    """Normal weights of a size, for any of the three."""

    kind: type = eqx.field(static=True)
    heads: int = eqx.field(static=True, default=4)
    size: int = eqx.field(static=True, default=2)

    def __call__(self, key):
        def layer(key):
            one, two = jax.random.split(key)
            shape = (self.heads, self.size, self.size)
            return 0.1 * jax.random.normal(one, shape[:1]), 0.1 * jax.random.normal(two, shape)

        one, two = jax.random.split(key)
        if self.kind is TwoLayers:
            return TwoLayers(layer(one), layer(two))
        rest = (jnp.zeros(()),) if self.kind is Temperature else ()
        return self.kind(layer(one), *rest)


# %%
task = icl.Task(spectrum=[1.0, 0.5], context=15)
loss = icl.Sequences.sample(task, 200, jax.random.key(1))
steps = np.unique(np.geomspace(1, 3_001, 200).astype(int)) - 1
found = {}
with icl.plots.style():
    figure, axes = plt.subplots(figsize=(4.4, 2.8))
    for kind in (Temperature, LayerNorm, TwoLayers):
        runs = icl.sweep(loss, Random(kind), icl.Descent(rate=0.1), saveat=steps, seeds=2)
        axes.plot(runs.time, runs.loss[0], label=kind.__name__)
        stages = icl.measures.find_stages(runs.time.values, runs.loss.values[0], resamples=0)
        found[kind.__name__] = float(runs.loss[:, -1].min())
        drops = [round(drop.time) for drop in stages.drops]
        print(f"{kind.__name__}: drops near t/τ = {drops}, last loss {found[kind.__name__]:.3f}")
    least = icl.theory.plateau_losses(task)
    axes.axhline(least[-1], color="0.5", linestyle=":", label="best linear attention, P → ∞")
    axes.set(xlabel=r"training time $t/\tau$", ylabel="loss on 200 prompts", xscale="log")
    axes.set(xlim=(0.2, None), ylim=(0, None))
    axes.legend()
    figure.savefig("own_models.png")

# %%
try:
    icl.predict(loss, Random(Temperature)(jax.random.key(0)))
except ValueError as error:
    print(f"theory: {error}")
answer = found["TwoLayers"] / found["Temperature"]
print(f"{answer:.2f} times the loss of one layer with a temperature is the loss of two layers")
print(f"run time {time.process_time():.0f} s, in processor time")
