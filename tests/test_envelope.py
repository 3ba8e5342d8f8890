"""The bytes of envelopes, and who can read what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.client.transaction import (
    BytesSerializer,
    JsonSerializer,
    MsgpackSerializer,
    Serializer,
    StringSerializer,
)
from waltz.envelope import MAGIC, NAMES_BYTES_MAX, enclosed, opened, payload

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

GOLDEN = bytes.fromhex(
    "c1575a54010044" + f"traceparent:{PARENT}\n".encode().hex() + "c981492f"
) + b"data"  # fmt: skip


def test_an_envelope_has_these_bytes() -> None:
    assert enclosed({"traceparent": PARENT}, b"data") == GOLDEN
    assert opened(GOLDEN) == ({"traceparent": PARENT}, b"data")


@given(
    st.dictionaries(st.sampled_from("abc"), st.text("xyz:-01", max_size=20)), st.binary(max_size=50)
)
def test_what_was_enclosed_is_taken_out(values: dict[str, str], data: bytes) -> None:
    assert opened(enclosed(values, data)) == (values, data)
    assert opened(enclosed({}, enclosed(values, data))).data == enclosed(values, data)


@given(st.binary(max_size=80))
def test_any_bytes_are_data_unless_they_are_an_envelope(data: bytes) -> None:
    assert payload(data) == data
    assert payload(MAGIC + data) == MAGIC + data, "by a checksum of 32 bits"


@given(st.integers(0, len(GOLDEN) - 5), st.integers(1, 255))
def test_an_envelope_that_was_changed_is_data(place: int, change: int) -> None:
    cut = GOLDEN[:place]
    assert opened(cut) == ({}, cut)
    flipped = bytearray(GOLDEN)
    flipped[place] ^= change
    assert opened(bytes(flipped)) == ({}, bytes(flipped))


def test_an_envelope_of_a_later_version_is_taken_off_and_its_values_are_not_known() -> None:
    from zlib import crc32

    head = MAGIC + b"\x02\x00\x03abc"
    later = head + crc32(head).to_bytes(4, "big") + b"data"
    assert opened(later) == ({}, b"data")


def test_values_that_are_too_long_are_left_out() -> None:
    values = {"traceparent": PARENT, "tracestate": "x" * NAMES_BYTES_MAX}
    assert opened(enclosed(values, b"d")) == ({"traceparent": PARENT}, b"d")


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (StringSerializer(), "grüße"),
        (JsonSerializer(), {"a": [1]}),
        (MsgpackSerializer(), [b"\xff"]),
    ],
)
def test_our_serializers_leave_an_envelope_out(
    serializer: Serializer[object], value: object
) -> None:
    data = serializer.serialize(value)
    assert not data.startswith(MAGIC)
    assert serializer.deserialize(enclosed({"traceparent": PARENT}, data)) == value
    assert serializer.deserialize(data) == value


def test_bytes_are_bytes() -> None:
    assert BytesSerializer().deserialize(GOLDEN) == GOLDEN
