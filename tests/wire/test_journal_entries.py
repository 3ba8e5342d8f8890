"""The bytes of journal entries: golden, cut at every byte, with flipped bits."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.limits import NOTE_TEXT_BYTES_MAX
from waltz.types import ClientId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ENTRY_CHECKSUM,
    ENTRY_HEAD,
    ClientNoted,
    ClockSetBack,
    DurableTime,
    EarlierTime,
    JournalEntry,
    JournalOpened,
    LogCut,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
    decode_entries,
    encode_entries,
    encode_entry,
    note_text,
)

T = TransactionId

ONE_OF_EACH: tuple[tuple[JournalEntry, str], ...] = (
    (DurableTime(T(17), 1_700_000_000_001, 0xDEADBEEF),
     "010014 0000000000000011 0000018bcfe56801 deadbeef"),
    (JournalOpened(T(-1), 1_700_000_000_000),
     "020010 ffffffffffffffff 0000018bcfe56800"),
    (ClockSetBack(1_700_000_000_001, 1_700_000_000_000),
     "030010 0000018bcfe56801 0000018bcfe56800"),
    (LogCut(T(16), 1_700_000_000_002), "040010 0000000000000010 0000018bcfe56802"),
    (SessionBegan(SessionId(3), T(16), 1_700_000_000_003),
     "050018 0000000000000003 0000000000000010 0000018bcfe56803"),
    (SessionFenced(SessionId(4), 1_700_000_000_004),
     "060010 0000000000000004 0000018bcfe56804"),
    (RecordsRepaired(T(5), T(6), 1_700_000_000_005),
     "070018 0000000000000005 0000000000000006 0000018bcfe56805"),
    (ClientNoted(ClientId(7), 1_700_000_000_006, "orders", "", "10.0.0.7:41", "shop 2"),
     "080027 00000007 0000018bcfe56806 066f7264657273 00 0b31302e302e302e373a3431 0673686f702032"),
    (EarlierTime(T(18), 1_700_000_000_007), "090010 0000000000000012 0000018bcfe56807"),
)  # fmt: skip

ENTRIES = [entry for entry, _ in ONE_OF_EACH]


@pytest.mark.parametrize(("entry", "golden"), ONE_OF_EACH)
def test_an_entry_has_these_bytes(entry: JournalEntry, golden: str) -> None:
    """And then their checksum, which is computed here by the description alone."""
    body = bytes.fromhex(golden)
    expected = body + crc32(body).to_bytes(4)
    assert encode_entry(entry, 0).hex() == expected.hex()
    assert decode_entries(expected).entries == [entry]


def test_entries_are_chained_by_their_checksums() -> None:
    start = b"a header"
    data = start + encode_entries(ENTRIES, crc32(start))
    found = decode_entries(data, len(start), crc32(start))
    assert found.entries == ENTRIES
    assert found.end == len(data)
    assert found.checksum == crc32(data)
    assert decode_entries(data, len(start), 1).entries == []


def test_what_is_cut_at_any_byte_is_the_beginning_of_what_was_written() -> None:
    data = encode_entries(ENTRIES)
    for size in range(len(data)):
        found = decode_entries(data[:size])
        assert found.entries == ENTRIES[: len(found.entries)]
        assert found.end <= size


@given(st.data())
def test_what_is_flipped_anywhere_is_the_beginning_of_what_was_written(data: st.DataObject) -> None:
    content = bytearray(encode_entries(ENTRIES))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    found = decode_entries(bytes(content))
    assert found.entries == ENTRIES[: len(found.entries)]
    assert found.end <= position


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_to_an_end(data: bytes) -> None:
    assert decode_entries(data).end <= len(data)


def test_an_entry_of_an_unknown_type_is_skipped() -> None:
    unknown = ENTRY_HEAD.pack(200, 3) + b"new"
    unknown += ENTRY_CHECKSUM.pack(crc32(unknown))
    data = unknown + encode_entries(ENTRIES, crc32(unknown))
    assert decode_entries(data).entries == ENTRIES


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_an_entry_of_a_wrong_length_ends_what_is_read(code: int) -> None:
    wrong = ENTRY_HEAD.pack(code, 5) + b"short"
    wrong += ENTRY_CHECKSUM.pack(crc32(wrong))
    assert decode_entries(wrong + encode_entries(ENTRIES, crc32(wrong))).entries == []


def test_the_texts_of_a_client_are_cut_and_stripped_of_control_characters() -> None:
    assert note_text("a\x1b[31m\nb") == "a?[31m?b"
    assert note_text("ä" * 300) == "ä" * (NOTE_TEXT_BYTES_MAX // 2)
    note = ClientNoted(ClientId(1), 2, "x" * 1000, "\ud800", "", "p")
    (found,) = decode_entries(encode_entries([note])).entries
    assert found == ClientNoted(ClientId(1), 2, "x" * 255, "?", "", "p")
