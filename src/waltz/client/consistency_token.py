"""Consistency tokens: how far the log must have been applied for a user to read what that user
has written.

Owns the token's text, which travels through HTTP headers and comes back from anybody. Knows no
client and no database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from waltz.errors import LocalProtocolError
from waltz.types import NOTHING, PartitionId, TransactionId

TOKEN_PARTITIONS_MAX: Final = 100
"""Partitions of a token: its text then stays below the 4 KiB that HTTP servers take in a header."""

DROP_IT: Final = "Drop the token, and read what is there now."

_NUMBER: Final = r"(?:0|[1-9][0-9]{0,18})"
_MARKS: Final = rf"{_NUMBER}=(?:-1|{_NUMBER})"
_TEXT: Final = re.compile(rf"1\.([0-9a-f]{{32}})((?:\.{_MARKS}){{0,{TOKEN_PARTITIONS_MAX}}})")
TOKEN_CHARACTERS_MAX: Final = 2 + 32 + TOKEN_PARTITIONS_MAX * (1 + 19 + 1 + 19)
"""Characters of the longest text; a longer one is refused unread."""

_PARTITION_MAX: Final = (1 << 31) - 1
_TRANSACTION_MAX: Final = (1 << 63) - 1

LOOK_SECONDS_MIN: Final = 0.005
LOOK_SECONDS_MAX: Final = 0.1
"""Seconds between two looks whether a token's transactions have been applied: the first pause, and
the longest after doubling."""


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each further look, without end."""
    seconds = LOOK_SECONDS_MIN
    while True:
        yield seconds
        seconds = min(2 * seconds, LOOK_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class ConsistencyToken:
    """The history of a log, and the last transaction of each partition that must have been applied.

    `str` makes a text of ASCII characters that may stand in an HTTP header, a cookie or a URL;
    `parse` reads it. `a | b` requires what either of the two requires.
    """

    history: UUID
    marks: Mapping[PartitionId, TransactionId]

    @classmethod
    def of(cls, history: UUID, marks: Mapping[int, int]) -> Self:
        """Return the token with these marks. Raises LocalProtocolError: too many partitions, or
        numbers that no log has."""
        if len(marks) > TOKEN_PARTITIONS_MAX:
            raise LocalProtocolError(
                f"a token of {len(marks)} partitions; at most {TOKEN_PARTITIONS_MAX} are allowed"
            )
        for partition_id, transaction_id in marks.items():
            if not 0 <= partition_id <= _PARTITION_MAX:
                raise LocalProtocolError(f"a token with partition {partition_id}")
            if not NOTHING <= transaction_id <= _TRANSACTION_MAX:
                raise LocalProtocolError(f"a token with transaction {transaction_id}")
        return cls(
            history,
            {PartitionId(each): TransactionId(marks[each]) for each in sorted(marks)},
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the token with this text. Raises LocalProtocolError: it is no token's text."""
        found = _TEXT.fullmatch(text) if len(text) <= TOKEN_CHARACTERS_MAX else None
        if found is None:
            raise LocalProtocolError(f"{text[:80]!r} is no consistency token")
        pairs = [each.split("=") for each in found[2].split(".")[1:]]
        marks = {int(partition): int(transaction) for partition, transaction in pairs}
        if len(marks) != len(pairs):
            raise LocalProtocolError(f"{text[:80]!r} names a partition twice")
        return cls.of(UUID(found[1]), marks)

    def __str__(self) -> str:
        marks = "".join(f".{partition}={mark}" for partition, mark in self.marks.items())
        return f"1.{self.history.hex}{marks}"

    def __or__(self, other: ConsistencyToken) -> ConsistencyToken:
        """Raises LocalProtocolError: the tokens are of two histories, or have too many partitions
        together."""
        if other.history != self.history:
            raise LocalProtocolError(
                f"a token of history {self.history} and one of history {other.history} have no"
                " common log"
            )
        marks: dict[int, int] = {}
        for partition_id, mark in (*self.marks.items(), *other.marks.items()):
            marks[partition_id] = max(mark, marks.get(partition_id, NOTHING))
        return ConsistencyToken.of(self.history, marks)
