"""The control file against the bytes of the original, and what it refuses (SD-03 to SD-09)."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

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
    t,
)
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    DirectoryInUseError,
    ForeignDirectoryError,
    SegmentFailedError,
)
from waltz.sim.disk import Operation, SimulatedDisk, fail_nth
from waltz.storage.control_file import (
    ASSIGNED,
    AVAILABLE,
    FRESH,
    PartitionInfo,
    decode_partition,
    decode_struct,
    encode_fresh_file,
    encode_fresh_partition,
    encode_struct,
)
from waltz.types import PartitionId, SessionId

PATH = f"{DIRECTORY}/waltz-storage.ctl"
ONE = PartitionId(1)
STARTED = PartitionInfo(SessionId(7), t(99), t(98), AVAILABLE | ASSIGNED)

WORKED = [
    (FRESH, -1, "ff" * 24 + "00000001 ffffffff 58d1a22d"),
    (FRESH, 0, "ff" * 24 + "00000001 00000000 866a82ce"),
    (FRESH.with_flag(ASSIGNED, True), 1, "ff" * 24 + "00000005 00000001 04ed1498"),
    (
        PartitionInfo(SessionId(0), t(-1), t(-1), 5),
        2,
        "00" * 8 + "ff" * 16 + "00000005 00000002 049e6766",
    ),
]


@pytest.mark.parametrize(("info", "sequence_number", "expected"), WORKED)
def test_struct_has_the_worked_bytes(
    info: PartitionInfo, sequence_number: int, expected: str
) -> None:
    """SD-04."""
    assert encode_struct(info, sequence_number) == bytes.fromhex(expected)
    assert decode_struct(bytes.fromhex(expected)) == (info, sequence_number)


def test_every_flipped_bit_of_a_struct_is_noticed() -> None:
    good = encode_struct(STARTED, 12)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_struct(bytes(bad)) is None


def test_fresh_file_equals_the_originals_but_for_its_time() -> None:
    """SD-03, SN-04."""
    golden = (GOLDEN / "storage-empty" / "waltz-storage.ctl").read_bytes()
    time = int.from_bytes(golden[4:12], "big")
    assert golden == encode_fresh_file(GOLDEN_KEY, 2, assigned=(), wall_milliseconds=time)


def test_updates_alternate_as_the_original_does() -> None:
    """SD-05: assigned, then session 0 began: byte for byte the original's file."""
    disk = golden_disk("storage-empty")
    control = open_control(disk, key=GOLDEN_KEY)
    for number in (PartitionId(0), ONE):
        assigned = control.info(number).with_flag(ASSIGNED, True)
        control.update(number, assigned)
        control.update(number, replace(assigned, session_id=SessionId(0)))
    golden = (GOLDEN / "storage-after-clients" / "waltz-storage.ctl").read_bytes()
    assert disk.content(PATH)[128:] == golden[128:]


def test_golden_directories_are_read() -> None:
    added = open_control(golden_disk("storage-partitions-added"), key=GOLDEN_KEY)
    assert added.info(ONE) == PartitionInfo(flags=5)
    used = open_control(golden_disk("storage-after-clients"), key=GOLDEN_KEY)
    assert used.info(ONE) == PartitionInfo(SessionId(0), flags=5)


def test_update_survives_a_power_cut() -> None:
    disk = fresh_disk()
    open_control(disk).update(ONE, STARTED)
    for seed in range(20):
        assert open_control(disk.crash_clone(random(seed))).info(ONE) == STARTED


def test_interrupted_update_leaves_the_state_before() -> None:
    """SD-05: only the struct not in use is overwritten."""
    for fault in (Operation.WRITE, Operation.SYNC):
        for seed in range(50):
            disk = fresh_disk()
            control = open_control(disk)
            control.update(ONE, STARTED)
            disk.fault = fail_nth(fault, 1)
            with pytest.raises(SegmentFailedError):
                control.update(ONE, replace(STARTED, session_id=SessionId(8)))
            clone = disk.crash_clone(random(seed))
            found = open_control(clone).info(ONE)
            assert found == STARTED


def test_after_a_failed_sync_every_update_is_refused() -> None:
    disk = fresh_disk()
    control = open_control(disk)
    disk.fault = fail_nth(Operation.SYNC, 1)
    with pytest.raises(SegmentFailedError, match="fails"):
        control.update(ONE, STARTED)
    with pytest.raises(SegmentFailedError, match="no update after a failed one"):
        control.update(PartitionId(0), STARTED)
    assert control.info(ONE) == FRESH


