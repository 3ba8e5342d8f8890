"""Damage: which records of a partition cannot be trusted, and the file that remembers it.

Owns the arithmetic of damaged ranges and `damaged.json`. Damaged is not absent: the records were
durable, so this replica may not vote as if it had never had them, nor as if it had them.

The records that the file calls damaged are examined again when the partition is opened, for they
may be good again. That they were durable stays true until they are cut off; so the file is updated
before a truncation cuts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

from waltz.host import Disk
from waltz.types import TransactionId
from waltz.wire.storage_protocol import DamagedRange as DamagedRange

DAMAGE_FILE_NAME: Final = "damaged.json"
DAMAGE_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FIRST: Final = TransactionId(0)


Damage = tuple[DamagedRange, ...]
"""Damaged ranges, ascending. No range reaches from one segment into the next, and no two ranges of
one segment touch."""


def range_text(damaged: DamagedRange) -> str:
    last = damaged.next_transaction_id - 1
    return f"record {last}" if last == damaged.first else f"records {damaged.first} to {last}"


def damage_text(damage: Sequence[DamagedRange]) -> str:
    """Name the records, for an error message."""
    more = f" and {len(damage) - 5} ranges more" if len(damage) > 5 else ""
    return ", ".join(map(range_text, damage[:5])) + more


def damage_from(damage: Damage, transaction_id: TransactionId) -> DamagedRange | None:
    """Return the first range that ends after `transaction_id`, or None."""
    for found in damage:
        if found.next_transaction_id > transaction_id:
            return found
    return None


def without(damage: Damage, first: TransactionId, next_transaction_id: TransactionId) -> Damage:
    """Return the part of `damage` outside of the records `first` to `next_transaction_id - 1`."""
    left = []
    for start, end in damage:
        if start < min(end, first):
            left.append(DamagedRange(start, min(end, first)))
        if max(start, next_transaction_id) < end:
            left.append(DamagedRange(max(start, next_transaction_id), end))
    return tuple(left)


def left_of(damage: Damage, other: Iterable[DamagedRange]) -> Damage:
    """Return the part of `damage` that is in none of the ranges `other`."""
    for found in other:
        damage = without(damage, *found)
    return damage


def united(
    damage: Iterable[DamagedRange], more: Iterable[DamagedRange], firsts: Sequence[TransactionId]
) -> Damage:
    """Return the ranges of both. Ranges that touch or overlap become one, but never across the
    start of a segment; `firsts` has the starts of all segments."""
    starts = set(firsts)
    result: list[DamagedRange] = []
    for found in sorted([*damage, *more]):
        end = result[-1].next_transaction_id if result else found.first - 1
        if found.first < end or (found.first == end and end not in starts):
            last = result.pop()
            end = max(last.next_transaction_id, found.next_transaction_id)
            found = DamagedRange(last.first, end)
        result.append(found)
    return tuple(result)


class Remembered(NamedTuple):
    """The file's content: the damage, and one past the last record that was durable then."""

    damage: Damage
    durable_next: TransactionId


NONE: Final = Remembered((), FIRST)


class DamageFile:
    """`damaged.json` in a partition's directory; it does not exist while nothing is damaged."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{DAMAGE_FILE_NAME}"

    def load(self) -> Remembered | None:
        """Return the file's content; None: the file is there and cannot be trusted.

        Raises OSError.
        """
        if not self._disk.exists(self._path):
            return NONE
        file = self._disk.open(self._path)
        try:
            content = file.read_at(0, DAMAGE_FILE_BYTES_MAX)
        finally:
            file.close()
        return decode_damage(content)

    def save(self, damage: Damage, durable_next: TransactionId) -> None:
        """Write the file; return once that is durable. Raises OSError."""
        if not damage:
            if self._disk.exists(self._path):
                self._disk.remove(self._path)
                self._disk.sync_directory(self._directory)
            return
        temporary = f"{self._path}.new"
        if self._disk.exists(temporary):
            self._disk.remove(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.write_at(0, encode_damage(damage, durable_next))
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, self._path)
        self._disk.sync_directory(self._directory)


class KnownDamage:
    """The damage of an open partition, in memory and, as far as its disk allows, in the file."""

    def __init__(self, file: DamageFile) -> None:
        self.ranges: Damage = ()
        self._file = file
        self._remembered: Remembered | None = NONE
        """The file's content; None: it cannot be trusted."""

    def load(self) -> Remembered | None:
        """Start anew from the file and return its content; None: it cannot be trusted. Raises
        OSError."""
        self.ranges = ()
        self._remembered = self._file.load()
        return self._remembered

    def replace(
        self,
        first: TransactionId,
        next_transaction_id: TransactionId,
        found: Damage,
        *,
        firsts: Sequence[TransactionId],
    ) -> None:
        """Replace the damage among the records `first` to `next_transaction_id - 1` by `found`."""
        self.ranges = united(without(self.ranges, first, next_transaction_id), found, firsts)

    def at(self, transaction_id: TransactionId) -> DamagedRange | None:
        """Return the range that the record is in, or None."""
        found = damage_from(self.ranges, transaction_id)
        return None if found is None or found.first > transaction_id else found

    def remember(self, durable_next: TransactionId) -> None:
        """Write the known damage to the file, if it has changed and the disk allows.

        A disk that refuses must not keep good records from being read; the next call tries again.
        """
        if self._remembered is None or self.ranges != self._remembered.damage:
            with suppress(OSError):
                self.save(durable_next)

    def save(self, durable_next: TransactionId) -> None:
        """Write the known damage to the file. Raises OSError."""
        known = Remembered(self.ranges, durable_next) if self.ranges else NONE
        if known != self._remembered:
            self._file.save(*known)
            self._remembered = known


def encode_damage(damage: Damage, durable_next: TransactionId) -> bytes:
    """Return the content of the file: ranges as pairs, the end, and the CRC-32 of their text."""
    ranges = [[int(first), int(following)] for first, following in damage]
    checksum = _checksum(ranges, durable_next)
    content = {"damaged": ranges, "durable_next": durable_next, "crc32": checksum}
    return json.dumps(content).encode() + b"\n"


def decode_damage(content: bytes) -> Remembered | None:
    """Return the content as values; None if it does not check out."""
    try:
        found = json.loads(content)
        ranges = [[int(first), int(following)] for first, following in found["damaged"]]
        durable_next = int(found["durable_next"])
        if found["crc32"] != _checksum(ranges, durable_next):
            return None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    damage = tuple(
        DamagedRange(TransactionId(first), TransactionId(following)) for first, following in ranges
    )
    return Remembered(damage, TransactionId(durable_next))


def _checksum(ranges: list[list[int]], durable_next: int) -> int:
    return crc32(json.dumps([ranges, durable_next]).encode())
