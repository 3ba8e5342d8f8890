"""Files of an archive that is a Delta table: cut by size, and named by what they have."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.test_any_archive import logged, rows, span
from waltz.errors import CorruptionError
from waltz.spark import delta_archive_files
from waltz.spark.archive_location import DeltaLocation
from waltz.spark.block_digests import digested
from waltz.spark.delta_archive_files import file_of, read_delta_file, write_delta_files


def test_a_long_run_becomes_several_files_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = DeltaLocation(str(tmp_path))
    monkeypatch.setattr(delta_archive_files, "FILE_BYTES_MAX", 1)
    wanted = span(2, 3, 40)
    cut = [span(2, 3, 7), span(2, 7, 30), span(2, 30, 40)]
    files = write_delta_files(location, wanted, [logged(each) for each in cut])
    assert [each.range for each in files] == cut
    for file in files:
        assert file.blocks == tuple(digested(file.range, [logged(file.range)], [file.range]))
        assert file_of(file.path, file.byte_count) == file
        assert rows(read_delta_file(location, file, file.range)) == rows([logged(file.range)])
        found = rows(read_delta_file(location, file, file.range, ["partition", "header"]))
        assert [row["partition"] for row in found] == [2] * file.range.row_count
        path = tmp_path / file.path
        assert path.stat().st_size == file.byte_count
        assert "partition" not in pq.ParquetFile(path).schema_arrow.names


def test_a_run_with_a_gap_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="in the place of transaction 5 is 6"):
        write_delta_files(
            DeltaLocation(str(tmp_path)),
            span(0, 0, 9),
            [logged(span(0, 0, 5)), logged(span(0, 6, 9))],
        )
    assert list((tmp_path / "partition=0").iterdir()) == []


def test_other_names_are_no_files_of_an_archive() -> None:
    assert file_of("partition=0/part-00001-c000.zstd.parquet", 9) is None
