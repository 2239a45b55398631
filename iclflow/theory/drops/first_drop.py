"""The first drop with every weight block trained, from the moments of all features (15)(87).

Beyond the paper: with a share of fixed tasks the zero blocks do not stay zero, and what is learned
first is the leading direction of E[y S ⊗ x_q], in weight and in context at once.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from iclflow.linalg import pack_dual, packed_pairs
from iclflow.losses import FullFeatures, Moments
from iclflow.models import Merged

HALFWAY = 1 - 0.5**0.5  # of the way of s, where the loss is halfway down


class FirstDrop(eqx.Module):
    """The first drop of merged attention with all blocks, from small weights.

    Near zero the pairs a = [𝐯; v], b = vec[U; 𝐮] of every head obey τ da/dt = C b,
    τ db/dt = Cᵀa with C = E[y S ⊗ x_q]: they grow along its leading singular vectors, at the
    rate σ₁. On that line the loss is E[y²] - 2 σ₁ s + κ s², and s follows the logistic course of
    (15): τ ds/dt = 2 s (σ₁ - κ s), s(0) = ¼ Σ (a·u + b·w)². The other directions are left out: the
    time of the drop is right to leading order in small weights, its end an estimate.
    """

    growth: float  # σ₁
    curvature: float  # κ
    power: float
    start: float  # s(0)

    @property
    def level(self) -> float:
        """The loss after the drop."""
        return self.power - self.growth**2 / self.curvature

    def time(self, share: float = HALFWAY) -> float:
        """When s has come a share of its way; by default when the loss is halfway down."""
        end = self.growth / self.curvature
        return float(np.log(share / (1 - share) * (end / self.start - 1)) / (2 * self.growth))

    def loss(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """The loss on the clock t/τ."""
        end = self.growth / self.curvature
        s = end / (1 + (end / self.start - 1) * np.exp(-2 * self.growth * times))
        return self.power - 2 * self.growth * s + self.curvature * s**2


def first_drop(loss: Moments, model: Merged) -> FirstDrop:
    """The prediction from the moments of all features and the initial weights; one output.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Merged.initialiser(task, heads=2, scale=0.01, blocks=icl.Blocks.FULL)
    >>> drop = icl.theory.first_drop(icl.population_moments(task), start(jax.random.key(0)))
    >>> bool(0 < drop.time(0.5) < drop.time(0.9))
    True
    """
    size, outputs = model.input_size, model.values.shape[1]
    token = size + 1
    first, second = packed_pairs(token)
    if not isinstance(loss.map, FullFeatures) or outputs != 1:
        raise ValueError(
            f"the first drop needs moments of all features and one output, got "
            f"{type(loss.map).__name__} and {outputs}; give population_moments(task)"
        )
    cross = np.zeros((token, token, size))
    packed = np.asarray(loss.cross).reshape(len(first), size)
    cross[first, second] = cross[second, first] = packed
    left, gains, right = np.linalg.svd(cross.reshape(token, -1))
    line = np.outer(left[:, 0], right[0]).reshape(token, token, size)
    weights = np.asarray(pack_dual(jnp.asarray(line))).reshape(-1)
    rows = np.asarray(model.value_rows())[:, 0]
    merged = np.asarray(model.key_query()).reshape(len(rows), -1)
    return FirstDrop(
        growth=float(gains[0]),
        curvature=float(weights @ np.asarray(loss.second) @ weights),
        power=float(loss.power),
        start=float(np.sum((rows @ left[:, 0] + merged @ right[0]) ** 2) / 4),
    )


def least_loss(loss: Moments) -> float:
    """The least loss of any weights on the features, E[y²] - E[yφ]ᵀ E[φφᵀ]⁺ E[yφ]; one output.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> least = icl.theory.least_loss(icl.population_moments(task))
    >>> bool(np.isclose(least, icl.theory.plateau_losses(task)[-1]))
    True
    """
    cross, second = np.asarray(loss.cross)[0], np.asarray(loss.second)
    return float(loss.power) - float(cross @ np.linalg.lstsq(second, cross, rcond=None)[0])
