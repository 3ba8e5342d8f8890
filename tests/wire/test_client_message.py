"""What every message between clients and servers starts with."""

from __future__ import annotations

from waltz.types import ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_message import ClientMessage
from waltz.wire.client_protocol import CLIENT_CODEC, FlushRequest


def test_a_message_is_for_the_partition_of_its_request_id() -> None:
    """CS-08."""
    message = FlushRequest(RequestId(ClientId(7), Generation(3), PartitionId(2), 5))
    assert isinstance(message, ClientMessage)
    assert message.partition_id == 2
    assert CLIENT_CODEC.encode(message, 4)[8:24] == bytes.fromhex(
        "00000007000000030000000200000005"
    )
