"""Laws of the inputs, with the moments the theory needs.

They are *standardised*: mean 0, covariance the identity. A `Task` turns them into tokens with
`x = E diag(sqrt(lambda)) z`, so non-rotation-invariant ones (Rademacher) live in the eigenbasis
of the covariance.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractInputs(eqx.Module):
    """A standardised distribution on R^D.

    >>> import iclflow as icl
    >>> isinstance(icl.StudentT(degrees=6.0), icl.AbstractInputs)
    True
    """

    @abc.abstractmethod
    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        """Turn rows of standard normal numbers (and a key, if more is needed) into draws."""

    @abc.abstractmethod
    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        """`E[z zᵀ A z zᵀ]` for symmetric A; raises `ValueError` where it does not exist."""


def _gaussian_quartic(a: Float[Array, "D D"]) -> Float[Array, "D D"]:
    return 2 * a + jnp.trace(a) * jnp.eye(a.shape[0], dtype=a.dtype)


class Gaussian(AbstractInputs):
    """Independent standard normal components (2).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> isinstance(task.inputs, icl.Gaussian)
    True
    """

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        return normals

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return _gaussian_quartic(a)


class Sphere(AbstractInputs):
    """Uniform on the sphere of radius sqrt(D).

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([1.0, 1.0], context=31, inputs=icl.Sphere())
    >>> squares = np.sum(np.square(task.sample(jax.random.key(0)).inputs), axis=1)
    >>> bool(np.allclose(squares, 2))
    True
    """

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        length = jnp.linalg.norm(normals, axis=-1, keepdims=True)
        return normals * jnp.sqrt(normals.shape[1]) / length

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        size = a.shape[0]
        return _gaussian_quartic(a) * size / (size + 2)


class Rademacher(AbstractInputs):
    """Independent signs (fourth moment 1: the lightest tails there are).

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([1.0, 1.0], context=31, inputs=icl.Rademacher())
    >>> np.unique(np.abs(task.sample(jax.random.key(0)).inputs)).tolist()
    [1.0]
    """

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        return jnp.where(normals < 0, -1.0, 1.0)

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return _gaussian_quartic(a) - 2 * jnp.diag(jnp.diagonal(a))


class StudentT(AbstractInputs):
    """Multivariate Student t, scaled to unit covariance (heavy tails).

    - `degrees`: of freedom, more than 2; the fewer, the heavier.

    >>> import iclflow as icl
    >>> float(icl.StudentT(degrees=6.0).degrees)
    6.0
    """

    degrees: float = eqx.field(static=True, default=8.0)

    def __check_init__(self) -> None:
        if not self.degrees > 2:
            raise ValueError(
                f"Student-t inputs need more than 2 degrees of freedom for a finite covariance, "
                f"got {self.degrees}; 8 is a usual heavy-tailed choice"
            )

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        chi2 = 2 * jax.random.gamma(key, self.degrees / 2, (normals.shape[0], 1))
        return normals * jnp.sqrt((self.degrees - 2) / chi2)

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        if not self.degrees > 4:
            raise ValueError(
                f"Student-t inputs with {self.degrees} degrees of freedom have no fourth moment; "
                f"the population needs more than 4 (or sample sequences instead)"
            )
        return _gaussian_quartic(a) * (self.degrees - 2) / (self.degrees - 4)


INPUTS: dict[str, type[AbstractInputs]] = {
    "gaussian": Gaussian,
    "sphere": Sphere,
    "rademacher": Rademacher,
    "student": StudentT,
}


def named_inputs(name: str) -> AbstractInputs:
    """The input distribution called `name`, one of `INPUTS`; `student:DEGREES` says how heavy."""
    kind, _, argument = name.partition(":")
    if kind not in INPUTS:
        raise ValueError(f"unknown inputs {name!r}; there are {', '.join(INPUTS)}")
    if kind != "student" or not argument:
        return INPUTS[kind]()
    try:
        return StudentT(float(argument))
    except ValueError as error:
        raise ValueError(f"inputs {name!r}: {error}") from None
