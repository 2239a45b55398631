"""Scalars of TensorBoard's event files, read without TensorBoard.

A file is a row of records: length (8 bytes), checksum (4 bytes), an `Event` message of protobuf,
checksum. Of an `Event` we need field 2, the step, and field 5, the summary: a list of values with a
tag, field 1, and a number, as a float in field 2 or inside a tensor in field 8.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from iclflow.results.reading import LOG, read_bytes

FIXED = {1: 8, 5: 4}  # bytes of the wire types of fixed size


def _table(polynomial: int) -> tuple[int, ...]:
    """The remainders of all bytes, by which a checksum goes a byte at a time."""
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


CASTAGNOLI = _table(0x82F63B78)  # of CRC-32C, bits reversed
TYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8")}  # of a tensor: DT_FLOAT, DT_DOUBLE


def read_events(path: Path | str) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) in the order written; a record that is still being written ends it."""
    found: dict[str, list[tuple[int, float]]] = {}
    content = read_bytes(path, LOG)
    place = 0
    while place + 12 <= len(content):
        length, checked = struct.unpack_from("<QI", content, place)
        if masked_crc(content[place : place + 8]) != checked:
            raise ValueError(
                f"{path}: damaged, or not an event file of TensorBoard: the checksum of a length "
                f"at byte {place} does not fit"
            )
        record = content[place + 12 : place + 12 + length]
        if len(content) < place + 16 + length:
            break
        (checked,) = struct.unpack_from("<I", content, place + 12 + length)
        if masked_crc(record) != checked:
            raise ValueError(
                f"{path}: damaged: the checksum of the record at byte {place} does not fit"
            )
        place += 16 + length
        try:
            for tag, step, value in _scalars(record):
                found.setdefault(tag, []).append((step, value))
        except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"{path}: not an event file of TensorBoard ({error})") from None
    return found


def masked_crc(data: bytes) -> int:
    """The checksum of TensorBoard's records: CRC-32C, rotated by 15 bits, plus a constant.

    The mask is there because a checksum of data that hold checksums is weak.
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CASTAGNOLI[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _scalars(event: bytes) -> Iterator[tuple[str, int, float]]:
    fields = list(_fields(event))
    step = next((value for number, value in fields if number == 2), 0)
    for number, summary in fields:
        if number != 5 or not isinstance(summary, bytes):
            continue
        for inner, value in _fields(summary):
            if inner == 1 and isinstance(value, bytes):
                tag, number_found = _value(value)
                if number_found is not None:
                    yield tag, int(step), number_found  # pyright: ignore[reportArgumentType]


def _value(message: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (found,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            found = _tensor(value)
    return tag, found


def _tensor(message: bytes) -> float | None:
    """The one number of a tensor; None if it is no number, or several."""
    fields = dict(_fields(message))
    kind = TYPES.get(fields.get(1))  # pyright: ignore[reportArgumentType, reportCallIssue]
    if kind is None:
        return None
    # as bytes (4), or in a list of floats (5) or doubles (6)
    content = next((fields[n] for n in (4, 5, 6) if isinstance(fields.get(n), bytes)), b"")
    values = np.frombuffer(content, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return float(values[0]) if values.size == 1 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of every field: a whole number, or bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in FIXED:
            size = FIXED[kind]
        else:
            raise ValueError(f"field of type {kind}")
        if place + size > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
