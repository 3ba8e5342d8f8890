"""The entries of a journal: what a storage node notes of times, sessions and clients next to its
records. The same bytes lie in a journal file and in the answer to a `JournalRequest`.

Owns the entries and their bytes. Knows neither files nor what follows from entries
(`journal_facts.py`).

    offset  size
         0     1  type
         1     2  length n of the body
         3     n  body
     3 + n     4  CRC-32 of everything before it, from the first byte of the file or answer on

Big-endian. All times are wall times of the node that wrote the entry, in milliseconds since 1970.
The checksums are a chain, so that reading ends where a byte was lost or changed: what is read is
always the beginning of what was written. An entry of an unknown type is skipped; a type without
which the entries after it would mean something else raises the format version of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from waltz.limits import NOTE_TEXT_BYTES_MAX
from waltz.types import ClientId, SessionId, TransactionId

ENTRY_HEAD: Final = struct.Struct(">BH")
ENTRY_CHECKSUM: Final = struct.Struct(">I")
ENTRY_OVERHEAD_BYTES: Final = ENTRY_HEAD.size + ENTRY_CHECKSUM.size


class DurableTime(NamedTuple):
    """At this time everything up to this transaction was durable here, and nothing after it. The
    checksum is that of the transaction's record, the last four bytes of it on disk, 0 for none: if
    the log holds another record there now, the entry says nothing of the records that are there
    now."""

    transaction_id: TransactionId
    milliseconds: int
    checksum: int


class EarlierTime(NamedTuple):
    """The time of records that have been replaced since: what comes after the transaction was not
    here at this time. Only in answers, where it stands for a `DurableTime` whose record is gone."""

    transaction_id: TransactionId
    milliseconds: int


class JournalOpened(NamedTuple):
    """The node has opened the files anew, and held the log up to this transaction; what was noted
    last before may be lost, and the clock may have been set meanwhile."""

    transaction_id: TransactionId
    milliseconds: int


class ClockSetBack(NamedTuple):
    """The wall clock was set back, from a time that was read before to one that was read later."""

    before_milliseconds: int
    milliseconds: int


class LogCut(NamedTuple):
    """The log was cut after this transaction: what comes after it was written later than this."""

    transaction_id: TransactionId
    milliseconds: int


class SessionBegan(NamedTuple):
    """A store session has started here; the transactions after its mark that the node takes from
    now on were given their IDs by this session."""

    session_id: SessionId
    low_water_mark: TransactionId
    milliseconds: int


class SessionFenced(NamedTuple):
    """A later session was promised: what the node takes until it starts may be copies."""

    session_id: SessionId
    milliseconds: int


class RecordsRepaired(NamedTuple):
    """Damaged records were replaced from another replica, from the first to the last."""

    first_transaction_id: TransactionId
    last_transaction_id: TransactionId
    milliseconds: int


class ClientNoted(NamedTuple):
    """A client has mounted the partition, as its server told; any text may be empty."""

    client_id: ClientId
    milliseconds: int
    name: str
    principal: str
    address: str
    program: str


class ClientsTold(NamedTuple):
    """The server of this session has told which clients have mounted the partition. From now on a
    client is noted before the session's first append that its mount has brought."""

    session_id: SessionId
    milliseconds: int


class NotesForgotten(NamedTuple):
    """A gap in the notes: of those before this entry only the latest one of each client is certain
    to be left, and none of `client_count` clients is."""

    client_count: int


JournalEntry: TypeAlias = (
    DurableTime
    | EarlierTime
    | JournalOpened
    | ClockSetBack
    | LogCut
    | SessionBegan
    | SessionFenced
    | RecordsRepaired
    | ClientNoted
    | ClientsTold
    | NotesForgotten
)

NUMBERS: Final[dict[type[Any], tuple[int, struct.Struct]]] = {
    DurableTime: (1, struct.Struct(">qqI")),
    JournalOpened: (2, struct.Struct(">qq")),
    ClockSetBack: (3, struct.Struct(">qq")),
    LogCut: (4, struct.Struct(">qq")),
    SessionBegan: (5, struct.Struct(">qqq")),
    SessionFenced: (6, struct.Struct(">qq")),
    RecordsRepaired: (7, struct.Struct(">qqq")),
    EarlierTime: (9, struct.Struct(">qq")),
    ClientsTold: (10, struct.Struct(">qq")),
    NotesForgotten: (11, struct.Struct(">q")),
}
"""The type byte and the body of each kind of entry that is nothing but numbers."""

