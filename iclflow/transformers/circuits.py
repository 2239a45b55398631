"""Spectra and subspaces of QK and OV over training, on the device and as factors throughout.

Equation numbers are those of Mainali & Teixeira (2025).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.measures import effective_rank, unexplained
from iclflow.transformers.attention_only import AttentionOnly

CIRCUITS = ("QK", "OV")


class Spectrum(NamedTuple):
    """Of each head of a model, [circuit, layer, head, ...]: enough for every measure later on."""

    values: Float[Array, "*batch C L H e"]  # singular values, largest first
    basis: Float[Array, "*batch C L H k d"]  # leading right singular vectors, as rows


def spectrum(model: AttentionOnly, rank: int) -> Spectrum:
    """Singular values of QK and OV, and their `rank` leading right singular vectors."""
    leading = jax.vmap(jax.vmap(lambda matrix: matrix.right_svd(rank)))
    found = [leading(circuit) for circuit in model.circuits().values()]
    return Spectrum(*(jnp.stack(part) for part in zip(*found, strict=True)))


def effective_ranks(values: Float[Array, "*batch e"]) -> Float[Array, "*batch"]:
    """exp(-Σ σ̂ ln σ̂) of every head (15)."""
    flat = jax.vmap(effective_rank)(values.reshape(-1, values.shape[-1]))
    return flat.reshape(values.shape[:-1])


def distances_to_end(
    basis: Float[Array, "T C L H k d"], final: AttentionOnly
) -> Float[Array, "T C L H"]:
    """‖M∞ (I - V Vᵀ)‖_F / ‖M∞‖_F (16), V the leading right singular vectors at each time."""
    of_heads = jax.vmap(jax.vmap(unexplained))
    of_times = jax.vmap(of_heads, in_axes=(None, 0))
    ends = final.circuits()
    return jnp.stack([of_times(ends[name], basis[:, c]) for c, name in enumerate(CIRCUITS)], axis=1)
