"""The beginning of every message between clients and servers, but for the feed's batches."""

from __future__ import annotations

from typing import Annotated

from waltz.types import PartitionId, RequestId
from waltz.wire.fields import REQUEST_ID
from waltz.wire.message import Message, message_fields


@message_fields
class ClientMessage(Message):
    """A message with the request ID that it makes, answers, or is about."""

    request_id: Annotated[RequestId, REQUEST_ID]

    @property
    def partition_id(self) -> PartitionId:
        return self.request_id.partition_id
