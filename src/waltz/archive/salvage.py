"""Reads what is left of a damaged object: records as they can still be unpacked, unchecked.

For naming the first transaction that is not what it was: a caller compares each of these records
with something that is believed, and uses them for nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

from waltz.archive.archive import Archive
from waltz.archive.archive_target import Target
from waltz.archive.log_object import HEADER_BYTES, OBJECT_BYTES_MAX, encode_head
from waltz.archive.manifest import ArchivedFile
from waltz.errors import ArchiveDamagedError, NotFoundError
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES

PIECE_BYTES: Final = 64 * 1024
WINDOW_BYTES_MAX: Final = 1 << 27


def salvaged_records(target: Target, file: ArchivedFile) -> Iterator[bytes]:
    """Yield the records of an object one by one, from its first on, up to one that cannot be
    unpacked, or that is not a record with the ID of its place."""
    try:
        data = target.get(file.path, 2 * OBJECT_BYTES_MAX)
    except (NotFoundError, ArchiveDamagedError):
        return
    position = int(file.first)
    rest = b""
    taken = 0
    for piece in _unpacked(data[HEADER_BYTES : file.footer_offset]):
        taken += len(piece)
        rest += piece
        place = 0
        while len(rest) - place >= RECORD_OVERHEAD_BYTES:
            found, _, _, length, _ = RECORD_HEADER.unpack_from(rest, place)
            if found != position or not 0 <= length <= DATA_BYTES_MAX or position >= file.end:
                return
            end = place + RECORD_OVERHEAD_BYTES + length
            if end > len(rest):
                break
            yield rest[place:end]
            place = end
            position += 1
        rest = rest[place:]
        if taken > file.raw_count:
            return


def header_fault(target: Target, archive: Archive, file: ArchivedFile) -> str | None:
    """Return what is wrong with the first bytes of an object, which no reader of records needs."""
    expected = encode_head(archive.footer(file).head)
    if target.get_range(file.path, 0, HEADER_BYTES) == expected:
        return None
    return f"the first {HEADER_BYTES} bytes of {file.path} were changed; its records were not"


def _unpacked(body: bytes) -> Iterator[bytes]:
    """Yield what frames hold, in pieces, up to the last byte before what is damaged."""
    import zstandard

    def reader() -> zstandard.ZstdDecompressionReader:
        unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        return unpacker.stream_reader(io.BytesIO(body), read_across_frames=True)

    count = 0
    found = reader()
    try:
        while piece := found.read(PIECE_BYTES):
            count += 1
            yield piece
    except zstandard.ZstdError:
        # What was unpacked in the failed call is lost: byte by byte, it is not.
        again = reader()
        for _ in range(count):
            again.read(PIECE_BYTES)
        try:
            while byte := again.read(1):
                yield byte
        except zstandard.ZstdError:
            return
