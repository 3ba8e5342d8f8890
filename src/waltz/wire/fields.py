"""Encodings of the fields of messages: per field one object that writes it and reads it.

Owns the encodings that all protocols share. Knows no message. A length that arrives is judged
against what remains and against its limit before anything is allocated for it. Big-endian, two's
complement. Source: Client-Server Communication, "Message Format"; the encodings are those of the
Java original.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX, PARTITIONS_MAX, TEXT_BYTES_MAX
from waltz.types import RequestId

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
E = TypeVar("E", bound=IntEnum)

_INT = struct.Struct(">i")
_REQUEST_ID = struct.Struct(">iiii")


class Reader:
    """A cursor over the bytes of one message; it never passes their end."""

    __slots__ = ("body", "end", "position")

    def __init__(self, body: bytes, position: int = 0) -> None:
        self.body = body
        self.position = position
        self.end = len(body)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Raises RemoteProtocolError: the message ends before."""
        start = self.position
        if self.end - start < layout.size:
            raise self._cut_short(layout.size)
        self.position = start + layout.size
        return layout.unpack_from(self.body, start)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, which must not be negative.

        Raises RemoteProtocolError: fewer remain.
        """
        start = self.position
        if self.end - start < size:
            raise self._cut_short(size)
        self.position = start + size
        return self.body[start : start + size]

    def count(self, count_max: int, size_min: int) -> int:
        """Read how many elements follow, each of at least `size_min` bytes.

        Raises RemoteProtocolError: negative, above its limit, or more than can follow.
        """
        (count,) = self.unpack(_INT)
        if not 0 <= count <= count_max:
            raise RemoteProtocolError(
                f"count {count} at byte {self.position - 4}; expected 0 to {count_max}"
            )
        if count * size_min > self.end - self.position:
            raise RemoteProtocolError(
                f"{count} elements at byte {self.position - 4} need {count * size_min} bytes;"
                f" {self.end - self.position} remain"
            )
        return int(count)

    def expect_end(self) -> None:
        """Raises RemoteProtocolError: bytes are left over, so fields can never be appended."""
        if self.position != self.end:
            raise RemoteProtocolError(
                f"{self.end - self.position} bytes left over; expected {self.position}"
                f" bytes, found {self.end}"
            )

    def _cut_short(self, size: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{size} bytes expected at byte {self.position}; {self.end - self.position} remain"
        )


class Field(Protocol[T]):
    """An encoding. `size_min` is the fewest bytes of a value, `name` is for the format tables."""

    @property
    def name(self) -> str: ...

    @property
    def size_min(self) -> int: ...

    def write(self, parts: list[bytes], value: T) -> None:
        """Append the bytes of `value`. Raises LocalProtocolError or struct.error: out of range."""
        ...

    def read(self, reader: Reader) -> T:
        """Raises RemoteProtocolError: cut short, out of range, over a limit."""
        ...


AnyField: TypeAlias = Field[Any]


def check_size(size: int, size_max: int) -> None:
    """Raises LocalProtocolError: more bytes or elements than a peer would take."""
    if size > size_max:
        raise LocalProtocolError(f"{size} bytes or elements; expected at most {size_max}")


class Number:
    """An integer of fixed size; `letter` is that of `struct`."""

    def __init__(self, name: str, letter: str) -> None:
        self.name = name
        self.letter = letter
        self._layout = struct.Struct(f">{letter}")
        self.size_min = self._layout.size

    def write(self, parts: list[bytes], value: int) -> None:
        parts.append(self._layout.pack(value))

    def read(self, reader: Reader) -> int:
        return int(reader.unpack(self._layout)[0])


class Row:
    """Integers of fixed size side by side, as one call packs and unpacks them."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        layout = struct.Struct(">" + "".join(number.letter for number in numbers))
        self._size = layout.size
        self._pack, self._unpack_from = layout.pack, layout.unpack_from

    def write(self, parts: list[bytes], value: tuple[int, ...]) -> None:
        parts.append(self._pack(*value))

    def read(self, reader: Reader) -> tuple[int, ...]:
        """Raises RemoteProtocolError: cut short."""
        start = reader.position
        end = reader.position = start + self._size
        if end > reader.end:
            raise RemoteProtocolError(f"{self._size} bytes expected at byte {start}")
        return self._unpack_from(reader.body, start)


