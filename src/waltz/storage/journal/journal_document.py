"""The tables of a journal, printed from the structures that write and read it.

    python -m waltz.storage.journal.journal_document > docs/formats/journal.md

Owns the words around the tables. Offsets and sizes come from the code.
"""

from __future__ import annotations

import sys
from typing import Final

from waltz.limits import NOTE_TEXT_BYTES_MAX
from waltz.storage.disk_document import table
from waltz.storage.journal.journal_file import JOURNAL_HEADER, JOURNAL_HEADER_BYTES, JOURNAL_VERSION
from waltz.storage.journal.pacing import PACE_SECONDS
from waltz.storage.journal.thinning import (
    CLIENTS_KEPT_MAX,
    CLIENTS_PART,
    JOURNAL_BYTES_MAX,
    JOURNAL_BYTES_MIN,
    JOURNAL_PART,
)
from waltz.storage.log.segment import DATA_SUFFIX, JOURNAL_SUFFIX, NAME_DIGITS
from waltz.wire.journal_entries import (
    CLIENT_NUMBERS,
    CLIENT_TYPE,
    ENTRY_CHECKSUM,
    ENTRY_HEAD,
    NUMBERS,
    ClientsTold,
    ClockSetBack,
    DurableTime,
    EarlierTime,
    JournalOpened,
    LogCut,
    NotesForgotten,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
)
from waltz.wire.journal_facts import IN_FLIGHT_MILLISECONDS

HEADER_FIELDS: Final = (
    '"WJNL"',
    f"format version, {JOURNAL_VERSION}",
    "creation time, milliseconds since 1970",
    "cluster key, UUID",
    "directory ID, UUID",
    "partition ID",
    "first transaction ID of the segment",
)

TIME: Final = "wall time of the node, milliseconds since 1970"

BODIES: Final[dict[type, tuple[str, tuple[str, ...]]]] = {
    DurableTime: (
        "Everything up to this transaction was durable here at this time, and nothing after it.",
        ("transaction ID", TIME, "CRC-32 at the end of its record, 0 for transaction -1"),
    ),
    JournalOpened: (
        "The node has opened the log anew, and held it up to this transaction.",
        ("transaction ID", TIME),
    ),
    ClockSetBack: (
        "The wall clock was set back.",
        (f"before: {TIME}", f"after: {TIME}"),
    ),
    LogCut: (
        "The log was cut after this transaction, not before this time.",
        ("transaction ID", TIME),
    ),
    SessionBegan: (
        (
            "A store session has started here. What the node takes after the session's mark, until"
            " the next session is promised, was given its IDs by this session."
        ),
        ("session ID", "low-water mark", TIME),
    ),
    SessionFenced: (
        "A later session was promised. What the node takes until it starts may be copies.",
        ("session ID", TIME),
    ),
    RecordsRepaired: (
        "Damaged records were replaced from another replica.",
        ("first transaction ID", "last transaction ID", TIME),
    ),
    EarlierTime: (
        (
            "Only in answers: a `DurableTime` whose record is not the one in the log any more. What"
            " comes after the transaction was not here at this time."
        ),
        ("transaction ID", TIME),
    ),
    ClientsTold: (
        (
            "The server of the session has told all clients that have mounted the partition. From"
            " now on a client is noted before what its mount has brought is appended."
        ),
        ("session ID", TIME),
    ),
    NotesForgotten: (
        (
            "Notes of clients are missing. Of those before this entry the latest one of each client"
            " is certain to be here, but for this number of clients, of which there is none."
        ),
        ("number of clients",),
    ),
}


def journal_tables() -> str:
    """Return the whole text of `docs/formats/journal.md`."""
    entries = "".join(
        f"""
### {code} {kind.__name__}

{text}

{table(layout, names)}
"""
        for kind, (code, layout) in sorted(NUMBERS.items(), key=lambda each: each[1][0])
        for text, names in (BODIES[kind],)
    )
    return _file_text() + entries + _rules_text()


