"""Tensors in files of `torch.save`, read without PyTorch and without unpickling.

Such a file is a zip archive. Its member `data.pkl` is a pickle that says of every tensor its name,
type, shape and place; the numbers lie in members of their own, as they were in memory. The pickle
is never loaded: a program of its own here follows its instructions, knows only those that make
numbers, text and containers, and takes the few functions that describe a tensor for what they
describe. Nothing that the file names is imported or called, and any other name ends the reading.

Of a tensor only its own bytes are fetched, from this machine or from a server (`AbstractBytes`).
"""

import abc
import dataclasses
import io
import math
import pickletools
import shlex
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.results.files import require_regular
from iclflow.results.tensors import CheckpointError

END = 2**16  # bytes that are fetched from both ends of a file: its pickle and its list of members
LARGEST = 10**8  # bytes of a pickle or of a list of members at most
HEADER = struct.Struct("<4s22xHH")  # before a member: signature, lengths of its name and of padding
PADDING = 256  # bytes; torch.save pads a header by less, so that numbers begin at multiples of 64
WEIGHTS = ("float64", "float32", "float16", "bfloat16")
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "BoolStorage": "bool", "ByteStorage": "uint8",
    "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")


class AbstractBytes(abc.ABC):
    """A file of which parts can be had: its size in bytes, and what it is called in messages."""

    label: str
    size: int

    @abc.abstractmethod
    def fetch(self, start: int, count: int) -> bytes:
        """The bytes from `start` on, `count` of them or as many as there are."""


class LocalBytes(AbstractBytes):
    """A file on this machine."""

    def __init__(self, path: Path) -> None:
        try:
            self.size = require_regular(path).stat().st_size
        except (ValueError, OSError) as error:
            raise CheckpointError(str(error)) from None
        self.path, self.label = path, str(path)

    def fetch(self, start: int, count: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(count)
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror or error}") from None


def refusal(path: str | Path) -> str:
    """Why a file that has to be unpickled is not read, and the command that converts it."""
    here = shlex.quote(str(path)) if Path(path).exists() else "FILE"  # or on a server
    return (
        f"{path}: no zip archive, as torch.save writes since PyTorch 1.6; a plain pickle can run "
        f"code when it is loaded, so it is refused; convert it to safetensors once, where PyTorch "
        f"is: python -m iclflow.checkpoints.convert {here}"
    )


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor as the pickle describes it: a view of a storage, with sizes in numbers.

    - `kind`: the type of its numbers, as NumPy calls it.
    - `storage`: the name of the member that holds them; `count`: how many the member holds.
    - `offset`, `shape`, `strides`: the first number, and the steps from one to the next.
    """

    kind: str
    storage: str
    count: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """The numbers of the storage from its first to its last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))

    def complaint(self) -> str | None:
        """Why it cannot be a tensor of weights, or None."""
        if self.kind not in WEIGHTS:
            return f"has type {self.kind}, needed one of {', '.join(WEIGHTS)}"
        if self.offset + self.span > self.count:
            return f"ends beyond its {self.count:,} stored numbers; the file is damaged"
        if math.prod(self.shape) > self.span:
            return f"repeats stored numbers (shape {self.shape}, strides {self.strides}); clone it"
        return None


