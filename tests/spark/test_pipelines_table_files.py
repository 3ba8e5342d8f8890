"""Files of tables, in a directory and in a bucket alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.buckets import bucket_url, object_store
from waltz.archive.archive_target import open_target
from waltz.errors import ArchiveUnreachableError, CorruptionError
from waltz.spark.pipelines import table_files
from waltz.spark.pipelines.table_files import BucketFiles, DirectoryFiles, open_files

__all__ = ["bucket_url", "object_store"]

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, ""]})
PATH = "waltz_bucket=3/part-000000001-x.zstd.parquet"


@pytest.fixture(params=["directory", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path, bucket_url: str) -> str:
    return str(tmp_path) if request.param == "directory" else bucket_url


def test_what_is_written_is_read_and_its_size_is_that_of_the_file(root: str) -> None:
    files = open_files(root)
    assert isinstance(files, BucketFiles if root.startswith("s3://") else DirectoryFiles)
    size = files.write(PATH, TABLE)
    with files.opened(PATH) as file:
        assert file.read() == TABLE
    url = root if "://" in root else f"file://{root}"
    assert [(each.path, each.byte_count) for each in open_target(url).list("")] == [(PATH, size)]


def test_a_file_of_a_bucket_that_is_gone_or_too_large_is_an_error(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files(bucket_url)
    with (
        pytest.raises(CorruptionError, match="names a file that is not there"),
        files.opened(PATH),
    ):
        pass
    files.write(PATH, TABLE)
    monkeypatch.setattr(table_files, "OBJECT_BYTES_MAX", 100)
    with pytest.raises(CorruptionError, match="expected at most 100"), files.opened(PATH):
        pass


def test_a_bucket_that_is_not_there_is_no_empty_table(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ArchiveUnreachableError):
        open_files(bucket_url).write(PATH, TABLE)