class Boolean:
    """One byte. Exactly 1 is true; every other value is false, as in the original."""

    name = "boolean"
    size_min = 1

    def write(self, parts: list[bytes], value: bool) -> None:
        parts.append(b"\x01" if value else b"\x00")

    def read(self, reader: Reader) -> bool:
        return reader.take(1) == b"\x01"


class Enumeration(Generic[E]):
    """A member of an enumeration as an int."""

    size_min = 4

    def __init__(self, kind: type[E]) -> None:
        self.name = "int: " + ", ".join(f"{member.value} {member.name}" for member in kind)
        self._kind = kind

    def write(self, parts: list[bytes], value: E) -> None:
        parts.append(_INT.pack(value))

    def read(self, reader: Reader) -> E:
        (value,) = reader.unpack(_INT)
        try:
            return self._kind(value)
        except ValueError:
            raise RemoteProtocolError(
                f"{self._kind.__name__} {value} at byte {reader.position - 4};"
                f" expected one of {[member.value for member in self._kind]}"
            ) from None


class UniqueId:
    """A UUID: its 16 bytes in textual order."""

    name = "UUID"
    size_min = 16

    def write(self, parts: list[bytes], value: UUID) -> None:
        parts.append(value.bytes)

    def read(self, reader: Reader) -> UUID:
        return UUID(bytes=reader.take(16))


class RequestIdentity:
    """A request ID: client ID, generation, partition ID, sequence number, four ints."""

    name = "request ID"
    size_min = 16

    def write(self, parts: list[bytes], value: RequestId) -> None:
        parts.append(_REQUEST_ID.pack(*value))

    def read(self, reader: Reader) -> RequestId:
        return RequestId._make(reader.unpack(_REQUEST_ID))


class Blob:
    """Bytes after their length; never null."""

    size_min = 4

    def __init__(self, name: str, size_max: int) -> None:
        self.name = name
        self._size_max = size_max

    def write(self, parts: list[bytes], value: bytes) -> None:
        check_size(len(value), self._size_max)
        parts += (_INT.pack(len(value)), value)

    def read(self, reader: Reader) -> bytes:
        return reader.take(reader.count(self._size_max, 1))


class Text:
    """UTF-8 after its length in bytes; never null."""

    name = "text"
    size_min = 4

    def write(self, parts: list[bytes], value: str) -> None:
        # What UTF-8 cannot express becomes a question mark, as in the original: a file name with
        # odd bytes must not keep an error message from being sent.
        data = value.encode("utf-8", "replace")
        check_size(len(data), TEXT_BYTES_MAX)
        parts += (_INT.pack(len(data)), data)

    def read(self, reader: Reader) -> str:
        start = reader.position
        data = reader.take(reader.count(TEXT_BYTES_MAX, 1))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(
                f"text at byte {start} is not UTF-8: {error.reason} at its byte {error.start}"
            ) from None


class NullableText:
    """Text, or None as length -1; every negative length reads as None, as in the original."""

    name = "text or null"
    size_min = 4

    def write(self, parts: list[bytes], value: str | None) -> None:
        if value is None:
            parts.append(_INT.pack(-1))
        else:
            TEXT.write(parts, value)

    def read(self, reader: Reader) -> str | None:
        (length,) = reader.unpack(_INT)
        if length < 0:
            return None
        reader.position -= 4
        return TEXT.read(reader)


class LenientText:
    """Text that the original may send as null; null reads as empty and is never written."""

    name = "text (null reads as empty)"
    size_min = 4

    def write(self, parts: list[bytes], value: str) -> None:
        TEXT.write(parts, value)

    def read(self, reader: Reader) -> str:
        return NULLABLE_TEXT.read(reader) or ""


