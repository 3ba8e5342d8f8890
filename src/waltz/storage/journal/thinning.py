"""The choice of what a journal keeps when its file is full.

Owns that choice. Whatever is dropped makes answers wider or lets them say "not recorded", never
wrong. Single times and superseded notes of clients may go from anywhere. Each of the other entries
gives a meaning to those after it, and goes only together with everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.types import ClientId
from waltz.wire.journal_entries import (
    ClientNoted,
    DurableTime,
    JournalEntry,
    encode_entry,
)

JOURNAL_BYTES_MIN: Final = 64 * 1024
"""The least bound of a journal file, in bytes, however small segments are."""

JOURNAL_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of a journal file, however large segments are."""

JOURNAL_PART: Final = 1024
"""Between these two bounds a journal takes at most this part of what its segment may take."""

CLIENTS_KEPT_MAX: Final = 1_000
"""Clients whose note a journal keeps; the one noted first is forgotten first."""

CLIENTS_PART: Final = 4
"""Notes of clients take at most this part of a journal."""


def journal_bytes_max(segment_bytes_threshold: int) -> int:
    """Return the bound of the journal next to a segment."""
    part = segment_bytes_threshold // JOURNAL_PART
    return min(JOURNAL_BYTES_MAX, max(JOURNAL_BYTES_MIN, part))


def entry_bytes(entry: JournalEntry) -> int:
    return len(encode_entry(entry, 0))


def kept_clients(notes: Sequence[ClientNoted], bytes_max: int) -> list[ClientNoted]:
    """Return the latest note of each client, in order, as far as a journal of `bytes_max` bytes
    keeps them."""
    latest: dict[ClientId, ClientNoted] = {}
    room = bytes_max // CLIENTS_PART
    for note in reversed(notes):
        if note.client_id in latest:
            continue
        room -= entry_bytes(note)
        if room < 0 or len(latest) >= CLIENTS_KEPT_MAX:
            break
        latest[note.client_id] = note
    return list(latest.values())[::-1]


def thinned(entries: Sequence[JournalEntry], bytes_max: int) -> list[JournalEntry]:
    """Return the entries that a journal of `bytes_max` bytes keeps, at most seven eighths of them:
    of the older half of the times every second one, of each client its latest note, and no more of
    the oldest others than there is room for."""
    clients = kept_clients([each for each in entries if isinstance(each, ClientNoted)], bytes_max)
    kept_notes = set(map(id, clients))
    times = [each for each in entries if isinstance(each, DurableTime)]
    # The first time and the last one of the older half stay.
    dropped = set(map(id, times[1 : len(times) // 2 : 2]))
    kept = [
        each
        for each in entries
        if (id(each) in kept_notes if isinstance(each, ClientNoted) else id(each) not in dropped)
    ]
    excess = sum(map(entry_bytes, kept)) - bytes_max * 7 // 8
    start: list[JournalEntry] = []
    position = 0
    while excess > 0 and position < len(kept):
        oldest = kept[position]
        if isinstance(oldest, ClientNoted):
            start.append(oldest)
        else:
            excess -= entry_bytes(oldest)
        position += 1
    return start + kept[position:]
