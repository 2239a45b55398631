"""Update rules of descent, as Optax transformations built from a rate that may be traced."""

import abc
from typing import Any

import equinox as eqx
import optax
from jaxtyping import Array, Float


class AbstractOptimiser(eqx.Module):
    """Which update a step of descent makes."""

    @abc.abstractmethod
    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        """The Optax transformation at this learning rate."""

    @property
    def keeps_time(self) -> bool:
        """Whether a step advances the clock of gradient flow, t/τ = 2η."""
        return False


class GradientDescent(AbstractOptimiser):
    """θ ← θ - η ∂L/∂θ."""

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.sgd(rate)

    @property
    def keeps_time(self) -> bool:
        return True


class Momentum(AbstractOptimiser):
    """Heavy-ball momentum.

    - `decay`: of the running sum of gradients.
    - `nesterov`: take the gradient a step ahead.
    """

    decay: float = 0.9
    nesterov: bool = eqx.field(static=True, default=False)

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=self.decay, nesterov=self.nesterov)


class Adam(AbstractOptimiser):
    """Adam; with weight decay, AdamW.

    - `b1`, `b2`: decay of the running means of the gradient and of its square.
    - `eps`: added to the root of the latter.
    - `weight_decay`: times the rate, the share of the weights that a step takes off.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.adamw(
            rate, b1=self.b1, b2=self.b2, eps=self.eps, weight_decay=self.weight_decay
        )


class Optax(AbstractOptimiser):
    """Any optimiser of Optax, made at the rate of the run; `Descent(1e-3, optax.lion)` makes one.

    - `make`: rate -> transformation: a function of Optax, one of your own, or
      `functools.partial(optax.lion, b1=0.95)`.
    """

    make: Any = eqx.field(static=True)

    def __check_init__(self) -> None:
        if isinstance(self.make, optax.GradientTransformation) or not callable(self.make):
            raise ValueError(
                f"needed is a function that makes an optimiser from a rate, such as optax.adam or "
                f"functools.partial(optax.adam, b1=0.5), got {type(self.make).__name__}; a "
                f"transformation has a rate inside already"
            )

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return self.make(rate)
