"""Which segments a directory tells of."""

from __future__ import annotations

from tests.storage.support import append, fresh_disk, home, open_partition, succeed, t
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.log.listing import find_segments, holds_segments, segment_names
from waltz.storage.log.segment import DATA_SUFFIX, INDEX_SUFFIX
from waltz.storage.log.segment_recovery import Trust
from waltz.types import TransactionId


def never(first: TransactionId) -> None:
    raise AssertionError(f"segment {first} was removed")


def filled() -> SimulatedDisk:
    disk = fresh_disk()
    partition = open_partition(disk, threshold=300)
    for number in range(5):
        succeed(partition, append(number, 1, size=60))
    partition.close()
    return disk


def trust(newest: int = -1) -> Trust:
    return Trust(local_low_water_mark=t(-1), index_is_proof=True, newest=t(newest))


def test_names_that_are_no_segments_are_passed_over() -> None:
    disk = filled()
    disk.open(f"{home(disk).directory}/stray.seg", create=True).close()
    assert segment_names(home(disk), DATA_SUFFIX) == segment_names(home(disk), INDEX_SUFFIX)
    assert find_segments(home(disk), trust(), never) == segment_names(home(disk), DATA_SUFFIX)


def test_a_data_file_that_a_crash_left_is_removed_unless_the_trace_has_its_segment() -> None:
    disk = filled()
    there = segment_names(home(disk), DATA_SUFFIX)
    disk.open(home(disk).path(t(9), DATA_SUFFIX), create=True).close()
    assert find_segments(home(disk), trust(9), never) == [*there, 9]
    assert find_segments(home(disk), trust(), never) == there
    assert segment_names(home(disk), DATA_SUFFIX) == there


def test_a_directory_holds_segments_if_one_data_file_or_an_index_with_entries_is_left() -> None:
    disk = filled()
    for first in segment_names(home(disk), DATA_SUFFIX):
        disk.remove(home(disk).path(first, DATA_SUFFIX))
    assert holds_segments(home(disk))
    disk.remove(home(disk).path(t(0), INDEX_SUFFIX))
    assert not holds_segments(home(disk))
    assert not holds_segments(home(fresh_disk()))
