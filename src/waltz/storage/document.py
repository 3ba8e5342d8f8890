"""The tables of the files on disk, printed from the structures that write and read them.

    python -m waltz.storage.document > docs/formats/disk.md

Owns the words around the tables. Offsets and sizes come from the code.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from waltz.limits import DATA_BYTES_MAX, INDEX_CHECKPOINT_RECORDS, SEGMENT_BYTES_THRESHOLD
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES
from waltz.storage.control_file import (
    ASSIGNED,
    AVAILABLE,
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    PARTITION_BYTES,
    PARTITION_ID,
    PARTITION_STRUCT,
    STRUCT_BYTES,
)
from waltz.storage.segment import (
    DATA_SUFFIX,
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    NAME_DIGITS,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
)

_ELEMENT: Final = re.compile(r"(\d*)([a-z])", re.IGNORECASE)

CONTROL_HEADER_FIELDS: Final = (
    "format version, 0",
    "creation time, milliseconds since 1970",
    "cluster key, UUID",
    "number of partitions of the whole cluster",
    "reserved, zero",
)
PARTITION_STRUCT_FIELDS: Final = (
    "session ID, -1 when fresh",
    "low-water mark: the cluster's high-water mark when the session began, -1 when fresh",
    "local low-water mark: what this replica held and had synced then, -1 when fresh",
    f"flags: {AVAILABLE} available, {ASSIGNED} assigned",
    "sequence number of the struct; fresh: -1 in the first, 0 in the second",
)
SEGMENT_HEADER_FIELDS: Final = (
    "format version, 0",
    "creation time, milliseconds since 1970",
    "cluster key, UUID",
    "partition ID",
    "first transaction ID",
    "reserved, zero",
)
RECORD_FIELDS: Final = (
    "transaction ID",
    "request ID: client ID, generation, partition ID, sequence number",
    "transaction header",
    f"data length n, at most {DATA_BYTES_MAX}",
    "CRC-32 of the data, as the client computed it",
)


def field_sizes(layout: struct.Struct) -> Iterator[int]:
    """Bytes of each field, in order."""
    for count, code in _ELEMENT.findall(layout.format):
        yield struct.calcsize(f">{count}{code}")


def table(layout: struct.Struct, names: Sequence[str], *more: tuple[str, str, str]) -> str:
    """Return the table of a structure and of what follows it: offset, bytes, field."""
    lines = ["| Offset | Bytes | Field |", "|---|---|---|"]
    offset = 0
    for size, name in zip(field_sizes(layout), names, strict=True):
        lines.append(f"| {offset} | {size} | {name} |")
        offset += size
    lines += (f"| {place} | {size} | {name} |" for place, size, name in more)
    return "\n".join(lines)


def disk_tables() -> str:
    """Return the whole text of `docs/formats/disk.md`."""
    return _control_file_text() + _segment_text()


def _control_file_text() -> str:
    return f"""\
# Files of a storage node

Printed by `python -m waltz.storage.document`; a test compares this file with the code.

Integers are big-endian, two's complement. CRC-32 is that of zlib. A storage directory holds
`{CONTROL_FILE_NAME}` and, per assigned partition, a directory named by the partition ID.
In it each segment is a data file `{"0" * NAME_DIGITS}{DATA_SUFFIX}` and an index file
`{INDEX_SUFFIX}`, named by the first transaction ID in {NAME_DIGITS} digits.

## Control file

A header of {CONTROL_HEADER.size} bytes, then {PARTITION_BYTES} bytes per partition.

{table(CONTROL_HEADER, CONTROL_HEADER_FIELDS)}

Partition p, from byte {CONTROL_HEADER.size} + {PARTITION_BYTES} p:

| Offset | Bytes | Field |
|---|---|---|
| 0 | {PARTITION_ID.size} | partition ID |
| {PARTITION_ID.size} | {STRUCT_BYTES} | first struct |
| {PARTITION_ID.size + STRUCT_BYTES} | {STRUCT_BYTES} | second struct |

A struct:

{
        table(
            PARTITION_STRUCT,
            PARTITION_STRUCT_FIELDS,
            (str(PARTITION_STRUCT.size), "4", "CRC-32 of the bytes before it"),
        )
    }

The valid struct with the larger sequence number counts. An update goes into the other one, with the
next sequence number, and is synced. If neither is valid, or both have one number, the partition
refuses service; the others are not concerned.
"""


def _segment_text() -> str:
    checksum_offset = RECORD_HEADER.size
    return f"""
## Segment

Both files start with {SEGMENT_HEADER_BYTES} bytes:

{table(SEGMENT_HEADER, SEGMENT_HEADER_FIELDS)}

In the data file records follow, back to back, up to its end:

{
        table(
            RECORD_HEADER,
            RECORD_FIELDS,
            (str(checksum_offset), "n", "data"),
            (f"{checksum_offset} + n", "4", "CRC-32 of all bytes of the record before it"),
        )
    }

A record takes {RECORD_OVERHEAD_BYTES} bytes and its data. In the index file there is per record the
offset of its first byte in the data file, {INDEX_ENTRY_BYTES} bytes each. An entry is written once
its record is synced; the index is synced each time a multiple of {INDEX_CHECKPOINT_RECORDS}
transactions has been passed. A segment larger than {SEGMENT_BYTES_THRESHOLD} bytes
(`storage.segment.size.threshold`) is complete; the next append starts a new one.

## What is trusted when a segment is opened

All records of a complete segment must be there. In the last one every record must be there up to
the local low-water mark, and below the last multiple of {INDEX_CHECKPOINT_RECORDS} that has an
index entry. Damage there is never cut: the partition refuses service. From there on records are
kept as far as they check out, and what follows is cut as a torn write: among the last
{INDEX_CHECKPOINT_RECORDS - 1} records above the mark, the two look the same.
"""


if __name__ == "__main__":
    sys.stdout.write(disk_tables())
