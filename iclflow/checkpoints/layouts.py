"""From the tensors of a checkpoint to QK and OV of every head.

Conventions: the residual stream x is a row vector. Head h scores with x W_Q (x' W_K)ᵀ, so its QK
circuit is W_Q W_Kᵀ, and writes x' W_V W_O, its OV circuit: both [d, d'] of rank d_head, kept as
factors. Biases, layer-norm gains, the scale of the scores and rotary positions are not part of
them: they are noted. With rotary positions W_Q W_Kᵀ is the circuit at relative distance 0.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.linalg import FactoredMatrix
from iclflow.results.files import require_count


class NoAttentionError(CheckpointError):
    """A checkpoint whose names are those of no family that is known."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """The heads of one layer; each circuit is a batch of H factored matrices.

    - `qk`: W_Qᵀ W_K of every head.
    - `ov`: W_O W_V of every head.
    """

    qk: FactoredMatrix
    ov: FactoredMatrix

    def circuits(self) -> dict[str, FactoredMatrix]:
        """Both, by name."""
        return {"QK": self.qk, "OV": self.ov}


@dataclasses.dataclass(frozen=True)
class Factors:
    """W_Q, W_K, W_V [heads or groups, width, size] and W_O [heads, size, width] of a layer.

    - `query`, `key`, `value`, `out`: W_Q, W_K, W_V and W_O.
    """

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
    - `name`: what the family is called in messages.
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
    """A family found in a checkpoint: one stack of layers with attention.

    - `kind`: the family.
    - `layers`: the numbers of the layers.
    - `heads`: how many each of them has.
    """

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
            try:
                wrong = int(np.sum(~np.isfinite(source.read(name))))
            except CheckpointError:  # a mask or the like: the weights have been read before
                continue
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


def apart(source: AbstractSource, stem: str, heads: int, names: tuple[str, ...]) -> Factors:
    """Four matrices, [out, in] as `.weight` and [in, out] as `.kernel`; keys may be shared."""
    query_name, key_name, value_name, out_name = (stem + name for name in names)
    query = _columns(source, query_name, heads)
    size = query.shape[2]
    key, value = (_columns(source, name, None, size) for name in (key_name, value_name))
    return Factors(query, key, value, _output(source, out_name, heads))


def blocks(source: AbstractSource, stem: str, heads: int, fused: str, out: str) -> Factors:
    """All queries, then all keys, then all values, in one matrix."""
    name, matrix = _matrix(source, stem + fused)
    return _cut(source, name, matrix, heads, _output(source, stem + out, heads))


def by_group(source: AbstractSource, stem: str, heads: int, fused: str, out: str) -> Factors:
    """For each group of heads that share a key: their queries, the key, the value."""
    name, matrix = _matrix(source, stem + fused)
    output = _output(source, stem + out, heads)
    return _interleaved(source, name, matrix, heads, output)


def gpt2(source: AbstractSource, stem: str, heads: int) -> Factors:
    """`c_attn` [in, out] in blocks, as is `c_proj`."""
    name, matrix = read_tensor(source, stem + "c_attn", 2)
    output = _output(source, stem + "c_proj", heads, transposed=False)
    return _cut(source, name, matrix, heads, output)


def linear_gpt2(source: AbstractSource, stem: str, heads: int) -> Factors:
    """The same with [out, in], as of `nn.Linear` and of Flax's `Conv1D`."""
    name, matrix = read_tensor(source, stem + "c_attn", 2)
    output = _output(source, stem + "c_proj", heads, transposed=True)
    return _cut(source, name, matrix.T, heads, output)


def per_head(source: AbstractSource, stem: str, heads: int) -> Factors:
    """`W_Q`, `W_K`, `W_V` [heads, d, size], `W_O` [heads, size, d]; groups under `_W_K`, `_W_V`."""
    del heads
    names = source.names()
    # grouped-query models keep one key and value for each group under a leading underscore
    key, value = (
        stem + ("_" + part if stem + "_" + part in names else part) for part in ("W_K", "W_V")
    )
    given = (stem + "W_Q", key, value, stem + "W_O")
    return Factors(*(read_tensor(source, name, 3)[1] for name in given))


