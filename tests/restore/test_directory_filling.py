"""Directories that were filled from an archive: equal to the log, or not usable at all."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.test_archive_verification import objects_of, small_archive
from tests.restore.memory_archive import (
    KEY,
    NEW_KEY,
    RESTORE_ID,
    STORAGES,
    Cut,
    MemoryArchive,
    make_archive,
)
from tests.storage.independent_reader import StorageDirectory, parse_directory
from tests.storage.support import open_control
from waltz.archive.archive import read_archive
from waltz.errors import ConfigurationError, CorruptionError, DirectoryInUseError, WaltzError
from waltz.restore.directory_filling import (
    DirectoryWish,
    Filling,
    fill_directories,
    whole_directory,
)
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.points import AtCut, AtMarks, places
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.directory.restored_files import MARK_FILE_NAME
from waltz.storage.partition_replica import StoragePartition
from waltz.types import PartitionId, SessionId, TransactionId

SESSION = SessionId(1_000_012)
PATHS = ("/one", "/two", "/three")
NOW = 1_700_000_000_000


def filling(disk: SimulatedDisk, *, threshold: int = 20_000) -> Filling:
    draw = Random(5)
    return Filling(
        disk,
        lambda: NOW,
        lambda: UUID(int=draw.getrandbits(128), version=4),
        segment_bytes_threshold=threshold,
    )


def wish(lasts: Sequence[int], *, number: int = 0, key: UUID = NEW_KEY) -> DirectoryWish:
    partitions = {PartitionId(p): (TransactionId(last), SESSION) for p, last in enumerate(lasts)}
    return DirectoryWish(RESTORE_ID, key, len(lasts), STORAGES[number], partitions)


def wishes(lasts: Sequence[int]) -> dict[str, DirectoryWish]:
    return {path: wish(lasts, number=number) for number, path in enumerate(PATHS)}


def fill(
    archive: MemoryArchive,
    disk: SimulatedDisk,
    lasts: Sequence[int],
    *,
    start_over: bool = False,
    threshold: int = 20_000,
) -> list[DirectoryReport]:
    return fill_directories(
        filling(disk, threshold=threshold),
        archive.blocks,
        wishes(lasts),
        start_over=start_over,
    )


def files(disk: SimulatedDisk, path: str) -> dict[str, bytes]:
    return {
        name.removeprefix(f"{path}/"): data
        for name, data in disk.contents().items()
        if name.startswith(f"{path}/") and data is not None
    }


def read_back(disk: SimulatedDisk, path: str) -> StorageDirectory:
    """Read a directory with the second reader, which shares no code with the product."""
    return parse_directory(files(disk, path))


def logs(directory: StorageDirectory) -> dict[int, bytes]:
    return {
        number: b"".join(record.to_bytes() for record in directory.records(number))
        for number in directory.partitions
    }


def opened(disk: SimulatedDisk, path: str, count: int) -> list[StoragePartition]:
    """Open all partitions of a directory as a storage node does."""
    control = open_control(disk, directory=path, key=NEW_KEY, partition_count=count, assigned=())
    assert control.notes == ()
    partitions = []
    for number in range(count):
        partition = StoragePartition(
            disk, path, control, PartitionId(number), cluster_key=NEW_KEY,
            segment_bytes_threshold=20_000, wall_milliseconds=lambda: NOW,
        )  # fmt: skip
        assert partition.open() is None
        assert (partition.damage, partition.loss, partition.log.damage) == (None, None, ())
        partitions.append(partition)
    return partitions


def test_three_directories_hold_the_log_byte_for_byte_and_promise_the_point() -> None:
    archive = make_archive([700, 3, 0])
    disk = SimulatedDisk(PATHS)
    reports = fill(archive, disk, [649, 2, -1])
    for path, replica, report in zip(PATHS, STORAGES, reports, strict=True):
        directory = read_back(disk, path)
        assert directory.control.cluster_key == NEW_KEY
        assert len(directory.partitions[0]) > 1, "the log has several segments"
        found = logs(directory)
        assert found == {0: archive.log(0, 649), 1: archive.log(1, 2), 2: b""}
        for entry, last in zip(directory.control.entries, [649, 2, -1], strict=True):
            now = entry.current
            assert (now.session, now.low_water_mark, now.local_low_water_mark) == (
                SESSION, last, last,
            )  # fmt: skip
            assert now.flags == 1 | 4, "available and assigned"
        assert report.replica_id == replica
        assert {p: (held.last, held.sha256) for p, held in report.partitions.items()} == {
            p: (last, sha256(found[p]).hexdigest()) for p, last in enumerate([649, 2, -1])
        }
        for pairs in directory.partitions.values():
            for pair in pairs:
                assert pair.entry_count == len(pair.records), "each record has its index entry"
    assert len({report.directory_id for report in reports}) == 3


def test_a_storage_node_opens_a_restored_directory_and_vouches_for_all_of_it() -> None:
    archive = make_archive([300, 2])
    disk = SimulatedDisk(PATHS)
    fill(archive, disk, [250, -1])
    one, two = opened(disk, PATHS[0], 2)
    assert one.log.next_transaction_id == 251
    assert two.log.next_transaction_id == 0
    for partition in (one, two):
        info = partition.promises.session_info
        assert info.session_id == partition.promises.fence == SESSION
        assert info.low_water_mark == info.local_low_water_mark
        assert partition.promises.is_ours
        assert partition.promises.is_traced


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=4),
    st.integers(200, 30_000),
    st.integers(1, 9000),
    st.data(),
)
def test_a_directory_restored_to_any_mark_equals_the_fold_of_the_prefix(
    counts: list[int], threshold: int, block_bytes: int, data: st.DataObject
) -> None:
    archive = make_archive(counts)
    archive.block_bytes = block_bytes
    lasts = [data.draw(st.integers(-1, count - 1)) for count in counts]
    disk = SimulatedDisk(PATHS[:1])
    fill_directories(filling(disk, threshold=threshold), archive.blocks, {PATHS[0]: wish(lasts)})
    assert logs(read_back(disk, PATHS[0])) == {
        number: archive.log(number, last) for number, last in enumerate(lasts)
    }
    for partition, last in zip(opened(disk, PATHS[0], len(lasts)), lasts, strict=True):
        assert partition.log.next_transaction_id == last + 1


@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 10), *(pytest.param(each, 200, marks=pytest.mark.long) for each in range(2, 7))],
)
def test_random_marks_and_cuts_of_ten_thousand_equal_the_fold_of_the_prefix(
    seed: int, count: int
) -> None:
    counts = [5000, 4000, 1000]
    archive = make_archive(counts)
    archive.block_bytes = 20_000
    draw = Random(seed)
    for number in range(count):
        marks = {PartitionId(p): TransactionId(draw.randrange(-1, n)) for p, n in enumerate(counts)}
        archive.cuts = {"now": Cut(marks, NOW)}
        point = AtCut("now") if number % 2 else AtMarks(marks)
        found = places(archive, point, len(counts))
        lasts = [found[PartitionId(p)].last for p in range(len(counts))]
        disk = SimulatedDisk(PATHS[:1])
        door = filling(disk, threshold=draw.choice([10_000, 60_000, 10_000_000]))
        fill_directories(door, archive.blocks, {PATHS[0]: wish(lasts)})
        assert logs(read_back(disk, PATHS[0])) == {
            p: archive.log(p, marks[PartitionId(p)]) for p in range(len(counts))
        }


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
def test_nothing_is_restored_from_an_archive_with_a_changed_byte(step: int) -> None:
    """Or nothing wrong is: `verify` finds every change, as the tests of the archive show."""
    target = small_archive()
    archive = read_archive(target)
    lasts = {p: TransactionId(archive.end(p) - 1) for p in archive.partitions}
    right = {int(p): b"".join(archive.blocks(p, 0, last + 1)) for p, last in lasts.items()}

    def restore() -> dict[int, bytes]:
        disk = SimulatedDisk(PATHS[:1])
        fill_directories(
            filling(disk), read_archive(target).blocks, {PATHS[0]: wish(list(lasts.values()))}
        )
        return logs(read_back(disk, PATHS[0]))

    assert restore() == right
    flipped = refused = 0
    for name, data in objects_of(target).items():
        for place in range(flipped % step, len(data), step):
            target.put(name, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            flipped += 1
            try:
                assert restore() == right, f"byte {place} of {name}"
            except WaltzError:
                refused += 1
        target.put(name, data)
    assert flipped > 3_000 // step
    assert refused > flipped * 0.9, "few bytes are of no concern to a restore"
    assert restore() == right


class Killed(BaseException):  # no handler of the product takes it for an error of a disk
    """The process is killed right before an operation of the disk."""


def killed_at(number: int) -> Callable[[DiskOperation, str], None]:
    seen = 0

    def fault(operation: DiskOperation, path: str) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Killed

    return fault


def is_usable(disk: SimulatedDisk, path: str, count: int) -> bool:
    """Whether a storage node starts in the directory, with partitions."""
    if not files(disk, path):
        return False  # empty: a node starts there with no partition
    try:
        control = open_control(
            disk, directory=path, key=NEW_KEY, partition_count=count, assigned=()
        )
    except WaltzError:
        return False
    found = bool(control.partition_ids)
    control.close()
    return found


def judge_killed_restore(archive: MemoryArchive, lasts: list[int], number: int, seed: int) -> bool:
    """Kill a restore before its operation `number`, then cut the power; return whether it came to
    its end before."""
    disk = SimulatedDisk(PATHS)
    disk.fault = killed_at(number)
    try:
        fill(archive, disk, lasts)
    except Killed:
        ended = False
    else:
        ended = True
    right = {p: archive.log(p, last) for p, last in enumerate(lasts)}
    disk.fault = None
    killed = SimulatedDisk(contents=disk.contents())  # the kernel lives on
    for left in (killed, disk.crash_clone(Random(seed))):  # or the machine loses power
        for path in PATHS:
            if is_usable(SimulatedDisk(contents=left.contents()), path, len(lasts)):
                assert logs(read_back(left, path)) == right, f"{path} serves a part of the log"
        try:
            reports = fill(archive, left, lasts)
        except ConfigurationError as error:
            refusal = str(error)
            reports = fill(archive, left, lasts, start_over=True)
        else:
            refusal = "run the same command with --start-over"  # none was needed
        assert "run the same command with --start-over" in refusal
        for path, report in zip(PATHS, reports, strict=True):
            assert logs(read_back(left, path)) == right
            assert {p: held.last for p, held in report.partitions.items()} == dict(enumerate(lasts))
            assert is_usable(left, path, len(lasts))
    return ended


def operations_of(archive: MemoryArchive, lasts: list[int]) -> int:
    disk = SimulatedDisk(PATHS)
    fill(archive, disk, lasts)
    return disk.counts.total()


def test_a_restore_killed_before_any_operation_leaves_nothing_that_half_serves() -> None:
    archive = make_archive([120, 0, 40])
    lasts = [110, -1, 39]
    total = operations_of(archive, lasts)
    for number in range(1, total + 1):
        assert not judge_killed_restore(archive, lasts, number, seed=number)
    assert judge_killed_restore(archive, lasts, total + 1, seed=0)


def test_a_second_restore_into_whole_directories_checks_them_and_changes_nothing() -> None:
    archive = make_archive([90, 10])
    disk = SimulatedDisk(PATHS)
    first = fill(archive, disk, [80, 9])
    before = disk.contents()
    assert fill(archive, disk, [80, 9]) == first
    assert disk.contents() == before
    with pytest.raises(ConfigurationError, match="is not empty: it has 0 and"):
        fill(archive, disk, [70, 9])
    assert disk.contents() == before


def test_a_directory_in_which_something_is_is_refused_and_left_alone() -> None:
    archive = make_archive([9])
    disk = SimulatedDisk([*PATHS], contents={"/two/notes.txt": b"mine"})
    before = disk.contents()
    for start_over in (False, True):
        with pytest.raises(ConfigurationError, match=r"/two is not empty: it has notes.txt"):
            fill(archive, disk, [8], start_over=start_over)
        assert disk.contents() == before, "the other directories are as empty as before"
    disk.remove("/two/notes.txt")
    assert len(fill(archive, disk, [8])) == len(PATHS), "nothing was begun"


def test_an_empty_mark_in_a_directory_that_is_not_empty_proves_nothing() -> None:
    """The mark is made before the directory is known to be empty by its content."""
    archive = make_archive([9])
    contents: Mapping[str, bytes | None] = {
        f"/one/{MARK_FILE_NAME}": b"",
        "/one/waltz-storage.ctl": b"of a node",
    }
    disk = SimulatedDisk(PATHS, contents=contents)
    for start_over in (False, True):
        with pytest.raises(ConfigurationError, match=r"is not empty: it has waltz-storage\.ctl"):
            fill(archive, disk, [8], start_over=start_over)
    assert disk.content("/one/waltz-storage.ctl") == b"of a node"


def test_a_directory_that_is_missing_or_being_filled_is_refused() -> None:
    archive = make_archive([9])
    with pytest.raises(ConfigurationError, match="there is no directory /one; create it, empty"):
        fill(archive, SimulatedDisk(), [8])
    disk = SimulatedDisk(PATHS, contents={f"/one/{MARK_FILE_NAME}": b"restore x\n"})
    disk.lock(f"/one/{MARK_FILE_NAME}")
    with pytest.raises(DirectoryInUseError):
        fill(archive, disk, [8], start_over=True)


def test_a_node_does_not_start_while_a_directory_is_being_filled() -> None:
    disk = SimulatedDisk(PATHS, contents={f"/one/{MARK_FILE_NAME}": b"restore x\n"})
    with pytest.raises(WaltzError, match="run the same `waltz restore` command again"):
        open_control(disk, directory="/one", key=NEW_KEY)


def test_records_of_another_partition_or_too_few_are_never_restored() -> None:
    archive = make_archive([6, 6])
    disk = SimulatedDisk(PATHS)
    own = archive.partitions[PartitionId(0)]
    archive.partitions[PartitionId(0)] = archive.partitions[PartitionId(1)]
    with pytest.raises(CorruptionError, match="record 0 of another partition for partition 0"):
        fill(archive, disk, [5, 5])
    archive.partitions[PartitionId(0)] = own

    def too_few(partition: PartitionId, first: TransactionId, end: TransactionId) -> object:
        return archive.blocks(partition, first, TransactionId(end - 1))

    disk = SimulatedDisk(PATHS)
    with pytest.raises(CorruptionError, match="up to 4 of partition 0; expected 5"):
        fill_directories(filling(disk), too_few, wishes([5, 5]))  # type: ignore[arg-type]
    assert not any(is_usable(disk, path, 2) for path in PATHS)


def test_a_disk_that_does_not_keep_what_it_is_given_is_noticed() -> None:
    archive = make_archive([60])
    disk = SimulatedDisk(PATHS)

    def rot(path: str, content: bytearray) -> None:
        if path.startswith("/two/0/") and path.endswith(".seg") and len(content) > 200:
            disk.damage(path, 170, b"\xff\x00")

    disk.on_sync = rot
    with pytest.raises(CorruptionError, match="/two/0 was written and read back"):
        fill(archive, disk, [59])
    assert not any(is_usable(disk, path, 1) for path in PATHS)


def test_a_full_disk_ends_the_restore_and_leaves_nothing_usable() -> None:
    archive = make_archive([400])
    disk = SimulatedDisk(PATHS, capacity_bytes=30_000)
    with pytest.raises((OSError, WaltzError)) as raised:
        fill(archive, disk, [399])
    assert "space" in str(raised.value) or getattr(raised.value, "errno", 0) == errno.ENOSPC
    assert not any(is_usable(disk, path, 1) for path in PATHS)


def test_a_directory_in_which_a_node_has_worked_since_is_not_taken_for_a_restored_one() -> None:
    archive = make_archive([50])
    disk = SimulatedDisk(PATHS)
    fill(archive, disk, [40])
    assert whole_directory(disk, "/one", wish([40])) is not None
    assert whole_directory(disk, "/one", wish([40], key=KEY)) is None
    (partition,) = opened(disk, "/one", 1)
    last = TransactionId(49)
    partition.announce(SessionId(SESSION + 1))
    partition.writer.write(archive.partitions[PartitionId(0)].batch.slice(TransactionId(41), 9))
    partition.writer.sync()
    assert partition.log.next_transaction_id == last + 1
    partition.close()
    assert whole_directory(disk, "/one", wish([40])) is None
