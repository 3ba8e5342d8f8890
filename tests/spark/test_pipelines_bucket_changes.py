"""Two versions of a bucket's files, compared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import ChangesMissingError, CorruptionError
from waltz.spark.pipelines.bucket_changes import BucketFiles
from waltz.spark.pipelines.row_changes import Row, RowChange
from waltz.spark.pipelines.tables import Measure, TableDefinition, columns_of

TABLE = TableDefinition(
    "t", (("a", "a"), ("b", "b")), (Measure("x", "last", "x"), Measure("y", "last", "y"))
)
SCHEMA = pa.schema(
    [("a", pa.string()), ("b", pa.int64()), ("x", pa.float64()), ("y", pa.binary())]
    + [(each, pa.int64()) for each in columns_of(TABLE)[4:]]
)
KEYS = st.tuples(st.sampled_from([None, "", "k"]), st.sampled_from([None, 0]))
VALUES = st.tuples(
    st.sampled_from([None, 0.0, -1.5]), st.sampled_from([None, b"", b"\0"]), st.integers(0, 1)
)
CONTENT = st.dictionaries(KEYS, VALUES, min_size=1)


def written(directory: Path, name: str, rows: list[Row]) -> str:
    values = [list(each) for each in zip(*rows, strict=True)] or [[]] * len(SCHEMA)
    pq.write_table(pa.table(values, schema=SCHEMA), directory / name)
    return name


def files(directory: Path) -> BucketFiles:
    return BucketFiles(str(directory), "the table", TABLE)


@given(old=CONTENT, new=CONTENT)
def test_a_bucket_has_changed_in_just_the_rows_that_differ(
    tmp_path_factory: pytest.TempPathFactory,
    old: dict[Row, Row],
    new: dict[Row, Row],
) -> None:
    directory = tmp_path_factory.mktemp("bucket")
    before = {key: (*key, *rest, 0, 0, 0) for key, rest in old.items()}
    after = {key: (*key, *rest, 0, 0, 0) for key, rest in new.items()}
    names = [
        written(directory, name, list(rows.values()))
        for name, rows in (("old", before), ("new", after))
    ]
    kinds = {(True, False): "insert", (False, False): "update", (False, True): "delete"}
    expected = {
        RowChange(kinds[key not in before, key not in after], before.get(key), after.get(key))  # type: ignore[arg-type]
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }
    found = list(files(directory).changes({1: names[:1]}, {1: names[1:]}))
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_buckets_and_files_that_both_versions_have_are_not_read(tmp_path: Path) -> None:
    row = ("a", 0, 1.0, b"y", 0, 0, 0, 0)
    name = written(tmp_path, "new", [row])
    unread = {1: ["gone"], 2: ["other"]}
    after = {**unread, 2: ["other", name], 3: []}
    assert list(files(tmp_path).changes(unread, after)) == [RowChange("insert", None, row)]
    assert list(files(tmp_path).changes(after, unread)) == [RowChange("delete", row, None)]


def test_a_file_that_is_gone_or_no_table_is_named(tmp_path: Path) -> None:
    row = ("a", 0, 1.0, b"y", 0, 0, 0, 0)
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 the table has no file gone any"):
        list(files(tmp_path).changes({}, {1: ["gone"]}))
    twice = written(tmp_path, "twice", [row, (*row[:2], 2.0, *row[3:])])
    once = written(tmp_path, "once", [(*row[:2], 3.0, *row[3:])])
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 the table has the key \('a', 0\) twi"):
        list(files(tmp_path).changes({1: [once]}, {1: [twice]}))
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "less")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 the table: less: "):
        list(files(tmp_path).changes({}, {1: ["less"]}))
