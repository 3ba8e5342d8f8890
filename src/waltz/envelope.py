"""An envelope around the data of a transaction: names and values that travel with the data.

Owns its bytes. Nothing has an envelope unless its writer asked for one (`waltz.tracing`). Its first
byte is in no UTF-8 text and begins no MessagePack value, so the serializers for text, JSON and
MessagePack know an envelope from data, and leave it out.

    4 bytes   C1 57 5A 54
    1 byte    version: 1
    2 bytes   number of bytes that follow before the checksum, big-endian
    ...       lines `name:value`, ASCII
    4 bytes   CRC-32 of all bytes before
    ...       the data
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

MAGIC: Final = b"\xc1WZT"
VERSION: Final = 1
HEAD_BYTES: Final = len(MAGIC) + 3
CRC_BYTES: Final = 4

NAMES_BYTES_MAX: Final = 1024
"""Names and values of one envelope; if they are longer, the last ones are left out."""


class Opened(NamedTuple):
    """The names and values of an envelope, empty if there is none, and the data."""

    values: Mapping[str, str]
    data: bytes


def enclosed(values: Mapping[str, str], data: bytes) -> bytes:
    """Return `data` in an envelope with these names and values."""
    text = b""
    for name, value in values.items():
        line = f"{name}:{value}\n".encode("ascii", "replace")
        if len(text) + len(line) > NAMES_BYTES_MAX:
            break
        text += line
    head = MAGIC + bytes([VERSION]) + len(text).to_bytes(2, "big") + text
    return head + crc32(head).to_bytes(CRC_BYTES, "big") + data


def opened(data: bytes) -> Opened:
    """Take the envelope off, if there is one; of a later version its values are not known."""
    if not data.startswith(MAGIC):
        return Opened({}, data)
    end = HEAD_BYTES + int.from_bytes(data[len(MAGIC) + 1 : HEAD_BYTES], "big")
    begin = end + CRC_BYTES
    if len(data) < begin or crc32(data[:end]) != int.from_bytes(data[end:begin], "big"):
        return Opened({}, data)
    values: dict[str, str] = {}
    if data[len(MAGIC)] == VERSION:
        for line in data[HEAD_BYTES:end].decode("ascii", "replace").splitlines():
            name, _, value = line.partition(":")
            values[name] = value
    return Opened(values, data[begin:])


def payload(data: bytes) -> bytes:
    """Return the data without its envelope, if it has one."""
    return opened(data).data if data.startswith(MAGIC) else data
