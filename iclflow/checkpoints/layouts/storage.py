"""The ways in which W_Q, W_K, W_V and W_O are stored: apart, fused, by head, through a latent."""

import numpy as np

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.checkpoints.layouts.base import Factors, read_tensor


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