def bridge(source: AbstractSource, stem: str, heads: int) -> Factors:
    """`q`, `k`, `v` [out, in]; `o` too, but of GPT-2, where it is [in, out] like the MLP."""
    found = apart(source, stem, heads, ("q", "k", "v", "o"))
    inner = f"{stem.removesuffix('attn.')}mlp.in.weight"
    if inner not in source.names():
        return found
    rows, columns = source.shape(inner)
    if rows == columns:
        raise CheckpointError(
            f"{source.where(inner)}: {inner} is square, so it cannot be told whether {stem}o is "
            f"stored as [in, out]; save the model by its own library instead"
        )
    if rows == found.query.shape[1]:
        return Factors(
            found.query,
            found.key,
            found.value,
            _output(source, stem + "o", heads, transposed=False),
        )
    return found


def kernels(source: AbstractSource, stem: str, heads: int) -> Factors:
    """Flax: `query`, `key`, `value` [d, heads, size], and `out` [heads, size, d]."""
    del heads
    query, key, value = (
        read_tensor(source, stem + name, 3)[1].transpose(1, 0, 2)
        for name in ("query", "key", "value")
    )
    return Factors(query, key, value, read_tensor(source, stem + "out", 3)[1])


def latent(source: AbstractSource, stem: str, heads: int) -> Factors:
    """Queries and keys through a latent with a norm; part of the key is shared and rotary.

    The gains of the inner norms are in the factors, their division by the latent's size is not.
    """
    _, down = _matrix(source, stem + "kv_a_proj_with_mqa")  # [d, latent + rotary]
    name, up = _matrix(source, stem + "kv_b_proj")  # [latent, heads (plain + value)]
    _, gain = read_tensor(source, stem + "kv_a_layernorm", 1)
    turned = down.shape[1] - up.shape[0]
    if f"{stem}q_a_proj.weight" in source.names():
        _, first = _matrix(source, stem + "q_a_proj")
        _, inner = read_tensor(source, stem + "q_a_layernorm", 1)
        query_name, second = _matrix(source, stem + "q_b_proj")
        whole = (first * inner) @ second
    else:
        query_name, whole = _matrix(source, stem + "q_proj")
    query = _split(source, query_name, whole, heads)
    plain = query.shape[2] - turned
    each = _split(source, name, (down[:, : up.shape[0]] * gain) @ up, heads)
    shared = np.broadcast_to(down[:, up.shape[0] :], (heads, down.shape[0], turned))
    key = np.concatenate([each[:, :, :plain], shared], axis=2)
    return Factors(query, key, each[:, :, plain:], _output(source, stem + "o_proj", heads))


def _matrix(source: AbstractSource, base: str) -> tuple[str, np.ndarray]:
    """A matrix as [in, out]."""
    name, stored = read_tensor(source, base, 2)
    return name, stored if name.endswith(".kernel") else stored.T


def _columns(
    source: AbstractSource, base: str, heads: int | None, size: int | None = None
) -> np.ndarray:
    """[count, d, size] of a matrix, from the number of heads or from the size of one."""
    name, matrix = _matrix(source, base)
    if heads is None:
        assert size is not None
        heads = divide(source, name, matrix.shape[1], size)
    return _split(source, name, matrix, heads)


def _split(source: AbstractSource, name: str, matrix: np.ndarray, heads: int) -> np.ndarray:
    """[d, heads · size] -> [heads, d, size]."""
    size = divide(source, name, matrix.shape[1], heads)
    return matrix.reshape(matrix.shape[0], heads, size).transpose(1, 0, 2)


def _output(
    source: AbstractSource, base: str, heads: int, *, transposed: bool | None = None
) -> np.ndarray:
    """The output matrix [heads · size, d] (stored transposed by most) as [heads, size, d]."""
    name, stored = read_tensor(source, base, 2)
    if transposed is None:
        transposed = not name.endswith(".kernel")
    matrix = stored.T if transposed else stored
    size = divide(source, name, matrix.shape[0], heads)
    return matrix.reshape(heads, size, matrix.shape[1])


