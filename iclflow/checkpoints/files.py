"""Named tensors of one checkpoint, one at a time: safetensors, PyTorch and NumPy files, arrays.

Only the tensor that is asked for enters memory. No pickle is ever loaded: files of `torch.save` are
read without (`torch_files`).
"""

import abc
import contextlib
import functools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.checkpoints.torch_files import AbstractBytes, LocalBytes, TorchArchive, refusal
from iclflow.results.archives import Archive, map_array
from iclflow.results.files import (
    field,
    inside,
    read_object,
    require_regular,
)
from iclflow.results.tensors import CheckpointError, open_tensors

TORCH = (".pt", ".pth", ".bin", ".ckpt")  # endings of files of torch.save
PICKLES = (*TORCH, ".pkl", ".pickle")
INDEXES = ("*.safetensors.index.json", "*.bin.index.json")  # the second where there is no first
BESIDE = re.compile(r"optim|sched|scaler|rng|training_args|random_states")  # no weights
STORED = ("F64", "F32", "F16", "BF16")  # the types of weights in safetensors


class AbstractSource(abc.ABC):
    """Names and tensors of one checkpoint, and the settings that lie beside it."""

    config: Mapping[str, Any]

    @abc.abstractmethod
    def names(self) -> list[str]:
        """The names of all tensors."""

    @abc.abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """A tensor in single or double precision (half precisions are widened)."""

    @abc.abstractmethod
    def where(self, name: str) -> str:
        """The file that holds a tensor, for messages."""


