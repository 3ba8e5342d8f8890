"""A range of the log in blocks: what to ask for next, and what has come in order.

Owns the position and what is asked for ahead, over one connection. Must not know connections.
Always: what is taken out is dense and in order, each record once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from waltz.connections.denial_errors import denial_error
from waltz.errors import NotFoundError, RemoteProtocolError, UnavailableError
from waltz.limits import (
    READER_BLOCK_BYTES_MAX,
    READER_BLOCK_ROWS_MAX,
    READER_FETCH_ROWS_MAX,
    READER_FETCHES_IN_FLIGHT_MAX,
    RECORD_LIST_RECORDS_MAX,
)
from waltz.record import RecordBatch
from waltz.types import (
    NO_CLIENT,
    NO_GENERATION,
    PartitionId,
    RequestId,
    TransactionId,
    following_number,
)
from waltz.wire.batch_protocol import HeaderBlock, HeadersRequest, ReadRequest, RecordBlock
from waltz.wire.denial_protocol import Denied
from waltz.wire.header_columns import HeaderColumns
from waltz.wire.message import Message

READER_HEADER_ROWS_MAX: Final = RECORD_LIST_RECORDS_MAX
"""Rows whose headers a reader asks for in one request: as many as a storage node answers with."""

READER_BLOCK_BYTES_AIM: Final = READER_BLOCK_BYTES_MAX * 3 // 4
"""Rows asked for per block are estimated, from the last block's row size, to be this many bytes."""


class BlockCursor:
    """The records from `first` to before `end`, or their headers."""

    def __init__(
        self,
        partition_id: PartitionId,
        first: int,
        end: int,
        *,
        with_data: bool = True,
    ) -> None:
        self.position = first
        self._with_data = with_data
        self._partition_id = partition_id
        self._end = end
        self._sequence_number = 0
        self._asked: dict[int, range] = {}
        self._unasked: deque[range] = deque()
        """Rows that were asked for and did not come with their block."""
        self._next = first
        self._rows: int | None = None if with_data else READER_HEADER_ROWS_MAX
        """Rows per block of the size aimed at, by the last block; None: no block has come. The size
        of headers is known before."""
        self._arrived: dict[int, RecordBatch | HeaderColumns] = {}

    @property
    def done(self) -> bool:
        return self.position >= self._end

    @property
    def is_answered(self) -> bool:
        """Whether the connection will bring nothing more of what was asked for."""
        return not self._asked

    def ask(self) -> list[Message]:
        """Return what to ask for now, as far ahead as is allowed.

        Nothing is asked for ahead before it is known how large records are: what does not fit into
        an answer has to be asked for again, and until it comes all that follows it waits.
        """
        requests: list[Message] = []
        ahead_max = READER_FETCHES_IN_FLIGHT_MAX if self._rows else 1
        while len(self._asked) + len(self._arrived) < ahead_max or (
            self._unasked and not self._asked
        ):
            if self._unasked:
                wanted = self._unasked.popleft()
            elif self._next < self._end:
                rows = self._rows or READER_FETCH_ROWS_MAX
                wanted = range(self._next, min(self._next + rows, self._end))
                self._next = wanted.stop
            else:
                break
            self._sequence_number = following_number(self._sequence_number)
            self._asked[self._sequence_number] = wanted
            requests.append(self._request(wanted))
        return requests

    def _request(self, wanted: range) -> Message:
        request_id = RequestId(NO_CLIENT, NO_GENERATION, self._partition_id, self._sequence_number)
        first, count = TransactionId(wanted.start), len(wanted)
        if self._with_data:
            return ReadRequest(request_id, first, count, READER_BLOCK_BYTES_MAX)
        return HeadersRequest(request_id, first, count)

    def receive(self, messages: Sequence[Message]) -> list[RecordBatch | HeaderColumns]:
        """Return the records that are next, or their headers.

        Raises NotFoundError: the log ends before `end`. UnavailableError: the server cannot read.
        RemoteProtocolError: an answer to nothing that was asked. PermissionDeniedError.
        """
        for message in messages:
            if isinstance(message, RecordBlock) and self._with_data:
                self._take(message, message.records)
                if rows := len(message.records):
                    fitting = rows * READER_BLOCK_BYTES_AIM // len(message.records.block)
                    self._rows = min(max(1, fitting), READER_BLOCK_ROWS_MAX)
            elif isinstance(message, HeaderBlock) and not self._with_data:
                self._take(message, message.headers)
            elif isinstance(message, Denied):
                raise denial_error(message)
        found = []
        while (batch := self._arrived.pop(self.position, None)) is not None:
            self.position = batch.next_transaction_id
            found.append(batch)
        return found

    def _take(self, block: RecordBlock | HeaderBlock, batch: RecordBatch | HeaderColumns) -> None:
        wanted = self._asked.pop(block.request_id.sequence_number, None)
        if wanted is None or batch.first_transaction_id != wanted.start:
            raise RemoteProtocolError(
                f"records from {batch.first_transaction_id} on are the answer to no request"
            )
        if block.error is not None:
            raise UnavailableError(block.error)
        if not len(batch):
            raise NotFoundError(
                f"the log of partition {self._partition_id} ends before transaction"
                f" {block.high_water_mark + 1}; expected it to go on to {self._end - 1}"
            )
        if len(batch) > len(wanted):
            raise RemoteProtocolError(
                f"{len(batch)} records in answer to a request for {len(wanted)}"
            )
        self._arrived[wanted.start] = batch
        if len(batch) < len(wanted):
            self._unasked.appendleft(wanted[len(batch) :])
