"""What follows from the entries of a journal; and that nothing false ever does, with an omniscient
list of what became durable, and when, kept next to the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClockSetBack,
    DurableTime,
    EarlierTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
    decode_entries,
    encode_entries,
)
from waltz.wire.journal_facts import (
    AuthorSession,
    DurableInterval,
    JournalFacts,
    majority_interval,
    milliseconds_apart,
)


def t(number: int) -> TransactionId:
    return TransactionId(number)


def at(last: int, milliseconds: int) -> DurableTime:
    return DurableTime(t(last), milliseconds, 0)


def intervals(entries: Sequence[JournalEntry], count: int) -> list[tuple[int, int] | None]:
    facts = JournalFacts(entries)
    found = [facts.interval(number) for number in range(count)]
    return [each and (each.not_before, each.not_after) for each in found]


def test_a_record_became_durable_between_two_times() -> None:
    entries: list[JournalEntry] = [JournalOpened(t(-1), 10), at(1, 20), at(1, 50), at(2, 51)]
    assert intervals(entries, 4) == [(10, 20), (10, 20), (50, 51), None]


def test_nothing_is_recorded_of_what_was_there_before_the_first_entry() -> None:
    assert intervals([JournalOpened(t(1), 10), at(1, 20), at(2, 30)], 3) == [None, None, (20, 30)]
    assert intervals([at(1, 20), at(2, 30)], 3) == [None, None, (20, 30)]
    assert intervals([], 1) == [None]


def test_a_time_of_a_record_that_was_replaced_tells_only_what_was_not_there() -> None:
    entries: list[JournalEntry] = [at(0, 10), DurableTime(t(2), 20, 77), at(3, 30)]
    facts = JournalFacts(entries, lambda entry: entry.checksum != 77)
    assert facts.interval(1) == (10, 30, False)
    assert facts.interval(3) == (20, 30, False)
    assert intervals([at(0, 10), EarlierTime(t(2), 20), at(3, 30)], 4)[1:] == [
        (10, 30), (10, 30), (20, 30),
    ]  # fmt: skip


def test_what_comes_after_a_cut_was_written_after_it() -> None:
    entries: list[JournalEntry] = [at(0, 10), at(5, 20), LogCut(t(2), 30), at(4, 40)]
    assert intervals(entries, 6) == [None, (10, 20), (10, 20), (30, 40), (30, 40), None]
    assert JournalFacts(entries).cuts == [LogCut(t(2), 30)]


def test_a_restart_between_two_times_leaves_what_became_durable_there_unrecorded() -> None:
    entries: list[JournalEntry] = [at(0, 10), at(1, 20), JournalOpened(t(3), 30), at(4, 40)]
    assert intervals(entries, 5) == [None, (10, 20), None, None, (30, 40)]


@pytest.mark.parametrize("set_back", [[ClockSetBack(90, 15)], []])
def test_a_clock_that_was_set_back_between_two_times_leaves_that_unrecorded(
    set_back: list[JournalEntry],
) -> None:
    later = 25 if set_back else 5
    facts = JournalFacts([at(0, 10), at(1, 20), *set_back, at(2, later), at(3, 30)])
    assert facts.interval(1) == DurableInterval(10, 20, clock_went_back=True)
    assert facts.interval(2) is None
    assert facts.interval(3) == DurableInterval(later, 30, clock_went_back=False)


def test_a_session_gave_ids_to_what_was_taken_after_its_mark_until_the_next_was_promised() -> None:
    entries: list[JournalEntry] = [
        SessionBegan(SessionId(3), t(4), 10), at(3, 11), at(7, 12),
        SessionFenced(SessionId(5), 20), at(9, 21),
        SessionBegan(SessionId(5), t(9), 22), at(11, 23), JournalOpened(t(12), 30), at(13, 31),
    ]  # fmt: skip
    facts = JournalFacts(entries)
    assert facts.sessions == [
        AuthorSession(SessionId(3), t(5), t(7)),
        AuthorSession(SessionId(5), t(10), t(11)),
    ]
    found = [facts.session(number) for number in (4, 5, 7, 8, 9, 10, 11, 12)]
    assert found == [None, 3, 3, None, None, 5, 5, None]


def test_what_a_cut_removed_has_no_session_any_more() -> None:
    entries: list[JournalEntry] = [
        SessionBegan(SessionId(3), t(-1), 10), at(7, 12), LogCut(t(4), 13), at(5, 14),
    ]  # fmt: skip
    assert JournalFacts(entries[:3]).sessions == [AuthorSession(SessionId(3), t(0), t(4))]
    assert JournalFacts(entries).sessions == [AuthorSession(SessionId(3), t(0), t(5))]


def test_the_notes_of_a_client_are_told_in_order() -> None:
    notes = [
        ClientNoted(ClientId(1), 10, "a", "", "", ""),
        ClientNoted(ClientId(2), 11, "b", "", "", ""),
        ClientNoted(ClientId(1), 12, "c", "", "", ""),
    ]
    facts = JournalFacts([*notes, RecordsRepaired(t(1), t(2), 13)])
    assert facts.notes_of(ClientId(1)) == [notes[0], notes[2]]
    assert not facts.notes_of(ClientId(3))
    assert facts.clients == [notes[2], notes[1]]
    assert facts.repairs == [RecordsRepaired(t(1), t(2), 13)]


def test_a_majority_of_copies_is_there_from_the_middle_one_on() -> None:
    one, two = DurableInterval(10, 12), DurableInterval(11, 20)
    late = DurableInterval(3_600, 3_601)
    assert majority_interval([one, two, late], 2) == (11, 20)
    assert majority_interval([one, two, None], 2) == (10, 20)
    assert majority_interval([one, None, None], 2) == (None, None)
    assert majority_interval([None, None, None], 1) == (None, None)


def test_intervals_that_miss_each_other_are_apart_by_the_gap() -> None:
    one, two = DurableInterval(10, 12), DurableInterval(11, 20)
    assert milliseconds_apart([one, two, None]) == 0
    assert milliseconds_apart([one, DurableInterval(15, 20)]) == 3
    assert milliseconds_apart([None]) == milliseconds_apart([]) == 0


# An omniscient list


@dataclass
class Told:
    """A node with a clock that is set, a journal that loses its end, and the truth."""

    draw: Random
    clock: int = 1_000
    session: int = 0
    log: list[int] = field(default_factory=list)
    """A number per record, the same for the same content: its checksum."""
    sessions: list[int | None] = field(default_factory=list)
    """The session that gave each record its ID."""
    live: int | None = None
    times: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By ID and content: readings of the clock when a copy became durable."""
    authors: dict[int, int | None] = field(default_factory=dict)
    """By content: the session that made the record."""
    entries: list[JournalEntry] = field(default_factory=list)
    contents: int = 0

    def now(self) -> int:
        self.clock += self.draw.choice((0, 0, 1, 5, 300))
        return self.clock

    @property
    def last(self) -> int:
        return len(self.log) - 1

    def checksum(self, last: int) -> int:
        return self.log[last] if last >= 0 else 0

    def time(self) -> DurableTime:
        return DurableTime(t(self.last), self.now(), self.checksum(self.last))

    def add(self, content: int) -> None:
        self.log.append(content)
        self.times.setdefault((self.last, content), []).append(self.now())

    def append(self) -> None:
        self.entries.append(self.time())
        for _ in range(self.draw.randint(1, 4)):
            self.contents += 1
            self.authors[self.contents] = self.live
            self.add(self.contents)
        self.entries.append(self.time())

    def cut(self) -> list[int]:
        """Return what was cut off."""
        keep = self.draw.randint(0, len(self.log))
        self.entries.append(LogCut(t(keep - 1), self.now()))
        gone = self.log[keep:]
        del self.log[keep:]
        return gone

    def refill(self) -> None:
        """A session that is to start has the replica cut, and copies to it what may be the same."""
        self.session += 1
        self.entries.append(SessionFenced(SessionId(self.session), self.now()))
        self.live = None
        gone = self.cut()
        for content in gone[: self.draw.randint(0, len(gone))]:
            self.add(content)
        for _ in range(self.draw.randint(0, 2)):
            self.append()
        self.entries.append(SessionBegan(SessionId(self.session), t(self.last), self.now()))
        self.live = self.session

    def restart(self) -> None:
        """The end of the journal is lost, up to anything, and the clock is another one."""
        self.live = None
        self.clock += self.draw.choice((-500, -20, 0, 20, 2_000))
        lost = self.draw.choice((0, 1, 2, 5, 20))
        if lost:
            del self.entries[-lost:]
        self.entries.append(JournalOpened(t(self.last), self.now()))

    def live_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.draw.random() < 0.3:
                # A node reads the clock more often than it writes entries.
                read, self.clock = self.clock, self.clock + self.draw.choice((-400, -50, 900))
                if self.clock < read:
                    self.entries.append(ClockSetBack(read, self.clock))
            actions = self.append, self.refill, self.restart
            self.draw.choices(actions, weights=(10, 2, 1))[0]()

    def false_statements(self, entries: list[JournalEntry]) -> list[str]:
        facts = JournalFacts(
            entries,
            lambda entry: (
                entry.transaction_id <= self.last
                and self.checksum(entry.transaction_id) == entry.checksum
            ),
        )
        wrong = []
        for number, content in enumerate(self.log):
            found = facts.interval(number)
            times = self.times[number, content]
            if found and not any(found.not_before <= time <= found.not_after for time in times):
                wrong.append(f"{number}: {found}, but it became durable at {times}")
            session = facts.session(number)
            if session is not None and session != self.authors[content]:
                wrong.append(f"{number}: session {session}, but {self.authors[content]} made it")
        return wrong


