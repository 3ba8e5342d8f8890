"""The journal of a partition as its drains go on: which file gets what, what is answered."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from tests.storage.support import (
    DIRECTORY,
    DIRECTORY_ID,
    KEY,
    ZERO,
    batch,
    fresh_disk,
    make_partition,
    open_control,
    t,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.drain import Drain
from waltz.storage.journal.pacing import JournalPacing, LogWorked
from waltz.storage.journal.partition_journal import ANSWER_TIMES_MAX
from waltz.types import ClientId, SessionId
from waltz.wire.journal_entries import ClientNoted, SessionFenced, decode_entries
from waltz.wire.journal_facts import JournalFacts
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    ClientNote,
    NoteClientsRequest,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)


class Bench:
    """A partition whose queue is this class: ten milliseconds per drain, on a clock of its own."""

    def __init__(self, disk: SimulatedDisk, *, threshold: int = 1_000_000, wall: int = 0) -> None:
        self.disk = disk
        self.wall = wall
        self.now = 0.0
        self.session = SessionId(0)
        self.partition = make_partition(
            disk,
            open_control(disk),
            threshold=threshold,
            wall_milliseconds=lambda: self.wall,
        )
        self.partition.open()
        self.pacing = JournalPacing()

    @property
    def last(self) -> int:
        return self.partition.log.next_transaction_id - 1

    def drain(self, requests: Sequence[StorageMessage]) -> None:
        log = self.partition.log
        segment, last, began = log.newest_segment, log.next_transaction_id - 1, self.wall
        self.partition.announce(self.session)
        for answer in Drain(self.partition, requests).run():
            assert isinstance(answer, SuccessResponse) or hasattr(answer, "transaction_id")
        self.wall += 10
        self.now += 0.01
        event = LogWorked(
            self.partition.journal.openings,
            segment,
            log.newest_segment,
            t(last),
            began,
            t(log.next_transaction_id - 1),
            self.wall,
            self.partition.journal.take_notes(),
        )
        self.partition.journal.write(self.pacing.step([event], self.now), segment)

    def pause(self, seconds: float = 5.0) -> None:
        self.wall += int(seconds * 1000)
        self.now += seconds
        entries = self.pacing.step((), self.now)
        self.partition.journal.write(entries, self.partition.log.newest_segment)

    def flush(self) -> None:
        """As before a question."""
        self.partition.journal.write(self.pacing.flush(), self.partition.log.newest_segment)

    def append(self, count: int = 1, *, size: int | None = None) -> None:
        records = batch(self.last + 1, count, size=size)
        self.drain([AppendRecordsRequest(self.session, 1, ZERO, records, False)])

    def start_session(self, session: int) -> None:
        self.session = SessionId(session)
        mark = t(self.last)
        self.drain([SetLowWaterMarkRequest(self.session, 1, ZERO, mark, offline=False)])

    def cut(self, last: int) -> None:
        self.drain([TruncateRequest(self.session, 1, ZERO, t(last), False)])

    def facts(self, first: int, last: int) -> JournalFacts:
        self.flush()
        part = self.partition.journal.part(t(first), t(last))
        return JournalFacts(decode_entries(part.entries).entries)

    def intervals(self, first: int, last: int) -> list[tuple[int, int] | None]:
        """As an asker has them: part after part."""
        self.flush()
        found: list[tuple[int, int] | None] = []
        position = first
        while position <= last:
            part = self.partition.journal.part(t(position), t(last))
            facts = JournalFacts(decode_entries(part.entries).entries)
            for number in range(position, part.next_transaction_id):
                interval = facts.interval(number)
                found.append(interval and (interval.not_before, interval.not_after))
            if part.next_transaction_id == position:
                found += [None] * (last + 1 - position)
                break
            position = part.next_transaction_id
        return found

    def journals(self) -> list[str]:
        names = self.disk.list_directory(f"{DIRECTORY}/0")
        return [name for name in names if ".jnl" in name]


def path(first: int) -> str:
    return f"{DIRECTORY}/0/{first:019d}.jnl"


def test_an_append_after_a_pause_has_the_interval_of_its_drain() -> None:
    bench = Bench(fresh_disk())
    bench.append(2)
    bench.pause(60.0)
    bench.append()
    assert bench.intervals(0, 3) == [(0, 10), (0, 10), (60_010, 60_020), None]


def test_every_segment_has_a_journal_that_tells_of_its_own_records() -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    bench.start_session(3)
    for _ in range(30):
        bench.append(1, size=60)
    firsts = bench.partition.log.segments.firsts
    assert len(firsts) >= 3
    assert bench.journals() == [path(first).rpartition("/")[2] for first in firsts]
    assert None not in bench.intervals(0, 29)
    assert bench.facts(firsts[-1], firsts[-1]).session(firsts[-1]) == 3
    bench.disk.remove(path(firsts[1]))
    lost = range(firsts[1], firsts[2])
    for number, interval in enumerate(bench.intervals(0, 29)):
        assert (interval is None) == (number in lost)


def test_several_segments_that_one_drain_filled_have_journals_as_well() -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    bench.append(1)
    bench.pause()
    bench.append(40, size=60)
    assert len(bench.partition.log.segments.firsts) > 3
    assert bench.intervals(1, 40) == [(5_010, 5_020)] * 40


def test_what_was_cut_and_written_anew_has_its_new_time() -> None:
    bench = Bench(fresh_disk())
    bench.start_session(1)
    bench.append(5)
    bench.pause()
    bench.cut(2)
    bench.pause()
    bench.append(2, size=33)
    assert bench.intervals(2, 5) == [(10, 5_030), (10_030, 10_040), (10_030, 10_040), None]


def test_a_cut_that_the_journal_has_lost_leaves_no_old_time() -> None:
    """The checksums of records tell that the times before it are of other records."""
    bench = Bench(fresh_disk())
    bench.append(5)
    bench.pause()
    size = len(bench.disk.content(path(0)))
    bench.cut(2)
    bench.append(4, size=33)
    bench.disk.open(path(0)).truncate(size)
    assert bench.intervals(0, 6) == [None] * 7


def test_a_cut_below_a_segment_removes_its_journal_and_goes_on_in_the_one_before() -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    bench.start_session(1)
    bench.append(2, size=60)
    bench.pause()
    for _ in range(6):
        bench.append(3, size=60)
    first = bench.partition.log.segments.firsts[1]
    bench.cut(first - 3)
    assert len(bench.journals()) == 1
    bench.pause()
    bench.append(1, size=70)
    found = bench.intervals(0, first - 2)
    assert found[0] == (10, 20)
    assert found[-1] == (bench.wall - 10, bench.wall)
    assert bench.facts(0, first - 2).session(first - 2) == 1


def test_after_a_restart_only_what_comes_then_is_told_by_the_new_clock() -> None:
    disk = fresh_disk()
    bench = Bench(disk)
    bench.append(3)
    bench.append(2)  # its time waits in memory, and dies with it
    disk.release_locks()
    again = Bench(disk, wall=500)
    again.append(1)
    assert again.intervals(0, 5) == [(0, 10)] * 3 + [None] * 2 + [(500, 510)]


def test_a_replica_that_was_filled_up_does_not_take_the_session_for_the_author() -> None:
    bench = Bench(fresh_disk())
    bench.start_session(1)
    bench.append(2)
    bench.session = SessionId(4)
    bench.append(3)  # copies: the session has not started here
    bench.start_session(4)
    bench.append(1)
    facts = bench.facts(0, 5)
    assert [facts.session(number) for number in range(6)] == [1, 1, None, None, None, 4]


def test_clients_are_known_in_later_segments_and_after_a_restart() -> None:
    disk = fresh_disk()
    bench = Bench(disk, threshold=1_000)
    note = ClientNoted(ClientId(7), 5, "orders", "cn=orders", "10.0.0.7:1", "shop 2")
    bench.partition.journal.note_clients(SessionId(1), [note], 5)
    bench.append(1, size=60)
    size = len(disk.content(path(0)))
    bench.partition.journal.note_clients(SessionId(1), [note._replace(milliseconds=99)], 99)
    assert bench.partition.journal.take_notes() == ()
    for _ in range(12):
        bench.append(1, size=60)
    newest = bench.partition.log.newest_segment
    assert bench.facts(newest, newest).notes_of(ClientId(7)) == [note]
    disk.release_locks()
    again = Bench(disk, threshold=1_000)
    for _ in range(12):
        again.append(1, size=60)
    newest_now = again.partition.log.newest_segment
    assert newest_now > newest
    assert again.facts(newest_now, newest_now).notes_of(ClientId(7)) == [note]
    assert size > 0


def test_the_author_is_told_in_a_session_whose_server_has_told_its_clients() -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    client = ClientNote(ClientId(7), "orders", "", "10.0.0.7:1", "")

    def tell(session: int, *clients: ClientNote) -> None:
        bench.drain([NoteClientsRequest(SessionId(session), 1, ZERO, clients)])

    def author() -> list[str]:
        found = bench.facts(bench.last, bench.last)
        return [each.name for each in found.holders(ClientId(7), t(bench.last))]

    bench.start_session(2)
    bench.append(1, size=60)
    assert author() == [], "nothing was told"
    tell(2, client)
    bench.append(1, size=60)
    assert author() == ["orders"]
    newest = bench.partition.log.newest_segment
    while bench.partition.log.newest_segment == newest:
        bench.append(1, size=60)
    bench.pause()
    bench.pause()
    bench.append(1, size=60)
    assert author() == ["orders"], "the next segment's journal begins with what is known"
    bench.start_session(3)
    bench.append(1, size=60)
    assert author() == [], "the next session's server is another one"
    bench.start_session(4)
    tell(4)
    bench.append(1, size=60)
    assert author() == ["orders"], "nobody has taken the ID over"
    bench.start_session(5)
    bench.partition.open()
    tell(5)
    bench.append(1, size=60)
    assert author() == [], "what was told before the files were opened anew may be lost"


def test_what_another_files_journal_has_noted_meanwhile_is_noted_before_a_file_goes_on() -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    journal = bench.partition.journal
    while bench.partition.log.newest_segment == 0:
        bench.append(1, size=60)
    note = ClientNoted(ClientId(7), 5, "orders", "", "10.0.0.7:1", "")
    journal.write([note], bench.partition.log.newest_segment)
    assert bench.facts(0, 0).notes_of(ClientId(7)) == []
    journal.write([SessionFenced(SessionId(5), 9)], t(0))
    assert bench.facts(0, 0).notes_of(ClientId(7)) == [note]


@pytest.mark.parametrize("operation", [DiskOperation.OPEN, DiskOperation.WRITE])
def test_a_journal_that_fails_ends_alone(
    operation: DiskOperation, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    bench.append(1, size=60)

    def fault(found: DiskOperation, where: str) -> None:
        if found is operation and ".jnl" in where:
            raise OSError(errno.ENOSPC, "no space", where)

    bench.disk.fault = fault
    for _ in range(20):
        bench.pause()
        bench.append(1, size=60)
    assert bench.last == 20
    assert bench.partition.writer.failure is None
    assert [each.split(" ")[0] for each in caplog.messages] == ["journal_failed"]
    bench.disk.fault = None
    while bench.last < 40:
        bench.append(1, size=60)
    found = bench.intervals(0, 40)
    assert found[0] == (0, 10)
    assert found[1] is None
    assert found[40] is not None


def test_an_answer_has_a_bounded_number_of_times_and_is_resumed() -> None:
    bench = Bench(fresh_disk(), threshold=10_000_000_000)
    for _ in range(ANSWER_TIMES_MAX + 50):
        bench.append()
        bench.pause()
    part = bench.partition.journal.part(t(0), t(bench.last))
    assert part.next_transaction_id < bench.last
    found = bench.intervals(0, bench.last)
    assert found == [(5_010 * number, 5_010 * number + 10) for number in range(bench.last + 1)]
    one = bench.partition.journal.part(t(700), t(700))
    assert len(one.entries) < 300
    assert bench.intervals(700, 700) == [(5_010 * 700, 5_010 * 700 + 10)]


def test_an_unassigned_partition_whose_files_are_deleted_leaves_no_file() -> None:
    bench = Bench(fresh_disk(), threshold=1_000)
    bench.append(30, size=60)
    bench.disk.open(f"{path(0)}.new", create=True)
    bench.partition.unassign(delete_files=True)
    assert bench.disk.list_directory(f"{DIRECTORY}/0") == []


def test_journals_do_not_make_a_directory_hold_segments() -> None:
    """Recovery never reads a journal, whatever is in it."""
    disk = fresh_disk()
    bench = Bench(disk)
    bench.append(3)
    bench.partition.close()
    for first in (0, 2, 77):
        name = path(first)
        if not disk.exists(name):
            disk.open(name, create=True).write_at(0, b"\xff" * 300)
    disk.release_locks()
    again = Bench(disk)
    assert again.last == 2
    assert again.partition.damage is None
    assert again.partition.log.segments.firsts == [0]


def test_the_journal_of_another_directory_is_replaced() -> None:
    disk = fresh_disk()
    bench = Bench(disk)
    bench.append(1)
    content = bytearray(disk.content(path(0)))
    assert content[16:32] == KEY.bytes
    assert content[32:48] == DIRECTORY_ID.bytes
    content[32] ^= 1
    disk.damage(path(0), 0, bytes(content))
    disk.release_locks()
    again = Bench(disk, wall=100)
    assert again.intervals(0, 0) == [None]
    again.append(1)
    assert again.intervals(0, 1) == [None, (100, 110)]
