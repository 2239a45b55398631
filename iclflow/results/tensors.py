"""Pytrees of arrays on disk: one safetensors file, exact in every bit."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.results.files import replacing, require_regular


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file and the tensor."""


@contextmanager
def open_tensors(path: Path | str) -> Iterator[Any]:
    """A safetensors file as `safetensors.safe_open` gives it, or `CheckpointError` in one line.

    The file is mapped, and whole: its length is that of its tensors.
    """
    from safetensors import SafetensorError, safe_open

    try:
        require_regular(path)
    except (ValueError, OSError) as error:
        raise CheckpointError(str(error)) from None
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(f"{path}: truncated or not a safetensors file ({error})") from None


def write_tensors(
    path: Path | str, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write named arrays, and words about them.

    The output is deterministic, except for the order of several metadata entries, which the format
    leaves open.
    """
    from safetensors.numpy import save

    # `save` takes the memory as it lies, of a transposed array too.
    arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{path}: tensor {name} has type {array.dtype}, which has no name")
    with replacing(path) as partial:
        # Its `save_file` writes to a name of its own first, which would stay where it is killed.
        partial.write_bytes(save(arrays, dict(metadata or {})))
    return Path(path)


def save_tree(path: Path | str, tree: Any, metadata: Mapping[str, str] | None = None) -> Path:
    """Write the arrays of a pytree, named by their place in it; random keys by their key data."""
    return write_tensors(path, {n: _plain(leaf) for n, leaf in _arrays(tree).items()}, metadata)


def load_tree(path: Path | str, like: Any) -> Any:
    """The pytree that was saved: its arrays from the file, everything else from `like`.

    `CheckpointError` if the file is damaged, or a name, shape or type differs from `like`.
    """
    wanted = _arrays(like)
    with open_tensors(path) as file:
        extra = sorted(set(file.keys()) - set(wanted))
        missing = sorted(set(wanted) - set(file.keys()))
        if missing or extra:
            which = f"{missing[0]} is missing" if missing else f"{extra[0]} is not expected"
            raise CheckpointError(f"{path}: tensor {which}; it holds something else")
        arrays = [file.get_tensor(name) for name in wanted]
    named = zip(wanted.items(), arrays, strict=True)
    found = iter([_as(leaf, array, f"{path}: tensor {name}") for (name, leaf), array in named])
    return jax.tree.map(lambda leaf: next(found) if _is_array(leaf) else leaf, like)


def _as(like: Any, found: np.ndarray, name: str) -> Any:
    """An array from a file as the kind of array that `like` is."""
    needed = _plain(like)
    if found.shape != needed.shape or found.dtype != needed.dtype:
        raise CheckpointError(
            f"{name} is {found.dtype}{list(found.shape)}, needed {needed.dtype}{list(needed.shape)}"
        )
    if isinstance(like, np.ndarray | np.generic):
        return found
    if _is_key(like):
        return jax.random.wrap_key_data(jax.device_put(found), impl=jax.random.key_impl(like))
    return jax.device_put(found)


def _arrays(tree: Any) -> dict[str, Any]:
    """Place in the tree -> array, for every leaf that is one."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if _is_array(leaf)}


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