@pytest.mark.parametrize("seed", range(150))
def test_nothing_false_follows_from_a_journal_that_is_cut_thinned_or_flipped(seed: int) -> None:
    """Entries may be lost from any point on, and single times from anywhere."""
    draw = Random(seed)
    node = Told(draw)
    node.entries.append(JournalOpened(t(-1), node.now()))
    node.live_on(30)
    assert node.false_statements(node.entries) == []
    for _ in range(10):
        end = draw.randint(0, len(node.entries))
        assert node.false_statements(node.entries[:end]) == []
        assert node.false_statements(node.entries[draw.randint(0, end) : end]) == []
        kept = [
            each
            for each in node.entries
            if not isinstance(each, DurableTime) or draw.random() < 0.6
        ]
        assert node.false_statements(kept) == []
        data = bytearray(encode_entries(node.entries))
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        read = decode_entries(bytes(data))
        assert node.false_statements([*read.entries]) == []


def test_most_records_of_such_a_life_have_an_interval() -> None:
    """The test above judges something."""
    known = held = sessions = 0
    for seed in range(20):
        node = Told(Random(seed))
        node.entries.append(JournalOpened(t(-1), node.now()))
        node.live_on(30)
        facts = JournalFacts(
            node.entries,
            lambda entry, node=node: (  # type: ignore[misc]
                entry.transaction_id <= node.last
                and node.checksum(entry.transaction_id) == entry.checksum
            ),
        )
        held += len(node.log)
        known += sum(facts.interval(number) is not None for number in range(len(node.log)))
        sessions += sum(facts.session(number) is not None for number in range(len(node.log)))
    assert held > 200
    assert known > held * 0.6
    assert sessions > held * 0.2
