"""Revisions of a model on the Hugging Face Hub: the tensors asked for, and nothing kept.

Needs the optional package `huggingface_hub`. Only safetensors files and settings are read. Where
the server sends parts of a file, only the tensors asked for are read (`RemoteFile`). From a server
that sends whole files only, they are downloaded, one revision at a time, and deleted.
"""

import contextlib
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
    PICKLES,
    STORED,
    AbstractSource,
    CheckpointError,
    Shards,
    open_checkpoint,
    read_json,
    widen,
)
from iclflow.checkpoints.series import Checkpoint, step_of
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


class RemoteFile(AbstractSource):
    """One safetensors file by its address; `NoRangesError` where only all of it can be had."""

    def __init__(
        self, url: str, headers: Mapping[str, str], label: str, config: Mapping[str, Any]
    ) -> None:
        self.url, self.headers, self.label, self.config = url, dict(headers), label, config
        self.size = FIRST  # of the file: what the first answer says
        begin = self._fetch(0, FIRST)
        try:
            size = struct.unpack("<Q", begin[:8])[0]
            if size > HEADER:
                raise ValueError(f"a header of {size:,} bytes")
            if len(begin) < 8 + size <= self.size:
                begin += self._fetch(len(begin), 8 + size - len(begin))
            if 8 + size > len(begin):
                raise ValueError(f"a header of {size:,} bytes in a file of {self.size:,}")
            self.entries: dict[str, Any] = parse_json(begin[8 : 8 + size].decode(), "header")
            self.entries.pop("__metadata__", None)
            for name, entry in self.entries.items():
                _check_entry(name, entry, self.size - 8 - size)
        except (struct.error, ValueError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{label}: truncated or not a safetensors file ({error})"
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
        values = self._fetch(self.start + begin, end - begin)
        if len(values) != end - begin:
            raise CheckpointError(f"{self.label}: tensor {name} is truncated")
        return widen(np.frombuffer(values, kind).reshape(entry["shape"]))

    def where(self, name: str) -> str:
        return self.label

    def _fetch(self, start: int, count: int) -> bytes:
        if count == 0:
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


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def hub_series(
    repository: str,
    revisions: Sequence[str],
    *,
    token: str | None = None,
    folder: str | Path | None = None,
) -> list[Checkpoint]:
    """A series from revisions such as `step0`, `step512` of `EleutherAI/pythia-70m`.

    Only the tensors that are measured are transferred, where the server sends parts of files.
    Otherwise a revision is on disk while its checkpoint is open, in a temporary folder (under
    `folder` if given): at most two at once in `measure_series`, the current and the reference.

    - `repository`, `revisions`: what is read; nothing is transferred before a checkpoint is opened.
    - `token`: of the Hub, for what is not public.

    >>> import iclflow as icl
    >>> series = icl.checkpoints.hub_series("EleutherAI/pythia-70m", ["step0", "step512"])
    >>> [checkpoint.step for checkpoint in series]
    [0, 512]
    """
    _hub()
    found = []
    for position, revision in enumerate(revisions):
        step = step_of(revision)
        found.append(
            Checkpoint(
                position if step is None else step,
                f"{repository}@{revision}",
                _Opener(repository, revision, token, folder),
            )
        )
    steps = [checkpoint.step for checkpoint in found]
    if len(set(steps)) < len(steps):
        raise CheckpointError(f"{repository}: two revisions have the same step: {revisions}")
    return sorted(found, key=lambda checkpoint: checkpoint.step)


class _Opener:
    """Reads where the files lie, or downloads them on entry and deletes them on exit."""

    def __init__(
        self, repository: str, revision: str, token: str | None, folder: str | Path | None
    ) -> None:
        self.repository, self.revision = repository, revision
        self.token, self.folder = token, folder

    @contextlib.contextmanager
    def __call__(self) -> Iterator[AbstractSource]:
        target = Path(tempfile.mkdtemp(prefix="iclflow-", dir=self.folder))
        try:
            listed = self._ask("list_repo_files", self.repository)
            if "config.json" in listed:
                self._fetch("config.json", target)
            shards, single = self._files(listed, target)
            try:
                source = self._remote(shards, single, target)
            except NoRangesError:
                for name in single or sorted(set(shards.values())):
                    self._fetch(name, target)
                source = open_checkpoint(target)
            yield source
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _files(self, listed: list[str], target: Path) -> tuple[dict[str, str], list[str]]:
        """Tensor -> file where an index says, or else the files."""
        if INDEX in listed:
            where = f"{self.repository}@{self.revision} {INDEX}"
            try:
                index = read_object(Path(self._fetch(INDEX, target)))
                files = field(index, "weight_map", dict, where)
                # The name as it is in the repository, after the check that it stays there.
                return {t: str(inside(Path(), name, where)) for t, name in files.items()}, []
            except ValueError as error:
                raise CheckpointError(str(error)) from None
        found = [name for name in listed if name.endswith(".safetensors") and "/" not in name]
        found = [SINGLE] if SINGLE in found else found
        if not found:
            pickles = [name for name in listed if name.endswith(PICKLES)]
            raise CheckpointError(
                f"{self.repository}@{self.revision}: no safetensors file"
                + (f", only pickles ({', '.join(pickles)}), which are refused" if pickles else "")
                + "; look for a revision with model.safetensors, or download and convert it"
            )
        return {}, found

    def _remote(self, shards: dict[str, str], single: list[str], target: Path) -> AbstractSource:
        config = read_json(target / "config.json") if (target / "config.json").exists() else {}
        headers = _hub(".utils").build_hf_headers(token=self.token)

        def opened(name: str) -> RemoteFile:
            url = _hub().hf_hub_url(self.repository, name, revision=self.revision)
            label = f"{self.repository}@{self.revision} {name}"
            return RemoteFile(url, headers, label, config)

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
            what = f"{self.repository}@{self.revision}"
            file = f" {names[1]}" if len(names) > 1 else ""
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise CheckpointError(f"{what}{file}: {first[0]}") from error


def _hub(part: str = "") -> Any:
    try:
        return importlib.import_module(f"huggingface_hub{part}")
    except ImportError:
        raise CheckpointError(
            "reading from the Hugging Face Hub needs the package huggingface_hub; "
            "pip install 'iclflow[hub]'"
        ) from None
