"""How model families name and store attention weights: from tensors to QK and OV of every head.

Conventions: the residual stream x is a row vector. Head h scores with x W_Q (x' W_K)ᵀ, so its QK
circuit is W_Q W_Kᵀ, and writes x' W_V W_O, its OV circuit: both [d, d] of rank d_head, kept as
factors. Biases, layer-norm gains and rotary positions are not part of them: they are noted. With
rotary positions W_Q W_Kᵀ is the circuit at relative distance 0.
"""

import abc
import dataclasses
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.linalg import FactoredMatrix


@dataclasses.dataclass(frozen=True)
class Heads:
    """The heads of one layer; each circuit is a batch of H factored matrices."""

    qk: FactoredMatrix
    ov: FactoredMatrix

    def circuits(self) -> dict[str, FactoredMatrix]:
        """Both, by name."""
        return {"QK": self.qk, "OV": self.ov}


@dataclasses.dataclass(frozen=True)
class AbstractLayout(abc.ABC):
    """One family of names, found in a checkpoint."""

    prefix: str
    layers: tuple[int, ...]
    heads: int
    groups: int  # key-value heads

    family: ClassVar[str]
    pattern: ClassVar[str]  # the tensor that shows the family; groups: prefix, layer
    rotary: ClassVar[bool]
    biases: ClassVar[dict[str, str]]  # what -> the tensor's name after the layer
    extras: ClassVar[dict[str, str]] = {}

    @abc.abstractmethod
    def stem(self, layer: int) -> str:
        """The start of the names of a layer's attention."""

    @abc.abstractmethod
    def heads_of(self, source: AbstractSource, layer: int) -> Heads:
        """QK and OV of every head of a layer; reads only that layer."""

    def notes(self, source: AbstractSource) -> dict[str, str]:
        """What the checkpoint has that the circuits do not hold."""
        names, stem = set(source.names()), self.stem(self.layers[0])
        present = [what for what, name in self.biases.items() if stem + name in names]
        notes = {
            "biases": f"present, not included: {', '.join(present)}" if present else "none",
            "positions": "rotary: QK is the circuit at relative distance 0"
            if self.rotary
            else "not rotary",
            "layer norm": "gains not folded in",
        }
        if self.groups != self.heads:
            notes["grouped query"] = f"{self.heads} query heads share {self.groups} key-value heads"
        for what, name in self.extras.items():
            if stem + name in names:
                notes[what] = "present, not included"
        return notes


@dataclasses.dataclass(frozen=True)
class GPT2(AbstractLayout):
    """`h.N.attn.c_attn` [d, 3d], query, key and value side by side; `c_proj` [d, d]."""

    family = "GPT-2"
    pattern = r"^(.*?)\bh\.(\d+)\.attn\.c_attn\.weight$"
    rotary = False
    biases: ClassVar = {"query, key, value": "c_attn.bias", "output": "c_proj.bias"}

    def stem(self, layer: int) -> str:
        return f"{self.prefix}h.{layer}.attn."

    def heads_of(self, source: AbstractSource, layer: int) -> Heads:
        fused = _read(source, self.stem(layer) + "c_attn.weight", 2)
        out = _output(source, self.stem(layer) + "c_proj.weight", self.heads, transposed=False)
        width = _divide(source, self.stem(layer) + "c_attn.weight", fused.shape[1], 3)
        query, key, value = (
            _split_columns(source, self.stem(layer) + "c_attn.weight", part, self.heads)
            for part in (fused[:, :width], fused[:, width : 2 * width], fused[:, 2 * width :])
        )
        return _heads(source, self.stem(layer), query, key, value, out)


