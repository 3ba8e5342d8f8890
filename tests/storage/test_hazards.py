"""What must not happen on disk: the original's hazards D1 to D9, and any changed byte unnoticed.

Each hazard has a test that names it; more of them are beside the modules that they concern.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.storage.support import (
    DIRECTORY,
    OTHER_KEY,
    SESSION,
    ZERO,
    append,
    batch,
    fresh_disk,
    home,
    last_id,
    make_partition,
    open_control,
    open_partition,
    random,
    read_all,
    record_data,
    refusal,
    start_session,
    succeed,
    t,
)
from waltz.errors import CorruptionError
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.log.segment_recovery import TornTail, Trust
from waltz.storage.log.segments import SegmentChain
from waltz.storage.partition_replica import StoragePartition
from waltz.wire.storage_protocol import MaxTransactionIdRequest, RecordRequest


def path(first: int, suffix: str = ".seg") -> str:
    return f"{DIRECTORY}/0/{first:019d}{suffix}"


def open_chain(disk: SimulatedDisk, *, proof: bool = True) -> tuple[SegmentChain, TornTail | None]:
    chain = SegmentChain(home(disk), segment_bytes_threshold=300, wall_milliseconds=lambda: 5)
    return chain, chain.open(Trust(local_low_water_mark=t(-1), index_is_proof=proof))


def clean_disk(count: int) -> SimulatedDisk:
    disk = fresh_disk()
    chain, _ = open_chain(disk)
    for number in range(count):
        chain.write(batch(number, 1, size=10))
        chain.sync()
    chain.close()
    return disk


def restart(disk: SimulatedDisk) -> StoragePartition:
    disk.release_locks()
    partition = open_partition(disk)
    partition.announce(partition.promises.info.session_id)
    return partition


def test_d1_lost_index_entry_at_a_multiple_does_not_keep_the_node_from_starting() -> None:
    """Hazard D1: recovery starts at the multiple, whose entry was written after the sync."""
    for multiple in (1000, 16_000):
        disk = fresh_disk()
        partition = open_partition(disk)
        succeed(partition, append(0, multiple + 2, size=1))
        partition.close()
        disk.damage(path(0, ".idx"), 128 + 8 * multiple, bytes(8))
        partition = restart(disk)
        assert (partition.damage, partition.log.damage) == (None, ())
        assert last_id(partition) == multiple + 1


def test_d2_orphan_index_file_does_not_block_the_roll_over() -> None:
    """Hazard D2: a crash between the creation of the two files of a segment."""
    for content in (b"", home(fresh_disk()).header(t(2), 5), bytes(500)):
        disk = fresh_disk()
        partition = make_partition(disk, open_control(disk), threshold=150)
        partition.open()
        partition.announce(SESSION)
        succeed(partition, append(0, 2, size=60))
        disk.open(path(2, ".idx"), create=True).write_at(0, content)
        succeed(partition, append(2, 2, size=60))
        assert len(read_all(partition)) == 4
        partition.close()
        assert len(read_all(restart(disk))) == 4


def test_d3_missing_index_or_incomplete_header_does_not_keep_the_node_from_starting() -> None:
    """Hazard D3: the index is rebuilt; without a header of its own a data file is damaged."""
    for size in (None, 0, 60):
        disk = fresh_disk()
        partition = open_partition(disk)
        succeed(partition, append(0, 5))
        partition.close()
        if size is None:
            disk.remove(path(0, ".idx"))
        else:
            disk.open(path(0, ".idx")).truncate(size)
        partition = restart(disk)
        assert partition.log.damage == ()
        assert len(read_all(partition)) == 5
        partition.close()
        disk.open(path(0)).truncate(size or 0)
        partition = restart(disk)
        assert partition.damage is None
        assert [tuple(found) for found in partition.log.damage] == [(0, 5)]


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 2**24 + 1, 70_000])
def test_d4_impossible_length_ends_the_scan_and_nothing_else(length: int) -> None:
    """Hazard D4: it is checked before it is used."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    partition.close()
    disk.damage(path(0), 128 + int(batch(0, 5).offsets[3]) + 28, struct.pack(">i", length))
    partition = restart(disk)
    assert [tuple(found) for found in partition.log.damage] == [(3, 4)]
    for number in (0, 1, 2, 4):
        assert partition.log.records.read(t(number), count_max=1, bytes_max=1) == batch(number, 1)


