"""The control file's bytes against those of the original, and what its copies prove (SD-03 to
SD-08)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.storage.support import GOLDEN, GOLDEN_KEY, KEY, t
from waltz.errors import CorruptionError
from waltz.storage.directory.control_struct import (
    ASSIGNED,
    AVAILABLE,
    CONTROL_HEADER,
    FRESH,
    READS_DIFFER,
    Entry,
    Judgement,
    PartitionInfo,
    decode_struct,
    encode_fresh_file,
    encode_fresh_structs,
    encode_struct,
    header_notes,
    judge_partition,
    judge_partitions,
)
from waltz.storage.directory.node_file import NO_COPY, NodeHeader
from waltz.types import PartitionId, SessionId

ONE = PartitionId(1)
HEAD = (1).to_bytes(4, "big")
STARTED = PartitionInfo(SessionId(7), t(99), t(98), AVAILABLE | ASSIGNED)
BEFORE = replace(STARTED, session_id=SessionId(6))
BROKEN = bytes(36)

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


@pytest.mark.parametrize(
    ("flags", "readable", "writable"),
    [(0, False, False), (1, True, True), (2, True, False), (3, False, True)],
)
def test_two_flags_allow_reads_and_writes_apart(flags: int, readable: bool, writable: bool) -> None:
    """SN-21, CX-07. The original looks at flag 1 only: 0 and 1 mean the same to both."""
    info = PartitionInfo(flags=ASSIGNED | flags)
    assert (info.is_readable, info.is_writable) == (readable, writable)
    for before in range(8):
        changed = PartitionInfo(flags=before).with_access(readable=readable, writable=writable)
        assert changed.flags == (before & ASSIGNED) | flags
    assert FRESH.is_readable
    assert FRESH.is_writable
    assert READS_DIFFER == 2


def test_valid_struct_wins_and_then_the_later_one() -> None:
    """SD-05, SD-06."""
    newer, older = encode_struct(STARTED, 5), encode_struct(FRESH, 4)
    for data in (newer + older, older + newer, newer + BROKEN, BROKEN + newer):
        entry = judge_partition(HEAD + data, ONE).entry
        assert isinstance(entry, Entry)
        assert entry.info == STARTED
    for data in (older + BROKEN, BROKEN + older):
        judgement = judge_partition(HEAD + data, ONE)
        assert isinstance(judgement.entry, Entry)
        assert judgement.entry.info == FRESH
        assert judgement.note is not None
        assert "one struct fails its checksum" in judgement.note


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((1).to_bytes(4, "big") + bytes(72), "both structs fail their checksum"),
        ((1).to_bytes(4, "big") + 2 * encode_struct(FRESH, 3), "both .* sequence number 3"),
        (bytes(4) + encode_fresh_structs(BEFORE), "carries partition ID 0"),
        (HEAD + encode_fresh_structs(FRESH)[:71], "75 of 76 bytes"),
    ],
)
def test_partition_without_a_current_struct_is_damaged_or_restored(
    data: bytes, message: str
) -> None:
    """With a valid copy, only another partition's valid entry is beyond restoring."""
    damaged = judge_partition(data, ONE)
    assert isinstance(damaged.entry, CorruptionError)
    with pytest.raises(CorruptionError, match=message):
        raise damaged.entry
    assert damaged.repair is None
    copy = encode_struct(STARTED, 9)
    restored = judge_partition(data, ONE, copy)
    if "carries" in message:
        assert isinstance(restored.entry, CorruptionError)
        return
    assert restored.repair == HEAD + encode_struct(STARTED, 8) + copy
    assert restored.entry == Entry(STARTED, 9, 1)
    assert restored.note is not None
    assert "restored from waltz-storage.node" in restored.note
    again = judge_partition(restored.repair, ONE, copy)
    assert again == Judgement(restored.entry)


@pytest.mark.parametrize("twin", [0, 1])
def test_a_struct_that_was_lost_is_restored_from_its_copy(twin: int) -> None:
    """The copy is one update ahead of what is left: an acknowledged update was lost."""
    lost, left = encode_struct(STARTED, 5), encode_struct(BEFORE, 4)
    structs = [left, left]
    structs[twin] = BROKEN
    judgement = judge_partition(HEAD + b"".join(structs), ONE, lost)
    assert judgement.entry == Entry(STARTED, 5, twin)
    structs[twin] = lost
    assert judgement.repair == HEAD + b"".join(structs)
    assert judgement.note is not None