@dataclasses.dataclass(frozen=True)
class GPTNeoX(AbstractLayout):
    """`layers.N.attention.query_key_value` [3d, d], each head's q, k, v in turn; `dense` [d, d]."""

    family = "GPT-NeoX"
    pattern = r"^(.*?)\blayers\.(\d+)\.attention\.query_key_value\.weight$"
    rotary = True
    biases: ClassVar = {"query, key, value": "query_key_value.bias", "output": "dense.bias"}

    def stem(self, layer: int) -> str:
        return f"{self.prefix}layers.{layer}.attention."

    def heads_of(self, source: AbstractSource, layer: int) -> Heads:
        name = self.stem(layer) + "query_key_value.weight"
        fused = _read(source, name, 2)
        size = _divide(source, name, fused.shape[0], 3 * self.heads)
        parts = fused.reshape(self.heads, 3, size, fused.shape[1]).transpose(1, 0, 3, 2)
        out = _output(source, self.stem(layer) + "dense.weight", self.heads, transposed=True)
        return _heads(source, self.stem(layer), parts[0], parts[1], parts[2], out)


@dataclasses.dataclass(frozen=True)
class Llama(AbstractLayout):
    """`layers.N.self_attn.{q,k,v,o}_proj`, [out, in]; several query heads may share a key."""

    family = "Llama"
    pattern = r"^(.*?)\blayers\.(\d+)\.self_attn\.q_proj\.weight$"
    rotary = True
    biases: ClassVar = {
        "query": "q_proj.bias",
        "key": "k_proj.bias",
        "value": "v_proj.bias",
        "output": "o_proj.bias",
    }
    extras: ClassVar = {"query norm": "q_norm.weight", "key norm": "k_norm.weight"}

    def stem(self, layer: int) -> str:
        return f"{self.prefix}layers.{layer}.self_attn."

    def heads_of(self, source: AbstractSource, layer: int) -> Heads:
        stem = self.stem(layer)
        counts = {"q": self.heads, "k": self.groups, "v": self.groups}
        query, key, value = (
            _split_columns(
                source,
                f"{stem}{letter}_proj.weight",
                _read(source, f"{stem}{letter}_proj.weight", 2).T,
                count,
            )
            for letter, count in counts.items()
        )
        out = _output(source, stem + "o_proj.weight", self.heads, transposed=True)
        return _heads(source, stem, query, key, value, out)


@dataclasses.dataclass(frozen=True)
class TransformerLens(AbstractLayout):
    """`blocks.N.attn.W_Q`, `W_K`, `W_V` [heads, d, d_head] and `W_O` [heads, d_head, d]."""

    family = "TransformerLens"
    pattern = r"^(.*?)\bblocks\.(\d+)\.attn\.W_Q$"
    rotary = False
    biases: ClassVar = {"query": "b_Q", "key": "b_K", "value": "b_V", "output": "b_O"}
    extras: ClassVar = {"rotary positions": "rotary_sin"}

    def stem(self, layer: int) -> str:
        return f"{self.prefix}blocks.{layer}.attn."

    def heads_of(self, source: AbstractSource, layer: int) -> Heads:
        stem, names = self.stem(layer), set(source.names())
        # grouped-query models keep one key and value for each group under a leading underscore
        key, value = (
            stem + ("_" + part if stem + "_" + part in names else part) for part in ("W_K", "W_V")
        )
        return _heads(
            source,
            stem,
            _read(source, stem + "W_Q", 3),
            _read(source, key, 3),
            _read(source, value, 3),
            _read(source, stem + "W_O", 3),
        )


LAYOUTS: tuple[type[AbstractLayout], ...] = (GPT2, GPTNeoX, Llama, TransformerLens)


