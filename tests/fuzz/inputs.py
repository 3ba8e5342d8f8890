"""Inputs for decoders: random bytes, sound ones damaged, and ones that obey part of the grammar."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any, Final
from zlib import crc32

from tests.wire.golden import MESSAGE_FRAMES, OWN_FRAMES
from waltz.wire.admin_protocol import ADMIN_CODEC
from waltz.wire.columns import RecordBlockField
from waltz.wire.fields import (
    AnyField,
    Blob,
    LenientText,
    ListOf,
    NullableText,
    Number,
    Numbers,
    Optional,
    Pair,
    Structure,
    Text,
)
from waltz.wire.frame import FRAME_HEADER_BYTES
from waltz.wire.message import Codec
from waltz.wire.records import Records
from waltz.wire.storage_protocol import STORAGE_CODEC

KEY: Final = bytes(range(16))
NUMBERS: Final = (
    0, 1, 2, 7, 40, 127, 128, 255, 256, 511, 999, 1000, 1001, 4096, 65535, 2**24, 2**24 + 1,
    2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -1, -2, -128, -(2**31), -(2**63),
)  # fmt: skip
"""Where decoders have their edges."""

Make = Callable[[Random], bytes]


def number(draw: Random, size: int) -> bytes:
    """An integer of `size` bytes: an edge, near one, or small."""
    value: int = draw.choice(NUMBERS) + draw.choice((0, 0, 0, -1, 1))
    if draw.random() < 0.4:
        value = draw.randrange(12)
    return int(value % 256**size).to_bytes(size, "big")


def random_bytes(draw: Random) -> bytes:
    return draw.randbytes(draw.choice((0, 1, 7, 39, 40, 41, 128, 129, 300, draw.randrange(1000))))


def mutated(draw: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """`data` after a few of the things that happen to bytes."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        place = draw.randrange(len(content) + 1)
        match draw.randrange(8):
            case 0 if place < len(content):
                content[place] ^= 1 << draw.randrange(8)
            case 1:
                size = draw.choice((1, 2, 4, 8))
                content[place : place + size] = number(draw, size)
            case 2:
                del content[place:]
            case 3:
                del content[place : place + draw.choice((1, 4, 8, 40, 512))]
            case 4:
                content[place:place] = draw.randbytes(draw.choice((1, 4, 8, 40)))
            case 5:
                other = draw.choice(others)
                start = draw.randrange(len(other) + 1)
                content[place:place] = other[start : start + draw.randrange(200)]
            case 6:
                content[place : place + 64] = bytes(min(64, len(content) - place))
            case _:
                content += content[place : place + draw.randrange(200)]
    return bytes(content)


def one_of(draw: Random, grammar: Make) -> bytes:
    """An input of each of the three kinds; `grammar` makes sound ones, or nearly."""
    match draw.randrange(8):
        case 0:
            return random_bytes(draw)
        case 1 | 2 | 3 | 4:
            return mutated(draw, grammar(draw), [grammar(draw)])
        case _:
            return grammar(draw)


# Files


def record(draw: Random, transaction_id: int) -> bytes:
    """A record, now and then with a field that lies under a good checksum."""
    data = draw.randbytes(draw.choice((0, 1, 5, 40, 88, 200)))
    length = len(data) if draw.random() < 0.97 else int.from_bytes(number(draw, 4), "big")
    found_id = transaction_id if draw.random() < 0.97 else int.from_bytes(number(draw, 8), "big")
    request = struct.pack(">iiii", 1, 2, 0, transaction_id % 2**31)
    head = (found_id % 2**64).to_bytes(8, "big") + request + number(draw, 4)
    head += (length % 2**32).to_bytes(4, "big") + crc32(data).to_bytes(4, "big")
    return head + data + crc32(head + data).to_bytes(4, "big")


def records(draw: Random) -> bytes:
    return b"".join(record(draw, number) for number in range(draw.randrange(12)))


