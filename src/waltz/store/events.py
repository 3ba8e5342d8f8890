"""The events that a store partition tells its server.

Per partition, events come in this order: one `StoreOpened`, any number of outcomes, one
`StoreClosed`, and so on again. Outcomes come in the order of the appends: `Committed` settles one
of the oldest appends per record of its batch, `AppendsFailed` settles `count` of them. An outcome
that a change of sessions brings to light comes just before the `StoreOpened` of the new session,
which announces a mark that already includes it. Once the partition is closed, or has a later owner,
nothing follows: what is undecided then stays unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from waltz.record import RecordBatch
from waltz.types import SessionId, TransactionId


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """A session has recovered the log up to `high_water_mark` and takes appends."""

    session_id: SessionId
    high_water_mark: TransactionId


@dataclass(frozen=True, slots=True)
class Committed:
    """The oldest undecided appends are in the log; `batch` is what was written for them."""

    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class AppendsFailed:
    """The `count` oldest undecided appends are proved not to be in the log, now and for ever."""

    count: int


@dataclass(frozen=True, slots=True)
class StoreClosed:
    """The session is over; a new one is on its way, or the partition is closed or another's."""

    reason: str


StoreEvent: TypeAlias = StoreOpened | Committed | AppendsFailed | StoreClosed
