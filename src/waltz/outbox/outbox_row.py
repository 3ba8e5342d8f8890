"""A row of an outbox, as an application has written it, and as an append.

Owns which rows can be appended, the partition of a key, and how two rows are told apart in the log:
by a digest of header and data. Pure: a row in, an append or the reason why there is none out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from typing import Any, Final
from uuid import UUID

from waltz import PartitionId, PartitionLocalLock, TransactionId
from waltz.errors import LocalProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX

HEADER_MIN: Final = -(2**31)
HEADER_MAX: Final = 2**31 - 1

KEY_CHARACTERS_MAX: Final = 255
"""Characters of a partition key; the column takes no more."""

LOCKS_TEXT_MAX: Final = 60_000
"""Characters of the column `locks`; longer text is not looked at."""

DIGEST_BYTES: Final = 16
ROW_LOCK: Final = "waltz.outbox.row"
LOCK_KINDS: Final = ("write", "read", "append")
MARK: Final = "mark"
LOCKS_EXPECTED: Final = (
    'a JSON object as {"write": [["account", 17]], "read": [], "append": [], "mark": 1041}'
)


@dataclass(frozen=True)
class OutboxRow:
    """A row that can be appended.

    locks_text   the column `locks` as it was written.
    mark         the last transaction of the partition in the state on which the application has
                 decided; write and read locks are compared with it. None: there are none.
    """

    row_id: int
    key: str
    partition_id: PartitionId
    header: int
    data: bytes
    locks_text: str | None = None
    write_locks: tuple[PartitionLocalLock, ...] = ()
    read_locks: tuple[PartitionLocalLock, ...] = ()
    append_locks: tuple[PartitionLocalLock, ...] = ()
    mark: TransactionId | None = None

    @cached_property
    def digest(self) -> bytes:
        return content_digest(self.header, self.data)

    @property
    def can_be_refused(self) -> bool:
        """Whether a lock of the application can keep the row out of the log for good."""
        return bool(self.write_locks or self.read_locks)


@dataclass(frozen=True, slots=True)
class UnfitRow:
    """A row that can never be appended, and why."""

    row_id: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """The columns of a row, of whatever types the database has kept them in; `data` is None for a
    row whose data is too large to be read."""

    row_id: int
    key: str
    header: object
    data: object
    data_bytes: int
    locks: object


def content_digest(header: int, data: bytes) -> bytes:
    """Return a digest that identifies the content of a transaction, 16 bytes."""
    digest = blake2b(header.to_bytes(4, "big", signed=True), digest_size=DIGEST_BYTES)
    digest.update(data)
    return digest.digest()


def partition_of(key: str, partition_count: int) -> PartitionId:
    """Return the partition of a key: the same for as long as `partition_count` is the same."""
    number = int.from_bytes(sha256(key.encode()).digest()[:8], "big")
    return PartitionId(number % partition_count)


def row_lock(outbox_id: UUID, row_id: int) -> PartitionLocalLock:
    """Return the lock of a row, which all relays of the outbox compute alike."""
    name = outbox_id.bytes + row_id.to_bytes(16, "big", signed=True)
    number = int.from_bytes(sha256(name).digest()[:8], "big", signed=True)
    return PartitionLocalLock(ROW_LOCK, number)


def fitted(row: WrittenRow, partition_count: int) -> OutboxRow | UnfitRow:
    """Return the row as an append, or why it can be none."""
    header, data = row.header, row.data
    size = row.data_bytes
    if isinstance(data, str):  # SQLite keeps whatever type was inserted, and counts characters
        data = data.encode()
        size = len(data)
    if size > DATA_BYTES_MAX or data is None:
        reason = f"data of {size} bytes; expected at most {DATA_BYTES_MAX}"
        return UnfitRow(row.row_id, row.key, reason)
    if not isinstance(data, bytes | bytearray | memoryview):
        return UnfitRow(
            row.row_id, row.key, f"data is of type {type(data).__name__}; expected bytes"
        )
    if not isinstance(header, int) or not HEADER_MIN <= header <= HEADER_MAX:
        reason = f"header is {header!r:.40}; expected {HEADER_MIN} to {HEADER_MAX}"
        return UnfitRow(row.row_id, row.key, reason)
    try:
        locks, mark = parsed_locks(row.locks)
    except ValueError as error:
        return UnfitRow(row.row_id, row.key, str(error))
    write, read, append = locks
    text = row.locks if isinstance(row.locks, str) else None
    partition_id = partition_of(row.key, partition_count)
    return OutboxRow(
        row.row_id, row.key, partition_id, header, bytes(data), text, write, read, append, mark
    )


def parsed_locks(
    text: object,
) -> tuple[list[tuple[PartitionLocalLock, ...]], TransactionId | None]:
    """Return the locks of each kind, and the mark. Raises ValueError: the text is no such thing."""
    if text is None or text == "":
        return [(), (), ()], None
    if not isinstance(text, str) or len(text) > LOCKS_TEXT_MAX:
        raise ValueError(f"locks is no text of at most {LOCKS_TEXT_MAX} characters")
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or found.keys() - {*LOCK_KINDS, MARK}:
            raise ValueError
        locks = [_locks(found.get(kind) or []) for kind in LOCK_KINDS]
        mark = found.get(MARK)
        if mark is not None and (type(mark) is not int or not -1 <= mark < 2**63):
            raise ValueError
    except (ValueError, TypeError, RecursionError, LocalProtocolError):
        raise ValueError(f"locks is {text!r:.200}; expected {LOCKS_EXPECTED}") from None
    # One more is the lock of the row.
    if any(len(each) >= LOCKS_MAX for each in locks):
        raise ValueError(f"too many locks; expected fewer than {LOCKS_MAX} of one kind")
    if (locks[0] or locks[1]) and mark is None:
        raise ValueError(
            "write and read locks need a mark, the last transaction of the partition that the"
            " decision was based on; append locks need none"
        )
    return locks, None if mark is None or not (locks[0] or locks[1]) else TransactionId(mark)


def _locks(given: Any) -> tuple[PartitionLocalLock, ...]:
    if not isinstance(given, list):
        raise ValueError
    found = []
    for each in given:
        if not isinstance(each, list) or len(each) != 2 or type(each[1]) is not int:
            raise ValueError
        found.append(PartitionLocalLock(each[0], each[1]))
    return tuple(found)
