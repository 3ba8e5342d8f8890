"""What a journal keeps when its file is full."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support import t
from waltz.storage.journal import thinning
from waltz.storage.journal.thinning import (
    CLIENTS_KEPT_MAX,
    CLIENTS_PART,
    JOURNAL_BYTES_MAX,
    JOURNAL_BYTES_MIN,
    entry_bytes,
    journal_bytes_max,
    kept_clients,
    thinned,
)
from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    DurableTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    NotesForgotten,
    SessionBegan,
    SessionFenced,
)


def at(last: int) -> DurableTime:
    return DurableTime(t(last), last, 0)


def ids(entries: Sequence[JournalEntry]) -> list[TransactionId]:
    """Return the transactions of the times."""
    return [each.transaction_id for each in entries if isinstance(each, DurableTime)]


def note(client: int, name: str = "") -> ClientNoted:
    return ClientNoted(ClientId(client), 0, name, "", "", "")


def test_a_journal_takes_a_thousandth_of_a_segment_within_bounds() -> None:
    assert journal_bytes_max(1) == JOURNAL_BYTES_MIN
    assert journal_bytes_max(200 * 1024 * 1024) == 200 * 1024
    assert journal_bytes_max(2**40) == JOURNAL_BYTES_MAX


def test_the_older_times_that_are_kept_are_evenly_spaced() -> None:
    times = [at(number)._replace(milliseconds=1_000 * number) for number in range(400)]
    found = thinned(times, 100_000)
    assert found[-100:] == times[-100:]
    assert ids(found[:-100]) == [*range(0, 300, 2)]
    again = thinned(found, 100_000)
    assert ids(again[:63]) == [*range(0, 252, 4)]


def test_times_that_are_apart_stay_and_those_close_together_go() -> None:
    seconds = [0, 1, 2, 3, 4, 100, 101, 200, 300, 400, 500, 600]
    times = [at(each)._replace(milliseconds=1_000 * each) for each in seconds]
    kept = ids(thinned(times, 10_000))
    assert kept == [0, 100, 200, 300, 400, 500, 600]


def test_times_at_a_break_stay() -> None:
    times = [*map(at, range(40))]
    entries: list[JournalEntry] = [*times[:10], SessionFenced(SessionId(1), 9), *times[10:]]
    found = thinned(entries, 10_000)
    assert found[:4] == [times[0], times[9], SessionFenced(SessionId(1), 9), times[10]]
    assert found[-10:] == times[-10:]


def test_times_of_a_clock_that_was_set_back_are_kept_apart_as_well() -> None:
    walls = [50_000, 60_000, 70_000, 10_000, 20_000, 30_000, 30_001, 30_002, 30_003, 40_000, 41_000]
    times = [at(number)._replace(milliseconds=wall) for number, wall in enumerate(walls)]
    assert {7, 8} & set(ids(thinned(times, 10_000))) == set()


def test_all_but_times_and_superseded_notes_stay_while_there_is_room() -> None:
    entries: list[JournalEntry] = [
        JournalOpened(t(0), 1), note(1, "a"), LogCut(t(0), 2), note(2),
        SessionBegan(SessionId(1), t(0), 3), SessionFenced(SessionId(2), 4), note(1, "b"),
    ]  # fmt: skip
    left = [each for each in entries if each != note(1, "a")]
    assert thinned(entries, 10_000) == [*left, NotesForgotten(0)]
    assert thinned(left, 10_000) == left


def test_clients_that_are_forgotten_are_counted_once_for_all_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thinning, "CLIENTS_KEPT_MAX", 2)
    once = thinned([note(number) for number in range(5)], 10_000)
    assert once == [note(3), note(4), NotesForgotten(3)]
    again = thinned([*once, note(5)], 10_000)
    assert again == [note(4), note(5), NotesForgotten(4)]


def test_the_oldest_entries_go_together_with_all_before_them_but_for_clients() -> None:
    cuts = [LogCut(t(number), number) for number in range(100)]
    room = 40 * entry_bytes(cuts[0])
    found = thinned([note(1), *cuts], room)
    assert found[0] == note(1)
    assert found[1:] == cuts[-len(found) + 1 :]
    assert sum(map(entry_bytes, found)) <= room * 7 // 8 + entry_bytes(cuts[0])


def test_the_client_noted_first_is_forgotten_first() -> None:
    notes = [note(number) for number in range(CLIENTS_KEPT_MAX + 5)]
    assert kept_clients(notes, JOURNAL_BYTES_MAX) == notes[5:]
    room = entry_bytes(note(0)) * 3 * CLIENTS_PART
    assert kept_clients(notes, room) == notes[-3:]
    assert kept_clients([note(1, "a"), note(2), note(1, "b")], room) == [note(2), note(1, "b")]


ENTRY = st.one_of(
    st.builds(at, st.integers(0, 50)),
    st.builds(note, st.integers(0, 9), st.text(max_size=5)),
    st.builds(lambda number: LogCut(t(number), number), st.integers(0, 50)),
    st.builds(lambda number: SessionFenced(SessionId(number), 1), st.integers(0, 50)),
)


@given(st.lists(ENTRY, max_size=200), st.integers(200, 5_000))
def test_what_is_kept_fits_and_is_in_order(entries: list[JournalEntry], room: int) -> None:
    found = thinned(entries, room)
    assert sum(map(entry_bytes, found)) <= room * 7 // 8 + room // CLIENTS_PART
    position = iter(map(id, entries))
    moved = ClientNoted | NotesForgotten
    assert all(id(each) in position for each in found if not isinstance(each, moved))