CLIENT_TYPE: Final = 8
CLIENT_NUMBERS: Final = struct.Struct(">iq")
"""The numbers of a client's note; its four texts follow, each after its length, one byte."""

_BY_TYPE: Final[dict[int, tuple[Callable[[Iterable[Any]], JournalEntry], struct.Struct]]] = {
    code: (kind._make, layout) for kind, (code, layout) in NUMBERS.items()
}


def note_text(text: str) -> str:
    """Return `text` cut to what a client's note holds, without control characters."""
    shown = "".join(each if each.isprintable() else "?" for each in text[:NOTE_TEXT_BYTES_MAX])
    return shown.encode("utf-8", "replace")[:NOTE_TEXT_BYTES_MAX].decode("utf-8", "ignore")


def encode_entry(entry: JournalEntry, checksum: int) -> bytes:
    """Return the bytes of `entry`; `checksum` is the CRC-32 of everything before it."""
    if isinstance(entry, ClientNoted):
        code, parts = CLIENT_TYPE, [CLIENT_NUMBERS.pack(*entry[:2])]
        for text in entry[2:]:
            data = note_text(text).encode()
            parts.append(bytes([len(data)]) + data)
        body = b"".join(parts)
    else:
        code, layout = NUMBERS[type(entry)]
        body = layout.pack(*entry)
    data = ENTRY_HEAD.pack(code, len(body)) + body
    return data + ENTRY_CHECKSUM.pack(crc32(data, checksum))


def encode_entries(entries: Iterable[JournalEntry], checksum: int = 0) -> bytes:
    """Return the bytes of `entries`, one after the other; `checksum` as in `encode_entry`."""
    parts = []
    for entry in entries:
        data = encode_entry(entry, checksum)
        checksum = crc32(data, checksum)
        parts.append(data)
    return b"".join(parts)


class ReadEntries(NamedTuple):
    """The entries that were read, the byte where reading ended, and the CRC-32 up to there."""

    entries: Sequence[JournalEntry]
    end: int
    checksum: int


def decode_entries(data: bytes, start: int = 0, checksum: int = 0) -> ReadEntries:
    """Return the entries from byte `start` on, up to the first byte that is lost or changed;
    `checksum` is the CRC-32 of the bytes before `start`."""
    entries: list[JournalEntry] = []
    position = start
    while position + ENTRY_OVERHEAD_BYTES <= len(data):
        code, length = ENTRY_HEAD.unpack_from(data, position)
        body = position + ENTRY_HEAD.size
        end = body + length
        if end + ENTRY_CHECKSUM.size > len(data):
            break
        found = crc32(data[position:end], checksum)
        if ENTRY_CHECKSUM.unpack_from(data, end)[0] != found:
            break
        try:
            entry = _decode_body(code, data[body:end])
        except (struct.error, IndexError, UnicodeDecodeError):
            break
        if entry is not None:
            entries.append(entry)
        position = end + ENTRY_CHECKSUM.size
        checksum = crc32(data[end:position], found)
    return ReadEntries(entries, position, checksum)


def _decode_body(code: int, body: bytes) -> JournalEntry | None:
    """Return the entry; None: its type is unknown. Raises struct.error, IndexError,
    UnicodeDecodeError: the body is not that of its type."""
    if code == CLIENT_TYPE:
        numbers = CLIENT_NUMBERS.unpack_from(body)
        texts, position = [], CLIENT_NUMBERS.size
        for _ in range(4):
            end = position + 1 + body[position]
            if end > len(body):
                raise IndexError(end)
            texts.append(body[position + 1 : end].decode())
            position = end
        if position != len(body):
            raise IndexError(position)
        return ClientNoted._make([*numbers, *texts])
    if code not in _BY_TYPE:
        return None
    make, layout = _BY_TYPE[code]
    return make(layout.unpack(body))
