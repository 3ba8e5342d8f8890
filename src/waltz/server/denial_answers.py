"""The answer to a request that the policy denies, as a value."""

from __future__ import annotations

from waltz.access.permissions import Denial
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_message import ClientMessage
from waltz.wire.client_protocol import MountRequest
from waltz.wire.denial_protocol import (
    DENIED_PRINCIPAL_BYTES_MAX,
    DENIED_REASON_BYTES_MAX,
    NO_PARTITION,
    Denied,
    cut_to,
    no_request,
)


def denied(denial: Denial, principal: str) -> Denied:
    """Return the answer to the message that is denied to `principal`."""
    message = denial.message
    partition_id = NO_PARTITION if denial.partition_id is None else denial.partition_id
    return Denied(
        MountRequest.CODE if message is None else message.CODE,
        message.request_id if isinstance(message, ClientMessage) else no_request(partition_id),
        len(message.appends) if isinstance(message, AppendBatch) else 1,
        partition_id,
        denial.verb.value,
        cut_to(principal, DENIED_PRINCIPAL_BYTES_MAX),
        cut_to(denial.reason, DENIED_REASON_BYTES_MAX),
    )
