"""A journal file: the entries of one segment's journal, next to the segment's files.

Owns the file's bytes. Nothing of the log depends on it: it is never synced, and a file that is not
this segment's is not read. Every call opens the file and closes it again.

    offset  size  header
         0     4  "WJNL"
         4     4  format version
         8     8  creation time, milliseconds since 1970
        16    16  cluster key
        32    16  directory ID
        48     4  partition ID
        52     8  first transaction ID of the segment
        60     4  CRC-32 of the bytes before it

then entries back to back, as `waltz.wire.journal_entries` lays them out. Big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID
from zlib import crc32

from waltz.errors import CorruptionError
from waltz.host import Disk, File
from waltz.storage.journal.thinning import thinned
from waltz.storage.log.segment import JOURNAL_SUFFIX, SegmentHome
from waltz.types import TransactionId
from waltz.wire.journal_entries import JournalEntry, ReadEntries, decode_entries, encode_entries

JOURNAL_MAGIC: Final = b"WJNL"
JOURNAL_VERSION: Final = 0
JOURNAL_HEADER: Final = struct.Struct(">4siq16s16siq")
JOURNAL_HEADER_BYTES: Final = JOURNAL_HEADER.size + 4

assert JOURNAL_HEADER_BYTES == 64


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """The directory of a partition's journals, and what their headers must say."""

    home: SegmentHome
    directory_id: UUID
    bytes_max: int
    """The bound of each file."""

    def path(self, first: TransactionId) -> str:
        return self.home.path(first, JOURNAL_SUFFIX)

    def header(self, first: TransactionId, milliseconds: int) -> bytes:
        home = self.home
        fields = JOURNAL_HEADER.pack(
            JOURNAL_MAGIC,
            JOURNAL_VERSION,
            milliseconds,
            home.cluster_key.bytes,
            self.directory_id.bytes,
            home.partition_id,
            first,
        )
        return fields + struct.pack(">I", crc32(fields))

    def is_header(self, header: bytes, first: TransactionId) -> bool:
        """Return whether these are the first bytes of the journal of this segment in this
        directory. Raises CorruptionError: they are, but of a later release's journal."""
        if len(header) != JOURNAL_HEADER_BYTES:
            return False
        fields = header[: JOURNAL_HEADER.size]
        magic, version, milliseconds, *_ = JOURNAL_HEADER.unpack(fields)
        if magic != JOURNAL_MAGIC or struct.pack(">I", crc32(fields)) != header[len(fields) :]:
            return False
        if version > JOURNAL_VERSION:
            raise CorruptionError(
                f"{self.path(first)}: format version {version}; this release knows"
                f" {JOURNAL_VERSION}"
            )
        return header == self.header(first, milliseconds)


def read_journal(place: JournalPlace, first: TransactionId) -> ReadEntries | None:
    """Return the entries of the journal next to segment `first`; None: there is no journal of that
    segment. Raises CorruptionError: it is a later release's; OSError."""
    disk, path = place.home.disk, place.path(first)
    if not disk.exists(path):
        return None
    file = disk.open_to_read(path)
    try:
        content = file.read_at(0, min(file.size(), place.bytes_max))
    finally:
        file.close()
    header = content[:JOURNAL_HEADER_BYTES]
    if not place.is_header(header, first):
        return None
    return decode_entries(content, JOURNAL_HEADER_BYTES, crc32(header))


class JournalFile:
    """The journal of a segment as far as it could be read, to be continued there."""

    def __init__(self, place: JournalPlace, first: TransactionId, milliseconds: int) -> None:
        """A file that is missing, or not this segment's, is made by the first `append`. Raises
        CorruptionError, OSError."""
        self.first = first
        self._place = place
        self._disk = place.home.disk
        self._path = place.path(first)
        found = read_journal(place, first)
        self.is_new = found is None
        """Whether there was no such file."""
        self.entries: Sequence[JournalEntry] = () if found is None else found.entries
        """The entries that were there when it was opened."""
        self._header = place.header(first, milliseconds)
        self._size = self._checksum = 0
        if found is None:
            return
        self._size, self._checksum = found.end, found.checksum
        file = self._disk.open(self._path)
        try:
            self._header = file.read_at(0, JOURNAL_HEADER_BYTES)
            if file.size() > self._size:
                file.truncate(self._size)
        finally:
            file.close()

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Add `entries`; a file that is full is thinned and replaced. Raises OSError,
        CorruptionError: entries that were written are gone."""
        data = encode_entries(entries, self._checksum)
        room = self._place.bytes_max - JOURNAL_HEADER_BYTES
        if not self._size:
            self._replace(entries if len(data) <= room else thinned(entries, room))
            return
        if self._size + len(data) > self._place.bytes_max:
            known = read_journal(self._place, self.first)
            if known is None or known.end != self._size:
                raise CorruptionError(f"{self._path} has lost entries that were written")
            self._replace(thinned([*known.entries, *entries], room))
            return
        file = self._disk.open(self._path)
        try:
            file.write_at(self._size, data)
        finally:
            file.close()
        self._size += len(data)
        self._checksum = crc32(data, self._checksum)

    def _replace(self, entries: Sequence[JournalEntry]) -> None:
        """Replace the file in one step by one with these entries. Raises OSError."""
        content = self._header + encode_entries(entries, crc32(self._header))
        temporary = f"{self._path}.new"
        file: File = _empty_file(self._disk, temporary)
        try:
            file.write_at(0, content)
        finally:
            file.close()
        self._disk.rename(temporary, self._path)
        self._size, self._checksum = len(content), crc32(content)


def _empty_file(disk: Disk, path: str) -> File:
    if not disk.exists(path):
        return disk.open(path, create=True)
    file = disk.open(path)
    try:
        file.truncate(0)
    except OSError:
        file.close()
        raise
    return file
