"""Objects of records: golden bytes, round trips, and every byte that may be wrong."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.archives import KEY, batch
from waltz.archive.archiver_shell import batch_of
from waltz.archive.log_object import (
    BLOCK_TRANSACTIONS,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    TRAILER_BYTES,
    Footer,
    LogObject,
    ObjectHead,
    ObjectWriter,
    cut,
    decode_footer,
    decode_head,
    encode_footer,
    encode_head,
    footer_bytes,
    record_offsets,
    unpacked,
)
from waltz.errors import CorruptionError
from waltz.types import PartitionId, TransactionId

GOLDEN = Path(__file__).parent.parent / "golden" / "archive"


def made(first: int, *counts: int, partition: int = 0, size: int = 20) -> LogObject:
    writer = ObjectWriter(KEY, PartitionId(partition), TransactionId(first))
    for count in counts:
        writer.add(batch(writer.next, count, partition=partition, size=size))
    return writer.finish()


def footer_of(data: bytes) -> Footer:
    return decode_footer(data[-footer_bytes(data[-TRAILER_BYTES:]) :])


def records_of(data: bytes) -> bytes:
    """Return all records of an object, by its own table; checks all that can be checked."""
    footer = footer_of(data)
    if decode_head(data) != footer.head:
        raise CorruptionError("two heads")
    parts = [
        unpacked(each, data[each.offset : each.offset + each.byte_count]) for each in footer.frames
    ]
    if sha256(b"".join(parts)).digest() != footer.raw_digest:
        raise CorruptionError("other records")
    return b"".join(parts)


def test_an_object_of_format_1_has_these_bytes() -> None:
    """What the original format's bytes mean is in docs/formats/archive.md."""
    golden = (GOLDEN / "object.wal").read_bytes()
    assert records_of(golden) == batch(9_998, 5, partition=2).block
    footer = footer_of(golden)
    assert footer.head == ObjectHead(
        KEY, PartitionId(2), TransactionId(9_998), TransactionId(10_003)
    )
    assert [each.end for each in footer.blocks] == [10_000, 10_003]
    # Without the frames, whose bytes depend on the release of zstandard, all bytes are fixed.
    assert encode_head(footer.head) == golden[:HEADER_BYTES]
    assert golden.endswith(encode_footer(footer))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 30_000),
    st.lists(st.integers(1, 4_000), min_size=1, max_size=4),
    st.sampled_from([0, 7, 90]),
)
def test_records_come_back_however_they_were_added(
    first: int, counts: list[int], size: int
) -> None:
    found = made(first, *counts, size=size)
    whole = batch(first, sum(counts), size=size)
    assert records_of(found.data) == whole.block
    assert found.raw_count == len(whole.block)
    footer = footer_of(found.data)
    start = 0
    for block in footer.blocks:
        end = block.end - first
        part = whole.block[int(whole.offsets[start]) : int(whole.offsets[end])]
        assert sha256(part).digest() == block.digest
        assert block.end % BLOCK_TRANSACTIONS == 0 or end == sum(counts)
        start = end
    assert start == sum(counts)


def test_frames_are_full_and_a_large_record_has_one_of_its_own() -> None:
    writer = ObjectWriter(KEY, PartitionId(0), TransactionId(0))
    writer.add(batch(0, 30, size=100_000))
    writer.add(batch(30, 1, size=3 * FRAME_BYTES_MAX))
    writer.add(batch(31, 2, size=10))
    footer = footer_of(writer.finish().data)
    assert [each.end - each.first for each in footer.frames] == [10, 10, 10, 1, 2]
    assert footer.frames[3].raw_count > 3 * FRAME_BYTES_MAX