def tensors_of(
    found: Any,
    path: Path | str,
    is_tensor: Callable[[Any], bool] = lambda value: hasattr(value, "detach"),
) -> dict[str, Any]:
    """The tensors by name, out of whatever they are wrapped in."""
    for _ in range(3):  # {"state": {"model": {"state_dict": ...}}}
        if not isinstance(found, Mapping) or any(is_tensor(value) for value in found.values()):
            break
        inner = next((found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    tensors = (
        {key: value for key, value in found.items() if is_tensor(value)}
        if isinstance(found, Mapping)
        else {}
    )
    if not tensors:
        keys = list(found)[:8] if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"{path}: no tensors under names, nor under {', '.join(WRAPPERS)}: {keys}")
    return {str(name): tensor for name, tensor in tensors.items()}


# --- the pickle -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Name:
    """A name of a pickle that is known here: it stands for itself, and is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclasses.dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    count: int


def _ordered(*pairs: Any) -> dict[Any, Any]:
    return dict(*pairs)


def _view(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> StoredTensor:
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor without a storage")
    if not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise ValueError("a tensor without a shape and strides")
    numbers = (storage.count, offset, *shape, *strides)
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"a tensor of shape {shape} with strides {strides} at {offset}")
    return StoredTensor(storage.kind, storage.key, storage.count, offset, shape, strides)


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


CALLS: dict[_Name, Callable[..., Any]] = {
    _Name("collections", "OrderedDict"): _ordered,
    _Name("torch._utils", "_rebuild_tensor_v2"): _view,
    _Name("torch._utils", "_rebuild_parameter"): _parameter,
}
TYPES = {_Name("torch", name): kind for name, kind in STORAGES.items()}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple
}  # fmt: skip
LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IGNORED = {"PROTO", "FRAME", "STOP"}


class _Pickle:
    """A pickle machine that can build containers, numbers, text and descriptions of tensors."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under the marks
        self.memo: dict[int, Any] = {}

    def follow(self, program: bytes) -> Any:
        """What the program leaves; `ValueError` for what is not known or damaged."""
        try:
            for instruction, argument, _ in pickletools.genops(program):
                self._step(instruction.name, argument)
            [result] = self.stack
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"damaged ({type(error).__name__}: {error})") from None
        return result

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(self._last(TUPLES[name]))]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            self.below.append(stack)
            self.stack = []
        elif name == "TUPLE":
            self._marked().append(tuple(stack))
        elif name in ("APPEND", "SETITEM"):
            count = 1 + (name == "SETITEM")
            items = self._last(count)
            del stack[-count:]
            self._fill(items)
        elif name in ("APPENDS", "SETITEMS"):
            self._marked()
            self._fill(stack)
        elif name == "GLOBAL":
            stack.append(_known(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_known(*self._last(2))]
        elif name == "BINPERSID":
            stack.append(_stored(stack.pop()))
        elif name == "REDUCE":
            what, given = self._last(2)
            if not isinstance(what, _Name) or what not in CALLS or not isinstance(given, tuple):
                raise ValueError(f"it calls {what}, which describes no tensor")
            stack[-2:] = [CALLS[what](*given)]
        elif name == "BUILD":
            stack.pop()  # what PyTorch notes about the modules beside the tensors
            if not isinstance(stack[-1], dict):
                raise ValueError(f"it changes a {type(stack[-1]).__name__}")
        elif name not in IGNORED:
            raise ValueError(f"it has the instruction {name}, which weights do not need")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("an empty stack")
        return self.stack[-count:]

    def _marked(self) -> list[Any]:
        """Back to the stack under the last mark."""
        self.stack = self.below.pop()
        return self.stack

    def _fill(self, items: list[Any]) -> None:
        """Put items into the container on the stack."""
        container = self.stack[-1]
        if isinstance(container, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                # A tuple of tuples of tuples can take for ever to hash.
                if not isinstance(key, str | int | float | bytes | None):
                    raise ValueError(f"a {type(key).__name__} as a key")
                container[key] = value
        elif isinstance(container, list):
            container += items
        else:
            raise ValueError(f"items for a {type(container).__name__}")


def _known(module: Any, name: Any) -> _Name:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a name that is no text")
    found = _Name(module, name)
    if found not in CALLS and found not in TYPES:
        raise ValueError(f"it names {found}, which describes no tensor")
    return found


def _stored(said: Any) -> _Storage:
    """A storage, from ("storage", type, key, device, count)."""
    if not isinstance(said, tuple) or len(said) != 5 or said[0] != "storage":
        raise ValueError("it refers to something that is no storage")
    _, kind, key, _, count = said
    if kind not in TYPES or not isinstance(key, str) or type(count) is not int:
        raise ValueError("a storage without type, name and size")
    return _Storage(TYPES[kind], key, count)


# --- the archive ----------------------------------------------------------------------------------


class _Ends(io.RawIOBase):
    """A file for `zipfile`: both ends are kept, and what lies between them is fetched."""

    def __init__(self, parts: AbstractBytes) -> None:
        self.parts, self.position = parts, 0
        self.head = parts.fetch(0, END)
        self.begin = max(len(self.head), parts.size - END)
        self.tail = parts.fetch(self.begin, parts.size - self.begin)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.parts.size}[whence]
        if start + offset < 0:
            raise OSError("a place before the file")
        self.position = start + offset
        return self.position

    def readinto(self, buffer: Any, /) -> int:
        found = self.at(self.position, len(buffer))
        buffer[: len(found)] = found
        self.position += len(found)
        return len(found)

    def at(self, start: int, count: int) -> bytes:
        """Bytes from `start` on, out of an end if they are all there."""
        count = max(0, min(count, self.parts.size - start))
        if count > LARGEST:
            raise ValueError(f"{count:,} bytes that are no numbers, needed at most {LARGEST:,}")
        if start + count <= len(self.head):
            return self.head[start : start + count]
        if start >= self.begin:
            return self.tail[start - self.begin :][:count]
        return self.parts.fetch(start, count)


class TorchArchive:
    """The members of a file of `torch.save`, and its tensors by name.

    - `parts`: the file. Its two ends are fetched at once, and the rest as far as it is read.
    """

    def __init__(self, parts: AbstractBytes) -> None:
        self.parts, self.label = parts, parts.label
        self.starts: dict[str, int] = {}  # where the bytes of a member begin
        ends = _Ends(parts)
        if not ends.head.startswith(b"PK\x03\x04"):
            raise CheckpointError(refusal(self.label))
        try:
            with zipfile.ZipFile(ends) as archive:
                self.members = archive.NameToInfo
        except CheckpointError:
            raise
        except Exception as error:  # damaged archives raise almost anything
            raise CheckpointError(
                f"{self.label}: truncated or damaged: its zip archive has no list of members "
                f"({error})"
            ) from None
        self._ends: _Ends | None = ends
        try:
            self.tensors = self._described()
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(
                f"{self.label}: its pickle cannot be read as weights alone: {error}. Nothing of it "
                f"was run; save the weights by themselves, torch.save(model.state_dict(), ...)"
            ) from None
        finally:
            self._ends = None

    def _described(self) -> dict[str, StoredTensor]:
        pickles = [m for m in self.members if m.endswith("/data.pkl") and m.count("/") == 1]
        if len(pickles) != 1:
            raise CheckpointError(
                f"{self.label}: a zip archive with {len(pickles)} members data.pkl, where "
                f"torch.save writes one; needed a file of torch.save, .safetensors or .npz"
            )
        self.prefix = pickles[0].removesuffix("data.pkl")
        order = f"{self.prefix}byteorder"
        if order in self.members and self.read(order, 0, 16) != b"little":
            raise CheckpointError(
                f"{self.label}: its numbers are big-endian, needed little-endian; load it with "
                f"PyTorch on a usual machine and save it again"
            )
        program = self.read(pickles[0], 0, self.members[pickles[0]].file_size)
        return tensors_of(
            _Pickle().follow(program), self.label, lambda value: isinstance(value, StoredTensor)
        )

    def values(self, name: str) -> np.ndarray:
        """A tensor; only the bytes from its first to its last number are fetched."""
        import ml_dtypes  # noqa: F401, it gives NumPy the type of bfloat16

        tensor = self.tensors[name]
        complaint = tensor.complaint()
        member = f"{self.prefix}data/{tensor.storage}"
        kind = np.dtype(tensor.kind)
        if complaint is None and member not in self.members:
            complaint = f"lies in {member}, which is not in the archive"
        if complaint is None and self.members[member].file_size != tensor.count * kind.itemsize:
            complaint = (
                f"lies in {member}, which has {self.members[member].file_size:,} bytes for "
                f"{tensor.count:,} numbers of type {tensor.kind}"
            )
        if complaint is not None:
            raise CheckpointError(f"{self.label}: tensor {name} {complaint}")
        size = kind.itemsize
        stored = self.read(member, tensor.offset * size, tensor.span * size)
        if len(stored) != tensor.span * size:
            raise CheckpointError(f"{self.label}: tensor {name} is truncated")
        if tensor.span == 0:
            return np.zeros(tensor.shape, kind)
        numbers = np.frombuffer(stored, kind)
        steps = [step * size for step in tensor.strides]
        return np.lib.stride_tricks.as_strided(numbers, tensor.shape, steps).copy()

    def read(self, member: str, begin: int, count: int) -> bytes:
        """Bytes of a member, with one request where it begins with them."""
        about = self.members[member]
        if about.compress_type != zipfile.ZIP_STORED or about.flag_bits & 1:
            raise CheckpointError(
                f"{self.label}: {member} is compressed or encrypted, and torch.save does neither; "
                f"unpack it and pack it again without (zip -0)"
            )
        if not 0 <= about.header_offset <= self.parts.size - about.file_size:
            raise CheckpointError(
                f"{self.label}: truncated or damaged: {member} ends beyond the file"
            )
        count = max(0, min(count, about.file_size - begin))
        fetch = self.parts.fetch if self._ends is None else self._ends.at
        if member in self.starts:
            return fetch(self.starts[member] + begin, count)
        ahead = HEADER.size + len(about.filename.encode()) + PADDING
        wanted = ahead + (begin + count if begin <= END else 0)
        first = fetch(about.header_offset, wanted)
        if len(first) < HEADER.size or not first.startswith(b"PK\x03\x04"):
            raise CheckpointError(f"{self.label}: {member} is not where the archive says it is")
        _, name, padding = HEADER.unpack_from(first)
        header = HEADER.size + name + padding
        self.starts[member] = about.header_offset + header
        found = first[header + begin :][:count]
        return found if len(found) == count else fetch(self.starts[member] + begin, count)
