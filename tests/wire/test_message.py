"""The codec over all protocols: golden bytes, round trips, truncations, hostile lengths."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from dataclasses import FrozenInstanceError
from typing import Annotated

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.golden import (
    CODEC_BY_MAGIC,
    CODECS,
    MESSAGE_FRAMES,
    OWN_FRAMES,
    VECTORS,
    Vector,
)
from tests.wire.strategies import messages
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.types import ClientId, Generation, PartitionId, RequestId, SessionId, TransactionId
from waltz.wire.client_protocol import FlushRequest, HighWaterMarkRequest, MountRequest
from waltz.wire.fields import BOOLEAN, DATA, INT, LONG, NULLABLE_TEXT, SHORT, Optional
from waltz.wire.message import (
    Codec,
    Message,
    message,
    only_with,
    only_without,
    since,
)
from waltz.wire.storage_protocol import MaxTransactionIdRequest

KINDS = [
    pytest.param(codec, kind, version, id=f"{protocol}-{kind.__name__}-{version}")
    for protocol, codec in CODECS.items()
    for kind in codec.messages
    for version in codec.versions
    if version >= kind.SINCE
]

ALL_FRAMES = MESSAGE_FRAMES + OWN_FRAMES

HOSTILE = [-1, -(2**31), 2**30, 2**30 + 1, 2**31 - 1, 100_000]


@message(200)
class Sample(Message):
    number: Annotated[int, SHORT, INT, since(1)]
    extra: Annotated[int, LONG, since(2, absent=-1)]
    data: Annotated[bytes | None, Optional(DATA)]
    urgent: Annotated[bool, BOOLEAN, only_with("data", absent=False)]
    reason: Annotated[str | None, NULLABLE_TEXT, only_without("data", absent=None)]


@message(1, since=2)
class Newer(Message): ...


SAMPLES = Codec(ord("T"), (0, 1, 2), (Sample, Newer))


def test_one_declaration_gives_every_version_its_bytes() -> None:
    sample = Sample(5, -1, b"d", True, None)
    assert SAMPLES.encode(sample, 0).hex() == "5400000000000ac8000501000000016401"
    assert SAMPLES.encode(sample, 1).hex() == "5400010000000cc80000000501000000016401"
    assert SAMPLES.encode(sample, 2).hex() == (
        "54000200000014c800000005ffffffffffffffff01000000016401"
    )
    absent = Sample(5, -1, None, False, "no")
    assert SAMPLES.encode(absent, 1).hex() == "5400010000000cc80000000500000000026e6f"
    for version in SAMPLES.versions:
        for value in (sample, absent):
            assert SAMPLES.decode(SAMPLES.encode(value, version)[7:], version) == value


@pytest.mark.parametrize(
    ("value", "version", "text"),
    [
        (Sample(5, 0, None, False, None), 1, "Sample.extra is not supported.*upgrade servers"),
        (Sample(2**15, -1, None, False, None), 0, "Sample.number: 32768 does not fit"),
        (Sample(5, -1, None, True, None), 0, "Sample.urgent is given, but data is not"),
        (Sample(5, -1, b"", False, "no"), 0, "Sample.reason is given, but data is too"),
        (Newer(), 1, "Newer is not supported by version 1 of protocol 'T', upgrade servers"),
    ],
)
def test_what_a_version_cannot_express_is_not_encoded(
    value: Message, version: int, text: str
) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        SAMPLES.encode(value, version)


def test_a_message_of_another_protocol_is_not_encoded() -> None:
    @message(200)
    class Stranger(Message): ...

    with pytest.raises(LocalProtocolError, match="Stranger"):
        SAMPLES.encode(Stranger(), 0)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "message of 0 bytes"),
        ("63", r"unknown message type 99 in version 0 of protocol 'T'; expected one of \[200\]"),
        ("01", "unknown message type 1 in version 0"),
        ("c8", "Sample: number: 2 bytes expected at byte 1; 0 remain"),
        ("c8000500ffffffff00", "Sample: 1 bytes left over; expected 8 bytes, found 9"),
    ],
)
def test_an_error_says_what_was_expected_and_found(body: str, text: str) -> None:
    """CS-27."""
    with pytest.raises(RemoteProtocolError, match=text):
        SAMPLES.decode(bytes.fromhex(body), 0)


def test_messages_are_frozen_values() -> None:
    sample = Sample(5, -1, b"d", True, None)
    assert sample == Sample(5, -1, b"d", True, None)
    assert hash(sample) == hash(Sample(5, -1, b"d", True, None))
    with pytest.raises(AttributeError):
        sample.number = 6  # type: ignore[misc]
    assert not hasattr(sample, "__dict__")


@pytest.mark.parametrize(("name", "frame"), ALL_FRAMES, ids=[name for name, _ in ALL_FRAMES])
def test_golden_frames_decode_and_encode_to_themselves(name: str, frame: bytes) -> None:
    codec, version = CODEC_BY_MAGIC[frame[0]], frame[2]
    for decode in (codec.decode, codec.decode_declared):
        decoded = decode(frame[7:], version)
        assert codec.encode(decoded, version) == frame
        assert codec.encode_declared(decoded, version) == frame
    assert codec.decode(memoryview(frame)[7:], version) == decoded


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vectors_of_the_original_hold_both_ways(vector: Vector) -> None:
    """CS-25: every message in every version; where the original refuses to encode, so do we."""
    codec, version = vector.codec, vector.version
    if vector.frame is None:
        with pytest.raises(LocalProtocolError, match="upgrade servers"):
            codec.encode(vector.message, version)
    else:
        assert codec.encode(vector.message, version) == vector.frame
        decoded = codec.decode(vector.frame[7:], version)
        if "CLIENT_AHEAD" in vector.name and version < 3:
            assert codec.encode(decoded, version) == vector.frame
        else:
            assert decoded == vector.message


@pytest.mark.parametrize(("name", "frame"), ALL_FRAMES, ids=[name for name, _ in ALL_FRAMES])
def test_no_truncation_and_no_extension_decodes(name: str, frame: bytes) -> None:
    codec, version, body = CODEC_BY_MAGIC[frame[0]], frame[2], frame[7:]
    for end in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            codec.decode(body[:end], version)
    with pytest.raises(RemoteProtocolError):
        codec.decode(body + b"\x00", version)


def decode_broken(codec: Codec, version: int, body: bytes, hostile: int) -> None:
    """Decode the body with four bytes overwritten, at each place."""
    for offset in range(1, len(body) - 3):
        broken = body[:offset] + struct.pack(">i", hostile) + body[offset + 4 :]
        with suppress(RemoteProtocolError):
            codec.decode(broken, version)


def test_hostile_lengths_anywhere_never_allocate() -> None:
    """Whatever four bytes are overwritten, no more memory is taken than the message has bytes."""
    seen = {frame[7:]: (CODEC_BY_MAGIC[frame[0]], frame[2]) for _, frame in ALL_FRAMES}
    tested = [each for each in seen.items() if each[1][1] in (0, each[1][0].versions[-1])]
    for body, (codec, version) in tested:
        decode_broken(codec, version, body, -1)  # tables of checksums are made once and kept
    tracemalloc.start()
    try:
        for body, (codec, version) in tested:
            for hostile in HOSTILE:
                decode_broken(codec, version, body, hostile)
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < 1_000_000, f"{peak} bytes while decoding {body.hex()}"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("codec", "kind", "version"), KINDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_makes_the_round_trip_in_every_version(
    codec: Codec, kind: type[Message], version: int, data: st.DataObject
) -> None:
    """CS-25. The fast paths and the declared layout give the same bytes and the same values."""
    value = data.draw(messages(kind, version))
    frame = codec.encode(value, version)
    assert frame == codec.encode_declared(value, version)
    assert frame[:3] == struct.pack(">Bh", codec.magic, version)
    assert struct.unpack_from(">i", frame, 3) == (len(frame) - 7,)
    assert codec.decode(frame[7:], version) == value
    assert codec.decode_declared(frame[7:], version) == value


@pytest.mark.parametrize("protocol", CODECS)
@settings(max_examples=300)
@given(data=st.data())
def test_arbitrary_bytes_decode_or_are_refused_the_same_on_both_paths(
    protocol: str, data: st.DataObject
) -> None:
    codec = CODECS[protocol]
    version = data.draw(st.sampled_from(codec.versions))
    kind = data.draw(st.sampled_from(codec.messages))
    body = bytes([kind.CODE]) + data.draw(st.binary(max_size=80))
    try:
        expected: Message | str = codec.decode_declared(body, version)
    except RemoteProtocolError as error:
        expected = str(error)
    try:
        found: Message | str = codec.decode(body, version)
    except RemoteProtocolError as error:
        found = str(error)
    assert found == expected
    if isinstance(found, Message):
        # Not always the same bytes: 2 is a boolean too, and -2 a null length.
        assert codec.decode(codec.encode(found, version)[7:], version) == found


def test_messages_are_values_of_their_kind() -> None:
    """Equality, hash and text are inherited: also fields that a kind shares with others count."""
    for codec in CODECS.values():
        for kind in codec.messages:
            assert kind.__eq__ is Message.__eq__, kind
            assert kind.__repr__ is Message.__repr__, kind
    request_id = RequestId(ClientId(1), Generation(2), PartitionId(3), 4)
    asked = MountRequest(request_id, TransactionId(5), 6)
    assert asked == MountRequest(request_id, TransactionId(5), 6)
    assert hash(asked) == hash(MountRequest(request_id, TransactionId(5), 6))
    assert asked != MountRequest(request_id, TransactionId(5), 7)
    assert asked != MountRequest(request_id._replace(sequence_number=9), TransactionId(5), 6)
    assert FlushRequest(request_id) != HighWaterMarkRequest(request_id)
    assert repr(FlushRequest(request_id)) == f"FlushRequest(request_id={request_id!r})"
    with pytest.raises(FrozenInstanceError):
        asked.connection_sequence = 7  # type: ignore[misc]


def test_a_kind_that_a_codec_does_not_have_is_not_sent_by_a_fast_path() -> None:
    with pytest.raises(LocalProtocolError, match="is not supported by version 1"):
        CODECS["admin"].encode(MaxTransactionIdRequest(SessionId(1), 2, PartitionId(3), False), 1)
