"""Loss levels: where training pauses and where it ends (24)(59), Section 5 and E1."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses import Population
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_size
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes


def plateau_losses(source: Any) -> Float[Array, " levels"]:
    """L(M_m) = E[y²] - Σ_{s<m} σ_s², m = 0 … rank: the visited plateaus, highest first (24).

    - `source`: a task, its population or its modes. Or a loss of prompts, `Moments`, `Features` or
      `Sequences`: a sample has no closed form, and its plateaus are those of heads that come one by
      one from vanishing weights (Q4).

    The modes come in the order of their drops σ², the order in which long plateaus are visited
    (E1). Equal drops make equal steps, not fewer levels. The last one is the loss of least
    squares in context (16), the end of merged attention too.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> np.round(icl.theory.plateau_losses(task), 4).tolist()
    [0.9, 0.3448, 0.0791]
    """
    if not isinstance(source, AbstractTask | Population | Modes):
        from iclflow.theory.drops.quadratic import Quadratic  # it needs SciPy's integrators
        from iclflow.theory.drops.staircase import saddle_levels

        return jnp.asarray(saddle_levels(Quadratic.of(source)))
    modes = Modes.of(source)
    drops = np.cumsum(np.asarray(modes.drops))
    return jnp.asarray(np.asarray(modes.power) - np.concatenate([[0.0], drops]), modes.power.dtype)


def drop_sizes(source: Task | Population | Modes) -> Float[Array, " r"]:
    """σ_s² = g²/(λ b) (commuting), λ³/a for the paper's task: the height of each step (24).

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> levels = icl.theory.plateau_losses(task)
    >>> bool(np.allclose(icl.theory.drop_sizes(task), -np.diff(levels)))
    True
    """
    return Modes.of(source).drops


def conspicuous_plateaus(
    source: Task | Population | Modes, rank: int
) -> tuple[tuple[int, ...], Float[Array, " n"]]:
    """Modes learned and loss at the long plateaus of rank-R attention: m = 0, R, 2R, … (Sec. 5).

    A head of rank R learns R modes one soon after another; a long plateau waits for a new head.

    >>> import iclflow as icl
    >>> task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
    >>> icl.theory.conspicuous_plateaus(task, rank=2)[0]
    (0, 2, 4)
    """
    require_size("rank", rank)
    levels = plateau_losses(source)
    last = levels.shape[0] - 1
    counts = (*range(0, last, rank), last)
    return counts, jnp.concatenate([levels[:-1:rank], levels[-1:]])


def final_loss(source: Task | Population | Modes, heads: int, rank: int = 1) -> Float[Array, ""]:
    """The least loss of H heads of rank R: the top H·R modes (all of them if H·R ≥ rank).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> bool(icl.theory.final_loss(task, heads=1) == icl.theory.plateau_losses(task)[1])
    True
    """
    require_size("heads", heads)
    require_size("rank", rank)
    levels = plateau_losses(source)
    return levels[min(heads * rank, levels.shape[0] - 1)]


def fixed_point_count(source: Task | Population | Modes) -> int:
    """2^rank, the number of index sets S (Section 4.2); an exact integer at any dimension.

    >>> import iclflow as icl
    >>> icl.theory.fixed_point_count(icl.Task([0.6, 0.3], context=31))
    4
    """
    return 2 ** Modes.of(source).rank


def level_count(source: Task | Population | Modes) -> int:
    """The number of fixed-point levels counted by subspaces: Π (multiplicity + 1) over equal σ.

    With distinct drops it is 2^rank. With equal ones the fixed points form continuous families
    (S becomes a subspace), and only how many modes of each group are learned matters.

    >>> import iclflow as icl
    >>> icl.theory.level_count(icl.Task([0.5, 0.5], context=31))
    3
    """
    return math.prod(len(group) + 1 for group in Modes.of(source).groups())
