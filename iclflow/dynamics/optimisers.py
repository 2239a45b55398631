"""Update rules of descent, as Optax transformations built from a rate that may be traced."""

import abc
from typing import Any

import equinox as eqx
import jax
import optax
from jax.core import Tracer
from jaxtyping import Array, Float

from iclflow.tasks.checks import require_real, require_within, shown


def _require_share(name: str, value: Any) -> None:
    """Refuse what cannot be the share of a running sum that a step keeps."""
    found = require_real(name, value, ndim=0)
    require_within(name, found, lower=0.0, upper=1.0)
    if not isinstance(found, Tracer) and found == 1:
        raise ValueError(f"{name} must be below 1, or the first steps are remembered for ever")


class AbstractOptimiser(eqx.Module):
    """Which update a step of descent makes.

    >>> import iclflow as icl
    >>> isinstance(icl.Adam(), icl.AbstractOptimiser)
    True
    """

    @abc.abstractmethod
    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        """The Optax transformation at this learning rate."""

    @property
    def keeps_time(self) -> bool:
        """Whether a step advances the clock of gradient flow, t/τ = 2η."""
        return False


class GradientDescent(AbstractOptimiser):
    """θ ← θ - η ∂L/∂θ.

    >>> import iclflow as icl
    >>> isinstance(icl.Descent(0.1).optimiser, icl.GradientDescent)
    True
    """

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.sgd(rate)

    @property
    def keeps_time(self) -> bool:
        return True


class Momentum(AbstractOptimiser):
    """Heavy-ball momentum.

    - `decay`: of the running sum of gradients.
    - `nesterov`: take the gradient a step ahead.

    >>> import iclflow as icl
    >>> icl.Descent(0.1, icl.Momentum(decay=0.9)).optimiser.nesterov
    False
    """

    decay: float | Float[Array, ""] = 0.9
    nesterov: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        decay = require_real("decay", self.decay, ndim=0)
        require_within("decay", decay, lower=0.0, upper=1.0)
        if not isinstance(self.nesterov, bool):
            raise ValueError(f"nesterov must be True or False, got {shown(self.nesterov)}")

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=self.decay, nesterov=self.nesterov)  # pyright: ignore


class Adam(AbstractOptimiser):
    """Adam; with weight decay, AdamW, unless the decay is inside the gradient.

    - `b1`, `b2`: decay of the running means of the gradient and of its square.
    - `eps`: added to the root of the latter.
    - `weight_decay`: times the rate, the share of the weights that a step takes off.
    - `decay_inside`: add `weight_decay` times the weights to the gradient instead, as PyTorch's
      `Adam` does: training then ends at the minimum of L + ½ `weight_decay` |θ|².

    >>> import iclflow as icl
    >>> icl.Descent(1e-3, icl.Adam(weight_decay=0.1)).keeps_time
    False
    """

    b1: float | Float[Array, ""] = 0.9
    b2: float | Float[Array, ""] = 0.999
    eps: float | Float[Array, ""] = 1e-8
    weight_decay: float | Float[Array, ""] = 0.0
    decay_inside: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        _require_share("b1", self.b1)
        _require_share("b2", self.b2)
        for name in ("eps", "weight_decay"):
            require_within(name, require_real(name, getattr(self, name), ndim=0), lower=0.0)

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        fields: dict[str, Any] = {"b1": self.b1, "b2": self.b2, "eps": self.eps}
        if self.decay_inside:
            decay: Any = self.weight_decay
            return optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, **fields))
        return optax.adamw(rate, **fields, weight_decay=self.weight_decay)  # pyright: ignore


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
        try:
            return self.make(rate)
        except jax.errors.TracerBoolConversionError:
            raise ValueError(
                "the function that makes the optimiser decides by its rate, which is not known "
                "when the loop is compiled; give a schedule as the rate instead: "
                "Descent(optax.cosine_decay_schedule(0.2, 4000), optax.adam)"
            ) from None