def segment_header(draw: Random) -> bytes:
    header = struct.pack(">iq16siq88x", 0, 1_700_000_000_000, KEY, 0, 0)
    if draw.random() < 0.05:
        place = draw.choice((0, 4, 12, 28, 32, 40))
        header = header[:place] + number(draw, 8) + header[place + 8 :]
    return header


def segment(draw: Random) -> tuple[bytes, bytes]:
    """A data file and its index file."""
    data, index = bytearray(segment_header(draw)), bytearray(segment_header(draw))
    for transaction_id in range(draw.randrange(12)):
        index += len(data).to_bytes(8, "big") if draw.random() < 0.97 else number(draw, 8)
        data += record(draw, transaction_id)
    if draw.random() < 0.2:
        index += number(draw, 8) * draw.randrange(3)
    return bytes(data), bytes(index)


def control_struct(draw: Random, sequence_number: int) -> bytes:
    values = [number(draw, 8) if draw.random() < 0.3 else b"\xff" * 8 for _ in range(3)]
    flags = draw.choice((5, 5, 1, 4, 7, 0, -1))
    body = b"".join(values) + struct.pack(">ii", flags, sequence_number)
    return body + crc32(body).to_bytes(4, "big")


def control_file(draw: Random) -> bytes:
    """A control file of two partitions."""
    text = struct.pack(">iq16si96x", 0, 1_700_000_000_000, KEY, 2)
    for partition_id in (0, 1):
        first = draw.randrange(-1, 5)
        second = first + draw.choice((1, 1, 1, -1, 0, 7))
        structs = control_struct(draw, first) + control_struct(draw, second)
        text += partition_id.to_bytes(4, "big") + structs
    return text


def node_file(draw: Random) -> bytes:
    """A node file of two partitions, its two areas mostly the same."""
    areas = [node_area(draw)] * 2 if draw.random() < 0.8 else [node_area(draw), node_area(draw)]
    return areas[0].ljust(4096, b"\0") + areas[1]


def node_area(draw: Random) -> bytes:
    head = struct.pack(">iq16si16sq68x", 0, 1, KEY, 2, KEY, 1_700_000_000_000)
    area = head + crc32(head).to_bytes(4, "big")
    for partition_id in (0, 1):
        body = struct.pack(">ii", partition_id, draw.randrange(2)) + number(draw, 8)
        body += control_struct(draw, draw.randrange(5)) + number(draw, 8)
        slot = body + crc32(body).to_bytes(4, "big")
        area += draw.choice((slot, slot, bytes(64)))
    return area


def damage_file(draw: Random) -> bytes:
    """The text in which a node remembers damage; its checksum is right now and then."""
    value = draw.choice(
        ("[]", "[[1, 2]]", "[[1, 2], [5, 9]]", "[[1e400, 2]]", '[["1", "2"]]', "[[1, null]]",
         "[" * 50_000, "{}", "null", "[[9223372036854775808, 1]]", "[[NaN, 1]]", "[[1, 2, 3]]",
         "[[1.5, 2]]", "[[true, 2]]", '"x"', "1" * 5_000, f"[[{'9' * 5_000}, 1]]")
    )  # fmt: skip
    durable_next = draw.choice(("7", "0", "-1", "1e400", "null", "9" * 30))
    true_checksum = crc32(f"[{value}, {durable_next}]".encode())
    checksum = true_checksum if draw.random() < 0.7 else draw.getrandbits(32)
    text = f'{{"damaged": {value}, "durable_next": {durable_next}, "crc32": {checksum}}}'
    return text.encode()


