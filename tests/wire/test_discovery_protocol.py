"""The messages by which clients learn from servers what the cluster is."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.golden import DIRECTORY
from tests.wire.strategies import messages
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.types import Address, ClientId, Generation, PartitionId, ServerId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.discovery_protocol import (
    DISCOVERY_MESSAGES,
    ClientIdRequest,
    ClientIdResponse,
    PartitionEntry,
    PartitionProblem,
    PartitionProblems,
    PartitionProblemsRequest,
    ServerEntry,
    Topology,
    TopologyRequest,
)
from waltz.wire.frame import FrameDecoder
from waltz.wire.message import Message

EXPECTED: dict[str, Message] = {
    "TopologyRequest subscribe": TopologyRequest(True),
    "TopologyRequest once": TopologyRequest(False),
    "Topology": Topology(
        UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "orders",
        3,
        7,
        (
            ServerEntry(ServerId(1), (Address("db1", 6000), Address("10.0.0.1", 6000))),
            ServerEntry(ServerId(4), (Address("::1", 6001),)),
        ),
        (
            PartitionEntry(PartitionId(0), Generation(2), ServerId(1)),
            PartitionEntry(PartitionId(2), Generation(9), ServerId(4)),
        ),
    ),
    "Topology of nobody": Topology(UUID(int=0), "", 1, -1, (), ()),
    "ClientIdRequest": ClientIdRequest(5),
    "ClientIdResponse": ClientIdResponse(5, ClientId(42), None),
    "ClientIdResponse error": ClientIdResponse(5, None, "coordinator away"),
    "PartitionProblemsRequest": PartitionProblemsRequest(5),
    "PartitionProblems": PartitionProblems(5, (PartitionProblem(PartitionId(3), "it waits"),)),
}
GOLDEN = dict(
    line.split(" = ") for line in (DIRECTORY / "discovery-frames.txt").read_text().splitlines()
)


def body_of(frame: bytes) -> bytes:
    decoder = FrameDecoder(CLIENT_CODEC.magic, 5, len(frame))
    decoder.receive(frame)
    body = decoder.next_frame()
    assert body is not None
    return bytes(body)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_bytes_are_those_that_were_pinned(name: str) -> None:
    frame = bytes.fromhex(GOLDEN[name])
    assert CLIENT_CODEC.encode(EXPECTED[name], 5) == frame
    assert CLIENT_CODEC.decode(body_of(frame), 5) == EXPECTED[name]


def test_all_pinned_bytes_are_known() -> None:
    assert [*GOLDEN] == [*EXPECTED]


@pytest.mark.parametrize("kind", DISCOVERY_MESSAGES)
@given(data=st.data())
def test_what_is_written_is_read(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind, 5))
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("name", EXPECTED)
def test_an_older_version_does_not_know_them(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="not supported by version 4"):
        CLIENT_CODEC.encode(EXPECTED[name], 4)
    with pytest.raises(RemoteProtocolError, match="unknown message type"):
        CLIENT_CODEC.decode(body_of(bytes.fromhex(GOLDEN[name])), 4)


@pytest.mark.parametrize("name", EXPECTED)
def test_no_byte_may_be_missing_or_left_over(name: str) -> None:
    body = body_of(bytes.fromhex(GOLDEN[name]))
    for wrong in (body[:-1], body + b"\0"):
        with pytest.raises(RemoteProtocolError):
            CLIENT_CODEC.decode(wrong, 5)