def joined_with_frames(*objects: LogObject) -> LogObject:
    """Return one object of all records, made of the frames of the others."""
    writer = ObjectWriter(KEY, PartitionId(0), objects[0].head.first)
    for each in objects:
        for frame in footer_of(each.data).frames:
            stored = each.data[frame.offset : frame.offset + frame.byte_count]
            writer.add_frame(frame, stored, batch_of(unpacked(frame, stored), writer.next))
    return writer.finish()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 30_000),
    st.lists(
        st.tuples(st.integers(1, 8_000), st.sampled_from([0, 60, 300])), min_size=1, max_size=4
    ),
)
def test_objects_made_of_frames_of_others_have_the_same_records_and_digests(
    first: int, parts: list[tuple[int, int]]
) -> None:
    objects, batches, position = [], [], first
    for count, size in parts:
        objects.append(made(position, count, size=size))
        batches.append(batch(position, count, size=size))
        position += count
    found = joined_with_frames(*objects)
    writer = ObjectWriter(KEY, PartitionId(0), TransactionId(first))
    for each in batches:
        writer.add(each)
    anew = writer.finish()
    assert records_of(found.data) == records_of(anew.data)
    assert (found.head, found.raw_count, found.raw_digest) == (
        *(anew.head, anew.raw_count, anew.raw_digest),
    )
    assert footer_of(found.data).blocks == footer_of(anew.data).blocks
    # Another reader, which knows nothing of frames.
    footer = footer_of(found.data)
    with zstandard.ZstdDecompressor().stream_reader(
        found.data[HEADER_BYTES : footer.frames[-1].offset + footer.frames[-1].byte_count],
        read_across_frames=True,
    ) as stream:
        assert sha256(stream.read()).digest() == found.raw_digest


def test_full_frames_are_kept_as_they_are_and_small_ones_are_joined() -> None:
    full, half = made(0, 20, size=100_000), made(20, 6, size=100_000)
    small = [made(26 + number, 1, size=1_000) for number in range(5)]
    other = made(31, 10, size=100_000)
    found = joined_with_frames(full, half, *small, other)
    frames = footer_of(found.data).frames
    assert [each.end - each.first for each in frames] == [10, 10, 6, 5, 10]
    told = {each.digest for one in (full, half, other) for each in footer_of(one.data).frames}
    assert {each.digest for each in frames} - told == {frames[3].digest}


def test_every_changed_or_missing_byte_is_found() -> None:
    data = made(9_999, 3, size=5).data
    good = records_of(data)
    for place in range(len(data)):
        for change in (1, 0x80):
            changed = bytearray(data)
            changed[place] ^= change
            with pytest.raises(CorruptionError):
                records_of(bytes(changed))
        with pytest.raises(CorruptionError):
            records_of(data[:place])
    assert records_of(data) == good


@given(st.binary(max_size=400))
def test_no_bytes_make_anything_but_our_error(data: bytes) -> None:
    for decode in (decode_head, decode_footer, footer_bytes):
        with pytest.raises(CorruptionError):
            decode(data)


def test_impossible_tables_are_refused() -> None:
    footer = footer_of(made(0, 50).data)
    frame = footer.frames[0]
    head = footer.head
    far = ObjectHead(KEY, PartitionId(0), TransactionId(0), TransactionId(2**62))
    for wrong in (
        Footer(head, (frame._replace(offset=65),), footer.blocks, b"\0" * 32),
        Footer(head, (frame._replace(byte_count=2**31 - 1),), footer.blocks, b"\0" * 32),
        Footer(head, (frame._replace(raw_count=2**31 - 1),), footer.blocks, b"\0" * 32),
        Footer(head, (frame._replace(end=TransactionId(51)),), footer.blocks, b"\0" * 32),
        Footer(head, (frame, frame), footer.blocks, b"\0" * 32),
        Footer(head, (frame,), footer.blocks * 2, b"\0" * 32),
        Footer(far, (frame,), footer.blocks, b"\0" * 32),
        Footer(head._replace(cluster_key=UUID(int=0), end=TransactionId(0)), (), (), b"\0" * 32),
    ):
        with pytest.raises(CorruptionError):
            decode_footer(encode_footer(wrong))


def test_a_frame_that_says_it_is_large_is_not_unpacked() -> None:
    frame = footer_of(made(0, 50).data).frames[0]
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 100_000_000)
    told = frame._replace(byte_count=len(bomb), digest=sha256(bomb).digest())
    with pytest.raises(CorruptionError, match="another length"):
        unpacked(told, bomb)
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 100_000_000)
    told = frame._replace(byte_count=len(endless), digest=sha256(endless).digest())
    with pytest.raises(CorruptionError):
        unpacked(told, endless)


def test_records_are_found_where_they_are() -> None:
    records = batch(5, 6, size=9)
    assert record_offsets(records.block, 5, 6) == records.offsets.tolist()
    with pytest.raises(CorruptionError, match="record 6"):
        record_offsets(records.block, 6, 1)
    with pytest.raises(CorruptionError, match="record 11"):
        record_offsets(records.block, 5, 7)
    data = made(5, 6, size=9).data
    frame = footer_of(data).frames[0]
    assert cut(frame, records.block, 0, 8) == batch(5, 3, size=9).block
    assert cut(frame, records.block, 7, 99) == batch(7, 4, size=9).block
