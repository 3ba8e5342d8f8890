"""A storage directory whose cluster gets more partitions: both files grow, and no promise gets lost
whatever moment the power fails in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from proofs.crash_states import RecordingDisk, crash_states
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
from waltz.errors import CorruptionError, ForeignDirectoryError, SegmentFailedError
from waltz.host import Disk
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.directory.control_file import ControlFile
from waltz.storage.directory.control_struct import (
    ASSIGNED,
    FRESH,
    FRESH_STRUCTS,
    PARTITION_ID,
    PartitionInfo,
    encode_fresh_file,
)
from waltz.storage.directory.node_file import NodeHeader, create_node_file, encode_header
from waltz.types import PartitionId, SessionId

PATH = f"{DIRECTORY}/waltz-storage.ctl"
NODE_PATH = f"{DIRECTORY}/waltz-storage.node"
ZERO, ONE, FOUR = map(PartitionId, (0, 1, 4))
MANY = 100
"""With so many the second area of the node file begins elsewhere."""
INFO = PartitionInfo(SessionId(7), t(99), t(98), 1 | ASSIGNED)


def used_disk() -> SimulatedDisk:
    """Two partitions: one in session 7, fenced by 9, whose index is ours; one that was given up in
    session 5."""
    disk = fresh_disk()
    control = open_control(disk)
    control.promises(ZERO).make_ours()
    control.promises(ZERO).raise_fence(SessionId(6))
    control.promises(ZERO).update(INFO)
    control.promises(ZERO).raise_fence(SessionId(9))
    control.promises(ONE).update(replace(FRESH.with_flag(ASSIGNED, True), session_id=SessionId(5)))
    control.promises(ONE).reset()
    control.close()
    return SimulatedDisk(contents=disk.contents())


def promised(control: ControlFile, count: int) -> list[tuple[PartitionInfo, int, bool]]:
    return [
        (
            control.promises(number).info,
            control.promises(number).fence,
            control.promises(number).is_ours,
        )
        for number in map(PartitionId, range(count))
    ]


BEFORE = [(INFO, 9, True), (FRESH, 5, False)]
NOTHING_PROMISED = (FRESH, -1, False)


@pytest.mark.parametrize("count", [3, 5, MANY])
def test_a_grown_directory_keeps_its_promises_and_has_none_for_what_is_new(count: int) -> None:
    """Running, and when it is opened next."""
    disk = used_disk()
    control = open_control(disk)
    control.grow(count)
    expected = BEFORE + [NOTHING_PROMISED] * (count - 2)
    assert control.partition_count == count
    assert promised(control, count) == expected
    control.grow(2)
    assert control.partition_count == count, "it never shrinks"
    last = PartitionId(count - 1)
    control.promises(last).update(INFO)
    control.promises(ONE).raise_fence(SessionId(11))
    control.close()
    again = open_control(disk, partition_count=count)
    assert again.notes == ()
    assert again.directory_id == DIRECTORY_ID
    expected[-1], expected[1] = (INFO, 7, False), (FRESH, 11, False)
    assert promised(again, count) == expected


@pytest.mark.parametrize("count", [5, MANY])
def test_a_directory_that_is_opened_after_the_cluster_has_grown_grows(count: int) -> None:
    disk = used_disk()
    control = open_control(disk, partition_count=count)
    (note,) = control.notes
    assert f"was made for 2 partitions; grown to {count}" in note
    assert promised(control, count) == BEFORE + [NOTHING_PROMISED] * (count - 2)
    control.close()
    assert open_control(disk, partition_count=count).notes == ()
    assert disk.content(PATH)[128 + 2 * 76 :] == b"".join(
        PARTITION_ID.pack(number) + FRESH_STRUCTS for number in range(2, count)
    )


def test_a_grown_file_of_the_original_is_what_the_original_makes_for_that_many() -> None:
    """SD-03: but for the time, the bytes of a new file of five partitions."""
    disk = golden_disk("storage-empty")
    open_control(disk, key=GOLDEN_KEY, partition_count=5).close()
    made = encode_fresh_file(GOLDEN_KEY, 5, assigned=(), wall_milliseconds=0)
    found = disk.content(PATH)
    assert (found[:4], found[12:]) == (made[:4], made[12:])
    disk = golden_disk("storage-partitions-added")
    before = disk.content(PATH)
    open_control(disk, key=GOLDEN_KEY, partition_count=5).close()
    found = disk.content(PATH)
    assert found[: len(before)] == before[:28] + made[28:32] + before[32:]


def grow_running(disk: Disk) -> None:
    control = open_control(disk)
    control.grow(MANY)
    control.close()


def grow_at_opening(disk: Disk) -> None:
    open_control(disk, partition_count=MANY).close()


@pytest.mark.parametrize("grow", [grow_running, grow_at_opening])
def test_a_power_cut_at_any_moment_loses_no_promise(grow: Callable[[Disk], None]) -> None:
    recording = RecordingDisk(used_disk())
    grow(recording)
    seen: set[bytes] = set()
    for state in crash_states(recording.start, recording.trace, states_per_step=200, seed=0):
        if state.digest in seen:
            continue
        seen.add(state.digest)
        control = open_control(state.image.disk(), partition_count=MANY)
        assert promised(control, 2) == BEFORE, state.point
        assert promised(control, MANY)[2:] == [NOTHING_PROMISED] * (MANY - 2), state.point
    assert len(seen) > 10


def test_a_node_whose_cluster_has_not_grown_yet_opens_what_was_there_before() -> None:
    """Nobody makes room before the coordinator says so; then an older number is not believed."""
    disk = used_disk()
    grow_running(disk)
    with pytest.raises(ForeignDirectoryError, match=f"made for {MANY} partitions, the cluster"):
        open_control(disk)


def test_a_failure_leaves_the_number_as_it_was_and_can_be_tried_again() -> None:
    for operation in (DiskOperation.OPEN, DiskOperation.RENAME, DiskOperation.SYNC_DIRECTORY):
        disk = used_disk()
        control = open_control(disk)
        disk.fault = fail_nth(operation, 1)
        with pytest.raises(OSError, match="fail"):
            control.grow(MANY)
        assert control.partition_count == 2
        assert promised(control, 2) == BEFORE
        control.promises(ZERO).raise_fence(SessionId(12))
        control.grow(MANY)
        control.close()
        again = open_control(disk, partition_count=MANY)
        assert promised(again, 2) == [(INFO, 12, True), (FRESH, 5, False)], operation


def test_a_directory_that_a_failed_write_has_closed_does_not_grow() -> None:
    disk = used_disk()
    control = open_control(disk)
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    with pytest.raises(SegmentFailedError):
        control.promises(ZERO).raise_fence(SessionId(12))
    with pytest.raises(SegmentFailedError, match="no update after a failed one"):
        control.grow(MANY)
    assert promised(open_control(disk.crash_clone(random(0))), 2)[0][1] in (9, 12)


def test_a_slot_that_is_lost_stays_lost() -> None:
    disk = used_disk()
    for start in (0, 4096):
        disk.damage(NODE_PATH, start + 128 + 64, b"\xff" * 64)
    control = open_control(disk, partition_count=MANY)
    with pytest.raises(CorruptionError, match="both copies of its slot"):
        _ = control.promises(ONE).info
    control.close()
    with pytest.raises(CorruptionError, match="both copies of its slot"):
        _ = open_control(disk, partition_count=MANY).promises(ONE).info


def test_a_lost_header_does_not_hide_for_how_many_it_was_made() -> None:
    """Either of the two copies tells, the second one where the control file's number puts it."""
    disk = used_disk()
    disk.damage(NODE_PATH, 0, bytes(128))
    control = open_control(disk, partition_count=MANY)
    assert promised(control, 2) == BEFORE


