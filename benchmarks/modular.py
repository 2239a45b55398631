"""A training step of the transformer that groks: `python benchmarks/modular.py [--steps 40]`.

Gradient and AdamW update on the full batch, by the definition of the model (every example, token
by token) and in the form that is trained (`ModularTransformer.logits`), compiled beforehand.
Processor time of a step in milliseconds, at both sizes of the experiment.
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from iclflow.dynamics import Adam, Descent
from iclflow.experiments.grokking.data import SMALL, STANDARD, Preset
from iclflow.losses import AbstractLoss
from iclflow.models import draw_models
from iclflow.transformers.modular import (
    ModularArithmetic,
    ModularInitialiser,
    cross_entropies,
    split_pairs,
)


class ByDefinition(AbstractLoss):
    """The same loss, one example at a time."""

    pairs: ModularArithmetic

    def __call__(self, model):
        first, second = self.pairs.first, self.pairs.second
        tokens = jnp.stack([first, second, jnp.full_like(first, self.pairs.modulus)], axis=1)
        return jnp.mean(cross_entropies(jax.vmap(model)(tokens), self.pairs.answers))

    def admits(self, model):
        return self.pairs.admits(model)


def milliseconds(loss: AbstractLoss, preset: Preset, seeds: int, steps: int) -> float:
    init = ModularInitialiser(preset.modulus, preset.width, preset.heads, preset.hidden)
    dynamics = Descent(preset.rate, Adam(b2=preset.b2, weight_decay=preset.weight_decay))
    marks = jnp.array([steps])

    @eqx.filter_jit
    def run(models):
        def one(model):
            return dynamics.advance(loss, dynamics.init(loss, model, jax.random.key(0)), marks, {})

        return eqx.filter_vmap(one)(models).state.run.model

    models = draw_models(init, range(seeds))
    jax.block_until_ready(run(models))
    began = time.process_time()
    jax.block_until_ready(run(models))
    return (time.process_time() - began) / steps * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    for preset, seeds in ((STANDARD, 1), (SMALL, 3)):
        loss = split_pairs(preset.modulus, preset.tasks[0][1], jax.random.key(0))[0]
        count = steps if preset is SMALL else max(1, steps // 4)
        times = [milliseconds(f, preset, seeds, count) for f in (ByDefinition(loss), loss)]
        print(f"p = {preset.modulus}, seeds together {seeds}: {times[0]:.1f} ms by definition, "
              f"{times[1]:.1f} ms as trained")  # fmt: skip
