"""The node file: its bytes, its two copies of everything, its creation in one step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from uuid import UUID
from zlib import crc32

import pytest

from tests.storage.support import (
    DIRECTORY,
    DIRECTORY_ID,
    KEY,
    OTHER_KEY,
    batch,
    fresh_disk,
    random,
)
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    ForeignDirectoryError,
    SegmentFailedError,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.directory.node_file import (
    EMPTY_SLOT,
    NO_COPY,
    NodeFile,
    NodeHeader,
    Slot,
    area_offsets,
    create_node_file,
    decode_node_file,
    decode_slot,
    encode_header,
    encode_slot,
    node_file_bytes,
    open_node_file,
)
from waltz.types import NO_SESSION, PartitionId, SessionId

PATH = f"{DIRECTORY}/waltz-storage.node"
COUNT = 3
HEADER = NodeHeader(KEY, COUNT, DIRECTORY_ID, 1_700_000_000_000, 1_700_000_000_001)
ZERO, ONE, TWO = (PartitionId(number) for number in range(3))
COPY = bytes(range(36))
SECOND = 4096


def made() -> SimulatedDisk:
    disk = fresh_disk()
    create_node_file(disk, DIRECTORY, HEADER)
    return disk


def opened(disk: SimulatedDisk, *, key: UUID = KEY, count: int = COUNT) -> NodeFile:
    return open_node_file(disk, DIRECTORY, cluster_key=key, partition_count=count)


def put(file: NodeFile, number: int, fence: int, copy: bytes = COPY) -> None:
    file.update(PartitionId(number), fence=SessionId(fence), struct_copy=copy, index_is_ours=True)


def slot_offsets(number: int) -> tuple[int, int]:
    return 128 + 64 * number, SECOND + 128 + 64 * number


def test_the_file_has_the_worked_bytes() -> None:
    """Put together by hand, sharing no code with the product."""
    disk = made()
    put(opened(disk), 1, 7)
    head = bytes.fromhex(
        "00000000 0000018bcfe56800 00112233445566778899aabbccddeeff 00000003"
        "d1d1d1d1000040008000000000000001 0000018bcfe56801" + "00" * 68
    )
    slot = bytes.fromhex(
        "00000001 00000001 0000000000000007" + bytes(range(36)).hex() + "0000000000000001"
    )
    area = head + crc32(head).to_bytes(4, "big") + bytes(64) + slot
    area += crc32(slot).to_bytes(4, "big") + bytes(64)
    assert disk.content(PATH) == area.ljust(SECOND, b"\0") + area


def test_copies_lie_in_different_blocks() -> None:
    for count in (1, 61, 62, 63, 1_000_000):
        first, second = area_offsets(count)
        assert second - first >= 128 + 64 * count
        assert second % 4096 == 0
        assert node_file_bytes(count) == second + 128 + 64 * count
    assert area_offsets(62) == (0, 4096)
    assert area_offsets(63) == (0, 8192)


def test_every_flipped_bit_of_a_slot_is_noticed() -> None:
    good = encode_slot(ONE, Slot(SessionId(7), COPY, True, 3))
    assert decode_slot(good, ONE) == Slot(SessionId(7), COPY, True, 3)
    assert decode_slot(good, TWO) is None
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_slot(bytes(bad), ONE) is None


def test_slots_that_were_never_written_are_holes() -> None:
    disk = made()
    file = opened(disk)
    assert file.slot(TWO) == EMPTY_SLOT == Slot(NO_SESSION, NO_COPY, False, 0)
    assert file.partition_ids == frozenset()
    assert file.header == HEADER
    assert file.notes == ()


def test_an_update_is_durable_in_both_copies_before_it_returns() -> None:
    disk = made()
    put(opened(disk), 1, 7)
    put(opened(disk), 1, 8)
    for seed in range(20):
        clone = disk.crash_clone(random(seed))
        for offset in slot_offsets(1):
            found = decode_slot(clone.content(PATH)[offset : offset + 64], ONE)
            assert found == Slot(SessionId(8), COPY, True, 2)
        file = opened(clone)
        assert file.slot(ONE).fence == 8
        assert file.partition_ids == {ONE}
        assert file.notes == ()


class Killed(BaseException):
    """The process ends before an operation."""


def test_a_crash_at_any_moment_leaves_a_valid_copy() -> None:
    """Either the state before or the new one, and never an older one after a newer was seen."""
    fences = set()
    for at in range(1, 5):
        for seed in range(30):
            disk = made()
            file = opened(disk)
            put(file, 1, 7)
            put(file, 2, 5)
            seen = 0

            def die(operation: DiskOperation, path: str, at: int = at) -> None:
                nonlocal seen
                seen += 1
                if seen == at:
                    raise Killed

            disk.fault = die
            with pytest.raises(Killed):
                put(file, 1, 8)
            disk.fault = None
            clone = disk.crash_clone(random(seed))
            found = opened(clone).slot(ONE)
            fences.add(found.fence)
            assert found.struct_copy == COPY
            assert opened(clone).notes == ()
            assert opened(clone).slot(TWO).fence == 5
            for again in range(3):
                assert opened(clone.crash_clone(random(again))).slot(ONE) == found
    assert fences == {7, 8}


def test_a_crash_in_the_middle_of_a_repair_leaves_a_valid_copy() -> None:
    """The repair is one of what a killed process had written, or of damage."""
    for at in range(1, 6):
        for seed in range(20):
            for damaged in (False, True):
                disk = made()
                file = opened(disk)
                put(file, 1, 7)
                if damaged:
                    disk.damage(PATH, slot_offsets(1)[seed % 2] + 9, b"x")
                else:
                    disk.fault = fail_nth(DiskOperation.SYNC, 1, done=0.0)
                    with pytest.raises(SegmentFailedError):
                        put(file, 1, 8)
                seen = 0

                def die(operation: DiskOperation, path: str, at: int = at) -> None:
                    nonlocal seen
                    seen += 1
                    if seen == at:
                        raise Killed

                disk.fault = die
                try:
                    opened(disk)
                except Killed:
                    pass
                assert opened(disk.crash_clone(random(seed))).slot(ONE).fence in (7, 8)


def test_a_failed_sync_ends_all_updates() -> None:
    for operation in (DiskOperation.WRITE, DiskOperation.SYNC):
        for number in (1, 2):
            disk = made()
            file = opened(disk)
            put(file, 1, 7)
            disk.fault = fail_nth(operation, number)
            with pytest.raises(SegmentFailedError, match="fails"):
                put(file, 1, 8)
            with pytest.raises(SegmentFailedError, match="no update after a failed one"):
                put(file, 2, 1)
            assert file.slot(ONE).fence == 7


def test_a_write_without_space_may_be_tried_again() -> None:
    """SN-28: what was not written is not lost; what could not be synced may be."""
    for number in (1, 2):
        disk = made()
        file = opened(disk)
        put(file, 1, 7)
        disk.fault = fail_nth(DiskOperation.WRITE, number, errno.ENOSPC)
        with pytest.raises(SegmentFailedError, match="fails"):
            put(file, 1, 8)
        put(file, 1, 9)
        file.close()
        assert opened(disk).slot(ONE).fence == 9
        disk.fault = fail_nth(DiskOperation.SYNC, 1, errno.ENOSPC)
        file = opened(made())


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    for offset in range(len(content)):
        for bit in (0, 3, 7):
            yield offset, bytes([content[offset] ^ 1 << bit])


def test_every_flipped_byte_is_told_and_restored() -> None:
    disk = made()
    file = opened(disk)
    put(file, 0, 4)
    put(file, 2, 7)
    put(file, 2, 8)
    content = disk.content(PATH)
    for offset, flipped in flips(content):
        bad = bytearray(content)
        bad[offset : offset + 1] = flipped
        found = decode_node_file(bytes(bad), cluster_key=KEY, partition_count=COUNT, place="f")
        assert len(found.notes) == 1
        assert found.header == HEADER
        assert found.slots == {ZERO: file.slot(ZERO), TWO: file.slot(TWO)}
        for start, right in found.repairs:
            bad[start : start + len(right)] = right
        assert bytes(bad) == content


def test_opening_writes_the_repairs() -> None:
    disk = made()
    put(opened(disk), 1, 7)
    content = disk.content(PATH)
    for offset in (0, 100, SECOND + 3, *slot_offsets(0), *slot_offsets(1), 2000):
        disk.damage(PATH, offset, bytes([content[offset] ^ 64]))
        file = opened(disk)
        assert len(file.notes) == 1
        assert file.slot(ONE).fence == 7
        assert disk.crash_clone(random(offset)).content(PATH) == content


def test_a_lost_sector_loses_nothing() -> None:
    """Zeros look like a slot that was never written; the other copy knows better."""
    disk = made()
    put(opened(disk), 1, 7)
    content = disk.content(PATH)
    for start in (0, SECOND):
        disk.damage(PATH, start, bytes(512)[: len(content) - start])
        file = opened(disk)
        assert file.slot(ONE).fence == 7
        assert disk.content(PATH) == content


def test_both_copies_bad_stops_that_partition_only() -> None:
    disk = made()
    file = opened(disk)
    put(file, 0, 4)
    put(file, 1, 7)
    for offset in slot_offsets(1):
        disk.damage(PATH, offset + 10, b"x")
    file = opened(disk)
    with pytest.raises(CorruptionError, match=r"partition 1 .* give the partition up and take it"):
        file.slot(ONE)
    assert file.partition_ids == {ZERO, ONE}
    assert file.slot(ZERO).fence == 4
    put(file, 1, 9)
    assert opened(disk).slot(ONE) == Slot(SessionId(9), COPY, True, 1)


def test_a_file_cut_off_is_made_whole_from_the_first_area() -> None:
    """What is missing must not look as if it had never been written."""
    disk = made()
    put(opened(disk), 1, 7)
    content = disk.content(PATH)
    for size in (SECOND + 130, SECOND + 5, 4000):
        disk.open(PATH).truncate(size)
        file = opened(disk)
        assert file.slot(ONE).fence == 7
        assert any(f"has {size} bytes" in note for note in file.notes)
        assert disk.content(PATH) == content
    disk.open(PATH).truncate(128 + 64 + 10)
    with pytest.raises(CorruptionError):
        opened(disk).slot(ONE)
    disk.open(PATH).truncate(100)
    with pytest.raises(ConfigurationError, match="header"):
        opened(disk)
    disk.damage(PATH, 0, content + b"more")
    assert "expected" in opened(disk).notes[0]


def test_what_was_cut_off_stays_lost_however_often_the_file_is_opened() -> None:
    """The repair of the second header lengthens the file: no hole may pass for a fresh slot."""
    disk = made()
    put(opened(disk), 0, 7)
    put(opened(disk), 2, 9)
    for size in range(128, slot_offsets(2)[0] + 64, 20):
        copy = fresh_disk()
        file = copy.open(PATH, create=True)
        file.write_at(0, disk.content(PATH)[:size])
        file.sync()
        for _ in range(3):
            with pytest.raises(CorruptionError, match="partition 2"):
                opened(copy).slot(TWO)


def test_a_record_that_strayed_into_a_header_is_none() -> None:
    """A record of 128 bytes has its CRC-32 where a header has it."""
    disk = made()
    stray = batch(0, 1, size=88).block
    assert len(stray) == 128
    for start in (0, SECOND):
        before = disk.content(PATH)
        disk.damage(PATH, start, stray)
        assert opened(disk).header == HEADER
        assert disk.content(PATH) == before


def test_files_of_others_are_refused() -> None:
    disk = made()
    with pytest.raises(ForeignDirectoryError, match=f"belongs to cluster {KEY}, not to"):
        opened(disk, key=OTHER_KEY)
    with pytest.raises(ForeignDirectoryError, match="made for 3 partitions, the cluster has 2"):
        opened(disk, count=2)
    strange = bytearray(encode_header(HEADER))
    strange[3] = 9
    strange[124:] = crc32(strange[:124]).to_bytes(4, "big")
    for offset in (0, SECOND):
        disk.damage(PATH, offset, bytes(strange))
    with pytest.raises(ConfigurationError, match="format version 9; this release knows 0"):
        opened(disk)
    disk.damage(PATH, 0, encode_header(HEADER))
    with pytest.raises(ConfigurationError, match="or they differ"):
        opened(disk)
    with pytest.raises(FileNotFoundError):
        opened(fresh_disk())


def test_creation_is_all_or_nothing() -> None:
    for operation in (DiskOperation.OPEN, DiskOperation.WRITE, DiskOperation.TRUNCATE,
                      DiskOperation.SYNC, DiskOperation.RENAME,
                      DiskOperation.SYNC_DIRECTORY):  # fmt: skip
        for number in (1, 2):
            for seed in range(10):
                disk = fresh_disk()
                disk.fault = fail_nth(operation, number)
                try:
                    create_node_file(disk, DIRECTORY, HEADER)
                except OSError:
                    pass
                clone = disk.crash_clone(random(seed))
                if not clone.exists(PATH):
                    create_node_file(clone, DIRECTORY, HEADER)
                assert opened(clone).notes == ()
