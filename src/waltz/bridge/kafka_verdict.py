"""The meaning of an error of Kafka for a transaction: repeat the call, abort, or begin anew.

Owns what librdkafka documents of transactional errors, as a decision by value. Knows no driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
"""Another producer of the same name has begun, or the transaction was older than its timeout and
Kafka has aborted it: the errors are the same, and the progress tells which."""

REFUSED: Final = frozenset(
    {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG"}
)
"""Kafka does not take a record because of its content."""


class Verdict(Enum):
    """The meaning of a failed call of a producer.

    REPEAT   the call has not ended: the same call again.
    REFUSED  a record's content; nothing of the transaction is in Kafka once it is aborted.
    ABORT    nothing of the transaction is in Kafka once it is aborted.
    FENCED   the producer is at its end; somebody else may have taken over.
    ANEW     the producer is at its end; what became of the transaction the progress tells.
    """

    REPEAT = "repeat"
    REFUSED = "refused"
    ABORT = "abort"
    FENCED = "fenced"
    ANEW = "anew"


@dataclass(frozen=True, slots=True)
class KafkaTrouble:
    """An error as the driver tells it."""

    name: str
    text: str
    is_retriable: bool = False
    needs_abort: bool = False
    is_fatal: bool = False

    @property
    def verdict(self) -> Verdict:
        if self.name in FENCED:
            return Verdict.FENCED
        if self.is_fatal:
            return Verdict.ANEW
        if self.name in REFUSED:
            return Verdict.REFUSED
        if self.needs_abort:
            return Verdict.ABORT
        return Verdict.REPEAT if self.is_retriable else Verdict.ANEW
