"""Every encoding by value, and every length that must be refused before it is used."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import values
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX, TEXT_BYTES_MAX
from waltz.types import ClientId, Generation, PartitionId, RequestId
from waltz.wire.fields import (
    BOOLEAN,
    BYTE,
    CHECKSUM,
    DATA,
    INT,
    LENIENT_TEXT,
    LOCK_HASHES,
    LONG,
    NULLABLE_TEXT,
    PARTITION_IDS,
    REQUEST_ID,
    SHORT,
    TEXT,
    UUID_16,
    AnyField,
    Enumeration,
    ListOf,
    Optional,
    Pair,
    Reader,
    Structure,
)


class Color(IntEnum):
    RED = 0
    BLUE = 5


class Point(NamedTuple):
    x: int
    y: int


POINT = Structure("point", Point, x=INT, y=SHORT)
PAIRS = ListOf(Pair(TEXT, BOOLEAN), 3)
FIELDS: list[AnyField] = [
    BYTE, SHORT, INT, LONG, CHECKSUM, BOOLEAN, UUID_16, REQUEST_ID, TEXT, NULLABLE_TEXT,
    LENIENT_TEXT, DATA, LOCK_HASHES, PARTITION_IDS, Enumeration(Color), Optional(TEXT), PAIRS,
    POINT,
]  # fmt: skip


def written(field: AnyField, value: Any) -> bytes:
    parts: list[bytes] = []
    field.write(parts, value)
    return b"".join(parts)


def read(field: AnyField, data: bytes) -> Any:
    reader = Reader(data)
    value = field.read(reader)
    reader.expect_end()
    return value


@pytest.mark.parametrize(
    ("field", "value", "data"),
    [
        (BYTE, -1, "ff"),
        (SHORT, -2, "fffe"),
        (INT, 0x11223344, "11223344"),
        (LONG, -1, "ffffffffffffffff"),
        (CHECKSUM, 0xFFFFFFFF, "ffffffff"),
        (BOOLEAN, True, "01"),
        (BOOLEAN, False, "00"),
        (
            UUID_16,
            UUID("00112233-4455-6677-8899-aabbccddeeff"),
            "00112233445566778899aabbccddeeff",
        ),
        (
            REQUEST_ID,
            RequestId(ClientId(7), Generation(-1), PartitionId(2), 5),
            "00000007ffffffff0000000200000005",
        ),
        (TEXT, "é😀", "00000006c3a9f09f9880"),
        (TEXT, "", "00000000"),
        (NULLABLE_TEXT, None, "ffffffff"),
        (NULLABLE_TEXT, "", "00000000"),
        (LENIENT_TEXT, "a", "0000000161"),
        (DATA, b"", "00000000"),
        (DATA, b"hello", "0000000568656c6c6f"),
        (LOCK_HASHES, (), "00000000"),
        (LOCK_HASHES, (1, -2), "0000000200000001fffffffe"),
        (Enumeration(Color), Color.BLUE, "00000005"),
        (Optional(SHORT), None, "00"),
        (Optional(SHORT), 0, "010000"),
        (PAIRS, (("a", True),), "00000001000000016101"),
        (POINT, Point(1, 2), "000000010002"),
    ],
)
def test_a_value_has_exactly_these_bytes(field: AnyField, value: Any, data: str) -> None:
    assert written(field, value) == bytes.fromhex(data)
    assert read(field, bytes.fromhex(data)) == value


@given(st.data())
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_what_was_written_is_read_back_and_no_prefix_of_it(
    field: AnyField, data: st.DataObject
) -> None:
    value = data.draw(values(field))
    encoded = written(field, value)
    assert len(encoded) >= field.size_min
    assert read(field, encoded) == value
    for end in range(len(encoded)):
        with pytest.raises(RemoteProtocolError):
            read(field, encoded[:end])


def test_exactly_one_is_true() -> None:
    for byte in range(256):
        assert read(BOOLEAN, bytes([byte])) is (byte == 1)
        value = bytes([byte]) + b"\x07" * (byte == 1)
        assert read(Optional(BYTE), value) == (7 if byte == 1 else None)


@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_every_negative_length_of_nullable_text_is_null(length: int) -> None:
    data = struct.pack(">i", length)
    assert read(NULLABLE_TEXT, data) is None
    assert read(LENIENT_TEXT, data) == ""


@pytest.mark.parametrize("field", [TEXT, DATA, LOCK_HASHES, PARTITION_IDS, PAIRS])
@pytest.mark.parametrize("count", [-1, -(2**31), 2**30, 2**31 - 1, 1])
def test_counts_that_cannot_be_are_refused(field: AnyField, count: int) -> None:
    """2^30 elements of four bytes overflow a 32-bit size guard; Python's does not."""
    with pytest.raises(RemoteProtocolError, match=f"{count}"):
        read(field, struct.pack(">i", count))


@pytest.mark.parametrize(
    ("field", "limit", "element_bytes"),
    [(DATA, DATA_BYTES_MAX, 1), (TEXT, TEXT_BYTES_MAX, 1), (LOCK_HASHES, LOCKS_MAX, 4)],
)
def test_a_count_over_its_limit_is_refused_even_if_the_bytes_are_there(
    field: AnyField, limit: int, element_bytes: int
) -> None:
    with pytest.raises(RemoteProtocolError, match=f"expected 0 to {limit}"):
        read(field, struct.pack(">i", limit + 1) + bytes((limit + 1) * element_bytes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (DATA, bytes(DATA_BYTES_MAX + 1)),
        (TEXT, "a" * (TEXT_BYTES_MAX + 1)),
        (LOCK_HASHES, (0,) * (LOCKS_MAX + 1)),
        (PAIRS, (("", True),) * 4),
    ],
)
def test_what_a_peer_would_refuse_is_not_written(field: AnyField, value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="at most"):
        written(field, value)


@pytest.mark.parametrize(
    ("field", "value"), [(BYTE, 128), (INT, 2**31), (LONG, -(2**63) - 1), (CHECKSUM, -1)]
)
def test_a_number_out_of_range_is_not_written(field: AnyField, value: int) -> None:
    with pytest.raises(struct.error):
        written(field, value)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"text at byte 0 is not UTF-8.* at its byte 1"):
        read(TEXT, struct.pack(">i", 2) + b"a\xff")


def test_what_utf_8_cannot_express_becomes_a_question_mark() -> None:
    assert written(TEXT, "a\udcff") == written(TEXT, "a?")


def test_an_unknown_member_of_an_enumeration_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"Color 1 at byte 0; expected one of \[0, 5\]"):
        read(Enumeration(Color), struct.pack(">i", 1))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda reader: reader.take(3), "3 bytes expected at byte 0; 2 remain"),
        (lambda reader: reader.unpack(struct.Struct(">i")), "4 bytes expected at byte 0"),
        (lambda reader: reader.expect_end(), "2 bytes left over; expected 0 bytes, found 2"),
    ],
)
def test_a_reader_names_place_and_numbers(call: Callable[[Reader], object], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        call(Reader(b"ab"))
