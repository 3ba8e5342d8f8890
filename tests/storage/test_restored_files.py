"""The promises of a directory that was filled from an archive: the order in which they are made.
`tests/restore/test_directory_filling.py` has them together with records, and killed restores."""

from __future__ import annotations

import pytest

from tests.storage.independent_reader import parse_control_file
from tests.storage.support import DIRECTORY, DIRECTORY_ID, KEY, fresh_disk, open_control
from waltz.errors import ForeignDirectoryError
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.directory.control_struct import ASSIGNED, FRESH, PartitionInfo
from waltz.storage.directory.node_file import NodeHeader
from waltz.storage.directory.restored_files import (
    MARK_FILE_NAME,
    RestoredPartition,
    refuse_unfinished,
    write_promises,
)
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.types import PartitionId, SessionId, TransactionId

INFO = PartitionInfo(
    SessionId(1_000_000), TransactionId(9), TransactionId(9), FRESH.flags | ASSIGNED
)
TRACE = SegmentTrace(TransactionId(5), TransactionId(10))
HEADER = NodeHeader(KEY, 3, DIRECTORY_ID, 1000, 1000)


def written(disk: SimulatedDisk) -> SimulatedDisk:
    write_promises(disk, DIRECTORY, HEADER, {PartitionId(1): RestoredPartition(INFO, TRACE)})
    return disk


def test_the_control_file_is_durable_last() -> None:
    disk = fresh_disk()
    renamed: list[str] = []
    operations: list[tuple[DiskOperation, str]] = []

    def watch(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.RENAME:
            renamed.append(path.rpartition("/")[2].removesuffix(".new"))
            last = [each for each, of in operations if of == path][-1]
            assert last is DiskOperation.SYNC, "a name is given to durable bytes only"
        operations.append((operation, path))

    disk.fault = watch
    written(disk)
    assert renamed == ["waltz-storage.trace", "waltz-storage.node", "waltz-storage.ctl"]
    assert disk.contents() == disk.files.durable_contents()


def test_a_node_finds_the_promises_in_all_three_files() -> None:
    control = open_control(written(fresh_disk()), partition_count=3, assigned=())
    assert control.notes == ()
    assert not control.was_created
    assert control.partition_ids == [1]
    promises = control.promises(PartitionId(1))
    assert promises.info == INFO
    assert promises.fence == INFO.session_id
    assert promises.is_traced
    assert promises.trace() == TRACE
    for other in (0, 2):
        assert control.promises(PartitionId(other)).info == FRESH


def test_the_original_finds_them_in_the_control_file() -> None:
    found = parse_control_file(written(fresh_disk()).content(f"{DIRECTORY}/waltz-storage.ctl"))
    assert found.cluster_key == KEY
    now = found.entries[1].current
    assert (now.session, now.low_water_mark, now.local_low_water_mark, now.flags) == (
        1_000_000, 9, 9, 5,
    )  # fmt: skip
    assert [entry.is_assigned for entry in found.entries] == [False, True, False]


def test_the_remains_of_an_earlier_attempt_are_replaced() -> None:
    left = {f"{DIRECTORY}/waltz-storage.{name}.new": b"x" * 9000 for name in ("ctl", "trace")}
    disk = SimulatedDisk([DIRECTORY], contents=left)
    assert written(disk).contents() == written(fresh_disk()).contents()


def test_a_marked_directory_is_refused_before_anything_is_touched() -> None:
    disk = written(SimulatedDisk([DIRECTORY], contents={f"{DIRECTORY}/{MARK_FILE_NAME}": b"r"}))
    before = disk.contents()
    with pytest.raises(ForeignDirectoryError, match="under way or was cut short"):
        open_control(disk, partition_count=3)
    assert disk.contents() == before
    disk.remove(f"{DIRECTORY}/{MARK_FILE_NAME}")
    refuse_unfinished(disk, DIRECTORY)
