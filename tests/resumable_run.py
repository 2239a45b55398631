"""A small training run for the tests of resuming; as a program, it trains until it is killed.

    python -m tests.resumable_run FOLDER

prints a line after every piece.
"""

import sys
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp

from iclflow.dynamics import Adam, Descent
from iclflow.results.trajectory import log_steps
from iclflow.runs import training
from iclflow.transformers import (
    AttentionOnly,
    AttentionOnlyInitialiser,
    FreshTokens,
    NextToken,
    Repeated,
)

STEPS = 120


def run(folder=None, *, rate=3e-3, progress=None, names=AttentionOnly.tensors, seeds=2, marks=None):
    corpus = Repeated(8, 8)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    models = _draw(AttentionOnlyInitialiser(8, 8, layers=2, width=8, heads=2), keys)
    loss = FreshTokens(corpus, NextToken.sample(corpus, 16, jax.random.key(8)), 8)
    # A file edited while the tests run is not what they are about.
    with mock.patch.object(training, "science", return_value="this code"):
        return training.train(
            loss,
            models,
            Descent(rate, STEPS, Adam(weight_decay=0.01)),
            marks=log_steps(STEPS, 12) if marks is None else marks,
            record={"loss": _loss, "weights": lambda model, _: {"sum": jnp.sum(model.query)}},
            key=jax.random.key(9),
            folder=folder,
            names=names,
            progress=progress,
        )


@eqx.filter_jit
def _draw(init, keys):
    return eqx.filter_vmap(init)(keys)


def _loss(model, loss):
    return loss(model)


if __name__ == "__main__":
    # As in conftest.py: other settings would be another run.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", True)
    training.SAVE_EVERY = 0.0
    run(sys.argv[1], progress=lambda done, total: print(int(done), flush=True))
