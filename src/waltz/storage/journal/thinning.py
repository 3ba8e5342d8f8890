"""The choice of what a journal keeps when its file is full.

Owns that choice. Whatever is dropped makes answers wider or lets them say "not recorded", never
wrong. Single times and superseded notes of clients may go from anywhere, and that notes went is
noted. Each of the other entries gives a meaning to those after it, and goes only together with
everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.types import ClientId
from waltz.wire.journal_entries import (
    ClientNoted,
    DurableTime,
    JournalEntry,
    NotesForgotten,
    encode_entry,
)

JOURNAL_BYTES_MIN: Final = 64 * 1024
"""The least bound of a journal file, in bytes, however small segments are."""

JOURNAL_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of a journal file, however large segments are."""

JOURNAL_PART: Final = 1024
"""Between these two bounds a journal takes at most this part of what its segment may take."""

TIMES_KEPT: Final = 3 / 4
"""The share of the times that is left by thinning."""

TIMES_NEWEST: Final = 1 / 4
"""The share of the times, the newest, that is not thinned."""

SPACING_MILLISECONDS_MIN: Final = 1_000
"""The least time between two older times that are kept; if that leaves too many, twice as much, and
so on: all older records have intervals of about the same width."""

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


def forgotten_count(entries: Sequence[JournalEntry]) -> int:
    """Return the number of clients whose notes are gone, as the entries have noted it."""
    return sum(each.client_count for each in entries if isinstance(each, NotesForgotten))


def thinned(entries: Sequence[JournalEntry], bytes_max: int) -> list[JournalEntry]:
    """Return the entries that a journal of `bytes_max` bytes keeps, at most seven eighths of them:
    of the older times some, evenly spaced, of each client its latest note, and no more of the
    oldest others than there is room for."""
    notes = [each for each in entries if isinstance(each, ClientNoted)]
    clients = kept_clients(notes, bytes_max)
    kept_notes = set(map(id, clients))
    dropped = _dropped_times(entries)
    kept = [
        each
        for each in entries
        if (id(each) in kept_notes if isinstance(each, ClientNoted) else id(each) not in dropped)
    ]
    if len(clients) < len(notes):
        forgotten = len({each.client_id for each in notes}) - len(clients)
        forgotten += forgotten_count(entries)
        kept = [each for each in kept if not isinstance(each, NotesForgotten)]
        kept.append(NotesForgotten(forgotten))
    excess = sum(map(entry_bytes, kept)) - bytes_max * 7 // 8
    start: list[JournalEntry] = []
    position = 0
    while excess > 0 and position < len(kept):
        oldest = kept[position]
        if isinstance(oldest, ClientNoted | NotesForgotten):
            start.append(oldest)
        else:
            excess -= entry_bytes(oldest)
        position += 1
    return start + kept[position:]


def _dropped_times(entries: Sequence[JournalEntry]) -> set[int]:
    """Return the identities of the times that go. A time next to an entry of another kind stays: it
    bounds what that entry gives a meaning to."""
    order = [each for each in entries if not isinstance(each, ClientNoted)]
    times, edges = [], set()
    for position, each in enumerate(order):
        if isinstance(each, DurableTime):
            times.append(each)
            if not all(
                isinstance(other, DurableTime) for other in order[position - 1 : position + 2]
            ):
                edges.add(id(each))
    newest = int(len(times) * TIMES_NEWEST)
    older = times[: len(times) - newest]
    wanted = int(len(times) * TIMES_KEPT) - newest
    if len(older) < 2 or wanted < 1:
        return set()
    span = max(0, older[-1].milliseconds - older[0].milliseconds)
    spacing = SPACING_MILLISECONDS_MIN
    while spacing * 2 * wanted < span:
        spacing *= 2
    while True:
        kept = _spaced(older, edges, spacing)
        if len(kept) <= wanted or spacing > span:
            return {id(each) for each in older} - kept
        spacing *= 2


def _spaced(times: Sequence[DurableTime], edges: set[int], spacing: int) -> set[int]:
    """Return the identities of those that are at least `spacing` ms after the one kept before."""
    kept = {id(times[0])}
    last = times[0].milliseconds
    for each in times[1:]:
        if abs(each.milliseconds - last) >= spacing or id(each) in edges:
            kept.add(id(each))
            last = each.milliseconds
    return kept
