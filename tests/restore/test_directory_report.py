"""Reports of restored directories."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.restore.memory_archive import RESTORE_ID, STORAGES
from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.restore.directory_report import DirectoryReport, PartitionHeld, agreed
from waltz.types import Generation, PartitionId, TransactionId

HELD = PartitionHeld(TransactionId(9), "ab" * 32, 1234, 41, Generation(4))
REPORT = DirectoryReport(RESTORE_ID, STORAGES[0], UUID(int=7), {PartitionId(3): HELD})


def test_a_report_is_read_as_it_was_written() -> None:
    assert DirectoryReport.decode(REPORT.encode()) == REPORT
    for wrong in (b"", b"{}", b'{"format":1}', REPORT.encode().replace(b"[9", b"[[9")):
        with pytest.raises(RemoteProtocolError, match="report of a storage directory"):
            DirectoryReport.decode(wrong)


def test_directories_that_differ_are_named() -> None:
    other = replace(REPORT, replica_id=STORAGES[1])
    assert agreed([REPORT, other]) == {3: HELD}
    for wrong in (HELD._replace(sha256="cd" * 32), HELD._replace(last=TransactionId(8))):
        differing = replace(other, partitions={PartitionId(3): wrong})
        with pytest.raises(CorruptionError, match="partition 3 differs between the restored"):
            agreed([REPORT, differing])
