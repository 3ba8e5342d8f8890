"""Messages by which a tool takes a cut through all partitions: 92 to 95 of the client protocol.

Owns these messages. A hold makes a server tell nobody of commits above the marks that it answers;
it ends with its time, with its release, or with its connection
(docs/decisions/0043-cuts.md). Both sides use them only if both have the feature CUTS.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from waltz.types import Generation, PartitionId, SessionId, TransactionId
from waltz.wire.fields import INT, LONG, NULLABLE_TEXT, TEXT, ListOf, Structure
from waltz.wire.message import Audience, Message, message

PARTITIONS_HELD_MAX: Final = 10_000
"""Partitions in one message about holds; a server with more refuses to hold."""


class HeldPartition(NamedTuple):
    """A partition whose commits above `high_water_mark` the server tells nobody from now on.

    `hold_id` names this hold on its server for as long as the server runs.
    """

    partition_id: PartitionId
    generation: Generation
    session_id: SessionId
    high_water_mark: TransactionId
    hold_id: int


class HoldTrouble(NamedTuple):
    """The reason why a partition is not held, or was not held all the time."""

    partition_id: PartitionId
    reason: str


class HoldName(NamedTuple):
    """A hold of a partition."""

    partition_id: PartitionId
    hold_id: int


HELD_PARTITION: Final = Structure(
    "held partition",
    HeldPartition,
    partition_id=INT,
    generation=INT,
    session_id=LONG,
    high_water_mark=LONG,
    hold_id=LONG,
)
HOLD_TROUBLE: Final = Structure("trouble of a hold", HoldTrouble, partition_id=INT, reason=TEXT)
HOLD_NAME: Final = Structure("name of a hold", HoldName, partition_id=INT, hold_id=LONG)
HOLD_TROUBLES: Final = ListOf(HOLD_TROUBLE, PARTITIONS_HELD_MAX)


@message(92, since=5, audience=Audience.STRANGERS_SERVER)
class HoldRequest(Message):
    """Ask a server to hold back what its partitions know of further commits, for at most
    `milliseconds`."""

    request_number: Annotated[int, LONG]
    milliseconds: Annotated[int, INT]


@message(93, since=5, audience=Audience.ASKER)
class HoldAnswer(Message):
    """Say which partitions are held, and why the others of this server are not. With `refusal` none
    is."""

    request_number: Annotated[int, LONG]
    refusal: Annotated[str | None, NULLABLE_TEXT]
    held: Annotated[tuple[HeldPartition, ...], ListOf(HELD_PARTITION, PARTITIONS_HELD_MAX)]
    not_held: Annotated[tuple[HoldTrouble, ...], HOLD_TROUBLES]


@message(94, since=5, audience=Audience.STRANGERS_SERVER)
class HoldReleaseRequest(Message):
    """End holds of this connection, and ask whether each was in force from its answer until now."""

    request_number: Annotated[int, LONG]
    holds: Annotated[tuple[HoldName, ...], ListOf(HOLD_NAME, PARTITIONS_HELD_MAX)]


@message(95, since=5, audience=Audience.ASKER)
class HoldReleaseAnswer(Message):
    """Name the holds that were in force all the time, and say what broke the others."""

    request_number: Annotated[int, LONG]
    unbroken: Annotated[tuple[HoldName, ...], ListOf(HOLD_NAME, PARTITIONS_HELD_MAX)]
    broken: Annotated[tuple[HoldTrouble, ...], HOLD_TROUBLES]


CUT_MESSAGES: Final = (HoldRequest, HoldAnswer, HoldReleaseRequest, HoldReleaseAnswer)
