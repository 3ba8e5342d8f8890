"""Files of Iceberg tables are on the disk before anything names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spark.tables_by_value import batch, ranged
from tests.spark.test_pipelines_target import prepared
from waltz.spark.pipelines.iceberg_commit import SyncedFileIO
from waltz.spark.pipelines.iceberg_tables import IcebergTables


def test_a_file_is_whole_and_never_replaced(tmp_path: Path) -> None:
    files, path = SyncedFileIO(), tmp_path / "new" / "file"
    with files.new_output(f"file://{path}").create() as stream:
        stream.write(b"content")
        assert stream.tell() == 7
    assert path.read_bytes() == b"content"
    with pytest.raises(FileExistsError):
        files.new_output(f"file://{path}").create()
    with files.new_output(str(path)).create(overwrite=True) as stream:
        stream.write(b"other")
    with files.new_input(str(path)).open() as read:
        assert read.read() == b"other"


def test_a_location_elsewhere_is_refused() -> None:
    for location in ("s3://bucket/file", "hdfs:///file", "file"):
        with pytest.raises(ValueError, match="not on a disk of this machine"):
            SyncedFileIO().new_output(location)


def test_all_files_of_a_batch_are_synced_before_the_catalog_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    unsynced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    class Watched(IcebergTables):
        def _note_done(self, *given: object) -> None:
            for each in self.directory.glob("*/**/*"):
                if each.stat().st_ino not in synced:
                    unsynced.append(str(each))
            super()._note_done(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", noted)
    with prepared(Watched, tmp_path / "target") as store:
        for number in range(2):
            store.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
    assert len(synced) > 10
    assert unsynced == []
