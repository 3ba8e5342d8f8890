"""The tables of the files on disk, printed from the structures that write and read them.

    python -m waltz.storage.disk_document > docs/formats/disk.md

Owns the words around the tables. Offsets and sizes come from the code.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from waltz.limits import (
    DATA_BYTES_MAX,
    INDEX_CHECKPOINT_RECORDS,
    INDEX_SYNC_BYTES,
    INDEX_SYNC_RECORDS,
    OPEN_CHECK_BYTES,
    OPEN_CHECK_RECORDS,
    SEGMENT_BYTES_THRESHOLD,
)
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES
from waltz.storage.directory.control_struct import (
    ASSIGNED,
    AVAILABLE,
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    PARTITION_BYTES,
    PARTITION_ID,
    PARTITION_STRUCT,
    READS_DIFFER,
    STRUCT_BYTES,
)
from waltz.storage.directory.node_file import (
    AREA_ALIGNMENT_BYTES,
    INDEX_IS_OURS,
    IS_TRACED,
    NODE_FILE_NAME,
    NODE_HEADER,
    NODE_HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
)
from waltz.storage.directory.reserve import RESERVE_NAME
from waltz.storage.directory.trace_file import TRACE, TRACE_BYTES, TRACE_FILE_NAME
from waltz.storage.log.damage import DAMAGE_FILE_NAME, encode_damage
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    JOURNAL_SUFFIX,
    NAME_DIGITS,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
    SET_ASIDE_SUFFIX,
)
from waltz.types import TransactionId
from waltz.wire.storage_protocol import DamagedRange

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
    f"flags: {AVAILABLE} writable, {READS_DIFFER} reads differ from writes, {ASSIGNED} assigned",
    "sequence number of the struct; fresh: -1 in the first, 0 in the second",
)
NODE_HEADER_FIELDS: Final = (
    "format version, 0",
    "creation time, milliseconds since 1970",
    "cluster key, UUID",
    "number of partitions of the whole cluster",
    "directory ID, UUID",
    "creation time of the control file",
    "reserved, zero",
)
SLOT_FIELDS: Final = (
    "partition ID",
    f"flags: {INDEX_IS_OURS} this release wrote the index last, {IS_TRACED} the trace file holds",
    "session fence: every session below it is refused, -1 for none",
    "copy of the partition's current struct in the control file, zeros for none",
    "sequence number of the slot, from 1",
)
TRACE_FIELDS: Final = (
    "partition ID",
    "number of the update, from 1",
    "first transaction ID of the newest segment",
    "transaction ID before which every record was durable",
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
    """Yield the size of each field in bytes, in order."""
    for count, code in _ELEMENT.findall(layout.format):
        yield struct.calcsize(f">{count}{code}")


def table(layout: struct.Struct, names: Sequence[str], *more: tuple[str, str, str]) -> str:
    """Return the table of a structure and of the fields after it: offset, bytes, field."""
    lines = ["| Offset | Bytes | Field |", "|---|---|---|"]
    offset = 0
    for size, name in zip(field_sizes(layout), names, strict=True):
        lines.append(f"| {offset} | {size} | {name} |")
        offset += size
    lines += (f"| {place} | {size} | {name} |" for place, size, name in more)
    return "\n".join(lines)


def disk_tables() -> str:
    """Return the whole text of `docs/formats/disk.md`."""
    return (
        _control_file_text() + _node_file_text() + _segment_text() + _trust_text() + _damage_text()
    )


def _control_file_text() -> str:
    return f"""\
# Files of a storage node

Printed by `python -m waltz.storage.disk_document`; a test compares this file with the code.

Integers are big-endian, two's complement. CRC-32 is that of zlib. A storage directory holds
`{CONTROL_FILE_NAME}`, `{NODE_FILE_NAME}` and, per assigned partition, a directory
named by the partition ID. In it each segment is a data file
`{"0" * NAME_DIGITS}{DATA_SUFFIX}` and an index file `{
        INDEX_SUFFIX
    }`, named by the first transaction ID in {NAME_DIGITS} digits.
Journals, `{JOURNAL_SUFFIX}`, have a page of their own: [journal.md](journal.md).
`{RESERVE_NAME}` has no content, only space that is allocated to it: the node gives it back
when the disk is full.

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
next sequence number, and is synced; then a copy of it goes into the node file. If a struct is not
valid and the copy is one update ahead of the other one, the copy takes its place; likewise if
neither is valid, or both have one number. Without a copy the partition then refuses service; the
others are not concerned.

Servers may read a partition if just one of the flags {AVAILABLE} and {READS_DIFFER} is set. The
Java original knows flag {AVAILABLE} only, for reads and writes, and calls it available.
"""


def _node_file_text() -> str:
    return f"""
## Node file

Unknown to the Java original, which leaves it alone. Two equal areas, the first from byte 0, the
second from the next multiple of {AREA_ALIGNMENT_BYTES}. An area is a header of
{NODE_HEADER_BYTES} bytes, then {SLOT_BYTES} bytes per partition.