def find_layout(
    source: AbstractSource, *, heads: int | None = None, groups: int | None = None
) -> AbstractLayout:
    """The family of a checkpoint, from its names; head counts from its settings or the caller."""
    names = source.names()
    for kind in LAYOUTS:
        found = [m for m in (re.match(kind.pattern, name) for name in names) if m]
        if not found:
            continue
        prefix = found[0].group(1)
        layers = tuple(sorted({int(m.group(2)) for m in found if m.group(1) == prefix}))
        first = found[0].group(0)
        if kind is TransformerLens:
            count = source.shape(first)[0]
            stem = f"{prefix}blocks.{layers[0]}.attn."
            key = stem + ("_W_K" if stem + "_W_K" in names else "W_K")
            shared = source.shape(key)[0] if key in names else count
            return kind(prefix, layers, count, shared)
        config = source.config
        count = heads or config.get("num_attention_heads") or config.get("n_head")
        if not count:
            raise CheckpointError(
                f"{source.where(first)}: the number of heads is not in the weights; put the "
                f"model's config.json beside them or give the number of heads"
            )
        shared = groups or config.get("num_key_value_heads") or count
        if kind is not Llama:
            shared = count
        return kind(prefix, layers, int(count), int(shared))
    example = ", ".join(names[:3]) or "no tensors"
    where = source.where(names[0]) if names else "checkpoint"
    raise CheckpointError(
        f"{where}: no attention weights under GPT-2, GPT-NeoX, Llama or TransformerLens names; "
        f"the names begin with: {example}"
    )


def _read(source: AbstractSource, name: str, dims: int) -> np.ndarray:
    if name not in source.names():
        raise CheckpointError(f"{_near(source, name)}: tensor {name} is missing")
    shape = source.shape(name)
    if len(shape) != dims:
        raise CheckpointError(
            f"{source.where(name)}: tensor {name} has shape {shape}, needed {dims} dimensions"
        )
    return source.read(name)


def _near(source: AbstractSource, name: str) -> str:
    """The file in which a missing tensor was to be expected: that of its nearest neighbour."""
    start = name.rsplit(".", 2)[0]
    names = source.names()
    neighbour = next((other for other in names if other.startswith(start)), None)
    return source.where(neighbour or names[0]) if names else "checkpoint"


def _divide(source: AbstractSource, name: str, size: int, parts: int) -> int:
    if size % parts:
        raise CheckpointError(
            f"{source.where(name)}: tensor {name}: {size} rows or columns do not divide into "
            f"{parts}; check the number of heads"
        )
    return size // parts


def _split_columns(source: AbstractSource, name: str, matrix: np.ndarray, heads: int) -> np.ndarray:
    """[d, heads · d_head] -> [heads, d, d_head]."""
    size = _divide(source, name, matrix.shape[1], heads)
    return matrix.reshape(matrix.shape[0], heads, size).transpose(1, 0, 2)


def _output(source: AbstractSource, name: str, heads: int, *, transposed: bool) -> np.ndarray:
    """The output matrix [heads · d_head, d] (stored transposed by some) as [heads, d_head, d]."""
    stored = _read(source, name, 2)
    matrix = stored.T if transposed else stored
    size = _divide(source, name, matrix.shape[0], heads)
    return matrix.reshape(heads, size, matrix.shape[1])


def _heads(
    source: AbstractSource,
    stem: str,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    out: np.ndarray,
) -> Heads:
    """[H, d, d_head] each (keys and values of a group repeated) and [H, d_head, d] for `out`."""
    count = query.shape[0]
    if count % key.shape[0] or key.shape != value.shape or query.shape[1:] != key.shape[1:]:
        raise CheckpointError(
            f"{_near(source, stem)}: the shapes of {stem}* do not fit: query {query.shape}, key "
            f"{key.shape}, value {value.shape} (heads, width, head size)"
        )
    if out.shape != (count, value.shape[2], value.shape[1]):
        raise CheckpointError(
            f"{_near(source, stem)}: the shapes of {stem}* do not fit: output {out.shape}, needed "
            f"{(count, value.shape[2], value.shape[1])} (heads, head size, width)"
        )
    group = np.arange(count) // (count // key.shape[0])
    factored = jax.vmap(FactoredMatrix)
    return Heads(
        qk=factored(_array(query), _array(key)[group].transpose(0, 2, 1)),
        ov=factored(_array(value)[group], _array(out)),
    )


def _array(values: np.ndarray) -> jax.Array:
    return jnp.asarray(np.ascontiguousarray(values))
