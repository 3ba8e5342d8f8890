"""The page of the archive's format, printed from the structures that write and read it.

    python -m waltz.archive.archive_document > docs/formats/archive.md

Owns the words around the tables. Offsets and sizes come from the code.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from waltz.archive.archive import HEAD, HINT
from waltz.archive.archiver import MERGED_FILES
from waltz.archive.commits import ORPHAN_MILLISECONDS_MIN
from waltz.archive.durable_directory import STAGING
from waltz.archive.log_object import (
    BLOCK,
    BLOCK_TRANSACTIONS,
    CHECKSUM,
    END_MAGIC,
    FOOTER_BYTES_MAX,
    FORMAT,
    FRAME,
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OBJECT_BYTES_MAX,
    TRAILER,
    TRAILER_BYTES,
)
from waltz.archive.manifest import (
    FULL_EVERY,
    ArchivedFile,
    Cut,
    Manifest,
    TimeMark,
    encode_head,
    encode_manifest,
    manifest_path,
    object_path,
)
from waltz.archive.verification_record import VERIFIED
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId

_ELEMENT: Final = re.compile(r"(\d*)([a-z])", re.IGNORECASE)
_KEY: Final = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
_MADE: Final = 1_790_000_000_000

_UNIQUE: Final = "00112233445566aa"
_OBJECT: Final = object_path(0, 0, 10, _UNIQUE)

HEADER_FIELDS: Final = (
    f"`{MAGIC.decode()}`",
    f"format version, {FORMAT}",
    "cluster key, UUID",
    "partition ID",
    "first transaction ID",
    "number of records, at least 1",
    "reserved, zero",
)
FRAME_FIELDS: Final = (
    "offset of the frame in the object",
    "bytes of the frame",
    "bytes of its records",
    "number of its records",
    "SHA-256 of the frame as it is kept",
)
BLOCK_FIELDS: Final = (
    "transaction ID behind the block's last one",
    "SHA-256 of the block's records",
)
TRAILER_FIELDS: Final = (
    "number of frames",
    "number of blocks",
    "SHA-256 of all records of the object",
)
MANIFEST_FIELDS: Final = (
    ("format", f"{FORMAT}"),
    ("cluster", "the cluster key, as in `archive.json`"),
    ("number", "the manifest's own number, from 0 without a gap"),
    ("previous", "SHA-256 of the bytes of the manifest before; null in the first"),
    ("made", "milliseconds since 1970, by the archiver's clock"),
    ("writer", "a random text: no two manifests are equal"),
    ("full", f"whether it tells everything; true if the number is a multiple of {FULL_EVERY}"),
    ("files", "objects from now on; see below"),
    ("removed", "names of objects no more, each with the time since when"),
    (
        "times",
        "per partition, pairs: a transaction ID, -1 for none, and when all up to it was committed",
    ),
    ("cuts", "per name, a mark per partition (-1: none), and when the cut was made"),
    (
        "coordinator",
        "base64 of the content of each node, by its path below the root; null: as before",
    ),
    ("verified", "per partition, the replicas that held exactly the new records"),
)


def _sizes(layout: struct.Struct) -> Iterator[int]:
    for count, code in _ELEMENT.findall(layout.format):
        yield struct.calcsize(f">{count}{code}")


def table(layout: struct.Struct, names: Sequence[str], *more: tuple[int, str]) -> str:
    """Return the table of a structure and of the fields after it: offset, bytes, field."""
    lines = ["| Offset | Bytes | Field |", "|---|---|---|"]
    offset = 0
    for size, name in [*zip(_sizes(layout), names, strict=True), *more]:
        lines.append(f"| {offset} | {size} | {name} |")
        offset += size
    return "\n".join(lines)


def example() -> Manifest:
    """Return a manifest that has some of everything."""
    file = ArchivedFile(
        object_path(0, 20, 30, _UNIQUE),
        PartitionId(0),
        TransactionId(20),
        TransactionId(30),
        1_000,
        2_000,
        800,
        "a" * 64,
        "b" * 64,
        "c" * 64,
    )
    return Manifest(
        7,
        "d" * 64,
        _MADE,
        "0123456789abcdef",
        files=(file,),
        removed={_OBJECT: _MADE},
        time_marks={PartitionId(0): (TimeMark(TransactionId(29), _MADE),)},
        cuts=(
            Cut("month-end", {PartitionId(0): TransactionId(29), PartitionId(1): NOTHING}, _MADE),
        ),
        nodes={"/notes": b""},
        verified={PartitionId(0): (ReplicaId("db1:55280"), ReplicaId("db2:55280"))},
    )


def archive_tables() -> str:
    """Return the whole text of `docs/formats/archive.md`."""
    return _names() + _object() + _manifests() + _rules()


def _names() -> str:
    return f"""\
