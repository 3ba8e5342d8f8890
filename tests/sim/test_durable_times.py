"""The judge of what journals say of times, with syncs as the simulated disk shows them."""

from __future__ import annotations

import pytest

from tests.storage.support import DIRECTORY, batch
from waltz.sim.judges.durable_times import NARROW_MILLISECONDS, DurableTimes
from waltz.types import PartitionId, TransactionId

PATH = f"{DIRECTORY}/1/{5:019d}.seg"
P1 = PartitionId(1)


def content(count: int, *, others: int = 0) -> bytes:
    """A data file of `count` records from transaction 5 on, and `others` that are unlike these."""
    data = bytes(128)
    data += bytes(batch(5, count, size=40, partition=1).block)
    return data + bytes(batch(5 + count, others, size=50, partition=1).block)


def judged(times: DurableTimes, number: int, told: tuple[int, int] | None) -> str | None:
    return times.judge("node", P1, TransactionId(number), told)


def test_a_time_that_is_within_what_was_told_is_right() -> None:
    times = DurableTimes()
    times.synced("node", PATH, content(0), 10)
    times.synced("node", PATH, content(2), 20)
    times.synced("node", PATH, content(3), 30)
    assert judged(times, 6, (20, 20)) is None
    assert judged(times, 7, (20, 30)) is None
    assert judged(times, 7, (0, NARROW_MILLISECONDS + 1)) is None
    assert judged(times, 7, None) is None
    assert judged(times, 9, (5, 6)) is None, "it is not there"
    assert times.counts == {"narrow": 2, "wide": 1, "not recorded": 1, "not held": 1}


def test_a_time_that_is_not_is_told() -> None:
    times = DurableTimes()
    times.synced("node", PATH, content(2), 20)
    found = judged(times, 6, (21, 25))
    assert found is not None
    assert found.startswith("I13 times: node says that transaction 6 of partition 1")
    assert found.endswith("between 21 and 25; it did at [20]")
    assert judged(times, 6, (10, 19)) is not None


def test_what_is_written_anew_has_its_new_time_and_a_copy_of_the_same_has_both() -> None:
    times = DurableTimes()
    times.synced("node", PATH, content(3), 20)
    times.synced("node", PATH, content(1), 30)
    times.synced("node", PATH, content(1, others=1), 40)
    assert judged(times, 6, (20, 30)) is not None
    assert judged(times, 6, (40, 40)) is None
    times.synced("node", PATH, content(1), 50)
    times.synced("node", PATH, content(3), 60)
    assert judged(times, 6, (20, 20)) is None
    assert judged(times, 6, (60, 60)) is None
    assert judged(times, 6, (30, 50)) is not None


def test_after_a_start_what_was_seen_before_keeps_its_time() -> None:
    times = DurableTimes()
    times.synced("node", PATH, content(2), 20)
    times.started("node")
    times.synced("node", PATH, content(3), 900)
    assert judged(times, 6, (900, 900)) is not None
    assert judged(times, 6, (20, 20)) is None
    assert judged(times, 7, (900, 900)) is None


@pytest.mark.parametrize("byte", [0, 12, 35, 50, 79], ids=["number", "ID", "sum", "data", "end"])
def test_a_record_that_rots_and_is_repaired_keeps_its_time(byte: int) -> None:
    times, good = DurableTimes(), content(4)
    times.synced("node", PATH, good, 20)
    rotten = bytearray(good)
    for number in (5, 6):
        rotten[len(content(number - 5)) + byte] ^= 4
    times.started("node")
    times.synced("node", PATH, rotten, 900)
    assert [judged(times, each, (20, 20)) for each in (5, 6, 7, 8)] == [None] * 4
    rotten += content(5)[len(good) :]
    times.synced("node", PATH, rotten, 910)
    assert judged(times, 9, (910, 910)) is None, "what follows the rotten one is seen"
    rotten[: len(content(2))] = content(2)
    times.synced("node", PATH, rotten, 920)
    assert [judged(times, each, (20, 20)) for each in (5, 6, 7, 8)] == [None] * 4
    assert all(judged(times, each, (900, 920)) is not None for each in (5, 6, 7, 8))


def test_a_record_that_was_rotten_before_it_was_seen_is_as_old_as_its_repair() -> None:
    times, rotten = DurableTimes(), bytearray(content(3))
    rotten[len(content(1)) + 12] ^= 1
    times.synced("node", PATH, rotten, 20)
    assert times.current("node", P1, TransactionId(6)) is None
    assert judged(times, 7, (20, 20)) is None
    times.synced("node", PATH, content(3), 30)
    assert judged(times, 6, (20, 20)) is not None
    assert judged(times, 6, (30, 30)) is None


def test_other_files_say_nothing() -> None:
    times = DurableTimes()
    times.synced("node", PATH.replace(".seg", ".idx"), content(2), 20)
    assert judged(times, 6, (1, 2)) is None
    assert times.counts == {"not held": 1}
