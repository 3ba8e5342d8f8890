"""The message by which a server tells that its policy denies a request: 102 of the client protocol.

Owns the message and the lengths of its texts. Used only if both sides have the feature DENIALS:
without it a denied request ends the connection
(docs/decisions/0062-a-denied-request-is-answered.md).
"""

from __future__ import annotations

from typing import Annotated, Final

from waltz.types import NO_CLIENT, NO_GENERATION, PartitionId, RequestId
from waltz.wire.fields import BYTE, INT, REQUEST_ID, Text
from waltz.wire.message import Audience, Message, message

DENIED_VERB_BYTES_MAX: Final = 128
"""A verb of a policy is one word."""

DENIED_PRINCIPAL_BYTES_MAX: Final = 1024
"""A principal has at most 256 characters, of at most 4 bytes each."""

DENIED_REASON_BYTES_MAX: Final = 1024
"""A server cuts a longer reason off."""

NO_PARTITION: Final = PartitionId(-1)


@message(102, since=5, audience=Audience.REQUESTER)
class Denied(Message):
    """Tell that requests were denied: nothing of them was served, or stored.

    `request_code` is the type byte of the requests, and `request_id` the ID of the first of them;
    requests without an ID have that of `no_request`. There are `count` of them, with sequence
    numbers that follow on each other: the appends of a batch, else 1. `partition_id` is the
    partition for which `principal` lacks `verb`, -1 for none. If a mount that was granted is
    granted no longer, the mount is denied, without an ID; the partition is fed no more.
    """

    request_code: Annotated[int, BYTE]
    request_id: Annotated[RequestId, REQUEST_ID]
    count: Annotated[int, INT]
    partition_id: Annotated[PartitionId, INT]
    verb: Annotated[str, Text("verb", DENIED_VERB_BYTES_MAX)]
    principal: Annotated[str, Text("principal", DENIED_PRINCIPAL_BYTES_MAX)]
    reason: Annotated[str, Text("reason", DENIED_REASON_BYTES_MAX)]


DENIAL_MESSAGES: Final = (Denied,)


def no_request(partition_id: PartitionId) -> RequestId:
    """Return what stands for the ID of a request that has none."""
    return RequestId(NO_CLIENT, NO_GENERATION, partition_id, 0)


def cut_to(text: str, byte_count: int) -> str:
    """Return `text`, or as much of its beginning as fits into `byte_count` bytes."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= byte_count else data[:byte_count].decode(errors="ignore")
