"""The pace of the scrubber, by value: no disk, no clock (UA-76)."""

from __future__ import annotations

from dataclasses import dataclass, field

from waltz.storage.log.checked_records import ScrubStep
from waltz.storage.scrubber import (
    SCRUB_LAG_SECONDS_MAX,
    SCRUB_LOOK_SECONDS,
    SCRUB_PATIENCE_SECONDS,
    SCRUB_SHARE_MAX,
    SCRUB_SLICE_BYTES_MAX,
    SCRUB_SLICE_BYTES_MIN,
    SCRUB_SLICE_SECONDS_MAX,
    SCRUB_TURN_BYTES_MAX,
    Scrubber,
    ScrubCounters,
    ScrubResult,
    ScrubTurn,
)
from waltz.types import PartitionId, TransactionId

START = 1000.0
RECORD = SCRUB_TURN_BYTES_MAX // 10
PER_TURN = 10
"""Records in a turn of a partition that is not busy; of a busy one 2."""
TURN = PER_TURN * RECORD
RATE = 10 * TURN
INTERVAL = 3600.0
FIRST_AFTER = 60.0


def new_scrubber(now: float) -> Scrubber:
    return Scrubber(
        bytes_per_second=RATE, interval_seconds=INTERVAL, start_seconds=FIRST_AFTER, now=now
    )


@dataclass
class Target:
    next_transaction_id: TransactionId
    has_damage: bool = False
    is_busy: bool = False


def target(count: int) -> Target:
    return Target(TransactionId(count))


