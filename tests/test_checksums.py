"""CRC-32 by arithmetic equals the one of zlib."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waltz.checksums import checksums_of_rows, joined, moved
from waltz.limits import DATA_BYTES_MAX


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=600)), min_size=1))
def test_the_checksum_of_an_end_follows_from_the_whole_and_its_beginning(
    texts: list[tuple[bytes, bytes]],
) -> None:
    whole = np.array([crc32(start + end) for start, end in texts], np.uint32)
    starts = np.array([crc32(start) for start, _ in texts], np.uint32)
    lengths = np.array([len(end) for _, end in texts], np.int64)
    assert (whole ^ moved(starts, lengths)).tolist() == [crc32(end) for _, end in texts]


def test_a_checksum_is_moved_over_as_many_bytes_as_data_may_have() -> None:
    lengths = np.array([0, 1, 15, 16, 255, 4096, 65_537, DATA_BYTES_MAX], np.int64)
    start = b"a head"
    whole = [crc32(start + bytes(length)) for length in lengths.tolist()]
    starts = np.full(len(lengths), crc32(start), np.uint32)
    ends = np.array([crc32(bytes(length)) for length in lengths.tolist()], np.uint32)
    assert (moved(starts, lengths) ^ ends).tolist() == whole


@given(
    st.integers(1, 40).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=20)
    )
)
def test_rows_have_the_checksums_of_their_bytes(texts: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1)
    assert checksums_of_rows(rows).tolist() == [crc32(text) for text in texts]


@given(st.lists(st.one_of(st.binary(max_size=60), st.integers(0, 20_000).map(bytes)), min_size=1))
def test_texts_behind_each_other_have_the_checksum_of_all_their_bytes(texts: list[bytes]) -> None:
    checksums = np.array(list(map(crc32, texts)), np.uint32)
    whole = [text + crc32(text).to_bytes(4, "big") for text in texts]
    offsets = np.cumsum([0, *map(len, whole)])
    assert joined(checksums, offsets) == crc32(b"".join(whole))


def test_a_wrong_bit_of_any_checksum_is_seen_in_that_of_all() -> None:
    texts = [bytes([number]) * (number * 37 % 300) for number in range(100)]
    checksums = np.array(list(map(crc32, texts)), np.uint32)
    offsets = np.cumsum([0, *(len(text) + 4 for text in texts)])
    right = joined(checksums, offsets)
    for place in range(100):
        for bit in range(32):
            wrong = checksums.copy()
            wrong[place] ^= np.uint32(1 << bit)
            assert joined(wrong, offsets) != right


def test_texts_longer_than_the_table_of_powers_are_joined() -> None:
    texts = [bytes(DATA_BYTES_MAX), b"", bytes(16_380), b"x" * 16_379, bytes(16_384)]
    checksums = np.array(list(map(crc32, texts)), np.uint32)
    whole = [text + crc32(text).to_bytes(4, "big") for text in texts]
    offsets = np.cumsum([0, *map(len, whole)])
    assert joined(checksums, offsets) == crc32(b"".join(whole))
