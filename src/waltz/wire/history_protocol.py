"""Messages by which servers tell of the histories of their log: 98 and 99 of the client protocol.

Owns these messages, and the extension of the handshake that names the newest history, so that a
client asks only if the history is not the one that the client knows. Both are used only if both
sides have the feature HISTORY (docs/decisions/0050-who-follows-which-history.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple
from uuid import UUID

from waltz.errors import RemoteProtocolError
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId, TransactionId
from waltz.wire.fields import INT, LONG, UUID_16, ListOf, Structure
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


@message(98, since=5, audience=Audience.STRANGERS_SERVER)
class HistoriesRequest(Message):
    """Ask for the histories of the log that began with a restore."""

    request_number: Annotated[int, LONG]


@message(99, since=5, audience=Audience.ASKER)
class HistoriesAnswer(Message):
    """Tell the histories in the order in which they began, as of the start of the server."""

    request_number: Annotated[int, LONG]
    histories: Annotated[tuple[ToldHistory, ...], ListOf(TOLD_HISTORY, HISTORIES_MAX)]


HISTORY_MESSAGES: Final = (HistoriesRequest, HistoriesAnswer)


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