{
        table(
            NODE_HEADER,
            NODE_HEADER_FIELDS,
            (str(NODE_HEADER.size), "4", "CRC-32 of the bytes before it"),
        )
    }

Slot of partition p, from byte {NODE_HEADER_BYTES} + {SLOT_BYTES} p of each area; zeros where
nothing was ever written:

{table(SLOT, SLOT_FIELDS, (str(SLOT.size), "4", "CRC-32 of the bytes before it"))}

An update writes the slot in the first area and syncs, then in the second and syncs. Of two valid
slots the one with the larger sequence number counts, and the other one is made equal when the file
is opened. If neither is valid the partition refuses service until it is given up and taken again.
Flag {INDEX_IS_OURS} holds only while the copy equals the current struct: nobody else has written
since. Flag {IS_TRACED} holds only together with it; a release that does not know it clears it.

## Trace file

`{
        TRACE_FILE_NAME
    }`, unknown to the Java original. Two equal areas, the first from byte 0, the second
from the next multiple of {AREA_ALIGNMENT_BYTES}, of {TRACE_BYTES} bytes per partition; zeros where
nothing was ever written:

{
        table(
            TRACE,
            TRACE_FIELDS,
            (str(TRACE.size), "4", "CRC-32 of the directory ID and the bytes before it"),
            (str(TRACE.size + 4), "4", "reserved, zero"),
        )
    }

A segment is made before its trace is written, and the trace is changed before a segment is removed.
So the newest segment that a trace names is there, and every record before its last number; else
they were lost. The partition then forgets its session in the control file, and so does not vote,
until it was filled up.
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
offset of its first byte in the data file, {INDEX_ENTRY_BYTES} bytes each. A segment larger than
{SEGMENT_BYTES_THRESHOLD} bytes (`storage.segment.size.threshold`) is complete; the next append
starts a new one.

Entries are written right after the sync of their records and before its answer, so that they never
name what is not durable. They are synced when the next transaction ID is a multiple of
{INDEX_SYNC_RECORDS}, before any entry behind it is written; after {INDEX_SYNC_BYTES} bytes of
records; and when a segment is complete, a session begins, records are cut, files are closed, and
after recovery. After a power cut entries behind the last sync may be missing, or zero. The original
writes an entry before its record, and syncs the index at each multiple of
{INDEX_CHECKPOINT_RECORDS}.

Space is reserved ahead of the end of both files; their sizes are those of what was written. It is
given back when a segment is complete or closed.
"""


def _trust_text() -> str:
    return f"""
## What is trusted when a segment is opened

A record was durable if any of these says so:

- It is in a segment that is not the last: that was synced before the next one was made.
- The local low-water mark covers it.
- The index reaches into a later thousand than its own, whoever wrote it.
- The index has an entry for it or a later one, or `{DAMAGE_FILE_NAME}` says so, and flag
  {INDEX_IS_OURS} of the node file says that these are this release's.

What was durable and does not check out, by transaction ID, length and checksum, is damaged. It is
never cut, and the log does not get shorter. Anything behind is a torn tail: kept as far as it
checks out, and cut from there.

At every opening the headers, the sizes and the last record of each segment are looked at, and of
the last segment the newest records, up to {OPEN_CHECK_RECORDS} in {OPEN_CHECK_BYTES} bytes. If its
index is not whole or cannot be trusted, all records behind the last multiple of
{INDEX_SYNC_RECORDS} are, or from an earlier one on if the entry there is missing. What lies before
is checked when it is read, and by the scrubber.

An index entry that is wrong is put right from the data; an index file that is missing, or another
segment's, is rebuilt. A data file that is missing, or whose header is not its own, is damaged as a
whole; if its index file names the same other cluster or release, the partition refuses service.
The time of creation in a header is for people, and not checked.

## Damage

Behind a damaged record the log goes on where its length says or where the index says, if the record
there checks out. Good records are served; damaged ones are refused, and so are votes: requests for
the last session, for the last transaction ID, and for a new low-water mark. Cutting the log before
the first damaged record ends damage, and so does repair: records from another replica in the same
place, where they have to fit exactly between the good ones around them. If no good record follows,
the next append starts a new segment. A data file that is made anew leaves one that was not its own
beside it, with `{SET_ASIDE_SUFFIX}` at the end of its name.
"""


def _damage_text() -> str:
    example = (
        DamagedRange(TransactionId(17), TransactionId(20)),
        DamagedRange(TransactionId(42), TransactionId(43)),
    )
    return f"""
`{DAMAGE_FILE_NAME}` in a partition's directory remembers damaged ranges, each by its first
transaction ID and the one behind its last, and the ID behind all that was durable then, with the
CRC-32 of the JSON text `[damaged, durable_next]`:

```json
{encode_damage(example, TransactionId(50)).decode().strip()}
```

It is replaced in one step and is not there while nothing is damaged; it goes before a truncation
cuts. At opening the ranges in it are looked at again, and all records if it does not check out.
The original does not know it.
"""


if __name__ == "__main__":
    sys.stdout.write(disk_tables())
