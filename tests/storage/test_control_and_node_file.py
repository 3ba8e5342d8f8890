"""The control file and the node file together: no promise gets older (SD-03 to SD-09, CX-03)."""

from __future__ import annotations

import errno
from dataclasses import replace
from uuid import UUID

import pytest

from tests.storage.control_files import NODE_PATH, ONE, PATH, STARTED, Killed
from tests.storage.support import (
    DIRECTORY,
    DIRECTORY_ID,
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
    ForeignDirectoryError,
    SegmentFailedError,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.directory.control_file import ControlFile
from waltz.storage.directory.control_struct import (
    ASSIGNED,
    FRESH,
    Entry,
    encode_struct,
    judge_partition,
)
from waltz.types import PartitionId, SessionId

# The two files together


TWO = PartitionId(2)


def used_directory() -> SimulatedDisk:
    """Three partitions: in session 7 after a lower one, given up in session 5, never assigned."""
    disk = fresh_disk()
    control = open_control(disk, partition_count=3, assigned=(0,))
    zero = PartitionId(0)
    control.promises(zero).make_ours()
    control.promises(zero).raise_fence(SessionId(6))
    control.promises(zero).update(replace(STARTED, session_id=SessionId(6), low_water_mark=t(50)))
    control.promises(zero).raise_fence(SessionId(7))
    control.promises(zero).update(STARTED)
    control.promises(zero).raise_fence(SessionId(8))
    control.promises(ONE).update(replace(FRESH.with_flag(ASSIGNED, True), session_id=SessionId(5)))
    control.promises(ONE).reset()
    control.close()
    return disk


def cut_to(disk: SimulatedDisk, size: int) -> None:
    file = disk.open(PATH)
    file.truncate(size)
    file.sync()


@pytest.mark.parametrize("left", [0, 1, 40, 127])
def test_a_control_file_that_was_cut_is_restored_from_the_node_file(left: int) -> None:
    """F-19: each promise and each fence holds as before, and whose the index is."""
    disk = used_directory()
    control = reopen(disk)
    expected, created = promises(control), disk.content(PATH)[:128]
    control.close()
    cut_to(disk, left)
    cut = disk.crash_clone(random(left))
    for each in (cut, disk):
        control = reopen(each)
        assert promises(control) == expected
        assert bool(control.notes)
        control.close()
        assert each.content(PATH)[:128] == created
        assert reopen(each).notes == ()


def test_whatever_a_crash_leaves_of_a_restored_control_file_is_restored_again() -> None:
    disk = used_directory()
    control = reopen(disk)
    expected = promises(control)
    control.close()
    cut_to(disk, 0)
    for number in range(1, 40):
        failing = disk.crash_clone(random(number))
        failing.fault = fail_nth(
            DiskOperation.WRITE if number % 2 else DiskOperation.SYNC, 1 + number // 2
        )
        try:
            reopen(failing).close()
        except (OSError, SegmentFailedError):
            failing.fault = None
            again = failing.crash_clone(random(number))
            assert promises(reopen(again)) == expected


def test_a_cut_control_file_is_not_restored_where_the_node_file_does_not_know_a_partition() -> None:
    """F-19: as a fresh partition it would be cut to nothing."""
    disk = used_directory()
    disk.make_directory(f"{DIRECTORY}/2")
    disk.open(PATH).truncate(5)
    with pytest.raises(ConfigurationError, match="has no slots of partitions 2"):
        reopen(disk)
    assert len(disk.content(PATH)) == 5


def test_a_cut_control_file_of_another_cluster_is_not_restored() -> None:
    disk = used_directory()
    disk.open(PATH).truncate(5)
    with pytest.raises(ForeignDirectoryError, match="belongs to cluster"):
        open_control(disk, key=OTHER_KEY, partition_count=3)
    assert len(disk.content(PATH)) == 5


def promises(control: ControlFile) -> list[object]:
    """What holds per partition; None where it refuses to say."""
    found: list[object] = []
    for number in map(PartitionId, range(3)):
        try:
            found.append(
                (
                    control.promises(number).info,
                    control.promises(number).fence,
                    control.promises(number).is_ours,
                )
            )
        except CorruptionError:
            found.append(None)
    return found


def reopen(disk: SimulatedDisk) -> ControlFile:
    return open_control(disk, partition_count=3)


def test_promises_survive_in_both_files() -> None:
    control = reopen(used_directory())
    assert promises(control) == [(STARTED, 8, True), (FRESH, 5, False), (FRESH, -1, False)]
    assert control.notes == ()
    assert control.partition_ids == [0]
    assert control.directory_id == DIRECTORY_ID


@pytest.mark.long
def test_no_flipped_byte_of_either_file_makes_a_promise_older() -> None:
    """SD-05, I9: every bit of both files. The node refuses to start for a wrong version, a wrong
    key or a count in the control file's header that is too large; for all else it tells and keeps
    every promise, for a smaller count, too, which looks as if the cluster had grown."""
    disk = used_directory()
    expected = promises(reopen(disk.crash_clone(random(0))))
    refused = 0
    for path in (PATH, NODE_PATH):
        content = disk.content(path)
        for offset in range(len(content)):
            is_gap = path == NODE_PATH and 128 + 3 * 64 <= offset < 4096
            for bit in (5,) if is_gap else range(8):
                clone = disk.crash_clone(random(0))
                clone.damage(path, offset, bytes([content[offset] ^ 1 << bit]))
                where = f"{path} byte {offset} bit {bit}"
                try:
                    control = reopen(clone)
                except ConfigurationError:
                    assert path == PATH, where
                    assert offset < 4 or 12 <= offset < 32, where
                    refused += 1
                    continue
                assert len(control.notes) == 1, where
                assert promises(control) == expected, where
                control.close()
                assert promises(reopen(clone)) == expected, where
    assert refused == 24 * 8 - 2, "of 3 partitions two flipped bits leave fewer"


def test_what_one_flipped_byte_leaves_is_only_told_where_it_cannot_be_restored() -> None:
    """The struct not in use, and the parts of the header that nothing depends on."""
    disk = used_directory()
    told_again = set()
    content = disk.content(PATH)
    for offset in [*range(4, 12), *range(32, len(content))]:
        clone = disk.crash_clone(random(0))
        clone.damage(PATH, offset, bytes([content[offset] ^ 1]))
        control = reopen(clone)
        control.close()
        if reopen(clone).notes:
            told_again.add(offset)
    expected = {*range(4, 12), *range(32, 128)}
    for number in (0, 1):
        entry_start = 128 + 76 * number
        entry = judge_partition(content[entry_start : entry_start + 76], PartitionId(number)).entry
        assert isinstance(entry, Entry)
        unused = entry_start + 4 + 36 * (1 - entry.twin)
        expected |= {*range(unused, unused + 36)}
    # Of partition 2 there is no copy: nothing was ever promised for it.
    assert told_again == expected | {*range(128 + 76 * 2 + 4, 128 + 76 * 3)}


@pytest.mark.parametrize("first", [0, 1])
def test_an_acknowledged_update_outlives_its_struct(first: int) -> None:
    """Whichever of the twins it went to."""
    disk = used_directory()
    control = reopen(disk)
    for session in range(9, 11 + first):
        control.promises(PartitionId(0)).update(replace(STARTED, session_id=SessionId(session)))
    control.close()
    for twin in (4, 40):
        clone = disk.crash_clone(random(0))
        clone.damage(PATH, 128 + twin, bytes(36))
        assert reopen(clone).promises(PartitionId(0)).info.session_id == 10 + first
        clone.damage(PATH, 128, bytes(76))
        again = reopen(clone.crash_clone(random(1)))
        assert again.promises(PartitionId(0)).info.session_id == 10 + first
        assert again.promises(PartitionId(0)).is_ours


def test_a_crash_between_the_files_leaves_the_update_or_the_state_before() -> None:
    zero = PartitionId(0)
    started = replace(STARTED, session_id=SessionId(8))
    found = set()
    for at in range(1, 7):
        for seed in range(20):
            disk = used_directory()
            control = reopen(disk)
            seen = 0

            def die(operation: DiskOperation, path: str, at: int = at) -> None:
                nonlocal seen
                seen += 1
                if seen == at:
                    raise Killed

            disk.fault = die
            with pytest.raises(Killed):
                control.promises(zero).update(started)
            clone = disk.crash_clone(random(seed))
            again = reopen(clone)
            found.add((again.promises(zero).info.session_id, again.promises(zero).is_ours))
            assert again.promises(zero).fence == 8
            again.promises(zero).update(replace(started, session_id=SessionId(9)))
            again.close()
            assert reopen(clone).promises(zero).info.session_id == 9
    assert found == {(7, True), (8, True), (8, False)}


def test_a_directory_of_the_original_gets_an_identity_and_keeps_its_promises() -> None:
    """Its indexes are not called ours before somebody says so; an update alone does not."""
    disk = golden_disk("storage-after-clients")
    before = disk.content(PATH)
    control = open_control(disk, key=GOLDEN_KEY)
    (note,) = control.notes
    assert f"waltz-storage.node: made, with ID {DIRECTORY_ID}" in note
    assert disk.content(PATH) == before
    assert not control.promises(ONE).is_ours
    info = control.promises(ONE).info
    control.promises(ONE).raise_fence(SessionId(4))
    control.promises(ONE).update(replace(info, session_id=SessionId(3)))
    assert not control.promises(ONE).is_ours
    control.promises(ONE).make_ours()
    control.close()
    control = open_control(disk, key=GOLDEN_KEY, directory_id=UUID(int=9))
    assert control.notes == ()
    assert control.directory_id == DIRECTORY_ID
    assert (control.promises(ONE).is_ours, control.promises(ONE).fence) == (True, 4)
    control.promises(ONE).update(info)
    assert control.promises(ONE).is_ours


def test_what_the_original_wrote_since_is_believed_and_not_called_ours() -> None:
    """CX-01: the directory goes back and forth between the releases."""
    disk = used_directory()
    zero = PartitionId(0)
    theirs = replace(STARTED, session_id=SessionId(9), low_water_mark=t(200))
    entry = judge_partition(disk.content(PATH)[128 : 128 + 76], zero).entry
    assert isinstance(entry, Entry)
    offset = 128 + 4 + 36 * (1 - entry.twin)
    disk.damage(PATH, offset, encode_struct(theirs, entry.sequence_number + 1))
    control = reopen(disk)
    assert promises(control)[0] == (theirs, 9, False)
    assert control.notes == ()
    control.promises(zero).update(theirs.with_access(readable=True, writable=False))
    assert not control.promises(zero).is_ours
    control.promises(zero).make_ours()
    control.close()
    assert reopen(disk).promises(zero).is_ours


def test_the_fence_survives_restarts_and_giving_up() -> None:
    """I9, hazard S3."""
    disk = used_directory()
    control = reopen(disk)
    zero = PartitionId(0)
    control.promises(zero).raise_fence(SessionId(3))
    assert control.promises(zero).fence == 8
    counts = disk.counts.copy()
    control.promises(zero).raise_fence(SessionId(8))
    assert disk.counts == counts
    control.promises(zero).reset()
    assert (control.promises(zero).info, control.promises(zero).fence) == (FRESH, 8)
    control.promises(zero).update(FRESH.with_flag(ASSIGNED, True))
    for seed in range(10):
        again = reopen(disk.crash_clone(random(seed)))
        assert again.promises(zero).fence == 8
        assert again.promises(zero).info == FRESH.with_flag(ASSIGNED, True)


def test_a_partition_whose_slot_is_lost_is_given_up_and_taken_again() -> None:
    disk = used_directory()
    content = disk.content(NODE_PATH)
    for offset in (128, 4096 + 128):
        disk.damage(NODE_PATH, offset + 9, bytes([content[offset + 9] ^ 1]))
    control = reopen(disk)
    zero = PartitionId(0)
    assert control.partition_ids == [0]
    promises = control.promises(zero)
    for attempt in (
        lambda: promises.info,
        lambda: promises.fence,
        lambda: promises.is_ours,
        promises.make_ours,
    ):
        with pytest.raises(CorruptionError, match="give the partition up and take it again"):
            attempt()
    with pytest.raises(CorruptionError):
        control.promises(zero).update(FRESH)
    assert control.promises(ONE).fence == 5
    control.promises(zero).reset()
    assert (control.promises(zero).info, control.promises(zero).fence) == (FRESH, 7)
    control.close()
    assert reopen(disk).notes == ()


def test_a_node_file_without_its_control_file_is_not_taken_for_fresh() -> None:
    disk = used_directory()
    disk.remove(PATH)
    with pytest.raises(ForeignDirectoryError, match="remembers sessions of partitions 0, 1, but"):
        reopen(disk)
    assert not disk.exists(PATH)
    disk = fresh_disk()
    control = open_control(disk)
    control.close()
    disk.remove(PATH)
    other = UUID(int=77)
    assert open_control(disk, directory_id=other).directory_id == other


def test_a_node_file_of_another_cluster_is_refused() -> None:
    disk, other = used_directory(), fresh_disk()
    open_control(other, key=OTHER_KEY, partition_count=3).close()
    disk.damage(NODE_PATH, 0, other.content(NODE_PATH))
    with pytest.raises(ForeignDirectoryError, match=f"belongs to cluster {OTHER_KEY}"):
        reopen(disk)
    disk = fresh_disk()
    open_control(disk, partition_count=3).close()
    disk.remove(PATH)
    with pytest.raises(ForeignDirectoryError, match=f"belongs to cluster {KEY}"):
        open_control(disk, key=OTHER_KEY, partition_count=3)


def test_a_failed_copy_is_a_failed_update() -> None:
    """What the control file holds is believed, and the next start has it."""
    zero = PartitionId(0)
    for number in (2, 3):
        disk = used_directory()
        control = reopen(disk)
        disk.fault = fail_nth(DiskOperation.SYNC, number)
        with pytest.raises(SegmentFailedError, match=r"waltz-storage\.node .* fails"):
            control.promises(zero).update(replace(STARTED, session_id=SessionId(9)))
        assert control.promises(zero).info.session_id == 9
        with pytest.raises(SegmentFailedError, match="no update after a failed one"):
            control.promises(zero).raise_fence(SessionId(12))
        assert control.promises(zero).fence == 9
        assert reopen(disk.crash_clone(random(number))).promises(zero).info.session_id == 9


def test_an_update_without_space_may_be_tried_again() -> None:
    """SN-28."""
    zero = PartitionId(0)
    for number in (1, 2, 3):
        disk = used_directory()
        control = reopen(disk)
        disk.fault = fail_nth(DiskOperation.WRITE, number, errno.ENOSPC)
        with pytest.raises(SegmentFailedError, match="fails"):
            control.promises(zero).update(replace(STARTED, session_id=SessionId(9)))
        control.promises(zero).update(replace(STARTED, session_id=SessionId(10)))
        control.close()
        assert promises(reopen(disk))[0] == (replace(STARTED, session_id=SessionId(10)), 10, True)
