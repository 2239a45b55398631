"""From the tensors of a checkpoint to QK and OV of every head.

Conventions: the residual stream x is a row vector. Head h scores with x W_Q (x' W_K)ᵀ, so its QK
circuit is W_Q W_Kᵀ, and writes x' W_V W_O, its OV circuit: both [d, d'] of rank d_head, kept as
factors. Biases, layer-norm gains, the scale of the scores and rotary positions are not part of
them: they are noted. With rotary positions W_Q W_Kᵀ is the circuit at relative distance 0.
"""

import dataclasses
import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.linalg import FactoredMatrix


class NoAttentionError(CheckpointError):
    """A checkpoint whose names are those of no family that is known."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """The heads of one layer; each circuit is a batch of H factored matrices."""

    qk: FactoredMatrix
    ov: FactoredMatrix

    def circuits(self) -> dict[str, FactoredMatrix]:
        """Both, by name."""
        return {"QK": self.qk, "OV": self.ov}


@dataclasses.dataclass(frozen=True)
class Factors:
    """W_Q, W_K, W_V [heads or groups, width, size] and W_O [heads, size, width] of a layer."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    out: np.ndarray

    def complaint(self) -> str | None:
        """Why the shapes do not fit together, or None."""
        query, key, value, out = (a.shape for a in (self.query, self.key, self.value, self.out))
        if query[0] % key[0] or key[:2] != value[:2] or query[2] != key[2]:
            return f"query {query}, key {key}, value {value} (heads, width, head size)"
        if out != (query[0], value[2], query[1]):
            needed = (query[0], value[2], query[1])
            return f"output {out}, needed {needed} (heads, head size, width)"
        return None

    def heads(self) -> Heads:
        """The circuits; keys and values that several heads share are repeated."""
        count = self.query.shape[0]
        group = np.arange(count) // (count // self.key.shape[0])
        factored = jax.vmap(FactoredMatrix)
        return Heads(
            qk=factored(_array(self.query), _array(self.key)[group].transpose(0, 2, 1)),
            ov=factored(_array(self.value)[group], _array(self.out)),
        )


def _array(values: np.ndarray) -> jax.Array:
    return jnp.asarray(np.ascontiguousarray(values))


@dataclasses.dataclass(frozen=True)
class Family:
    """How one kind of model names and stores the attention of a layer.

    - `stem`: pattern of the start of the names; its group is the layer's number.
    - `parts`: how the names go on, without `.weight` or `.kernel`; all are there.
    - `read`: (source, start of the names, number of heads) -> factors of the layer.
    - `positions`: how the model knows positions.
    - `count`: the number of heads, where the weights tell.
    - `fits`: (source, start of the names) -> whether it is this family, where names do not tell.
    """

    name: str
    stem: str
    parts: tuple[str, ...]
    read: Callable[[AbstractSource, str, int], Factors]
    positions: str
    count: Callable[[AbstractSource, str], int] | None = None
    fits: Callable[[AbstractSource, str], bool] | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """A family found in a checkpoint: one stack of layers with attention."""

    kind: Family
    stack: str  # the start of the names, with * for the layer's number
    layers: tuple[int, ...]
    heads: int
    said: int | None = dataclasses.field(default=None, compare=False)  # layers by the settings

    @property
    def family(self) -> str:
        """The name of the family."""
        return self.kind.name

    def stem(self, layer: int) -> str:
        """The start of the names of a layer's attention."""
        return self.stack.replace("*", str(layer))

    def factors_of(self, source: AbstractSource, layer: int) -> Factors:
        """W_Q, W_K, W_V and W_O of a layer; reads only that layer."""
        stem = self.stem(layer)
        found = self.kind.read(source, stem, self.heads)
        if (complaint := found.complaint()) is not None:
            raise CheckpointError(
                f"{near(source, stem)}: the shapes of {stem}* do not fit: {complaint}"
            )
        return found

    def heads_of(self, source: AbstractSource, layer: int) -> Heads:
        """QK and OV of every head of a layer; reads only that layer."""
        return self.factors_of(source, layer).heads()

    def notes(self, source: AbstractSource) -> dict[str, str]:
        """What the checkpoint has that the circuits do not hold."""
        first = self.stem(self.layers[0])
        notes = {
            "biases": _biases(source, first),
            "positions": self._positions(source, first),
            "layer norm": _gains(source, self.stack, self.layers[0]),
        }
        shared = self.factors_of(source, self.layers[0]).key.shape[0]
        if shared != self.heads:
            notes["grouped query"] = f"{self.heads} query heads share {shared} key-value heads"
        for name in source.names():
            if re.fullmatch(re.escape(first) + r"([qk]_(layer)?norm|[qk]_ln)\.(weight|w)", name):
                what = {"q": "query", "k": "key"}[name[len(first)]]
                notes[f"{what} norm"] = "present, not included"
        return notes | self._missing(source) | _unusual(source, first)

    def _missing(self, source: AbstractSource) -> dict[str, str]:
        """Layers that the model has and the circuits do not, in words."""
        before, _, after = self.stack.partition("*")
        if not after:
            return {}
        pattern = re.compile(re.escape(before) + r"(\d+)\.")
        there = {int(m[1]) for name in source.names() if (m := pattern.match(name))}
        others = sorted(there - set(self.layers))
        found = {}
        if others:
            found["layers left out"] = (
                f"{', '.join(map(str, others[:12]))}{', ...' * (len(others) > 12)}: they have no "
                f"attention under the names of {self.family}"
            )
        absent = sorted(set(range(self.said or 0)) - there)
        if absent:
            found["layers not in the file"] = (
                f"{len(absent)} of the {self.said} that the settings name, from {absent[0]} to "
                f"{absent[-1]}: this is a part of the checkpoint"
            )
        return found

    def not_finite(self, source: AbstractSource, layer: int) -> list[str]:
        """The tensors of a layer's attention that hold NaN or infinities, in words."""
        found = []
        for name in source.names():
            if not name.startswith(self.stem(layer)) or len(source.shape(name)) not in (1, 2, 3):
                continue
            wrong = int(np.sum(~np.isfinite(source.read(name))))
            if wrong:
                count = math.prod(source.shape(name))
                found.append(f"tensor {name}: {wrong} of {count} values are not finite")
        return found

    def _positions(self, source: AbstractSource, stem: str) -> str:
        positions = self.kind.positions
        if source.config.get("alibi") is True:
            positions = "ALiBi"
        if stem + "rotary_sin" in source.names():
            positions = "rotary"
        if positions == "rotary":
            return "rotary: QK is the circuit at relative distance 0"
        return positions


