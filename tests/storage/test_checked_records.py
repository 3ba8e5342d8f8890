"""Reading, scrubbing and repairing the records of a log."""

from __future__ import annotations

import pytest

from tests.storage.logs import (
    filled_disk,
    flip,
    open_chain,
    path,
    place,
    ranges,
    readable,
    reopened,
    scrub_all,
    spoil,
)
from tests.storage.support import batch, fresh_disk, t
from waltz.errors import (
    CorruptionError,
    StorageError,
)
from waltz.sim.simulated_disk import DiskOperation, fail_nth
from waltz.storage.log.checked_records import ScrubStep
from waltz.storage.log.segment import Segment


def test_reads_go_up_to_damage_and_on_behind_it() -> None:
    """SD-17: in a complete segment, at its ends, and in the last one."""
    disk = filled_disk(30)
    spoil(disk, 4, 5, 17, 18, 28)
    chain = reopened(disk)
    assert readable(chain) == sorted(set(range(30)) - {4, 5, 17, 18, 28})
    assert ranges(chain) == [(4, 6), (17, 18), (18, 19), (28, 29)]
    assert len(chain.records.read(t(0), count_max=100, bytes_max=10**6)) == 4
    assert len(chain.records.read(t(6), count_max=100, bytes_max=10**6)) == 11
    assert len(chain.records.read(t(19), count_max=100, bytes_max=10**6)) == 9
    with pytest.raises(
        CorruptionError, match="record 5 of partition 0 is damaged: records 4 to 5 must be"
    ):
        chain.records.read(t(5), count_max=10, bytes_max=10**6)


def test_wrong_index_entries_are_put_right_when_they_are_read() -> None:
    for number in range(9):
        disk = filled_disk(30)
        good = disk.content(path(0, ".idx"))
        chain = reopened(disk)
        flip(disk, path(0, ".idx"), 128 + 8 * number + 6)
        assert readable(chain) == list(range(30))
        assert (chain.damage, chain.segments.indexes_healed) == ((), 1)
        assert disk.content(path(0, ".idx")) == good


def test_read_that_fails_once_is_tried_again() -> None:
    disk = filled_disk(30)
    chain = reopened(disk)
    disk.fault = fail_nth(DiskOperation.READ, 2)
    assert chain.records.read(t(3), count_max=1, bytes_max=1) == batch(3, 1, size=60)
    assert chain.damage == ()


def test_scrub_reads_everything_once_and_in_bounds() -> None:
    disk = filled_disk(50)
    chain = reopened(disk)
    for bytes_max in (1, 99, 100, 450, 10**6):
        total = scrub_all(chain, bytes_max)
        assert (total.next_transaction_id, total.records) == (50, 50)
        assert total.bytes_read == 5000
        assert (total.damaged, total.indexes_healed) == ((), 0)
    assert chain.records.scrub(t(50), 100) == ScrubStep(t(50), 0, 0, (), 0)
    assert chain.records.scrub(t(-5), 100).records == 1


def test_scrub_finds_every_flipped_byte_of_records_and_entries() -> None:
    """In complete segments and in the last one, while the partition is open."""
    disk = filled_disk(12)
    chain = reopened(disk)
    files = {path(0): 9, path(9): 3}
    for where, count in files.items():
        content = disk.content(where)
        for position in range(128, len(content), 3):
            flip(disk, where, position)
            number = t((0 if count == 9 else 9) + (position - 128) // 100)
            assert scrub_all(chain).damaged == ((number, number + 1),)
            assert ranges(chain) == [(number, number + 1)]
            disk.damage(where, position, content[position : position + 1])
            assert scrub_all(chain).damaged == ()
            assert chain.damage == (), "what is good again is not damaged"
        index = where[:-4] + ".idx"
        content = disk.content(index)
        for position in range(128, len(content)):
            flip(disk, index, position)
            step = scrub_all(chain)
            assert (step.indexes_healed, step.damaged, step.records) == (1, (), 12)
            assert disk.content(index) == content


def test_scrub_restores_the_headers_of_open_files() -> None:
    """What they say of their file was true when it was opened; reserved bytes are zero."""
    disk = filled_disk(12)
    chain = reopened(disk)
    for where in (path(0), path(0, ".idx"), path(9), path(9, ".idx")):
        good = disk.content(where)
        for position in (0, 3, 12, 27, 28, 31, 32, 39, 40, 90, 127):
            flip(disk, where, position)
            assert scrub_all(chain).indexes_healed == 1
            assert disk.content(where) == good
    disk.fault = fail_nth(DiskOperation.READ, 1)
    assert scrub_all(chain).records == 12


def test_scrub_reports_only_what_is_new() -> None:
    disk = filled_disk(30)
    spoil(disk, 3, 20)
    chain = reopened(disk)
    assert [tuple(found) for found in scrub_all(chain).damaged] == [(3, 4), (20, 21)]
    spoil(disk, 21)
    assert [tuple(found) for found in scrub_all(chain).damaged] == [(20, 22)]
    assert scrub_all(chain).damaged == ()


def test_scrub_does_not_look_beyond_what_is_synced() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk)
    chain.write(batch(0, 3, size=60))
    chain.sync()
    chain.write(batch(3, 3, size=60))
    spoil(disk, 4)
    step = chain.records.scrub(t(0), 10**6)
    assert (step.next_transaction_id, step.records, step.damaged) == (3, 3, ())


def test_scrub_ends_at_a_segment_that_lags_behind_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SD-21: whatever has gone wrong, it says so and does not read the same place for ever."""
    chain, _ = open_chain(fresh_disk())
    chain.write(batch(0, 3, size=60))
    chain.sync()
    monkeypatch.setattr(Segment, "write_index", lambda self: None)
    chain.write(batch(3, 12, size=60))
    chain.sync()
    assert len(chain.segments.firsts) > 1
    assert chain.records.scrub(t(0), 1).records == 1
    with pytest.raises(StorageError, match="records from 3 on are not known to be durable"):
        chain.records.scrub(t(0), 10**6)


def test_unreadable_blocks_are_damage_until_they_can_be_read() -> None:
    disk = filled_disk(30)
    chain = reopened(disk)

    def bad(operation: DiskOperation, where: str) -> None:
        if operation is DiskOperation.READ and where == path(9):
            raise OSError("bad sector")

    disk.fault = bad
    assert [tuple(found) for found in scrub_all(chain).damaged] == [(9, 18)]
    assert readable(chain) == [*range(9), *range(18, 30)]
    disk.fault = None
    assert scrub_all(chain).records == 30
    assert readable(chain) == list(range(30))


def test_lost_end_that_can_be_read_again_takes_appends_again() -> None:
    disk = filled_disk(30)
    where, offset = place(29)
    content = disk.content(where)
    disk.damage(where, offset + 5, b"!")
    chain = reopened(disk)
    assert ranges(chain) == [(29, 30)]
    disk.damage(where, offset + 5, content[offset + 5 : offset + 6])
    scrub_all(chain)
    assert readable(chain) == list(range(30))
    chain.write(batch(30, 2, size=60))
    chain.sync()
    assert len(chain.segments.firsts) == 4
    assert readable(chain) == list(range(32))


def test_repair_names_what_is_damaged() -> None:
    chain = reopened(filled_disk(5))
    with pytest.raises(StorageError, match=r"no damage from 7 to 8; damaged are no records"):
        chain.records.repair(batch(7, 2, size=60))
