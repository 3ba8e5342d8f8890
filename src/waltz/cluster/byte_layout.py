"""Byte layouts that metadata has and messages lack: versions, Java's texts, named parts.

A layout is declared once per value and writes, reads and describes it. As in the original, bytes
after a value are ignored. Knows nothing of the meaning of the values.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import METADATA_ENTRIES_MAX
from waltz.wire.fields import BYTE, AnyField, ListOf, Number, Reader


class Constant:
    """A number that must have one value: a magic or a version. It is not part of the tuple."""

    def __init__(self, number: Number, expected: int) -> None:
        self.name = f"{number.name} {expected}"
        self.size_min = number.size_min
        self._number = number
        self._expected = expected

    def write(self, parts: list[bytes]) -> None:
        self._number.write(parts, self._expected)

    def check(self, reader: Reader) -> None:
        start = reader.position
        found = self._number.read(reader)
        if found != self._expected:
            raise RemoteProtocolError(
                f"{found} at byte {start} of metadata; expected {self._expected}"
            )


VERSION_1: Final = Constant(BYTE, 1)
VERSION_3: Final = Constant(BYTE, 3)


class JavaText:
    """Modified UTF-8 after its length in two bytes."""

    name = "Java text"
    size_min = 2
    _length = Number("unsigned short", "H")

    def write(self, parts: list[bytes], value: str) -> None:
        data = encode_modified_utf8(value)
        self._length.write(parts, len(data))
        parts.append(data)

    def read(self, reader: Reader) -> str:
        return decode_modified_utf8(reader.take(self._length.read(reader)))


JAVA_TEXT: Final = JavaText()


class Parts:
    """Consecutive named parts as a tuple; constants are left out of the tuple."""

    def __init__(self, *parts: tuple[str, AnyField | Constant]) -> None:
        self.parts = parts
        self.name = f"({', '.join(f'{name}: {field.name}' for name, field in parts)})"
        self.size_min = sum(field.size_min for _, field in parts)

    def write(self, parts: list[bytes], value: tuple[Any, ...]) -> None:
        remaining = iter(value)
        for _, field in self.parts:
            if isinstance(field, Constant):
                field.write(parts)
            else:
                field.write(parts, next(remaining))

    def read(self, reader: Reader) -> tuple[Any, ...]:
        found = []
        for _, field in self.parts:
            if isinstance(field, Constant):
                field.check(reader)
            else:
                found.append(field.read(reader))
        return tuple(found)

    def encode(self, *value: Any) -> bytes:
        """Return the bytes. Raises LocalProtocolError: a number or a text does not fit its
        field."""
        parts: list[bytes] = []
        try:
            self.write(parts, value)
        except struct.error as error:
            raise LocalProtocolError(f"{value!r} cannot be encoded as metadata: {error}") from error
        return b"".join(parts)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the values. Raises RemoteProtocolError: cut short, a wrong version, a count over
        its limit."""
        return self.read(Reader(data))


def entries(*parts: tuple[str, AnyField | Constant]) -> ListOf[tuple[Any, ...]]:
    """Return the layout of a count and that many entries of these parts."""
    return ListOf(Parts(*parts), METADATA_ENTRIES_MAX)


def encode_modified_utf8(text: str) -> bytes:
    """Return Java's form: U+0000 in two bytes, characters above U+FFFF as two surrogates."""
    units = text.encode("utf-16-be", "surrogatepass")
    characters = map(chr, struct.unpack(f">{len(units) // 2}H", units))
    return "".join(characters).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def decode_modified_utf8(data: bytes) -> str:
    """Return the text in `data`. Raises RemoteProtocolError: it is not modified UTF-8."""
    if data and max(data) >= 0xF0:
        raise RemoteProtocolError("text in metadata is not modified UTF-8: a four-byte character")
    try:
        text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise RemoteProtocolError(f"text in metadata is not modified UTF-8: {error}") from error
