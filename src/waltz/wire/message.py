"""A message is declared once, a field a line; the declaration is walked to write and to read it.

Owns the declaration and the codec, which turns the payload of a frame into a message and a message
into a frame. Must not know any particular message. Beside the declared layout a codec has fast
paths: they return None for whatever is not plain, which then goes the declared way, so that every
error is judged in one place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints
from zlib import crc32

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.wire.fields import AnyField, Number, Reader, Row
from waltz.wire.frame import FRAME_HEADER, encode_frame

M = TypeVar("M", bound="Message")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Since:
    """The encoding before it holds from `version` on; without one, older versions mean `absent`."""

    version: int
    absent: object
    is_vital: bool
    """Whether a message is not sent at all rather than without the field's value."""


@dataclass(frozen=True, slots=True)
class OnlyIf:
    """The field is there only if another one is (`given`) or is not None; otherwise `absent`."""

    name: str
    given: bool
    absent: object


@dataclass(frozen=True, slots=True)
class ChecksumOf:
    """The field is the CRC-32 of another one, verified by every reader, recomputed by none."""

    name: str


def since(version: int, *, absent: object = (), is_vital: bool = True) -> Since:
    return Since(version, absent, is_vital)


def only_with(name: str, *, absent: object) -> OnlyIf:
    return OnlyIf(name, given=True, absent=absent)


def only_without(name: str, *, absent: object) -> OnlyIf:
    return OnlyIf(name, given=False, absent=absent)


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """One field of a message: its name and how each version encodes it."""

    name: str
    encodings: tuple[tuple[int, AnyField], ...]
    absent: object
    is_vital: bool
    condition: OnlyIf | None
    checksum_of: str | None

    def field_in(self, version: int) -> AnyField | None:
        """Return the encoding of `version`; None if it lacks the field."""
        for first, field in reversed(self.encodings):
            if first <= version:
                return field
        return None


class Audience(Enum):
    """The addressee of a message between clients and servers."""

    PARTITION = "the partition of a server that its request ID names"
    SERVER = "a server as a whole"
    STRANGERS_SERVER = "a server as a whole, from a client that may have no ID yet"
    STREAM = "the partition of a client, on its stream connection"
    ASKER = "the part of a client that has asked, on a connection for requests"
    REQUESTER = "the part of a client that has sent the request, on the connection of the request"
    LINK = "the logical connection itself"


class _LayoutAtFirstUse:
    """Works out the layout of a kind of message at its first use, and puts that in its own place.

    A command speaks a few kinds of the many that it imports.
    """

    def __get__(self, _: object, kind: type[Message]) -> tuple[FieldPlace, ...]:
        kind.LAYOUT = layout = layout_of(kind)
        return layout


