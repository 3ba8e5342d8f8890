"""What follows from the entries of a journal; and that nothing false ever does, with an omniscient
list of what became durable, and when, kept next to the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from waltz.storage.journal.thinning import thinned
from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    ClientsTold,
    ClockSetBack,
    DurableTime,
    EarlierTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    NotesForgotten,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
    decode_entries,
    encode_entries,
)
from waltz.wire.journal_facts import (
    IN_FLIGHT_MILLISECONDS,
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


A = ClientNoted(ClientId(1), 1_000, "a", "", "h:1", "")
B = ClientNoted(ClientId(1), 9_000, "b", "", "h:2", "")
SESSION: list[JournalEntry] = [SessionBegan(SessionId(3), t(-1), 10), ClientsTold(SessionId(3), 10)]


def authors(*entries: JournalEntry, of: int = 0, session: Sequence[JournalEntry] = SESSION) -> str:
    """Return the names of the clients that may have written a transaction."""
    facts = JournalFacts([*session, *entries])
    return "".join(each.name for each in facts.holders(ClientId(1), t(of)))


def test_the_author_is_the_last_that_was_noted_before_the_record_in_the_order_of_entries() -> None:
    assert authors(A, at(-1, 8_000), at(0, 8_500), B, at(1, 99_000)) == "a"
    assert authors(A, at(-1, 8_000), at(0, 8_500), B, at(0, 50_000), at(1, 99_000), of=1) == "b"
    assert authors(at(-1, 900), A, at(0, 1_100)) == "a", "its first transaction"
    assert authors(at(-1, 900), at(0, 950), A) == "", "whoever it was, it was not this one"
    assert authors(A, at(-1, 8_000), at(0, 8_500), of=1) == "", "there is no such record"


def test_what_came_at_the_record_or_a_little_before_it_leaves_the_author_open() -> None:
    assert authors(A, at(-1, 8_000), B, at(0, 9_500)) == "ab"
    late = 9_000 + IN_FLIGHT_MILLISECONDS
    assert authors(A, B, at(-1, late), at(0, late + 50)) == "ab"
    assert authors(A, B, at(-1, late + 1), at(0, late + 50)) == "b"


@pytest.mark.parametrize(
    "session",
    [
        SESSION[:1],
        [SESSION[0], ClientsTold(SessionId(2), 10)],
        [*SESSION, SessionFenced(SessionId(4), 11)],
        [*SESSION, JournalOpened(t(-1), 11)],
        [],
    ],
    ids=["untold", "told by another", "fenced", "opened anew", "none"],
)
def test_outside_of_a_session_that_has_told_its_clients_nothing_tells_an_author(
    session: Sequence[JournalEntry],
) -> None:
    assert authors(A, at(-1, 8_000), at(0, 8_500), session=session) == ""


def test_a_client_whose_predecessor_may_be_forgotten_is_the_author_later_only() -> None:
    first: list[JournalEntry] = [at(-1, 900), A, at(0, 1_100)]
    assert authors(*first, NotesForgotten(0)) == ""
    assert authors(NotesForgotten(0), *first) == "a"
    assert authors(NotesForgotten(1), *first) == "", "it may be the one that is forgotten"
    assert authors(A, at(-1, 8_000), at(0, 8_500), NotesForgotten(1)) == "a"


def test_a_client_of_which_its_server_knew_nothing_is_no_author_nor_is_the_one_before_it() -> None:
    gone = B._replace(name="", address="")
    late = 9_001 + IN_FLIGHT_MILLISECONDS
    assert authors(A, gone, at(-1, late), at(0, late + 50)) == ""
    assert authors(A, at(-1, 8_000), gone, at(0, 9_500)) == ""


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
    holder: str = "a"
    """The client that has the client ID now."""
    noted: str = ""
    """The holder that the node has noted last."""
    is_telling: bool = False
    """Whether the server of the session that has started tells of clients."""
    writers: dict[int, str] = field(default_factory=dict)
    """By content: the client that wrote the record."""

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
        former = self.holder
        self.clock += self.draw.choice((0, 0, 20_000))
        for _ in range(self.draw.randint(1, 4)):
            if self.draw.random() < 0.1:
                former, self.holder = self.holder, self.draw.choice("abc")
                self.note()
            self.contents += 1
            self.authors[self.contents] = self.live
            # What the former one has sent may be on its way.
            self.writers[self.contents] = self.draw.choice((former, self.holder, self.holder))
            self.add(self.contents)
        self.entries.append(self.time())

    def note(self) -> None:
        """The server of a session tells who has the client ID; it is noted if that is news."""
        if self.live is not None and self.is_telling and self.noted != self.holder:
            self.noted = self.holder
            note = ClientNoted(ClientId(1), self.now(), self.holder, "", "h:1", "")
            self.entries.append(note)

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
        # The original's servers tell nothing of clients.
        self.is_telling = self.draw.random() < 0.8
        if self.is_telling:
            self.entries.append(ClientsTold(SessionId(self.session), self.now()))
            self.note()

    def restart(self) -> None:
        """The end of the journal is lost, up to anything, and the clock is another one."""
        self.live = None
        self.clock += self.draw.choice((-500, -20, 0, 20, 2_000))
        lost = self.draw.choice((0, 1, 2, 5, 20))
        if lost:
            del self.entries[-lost:]
        self.entries.append(JournalOpened(t(self.last), self.now()))
        notes = [each.name for each in self.entries if isinstance(each, ClientNoted)]
        self.noted = notes[-1] if notes else ""

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
            holders = [each.name for each in facts.holders(ClientId(1), t(number))]
            if holders and self.writers[content] not in holders:
                wrong.append(f"{number}: written by one of {holders}, but {self.writers[content]}")
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
        first = draw.randint(0, end)
        notes = [each for each in node.entries[:first] if isinstance(each, ClientNoted)]
        assert node.false_statements([*notes, *node.entries[first:end]]) == []
        room = len(encode_entries(node.entries)) * draw.randint(2, 12) // 10
        assert node.false_statements(thinned(node.entries, room)) == []
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
    known = held = sessions = authors = 0
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
        told = [facts.holders(ClientId(1), t(number)) for number in range(len(node.log))]
        authors += sum(len({each.name for each in holders}) == 1 for holders in told)
        sessions += sum(facts.session(number) is not None for number in range(len(node.log)))
    assert held > 200
    assert known > held * 0.6
    assert sessions > held * 0.2
    assert authors > held * 0.05
