"""Planning and reading against a log made of values; nothing here connects anywhere."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql.datasource import (
    InputPartition,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from tests.spark.archive_formats import KINDS, Kind, located
from tests.spark.listed_log import KEY, ListedLog
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    NotFoundError,
    PartitionNotReadyError,
    WaltzError,
)
from waltz.spark.any_archive import create_archive, write_files
from waltz.spark.archive_location import ArchiveLocation
from waltz.spark.log_columns import log_schema
from waltz.spark.offsets import TransactionRange
from waltz.spark.reader import WaltzReader
from waltz.spark.reader_pool import POOL
from waltz.spark.schema import arrow_schema
from waltz.spark.spark_options import parse_options
from waltz.spark.tasks import JoinedInputPartition, WaltzInputPartition
from waltz.types import PartitionId, TransactionId


def reader(log: ListedLog, schema: StructType | None = None, **options: str) -> WaltzReader:
    given = {"cluster": "127.0.0.1:7100", **options}
    return WaltzReader(parse_options(given), arrow_schema(schema or log_schema()), log.open)


def rows(source: WaltzReader, tasks: Iterable[InputPartition]) -> list[dict[str, object]]:
    return [row for task in tasks for batch in source.read(task) for row in batch.to_pylist()]


def pieces_in(task: InputPartition) -> Sequence[InputPartition]:
    return task.pieces if isinstance(task, JoinedInputPartition) else [task]


def planned(first: int, end: int, key: UUID = KEY) -> WaltzInputPartition:
    return WaltzInputPartition(
        TransactionRange(PartitionId(0), TransactionId(first), TransactionId(end)), key
    )


def test_a_plan_has_every_committed_transaction_once() -> None:
    log = ListedLog([b"a", b"b", b"c", b"d", b"e"], [], [b"x"])
    source = reader(log, minPartitions="3")
    found = rows(source, source.partitions())
    assert [(row["partition"], row["transaction_id"], row["data"]) for row in found] == [
        (0, 0, b"a"),
        (0, 1, b"b"),
        (0, 2, b"c"),
        (0, 3, b"d"),
        (0, 4, b"e"),
        (2, 0, b"x"),
    ]
    POOL.close()
    assert log.open_count == 0


def test_a_plan_does_not_grow_with_the_log() -> None:
    data = [b"a"]
    log = ListedLog(data)
    source = reader(log)
    tasks = source.partitions()
    data.append(b"b")
    assert [row["data"] for row in rows(source, tasks)] == [b"a"]


def test_an_empty_log_needs_no_task_and_the_call_without_one_reads_nothing() -> None:
    source = reader(ListedLog([], []))
    assert source.partitions() == []
    assert rows(source, [InputPartition(None)]) == []


def test_only_the_partitions_selected_are_asked_for() -> None:
    source = reader(ListedLog([b"a"], [b"b"]), partitions="1")
    assert [row["partition"] for row in rows(source, source.partitions())] == [1]


def test_batches_have_the_rows_asked_for() -> None:
    source = reader(ListedLog([b"a"] * 10, chunk=2), rowsPerBatch="4")
    (task,) = source.partitions()
    assert [len(batch) for batch in source.read(task)] == [4, 4, 2]


def test_a_task_is_shipped_and_reads_the_same() -> None:
    log = ListedLog([b"a", b"b"])
    source = reader(log)
    shipped = pickle.loads(pickle.dumps(source.partitions()))
    assert [row["data"] for row in rows(source, shipped)] == [b"a", b"b"]


def test_a_schema_without_data_is_read_without_it() -> None:
    wanted = StructType(
        [StructField("transaction_id", LongType()), StructField("header", IntegerType())]
    )
    source = reader(ListedLog([b"a", b"b"]), wanted)
    assert rows(source, source.partitions()) == [
        {"transaction_id": 0, "header": 0},
        {"transaction_id": 1, "header": -1},
    ]


def test_a_task_refuses_another_cluster_at_the_address() -> None:
    source = reader(ListedLog([b"a"], key=UUID(int=2)))
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2003 .*planned on"):
        list(source.read(planned(0, 1)))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PartitionNotReadyError("partition 0 has no server"), "WALTZ-2004"),
        (CorruptionError("record 3 does not check out"), "WALTZ-2005"),
    ],
)
def test_what_the_cluster_refuses_keeps_its_class_and_gets_a_code(
    error: WaltzError, code: str
) -> None:
    log = ListedLog([b"a"], error=error)
    with pytest.raises(type(error), match=f"^{code} cluster 127.0.0.1:7100: {error}$"):
        reader(log).partitions()
    with pytest.raises(type(error), match=f"^{code}"):
        list(reader(log).read(planned(0, 1)))
    POOL.close()
    assert log.open_count == 0


def archive_of(location: ArchiveLocation, log: ListedLog, *ends: int) -> ArchiveLocation:
    """Archive the first transactions of each partition, in two files if there are two."""
    archive = create_archive(location, log.cluster_key)
    source = reader(log)
    for step in (2, 1):
        contents = archive.contents()
        files = []
        for partition_id, end in enumerate(ends):
            first = contents.next_ids().get(PartitionId(partition_id), 0)
            wanted = TransactionRange(
                PartitionId(partition_id), TransactionId(first), TransactionId(end // step)
            )
            if wanted.first < wanted.end:
                batches = source.read(WaltzInputPartition(wanted, log.cluster_key))
                files += write_files(location, wanted, batches)
        archive.commit(contents, files)
    return location


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_spans_archive_and_log_without_a_seam(tmp_path: Path, kind: Kind) -> None:
    log = ListedLog([b"%d" % n for n in range(9)], [b"x", b"y"], [b"z"])
    archive = str(archive_of(located(kind, tmp_path), log, 6, 2))
    for minimum in ("1", "7"):
        source = reader(log, archive=archive, minPartitions=minimum)
        tasks = source.partitions()
        assert rows(source, pickle.loads(pickle.dumps(tasks))) == rows(
            reader(log), reader(log).partitions()
        )
    pieces = [piece for task in tasks for piece in pieces_in(task)]
    fed = [piece.range for piece in pieces if isinstance(piece, WaltzInputPartition)]
    assert {(each.partition_id, each.first >= 6) for each in fed} == {(0, True), (2, False)}
    POOL.close()
    assert log.open_count == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_archive_is_read_in_the_columns_asked_for(tmp_path: Path, kind: Kind) -> None:
    log = ListedLog([b"%d" % n for n in range(9)])
    archive = str(archive_of(located(kind, tmp_path), log, 8))
    wanted = StructType(
        [StructField("header", IntegerType()), StructField("transaction_id", LongType())]
    )
    options = {"startingOffsets": '{"0": 3}', "endingOffsets": '{"0": 7}'}
    source = reader(log, wanted, archive=archive, **options)
    expected = reader(log, wanted, **options)
    assert rows(source, source.partitions()) == rows(expected, expected.partitions())
    pieces = [piece for task in source.partitions() for piece in pieces_in(task)]
    assert not any(isinstance(piece, WaltzInputPartition) for piece in pieces)


def test_an_archive_is_read_without_a_cluster(tmp_path: Path) -> None:
    log = ListedLog([b"%d" % n for n in range(9)])
    options = parse_options({"archive": str(archive_of(tmp_path, log, 8))})
    source = WaltzReader(options, arrow_schema(log_schema()))
    assert [row["data"] for row in rows(source, source.partitions())] == [
        b"%d" % n for n in range(8)
    ]
    options = parse_options({"archive": str(tmp_path), "partitions": "0-1"})
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1005 .*partition 1; .* has 0$"):
        WaltzReader(options, arrow_schema(log_schema())).partitions()


def test_the_archive_of_another_cluster_is_refused(tmp_path: Path) -> None:
    archive = str(archive_of(tmp_path, ListedLog([b"a"] * 2), 2))
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* has the log of cluster"):
        reader(ListedLog([b"a"] * 2, key=UUID(int=2)), archive=archive).partitions()


def test_an_archive_longer_than_the_log_shows_that_the_log_lost_data(tmp_path: Path) -> None:
    archive = str(archive_of(tmp_path, ListedLog([b"a"] * 4), 4))
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 0 is archived to .* 3;"):
        reader(ListedLog([b"a"] * 2), archive=archive).partitions()


def test_data_of_other_headers_is_not_fetched() -> None:
    """PS-06."""
    log = ListedLog([b"a" * 100] * 50)
    source = reader(log, headers="-4..0")
    found = rows(source, source.partitions())
    assert [row["header"] for row in found] == [0, -1, -2, -3, -4]
    assert {row["data"] for row in found} == {b"a" * 100}
    assert log.bytes_read == 500


PLACES = StructType(
    [StructField("transaction_id", LongType()), StructField("partition", IntegerType())]
)


def test_columns_that_follow_from_the_place_are_known_without_reading() -> None:
    log = ListedLog([b"a"] * 10, [], [b"b"] * 3)
    source = reader(log, PLACES, rowsPerBatch="4", startingOffsets='{"0": 3}')
    tasks = source.partitions()
    assert [len(batch) for task in tasks for batch in source.read(task)] == [4, 3, 3]
    found = [(row["partition"], row["transaction_id"]) for row in rows(source, tasks)]
    assert found == [(0, number) for number in range(3, 10)] + [(2, 0), (2, 1), (2, 2)]
    assert log.rows_read == 0
    POOL.close()
    assert log.open_count == 0


def test_places_have_the_schema_of_the_read_to_the_letter() -> None:
    source = reader(ListedLog([b"a"]), PLACES)
    (batch,) = source.read(planned(0, 1))
    assert batch.schema == arrow_schema(PLACES)


def test_places_beyond_the_end_of_the_log_or_of_another_cluster_are_an_error() -> None:
    source = reader(ListedLog([b"a"] * 3), PLACES)
    with pytest.raises(
        NotFoundError, match=r"^WALTZ-2005 .* ends before transaction 3; expected .* to 3$"
    ):
        rows(source, [planned(1, 4)])
    assert len(rows(source, [planned(1, 3)])) == 2
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2003"):
        rows(source, [planned(1, 3, UUID(int=9))])


def test_a_filter_on_headers_reads_these_although_places_are_all_that_is_wanted() -> None:
    log = ListedLog([b"a"] * 50)
    source = reader(log, PLACES, headers="-4..0")
    assert [row["transaction_id"] for row in rows(source, source.partitions())] == [0, 1, 2, 3, 4]
    assert log.rows_read == 50


def test_a_plan_asks_for_the_marks_of_all_partitions_at_once() -> None:
    log = ListedLog([b"a"], [b"b"], [])
    reader(log).partitions()
    assert log.questions == 1


def test_data_that_is_no_column_is_not_fetched() -> None:
    """PS-06."""
    log = ListedLog([b"a" * 100] * 50)
    source = reader(log, log_schema(with_data=False), data="false", headers="-9..-7,-3")
    found = rows(source, source.partitions())
    assert [(row["transaction_id"], row["header"]) for row in found] == [
        (3, -3),
        (7, -7),
        (8, -8),
        (9, -9),
    ]
    assert log.bytes_read == 0


def test_an_archive_is_filtered_like_the_log(tmp_path: Path) -> None:
    """PS-06."""
    log = ListedLog([b"%d" % n for n in range(9)])
    source = reader(log, log_schema(), archive=str(archive_of(tmp_path, log, 6)), headers="-9..-4")
    assert [row["data"] for row in rows(source, source.partitions())] == [
        b"%d" % n for n in range(4, 9)
    ]
    without = StructType([StructField("data", BinaryType())])
    source = reader(log, without, archive=str(tmp_path), headers="-2")
    assert rows(source, source.partitions()) == [{"data": b"2"}]
