"""The histories of a log: one per restore under the same cluster key, with the first IDs of each.

Owns the JSON of the node `history`. A log begins with a history of its own, which the cluster key
names. Each restore with the same key begins another one: transactions from its first ID on are not
those that were written under the same IDs before. Also kept there: the storage directories of the
histories before, in which no node of the cluster may work again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.errors import RemoteProtocolError
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId, TransactionId

HISTORY_FORMAT: Final = 1

HISTORY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the node that are read: the most that a coordinator keeps in one node."""

_NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogHistory:
    """A history that began with a restore.

    firsts               per partition, the first transaction ID of this history.
    retired_directories  the IDs of storage directories that hold the history before this one.
    """

    history_id: UUID
    restored_at_milliseconds: int
    firsts: Mapping[PartitionId, TransactionId]
    retired_directories: tuple[UUID, ...] = ()


def ended_at(
    histories: tuple[LogHistory, ...],
    known: tuple[LogHistory, ...],
    partition_id: PartitionId,
) -> LogHistory | None:
    """Return the history, of those that a copy of the log does not know, that replaced the most of
    a partition: from its first ID on the copy has other transactions than the log. None: there is
    none."""
    ids = {each.history_id for each in known}
    later = [
        each for each in histories if each.history_id not in ids and partition_id in each.firsts
    ]
    return min(later, key=lambda each: each.firsts[partition_id], default=None)


def encode_histories(histories: tuple[LogHistory, ...]) -> bytes:
    """Return the data of the node; the histories are in the order in which they began."""
    return json.dumps(
        {
            "format": HISTORY_FORMAT,
            "histories": [
                {
                    "history": str(each.history_id),
                    "restored_at_milliseconds": each.restored_at_milliseconds,
                    "firsts": {str(p): first for p, first in sorted(each.firsts.items())},
                    "retired_directories": [str(one) for one in each.retired_directories],
                }
                for each in histories
            ],
        }
    ).encode()


def decode_histories(data: bytes) -> tuple[LogHistory, ...]:
    """Return the histories in the data of the node. Raises RemoteProtocolError."""
    if len(data) > HISTORY_BYTES_MAX:
        raise RemoteProtocolError(
            f"the node of histories has {len(data)} bytes; expected at most {HISTORY_BYTES_MAX}"
        )
    try:
        document = json.loads(data)
        if document["format"] != HISTORY_FORMAT:
            raise ValueError(document["format"])
        return tuple(
            LogHistory(
                UUID(each["history"]),
                int(each["restored_at_milliseconds"]),
                {
                    _partition(partition): _first(first)
                    for partition, first in each["firsts"].items()
                },
                tuple(map(UUID, each["retired_directories"])),
            )
            for each in document["histories"]
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RemoteProtocolError(
            f"the node of histories is {data!r:.200}; expected format {HISTORY_FORMAT}"
        ) from None


def _partition(text: str) -> PartitionId:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(PARTITIONS_MAX))):
        raise ValueError(text)
    return PartitionId(int(text))


def _first(value: object) -> TransactionId:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(value)
    return TransactionId(value)
