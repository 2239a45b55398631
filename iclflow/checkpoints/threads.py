"""Small decompositions on one thread: handing their work to several takes longer than doing it."""

import functools
from contextlib import AbstractContextManager
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """LAPACK, which JAX takes from SciPy, on one thread inside the block."""
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401, so that its library is among those found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
