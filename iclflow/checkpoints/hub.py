"""Checkpoints of a model on the Hugging Face Hub: the tensors asked for, and nothing kept.

Needs the optional package `huggingface_hub`. Files of safetensors and of `torch.save` are read, and
settings. Where the server sends parts of a file, only the tensors asked for are transferred
(`RemoteBytes`), each once as long as its checkpoint is open. From a server that sends whole files
only, they are downloaded, one checkpoint at a time, and deleted.
"""

import contextlib
import dataclasses
import fnmatch
import http.client
import importlib
import math
import re
import shutil
import struct
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.checkpoints.files import (
    STORED,
    TORCH,
    AbstractSource,
    CheckpointError,
    Shards,
    TorchFile,
    open_checkpoint,
    read_json,
    torch_weights,
    widen,
)
from iclflow.checkpoints.series import Checkpoint, step_of
from iclflow.checkpoints.torch_files import AbstractBytes
from iclflow.results.files import field, inside, parse_json, read_object

FIRST = 2**16  # bytes of the first request, which most headers fit in
HEADER = 10**8  # bytes of a header at most, as the format has it
PART = re.compile(r"bytes (\d{1,18})-\d+/(\d{1,18})")  # which part of how many bytes an answer has
PATIENCE = 60.0  # seconds for the server to answer
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def _check_entry(name: str, entry: Any, size: int) -> None:
    """Refuse what the header says of one tensor unless it has a type, a shape and a place.

    - `size`: the bytes of all tensors, among which its place must be.
    """
    shape, place = (field(entry, key, list, name) for key in ("shape", "data_offsets"))
    if not all(type(n) is int and n >= 0 for n in (*shape, *place)) or len(place) != 2:
        raise ValueError(f"tensor {name} has no shape and place of whole numbers")
    if not place[0] <= place[1] <= size:
        raise ValueError(f"tensor {name} lies at bytes {place[0]} to {place[1]} of {size:,}")
    kind = TYPES.get(field(entry, "dtype", str, name))
    if kind is not None and place[1] - place[0] != math.prod(shape) * BYTES[kind]:
        raise ValueError(f"tensor {name} has {place[1] - place[0]} bytes, its shape is {shape}")


