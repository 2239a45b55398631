"""XLA's pool is never so small that a program waits for itself."""

import os
import subprocess
import sys

from iclflow.pool import LEAST

PROGRAM = """
import os, sys
import iclflow
import jax, jax.numpy as jnp
print(os.environ["PJRT_NPROC"])
jax.config.update("jax_enable_x64", True)
one = lambda a: jnp.sum(jnp.linalg.solve(a, jnp.ones(24)))
batches = [jax.random.normal(jax.random.key(k), (1500, 24, 24)) for k in range(5)]
sum_of_all = jax.jit(jax.vmap(lambda *matrices: sum(one(a) for a in matrices)))
for _ in range(4):
    sum_of_all(*batches).block_until_ready()
"""


def run(**environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("NPROC", "PJRT_NPROC")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=kept | environment, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.strip()


def test_five_batches_of_factorisations_side_by_side_end():
    """On two cores, jaxlib 0.10 waits for ever in this program without a wider pool.

    Each batch holds one thread while it waits, so that one thread more than batches is enough.
    """
    assert int(run(NPROC="2")) == LEAST


def test_what_the_user_said_stays():
    assert run(PJRT_NPROC="1") == "1"
