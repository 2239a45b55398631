"""A safetensors file on a server that sends parts of it: only the tensors asked for are read."""

import math
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np

from iclflow.checkpoints.files import STORED, AbstractSource, CheckpointError, widen
from iclflow.results.reading import field, parse_json

FIRST = 2**16  # bytes of the first request, which most headers fit in
HEADER = 10**8  # bytes of a header at most, as the format has it
PATIENCE = 60.0  # seconds for the server to answer
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _check_entry(name: str, entry: Any) -> None:
    """Refuse what the header says of one tensor unless it has a type, a shape and a place."""
    numbers = [*field(entry, "shape", list, name), *field(entry, "data_offsets", list, name)]
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or len(entry["data_offsets"]) != 2:
        raise ValueError(f"tensor {name} has no shape and place of whole numbers")
    field(entry, "dtype", str, name)


class NoRangesError(CheckpointError):
    """The server sends whole files only."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to where the file lies, without taking the token to another host."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        hosts = [urllib.parse.urlsplit(url).netloc for url in (req.full_url, newurl)]
        if new is not None and hosts[0] != hosts[1]:
            new.remove_header("Authorization")
        return new


class RemoteFile(AbstractSource):
    """One safetensors file by its address; `NoRangesError` where only all of it can be had."""

    def __init__(
        self, url: str, headers: Mapping[str, str], label: str, config: Mapping[str, Any]
    ) -> None:
        self.url, self.headers, self.label, self.config = url, dict(headers), label, config
        begin = self._fetch(0, FIRST)
        try:
            size = struct.unpack("<Q", begin[:8])[0]
            if size > HEADER:
                raise ValueError(f"a header of {size:,} bytes")
            if 8 + size > len(begin):
                begin += self._fetch(len(begin), 8 + size - len(begin))
            self.entries: dict[str, Any] = parse_json(begin[8 : 8 + size].decode(), "header")
            self.entries.pop("__metadata__", None)
            for name, entry in self.entries.items():
                _check_entry(name, entry)
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
        if len(values) != math.prod(entry["shape"]) * kind.itemsize:
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
                if answer.status != 206:
                    raise NoRangesError(f"{self.label}: the server sends whole files only")
                return answer.read(count)
        except NoRangesError:
            raise
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.label}: {error}") from None