class NoRangesError(CheckpointError):
    """The server sends whole files only."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to where the file lies, without taking the token to another host or in the clear."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        before, after = (urllib.parse.urlsplit(url)[:2] for url in (req.full_url, newurl))
        if new is not None and before != after:
            new.remove_header("Authorization")
        return new


class RemoteBytes(AbstractBytes):
    """A file by its address; `NoRangesError` where only all of it can be had.

    - `url`, `headers`: what is asked, and how.
    - `label`: what the file is called in messages.
    """

    def __init__(self, url: str, headers: Mapping[str, str], label: str) -> None:
        self.url, self.headers, self.label = url, dict(headers), label
        self.size = FIRST  # until the first answer says it

    def fetch(self, start: int, count: int) -> bytes:
        if count <= 0:
            return b""
        span = {"Range": f"bytes={start}-{start + count - 1}"}
        request = urllib.request.Request(self.url, headers=self.headers | span)
        try:
            opener = urllib.request.build_opener(_Redirects)
            with opener.open(request, timeout=PATIENCE) as answer:
                part = PART.fullmatch(answer.headers.get("Content-Range", ""))
                # A part that does not say which one it is may be another than was asked for.
                if answer.status != 206 or part is None or int(part[1]) != start:
                    raise NoRangesError(f"{self.label}: the server sends whole files only")
                self.size = int(part[2])
                return answer.read(count)
        except NoRangesError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            said = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise CheckpointError(f"{self.label}: {said[0]}") from None


class RemoteFile(AbstractSource):
    """One safetensors file of which parts can be had."""

    def __init__(self, parts: AbstractBytes, config: Mapping[str, Any]) -> None:
        self.parts, self.label, self.config = parts, parts.label, config
        begin = parts.fetch(0, FIRST)
        try:
            size = struct.unpack("<Q", begin[:8])[0]
            if size > HEADER:
                raise ValueError(f"a header of {size:,} bytes")
            if len(begin) < 8 + size <= parts.size:
                begin += parts.fetch(len(begin), 8 + size - len(begin))
            if 8 + size > len(begin):
                raise ValueError(f"a header of {size:,} bytes in a file of {parts.size:,}")
            self.entries: dict[str, Any] = parse_json(begin[8 : 8 + size].decode(), "header")
            self.entries.pop("__metadata__", None)
            for name, entry in self.entries.items():
                _check_entry(name, entry, parts.size - 8 - size)
        except (struct.error, ValueError, AttributeError, TypeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"{self.label}: truncated or not a safetensors file ({error})"
            ) from None
        self.start = 8 + size

    def names(self) -> list[str]:
        return list(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.entries[name]["shape"])

    def read(self, name: str) -> np.ndarray:
        import ml_dtypes  # noqa: F401, it gives NumPy the type of BF16

        entry = self.entries[name]
        if entry["dtype"] not in STORED:
            raise CheckpointError(
                f"{self.label}: tensor {name} has type {entry['dtype']}, needed one of "
                f"{', '.join(STORED)}"
            )
        begin, end = entry["data_offsets"]
        kind = np.dtype(TYPES[entry["dtype"]])
        values = self.parts.fetch(self.start + begin, end - begin)
        if len(values) != end - begin:
            raise CheckpointError(f"{self.label}: tensor {name} is truncated")
        return widen(np.frombuffer(values, kind).reshape(entry["shape"]))

    def where(self, name: str) -> str:
        return self.label


class _Kept(AbstractSource):
    """A checkpoint on a server whose tensors are transferred once: then they are on the disk.

    - `folder`: where, until it is deleted with all that is in it.
    """

    def __init__(self, source: AbstractSource, folder: Path) -> None:
        self.source, self.folder, self.config = source, folder, source.config
        self.files: dict[str, Path] = {}

    def names(self) -> list[str]:
        return self.source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(name)

    def read(self, name: str) -> np.ndarray:
        if name not in self.files:
            file = self.folder / f"tensor-{len(self.files)}.npy"
            np.save(file, self.source.read(name))
            self.files[name] = file
        return np.load(self.files[name])

    def where(self, name: str) -> str:
        return self.source.where(name)


INDEX, TORCH_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
SINGLE, TORCH_SINGLE = "model.safetensors", "pytorch_model.bin"


def hub_series(
    repository: str,
    revisions: Sequence[str] = ("main",),
    *,
    files: Sequence[str] | None = None,
    token: str | None = None,
    folder: str | Path | None = None,
) -> list[Checkpoint]:
    """A series from revisions such as `step0`, `step512` of `EleutherAI/pythia-70m`, or from files.

    Only the tensors that are measured are transferred, where the server sends parts of files.
    Otherwise a checkpoint is on disk while it is open, in a temporary folder (under `folder` if
    given): at most two at once in `measure_series`, the current and the reference.

    - `repository`: the name of the model.
    - `revisions`: branches, tags or commits, one for each checkpoint.
    - `files`: names or patterns such as `checkpoints/*.pth`, for repositories that keep all
      checkpoints in one revision. The step is the number in a file's name. The repository is asked
      for its list of files at once; otherwise nothing is transferred before a checkpoint is opened.
    - `token`: of the Hub, for what is not public.

    >>> import iclflow as icl
    >>> series = icl.checkpoints.hub_series("EleutherAI/pythia-70m", ["step0", "step512"])
    >>> [checkpoint.step for checkpoint in series]
    [0, 512]
    """
    _hub()
    found = []
    if files is not None:
        if len(revisions) != 1:
            said = ", ".join(revisions) or "none"
            raise CheckpointError(f"{repository}: files of one revision at a time, got {said}")
        whole = _Opener(repository, revisions[0], token, folder)
        found = [
            Checkpoint(step, f"{whole.label} {name}", dataclasses.replace(whole, file=name))
            for step, name in whole.steps(files)
        ]
    else:
        for position, revision in enumerate(revisions):
            step = step_of(revision)
            opener = _Opener(repository, revision, token, folder)
            found.append(Checkpoint(position if step is None else step, opener.label, opener))
    steps = [checkpoint.step for checkpoint in found]
    twice = sorted({step for step in steps if steps.count(step) > 1})
    if twice:
        both = [checkpoint.label for checkpoint in found if checkpoint.step == twice[0]]
        raise CheckpointError(f"step {twice[0]} appears more than once: {', '.join(both)}")
    return sorted(found, key=lambda checkpoint: checkpoint.step)


@dataclasses.dataclass(frozen=True)
class _Opener:
    """Reads where the files lie, or downloads them on entry and deletes them on exit.

    - `file`: the checkpoint in the revision; None if the revision is one.
    """

    repository: str
    revision: str
    token: str | None = None
    folder: str | Path | None = None
    file: str | None = None

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return f"{self.repository}@{self.revision}"

    @contextlib.contextmanager
    def __call__(self) -> Iterator[AbstractSource]:
        target = Path(tempfile.mkdtemp(prefix="iclflow-", dir=self.folder))
        try:
            listed = self.listed()
            if "config.json" in listed:
                self._fetch("config.json", target)
            shards, single = self._files(listed, target) if self.file is None else ({}, [self.file])
            try:
                source = _Kept(self._remote(shards, single, target), target)
            except NoRangesError:
                for name in single or sorted(set(shards.values())):
                    self._fetch(name, target)
                source = open_checkpoint(target if self.file is None else target / self.file)
            yield source
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def steps(self, patterns: Sequence[str]) -> list[tuple[int, str]]:
        """The files that match one of the patterns, each with the number in its name."""
        listed = self.listed()
        found = [n for n in listed if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
        if not found:
            weights = [n for n in listed if n.endswith((".safetensors", *TORCH))]
            raise CheckpointError(
                f"{self.label}: no file matches {', '.join(patterns)}; there are "
                f"{len(weights)} files of weights, {', '.join(weights[:3]) or 'none'}"
            )
        steps = [(step_of(Path(name).name), name) for name in found]
        without = next((name for step, name in steps if step is None), None)
        if without is not None:
            raise CheckpointError(f"{self.label} {without}: no step in the name; leave it out")
        return [(step, name) for step, name in steps if step is not None]

    def listed(self) -> list[str]:
        """The names of the files of the revision."""
        return self._ask("list_repo_files", self.repository)

    def _files(self, listed: list[str], target: Path) -> tuple[dict[str, str], list[str]]:
        """Tensor -> file where an index says, or else the files."""
        safe = [name for name in listed if name.endswith(".safetensors") and "/" not in name]
        index = next((name for name in (INDEX, TORCH_INDEX) if name in listed), None)
        if index is not None and not (index == TORCH_INDEX and safe):
            where = f"{self.label} {index}"
            try:
                said = read_object(Path(self._fetch(index, target)))
                files = field(said, "weight_map", dict, where)
                # The name as it is in the repository, after the check that it stays there.
                return {t: str(inside(Path(), name, where)) for t, name in files.items()}, []
            except ValueError as error:
                raise CheckpointError(str(error)) from None
        if safe:
            return {}, [SINGLE] if SINGLE in safe else safe
        found = torch_weights(name for name in listed if "/" not in name)
        found = [TORCH_SINGLE] if TORCH_SINGLE in found else found
        if len(found) != 1:
            raise CheckpointError(
                f"{self.label}: no model.safetensors and no single file of torch.save"
                + (f" ({', '.join(found[:4])})" if found else "")
                + "; look for a revision that has one, or name the files (files=, --files)"
            )
        return {}, found

    def _remote(self, shards: dict[str, str], single: list[str], target: Path) -> AbstractSource:
        config = read_json(target / "config.json") if (target / "config.json").exists() else {}
        headers = _hub(".utils").build_hf_headers(token=self.token)

        def opened(name: str) -> AbstractSource:
            url = _hub().hf_hub_url(self.repository, name, revision=self.revision)
            parts = RemoteBytes(url, headers, f"{self.label} {name}")
            kind = RemoteFile if name.endswith(".safetensors") else TorchFile
            return kind(parts, config)

        if len(single) == 1:
            return opened(single[0])
        sources = {name: opened(name) for name in single or sorted(set(shards.values()))}
        files = shards or {t: name for name, source in sources.items() for t in source.names()}
        return Shards(files, sources.__getitem__, config)

    def _fetch(self, name: str, target: Path) -> str:
        return self._ask("hf_hub_download", self.repository, name, local_dir=target)

    def _ask(self, function: str, *names: str, **options: Any) -> Any:
        try:
            return getattr(_hub(), function)(
                *names, revision=self.revision, token=self.token, **options
            )
        except Exception as error:  # any error of the network or the service
            file = f" {names[1]}" if len(names) > 1 else ""
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise CheckpointError(f"{self.label}{file}: {first[0]}") from error


def _hub(part: str = "") -> Any:
    try:
        return importlib.import_module(f"huggingface_hub{part}")
    except ImportError:
        raise CheckpointError(
            "reading from the Hugging Face Hub needs the package huggingface_hub; "
            "pip install 'iclflow[hub]'"
        ) from None