class Arrays(AbstractSource):
    """Arrays in memory under names: NumPy, JAX, or PyTorch tensors (torch is not imported).

    - `arrays`: the tensors by name.
    - `config`: settings of the model, as a config.json has them.

    >>> import numpy as np, iclflow as icl
    >>> icl.checkpoints.Arrays({"w": np.eye(2)}).shape("w")
    (2, 2)
    """

    def __init__(self, arrays: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        self.arrays = arrays
        self.config = config or {}

    def names(self) -> list[str]:
        return list(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.arrays[name].shape)

    def read(self, name: str) -> np.ndarray:
        return as_numpy(self.arrays[name])

    def where(self, name: str) -> str:
        return "weights"


def as_numpy(array: Any) -> np.ndarray:
    """A floating NumPy array from NumPy, JAX or PyTorch, half precisions widened to single."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) in ("torch.bfloat16", "torch.float16"):
            array = array.float()
        array = array.numpy()
    return widen(np.asarray(array))


def widen(array: np.ndarray) -> np.ndarray:
    """At least single precision, which the linear algebra needs."""
    if array.dtype.kind == "c":
        raise CheckpointError(f"a tensor of shape {array.shape} is complex; needed real numbers")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


class SafetensorsFile(AbstractSource):
    """One safetensors file."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self.config = path, config
        with open_tensors(path) as file:
            names = file.keys()
            slices = {name: file.get_slice(name) for name in names}
            self.kinds = {name: found.get_dtype() for name, found in slices.items()}
            self.shapes = {name: tuple(found.get_shape()) for name, found in slices.items()}

    def names(self) -> list[str]:
        return list(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def read(self, name: str) -> np.ndarray:
        import ml_dtypes  # noqa: F401, it gives NumPy the type of BF16

        if self.kinds[name] not in STORED:
            raise CheckpointError(
                f"{self.path}: tensor {name} has type {self.kinds[name]}, needed one of "
                f"{', '.join(STORED)}; save it in one of these"
            )
        # Opened anew: all that was read through a map stays in memory until it is closed.
        with open_tensors(self.path) as file:
            return widen(file.get_tensor(name))

    def where(self, name: str) -> str:
        return str(self.path)


class TorchFile(AbstractSource):
    """One file of `torch.save`, here or on a server. Its pickle is followed, never loaded."""

    def __init__(self, parts: AbstractBytes, config: Mapping[str, Any]) -> None:
        self.archive, self.config = TorchArchive(parts), config

    def names(self) -> list[str]:
        return list(self.archive.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.archive.tensors[name].shape

    def read(self, name: str) -> np.ndarray:
        return widen(self.archive.values(name))

    def where(self, name: str) -> str:
        return self.archive.label


class NumpyArchive(AbstractSource):
    """An `.npz` file; object arrays, which would need pickle, are refused."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self.config = path, config
        with _as_checkpoint_error():
            self.archive = Archive(path)

    def names(self) -> list[str]:
        return list(self.archive.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.archive.shapes[name]

    def read(self, name: str) -> np.ndarray:
        with _as_checkpoint_error():
            return widen(self.archive.read(name))

    def where(self, name: str) -> str:
        return str(self.path)


class NumpyFolder(AbstractSource):
    """A folder of `.npy` files, one for each tensor."""

    def __init__(self, files: Iterable[Path], config: Mapping[str, Any]) -> None:
        self.files = {file.name[:-4]: file for file in files}
        self.config = config

    def names(self) -> list[str]:
        return list(self.files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._open(name).shape

    def read(self, name: str) -> np.ndarray:
        return widen(self._open(name))

    def where(self, name: str) -> str:
        return str(self.files[name])

    def _open(self, name: str) -> np.ndarray:
        with _as_checkpoint_error():
            return map_array(self.files[name])


class Shards(AbstractSource):
    """Several files that together are one checkpoint; opened when a tensor of theirs is read."""

    def __init__(
        self,
        files: Mapping[str, str],
        opened: Callable[[str], AbstractSource],
        config: Mapping[str, Any],
    ) -> None:
        self.files, self.config = files, config  # tensor -> file
        self._opened = functools.cache(opened)

    def names(self) -> list[str]:
        return list(self.files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shard(name).shape(name)

    def read(self, name: str) -> np.ndarray:
        return self._shard(name).read(name)

    def where(self, name: str) -> str:
        return self.files[name]

    def _shard(self, name: str) -> AbstractSource:
        path = self.files[name]
        try:
            shard = self._opened(path)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path}: missing; the index says it holds tensor {name}"
            ) from None
        if name not in shard.names():
            raise CheckpointError(f"{path}: tensor {name} is missing; the index says it is there")
        return shard


def open_checkpoint(path: str | Path) -> AbstractSource:
    """One checkpoint: a file, or a folder with safetensors, `.npz`, `.npy` or PyTorch files.

    - `path`: the file or the folder.

    >>> import tempfile, numpy as np, iclflow as icl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/weights.npz", w=np.eye(2))
    ...     icl.checkpoints.open_checkpoint(f"{folder}/weights.npz").names()
    ['w']
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if not path.is_dir():
        with _as_checkpoint_error():
            require_regular(path)
        return _open_file(path)
    if any(path.glob("adapter_*")):
        raise CheckpointError(str(foreign(path)))
    config = _config(path)
    shards = sorted(path.glob("*.safetensors"))
    index = sorted(path.glob(INDEXES[0])) or ([] if shards else sorted(path.glob(INDEXES[1])))
    if index:
        with _as_checkpoint_error():
            weights = field(read_object(index[0]), "weight_map", dict, index[0])
            files = {n: str(inside(path, file, index[0])) for n, file in weights.items()}
        return Shards(files, lambda file: _present(file, config), config)
    if len(shards) == 1:
        return SafetensorsFile(shards[0], config)
    if shards:
        sources = {str(file): SafetensorsFile(file, config) for file in shards}
        files = {name: file for file, source in sources.items() for name in source.names()}
        return Shards(files, sources.__getitem__, config)
    archives = sorted(path.glob("*.npz"))
    if len(archives) == 1:
        return NumpyArchive(archives[0], config)
    arrays = sorted(path.glob("*.npy"))
    if arrays:
        return NumpyFolder(arrays, config)
    pickled = torch_weights(file.name for file in path.iterdir())
    if len(pickled) == 1:
        return TorchFile(LocalBytes(path / pickled[0]), config)
    if len(pickled) > 1:
        raise CheckpointError(
            f"{path}: {len(pickled)} PyTorch files ({', '.join(pickled[:4])}); name the one to read"
        )
    raise CheckpointError(
        foreign(path)
        or f"{path}: no checkpoint here; needed .safetensors (or its index), one .npz, .npy files "
        f"or one file of torch.save"
    )


def torch_weights(names: Iterable[str]) -> list[str]:
    """The names that files of PyTorch with weights have; not those of optimisers and the like."""
    return sorted(n for n in names if n.endswith(TORCH) and BESIDE.search(n) is None)


def foreign(folder: Path) -> str | None:
    """What a folder holds that is not read, and how it becomes what is; None if nothing is known.

    Plain pickles are never loaded, and sharded formats need the library that wrote them.
    """
    names = sorted(p.name for p in folder.iterdir())
    if any(name.startswith("adapter_") for name in names):
        return (
            f"{folder}: a LoRA adapter, which holds changes of the weights and not the weights; "
            f"merge it into its base model (peft: merge_and_unload) and save that"
        )
    if any(name.endswith(".distcp") for name in names):
        return (
            f"{folder}: a distributed checkpoint of PyTorch (FSDP, DCP); make one file of it where "
            f"PyTorch is: python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
            f"{shlex.quote(str(folder))} model.pt, then python -m iclflow.checkpoints.convert "
            f"model.pt"
        )
    marks = {"_CHECKPOINT_METADATA", "manifest.ocdbt", "_METADATA", "ocdbt.process_0"}
    if marks.intersection(names):
        return (
            f"{folder}: a checkpoint of Orbax; restore it where it was written and save its arrays "
            f"by name: numpy.savez or safetensors.numpy.save_file"
        )
    pickle = next((name for name in names if name.endswith(PICKLES)), None)
    return None if pickle is None else refusal(folder / pickle)


def _present(file: str, config: Mapping[str, Any]) -> AbstractSource:
    if not Path(file).exists():
        raise FileNotFoundError(file)
    if file.endswith(TORCH):
        return TorchFile(LocalBytes(Path(file)), config)
    return SafetensorsFile(Path(file), config)


def _open_file(path: Path) -> AbstractSource:
    config = _config(path.parent)
    if path.suffix in TORCH:
        return TorchFile(LocalBytes(path), config)
    if path.suffix in PICKLES:
        raise CheckpointError(refusal(path))
    if path.suffix == ".safetensors":
        return SafetensorsFile(path, config)
    if path.suffix == ".npz":
        return NumpyArchive(path, config)
    if any(path.match(pattern) for pattern in INDEXES):
        return open_checkpoint(path.parent)
    raise CheckpointError(
        f"{path}: not a checkpoint; needed .safetensors, .npz or a file of torch.save"
    )


def _config(folder: Path) -> Mapping[str, Any]:
    """The settings of the model, which lie beside its checkpoints or their folder."""
    beside = [folder, folder.parent] if folder.name == "checkpoints" else [folder]
    file = next(
        (place / "config.json" for place in beside if (place / "config.json").exists()), None
    )
    return {} if file is None else read_json(file)


def read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object, or `CheckpointError` in one line."""
    with _as_checkpoint_error():
        return read_object(file)


@contextlib.contextmanager
def _as_checkpoint_error() -> Iterator[None]:
    """What a reader refuses inside the block is a `CheckpointError`: --keep-going survives it."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, OSError) as error:
        raise CheckpointError(str(error)) from None
