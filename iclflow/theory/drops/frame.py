"""The eigenvectors that a commuting task's modes are learned along, free within equal modes.

Equal modes (a degenerate eigenvalue) have no preferred basis: the head that learns one of them
chooses the direction, and the basis is turned so that the direction is a basis vector.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Float

from iclflow.models import AbstractModel, ConvNet, Separate
from iclflow.theory.fixed_points.modes import Modes

TIED = 1e-9  # relative difference below which two modes count as equal


Weights = tuple[
    Float[np.ndarray, " H"], Float[np.ndarray, "H R D"], Float[np.ndarray, "H R D"]
]  # v, k, q


@dataclasses.dataclass(frozen=True)
class Frame:
    """Per-mode numbers of a commuting task, largest drop first, in a basis that may be turned."""

    basis: Float[np.ndarray, "D r"]  # columns e_d
    g: Float[np.ndarray, " r"]
    curvature: Float[np.ndarray, " r"]  # λ_d b_d
    m: Float[np.ndarray, " r"]  # g/(λ b), the weight of a learned mode
    drops: Float[np.ndarray, " r"]  # σ²
    groups: tuple[tuple[int, ...], ...]  # modes equal in both g and σ

    @classmethod
    def of(cls, modes: Modes) -> Self:
        """The frame of a commuting task (else `ValueError`)."""
        g, drops = np.asarray(modes.g, float), np.asarray(modes.drops, float)
        curvature = np.asarray(modes.eigenvalue * modes.b, float)
        groups: list[list[int]] = []
        for d in range(len(g)):
            same = [
                group
                for group in groups
                if abs(g[group[0]] - g[d]) <= TIED * g[d]
                and abs(drops[group[0]] - drops[d]) <= TIED * drops[d]
            ]
            if same:
                same[0].append(d)
            else:
                groups.append([d])
        return cls(
            np.asarray(modes.right, float), g, curvature, g / curvature, drops,
            tuple(tuple(group) for group in groups),
        )  # fmt: skip

    @property
    def rank(self) -> int:
        """The number of modes."""
        return len(self.g)

    @property
    def c(self) -> Float[np.ndarray, " r"]:
        """m^(-1/3) = 1/v*."""
        return self.m ** (-1 / 3)

    def ordered(self) -> bool:
        """Whether gains g and drops σ² order the modes alike (E1), equal ones apart."""
        heads = [group[0] for group in self.groups]
        g, drops = self.g[heads], self.drops[heads]
        return bool(np.all(np.diff(g) < -TIED * g[:-1]) and np.all(np.diff(drops) <= 0))

    def slots(
        self, weights: Float[np.ndarray, "R r"], open_modes: Sequence[int], count: int
    ) -> tuple[list[int], Float[np.ndarray, " n"], dict[tuple[int, ...], np.ndarray]]:
        """Which modes the R pairs of a head grow on, with what amplitudes, in order of gain.

        `weights` is p = k + q along the modes. Pairs may be rotated among each other, so the
        first carries the first mode, the second what is left of the next one, and so on; among
        equal modes they carry the singular vectors. Returns the modes, the amplitudes κ = ½ p of
        the pairs, and for each set of equal modes the turn that aligns the basis with them.
        """
        rest, chosen, sizes = weights, [], []
        turns: dict[tuple[int, ...], np.ndarray] = {}
        open_set = set(open_modes)
        for group in sorted(self.groups, key=lambda group: -self.g[group[0]]):
            members = tuple(d for d in group if d in open_set)
            take = min(len(members), count - len(chosen), rest.shape[0])
            if take <= 0:
                continue
            left, singular, right = np.linalg.svd(rest[:, list(members)])
            chosen += members[:take]
            sizes += list(singular[:take] / 2)
            if len(members) > 1:
                turns[members] = right.T
            rest = left[:, take:].T @ rest
        return chosen, np.asarray(sizes, float), turns

    def turned(self, turns: dict[tuple[int, ...], np.ndarray]) -> Self:
        """The frame with some equal modes turned among each other."""
        return dataclasses.replace(self, basis=turn(self.basis, turns))


def turn(coordinates: np.ndarray, turns: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """Coordinates [..., r] along the modes after turning equal modes among each other."""
    result = coordinates.copy()
    for members, rotation in turns.items():
        result[..., list(members)] = coordinates[..., list(members)] @ rotation
    return result


def separate_weights(model: AbstractModel) -> Weights:
    """v, k and q of a model with separate key and query, one output, zero blocks frozen."""
    if isinstance(model, ConvNet):
        model = model.as_attention()
    if not isinstance(model, Separate):
        raise ValueError(
            f"the staircase is that of separate key and query, got {type(model).__name__}; "
            f"use Separate, or merged_course for Merged"
        )
    if model.value_inputs is not None:
        raise ValueError("the staircase is that of frozen zero blocks; use model.reduce()")
    if model.values.shape[1] != 1:
        raise ValueError(f"the staircase is that of one output, got {model.values.shape[1]}")
    arrays = (model.values[:, 0, 0], model.keys, model.queries)
    v, k, q = (np.asarray(a, np.float64) for a in arrays)
    if not all(np.isfinite(a).all() for a in (v, k, q)):
        raise ValueError("the initial weights hold numbers that are not finite")
    return v, k, q
