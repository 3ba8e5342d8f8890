"""A storage directory read without a server has the same rows as through servers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from tests.storage.inspected import flipped, our_files, segment_name, without, write_files
from waltz import NoCallbacks
from waltz.client.transaction import PlainAppend
from waltz.errors import ConfigurationError, CorruptionError, NotFoundError
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.spark.data_source import WaltzDataSource
from waltz.spark.log_columns import log_schema
from waltz.spark.reader import WaltzReader
from waltz.spark.schema import arrow_schema
from waltz.spark.segment_reader import WaltzSegmentReader
from waltz.spark.spark_options import parse_options
from waltz.testing import InMemoryCluster

FILES = our_files((5, 7, 4), (3,), (2, 2))


def reader(path: Path, schema: StructType | None = None, **options: str) -> WaltzSegmentReader:
    parsed = parse_options({"path": str(path), **options})
    return WaltzSegmentReader(parsed, arrow_schema(schema or log_schema()))


def rows(source: Any) -> list[dict[str, Any]]:
    tasks = pickle.loads(pickle.dumps(source.partitions()))
    return [row for task in tasks for batch in source.read(task) for row in batch.to_pylist()]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_files(tmp_path / "storage", FILES)


def test_sealed_segments_are_read_in_order_and_left_as_they_are(directory: Path) -> None:
    before = contents(directory)
    source = reader(directory)
    found = rows(source)
    assert [(row["partition"], row["transaction_id"]) for row in found] == [
        *((0, number) for number in range(12)),
        (2, 0),
        (2, 1),
    ]
    assert found[7]["data"] == b"record 7 of 0 "
    assert found[7]["header"] == 77
    assert len(source.partitions()) == 3
    assert list(source.read(InputPartition(None))) == []
    assert contents(directory) == before


def test_a_part_is_read_in_the_columns_and_rows_asked_for(directory: Path) -> None:
    wanted = StructType(
        [StructField("header", IntegerType()), StructField("transaction_id", LongType())]
    )
    options = {"partitions": "0", "startingOffsets": '{"0": 3}', "endingOffsets": '{"0": 8}'}
    found = rows(reader(directory, wanted, **options))
    assert found == [{"header": 11 * n, "transaction_id": n} for n in range(3, 8)]
    source = reader(directory, headers="0..50", partitions="0")
    assert [row["header"] for row in rows(source)] == [0, 11, 22, 33, 44]


@pytest.mark.parametrize(
    ("files", "options", "error", "fault"),
    [
        (flipped(FILES, segment_name(0, 5), 200), {}, CorruptionError, "WALTZ-2013 .*CRC-32"),
        (
            without(FILES, segment_name(0, 0), segment_name(0, 0, ".idx")),
            {},
            NotFoundError,
            "WALTZ-2001 .*segments begin at 5 in partition 0, 0 in partition 2",
        ),
        (
            FILES,
            {"partitions": "1"},
            ConfigurationError,
            "WALTZ-1005 .* segments of 0, 2",
        ),
        (FILES, {"startingOffsets": '{"0": 13}'}, NotFoundError, "WALTZ-2001 .*its high-water mar"),
        (
            {"a": b""},
            {},
            ConfigurationError,
            "WALTZ-2013 .* is not a file or directory of a storage node",
        ),
    ],
)
def test_what_cannot_be_read_whole_is_an_error(
    tmp_path: Path, files: Any, options: dict[str, str], error: type[Exception], fault: str
) -> None:
    directory = write_files(tmp_path, files)
    with pytest.raises(error, match=f"^{fault}"):
        rows(reader(directory, None, **options))


def copied(disk: SimulatedDisk, source: str, target: Path) -> Path:
    """Copy a directory of a node's disk."""
    target.mkdir()
    for name in disk.list_directory(source):
        path = f"{source}/{name}"
        try:
            disk.list_directory(path)
        except NotADirectoryError:
            file = disk.open_to_read(path)
            (target / name).write_bytes(file.read_at(0, file.size()))
        else:
            copied(disk, path, target / name)
    return target


def test_files_and_servers_have_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS-01. Of a copy of the storage node's directory, taken while it works."""
    monkeypatch.setattr(
        "waltz.testing.memory_cluster.ClusterShape",
        lambda **shape: ClusterShape(**{**shape, "segment_bytes_threshold": 4000}),
    )
    with InMemoryCluster(partitions=2, for_tests=True) as cluster:
        with cluster.open_client(NoCallbacks(), max_concurrent_transactions=100) as client:
            for number in range(600):
                data = b"%d" % number * (number % 60)
                client.submit(PlainAppend(number % 2, data, header=number))
            client.flush()
        (name,) = (each for each in cluster._sites._sites if "storage" in each)
        disk = cluster._sites.disk(name)
        (control,) = (path for path in disk.files.seen if path.endswith("/waltz-storage.ctl"))
        directory = copied(disk, control.rpartition("/")[0], tmp_path / "copy")
        before = contents(directory)
        through_files = rows(WaltzDataSource({"path": str(directory)}).reader(log_schema()))
        assert contents(directory) == before
        ends = {str(row["partition"]): row["transaction_id"] + 1 for row in through_files}
        options = {"cluster": "127.0.0.1:7100", "endingOffsets": json.dumps(ends)}
        source = WaltzReader(
            parse_options(options),
            arrow_schema(log_schema()),
            lambda cluster_address, tls: cluster.open_reader(),
        )
        through_servers = [
            row for task in source.partitions() for batch in source.read(task)
            for row in batch.to_pylist()
        ]  # fmt: skip
    assert len(reader(directory).partitions()) > 4
    assert 400 < len(through_files) < 600
    assert through_files == through_servers
