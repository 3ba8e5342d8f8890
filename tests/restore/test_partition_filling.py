"""One partition of a stopped node's directory, replaced from an archive."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from tests.restore.memory_archive import (
    KEY,
    RESTORE_ID,
    STORAGES,
    MemoryArchive,
    make_archive,
    make_log,
)
from tests.restore.test_directory_filling import NOW, Killed, files, filling, killed_at, logs
from tests.storage.independent_reader import parse_directory
from tests.storage.support import DIRECTORY_ID, open_control
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    DirectoryInUseError,
    ForeignDirectoryError,
)
from waltz.restore.partition_filling import FilledPartition, PartitionWish, fill_partition
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.partition_replica import StoragePartition
from waltz.types import PartitionId, SessionId, TransactionId

PLACE = "/node"
COUNT = 3
LOST = PartitionId(1)
SESSION = SessionId(1_000_012)
ARCHIVE = make_archive([40, 120, 3])


def wish(last: int, *, abandons_suffix: bool = False, key: UUID = KEY) -> PartitionWish:
    return PartitionWish(
        RESTORE_ID, key, COUNT, STORAGES[0], None, LOST, TransactionId(last), SESSION,
        abandons_suffix,
    )  # fmt: skip


def node(held: list[int], *, seed: int = 7) -> SimulatedDisk:
    """Return a disk on which a node has worked, with these numbers of records per partition."""
    disk = SimulatedDisk([PLACE])
    control = open_control(
        disk, directory=PLACE, key=KEY, partition_count=COUNT, assigned=range(COUNT)
    )
    log = make_log(held, seed)
    for number in range(COUNT):
        partition = StoragePartition(
            disk, PLACE, control, PartitionId(number), cluster_key=KEY,
            segment_bytes_threshold=2_000, wall_milliseconds=lambda: NOW,
        )  # fmt: skip
        assert partition.open() is None
        if held[number]:
            partition.log.write(log[PartitionId(number)].batch)
            partition.log.sync()
        partition.close()
    control.close()
    return disk


def restore(
    disk: SimulatedDisk, last: int, archive: MemoryArchive = ARCHIVE, *, abandons: bool = False
) -> FilledPartition:
    return fill_partition(
        filling(disk, threshold=2_000), archive.blocks, PLACE, wish(last, abandons_suffix=abandons)
    )


def shown(disk: SimulatedDisk) -> dict[str, bytes]:
    """The files that a node and the second reader look at."""
    return {
        name: data
        for name, data in files(disk, PLACE).items()
        if ".lost-" not in name and ".restoring" not in name
    }


def test_the_partition_is_the_archives_and_the_others_are_as_before() -> None:
    disk = node([30, 9, 2], seed=99)
    before = shown(disk)
    done = restore(disk, 110)
    directory = parse_directory(shown(disk))
    assert logs(directory)[1] == ARCHIVE.log(1, 110)
    now = directory.control.entries[1].current
    assert (now.session, now.low_water_mark, now.local_low_water_mark) == (SESSION, 110, 110)
    assert now.flags == 1 | 4, "available and assigned"
    for name, data in before.items():
        if name.startswith(("0/", "2/")):
            assert shown(disk)[name] == data
    assert done.set_aside == f"{PLACE}/1.lost-{RESTORE_ID}"
    assert done.last == 8
    aside = {
        name.removeprefix(f"1.lost-{RESTORE_ID}/"): data
        for name, data in files(disk, PLACE).items()
        if ".lost-" in name
    }
    assert aside == {n.removeprefix("1/"): d for n, d in before.items() if n.startswith("1/")}
    assert done.report.partitions[LOST].last == 110
    assert done.report.directory_id == DIRECTORY_ID


def test_a_node_opens_it_and_vouches_for_all_of_it() -> None:
    disk = node([30, 0, 2])
    restore(disk, 110)
    control = open_control(disk, directory=PLACE, key=KEY, partition_count=COUNT, assigned=())
    assert control.notes == ()
    partition = StoragePartition(
        disk, PLACE, control, LOST, cluster_key=KEY,
        segment_bytes_threshold=2_000, wall_milliseconds=lambda: NOW,
    )  # fmt: skip
    assert partition.open() is None
    assert (partition.damage, partition.loss, partition.log.damage) == (None, None, ())
    assert partition.log.next_transaction_id == 111
    assert partition.promises.fence == SESSION, "a session of before is refused"
    assert partition.promises.is_ours
    assert partition.promises.is_traced


def test_records_beyond_the_point_are_set_aside_only_with_leave() -> None:
    disk = node([30, 119, 2], seed=99)
    before = disk.contents()
    with pytest.raises(ConfigurationError, match="transactions 111 to 118 may have been committed"):
        restore(disk, 110)
    assert disk.contents() == before
    done = restore(disk, 110, abandons=True)
    assert done.last == 118
    assert logs(parse_directory(shown(disk)))[1] == ARCHIVE.log(1, 110)


def test_a_mark_beyond_the_point_counts_like_a_record() -> None:
    """The log was lost, and the control file still says how far it went."""
    disk = node([30, 0, 2])
    control = open_control(disk, directory=PLACE, key=KEY, partition_count=COUNT, assigned=())
    promises = control.promises(LOST)
    info = wish(400).info
    promises.update(info)
    control.close()
    with pytest.raises(ConfigurationError, match="transactions 111 to 400 may have been committed"):
        restore(disk, 110)


def test_what_cannot_be_read_may_be_beyond_the_point() -> None:
    disk = node([30, 80, 2])
    contents = dict(disk.contents())
    index = max(name for name in contents if name.startswith(f"{PLACE}/1/") and ".idx" in name)
    contents[index] = b"\xff" * len(contents[index] or b"")
    spoiled = SimulatedDisk(contents=contents)
    with pytest.raises(ConfigurationError, match="nobody can tell which transactions"):
        restore(spoiled, 110)
    assert spoiled.contents() == contents
    assert restore(spoiled, 110, abandons=True).last is None


def test_a_running_node_a_strange_directory_and_another_cluster_are_refused() -> None:
    disk = node([1, 1, 1])
    control = open_control(disk, directory=PLACE, key=KEY, partition_count=COUNT, assigned=())
    with pytest.raises(DirectoryInUseError):
        restore(disk, 110)
    control.close()
    strange = UUID(int=5)
    with pytest.raises(ConfigurationError, match=f"works in {strange}"):
        fill_partition(
            filling(disk), ARCHIVE.blocks, PLACE,
            PartitionWish(
                RESTORE_ID, KEY, COUNT, STORAGES[0], strange, LOST, TransactionId(3), SESSION, True
            ),
        )  # fmt: skip
    with pytest.raises(ForeignDirectoryError, match="belongs to cluster"):
        fill_partition(filling(disk), ARCHIVE.blocks, PLACE, wish(3, key=UUID(int=9)))
    with pytest.raises(ConfigurationError, match=r"has no waltz-storage\.ctl"):
        fill_partition(filling(SimulatedDisk([PLACE])), ARCHIVE.blocks, PLACE, wish(3))


def test_an_archive_that_gives_something_else_changes_nothing_that_a_node_sees() -> None:
    disk = node([30, 9, 2])
    before = shown(disk)
    block = bytearray(ARCHIVE.log(1, 119))
    block[len(block) // 2] ^= 1

    def wrong(*_: object) -> list[bytes]:
        return [bytes(block)]

    with pytest.raises(CorruptionError, match="does not check out"):
        fill_partition(filling(disk), wrong, PLACE, wish(119))  # type: ignore[arg-type]
    assert shown(disk) == before


def judge_killed(held: list[int], last: int, number: int) -> bool:
    """Kill a restore before its operation `number`, with the kernel living on and with a power
    cut; return whether it had ended."""
    disk = node(held, seed=99)
    before = logs(parse_directory(shown(disk)))
    disk.fault = killed_at(number)
    try:
        restore(disk, last, abandons=True)
        ended = True
    except Killed:
        ended = False
    disk.fault = None
    for left in (SimulatedDisk(contents=disk.contents()), disk.crash_clone(Random(number))):
        directory = parse_directory(shown(left))
        now = directory.control.entries[LOST].current
        found = logs(directory)
        assert {p: found[p] for p in (0, 2)} == {p: before[p] for p in (0, 2)}
        if now.flags & 4:  # assigned: a node takes part with it
            assert found.get(1, b"") in (
                [ARCHIVE.log(1, last)] if now.session == SESSION else [before[1]]
            )
        again = restore(left, last, abandons=True)
        assert logs(parse_directory(shown(left)))[1] == ARCHIVE.log(1, last)
        assert again.report.partitions[LOST].last == last
        assert again.set_aside is not None
        assert again.last == held[1] - 1, "what was there is still there"
        assert not [name for name in files(left, PLACE) if ".restoring/" in name]
    return ended


def test_a_restore_killed_before_any_operation_is_resumed_and_loses_nothing() -> None:
    total = 0
    while not judge_killed([4, 30, 2], 110, total + 1):
        total += 1
    assert total > 50


def test_a_restore_of_before_is_checked_and_left() -> None:
    disk = node([30, 9, 2])
    first = restore(disk, 110)
    before = disk.contents()
    assert restore(disk, 110) == first
    assert disk.contents() == before
