"""The record of the last verification: what it says, and what does not replace it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.archive.test_archive_verification import memory_target, small_archive
from waltz.archive.archive_verification import verify
from waltz.archive.verification_record import (
    VERIFIED,
    VerificationRecords,
    read_records,
    record_of,
    write_record,
)
from waltz.errors import ArchiveDamagedError

AT = 1_790_000_000_000


def test_an_archive_that_was_never_verified_has_no_record() -> None:
    assert read_records(memory_target()) == VerificationRecords(None, None)


def test_a_sample_does_not_replace_what_the_last_full_run_said() -> None:
    target = small_archive()
    (path,) = (each.path for each in target.list("log/1"))
    data = target.get(path, 10_000)
    target.put(path, data[:-1])
    full = record_of(verify(target), AT, None)
    write_record(target, full)
    assert (full.right, full.objects, full.findings) == (False, 3, 1)
    assert read_records(target) == VerificationRecords(full, full)
    sample = record_of(verify(target, chosen=lambda each: each.path != path), AT + 5, "log")
    write_record(target, sample)
    assert (sample.right, sample.objects_left_out) == (True, 1)
    assert read_records(target) == VerificationRecords(sample, full)
    mended = replace(full, verified_at=AT + 9, right=True, findings=0)
    write_record(target, mended)
    assert read_records(target) == VerificationRecords(mended, mended)


def test_the_record_is_no_part_of_what_is_verified() -> None:
    target = small_archive()
    write_record(target, record_of(verify(target), AT, "replicas"))
    found = verify(target)
    assert (found.verdict, found.orphans) == (True, 0)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":2}', b'{"format":1,"last":7}'])
def test_a_record_that_cannot_be_read_is_told_and_replaced(data: bytes) -> None:
    target = small_archive()
    target.put(VERIFIED, data)
    with pytest.raises(ArchiveDamagedError, match="says only when the archive was verified"):
        read_records(target)
    record = record_of(verify(target), AT, None)
    write_record(target, record)
    assert read_records(target).last == record