@dataclass
class World:
    """A scrubber, the partitions, and a clock that jumps to every deadline."""

    targets: dict[PartitionId, Target]
    now: float = START
    seconds_per_turn: float = 0.0
    scrubber: Scrubber = field(init=False)
    read: list[tuple[int, int]] = field(default_factory=list)
    """Partition and first record of every turn, in order."""

    def __post_init__(self) -> None:
        self.scrubber = new_scrubber(self.now)
        self.now = self.scrubber.deadline

    def step(self) -> bool:
        """Take a turn or let the time pass until there may be one; whether one was taken."""
        found = self.scrubber.next_turn(self.now, self.targets)
        if found is None:
            assert self.scrubber.deadline > self.now
            self.now = self.scrubber.deadline
            return False
        self.now += self.seconds_per_turn
        self.finish(found)
        return True

    def finish(self, found: ScrubTurn) -> None:
        self.read.append((found.partition_id, found.first))
        partition = self.targets[found.partition_id]
        count = min(found.bytes_max // RECORD, partition.next_transaction_id - found.first)
        assert count >= 0
        result = ScrubResult(found.first)
        step = ScrubStep(TransactionId(found.first + count), count * RECORD, count, (), 0)
        result.add(step, self.seconds_per_turn)
        self.scrubber.finish(found, result, partition, self.now)

    def run_pass(self) -> list[tuple[int, int]]:
        """Run the pass that is under way, or else the next one, to its end."""
        self.read.clear()
        while not self.read or self.scrubber.positions():
            self.step()
        return list(self.read)


def world(*counts: int) -> World:
    return World({PartitionId(number): target(count) for number, count in enumerate(counts)})


def test_partitions_take_turns() -> None:
    assert world(25, 10, 0, 30).run_pass() == [
        (0, 0), (1, 0), (2, 0), (3, 0), (0, 10), (3, 10), (0, 20), (3, 20),
    ]  # fmt: skip


def test_nothing_is_read_right_after_the_start() -> None:
    scrubber = new_scrubber(START)
    assert scrubber.next_turn(START, {PartitionId(0): target(10)}) is None
    assert scrubber.deadline == START + FIRST_AFTER


def test_the_budget_is_kept() -> None:
    """A pass takes as long as its bytes at the rate, however quickly they are read."""
    one = world(1000, 500)
    one.seconds_per_turn = 0.0005
    start = one.now
    one.run_pass()
    seconds = 1500 * RECORD / RATE
    assert seconds - 0.2 < one.now - start < seconds + 0.2
    assert one.scrubber.counters == ScrubCounters(
        bytes_read=1500 * RECORD,
        records=1500,
        passes=1,
        last_pass_seconds=one.now - start,
    )


def test_between_passes_there_is_a_pause() -> None:
    one = world(20)
    one.run_pass()
    ended = one.now
    assert one.run_pass() == [(0, 0), (0, 10)]
    assert one.now - ended > INTERVAL
    assert one.scrubber.counters.passes == 2


def test_a_pass_ends_where_the_partition_ended_when_it_came_there() -> None:
    """Or it would never end under load; the rest is for the next one."""
    one = world(20)
    one.step()
    one.targets[PartitionId(0)].next_transaction_id = TransactionId(1_000_000)
    assert one.scrubber.positions() == {0: 10}
    one.step()
    one.step()
    assert one.read == [(0, 0), (0, 10)]
    assert one.scrubber.positions() == {}


def test_damaged_partitions_come_first_and_are_read_to_their_ends() -> None:
    one = world(20, 20, 20)
    one.targets[PartitionId(2)].has_damage = True
    assert one.run_pass() == [(2, 0), (2, 10), (0, 0), (1, 0), (0, 10), (1, 10)]


def test_new_damage_is_followed_up_in_the_pause_and_once() -> None:
    one = world(20, 20, 20)
    one.run_pass()
    ended = one.now
    one.targets[PartitionId(1)].has_damage = True
    one.read.clear()
    while not one.read:
        one.step()
    assert one.now < ended + 2 * SCRUB_LOOK_SECONDS
    while one.now < ended + INTERVAL / 2:
        one.step()
    assert one.read == [(1, 0), (1, 10)]
    # Mended, and damaged again: that is new.
    one.targets[PartitionId(1)].has_damage = False
    one.step()
    one.targets[PartitionId(1)].has_damage = True
    while len(one.read) < 4:
        one.step()
    assert one.now < ended + INTERVAL
    assert one.scrubber.counters.passes == 1
    assert len(one.run_pass()) == 6


def test_busy_partitions_are_passed_over_while_others_are_idle() -> None:
    one = world(20, 20)
    one.targets[PartitionId(0)].is_busy = True
    one.step()
    one.step()
    one.step()
    assert one.read == [(1, 0), (1, 10)]


def test_a_busy_partition_is_read_all_the_same_in_the_end() -> None:
    """Under load without a pause one small turn is taken for every patience."""
    one = world(10)
    one.targets[PartitionId(0)].is_busy = True
    start = one.now
    one.run_pass()
    assert [first for _, first in one.read] == [0, 2, 4, 6, 8]
    waited = 8 * RECORD / RATE + 5 * SCRUB_PATIENCE_SECONDS
    assert abs(one.now - start - waited) < 1e-6


def test_what_was_missed_is_made_up_for_only_so_far() -> None:
    one = world(1000)
    one.step()
    one.now += 100.0
    now = one.now
    in_a_row = 0
    while one.step():
        in_a_row += 1
    assert in_a_row == SCRUB_LAG_SECONDS_MAX * RATE / TURN + 1
    assert one.now - now <= TURN / RATE + 0.001


def test_a_partition_given_up_in_the_middle_ends_its_part_of_the_pass() -> None:
    one = world(30, 10)
    one.step()
    del one.targets[PartitionId(0)]
    one.run_pass()
    assert one.read == [(1, 0)]


def test_a_turn_that_cannot_be_read_ends_its_partitions_part_and_costs_its_budget() -> None:
    one = world(30, 10)
    failed = one.scrubber.next_turn(one.now, one.targets)
    assert failed == ScrubTurn(
        PartitionId(0), TransactionId(0), SCRUB_TURN_BYTES_MAX, SCRUB_SLICE_BYTES_MAX
    )
    one.scrubber.give_up(failed, one.now)
    assert one.scrubber.next_turn(one.now + TURN / RATE / 2, one.targets) is None
    assert one.run_pass() == [(1, 0)]


def test_a_pass_is_complete_only_if_every_assigned_partition_was_read() -> None:
    """An alert fires if no pass was completed for days."""
    one = world(30, 10)
    for is_assigned, passes in ((True, 0), (False, 1), (True, 1)):
        while (failed := one.scrubber.next_turn(one.now, one.targets)) is None:
            one.now = one.scrubber.deadline
        one.scrubber.give_up(failed, one.now, is_assigned=is_assigned)
        one.run_pass()
        assert one.scrubber.counters.passes == passes
        assert (one.scrubber.counters.last_pass_seconds is None) is (passes == 0)
    one.run_pass()
    assert one.scrubber.counters.passes == 2


def test_a_turn_without_progress_ends_its_partition() -> None:
    one = world(30)
    found = one.scrubber.next_turn(one.now, one.targets)
    assert found is not None
    result = ScrubResult(TransactionId(0))
    result.add(ScrubStep(TransactionId(0), 0, 0, (), 0), 0.0)
    one.scrubber.finish(found, result, one.targets[PartitionId(0)], one.now)
    assert one.scrubber.counters.passes == 1


def test_a_node_without_partitions_looks_again_later() -> None:
    one = world()
    for _ in range(10):
        assert not one.step()
    one.targets[PartitionId(3)] = target(5)
    assert one.run_pass() == [(3, 0)]


def test_slices_shrink_until_they_are_short_and_grow_again() -> None:
    """Appends wait for a slice: small records, which take long to check, get smaller ones."""
    one = world(10_000_000)
    sizes = []
    for seconds in (0.0001, 0.002, 0.0006, 0.0011, *[0.01] * 5, *[0.0001] * 4):
        while (found := one.scrubber.next_turn(one.now, one.targets)) is None:
            one.now = one.scrubber.deadline
        sizes.append(found.slice_bytes // 1024)
        one.seconds_per_turn = seconds
        one.finish(found)
    assert SCRUB_SLICE_SECONDS_MAX == 0.001
    assert (SCRUB_SLICE_BYTES_MIN, SCRUB_SLICE_BYTES_MAX) == (64 * 1024, 256 * 1024)
    assert sizes == [256, 256, 128, 128, 64, 64, 64, 64, 64, 64, 128, 256, 256]


def test_slow_turns_leave_most_of_the_time_to_others() -> None:
    one = world(1000)
    one.seconds_per_turn = 0.05
    start = one.now
    for _ in range(20):
        one.step()
    turns = len(one.read)
    assert 20 > turns > 5
    assert one.now - start >= (turns - 1) * 0.05 / SCRUB_SHARE_MAX
