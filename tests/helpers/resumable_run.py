"""A small sweep for the tests of resuming; as a program, it trains until it is killed.

    python -m tests.helpers.resumable_run FOLDER

prints a line after every piece.
"""

import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp

from iclflow.dynamics import Adam, Descent
from iclflow.dynamics.base import log_steps
from iclflow.runs import batch
from iclflow.runs.folder import Snapshots
from iclflow.runs.record import OfModel
from iclflow.runs.sweep import sweep
from iclflow.transformers import (
    AttentionOnly,
    AttentionOnlyInitialiser,
    FreshTokens,
    NextToken,
    Repeated,
)

STEPS = 120
INIT = AttentionOnlyInitialiser(8, 8, layers=2, width=8, heads=2)


def run(folder=None, *, rate=3e-3, progress=None, seeds=2, saveat=None, **options):
    corpus = Repeated(8, 8)
    loss = FreshTokens(corpus, NextToken.sample(corpus, 16, jax.random.key(8)), 8)
    snapshots = [] if folder is None else [Snapshots(folder, AttentionOnly.tensors)]
    # A file edited while the tests run is not what they are about.
    with mock.patch("iclflow.runs.sweep.code_key", return_value="this code"):
        return sweep(
            loss,
            INIT,
            Descent(rate, Adam(weight_decay=0.01)),
            until=STEPS,
            saveat=log_steps(STEPS, 12) if saveat is None else saveat,
            seeds=seeds,
            record={"loss": "loss", "sum": OfModel(_sum)},
            final=["weights"],
            key=jax.random.key(9),
            store=folder,
            observers=snapshots,
            progress=progress,
            **options,
        )


def _sum(model):
    return jnp.sum(model.query)


if __name__ == "__main__":
    # As in conftest.py: other settings would be another run.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    batch.SAVE_EVERY = 0.0
    run(Path(sys.argv[1]), progress=lambda done, total: print(int(done), flush=True))