def _cut(
    source: AbstractSource, name: str, matrix: np.ndarray, heads: int, out: np.ndarray
) -> Factors:
    """[d, (heads + 2 groups) size], in blocks."""
    size = out.shape[1]
    groups = _groups(source, name, matrix, heads, size)
    ends = np.cumsum([heads, groups, groups]) * size
    parts = np.split(matrix, ends[:-1], axis=1)
    counts = (heads, groups, groups)
    query, key, value = (
        _split(source, name, part, n) for part, n in zip(parts, counts, strict=True)
    )
    return Factors(query, key, value, out)


def _interleaved(
    source: AbstractSource, name: str, matrix: np.ndarray, heads: int, out: np.ndarray
) -> Factors:
    """[d, groups · (heads/groups + 2) · size]."""
    size = out.shape[1]
    groups = _groups(source, name, matrix, heads, size)
    each = divide(source, name, heads, groups)
    parts = matrix.reshape(matrix.shape[0], groups, each + 2, size).transpose(1, 2, 0, 3)
    query = parts[:, :each].reshape(heads, matrix.shape[0], size)
    return Factors(query, parts[:, each], parts[:, each + 1], out)


def _groups(source: AbstractSource, name: str, matrix: np.ndarray, heads: int, size: int) -> int:
    """The number of keys in a fused matrix: what is left beside the queries, halved."""
    shared = divide(source, name, matrix.shape[1], size) - heads
    if shared < 2 or shared % 2 or heads % (shared // 2):
        raise CheckpointError(
            f"{source.where(name)}: tensor {name} with {matrix.shape[1]} rows or columns does not "
            f"hold {heads} queries of size {size} and as many keys as values; check the number of "
            f"heads"
        )
    return shared // 2


def divide(source: AbstractSource, name: str, size: int, parts: int) -> int:
    """How often `parts` goes into `size`, or an error that names the tensor."""
    if size % parts:
        raise CheckpointError(
            f"{source.where(name)}: tensor {name}: {size} rows or columns do not divide into "
            f"{parts}; check the number of heads"
        )
    return size // parts


ADDED = "not rotary: added to the input, or none"
ANYWHERE = r"(?:\D*(\d+).*\.|.*\.)?"  # the layer is the first number in the name, if there is one


def _apart(name: str, stem: str, parts: tuple[str, ...], positions: str) -> Family:
    return Family(name, stem, parts, partial(apart, names=parts), positions)


def _fused(name: str, stem: str, reader: Any, parts: tuple[str, str], positions: str) -> Family:
    return Family(name, stem, parts, partial(reader, fused=parts[0], out=parts[1]), positions)


def _wide(source: AbstractSource, stem: str) -> bool:
    """Whether `c_attn` is [d, 3d], as GPT-2's own `Conv1D` has it."""
    rows, columns = source.shape(full_name(source, stem + "c_attn"))
    return columns == 3 * rows


def _by_group(source: AbstractSource, stem: str) -> bool:
    """GPTBigCode: keys that all heads share, or queries, keys and values head by head."""
    rows, columns = source.shape(full_name(source, stem + "c_attn"))
    return rows != 3 * columns or source.config.get("model_type") == "gpt_bigcode"


def _kernels(source: AbstractSource, stem: str) -> bool:
    return len(source.shape(full_name(source, stem + "query"))) == 3


def _first_axis(source: AbstractSource, stem: str) -> int:
    return source.shape(full_name(source, stem + "W_Q"))[0]


def _middle_axis(source: AbstractSource, stem: str) -> int:
    return source.shape(full_name(source, stem + "query"))[1]


QKV = ("q_proj", "k_proj", "v_proj")
GPT2_STEM, GPT2_PARTS = r"(?:.*\.)?h\.(\d+)\.attn\.", ("c_attn", "c_proj")
BIG_CODE = partial(by_group, fused="c_attn", out="c_proj")
FAMILIES = (
    Family("GPT-2", GPT2_STEM, GPT2_PARTS, gpt2, ADDED, fits=_wide),
    Family("GPTBigCode", GPT2_STEM, GPT2_PARTS, BIG_CODE, ADDED, fits=_by_group),
    Family("GPT-2 transposed", GPT2_STEM, GPT2_PARTS, linear_gpt2, ADDED),
    _fused("GPT-NeoX", r"(?:.*\.)?layers\.(\d+)\.attention\.", by_group,
           ("query_key_value", "dense"), "rotary"),
    _fused("BLOOM or Falcon", r"(?:.*\.)?h\.(\d+)\.self_attention\.", by_group,
           ("query_key_value", "dense"), "ALiBi, or rotary: QK is at relative distance 0"),
    _apart("Llama", r"(?:.*\.)?layers\.(\d+)\.(?:self|cross)_attn\.", (*QKV, "o_proj"), "rotary"),
    _apart("OPT", r"(?:.*\.)?layers\.(\d+)\.(?:self|encoder)_attn\.", (*QKV, "out_proj"), ADDED),
    _apart("Phi", r"(?:.*\.)?layers\.(\d+)\.self_attn\.", (*QKV, "dense"), "rotary"),
    _fused("Phi-3", r"(?:.*\.)?layers\.(\d+)\.self_attn\.", blocks,
           ("qkv_proj", "o_proj"), "rotary"),
    Family("DeepSeek", r"(?:.*\.)?layers\.(\d+)\.self_attn\.",
           ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj"), latent, "rotary"),
    _apart("GPT-J", r"(?:.*\.)?h\.(\d+)\.attn\.", (*QKV, "out_proj"), "rotary"),
    _apart("GPT-Neo", r"(?:.*\.)?h\.(\d+)\.attn\.attention\.", (*QKV, "out_proj"), ADDED),
    _fused("MPT", r"(?:.*\.)?blocks\.(\d+)\.attn\.", blocks,
           ("Wqkv", "out_proj"), "ALiBi, unless the model switches it off"),
    _apart("BERT", r"(?:.*\.)?layer\.(\d+)\.(?:cross)?attention\.",
           ("self.query", "self.key", "self.value", "output.dense"), ADDED),
    _apart("DistilBERT", r"(?:.*\.)?layer\.(\d+)\.attention\.",
           ("q_lin", "k_lin", "v_lin", "out_lin"), ADDED),
    _apart("ViT", r"(?:.*\.)?layers\.(\d+)\.attention\.", (*QKV, "o_proj"), ADDED),
    _apart("T5", r"(?:.*\.)?block\.(\d+)\.layer\.\d+\.(?:Self|EncDec)Attention\.",
           ("q", "k", "v", "o"), "a learned bias of relative positions, not included"),
    Family("TransformerLens", r"(?:.*\.)?blocks\.(\d+)\.attn\.", ("W_Q", "W_O"), per_head,
           ADDED, count=_first_axis),
    Family("TransformerLens bridge", r"(?:.*\.)?blocks\.(\d+)\.attn\.", ("q", "k", "v", "o"),
           bridge, "not stored; where rotary, QK is at relative distance 0"),
    Family("Flax", ANYWHERE, ("query", "key", "value", "out"), kernels,
           "not stored; where rotary, QK is at relative distance 0",
           count=_middle_axis, fits=_kernels),
    _fused("PyTorch", ANYWHERE, blocks, ("in_proj_weight", "out_proj"), ADDED),
    _apart("Equinox", ANYWHERE, ("query_proj", "key_proj", "value_proj", "output_proj"),
           "not stored; where rotary, QK is at relative distance 0"),
)  # fmt: skip


def find_layout(
    source: AbstractSource, *, heads: int | None = None, stack: str | None = None
) -> Layout:
    """The attention of a checkpoint, from its names; the head count from its settings or `heads`.

    - `heads`: their number, where neither the weights nor a config.json say.
    - `stack`: part of the names of one stack of layers, such as `encoder`, where there are several.
    - `source`: the checkpoint, such as `Arrays`.

    >>> import numpy as np, iclflow as icl
    >>> arrays = {"h.0.attn.c_attn.weight": np.ones((4, 12)), "h.0.attn.c_proj.weight": np.eye(4)}
    >>> layout = icl.checkpoints.find_layout(icl.checkpoints.Arrays(arrays), heads=2)
    >>> layout.kind.name, layout.layers, layout.heads
    ('GPT-2', (0,), 2)
    """
    found = _stacks(source)
    chosen = {where: at for where, at in found.items() if stack is None or stack in where}
    known = ", ".join(where.rstrip(".") for where in found)
    if not found:
        names = source.names()
        where = source.where(names[0]) if names else "checkpoint"
        families = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        if any(".lora_" in name for name in names):
            raise NoAttentionError(
                f"{where}: a LoRA adapter, which holds changes of the weights and not the weights; "
                f"merge it into its base model (peft: merge_and_unload) and save that"
            )
        raise NoAttentionError(
            f"{where}: no attention under the names of {families}; the names begin with: "
            f"{', '.join(names[:3]) or 'no tensors'}"
        )
    if len(chosen) != 1:
        which = f"{stack!r} names {len(chosen)} of them" if stack else "choose one: stack='encoder'"
        raise CheckpointError(
            f"{source.where(source.names()[0])}: {len(found)} stacks of attention layers, {known}; "
            f"{which} (--stack on the command line)"
        )
    [(where, (family, layers))] = chosen.items()
    stem = where.replace("*", str(layers[0]))
    count = family.count(source, stem) if family.count else heads or head_count(source, where)
    if not count:
        raise CheckpointError(
            f"{source.where(full_name(source, stem + family.parts[0]))}: {family.name} names, but "
            f"the number of heads is not in the weights; put the model's config.json beside them "
            f"or give the number of heads"
        )
    return Layout(family, where, layers, int(count), layer_count(source, where))


def _stacks(source: AbstractSource) -> dict[str, tuple[Family, tuple[int, ...]]]:
    """The start of the names, with * for the layer's number -> its family and layers."""
    bases = {re.sub(r"\.(weight|kernel)$", "", name) for name in source.names()}
    found: dict[str, tuple[Family, tuple[int, ...]]] = {}
    for family in FAMILIES:
        layers: dict[str, dict[int, str]] = {}
        # A layer is there if any part is: reading it names the one that is missing.
        for base, part in itertools.product(sorted(bases), family.parts):
            stem = base.removesuffix(part)
            if stem == base or not (match := re.fullmatch(family.stem, stem)):
                continue
            start, end = match.span(1)
            where = stem if start < 0 else f"{stem[:start]}*{stem[end:]}"
            layers.setdefault(where, {})[int(match[1] or 0)] = stem
        for where, stems in layers.items():
            whole = [s for s in stems.values() if all(s + part in bases for part in family.parts)]
            fits = family.fits is None or (whole and family.fits(source, whole[0]))
            if where not in found and whole and fits:
                found[where] = family, tuple(sorted(stems))
    return found


def settings_of(source: AbstractSource, where: str) -> tuple[Mapping[str, Any], str]:
    """The settings of the part of a model that a stack belongs to, and the part's name or ""."""
    config: Mapping[str, Any] = source.config
    named = ""
    parts = [part for part in ("encoder", "decoder", "text", "vision") if part in where]
    for part in sorted(parts, key=where.index):  # decoder.layers.0.encoder_attn is the decoder's
        for nested in (part, f"{part}_config"):
            if isinstance(config.get(nested), Mapping):
                config = config[nested]
        named = named or part
    return config, named


def _number(source: AbstractSource, where: str, keys: tuple[str, ...]) -> int | None:
    """A size in a model's settings under one of several keys; that of the part comes first.

    A key without a value (null, 0) counts as not there.
    """
    config, part = settings_of(source, where)
    for key in (*(f"{part}_{key}" for key in keys if part), *keys):
        if config.get(key) not in (None, 0):
            try:
                return require_count(config[key], key, "config.json")
            except ValueError as error:
                raise CheckpointError(str(error)) from None
    return None


def head_count(source: AbstractSource, where: str) -> int | None:
    """The number of heads in a model's settings; those of a part of it come first."""
    keys = ("attention_heads", "num_attention_heads", "n_head", "num_heads", "n_heads")
    return _number(source, where, keys)


def layer_count(source: AbstractSource, where: str) -> int | None:
    """The number of layers in a model's settings; those of a part of it come first."""
    keys = ("layers", "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    return _number(source, where, keys)
