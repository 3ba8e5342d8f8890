"""The request IDs of one client in one partition.

Owns the client ID in use and its sequence numbers. Always: no two appends of a client ID have the
same number.
"""

from __future__ import annotations

from typing import Final

from waltz.types import SEQUENCE_NUMBER_MAX, ClientId, Generation, PartitionId, RequestId

SEQUENCE_NUMBERS_PER_CLIENT_ID: Final = 2**31 - 2**16
"""The last sequence number that a client gives to an append of a partition. Above it are those of
mounts that come while a client waits for its next client ID."""

CLIENT_ID_RENEWAL_SHARE: Final = 31 / 32
"""A client asks for its next client ID when a partition has used up this share of the numbers: at
100,000 appends per second 11 minutes before the last."""


class RequestNumbers:
    """See the module. `last` is the sequence number of the last request."""

    def __init__(self, client_id: ClientId, partition_id: PartitionId, last: int) -> None:
        self.client_id = client_id
        self.last = last
        self.renewal_after = CLIENT_ID_RENEWAL_SHARE * SEQUENCE_NUMBERS_PER_CLIENT_ID
        """Once `last` is beyond this the next client ID should be taken."""
        self._partition_id = partition_id

    @property
    def left(self) -> int:
        """The number of appends that may still be sent under this client ID."""
        return max(0, SEQUENCE_NUMBERS_PER_CLIENT_ID - self.last)

    def last_id(self, generation: Generation) -> RequestId:
        return RequestId(self.client_id, generation, self._partition_id, self.last)

    def take(self, count: int, generation: Generation) -> RequestId:
        """Return the first request ID of the next `count` appends; that many must be left."""
        first = RequestId(self.client_id, generation, self._partition_id, self.last + 1)
        self.last += count
        assert self.last <= SEQUENCE_NUMBERS_PER_CLIENT_ID
        return first

    def for_mount(self, generation: Generation) -> RequestId:
        """Return a request ID for a mount. It is not kept in the log, so the last one may come
        again."""
        self.last = min(self.last + 1, SEQUENCE_NUMBER_MAX)
        return self.last_id(generation)

    def renew(self, client_id: ClientId) -> None:
        """Number what is sent from now on under `client_id`."""
        self.client_id = client_id
        self.last = 0
