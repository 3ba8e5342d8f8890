"""The control file and the node file of a directory: what was promised stays promised, whatever
happens to one of them (SD-03 to SD-09, CX-03)."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.storage.control_files import NODE_PATH, ONE, PATH, STARTED, Killed
from tests.storage.support import (
    DIRECTORY,
    GOLDEN,
    GOLDEN_KEY,
    KEY,
    OTHER_KEY,
    fresh_disk,
    golden_disk,
    open_control,
    random,
)
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    DirectoryInUseError,
    ForeignDirectoryError,
    SegmentFailedError,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.directory.control_struct import ASSIGNED, FRESH, PartitionInfo
from waltz.types import PartitionId, SessionId


def test_updates_alternate_as_the_original_does() -> None:
    """SD-05: assigned, then session 0 began: byte for byte the original's file."""
    disk = golden_disk("storage-empty")
    control = open_control(disk, key=GOLDEN_KEY)
    for number in (PartitionId(0), ONE):
        assigned = control.promises(number).info.with_flag(ASSIGNED, True)
        control.promises(number).update(assigned)
        control.promises(number).update(replace(assigned, session_id=SessionId(0)))
    golden = (GOLDEN / "storage-after-clients" / "waltz-storage.ctl").read_bytes()
    assert disk.content(PATH)[128:] == golden[128:]


def test_golden_directories_are_read() -> None:
    added = open_control(golden_disk("storage-partitions-added"), key=GOLDEN_KEY)
    assert added.promises(ONE).info == PartitionInfo(flags=5)
    used = open_control(golden_disk("storage-after-clients"), key=GOLDEN_KEY)
    assert used.promises(ONE).info == PartitionInfo(SessionId(0), flags=5)


def test_update_survives_a_power_cut() -> None:
    disk = fresh_disk()
    open_control(disk).promises(ONE).update(STARTED)
    for seed in range(20):
        assert open_control(disk.crash_clone(random(seed))).promises(ONE).info == STARTED


def test_interrupted_update_leaves_the_state_before() -> None:
    """SD-05: only the struct not in use is overwritten."""
    for fault in (DiskOperation.WRITE, DiskOperation.SYNC):
        for seed in range(50):
            disk = fresh_disk()
            control = open_control(disk)
            control.promises(ONE).update(STARTED)
            disk.fault = fail_nth(fault, 1)
            with pytest.raises(SegmentFailedError):
                control.promises(ONE).update(replace(STARTED, session_id=SessionId(8)))
            clone = disk.crash_clone(random(seed))
            found = open_control(clone).promises(ONE).info
            assert found == STARTED


def test_after_a_failed_sync_every_update_is_refused() -> None:
    disk = fresh_disk()
    control = open_control(disk)
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    with pytest.raises(SegmentFailedError, match="fails"):
        control.promises(ONE).update(STARTED)
    with pytest.raises(SegmentFailedError, match="no update after a failed one"):
        control.promises(PartitionId(0)).update(STARTED)
    assert control.promises(ONE).info == FRESH


def test_one_damaged_partition_does_not_concern_the_others() -> None:
    """SD-05; hazard D6."""
    disk = fresh_disk()
    open_control(disk).close()
    disk.damage(PATH, 128 + 76 + 4, bytes(72))
    control = open_control(disk)
    assert control.promises(PartitionId(0)).info.is_assigned
    for _ in range(2):
        with pytest.raises(CorruptionError, match="partition 1"):
            _ = control.promises(ONE).info
    with pytest.raises(CorruptionError):
        control.promises(ONE).update(FRESH)
    control.promises(ONE).reset()
    control.close()
    assert open_control(disk).promises(ONE).info == FRESH


def test_reset_makes_a_partition_fresh() -> None:
    disk = fresh_disk()
    control = open_control(disk)
    control.promises(ONE).update(STARTED)
    control.promises(ONE).reset()
    assert control.promises(ONE).info == FRESH
    control.promises(ONE).update(STARTED)
    control.close()
    assert open_control(disk).promises(ONE).info == STARTED


def test_foreign_directories_are_refused_untouched() -> None:
    """SN-03, SD-09."""
    disk = fresh_disk()
    open_control(disk).close()
    before = disk.content(PATH)
    with pytest.raises(ForeignDirectoryError, match=str(KEY)):
        open_control(disk, key=OTHER_KEY)
    with pytest.raises(ForeignDirectoryError, match="2 partitions, the cluster has 1"):
        open_control(disk, partition_count=1)
    assert disk.content(PATH) == before
    open_control(disk).close()


def test_unknown_format_version_is_refused_with_both_numbers() -> None:
    """SD-25."""
    disk = fresh_disk()
    open_control(disk).close()
    disk.damage(PATH, 0, (99).to_bytes(4, "big"))
    with pytest.raises(ConfigurationError, match="version 99; this release knows 0"):
        open_control(disk)


