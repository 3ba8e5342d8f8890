"""Bytes of a storage directory that change behind its node's back, with and without checksums."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from waltz.record import RECORD_HEADER, RECORD_HEADER_BYTES
from waltz.storage.log.segment import SEGMENT_HEADER_BYTES


def change_data(
    node: Path,
    partition: int,
    transaction_id: int,
    *,
    also_record_checksum: bool = False,
    also_data_checksum: bool = False,
) -> None:
    """Change the last byte of a transaction's data in the first segment of a stopped node."""
    path = min((node / str(partition)).glob("*.seg"))
    content = bytearray(path.read_bytes())
    start = SEGMENT_HEADER_BYTES
    while True:
        found, _, _, length, _ = RECORD_HEADER.unpack_from(content, start)
        end = start + RECORD_HEADER_BYTES + length
        if found == transaction_id:
            break
        start = end + 4
    content[end - 1] ^= 0x10
    if also_data_checksum:
        content[start + 32 : start + 36] = crc32(content[start + 36 : end]).to_bytes(4, "big")
    if also_record_checksum:
        content[end : end + 4] = crc32(content[start:end]).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.write(content)
