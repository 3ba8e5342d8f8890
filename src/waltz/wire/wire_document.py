"""The format tables of the wire, printed from the declarations that write and read it.

    python -m waltz.wire.wire_document > docs/formats/wire.md

Owns the words around the tables. Knows no message by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from waltz.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX
from waltz.wire.admin_protocol import ADMIN_CODEC
from waltz.wire.batch_protocol import REJECTION
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.discovery_protocol import ADDRESS, PARTITION, SERVER
from waltz.wire.handshake import HELLO_LAYOUT
from waltz.wire.message import Codec, FieldPlace, Message
from waltz.wire.records import (
    DAMAGED_RANGE,
    RECORD,
    RECORD_HEADER_FIELD,
    SESSION_INFO,
    STACK_FRAME,
)
from waltz.wire.storage_protocol import CLIENT_NOTE, STORAGE_CODEC

_INTRODUCTION: Final = f"""\
# Wire format

Printed by `python -m waltz.wire.wire_document`; a test compares this file with the code.

## Frames

Every connection carries frames. Integers are big-endian, two's complement, unless a field says that
it is little-endian.

| Offset | Bytes | Field |
|---|---|---|
| 0 | 1 | magic: `H` Hello, `L` client protocol, `S` storage protocol, `A` admin protocol |
| 1 | 2 | version of the protocol, signed |
| 3 | 4 | length of the payload, signed; at most {FRAME_BYTES_MAX}, before the handshake\
 {HELLO_BYTES_MAX} |
| 7 | length | payload |

A frame of length 0 is a keep-alive and is ignored. Both ends send a Hello at once and take the
highest version that is in both lists; without one they part. Frames after the Hello carry the magic
and version agreed on. A payload starts with a type byte, except that of the Hello, and every byte
of it must be used. Whatever does not fit closes the connection.

A boolean is one byte, of which exactly 1 is true. Counts and lengths are ints; where null is
allowed, it is a negative length. Text is UTF-8 after its length in bytes. A request ID is four
ints: client ID, generation, partition ID, sequence number. A UUID is its 16 bytes in textual order.

## Hello (version 0, no type byte)
"""

_COMPOSITES: Final = (
    RECORD_HEADER_FIELD,
    RECORD,
    SESSION_INFO,
    STACK_FRAME,
    DAMAGED_RANGE,
    CLIENT_NOTE,
    *(ADDRESS, SERVER, PARTITION),
    REJECTION,
)

_PROTOCOLS: Final = (
    ("Client protocol", CLIENT_CODEC),
    ("Storage protocol", STORAGE_CODEC),
    ("Admin protocol", ADMIN_CODEC),
)


def wire_tables() -> str:
    """Return the whole text of `docs/formats/wire.md`."""
    lines = [_INTRODUCTION, *_field_table(HELLO_LAYOUT, (0,))]
    lines += ["", "## Composite fields", "", "| Composite | Fields |", "|---|---|"]
    for composite in _COMPOSITES:
        parts = ", ".join(f"{name} ({field.name})" for name, field in composite.fields.items())
        lines.append(f"| {composite.name} | {parts} |")
    for title, codec in _PROTOCOLS:
        lines += ["", f"## {title} (magic `{chr(codec.magic)}`, {_versions(codec.versions)})"]
        for kind in codec.messages:
            lines += ["", *_message_section(codec, kind)]
    return "\n".join(lines) + "\n"


def _message_section(codec: Codec, kind: type[Message]) -> Iterator[str]:
    versions = tuple(version for version in codec.versions if version >= kind.SINCE)
    heading = f"### {kind.CODE} {kind.__name__}"
    yield heading if versions == codec.versions else f"{heading} ({_versions(versions)})"
    yield ""
    yield from _field_table(kind.LAYOUT, versions)


def _field_table(places: tuple[FieldPlace, ...], versions: tuple[int, ...]) -> Iterator[str]:
    yield "| Field | Encoding | Versions |"
    yield "|---|---|---|"
    for place in places:
        for _, field in place.encodings:
            known = tuple(version for version in versions if place.field_in(version) is field)
            yield f"| {place.name} | {field.name}{_remarks(place)} | {_span(known)} |"


def _remarks(place: FieldPlace) -> str:
    remarks = ""
    if place.checksum_of is not None:
        remarks += f" of {place.checksum_of}, verified"
    if place.condition is not None:
        remarks += f"; only {'with' if place.condition.given else 'without'} {place.condition.name}"
    return remarks


def _versions(versions: tuple[int, ...]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {_span(versions)}"


def _span(versions: tuple[int, ...]) -> str:
    first, last = min(versions), max(versions)
    return str(first) if first == last else f"{first} to {last}"


if __name__ == "__main__":
    sys.stdout.write(wire_tables())
