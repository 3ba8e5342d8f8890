"""Which segments there are, and how many of them are open."""

from __future__ import annotations

from tests.storage.logs import (
    filled_disk,
    make_chain,
    open_chain,
    path,
    reopened,
    spoil,
)
from tests.storage.support import DIRECTORY, OTHER_KEY, batch, fresh_disk, random, t
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk


def test_ceiling_removes_whole_segments() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=300)
    chain.write(batch(0, 6, size=60))
    chain.sync()
    chain, torn = open_chain(disk, ceiling=3)
    assert chain.next_transaction_id == 3
    assert torn is not None
    assert len(chain.segments.firsts) == 2


def test_removed_files_are_gone_and_others_stay() -> None:
    disk = filled_disk(20)
    disk.open(f"{DIRECTORY}/0/notes.txt", create=True)
    disk.damage(path(9), 12, OTHER_KEY.bytes)
    chain = reopened(disk)
    chain.records.repair(batch(9, 9, size=60))
    spoil(disk, 3)
    chain.records.scrub(t(0), 10**6)
    assert len(disk.list_directory(f"{DIRECTORY}/0")) == 6 + 3
    chain.close()
    chain.segments.remove_all()
    assert disk.list_directory(f"{DIRECTORY}/0") == ["notes.txt"]
    assert not chain.is_open


def test_removal_interrupted_anywhere_leaves_a_shorter_log_or_none() -> None:
    """No index without data stays, which would tell of records that are lost."""
    disk = filled_disk(30)
    chain = make_chain(disk)
    clones: list[SimulatedDisk] = []
    draw = random("removal")
    disk.fault = lambda *_: clones.extend(disk.crash_clone(draw) for _ in range(4))
    chain.segments.remove_all()
    for clone in clones:
        left = reopened(clone)
        assert left.damage == ()
        assert left.next_transaction_id in (0, 9, 18, 27, 30)


def test_opening_is_bounded_however_many_segments_there_are() -> None:
    """SN-29: of each complete segment its headers, its sizes and its last record."""
    disk = filled_disk(900)
    disk.counts.clear()
    chain = reopened(disk)
    assert len(chain.segments.firsts) == 100
    assert disk.counts[DiskOperation.READ] <= 100 * 9
    assert disk.counts[DiskOperation.SYNC] == 2, "both files of the last one"
    assert disk.counts[DiskOperation.WRITE] == 0
