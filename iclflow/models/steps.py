"""Layers whose matrices are diagonal: gradient steps in context with a rate per mode."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.models.base import AbstractInitialiser, dims_of, require_scale
from iclflow.models.layers import AbstractLayers
from iclflow.tasks.checks import require_size


class Steps(AbstractLayers):
    """L layers of linear attention with Γ_l = diag(γ_l), in the residual stream of (D1).

    Where the covariance of inputs and tasks is diagonal too, everything commutes with Λ. No
    off-diagonal entry of Γ_l would have a gradient then, because the reflections of single inputs
    leave the loss as it is. So this is an invariant part of the weights of `Layers`, in which the
    population is known for up to three layers (D10), and for white inputs and one number per layer
    up to eight (D6).

    A stack of layers is not confined to this part: some of its optima are outside.

    - `steps`: γ_l of each layer and mode; one row if tied, one column if all modes share a number.
    - `size`: the number of inputs D.
    - `layers`: the number of layers L.
    - `tied`: whether all layers share one row.

    >>> import iclflow as icl, jax.numpy as jnp
    >>> task = icl.Task([1.0, 1.0, 1.0, 1.0], context=31)
    >>> best = icl.Steps(jnp.array([[0.51949], [0.79289], [1.58494]]), size=4, layers=3)
    >>> round(float(icl.Population(task)(best)) / 4, 6)
    0.006089
    """

    steps: Float[Array, "l m"]
    size: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        require_size("size", self.size)
        require_size("layers", self.layers)
        rows = 1 if self.tied else self.layers
        if self.steps.ndim == 2 and self.steps.shape not in ((rows, 1), (rows, self.size)):
            raise ValueError(
                f"{self.layers} {'tied' if self.tied else 'untied'} layers of {self.size} inputs "
                f"need steps of shape ({rows}, {self.size}), or ({rows}, 1) for one number for all "
                f"modes, got {self.steps.shape}"
            )

    def dims(self) -> tuple[int, int]:
        return self.size, 1

    def rates(self) -> Float[Array, "L D"]:
        """γ_l of every layer and mode."""
        return jnp.broadcast_to(self.steps, (self.layers, self.size))

    def matrices(self) -> Float[Array, "L O O D D"]:
        return jax.vmap(jnp.diag)(self.rates())[:, None, None]

    def axes(self) -> dict[str, tuple[str, ...]]:
        return {"steps": ("layer", "mode")}

    @classmethod
    def initialiser(
        cls,
        source: Any,
        *,
        layers: int = 2,
        tied: bool = False,
        shared: bool = False,
        scale: ArrayLike,
    ) -> "StepsInitialiser":
        """key -> `Steps` with independent normal steps.

        - `source`: a task, prompts or a loss, whose sizes these are, or D itself.
        - `layers`: the number of layers L.
        - `tied`: whether all layers share one row.
        - `shared`: whether all modes share one number, Γ_l = γ_l I.
        - `scale`: the standard deviation of a step.
        """
        size, outputs = dims_of(source)
        if outputs != 1:
            raise ValueError(f"Steps have one output, got {outputs}; use Layers")
        return StepsInitialiser(
            require_scale("scale", scale), size, require_size("layers", layers), tied, shared
        )


class StepsInitialiser(AbstractInitialiser):
    """See `Steps.initialiser`."""

    scale: Float[Array, ""]
    size: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)
    shared: bool = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Steps:
        shape = (1 if self.tied else self.layers, 1 if self.shared else self.size)
        steps = self.scale * jax.random.normal(key, shape)
        return Steps(steps=steps, size=self.size, layers=self.layers, tied=self.tied)