def test_an_update_cut_short_is_not_restored() -> None:
    """The copy has what the other struct has: what fails its checksum was never acknowledged, or
    is older."""
    left = encode_struct(BEFORE, 4)
    judgement = judge_partition(HEAD + left + BROKEN, ONE, left)
    assert (judgement.entry, judgement.repair) == (Entry(BEFORE, 4, 0), None)
    assert judgement.note is not None


def test_two_valid_structs_are_believed_whatever_the_copy_says() -> None:
    """The original may have written since; that its numbers fell behind is told."""
    data = HEAD + encode_struct(BEFORE, 4) + encode_struct(STARTED, 5)
    for number, is_told in ((3, False), (4, False), (5, False), (6, True), (9, True)):
        judgement = judge_partition(data, ONE, encode_struct(FRESH, number))
        assert (judgement.entry, judgement.repair) == (Entry(STARTED, 5, 1), None)
        assert (judgement.note is not None) == is_told


def test_a_wrong_partition_id_above_the_copied_struct_is_mended() -> None:
    """Above another struct the whole entry is another partition's, and nothing is believed."""
    structs = encode_struct(BEFORE, 4) + encode_struct(STARTED, 5)
    for copied in (encode_struct(STARTED, 5), encode_struct(BEFORE, 4)):
        judgement = judge_partition(bytes(4) + structs, ONE, copied)
        assert judgement.entry == Entry(STARTED, 5, 1)
        assert judgement.repair == HEAD + structs
    for copied in (encode_struct(STARTED, 6), NO_COPY):
        judgement = judge_partition(bytes(4) + structs, ONE, copied)
        assert isinstance(judgement.entry, CorruptionError)
        assert judgement.repair is None


def test_a_wrong_partition_id_above_fresh_structs_is_mended() -> None:
    """Nothing was promised there, whatever partition they are of."""
    judgement = judge_partition(bytes(4) + encode_fresh_structs(FRESH), ONE)
    assert judgement.entry == Entry(FRESH, 0, 1)
    assert judgement.repair == HEAD + encode_fresh_structs(FRESH)
    assert judgement.note is not None


def test_unknown_flag_bits_are_kept() -> None:
    info = PartitionInfo(flags=AVAILABLE | 8)
    assert info.with_flag(ASSIGNED, True).flags == 13
    assert info.with_access(readable=False, writable=False).flags == 8


def test_odd_headers_are_told() -> None:
    node = NodeHeader(KEY, 4, UUID(int=5), 1000, 900)
    good = CONTROL_HEADER.pack(0, 900, KEY.bytes, 4, bytes(96))
    assert header_notes(good, node) == []
    (note,) = header_notes(CONTROL_HEADER.pack(0, 901, KEY.bytes, 4, bytes(96)), node)
    assert "created at 901" in note
    assert "at 900" in note
    (note,) = header_notes(CONTROL_HEADER.pack(0, 900, KEY.bytes, 4, bytes(95) + b"a"), node)
    assert "reserved bytes" in note


def test_only_partitions_that_are_not_fresh_are_looked_at_one_by_one() -> None:
    """Most of a million partitions were never assigned to the node."""
    content = bytearray(encode_fresh_file(KEY, 9, assigned=[ONE], wall_milliseconds=5))
    content[128 + 76 * 3 + 3] = 4
    content[128 + 76 * 3 + 4] = 4
    content[128 + 76 * 5 + 40] ^= 1
    judgements = judge_partitions(bytes(content[:-76]), 9, lambda _: NO_COPY, [PartitionId(7)])
    assert list(judgements) == [1, 3, 5, 7, 8]
    damaged = [
        number
        for number, judgement in judgements.items()
        if isinstance(judgement.entry, CorruptionError)
    ]
    assert damaged == [3, 8]
    assert judge_partitions(bytes(content[:128]), 0, lambda _: NO_COPY, []) == {}