def _file_text() -> str:
    return f"""\
# Journals

Printed by `python -m waltz.storage.journal.journal_document`; a test compares this file with the
code.

Next to each segment `{"0" * NAME_DIGITS}{DATA_SUFFIX}` a storage node keeps a journal
`{JOURNAL_SUFFIX}` of the same name: when records became durable, in which store session, and which
clients had mounted the partition. Records, protocols 0 to 4 and the original's files are as they
were; the Java original ignores journals.

A journal is written after the answers to appends were sent, it is never synced, and nothing rests
on it: recovery does not read it, and a node whose journal cannot be written goes on without it.
What is lost, cut off or changed makes answers wider, or lets them say that nothing is recorded.

Integers are big-endian, two's complement. CRC-32 is that of zlib.

## Header

{
        table(
            JOURNAL_HEADER,
            HEADER_FIELDS,
            (str(JOURNAL_HEADER.size), "4", "CRC-32 of the bytes before"),
        )
    }

The header has {JOURNAL_HEADER_BYTES} bytes. A file with another header is another directory's,
partition's or segment's: it is not read, and replaced when the node has something to write. A file
of a later format version is left alone.

## Entries

| Offset | Bytes | Field |
|---|---|---|
| 0 | 1 | type |
| 1 | {ENTRY_HEAD.size - 1} | length n of the body |
| {ENTRY_HEAD.size} | n | body |
| {ENTRY_HEAD.size} + n | {
        ENTRY_CHECKSUM.size
    } | CRC-32 of everything before it, from the first byte\
 of the file on |

Reading ends at the first entry that is cut short, whose checksum does not match, or whose body has
another length than its type. An entry of an unknown type is skipped. The node cuts the rest off
before it continues a journal. In an answer to a `JournalRequest` ([wire.md](wire.md)) the checksums
begin with the first entry.
"""


def _rules_text() -> str:
    return f"""
### {CLIENT_TYPE} ClientNoted

A client has mounted the partition, as its server told.

{
        table(
            CLIENT_NUMBERS,
            ("client ID", TIME),
            (str(CLIENT_NUMBERS.size), "n", "name, principal, address, program and version"),
        )
    }

Each of the four texts is UTF-8 after its length, one byte; at most {NOTE_TEXT_BYTES_MAX} bytes.

## When entries are written

After a drain of appends, if the last pair of times is {PACE_SECONDS:g} s old: the last durable
transaction before the drain with the time when the drain began, and the last one after it with the
time when the drain had ended. If no drain follows, the newest transaction is named
{PACE_SECONDS:g} s after the pair before at the latest, before a question is answered, and when the
node stops. Sessions, cuts, repairs and new segments bring their pair at once. A new journal begins
with the session and the clients that are known; that a note is missing is noted.

A file has at most a part of 1/{JOURNAL_PART} of what its segment may take, at least
{JOURNAL_BYTES_MIN // 1024} KiB and at most {JOURNAL_BYTES_MAX // 1024} KiB. When it is full it is
replaced by one with three quarters of the times, the older ones evenly spaced, and of each client
only the latest note: at most {CLIENTS_KEPT_MAX:,} clients and 1/{CLIENTS_PART} of the file,
the first noted are forgotten first; an entry tells that notes are missing. If that is not enough
the oldest other entries go, together with all before them.

## What entries prove

- A copy of a record became durable on the node between two times: the last one at which it was not
  there, and the first one after that at which it was, if that time's record is still in the log
  with the same checksum. A time of records that were cut and written anew thus proves nothing of
  the new ones, even if no `LogCut` is left.
- Where the node opened the log anew between the two times, or the clock was set back, nothing is
  recorded: entries may be lost, and the two times may be of two clocks.
- A session gave their IDs to the transactions after its mark that are named by a time between
  `SessionBegan` and the next `SessionFenced` or `JournalOpened`. What a node copies to catch up
  lies before that mark, or after a fence.
- The author of a transaction is told if its session has `ClientsTold`: of its client ID the last
  note before the time at which the transaction was not there, those between that time and the one
  at which it was, and those that another note superseded within
  {IN_FLIGHT_MILLISECONDS // 1000} s before. If these name one client, that is the author; if they
  name several, if one of them has no address, or if an earlier note may be forgotten, nothing is
  recorded. The order of the entries counts, no clock but for these seconds.
"""


if __name__ == "__main__":
    sys.stdout.write(journal_tables())