def test_valid_struct_wins_and_then_the_later_one() -> None:
    """SD-05, SD-06."""
    head = (1).to_bytes(4, "big")
    newer, older = encode_struct(STARTED, 5), encode_struct(FRESH, 4)
    broken = bytes(36)
    for data in (newer + older, older + newer, newer + broken, broken + newer):
        assert decode_partition(head + data, ONE).info == STARTED
    for data in (older + broken, broken + older):
        assert decode_partition(head + data, ONE).info == FRESH


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((1).to_bytes(4, "big") + bytes(72), "both structs fail their checksum"),
        ((1).to_bytes(4, "big") + 2 * encode_struct(FRESH, 3), "both .* sequence number 3"),
        (encode_fresh_partition(PartitionId(0), FRESH), "carries partition ID 0"),
        (encode_fresh_partition(ONE, FRESH)[:75], "75 of 76 bytes"),
    ],
)
def test_partition_without_a_current_struct_is_damaged(data: bytes, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode_partition(data, ONE)


def test_one_damaged_partition_does_not_concern_the_others() -> None:
    """SD-05; hazard D6."""
    disk = fresh_disk()
    open_control(disk).close()
    disk.damage(PATH, 128 + 76 + 4, bytes(72))
    control = open_control(disk)
    assert control.info(PartitionId(0)).is_assigned
    for _ in range(2):
        with pytest.raises(CorruptionError, match="partition 1"):
            control.info(ONE)
    with pytest.raises(CorruptionError):
        control.update(ONE, FRESH)
    control.reset(ONE)
    control.close()
    assert open_control(disk).info(ONE) == FRESH


def test_reset_makes_a_partition_fresh() -> None:
    disk = fresh_disk()
    control = open_control(disk)
    control.update(ONE, STARTED)
    control.reset(ONE)
    assert control.info(ONE) == FRESH
    control.update(ONE, STARTED)
    control.close()
    assert open_control(disk).info(ONE) == STARTED


def test_unknown_flag_bits_are_kept() -> None:
    info = PartitionInfo(flags=AVAILABLE | 2)
    assert info.with_flag(ASSIGNED, True).flags == 7
    assert info.with_flag(AVAILABLE, False).flags == 2


def test_foreign_directories_are_refused_untouched() -> None:
    """SN-03, SD-09."""
    disk = fresh_disk()
    open_control(disk).close()
    before = disk.content(PATH)
    with pytest.raises(ForeignDirectoryError, match=str(KEY)):
        open_control(disk, key=OTHER_KEY)
    with pytest.raises(ForeignDirectoryError, match="2 partitions, the cluster has 3"):
        open_control(disk, partition_count=3)
    assert disk.content(PATH) == before
    open_control(disk).close()


def test_unknown_format_version_is_refused_with_both_numbers() -> None:
    """SD-25."""
    disk = fresh_disk()
    open_control(disk).close()
    disk.damage(PATH, 0, (99).to_bytes(4, "big"))
    with pytest.raises(ConfigurationError, match="version 99; this release knows 0"):
        open_control(disk)


def test_missing_or_shortened_files_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no storage directory /storage"):
        open_control(SimulatedDisk())
    disk = fresh_disk()
    disk.open(PATH, create=True)
    with pytest.raises(ConfigurationError, match="has 0 bytes, expected at least 128"):
        open_control(disk)
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
    assert control.info(PartitionId(0)).is_assigned
    with pytest.raises(CorruptionError, match="24 of 76 bytes"):
        control.info(ONE)


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

    def intrude(operation: Operation, path: str) -> None:
        if operation is Operation.RENAME:
            disk.fault = None
            with pytest.raises(DirectoryInUseError):
                open_control(disk)
            refused.append(path)

    disk.fault = intrude
    open_control(disk)
    assert refused


def test_slower_process_in_a_fresh_directory_takes_the_file_as_it_is() -> None:
    disk = fresh_disk()

    def overtake(operation: Operation, path: str) -> None:
        if operation is Operation.OPEN:
            disk.fault = None
            open_control(disk, assigned=(1,)).close()

    disk.fault = overtake
    control = open_control(disk, assigned=(0,))
    assert control.info(ONE).is_assigned
    assert not control.was_created


def test_what_a_killed_process_wrote_is_durable_once_it_was_read() -> None:
    class Killed(BaseException):
        """The process ends before its sync."""

    def kill(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            raise Killed

    disk = fresh_disk()
    control = open_control(disk)
    disk.fault = kill
    with pytest.raises(Killed):
        control.update(ONE, STARTED)
    disk.fault = None
    disk.release_locks()
    assert open_control(disk).info(ONE) == STARTED
    for seed in range(20):
        assert open_control(disk.crash_clone(random(seed))).info(ONE) == STARTED


def test_creation_is_all_or_nothing() -> None:
    """Hazard D7: every crash point leaves no control file or a whole one."""
    found = set()
    for count in range(1, 8):
        for operation in (Operation.OPEN, Operation.WRITE, Operation.SYNC, Operation.RENAME,
                          Operation.SYNC_DIRECTORY):  # fmt: skip
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
                assert control.info(PartitionId(0)).is_assigned
                assert not control.info(ONE).is_assigned
    assert found == {False, True}
