"""Every message of every version finds whom it is for, on both sides."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.partition_world import ME, World
from tests.wire.strategies import messages
from waltz.client.partitions.client_partition_events import Received
from waltz.client.partitions.streams_shell import HEARD, StreamSide
from waltz.errors import RemoteProtocolError
from waltz.server.clients.client_connection import ClientPeer, MessagesReceived, Sorter
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.server_partition import ServerPartition
from waltz.store.events import StoreOpened
from waltz.types import Generation, PartitionId, RequestId, SessionId, TransactionId
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.message import Audience, Message

KINDS = [
    pytest.param(kind, version, id=f"{kind.__name__}-{version}")
    for kind in CLIENT_CODEC.messages
    for version in CLIENT_CODEC.versions
    if version >= kind.SINCE
]
FOR_SERVERS = (Audience.PARTITION, Audience.SERVER, Audience.STRANGERS_SERVER)


def whose(message: Message) -> Message:
    """The same message, as one of this client and of a partition that is there."""
    if hasattr(message, "request_id"):
        request_id = RequestId(ME, Generation(1), PartitionId(2), 1)
        return replace(message, request_id=request_id)  # type: ignore[type-var]
    return message


@pytest.mark.parametrize(("kind", "version"), KINDS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_a_server_takes_what_is_for_it_and_refuses_the_rest(
    kind: type[Message], version: int, draw: Any
) -> None:
    message = whose(draw.draw(messages(kind, version)))
    assert kind.AUDIENCE is not None, "a connection carries messages for several"
    sorter = Sorter(1)
    if kind.AUDIENCE not in FOR_SERVERS:
        with pytest.raises(RemoteProtocolError, match=kind.__name__):
            sorter.sort([message])
        return
    found = sorter.sort(joined([message]))
    if kind.AUDIENCE is not Audience.PARTITION:
        assert found.for_server == (message,)
        return
    ((partition_id, received, _),) = found.for_partitions
    machine = ServerPartition(partition_id, Generation(1), FeedCache())
    machine.step([StoreOpened(SessionId(1), TransactionId(-1))], 0.0)
    machine.step([MessagesReceived(ClientPeer(1, ME, 0), received.messages)], 0.0)
    machine.check_invariants()


class Runner:
    """A partition at work, as far as a stream knows it."""

    def __init__(self) -> None:
        self.partition_id = PartitionId(2)
        self.has_ended = False
        self.mailbox: asyncio.Queue[Received] = asyncio.Queue()
        self.mailbox.put = self.mailbox.put_nowait  # type: ignore[method-assign, assignment]

    async def room(self) -> None: ...


@pytest.mark.parametrize(("kind", "version"), KINDS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_a_clients_stream_takes_what_is_for_it_and_refuses_the_rest(
    kind: type[Message], version: int, draw: Any
) -> None:
    message = draw.draw(messages(kind, version))
    if hasattr(message, "request_id"):
        message = whose(message)
    if any(field.name == "partition_id" for field in fields(message)):
        message = replace(message, partition_id=PartitionId(2))
    runner = Runner()
    side = StreamSide({PartitionId(2): runner})  # type: ignore[dict-item]
    if kind.AUDIENCE not in HEARD:
        with pytest.raises(RemoteProtocolError, match=f"{kind.__name__} on a stream connection"):
            asyncio.run(side.receive(0, [message]))
        return
    asyncio.run(side.receive(0, joined([message])))
    received = runner.mailbox.get_nowait()
    World().mounted().hear(*received.messages)
