"""Rows as they are written, and as appends."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz import PartitionLocalLock
from waltz.limits import DATA_BYTES_MAX
from waltz.outbox.outbox_row import (
    OutboxRow,
    UnfitRow,
    WrittenRow,
    content_digest,
    fitted,
    parsed_locks,
    partition_of,
    row_lock,
)

ID = UUID(int=7)


def row(**columns: object) -> OutboxRow | UnfitRow:
    values = {"header": 0, "data": b"x", "data_bytes": 1, "locks": None} | columns
    return fitted(WrittenRow(1, "k", **values), 3)  # type: ignore[arg-type]


def test_a_row_becomes_an_append_of_its_keys_partition() -> None:
    found = row(header=-5, data=memoryview(b"abc"), locks='{"append": [["account", 17]]}')
    assert isinstance(found, OutboxRow)
    assert (found.header, found.data, found.partition_id) == (-5, b"abc", partition_of("k", 3))
    assert found.append_locks == (PartitionLocalLock("account", 17),)
    assert found.mark is None
    assert not found.can_be_refused


def test_text_that_sqlite_has_kept_is_taken_as_utf_8() -> None:
    found = row(data="é", data_bytes=2)
    assert isinstance(found, OutboxRow)
    assert found.data == "é".encode()


def test_text_is_measured_in_bytes() -> None:
    """SQLite counts its characters."""
    found = row(data="\u20ac" * (DATA_BYTES_MAX // 3 + 1), data_bytes=DATA_BYTES_MAX // 3 + 1)
    assert isinstance(found, UnfitRow)
    assert f"data of {DATA_BYTES_MAX + 2} bytes; expected at most" in found.reason


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"data": None, "data_bytes": DATA_BYTES_MAX + 1}, "expected at most"),
        ({"data": 4}, "expected bytes"),
        ({"header": 2**31}, "header is 2147483648"),
        ({"header": None}, "header is None"),
        ({"locks": "{"}, "expected a JSON object"),
        ({"locks": "[]"}, "expected a JSON object"),
        ({"locks": '{"writ": []}'}, "expected a JSON object"),
        ({"locks": '{"append": [["a"]]}'}, "expected a JSON object"),
        ({"locks": '{"append": [["a", 1.5]]}'}, "expected a JSON object"),
        ({"locks": '{"append": [["a", true]]}'}, "expected a JSON object"),
        ({"locks": '{"append": [["a", 9223372036854775808]]}'}, "expected a JSON object"),
        ({"locks": '{"append": [[3, 1]]}'}, "expected a JSON object"),
        ({"locks": '{"write": [["a", 1]], "mark": -2}'}, "expected a JSON object"),
        ({"locks": '{"write": [["a", 1]], "mark": true}'}, "expected a JSON object"),
        ({"locks": "[" * 50_000}, "expected a JSON object"),
        ({"locks": " " * 60_001}, "no text of at most"),
        ({"locks": 3}, "no text of at most"),
        ({"locks": '{"write": [["a", 1]]}'}, "need a mark"),
        ({"locks": '{"read": [["a", 1]]}'}, "need a mark"),
    ],
)
def test_a_row_that_cannot_be_appended_says_why(columns: dict[str, object], reason: str) -> None:
    found = row(**columns)
    assert isinstance(found, UnfitRow)
    assert reason in found.reason


def test_a_mark_counts_for_locks_that_can_refuse() -> None:
    _, mark = parsed_locks('{"write": [["a", 1]], "read": [["b", -1]], "mark": -1}')
    assert mark == -1
    assert parsed_locks('{"append": [["a", 1]], "mark": 5}')[1] is None
    assert parsed_locks(None) == parsed_locks("") == ([(), (), ()], None)


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40))
def test_contents_are_told_apart(header: int, one: bytes, other: bytes) -> None:
    assert (content_digest(header, one) == content_digest(header, other)) == (one == other)
    assert content_digest(header, one) != content_digest(-header - 1, one)


def test_the_places_of_keys_and_the_locks_of_rows_are_what_they_always_were() -> None:
    """Another function would put keys into other partitions, and let zombies of the release before
    append rows again."""
    assert [partition_of(key, 7) for key in ("", "a", "account-17", "é")] == [1, 4, 5, 3]
    assert row_lock(ID, 1).id == 3444897649170796045
    assert row_lock(ID, 1) != row_lock(ID, 2) != row_lock(UUID(int=8), 2)
    assert content_digest(1, b"x").hex() == "eaff949259ee4725d2eef37d575fcb37"