class Message:
    """A frozen value with one attribute per field; see `message`.

    Equality, hash and text are here once, not generated for each kind: compiling those of all kinds
    takes longer than a short command should.
    """

    __slots__ = ()

    CODE: ClassVar[int]
    SINCE: ClassVar[int]
    AUDIENCE: ClassVar[Audience | None]
    LAYOUT: ClassVar[tuple[FieldPlace, ...]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        shown = (f"{name}={value!r}" for name, value in zip(names, self._values(), strict=True))
        return f"{type(self).__name__}({', '.join(shown)})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]


class Refusal(Message):
    """A peer's refusal in place of an answer; `message` is for people."""

    __slots__ = ()

    message: str


def layout_of(kind: type) -> tuple[FieldPlace, ...]:
    """Return the places of a dataclass whose fields are annotated with their encodings."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_place(field.name, hints[field.name].__metadata__) for field in fields(kind))


def _place(name: str, marks: Iterable[AnyField | Since | OnlyIf | ChecksumOf]) -> FieldPlace:
    encodings: list[tuple[int, AnyField]] = []
    absent: object = None
    is_vital = True
    condition = None
    checksum_of = None
    for mark in marks:
        match mark:
            case Since():
                encodings[-1] = (mark.version, encodings[-1][1])
                absent, is_vital = mark.absent, mark.is_vital
            case OnlyIf():
                condition = mark
            case ChecksumOf():
                checksum_of = mark.name
            case _:
                encodings.append((0, mark))
    return FieldPlace(name, tuple(encodings), absent, is_vital, condition, checksum_of)


@dataclass_transform(frozen_default=True)
def message_fields(kind: type[M]) -> type[M]:
    """Make the annotations of a class the fields that several kinds of message start with."""
    return dataclass(frozen=True, slots=True, eq=False, repr=False)(kind)


@dataclass_transform(frozen_default=True)
def message(
    code: int, *, since: int = 0, audience: Audience | None = None
) -> Callable[[type[M]], type[M]]:
    """Make a class the message with type byte `code`, known to versions from `since` on.

    `audience` is who takes it where one connection carries messages for several.

    An annotation names, after the field's type, its encoding, and for what the versions disagree
    on, marks: `Annotated[bool, BOOLEAN]`, `Annotated[tuple[int, ...], LOCK_HASHES, since(1)]`,
    `Annotated[State, OLD, NEW, since(3)]`.
    """

    def declare(kind: type[M]) -> type[M]:
        declared = message_fields(kind)
        declared.CODE = code
        declared.SINCE = since
        declared.AUDIENCE = audience
        declared.LAYOUT = _LayoutAtFirstUse()  # type: ignore[assignment]
        return declared

    return declare


def write_fields(
    places: Sequence[FieldPlace], value: object, version: int, parts: list[bytes]
) -> None:
    """Append the fields of `value` as `version` has them.

    Raises LocalProtocolError: a value out of range, or one that the version cannot express.
    """
    for place in places:
        content = getattr(value, place.name)
        condition = place.condition
        if condition and (getattr(value, condition.name) is not None) != condition.given:
            if content != condition.absent:
                raise LocalProtocolError(
                    f"{_where(value, place)} is given, but {condition.name}"
                    f" {'is not' if condition.given else 'is too'}"
                )
            continue
        field = place.field_in(version)
        if field is None:
            if place.is_vital and content != place.absent:
                raise LocalProtocolError(
                    f"{_where(value, place)} is not supported by version {version} of the protocol,"
                    " upgrade servers"
                )
            continue
        try:
            field.write(parts, content)
        except LocalProtocolError as error:
            raise LocalProtocolError(f"{_where(value, place)}: {error}") from None
        except struct.error as error:
            where = _where(value, place)
            raise LocalProtocolError(f"{where}: {content!r:.80} does not fit: {error}") from None


def _where(value: object, place: FieldPlace) -> str:
    return f"{type(value).__name__}.{place.name}"


def read_fields(
    kind: Callable[..., T], places: Sequence[FieldPlace], reader: Reader, version: int
) -> T:
    """Return what `kind` makes of the fields as `version` has them; they must end with `reader`.

    Raises RemoteProtocolError: cut short, out of range, over a limit, a wrong checksum, or bytes
    left over.
    """
    values: dict[str, object] = {}
    for place in places:
        condition = place.condition
        if condition and (values[condition.name] is not None) != condition.given:
            values[place.name] = condition.absent
            continue
        field = place.field_in(version)
        if field is None:
            values[place.name] = place.absent
            continue
        try:
            value = values[place.name] = field.read(reader)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{place.name}: {error}") from None
        if place.checksum_of is not None:
            data = values[place.checksum_of]
            assert isinstance(data, bytes)
            if crc32(data) != value:
                raise RemoteProtocolError(
                    f"{place.name}: CRC-32 of the {len(data)} bytes of {place.checksum_of} is"
                    f" {crc32(data):08x}; the message says {value:08x}"
                )
    reader.expect_end()
    return kind(*values.values())


@dataclass(frozen=True, slots=True)
class FastPath:
    """Ways for one message that are equal to the declared layout wherever they answer.

    `encode` takes the message and the version and returns a whole frame, `decode` takes the
    payload and the version. Both return None for what they leave to the declared way.
    """

    kind: type[Message]
    encode: Callable[..., bytes | None]
    decode: Callable[[bytes, int], Message | None]


class _Plan:
    """One kind of message in one version, decoded in fewer steps than its declaration has:
    adjoining numbers are read in one step."""

    def __init__(self, magic: int, version: int, kind: type[Message]) -> None:
        self._magic = magic
        self._kind = kind
        self._code = kind.CODE.to_bytes(1, "big")
        self._steps: list[tuple[Callable[[Message], Any], AnyField | Row]] = []
        fields = [(place.name, place.field_in(version)) for place in kind.LAYOUT]
        for is_number, run in groupby(fields, lambda each: isinstance(each[1], Number)):
            each = list(run)
            if is_number and len(each) > 1:
                names, numbers = zip(*each, strict=True)
                self._steps.append((attrgetter(*names), Row(numbers)))
            else:
                self._steps += [(attrgetter(name), field) for name, field in each if field]

    @staticmethod
    def suits(version: int, kind: type[Message]) -> bool:
        """Whether the version has all fields, and none depends on another one."""
        return all(
            place.field_in(version) and not (place.condition or place.checksum_of)
            for place in kind.LAYOUT
        )

    def encode(self, message: Message, version: int) -> bytes | None:
        parts = [self._code]
        try:
            for get, field in self._steps:
                field.write(parts, get(message))
            return encode_frame(self._magic, version, parts)
        except (LocalProtocolError, struct.error):
            return None

    def decode(self, body: bytes, _version: int) -> Message | None:
        reader = Reader(body, 1)
        values: list[object] = []
        try:
            for _, field in self._steps:
                if type(field) is Row:
                    values += field.read(reader)
                else:
                    values.append(field.read(reader))
        except RemoteProtocolError:
            return None
        return self._kind(*values) if reader.position == reader.end else None


class _RowPlan:
    """The same for a kind that is nothing but numbers: its frame is packed by one call."""

    def __init__(self, magic: int, version: int, kind: type[Message]) -> None:
        self._magic = magic
        self._kind = kind
        self._code = kind.CODE
        self._get = attrgetter(*(place.name for place in kind.LAYOUT))
        letters = [getattr(place.field_in(version), "letter", "") for place in kind.LAYOUT]
        self._row = struct.Struct(">" + "".join(letters))
        self._frame = struct.Struct(FRAME_HEADER.format + "B" + "".join(letters))
        self._size = 1 + self._row.size

    @staticmethod
    def suits(version: int, kind: type[Message]) -> bool:
        """Whether the version has numbers only, more than one."""
        fields = [place.field_in(version) for place in kind.LAYOUT]
        return len(fields) > 1 and all(isinstance(field, Number) for field in fields)

    def encode(self, message: Message, version: int) -> bytes | None:
        try:
            return self._frame.pack(
                self._magic, version, self._size, self._code, *self._get(message)
            )
        except struct.error:
            return None

    def decode(self, body: bytes, _version: int) -> Message | None:
        if len(body) != self._size:
            return None
        return self._kind(*self._row.unpack_from(body, 1))


class _FastPaths(dict[type[Message], FastPath | None]):
    """The fast path of each kind that one version has, made when the kind is met; None: it has
    none."""

    def __init__(
        self,
        magic: int,
        version: int,
        kinds: Mapping[int, type[Message]],
        special: Iterable[FastPath],
    ) -> None:
        super().__init__((path.kind, path) for path in special)
        self._magic = magic
        self._version = version
        self._kinds = kinds

    def __missing__(self, kind: type[Message]) -> FastPath | None:
        path = None
        if self._kinds.get(kind.CODE) is kind and _Plan.suits(self._version, kind):
            make = _RowPlan if _RowPlan.suits(self._version, kind) else _Plan
            plan = make(self._magic, self._version, kind)
            path = FastPath(kind, plan.encode, plan.decode)
        self[kind] = path
        return path


class Codec:
    """The messages of one protocol, in all its versions."""

    def __init__(
        self,
        magic: int,
        versions: tuple[int, ...],
        messages: Sequence[type[Message]],
        fast_paths: Sequence[FastPath] = (),
    ) -> None:
        self.magic = magic
        self.versions = versions
        self.messages = tuple(messages)
        self._kinds: Mapping[int, Mapping[int, type[Message]]] = {
            version: {kind.CODE: kind for kind in messages if version >= kind.SINCE}
            for version in versions
        }
        self._paths: Mapping[int, _FastPaths] = {
            version: _FastPaths(magic, version, self._kinds[version], fast_paths)
            for version in versions
        }
        assert len({kind.CODE for kind in messages}) == len(messages)
        assert all(min(versions) == path.kind.SINCE for path in fast_paths)

    def up_to(self, version: int) -> Codec:
        """Return the codec of one who speaks no version after `version`."""
        limited = copy(self)
        limited.versions = tuple(each for each in self.versions if each <= version)
        return limited

    def encode(self, message: Message, version: int) -> bytes:
        """Return the frame of `message`.

        Raises LocalProtocolError: the version lacks the message or one of its fields, or a value
        is out of range; nothing may be sent then.
        """
        path = self._paths[version][type(message)]
        if path is not None and (encoded := path.encode(message, version)) is not None:
            return encoded
        return self.encode_declared(message, version)

    def decode(self, body: bytes | memoryview, version: int) -> Message:
        """Return the message in `body`, the payload of a frame, every byte of which must be used.

        Raises RemoteProtocolError: unknown type, length over its limit, wrong checksum, missing
        or trailing bytes.
        """
        kinds = self._kinds[version]
        if not isinstance(body, bytes):
            body = bytes(body)
        if body and (kind := kinds.get(body[0])) is not None:
            path = self._paths[version][kind]
            if path is not None and (decoded := path.decode(body, version)) is not None:
                return decoded
        return self.decode_declared(body, version)

    def encode_declared(self, message: Message, version: int) -> bytes:
        """As `encode`, by the declared layout alone."""
        kind = type(message)
        if self._kinds[version].get(kind.CODE) is not kind:
            raise LocalProtocolError(
                f"{kind.__name__} is not supported by version {version} of protocol"
                f" {chr(self.magic)!r}, upgrade servers"
            )
        parts = [kind.CODE.to_bytes(1, "big")]
        write_fields(kind.LAYOUT, message, version, parts)
        return encode_frame(self.magic, version, parts)

    def decode_declared(self, body: bytes, version: int) -> Message:
        """As `decode`, by the declared layout alone."""
        if not body:
            raise RemoteProtocolError("message of 0 bytes; expected a message type")
        kind = self._kinds[version].get(body[0])
        if kind is None:
            raise RemoteProtocolError(
                f"unknown message type {body[0]} in version {version} of protocol"
                f" {chr(self.magic)!r}; expected one of {sorted(self._kinds[version])}"
            )
        try:
            return read_fields(kind, kind.LAYOUT, Reader(body, 1), version)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{kind.__name__}: {error}") from None