class Optional(Generic[T]):
    """A boolean, and the value if that is true; None if not."""

    size_min = 1

    def __init__(self, field: Field[T]) -> None:
        self.name = f"boolean, then {field.name} if true"
        self._field = field

    def write(self, parts: list[bytes], value: T | None) -> None:
        BOOLEAN.write(parts, value is not None)
        if value is not None:
            self._field.write(parts, value)

    def read(self, reader: Reader) -> T | None:
        return self._field.read(reader) if BOOLEAN.read(reader) else None


class Numbers:
    """A count and as many integers."""

    size_min = 4

    def __init__(self, number: Number, letter: str, count_max: int) -> None:
        self.name = f"count, then {number.name} each"
        self._letter = letter
        self._element_size = number.size_min
        self._count_max = count_max

    def write(self, parts: list[bytes], value: Iterable[int]) -> None:
        numbers = tuple(value)
        check_size(len(numbers), self._count_max)
        parts.append(struct.pack(f">i{len(numbers)}{self._letter}", len(numbers), *numbers))

    def read(self, reader: Reader) -> tuple[int, ...]:
        count = reader.count(self._count_max, self._element_size)
        return struct.unpack(f">{count}{self._letter}", reader.take(count * self._element_size))


class ListOf(Generic[T]):
    """A count and as many elements."""

    size_min = 4

    def __init__(self, element: Field[T], count_max: int) -> None:
        self.name = f"count, then {element.name} each"
        self._element = element
        self._count_max = count_max

    def write(self, parts: list[bytes], value: Iterable[T]) -> None:
        elements = tuple(value)
        check_size(len(elements), self._count_max)
        parts.append(_INT.pack(len(elements)))
        for element in elements:
            self._element.write(parts, element)

    def read(self, reader: Reader) -> tuple[T, ...]:
        count = reader.count(self._count_max, self._element.size_min)
        return tuple(self._element.read(reader) for _ in range(count))


class Pair(Generic[A, B]):
    """Two values, one after the other."""

    def __init__(self, first: Field[A], second: Field[B]) -> None:
        self.name = f"({first.name}, {second.name})"
        self.size_min = first.size_min + second.size_min
        self._first = first
        self._second = second

    def write(self, parts: list[bytes], value: tuple[A, B]) -> None:
        self._first.write(parts, value[0])
        self._second.write(parts, value[1])

    def read(self, reader: Reader) -> tuple[A, B]:
        return self._first.read(reader), self._second.read(reader)


class Structure(Generic[T]):
    """The attributes of a value, one after the other, in the order of `fields`."""

    def __init__(self, name: str, kind: Callable[..., T], /, **fields: AnyField) -> None:
        self.name = name
        self.fields = fields
        self.size_min = sum(field.size_min for field in fields.values())
        self._kind = kind

    def write(self, parts: list[bytes], value: T) -> None:
        for name, field in self.fields.items():
            field.write(parts, getattr(value, name))

    def read(self, reader: Reader) -> T:
        return self._kind(*[field.read(reader) for field in self.fields.values()])


BYTE: Final = Number("byte", "b")
SHORT: Final = Number("short", "h")
INT: Final = Number("int", "i")
LONG: Final = Number("long", "q")
CHECKSUM: Final = Number("CRC-32", "I")
BOOLEAN: Final = Boolean()
UUID_16: Final = UniqueId()
REQUEST_ID: Final = RequestIdentity()
TEXT: Final = Text()
NULLABLE_TEXT: Final = NullableText()
LENIENT_TEXT: Final = LenientText()
DATA: Final = Blob("length, then data", DATA_BYTES_MAX)
LOCK_HASHES: Final = Numbers(INT, "i", LOCKS_MAX)
PARTITION_IDS: Final = Numbers(INT, "i", PARTITIONS_MAX)
