"""The record of the last verify, next to a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.spark.followed_metrics import LastVerify
from waltz.spark.pipelines.last_verify import (
    read_record,
    record_path,
    remove_record,
    write_record,
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    target = tmp_path / "accounts.db"
    assert read_record(target) is None
    write_record(target, LastVerify(1_764_043_200_000, 70, 0))
    assert record_path(target).read_bytes() == (
        b'{"format": 1, "verified_at": 1764043200000, "transactions": 70, "differences": 0}\n'
    )
    assert read_record(target) == LastVerify(1_764_043_200_000, 70, 0)
    write_record(target, LastVerify(1_764_043_300_000, 71, 2))
    assert read_record(target) == LastVerify(1_764_043_300_000, 71, 2)
    assert [each.name for each in tmp_path.iterdir()] == [record_path(target).name]
    remove_record(target)
    remove_record(target)
    assert read_record(target) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 4_000,
        b'{"format": 2, "verified_at": 1, "transactions": 1, "differences": 0}',
        b'{"format": 1, "verified_at": 1, "transactions": 1}',
        b'{"format": 1, "verified_at": 1, "transactions": 1, "differences": -1}',
        b'{"format": 1, "verified_at": 1, "transactions": 1, "differences": false}',
        b'{"format": 1, "verified_at": 1e9, "transactions": 1, "differences": 0}',
        b'{"format": 1, "verified_at": 1, "transactions": 1, "differences": 0}'
        + b" " * 5_000
        + b"x",
    ],
)
def test_a_record_that_is_none_says_nothing(tmp_path: Path, content: bytes) -> None:
    target = tmp_path / "accounts.db"
    record_path(target).write_bytes(content)
    assert read_record(target) is None


def test_a_record_counts_only_for_the_tables_of_its_own_url(tmp_path: Path) -> None:
    one, other = "s3://lake/shop/accounts", "s3://lake/trial/accounts"
    target, verify = tmp_path / "accounts", LastVerify(1_764_043_200_000, 70, 0)
    write_record(target, verify, url=one)
    assert read_record(target, url=one) == verify
    assert read_record(target, url=other) is None
    assert read_record(target) is None
    write_record(target, verify)
    assert read_record(target) == read_record(target, url=one) == verify, "of an earlier release"