def test_d5_damage_in_the_middle_never_discards_what_follows() -> None:
    """Hazard D5: committed records behind it stay, in the same segment and in later ones."""
    disk = clean_disk(20)
    before = {name: disk.content(f"{DIRECTORY}/0/{name}") for name in segment_names(disk)}
    disk.damage(path(0), 128 + 3 * 50 + 40, b"\xff\xfe")
    chain, torn = open_chain(disk)
    assert torn is None
    with pytest.raises(CorruptionError):
        chain.records.read(t(3), count_max=1, bytes_max=1)
    assert chain.next_transaction_id == 20
    assert chain.records.read(t(4), count_max=99, bytes_max=10**6) == batch(4, 16, size=10)
    chain.close()
    after = {name: disk.content(f"{DIRECTORY}/0/{name}") for name in segment_names(disk)}
    assert {name: len(content) for name, content in before.items()} == {
        name: len(content) for name, content in after.items()
    }


def segment_names(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list_directory(f"{DIRECTORY}/0") if name[-4:] in (".seg", ".idx")]


def test_d6_one_bad_partition_does_not_stop_the_others() -> None:
    """Hazard D6: nor does one bad segment stop its partition."""
    disk = fresh_disk()
    control = open_control(disk, assigned=(0, 1))
    for number in (0, 1):
        partition = make_partition(disk, control, number=number)
        partition.open()
        partition.writer.write(batch(0, 5, partition=number))
        partition.close()
    for suffix in (".seg", ".idx"):
        disk.damage(path(0, suffix), 12, OTHER_KEY.bytes)
    one, other = (make_partition(disk, control, number=number) for number in (0, 1))
    assert (one.open(), other.open()) == (None, None)
    assert isinstance(one.damage, CorruptionError)
    assert other.damage is None
    assert other.log.records.read(t(0), count_max=9, bytes_max=10**6) == batch(0, 5, partition=1)


def test_d7_control_file_is_made_in_one_step() -> None:
    """Hazard D7: wherever the power is cut, the next start finds a whole file or none."""
    draw = random("d7")
    disk = fresh_disk()
    clones: list[SimulatedDisk] = []
    disk.fault = lambda *_: clones.extend(disk.crash_clone(draw) for _ in range(5))
    open_control(disk).close()
    assert len(clones) > 30
    for clone in clones:
        control = open_control(clone)
        assert control.promises(ZERO).info.is_assigned


