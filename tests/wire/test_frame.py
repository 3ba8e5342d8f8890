"""Frames cut from bytes in any pieces, and the ways a peer can get them wrong."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import FRAME_BYTES_MAX
from waltz.wire.frame import (
    FRAME_HEADER,
    PIECE_BYTES_MIN,
    WANTED_BYTES_MAX,
    FrameDecoder,
    encode_frame,
)

MAGIC = ord("L")
PAYLOADS = st.lists(st.binary(max_size=40), max_size=8)


def frames(decoder: FrameDecoder, data: bytes) -> list[bytes]:
    decoder.receive(data)
    found = []
    while (body := decoder.next_frame()) is not None:
        found.append(body)
    return found


def decoder(bytes_max: int = 1000) -> FrameDecoder:
    return FrameDecoder(MAGIC, 4, bytes_max)


def encoded(payloads: list[bytes]) -> bytes:
    return b"".join(encode_frame(MAGIC, 4, [payload]) for payload in payloads)


def test_what_is_kept_of_a_frame_that_is_not_whole_is_told() -> None:
    """UA-41: so that all connections together can be held to a bound."""
    found = decoder()
    whole = encode_frame(MAGIC, 4, [bytes(100)])
    assert found.unfinished_bytes == 0
    frames(found, whole + whole[:60])
    assert found.unfinished_bytes == 60 - FRAME_HEADER.size
    frames(found, whole[60:])
    assert found.unfinished_bytes == 0


@given(st.lists(st.sampled_from([1, 100, PIECE_BYTES_MIN - 1, PIECE_BYTES_MIN, 9000]), min_size=1))
def test_a_payload_comes_whole_in_pieces_of_any_size(sizes: list[int]) -> None:
    """Small pieces grow together, for each takes more than its bytes."""
    payload = bytes(number % 251 for number in range(sum(sizes)))
    found, data = decoder(len(payload)), encode_frame(MAGIC, 4, [payload])
    assert frames(found, data[: FRAME_HEADER.size]) == []
    position = FRAME_HEADER.size
    for size in sizes[:-1]:
        assert frames(found, data[position : position + size]) == []
        position += size
        assert found.unfinished_bytes == position - FRAME_HEADER.size
        assert len(found._pieces) <= 2 * (1 + found.unfinished_bytes // PIECE_BYTES_MIN)
    assert frames(found, data[position:]) == [payload]
    assert found.unfinished_bytes == 0


def test_a_frame_is_magic_version_length_and_payload() -> None:
    """CS-01."""
    assert encode_frame(MAGIC, 4, [b"a", b"bc"]).hex() == "4c000400000003616263"


@given(PAYLOADS, st.lists(st.integers(0, 400), max_size=10))
def test_pieces_do_not_matter_and_empty_frames_are_ignored(
    payloads: list[bytes], cuts: list[int]
) -> None:
    """CS-03: a frame of length 0 is a keep-alive."""
    data = encoded(payloads)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    one = decoder()
    found = []
    for start, end in pairwise(places):
        found += frames(one, data[start:end])
    assert found == [payload for payload in payloads if payload]


@given(PAYLOADS)
def test_byte_by_byte_each_frame_comes_with_its_last_byte(payloads: list[bytes]) -> None:
    one = decoder()
    for payload in filter(None, payloads):
        data = encoded([payload])
        for byte in data[:-1]:
            assert frames(one, bytes([byte])) == []
        assert frames(one, data[-1:]) == [payload]


def test_a_large_frame_in_small_pieces_is_put_together() -> None:
    payload = bytes(range(256)) * 2048
    data = encoded([payload, b"next"])
    one = decoder(len(payload))
    found = []
    for start in range(0, len(data), 100):
        found += frames(one, data[start : start + 100])
    assert found == [payload, b"next"]


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused_from_the_header_alone(length: int) -> None:
    one = decoder(1000)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"frame length {length}; expected 0 to 1000"):
            frames(one, FRAME_HEADER.pack(MAGIC, 4, length))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_length_at_the_bound_is_taken() -> None:
    assert frames(decoder(1000), encoded([bytes(1000)])) == [bytes(1000)]


def test_a_payload_over_the_bound_is_not_encoded() -> None:
    half = bytes(FRAME_BYTES_MAX // 2)
    with pytest.raises(LocalProtocolError, match=f"at most {FRAME_BYTES_MAX}"):
        encode_frame(MAGIC, 4, [half, half, b"x"])


@pytest.mark.parametrize("header", ["4d0004", "4c0003", "4cffff"])
def test_another_magic_or_version_is_refused(header: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"expected magic 0x4c \(L\) version 4"):
        frames(decoder(), bytes.fromhex(header) + bytes(4))


def test_the_error_shows_the_first_32_bytes_as_text_and_hex() -> None:
    """CS-04."""
    request = b"GET / HTTP/1.1\r\nHost: localhost:55180\r\n\r\n"
    with pytest.raises(RemoteProtocolError) as caught:
        frames(decoder(), request)
    assert "'GET / HTTP/1.1..Host: localhost:'" in str(caught.value)
    assert request[:32].hex(" ") in str(caught.value)
    assert request[:33].hex(" ") not in str(caught.value)


def test_the_error_shows_less_if_there_is_less() -> None:
    with pytest.raises(RemoteProtocolError, match=r"'SSH-2\.0' = 53 53 48 2d 32 2e 30$"):
        frames(decoder(), b"SSH-2.0")


def test_other_frames_can_be_expected_between_two_of_one_piece() -> None:
    one = FrameDecoder(ord("H"), 0, 10)
    one.receive(encode_frame(ord("H"), 0, [b"hello"]) + encoded([b"after", bytes(100)]))
    assert one.next_frame() == b"hello"
    one.expect(MAGIC, 4, 100)
    assert one.next_frame() == b"after"
    assert one.next_frame() == bytes(100)
    assert one.next_frame() is None


@pytest.mark.parametrize("length", [1, 10, WANTED_BYTES_MAX + 20])
def test_a_frame_comes_when_what_was_wanted_has_come_and_not_before(length: int) -> None:
    """A reader may wait for that number of bytes, and never for one more."""
    payload = bytes(range(length))
    found, data = decoder(), encoded([payload])
    wanted = []
    while data:
        wanted.append(found.wanted_bytes)
        found.receive(data[: wanted[-1] - 1])
        assert found.next_frame() is None
        assert found.wanted_bytes == 1 or found.unfinished_bytes
        found.receive(data[wanted[-1] - 1 : wanted[-1]])
        data = data[wanted[-1] :]
        body = found.next_frame()
    assert body == payload
    assert wanted == [FRAME_HEADER.size, *[WANTED_BYTES_MAX] * (length // WANTED_BYTES_MAX),
                      length % WANTED_BYTES_MAX]  # fmt: skip
    assert found.next_frame() is None
    assert found.wanted_bytes == FRAME_HEADER.size
