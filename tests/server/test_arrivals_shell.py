"""TCP connections until their peers have said what they want."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from waltz.connections.logical_handshake import Handshake
from waltz.errors import RemoteProtocolError
from waltz.server.clients.arrivals_shell import Arrival, receive_arrival, receive_next_request
from waltz.types import CertificateNames, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import CLIENT_CODEC, HighWaterMarkRequest
from waltz.wire.handshake import Hello, decode_hello

REQUEST = Handshake().request
QUESTION = HighWaterMarkRequest(RequestId(ClientId(1), Generation(0), PartitionId(0), 1))


class Said:
    """A connection on which these pieces come, and then its end."""

    peer = "said"
    certificate: CertificateNames | None = None
    is_encrypted = False
    user = None
    token = ""
    trouble = ""
    unsent_bytes = 0

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = [*pieces]
        self.written = b""

    async def read(self, wanted: int = 1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def hand_over(self, receive: Callable[[bytes], None]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += data

    def send(self, data: bytes) -> None:
        self.write(data)

    def note_held(self, byte_count: int) -> None: ...

    def note_dispensable(self, is_dispensable: bool) -> None: ...
    def flush(self) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


def frame(*messages: object, version: int = 5) -> bytes:
    return b"".join(CLIENT_CODEC.encode(message, version) for message in messages)  # type: ignore[arg-type]


def arrival(*pieces: bytes) -> Arrival | None:
    return asyncio.run(receive_arrival(Said(pieces), CLIENT_CODEC))


HELLO = Hello((4, 5), "peer").encode()
OLDER = Hello((3, 4), "peer").encode()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_request_and_what_follows_are_taken_apart(size: int) -> None:
    """LC-43: however the bytes come."""
    stream = HELLO + frame(REQUEST)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    pieces[-1] += b"rest"
    arrived = arrival(*pieces)
    assert arrived is not None
    assert (arrived.request, arrived.rest, arrived.link.version) == (REQUEST, b"rest", 5)


def test_an_older_client_is_let_in_by_its_hello() -> None:
    """LC-43: versions before 5 have no handshake; what came with the Hello is not lost."""
    data = frame(QUESTION, version=4)
    arrived = arrival(OLDER + data)
    assert arrived is not None
    assert (arrived.request, arrived.link.version) == (None, 4)
    assert arrived.link.receive(arrived.rest) == [QUESTION]


def test_the_server_greets_at_once() -> None:
    said = Said([])
    assert asyncio.run(receive_arrival(said, CLIENT_CODEC)) is None
    assert decode_hello(said.written[7:]).versions == CLIENT_CODEC.versions


@pytest.mark.parametrize("pieces", [[], [HELLO[:5]], [HELLO], [HELLO, frame(REQUEST)[:-1]]])
def test_who_goes_before_saying_anything_is_nobody(pieces: list[bytes]) -> None:
    assert arrival(*pieces) is None


def test_another_message_first_is_a_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="HighWaterMarkRequest as first message"):
        arrival(HELLO + frame(QUESTION))


def test_after_an_answer_another_request_may_come() -> None:
    """LC-39."""
    arrived = arrival(HELLO + frame(REQUEST, REQUEST))
    assert arrived is not None
    following = asyncio.run(receive_next_request(arrived))
    assert following is not None
    assert (following.request, following.rest) == (REQUEST, b"")
    assert asyncio.run(receive_next_request(following)) is None