def test_d8_promises_are_durable_when_they_are_made() -> None:
    """Hazard D8: written and synced through the file, not through a memory map."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    for session in range(1, 6):
        start_session(partition, session, 4)
        for seed in range(5):
            survivor = open_partition(disk.crash_clone(random(seed)))
            assert survivor.promises.session_info == (session, 4, 4)


def test_d9_names_are_durable_when_files_are_made_and_removed() -> None:
    """Hazard D9: the directory is synced."""
    disk = fresh_disk()
    partition = make_partition(disk, open_control(disk), threshold=150)
    partition.open()
    partition.announce(SESSION)
    for first in range(0, 8, 2):
        succeed(partition, append(first, 2, size=60))
    for seed in range(5):
        clone = disk.crash_clone(random(seed))
        assert segment_names(clone) == segment_names(disk)
        assert len(read_all(open_partition(clone))) == 8
    partition.truncate(t(2))
    for seed in range(5):
        clone = disk.crash_clone(random(seed))
        assert segment_names(clone) == segment_names(disk)
        assert len(read_all(open_partition(clone))) == 3


# Every byte


def changes(disk: SimulatedDisk) -> Iterator[tuple[str, int]]:
    for name in segment_names(disk):
        yield from (
            (f"{DIRECTORY}/0/{name}", position)
            for position in range(len(disk.content(f"{DIRECTORY}/0/{name}")))
        )


def is_for_people(position: int) -> bool:
    """The time of creation says nothing of the log."""
    return 4 <= position < 12


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_every_changed_byte_of_a_clean_directory_is_noticed_and_never_served(mask: int) -> None:
    """SD-17: as damage, or as an index that is put right. The log is never shorter than what was
    acknowledged, and all its good records are served; repair makes it what it was."""
    count = 8
    names = segment_names(clean_disk(count))
    assert len(names) == 4
    for where, position in changes(clean_disk(count)):
        disk = clean_disk(count)
        good = {name: disk.content(f"{DIRECTORY}/0/{name}") for name in names}
        disk.damage(where, position, bytes([disk.content(where)[position] ^ mask]))
        chain, torn = open_chain(disk)
        assert torn is None
        position_next, healed = t(0), chain.segments.indexes_healed
        while position_next < chain.next_transaction_id:
            step = chain.records.scrub(position_next, 10**6)
            position_next, healed = step.next_transaction_id, healed + step.indexes_healed
        assert chain.next_transaction_id == count
        bad = {number for first, end in chain.damage for number in range(first, end)}
        assert bool(bad) or healed > 0 or is_for_people(position), (where, position)
        for number in range(count):
            if number in bad:
                with pytest.raises(CorruptionError):
                    chain.records.read(t(number), count_max=1, bytes_max=1)
            else:
                records = chain.records.read(t(number), count_max=1, bytes_max=1)
                assert records == batch(number, 1, size=10)
        for first, end in chain.damage:
            chain.records.repair(batch(first, end - first, size=10))
        chain.close()
        again, _ = open_chain(disk)
        assert again.records.read(t(0), count_max=99, bytes_max=10**6) == batch(0, count, size=10)
        for name in names:
            after = disk.content(f"{DIRECTORY}/0/{name}")
            assert after[:4] + after[12:] == good[name][:4] + good[name][12:]


def test_every_cut_of_a_clean_directory_is_noticed() -> None:
    """SD-17: a data file that lost its end is damaged; an index that did is rebuilt."""
    count = 8
    for name in segment_names(clean_disk(count)):
        where = f"{DIRECTORY}/0/{name}"
        for size in range(len(clean_disk(count).content(where))):
            disk = clean_disk(count)
            disk.open(where).truncate(size)
            chain, torn = open_chain(disk)
            assert (chain.next_transaction_id, torn) == (count, None), (name, size)
            assert bool(chain.damage) == where.endswith(".seg")
            first_lost = chain.damage[0].first if chain.damage else count
            for number in range(first_lost):
                records = chain.records.read(t(number), count_max=1, bytes_max=1)
                assert records == batch(number, 1, size=10)


def test_zeroed_blocks_of_a_clean_directory_are_noticed() -> None:
    count = 8
    for name in segment_names(clean_disk(count)):
        where = f"{DIRECTORY}/0/{name}"
        for position in range(0, len(clean_disk(count).content(where)), 16):
            disk = clean_disk(count)
            content = disk.content(where)
            disk.damage(where, position, bytes(min(64, len(content) - position)))
            chain, torn = open_chain(disk)
            assert (chain.next_transaction_id, torn) == (count, None), (name, position)
            position_next = t(0)
            while position_next < count:
                position_next = chain.records.scrub(position_next, 10**6).next_transaction_id
            bad = {number for first, end in chain.damage for number in range(first, end)}
            for number in set(range(count)) - bad:
                records = chain.records.read(t(number), count_max=1, bytes_max=1)
                assert records == batch(number, 1, size=10)


# What it means for a partition


def test_damaged_replica_serves_and_takes_records_and_does_not_vote() -> None:
    """SD-17, I11: it neither says that it never had the records nor that it has them."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 10))
    disk.damage(path(0), 128 + int(batch(0, 10).offsets[4]) + 37, b"\xee")
    text = "partition 0 does not vote, since it has damage that awaits repair: record 4"
    assert "record 4" in refusal(partition, RecordRequest(SESSION, 1, ZERO, t(4)))
    assert text in refusal(partition, MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False))
    succeed(partition, append(10, 3))
    partition.close()
    partition = restart(disk)
    partition.announce(SESSION)
    assert text in refusal(partition, MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False))
    assert partition.log.records.read(t(5), count_max=99, bytes_max=10**6) == batch(5, 8)
    partition.writer.repair(batch(4, 1))
    assert last_id(partition) == 12
    assert read_all(partition) == [record_data(number) for number in range(13)]


def test_index_is_proof_only_after_this_release_was_the_last_to_write() -> None:
    """The original writes an index entry before its record: what a crash of it tore off is no
    damage; once the directory is ours, the same would be."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 10))
    partition.close()
    size = len(disk.content(path(0)))
    disk.open(path(0)).truncate(size - 3)
    partition = restart(disk)
    assert [tuple(found) for found in partition.log.damage] == [(9, 10)]
    partition.close()
    # Without the node's own file nobody knows who wrote last.
    disk.remove(f"{DIRECTORY}/waltz-storage.node")
    partition = restart(disk)
    assert (partition.log.damage, partition.log.next_transaction_id) == ((), 9)