@pytest.mark.parametrize("count", [2, 5, MANY])
@pytest.mark.parametrize("number", [1, 3, MANY - 1, MANY, MANY + 1, -1])
@pytest.mark.parametrize("place", [0, 4096])
def test_a_stray_block_that_checks_out_does_not_tell_for_how_many_it_was_made(
    place: int, number: int, count: int
) -> None:
    """SD-14: a record that fills 128 bytes has its checksum where a header has its own. The other
    copy is the cluster's, so the node starts and restores the one that was hit."""
    disk = used_disk()
    before = disk.content(NODE_PATH)
    stray = encode_header(NodeHeader(OTHER_KEY, number, DIRECTORY_ID, 1, 1))
    disk.damage(NODE_PATH, place, stray)
    control = open_control(disk, partition_count=count)
    assert promised(control, count) == BEFORE + [NOTHING_PROMISED] * (count - 2)
    copy = 1 if place == 0 else 2
    assert any(f"copy {copy} of the header was damaged; restored" in n for n in control.notes)
    control.close()
    if count == 2:
        assert disk.content(NODE_PATH) == before
    assert open_control(disk, partition_count=count).notes == ()


def test_without_a_copy_of_the_clusters_own_the_directory_is_refused() -> None:
    """Whatever number the stray block has."""
    for number in (1, 2, MANY):
        disk = used_disk()
        stray = encode_header(NodeHeader(OTHER_KEY, number, DIRECTORY_ID, 1, 1))
        for place in (0, 4096):
            disk.damage(NODE_PATH, place, stray)
        before = disk.contents()
        with pytest.raises(ForeignDirectoryError):
            open_control(disk)
        assert disk.contents() == before


def test_a_number_that_got_smaller_by_damage_overwrites_nothing() -> None:
    disk = used_disk()
    control = open_control(disk, partition_count=5)
    control.promises(FOUR).update(INFO)
    control.close()
    disk.damage(PATH, 28, (2).to_bytes(4, "big"))
    control = open_control(disk, partition_count=5)
    assert control.promises(FOUR).info == INFO
    control.close()
    disk.damage(PATH, 28, (2).to_bytes(4, "big"))
    disk.damage(PATH, 128 + 4 * 76 + 4, bytes(72))
    control = open_control(disk, partition_count=5)
    assert control.promises(FOUR).info == INFO, "from the copy in the node file"


def test_a_creation_cut_short_does_not_hinder_a_cluster_that_has_grown() -> None:
    """The node file was there, the control file was not."""
    disk = fresh_disk()
    create_node_file(disk, DIRECTORY, NodeHeader(KEY, 2, DIRECTORY_ID, 1, 1))
    control = open_control(disk, partition_count=5)
    assert (control.was_created, control.partition_count) == (True, 5)
