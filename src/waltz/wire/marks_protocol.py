"""Messages about the ends of a server's partitions: 100 and 101 of the client protocol.

Owns these messages. Both sides use them only if both have the feature MARKS
(docs/decisions/0058-a-source-of-many-partitions.md).
"""

from __future__ import annotations

from typing import Annotated, Final

from waltz.limits import PARTITIONS_MAX
from waltz.wire.fields import INT, LONG, Numbers
from waltz.wire.message import Audience, Message, message

PARTITION_IDS: Final = Numbers(INT, "i", PARTITIONS_MAX)
MARKS: Final = Numbers(LONG, "q", PARTITIONS_MAX)


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


MARKS_MESSAGES: Final = (MarksRequest, MarksAnswer)
