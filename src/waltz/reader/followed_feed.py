"""Following the feed of one partition over as many connections as it takes.

Owns the position. Must not know connections or bodies. Always: what is taken out is dense and in
order, each transaction once. Source: Client-Server Communication, "Feed".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import assert_never
from uuid import UUID

from waltz.cluster.histories import Histories
from waltz.connections.denial_errors import denial_error
from waltz.errors import ClientAheadError, NotFoundError
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
    following_number,
)
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.client_protocol import (
    FeedRequest,
    FeedSuspended,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.fed import FedRun, next_of
from waltz.wire.message import Message


def check_read(histories: Histories, partition_id: PartitionId, history: UUID, end: int) -> None:
    """Raises HistoryChangedError: what was read of `history`, up to before `end`, is not in the log
    that has these histories."""
    remedy = "Nothing that the log has there now was read. Read the whole range anew."
    histories.check(
        partition_id, history, end - 1, who="the reader", another_log=remedy, abandoned=remedy
    )


class FeedPhase(Enum):
    MOUNTING = "mount request sent"
    NOT_READY = "the server is not ready; mount again later"
    MOUNTED = "fed as the log grows"


class FeedCursor:
    """The feed from `first` to before `end`, or for ever if that is None."""

    def __init__(
        self,
        partition_id: PartitionId,
        first: int,
        end: int | None,
        history: UUID | None = None,
    ) -> None:
        """`history`: the one to which the whole range belonged when it was planned."""
        self.client_id: ClientId | None = None
        """The client in whose name a partition is mounted; it must have one before `mount`."""
        self.position = first
        self.trouble: str | None = None
        """The last refusal of a server to send the record at `position`; None: none was refused."""
        self.history = history
        """The history of what comes now; None: nobody could tell it."""
        self._is_planned = history is not None
        self.phase = FeedPhase.MOUNTING
        self._partition_id = partition_id
        self.end = end
        self._sequence_number = 0
        self._mount_request_id: RequestId | None = None

    @property
    def done(self) -> bool:
        return self.end is not None and self.position >= self.end

    @property
    def is_caught_up(self) -> bool:
        """Whether silence means that there is nothing new."""
        return self.phase is FeedPhase.MOUNTED

    def go_on_with(self, histories: Histories) -> None:
        """Take note that the next connection brings a log with these histories. Raises
        HistoryChangedError: it has others in the place of transactions that were read, or
        planned."""
        if self.history is not None:
            end = self.position if self.end is None or not self._is_planned else self.end
            check_read(histories, self._partition_id, self.history, end)
        self.history = histories.current

    def mount(self, generation: Generation, connection_sequence: int) -> MountRequest:
        """Return what to send first on a connection, and again after a server was not ready."""
        self._sequence_number = following_number(self._sequence_number)
        self.phase = FeedPhase.MOUNTING
        assert self.client_id is not None, "given before it mounts"
        self._mount_request_id = RequestId(
            self.client_id, generation, self._partition_id, self._sequence_number
        )
        return MountRequest(
            self._mount_request_id, TransactionId(self.position - 1), connection_sequence
        )

    def receive(self, messages: Sequence[Message]) -> tuple[list[FedRun], list[Message]]:
        """Return the next transactions of the feed, and what to send.

        Raises NotFoundError: the log ends before `end`. ClientAheadError: even before `first` - 1.
        PermissionDeniedError: the server's policy does not allow it, or no longer.
        """
        runs: list[FedRun] = []
        replies: list[Message] = []
        end = self.end
        for message in messages:
            if type(message) is FeedBatch:
                room = len(message.feed) if end is None else end - self.position
                if (run := next_of(message, TransactionId(self.position), room)) is not None:
                    runs.append(run)
                    self.position = run.next_transaction_id
            elif isinstance(message, MountResponse | FeedSuspended):
                replies += self._hear(message)
            elif isinstance(message, Denied):
                raise denial_error(message)
        return runs, replies

    def _hear(self, message: MountResponse | FeedSuspended) -> list[Message]:
        request_id = message.request_id
        if request_id != self._mount_request_id:
            return []
        if isinstance(message, MountResponse):
            match message.state:
                case MountState.NOT_READY:
                    self.phase = FeedPhase.NOT_READY
                    return []
                case MountState.CLIENT_AHEAD:
                    raise ClientAheadError(
                        f"transaction {self.position} of partition {self._partition_id} was asked"
                        f" for; the log ends before transaction {self.position - 1}"
                    )
                case MountState.READY:
                    self.phase = FeedPhase.MOUNTED
                case _:
                    assert_never(message.state)
        if self.done:
            return []
        if self.end is not None:
            # Everything there was at the mount has been fed before the answer.
            raise NotFoundError(
                f"the log of partition {self._partition_id} ends before transaction"
                f" {self.position}; expected it to go on to {self.end - 1}"
            )
        return [FeedRequest(request_id, TransactionId(self.position - 1))]