def stored_as(source: AbstractSource, base: str) -> str | None:
    """The full name of a tensor given without `.weight` or `.kernel`; None if it is not there."""
    names = source.names()
    return next((n for n in (base, f"{base}.weight", f"{base}.kernel") if n in names), None)


def full_name(source: AbstractSource, base: str) -> str:
    """As `stored_as`; `CheckpointError` if it is not there."""
    name = stored_as(source, base)
    if name is None:
        missing = base if re.search(r"W_[QKVO]$|_weight$", base) else f"{base}.weight"
        raise CheckpointError(f"{near(source, missing)}: tensor {missing} is missing")
    return name


def read_tensor(source: AbstractSource, base: str, dims: int) -> tuple[str, np.ndarray]:
    """The full name of a tensor, and its values."""
    name = full_name(source, base)
    shape = source.shape(name)
    if len(shape) != dims:
        raise CheckpointError(
            f"{source.where(name)}: tensor {name} has shape {shape}, needed {dims} dimensions"
        )
    if 0 in shape:
        raise CheckpointError(
            f"{source.where(name)}: tensor {name} has shape {shape}; it holds no values"
        )
    return name, source.read(name)


def near(source: AbstractSource, name: str) -> str:
    """The file in which a missing tensor was to be expected: that of its nearest neighbour."""
    start = name.rsplit(".", 2)[0]
    names = source.names()
    neighbour = next((other for other in names if other.startswith(start)), None)
    return source.where(neighbour or names[0]) if names else "checkpoint"


def _biases(source: AbstractSource, stem: str) -> str:
    """Which biases of the attention there are; some libraries store ones that are all zero."""
    found = [
        name
        for name in source.names()
        if name.startswith(stem)
        and re.search(r"(\.|_)bias$|\bb_[QKVO]$", name)
        and "relative" not in name
        and len(source.shape(name)) <= 2
    ]
    nonzero = [name[len(stem) :] for name in found if np.any(source.read(name))]
    if nonzero:
        return f"present, not included: {', '.join(sorted(nonzero))}"
    return "stored, all zero" if found else "none"


def _unusual(source: AbstractSource, stem: str) -> dict[str, str]:
    """What some models do inside attention beyond scores and values, from the names of tensors."""
    names = {name[len(stem) :] for name in source.names() if name.startswith(stem)}
    found = {}
    if any(name.startswith(("attn_sub_norm", "inner_attn_ln")) for name in names):
        found["inner norm"] = (
            "a norm between the values and the output (BitNet): OV is without it and its gain"
        )
    if any(name.startswith("lambda_q1") for name in names):
        found["differential attention"] = (
            "pairs of heads subtract their scores (DiffLlama): QK and OV are of single heads, "
            "before the subtraction"
        )
    return found


def _gains(source: AbstractSource, stack: str, layer: int) -> str:
    """Whether norms scale their outputs, or what they would scale by is in the weights already."""
    before, _, _ = stack.partition("*")
    block = f"{before}{layer}."
    gain = re.compile(r".*(norm|ln)[^.]*\.(weight|w|scale)", flags=re.I)
    names = [n for n in source.names() if n.startswith(block) and gain.fullmatch(n[len(block) :])]
    if not names:
        return "no gains stored: folded into the weights, or none"
    if all(np.all(source.read(name) == 1) for name in names):
        return "all gains are 1: untrained, or folded into the weights"
    return "gains not folded in"
