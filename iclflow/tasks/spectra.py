"""Named eigenvalue spectra of the input covariance."""

import numpy as np

from iclflow.results.choices import nearest
from iclflow.tasks.checks import require_size

NAMES = ("white", "linear", "power:ALPHA")


def named_spectrum(name: str, size: int, trace: float = 1.0) -> np.ndarray:
    """The spectrum called `name`, with D = `size` eigenvalues, largest first, summing to `trace`.

    `white`: all equal. `linear`: λ_d ∝ D, D-1, …, 1 (0.4, 0.3, 0.2, 0.1 for D = 4).
    `power:α`: λ_d ∝ d^(-α) (`power:1` is the spectrum of Figs 4 and 9).

    >>> import iclflow as icl
    >>> icl.named_spectrum("power:1", 2).round(4).tolist()
    [0.6667, 0.3333]
    """
    size = require_size("the number of eigenvalues D", size)
    if not (isinstance(trace, int | float) and 0 <= trace < np.inf):
        raise ValueError(f"the trace of a spectrum must be finite and at least 0, got {trace!r}")
    rank = np.arange(1, size + 1, dtype=float)
    kind, _, argument = name.partition(":")
    if name == "white":
        shape = np.ones(size)
    elif name == "linear":
        shape = rank[::-1].copy()
    elif kind == "power":
        try:
            exponent = float(argument)
        except ValueError:
            raise ValueError(
                f"spectrum {name!r} needs a number after 'power:', for example power:1"
            ) from None
        shape = rank**-exponent
        shape = np.sort(shape)[::-1]
    else:
        hint = nearest(kind, [n.partition(":")[0] for n in NAMES])
        raise ValueError(
            f"unknown spectrum {name!r}: give a list such as 0.4,0.3,0.2,0.1 "
            f"or one of {', '.join(NAMES)}{hint}"
        )
    return shape * (trace / shape.sum())
