"""How many threads XLA's pool has on a CPU: one, or more than a program needs at once.

With jaxlib 0.10 a batch of factorisations (LU, Cholesky, eigenvalues) holds a thread of the pool
while it waits for work that it has handed to the same pool. On two cores the pool has two threads,
and a program with two such batches side by side waits for ever. What a program needs is one thread
more than it has batches side by side: with six threads five batches end, and eight may wait for
ever, sooner or later. More threads than cores have a price: a loop over small arrays under `vmap`
takes a quarter more processor time with six threads on two cores, and half more with sixteen. One
thread alone hands nothing on.
"""

import os

LEAST = 6  # threads; enough for five batches of factorisations side by side


def widen() -> None:
    """Say to XLA how many threads it takes, before JAX is first used; what a user said stays.

    >>> import os
    >>> from iclflow.pool import threads
    >>> threads(1), threads(2), threads(64)
    (1, 6, 64)
    """
    said = os.environ.get("NPROC", "")
    cores = int(said) if said.isdecimal() else os.cpu_count() or 1
    os.environ.setdefault("PJRT_NPROC", str(threads(cores)))


def threads(cores: int) -> int:
    """The threads of XLA's pool for so many cores.

    - `cores`: those that this process may use.
    """
    return 1 if cores == 1 else max(LEAST, cores)
