"""When a partition's journal gets an entry."""

from __future__ import annotations

from tests.storage.support import t
from waltz.storage.journal.pacing import PACE_SECONDS, JournalPacing, LogWorked
from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClockSetBack,
    DurableTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    SessionFenced,
)

CLIENT = ClientNoted(ClientId(1), 5, "orders", "", "", "")


def worked(
    last_before: int,
    began: int,
    last: int,
    ended: int,
    *notes: JournalEntry,
    opening: int = 1,
    segment_before: int = 0,
    segment: int = 0,
) -> LogWorked:
    return LogWorked(
        opening, t(segment_before), t(segment), t(last_before), began, t(last), ended, notes
    )


def at(last: int, milliseconds: int) -> DurableTime:
    return DurableTime(TransactionId(last), milliseconds, 0)


def opened_machine() -> JournalPacing:
    """A machine whose last entry is of second 0: record 0 at 1."""
    machine = JournalPacing()
    machine.step([worked(-1, 0, 0, 1)], 0.0)
    return machine


def test_the_first_entry_says_what_was_there_when_the_log_was_opened() -> None:
    entries = JournalPacing().step([worked(4, 10, 6, 12)], 0.0)
    assert entries == [JournalOpened(t(4), 10), at(6, 12)]


def test_nothing_is_written_for_a_drain_that_changed_nothing() -> None:
    machine = JournalPacing()
    assert machine.step([worked(4, 10, 4, 12)], 0.0) == []
    assert machine.deadline is None


def test_a_pair_says_what_was_durable_before_a_drain_and_after_it() -> None:
    """So that the first append after a pause has a narrow interval, too."""
    assert opened_machine().step([worked(0, 7_000, 2, 7_003)], 7.0) == [at(0, 7_000), at(2, 7_003)]


def test_there_is_at_most_one_pair_per_second() -> None:
    machine = opened_machine()
    assert machine.step([worked(0, 400, 1, 401)], 0.4) == []
    assert machine.step([worked(1, 900, 2, 901)], 0.9) == []
    assert machine.step([worked(2, 1_000, 3, 1_002)], 1.0) == [at(2, 1_000), at(3, 1_002)]
    assert machine.step([worked(3, 1_500, 4, 1_501)], 1.5) == []


def test_when_appends_stop_the_newest_record_is_named_a_second_later_at_most() -> None:
    machine = opened_machine()
    assert machine.step([worked(0, 400, 1, 401)], 0.4) == []
    found = [(machine.deadline, machine.step((), now)) for now in (0.9, 1.0, 9.0)]
    assert found == [(PACE_SECONDS, []), (PACE_SECONDS, [at(1, 401)]), (None, [])]


def test_what_waits_is_written_at_once_before_a_question_and_at_the_end() -> None:
    machine = opened_machine()
    machine.step([worked(0, 400, 1, 401)], 0.4)
    assert machine.flush() == (at(1, 401),)
    assert machine.flush() == ()


def test_sessions_cuts_and_new_segments_do_not_wait() -> None:
    fenced = SessionFenced(SessionId(2), 401)
    machine = opened_machine()
    assert machine.step([worked(0, 400, 0, 402, fenced)], 0.4) == [at(0, 400), fenced, at(0, 402)]
    assert machine.step([worked(0, 500, 3, 501, segment=2)], 0.5) == [at(0, 500), at(3, 501)]
    cut = LogCut(t(1), 600)
    assert machine.step([worked(3, 600, 2, 602, cut, segment_before=2)], 0.6) == [cut, at(2, 602)]


def test_notes_of_clients_do_not_wait_and_bring_no_times() -> None:
    machine = opened_machine()
    assert machine.step([worked(0, 400, 1, 402, CLIENT)], 0.4) == [CLIENT]
    assert machine.step([worked(1, 500, 1, 500, CLIENT)], 0.5) == [CLIENT]
    assert machine.step((), 1.0) == [at(1, 402)]


def test_after_the_log_was_opened_anew_nothing_from_before_is_written() -> None:
    machine = opened_machine()
    machine.step([worked(0, 400, 1, 401)], 0.4)
    entries = machine.step([worked(1, 500, 2, 501, opening=2)], 0.5)
    assert entries == [JournalOpened(t(1), 500), at(2, 501)]


def test_a_clock_that_was_set_back_is_said_before_the_next_times() -> None:
    machine = opened_machine()
    assert machine.step([worked(0, 9_000, 1, 9_001)], 0.4) == []
    assert machine.step([worked(1, 500, 2, 501)], 0.5) == []
    assert machine.step([worked(2, 1_000, 3, 1_002)], 1.0) == [
        ClockSetBack(9_001, 500), at(2, 1_000), at(3, 1_002),
    ]  # fmt: skip
    assert machine.step([worked(3, 700, 4, 702)], 2.0) == [
        ClockSetBack(1_002, 700), at(3, 700), at(4, 702),
    ]  # fmt: skip
    assert machine.step([worked(4, 800, 5, 300)], 3.0) == [
        at(4, 800), ClockSetBack(800, 300), at(5, 300),
    ]  # fmt: skip


def test_a_clock_that_was_set_back_is_said_before_a_time_that_has_waited() -> None:
    machine = opened_machine()
    machine.step([worked(0, 9_000, 1, 9_001)], 0.4)
    machine.step([worked(1, 500, 2, 501)], 0.5)
    assert machine.step((), 1.0) == [ClockSetBack(9_001, 500), at(2, 501)]