def test_a_missing_directory_and_a_missing_or_foreign_control_file_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no storage directory /storage"):
        open_control(SimulatedDisk())
    disk = fresh_disk()
    disk.open(PATH, create=True)
    with pytest.raises(
        ConfigurationError, match="has 0 bytes, expected at least 128, and there is"
    ):
        open_control(disk)
    assert disk.content(PATH) == b""
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    with pytest.raises(ForeignDirectoryError, match="holds partitions 0 but no"):
        open_control(disk)
    assert not disk.exists(PATH)


def test_file_cut_off_damages_the_partitions_behind_the_cut() -> None:
    disk = fresh_disk()
    open_control(disk).close()
    disk.open(PATH).truncate(128 + 100)
    control = open_control(disk)
    assert control.promises(PartitionId(0)).info.is_assigned
    with pytest.raises(CorruptionError, match="24 of 76 bytes"):
        _ = control.promises(ONE).info


def test_one_process_per_directory() -> None:
    """SD-09."""
    disk = fresh_disk()
    control = open_control(disk)
    with pytest.raises(DirectoryInUseError, match="/storage"):
        open_control(disk)
    control.close()
    open_control(disk)


def test_second_process_in_a_fresh_directory_waits_for_nothing_and_is_refused() -> None:
    """The lock is held before the file has its name."""
    disk = fresh_disk()
    refused = []

    def intrude(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.RENAME:
            disk.fault = None
            with pytest.raises(DirectoryInUseError):
                open_control(disk)
            refused.append(path)

    disk.fault = intrude
    open_control(disk)
    assert refused


def test_slower_process_in_a_fresh_directory_takes_the_file_as_it_is() -> None:
    disk = fresh_disk()

    def overtake(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.OPEN:
            disk.fault = None
            open_control(disk, assigned=(1,)).close()

    disk.fault = overtake
    control = open_control(disk, assigned=(0,))
    assert control.promises(ONE).info.is_assigned
    assert not control.was_created


def test_what_a_killed_process_wrote_is_durable_once_it_was_read() -> None:
    def kill(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.SYNC:
            raise Killed

    disk = fresh_disk()
    control = open_control(disk)
    disk.fault = kill
    with pytest.raises(Killed):
        control.promises(ONE).update(STARTED)
    disk.fault = None
    disk.release_locks()
    assert open_control(disk).promises(ONE).info == STARTED
    for seed in range(20):
        assert open_control(disk.crash_clone(random(seed))).promises(ONE).info == STARTED


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_a_failed_sync_left_in_memory_is_durable_once_it_was_read(number: int) -> None:
    """The system shows it, calls it clean, and no sync of it will ever write it."""
    disk = fresh_disk()
    control = open_control(disk)
    control.promises(ONE).update(STARTED)
    disk.fault = fail_nth(DiskOperation.SYNC, number, done=0.0)
    with pytest.raises(SegmentFailedError):
        control.promises(ONE).update(replace(STARTED, session_id=SessionId(8)))
    disk.fault = None
    disk.release_locks()
    found = open_control(disk)
    assert found.promises(ONE).info.session_id == found.promises(ONE).fence == 8
    for seed in range(20):
        clone = disk.crash_clone(random(seed))
        assert open_control(clone).promises(ONE).info.session_id == 8
        for path, offset in ((PATH, 128 + 76 + 4), (PATH, 128 + 76 + 40),
                             (NODE_PATH, 128 + 64), (NODE_PATH, 4096 + 128 + 64)):  # fmt: skip
            damaged = disk.crash_clone(random(seed))
            damaged.damage(path, offset, b"damaged")
            after = open_control(damaged)
            if number == 1 and path == PATH:
                continue  # never acknowledged, and not copied yet
            assert after.promises(ONE).info.session_id == 8


def test_creation_is_all_or_nothing() -> None:
    """Hazard D7: every crash point leaves no control file or a whole one."""
    found = set()
    for count in range(1, 8):
        for operation in (DiskOperation.OPEN, DiskOperation.WRITE, DiskOperation.SYNC,
                          DiskOperation.RENAME, DiskOperation.SYNC_DIRECTORY):  # fmt: skip
            for seed in range(10):
                disk = fresh_disk()
                disk.fault = fail_nth(operation, count, errno.ENOSPC)
                try:
                    open_control(disk).close()
                except OSError:
                    pass
                clone = disk.crash_clone(random(seed))
                found.add(clone.exists(PATH))
                control = open_control(clone)
                assert control.promises(PartitionId(0)).info.is_assigned
                assert not control.promises(ONE).info.is_assigned
    assert found == {False, True}
