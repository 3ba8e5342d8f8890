"""The marks of named consumers as the coordinator keeps them: one node per name.

Owns the JSON of a node: {partition: [mark, when it was told, in milliseconds of the wall clock]}.
It is for people: nothing reads it to decide anything. Always: a mark that is kept only grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from waltz.errors import RemoteProtocolError
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId, TransactionId

CONSUMERS_MAX: Final = 1_000
"""Named consumers of a cluster; the marks of more are not kept."""

CONSUMER_PARTITIONS_MAX: Final = 10_000
"""Partitions of one consumer whose marks are kept; those of more are not."""

CONSUMER_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one node that are read."""

_NUMBER_MAX: Final = 2**63 - 1


class KeptMark(NamedTuple):
    """A mark, and when its consumer told it, by the wall clock of the server that heard it."""

    transaction_id: TransactionId
    wall_milliseconds: int


KeptMarks = Mapping[PartitionId, KeptMark]


def encode_kept(marks: KeptMarks) -> bytes:
    """Return the data of a consumer's node."""
    return json.dumps({str(each): list(mark) for each, mark in sorted(marks.items())}).encode()


def decode_kept(data: bytes) -> dict[PartitionId, KeptMark]:
    """Return the marks in the data of a consumer's node. Raises RemoteProtocolError: it is none."""
    if len(data) > CONSUMER_BYTES_MAX:
        raise RemoteProtocolError(
            f"a consumer's node of {len(data)} bytes; expected at most {CONSUMER_BYTES_MAX}"
        )
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise RemoteProtocolError("a consumer's node is no JSON") from None
    if not isinstance(document, dict) or len(document) > CONSUMER_PARTITIONS_MAX:
        raise RemoteProtocolError("a consumer's node is no JSON object of marks")
    found = {}
    for key, value in document.items():
        if not (
            key.isascii()
            and key.isdigit()
            and len(key) <= len(str(PARTITIONS_MAX))
            and isinstance(value, list)
            and [type(each) for each in value] == [int, int]
            and all(-1 <= each <= _NUMBER_MAX for each in value)
        ):
            raise RemoteProtocolError(f"a consumer's node has {key!a:.40}: {value!a:.80}")
        found[PartitionId(int(key))] = KeptMark(TransactionId(value[0]), value[1])
    return found


def merged(kept: KeptMarks, told: KeptMarks) -> dict[PartitionId, KeptMark]:
    """Return `kept` with what was told since: a higher mark, or the same one at a later time.
    Marks of partitions beyond the bound are left out."""
    found = dict(kept)
    for partition_id, mark in told.items():
        before = found.get(partition_id)
        if before is None and len(found) >= CONSUMER_PARTITIONS_MAX:
            continue
        if before is None or mark > before:
            found[partition_id] = mark
    return found
