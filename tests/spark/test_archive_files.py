"""Files of an archive: what was written is what is read, and damage is not served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.test_schema import columns
from waltz.errors import CorruptionError
from waltz.spark import archive_files
from waltz.spark.archive_files import SCHEMA, read_file, write_files
from waltz.spark.block_digests import BLOCK_TRANSACTIONS, digested
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import ArchivedFile
from waltz.spark.schema import record_batch
from waltz.types import PartitionId, TransactionId

PARTITION = PartitionId(2)


def span(first: int, end: int) -> TransactionRange:
    return TransactionRange(PARTITION, TransactionId(first), TransactionId(end))


def batch(first: int, end: int) -> Any:
    data = [b"%d" % number * (number % 5) for number in range(first, end)]
    return record_batch(PARTITION, columns(first, data), SCHEMA)


def rows(batches: Any) -> list[dict[str, Any]]:
    return [row for each in batches for row in each.to_pylist()]


def written(directory: Path, first: int, end: int) -> ArchivedFile:
    (file,) = write_files(directory, span(first, end), [batch(first, end)])
    return file


def test_rows_come_back_whole_and_in_part(tmp_path: Path) -> None:
    file = written(tmp_path, 7, 300)
    assert file.range == span(7, 300)
    assert file.byte_count == (tmp_path / file.path).stat().st_size
    assert rows(read_file(tmp_path, file, span(7, 300))) == rows([batch(7, 300)])
    assert rows(read_file(tmp_path, file, span(90, 95))) == rows([batch(90, 95)])
    some = read_file(tmp_path, file, span(90, 91), ["header"])
    assert rows(some) == [{"header": batch(90, 91).to_pylist()[0]["header"]}]
    assert pq.read_table(tmp_path / file.path).num_rows == 293  # anything can open it


def test_a_file_knows_the_digests_of_its_blocks(tmp_path: Path) -> None:
    end = BLOCK_TRANSACTIONS + 5
    file = written(tmp_path, 3, end)
    assert list(file.blocks) == list(digested(span(3, end), [batch(3, end)]))
    assert list(file.blocks) == list(digested(file.range, read_file(tmp_path, file, file.range)))


def test_long_runs_become_several_files_cut_at_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "FILE_BYTES_MAX", 1000)
    monkeypatch.setattr(archive_files, "ROW_GROUP_ROWS", 3000)
    end = 2 * BLOCK_TRANSACTIONS + 9
    files = write_files(tmp_path, span(0, end), [batch(0, 7000), batch(7000, end)])
    assert [each.range.end for each in files] == [BLOCK_TRANSACTIONS, 2 * BLOCK_TRANSACTIONS, end]
    parts = [row for each in files for row in rows(read_file(tmp_path, each, each.range))]
    assert parts == rows([batch(0, end)])
    middle = span(9990, 10_000)
    assert rows(read_file(tmp_path, files[0], middle)) == rows([batch(9990, 10_000)])


def test_two_attempts_do_not_meet(tmp_path: Path) -> None:
    first, second = written(tmp_path, 0, 5), written(tmp_path, 0, 5)
    assert first.path != second.path
    assert first.blocks == second.blocks


def test_a_run_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="the last transaction is 4"):
        write_files(tmp_path, span(0, 9), [batch(0, 5)])
    assert list((tmp_path / "partition=2").iterdir()) == []


def test_damage_is_not_served(tmp_path: Path) -> None:
    file = written(tmp_path, 0, 500)
    path = tmp_path / file.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptionError, match=r"^WALTZ-2006 .* cannot be read"):
        rows(read_file(tmp_path, file, file.range))
    shorter = written(tmp_path, 0, 499)
    path.write_bytes((tmp_path / shorter.path).read_bytes())
    with pytest.raises(CorruptionError, match=r"has 499 rows; expected 500, as its manifest says"):
        rows(read_file(tmp_path, file, file.range))
    path.unlink()
    with pytest.raises(CorruptionError, match=r"cannot be read: .*No such file"):
        rows(read_file(tmp_path, file, file.range))