# Archives

Printed by `python -m waltz.archive.archive_document`; a test compares this file with the code.

An archive is a set of objects in a directory or below a prefix of a bucket. An object appears whole
and is never changed; only `{HINT}` and `{VERIFIED}` are.

| Name | Content |
|---|---|
| `{HEAD}` | which cluster's log it is |
| `{_OBJECT}` | records 0 to 9 of partition 0 |
| `{manifest_path(7)}` | the eighth step of the archive: what it has from then on |
| `{HINT}` | number and SHA-256 of a manifest not far from the last; may be missing |
| `{VERIFIED}` | JSON: time and result of the last verification; may be missing |
| `{STAGING}/…` | in a directory only: objects being written |

The name of an object of records has the partition, the first ID, the ID behind the last, and a
random number, so that no two writers use one name.

```json
{encode_head(_KEY).decode().strip()}
```
"""


def _object() -> str:
    return f"""
## Objects of records

Integers are big-endian, two's complement. CRC-32 is that of zlib. An object holds at most
{OBJECT_BYTES_MAX} bytes of records of one partition with dense IDs: {HEADER_BYTES} bytes of header,
frames, a footer of at most {FOOTER_BYTES_MAX} bytes.

{table(HEADER, HEADER_FIELDS, (CHECKSUM.size, "CRC-32 of the bytes before it"))}

Frames follow back to back. Each is a frame of zstandard (RFC 8878) that tells its content's size,
and holds whole records exactly as they are in a segment's data file ([disk.md](disk.md)), with both
of their checksums: at most {FRAME_BYTES_MAX} bytes, unless a single record is larger.

The footer begins with a copy of the header. Then there is a row per frame, {FRAME.size} bytes each:

{table(FRAME, FRAME_FIELDS)}

Then a row per block, {BLOCK.size} bytes each. A block ends at each multiple of
{BLOCK_TRANSACTIONS}, and at the end of the object:

{table(BLOCK, BLOCK_FIELDS)}

The last {TRAILER_BYTES} bytes:

{
        table(
            TRAILER,
            TRAILER_FIELDS,
            (CHECKSUM.size, "CRC-32 of all bytes of the footer before it"),
            (len(END_MAGIC), f"`{END_MAGIC.decode()}`"),
        )
    }

So a range of records takes two reads: the footer, whose place its manifest tells, and the frames
that hold the range. Without a manifest the last {TRAILER_BYTES} bytes tell how long the footer is.
"""


def _manifests() -> str:
    rows = "\n".join(f"| `{name}` | {text} |" for name, text in MANIFEST_FIELDS)
    shown = encode_manifest(_KEY, example()).decode().strip()
    return f"""
## Manifests

A manifest is JSON in one line, keys sorted, with a line feed at the end. It is written with "put if
absent", under the number after the last one: of several writers one gets it, so there is one
history.

| Key | Value |
|---|---|
{rows}

An entry of `files` has the name, the partition, `first` and `end` (the ID behind the last), `bytes`
of the object, `raw_bytes` of its records, `footer_at` (the offset of the footer), the SHA-256 of
the whole object, of its footer, and of its records, and `level`: how often its records were moved
into a larger object. `sha256sum` finds the first of these.

A manifest that is not full tells what has changed since the one before. Objects of a partition,
ordered, have all transactions from 0 on without a gap, after each manifest. A full one leaves out
removals older than two days, and all but the last time mark of each hour that is older than a day.

```json
{shown}
```
"""


def _rules() -> str:
    hours = ORPHAN_MILLISECONDS_MIN // 3_600_000
    return f"""
## Rules

- Only committed transactions are archived.
- A manifest is written once every object that it names is durable. In a directory an object is
  written below `{STAGING}`, synced, given its name, and then the directory is synced.
- What no manifest names is removed once it is {hours} hours old; an object whose records are in
  another one, {hours} hours after the manifest that says so.
- {MERGED_FILES} adjoining objects of one level at the end of a partition become one of the next
  level, if their records fit.
- A reader finds the last manifest from `{HINT}` on, by asking for numbers in growing steps and then
  by halves, reads the last full one and those after it, and checks that each names the one before
  it. If the manifest that `{HINT}` names is missing or has another
  SHA-256, that is damage.
- A reader checks every length before it allocates, and a frame's SHA-256 before it unpacks.
"""


if __name__ == "__main__":
    sys.stdout.write(archive_tables())