def joined(parts: Sequence[bytes]) -> bytes:
    """Several inputs as one, each after its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def parted(data: bytes, count: int) -> list[bytes]:
    """What `joined` had put together."""
    parts = []
    for _ in range(count):
        size = int.from_bytes(data[:4], "big")
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts


# Frames


def field(draw: Random, kind: AnyField) -> bytes:
    """The bytes of one field, its lengths and counts mostly true."""
    match kind:
        case Number() | Numbers() if kind.size_min != 4 or isinstance(kind, Number):
            return number(draw, kind.size_min)
        case Numbers():
            return counted(draw, [number(draw, 4) for _ in range(draw.randrange(4))])
        case Text() | NullableText() | LenientText() | Blob():
            data = draw.choice((b"", b"text", b"\xff\xfe", draw.randbytes(draw.randrange(50))))
            return length(draw, len(data)) + data
        case Optional():
            return draw.choice((b"\0", b"\1" + field(draw, kind._field)))
        case ListOf():
            return counted(draw, [field(draw, kind._element) for _ in range(draw.randrange(4))])
        case Pair():
            return field(draw, kind._first) + field(draw, kind._second)
        case Structure():
            return b"".join(field(draw, each) for each in kind.fields.values())
        case Records():
            first = int.from_bytes(number(draw, 8), "big", signed=True)
            return counted(draw, [wire_record(draw, first + n) for n in range(draw.randrange(4))])
        case RecordBlockField():
            return record_block(draw)
        case _:
            return draw.randbytes(kind.size_min)


def record_block(draw: Random) -> bytes:
    """Few or many records, and where each starts, mostly true."""
    first = draw.choice((0, 0, 7, int.from_bytes(number(draw, 8), "big") >> 1))
    pieces = [record(draw, first + n) for n in range(draw.choice((0, 1, 1, 3, 40)))]
    block = b"".join(pieces)
    head = struct.pack("<QII", first % 2**64, len(pieces), len(block))
    starts = [*accumulate(map(len, pieces), initial=0)][:-1]
    columns = [
        start.to_bytes(4, "little") if draw.random() < 0.99 else number(draw, 4) for start in starts
    ]
    return head + b"".join(columns) + block


def wire_record(draw: Random, transaction_id: int) -> bytes:
    data = draw.randbytes(draw.randrange(60))
    head = (transaction_id % 2**64).to_bytes(8, "big") + draw.randbytes(16) + number(draw, 4)
    return head + length(draw, len(data)) + data + crc32(data).to_bytes(4, "big")


def length(draw: Random, true_length: int) -> bytes:
    if draw.random() < 0.05:
        return number(draw, 4)
    return true_length.to_bytes(4, "big")


def counted(draw: Random, elements: Sequence[bytes]) -> bytes:
    return length(draw, len(elements)) + b"".join(elements)


def body(draw: Random, codec: Codec, version: int) -> bytes:
    """The payload of a frame: a message by its declaration."""
    kind: Any = draw.choice(codec.messages)
    fields = [place.field_in(version) for place in kind.LAYOUT]
    text = b"".join(field(draw, each) for each in fields if each is not None)
    return bytes([kind.CODE if draw.random() < 0.98 else draw.randrange(256)]) + text


def golden_bodies(codec: Codec) -> list[bytes]:
    frames = [frame for _, frame in MESSAGE_FRAMES + OWN_FRAMES if frame is not None]
    return [frame[FRAME_HEADER_BYTES:] for frame in frames if frame[0] == codec.magic]


GOLDEN_BODIES: Final = {codec.magic: golden_bodies(codec) for codec in (STORAGE_CODEC, ADMIN_CODEC)}


def message(draw: Random, codec: Codec) -> bytes:
    """A version, then the payload of a frame."""
    version = draw.choice(codec.versions)
    golden = GOLDEN_BODIES[codec.magic]
    text = one_of(draw, lambda draw: body(draw, codec, version))
    if draw.random() < 0.3:
        text = mutated(draw, draw.choice(golden), golden)
    return bytes([version]) + text


def stream(draw: Random, codec: Codec) -> bytes:
    """What arrives on a connection: a Hello, then frames."""
    version = draw.choice(codec.versions)
    versions = range(version + 1)
    hello = struct.pack(f">i{len(versions)}h", len(versions), *versions)
    parts = [frame(draw, ord("H"), 0, hello + length(draw, 4) + b"test")]
    for _ in range(draw.randrange(4)):
        parts.append(frame(draw, codec.magic, version, body(draw, codec, version)))
    return b"".join(parts)


def frame(draw: Random, magic: int, version: int, payload: bytes) -> bytes:
    return struct.pack(">Bh", magic, version) + length(draw, len(payload)) + payload
