"""Messages by which servers tell of their log as a whole: 98 to 101 of the client protocol.

Owns those of its histories, 98 and 99, and the extension of the handshake that names the newest
history, so that a client asks only if the history is not the one that the client knows. Both are
used only if both sides have the feature HISTORY (docs/decisions/0050-who-follows-which-history.md).
Owns those of the ends of its partitions, 100 and 101, with the feature MARKS
(docs/decisions/0058-a-source-of-many-partitions.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple
from uuid import UUID

from waltz.errors import RemoteProtocolError
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId, TransactionId
from waltz.wire.fields import INT, LONG, UUID_16, ListOf, Numbers, Structure
from waltz.wire.message import Audience, Message, message

HISTORIES_MAX: Final = 10_000
"""Histories in one message: the coordinator's node of 1 MiB has room for fewer."""

HISTORY_EXTENSION: Final = "history"
HISTORY_BYTES: Final = 16


class HistoryFirst(NamedTuple):
    """The first transaction of a partition that belongs to a history."""

    partition_id: PartitionId
    transaction_id: TransactionId


@dataclass(frozen=True, slots=True)
class ToldHistory:
    """A history that began with a restore, at that time by the clock of the restore's machine."""

    history_id: UUID
    restored_at_milliseconds: int
    firsts: tuple[HistoryFirst, ...]


HISTORY_FIRST: Final = Structure(
    "first of a history", HistoryFirst, partition_id=INT, transaction_id=LONG
)
TOLD_HISTORY: Final = Structure(
    "history",
    ToldHistory,
    history_id=UUID_16,
    restored_at_milliseconds=LONG,
    firsts=ListOf(HISTORY_FIRST, PARTITIONS_MAX),
)
PARTITION_IDS: Final = Numbers(INT, "i", PARTITIONS_MAX)
MARKS: Final = Numbers(LONG, "q", PARTITIONS_MAX)


@message(98, since=5, audience=Audience.STRANGERS_SERVER)
class HistoriesRequest(Message):
    """Ask for the histories of the log that began with a restore."""

    request_number: Annotated[int, LONG]


@message(99, since=5, audience=Audience.ASKER)
class HistoriesAnswer(Message):
    """Tell the histories in the order in which they began, as of the start of the server."""

    request_number: Annotated[int, LONG]
    histories: Annotated[tuple[ToldHistory, ...], ListOf(TOLD_HISTORY, HISTORIES_MAX)]


@message(100, since=5, audience=Audience.STRANGERS_SERVER)
class MarksRequest(Message):
    """Ask for the high-water marks of all partitions that the server has."""

    request_number: Annotated[int, LONG]


@message(101, since=5, audience=Audience.ASKER)
class MarksAnswer(Message):
    """Tell the marks as they are when the answer is made: `high_water_marks` has one for each of
    `partition_ids`. A partition whose mark the server does not know yet is left out."""

    request_number: Annotated[int, LONG]
    partition_ids: Annotated[tuple[int, ...], PARTITION_IDS]
    high_water_marks: Annotated[tuple[int, ...], MARKS]


HISTORY_MESSAGES: Final = (HistoriesRequest, HistoriesAnswer)
MARKS_MESSAGES: Final = (MarksRequest, MarksAnswer)


def newest_history(extensions: Iterable[tuple[str, bytes]]) -> UUID | None:
    """Return the newest history that a handshake names; None: no restore has begun one. Raises
    RemoteProtocolError: the extension has another length."""
    data = dict(extensions).get(HISTORY_EXTENSION)
    if data is None:
        return None
    if len(data) != HISTORY_BYTES:
        raise RemoteProtocolError(
            f"the handshake names a history in {len(data)} bytes; expected {HISTORY_BYTES}"
        )
    return UUID(bytes=data)
