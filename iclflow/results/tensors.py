"""Pytrees of arrays on disk: one safetensors file, exact in every bit, written whole or not at all.

The format is 8 bytes of header length, a JSON header (name -> type, shape, place), and the raw
numbers; any program that reads safetensors can read these files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.checkpoints.files import CheckpointError, SafetensorsFile
from iclflow.results.files import replacing

TYPES = {
    "BOOL": "|b1",
    "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
    "I8": "|i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}


def write_tensors(
    path: Path | str, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write named arrays."""
    path = Path(path)
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise ValueError(f"{path}: tensor {name} has type {array.dtype}, which has no name")
        place = [end, end := end + array.nbytes]
        # ascontiguousarray makes a number an array of one
        shape = list(np.shape(tensors[name]))
        header[name] = {"dtype": _NAMES[array.dtype], "shape": shape, "data_offsets": place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())
    return path


def save_tree(path: Path | str, tree: Any, metadata: Mapping[str, str] | None = None) -> Path:
    """Write the arrays of a pytree, named by their place in it; random keys by their key data."""
    return write_tensors(path, {n: _plain(leaf) for n, leaf in _arrays(tree).items()}, metadata)


def load_tree(path: Path | str, like: Any) -> Any:
    """The pytree that was saved: its arrays from the file, everything else from `like`.

    `ValueError` in one line if the file is damaged, or a name, shape or type differs from `like`.
    """
    file = _open(Path(path))
    wanted = _arrays(like)
    extra = sorted(set(file.names()) - set(wanted))
    missing = [name for name in wanted if name not in file.names()]
    if missing or extra:
        what = (
            f"tensor {missing[0]} is missing" if missing else f"tensor {extra[0]} is not expected"
        )
        raise CheckpointError(f"{path}: {what}; it holds something else")
    found = iter([_read(file, name, leaf) for name, leaf in wanted.items()])
    return jax.tree.map(lambda leaf: next(found) if _is_array(leaf) else leaf, like)


def load_metadata(path: Path | str) -> dict[str, str]:
    """The words saved beside the arrays."""
    return dict(_open(Path(path)).metadata)


def _open(path: Path) -> SafetensorsFile:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    return SafetensorsFile(path, {})


def _read(file: SafetensorsFile, name: str, like: Any) -> Any:
    try:
        found = np.array(file.stored(name, TYPES))
    except (KeyError, TypeError):
        raise CheckpointError(f"{file.path}: tensor {name}: its entry is damaged") from None
    needed = _plain(like)
    if found.shape != needed.shape or found.dtype != needed.dtype:
        raise CheckpointError(
            f"{file.path}: tensor {name} is {found.dtype}{list(found.shape)}, needed "
            f"{needed.dtype}{list(needed.shape)}"
        )
    if isinstance(like, np.ndarray | np.generic):
        return found
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(found), impl=jax.random.key_impl(like))
    return jnp.asarray(found)


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
