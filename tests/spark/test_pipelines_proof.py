"""What `verify` says of derived tables on a real cluster."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import waltz
from tests.clusters import running_cluster
from tests.shares import one_in
from tests.spark.changed_cells import FILE, faults_of_changes, write_log
from waltz.errors import CorruptionError, NotFoundError
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines import proof
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.pipelines.fold import finished
from waltz.spark.pipelines.proof import ROWS_EXPLAINED_MAX, batches, key_text, verify
from waltz.spark.pipelines.tables import Measure, TableDefinition
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        yield running.coordinator


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", one_in(3, [1, 2, 8]))
def test_a_single_changed_cell_is_named_with_the_transaction_it_parts_from(
    spark: SparkSession, cluster: str, tmp_path: Path, count: int
) -> None:
    """F-4: of tables, of what was put aside, of marks and of digests; see `changed_cells`."""
    assert faults_of_changes(spark, cluster, tmp_path, count=count, seed=11) == []


@pytest.mark.long
def test_rows_lost_added_and_put_aside_are_told_and_the_rest_is_counted(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    write_log(cluster, 30, Random(1))
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        aside = client.append(0, b"not decodable", header=2)
        for account in range(100, 100 + 2 * ROWS_EXPLAINED_MAX):
            client.append(1, b'{"changes": [[%d, 1]]}' % account, header=0)
    access = LogAccess(cluster)
    definition = parse_definition(FILE.format(cluster=cluster), directory=tmp_path)
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 there is no database"):
        verify(spark, access, definition)
    take_in(spark, access, definition)
    equal = verify(spark, access, definition)
    assert equal.differences == ()
    assert equal.transactions == 31 + 2 * ROWS_EXPLAINED_MAX
    with sqlite3.connect(definition.target) as database:
        ((undecodable,),) = database.execute("SELECT count(*) FROM waltz_undecodable")
        assert equal.undecodable == undecodable > 0
        database.execute("DELETE FROM balances WHERE account >= 100")
        database.execute("INSERT INTO balances SELECT 7, 1, 1, 1, 1, 1, 0, 3, 0, 3")
        database.execute("DELETE FROM waltz_undecodable")
    report = verify(spark, access, definition)
    balances = [each for each in report.differences if each.table == "balances"]
    assert len(balances) == ROWS_EXPLAINED_MAX
    assert report.more == {"balances": ROWS_EXPLAINED_MAX + 1}
    (surplus,) = [each for each in balances if each.key == {"account": 7}]
    assert (surplus.partition_id, surplus.transaction_id) == (0, 3)
    put_aside = [each for each in report.differences if each.table == "waltz_undecodable"]
    assert len(put_aside) == undecodable
    assert (0, aside) in [(each.partition_id, each.transaction_id) for each in put_aside]
    assert {each.table for each in report.differences} == {"balances", "waltz_undecodable"}


def test_batches_of_a_proof_have_every_transaction_once() -> None:
    ends = {PartitionId(0): TransactionId(7), PartitionId(2): TransactionId(4)}

    def span(partition: int, first: int, end: int) -> TransactionRange:
        return TransactionRange(PartitionId(partition), TransactionId(first), TransactionId(end))

    assert list(batches(ends, 5)) == [
        [span(0, 0, 5)],
        [span(0, 5, 7), span(2, 0, 3)],
        [span(2, 3, 4)],
    ]
    assert list(batches({}, 5)) == []
    assert key_text([None, 1, "ä"]) != key_text([None, "1", "ä"])


def test_a_verify_that_fills_the_disk_says_so(tmp_path: Path) -> None:
    def fill() -> None:
        with proof._scratch(tmp_path / "tables.db") as database, proof._transaction(database):
            database.execute("PRAGMA max_page_count = 10")
            for number in range(100):
                database.execute("INSERT INTO fold VALUES (0, ?, ?)", (str(number), bytes(999)))

    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .* disk is full$"):
        fill()
    assert not list(tmp_path.iterdir())


def test_times_are_folded_as_times_whatever_the_zone_of_the_session() -> None:
    """In New York a clock shows 1:30 twice on the first of November, and year 1 begins later."""
    table = TableDefinition("t", (("k", "at"),), (Measure("a", "min", "at"),))
    hours = TableDefinition("t", (("k", "1"),), (Measure("a", "min", "at"),))
    texts = ["0001-01-01 01:00:00", "2026-11-01 05:50:00", "2026-11-01 06:30:00"]
    times = [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in texts]
    at = pa.array(times, pa.timestamp("us", tz="UTC")).cast(
        pa.timestamp("us", tz="America/New_York")
    )

    def folded(definition: TableDefinition, keys: Any, values: Any) -> dict[str, Any]:
        count = len(values)
        places = (pa.array(range(count), pa.int64()), pa.array([0] * count), pa.array([0] * count))
        batch = pa.record_batch([*places, keys, values], list("tpnkv"))
        (part,) = proof._Folding(0, definition)([batch])
        found = zip(part["key"].to_pylist(), part["content"].to_pylist(), strict=True)
        return {key: finished(pickle.loads(state))[0] for key, state in found}

    ones = pa.array([1] * 3)
    assert folded(hours, ones[1:], at[1:]) == {"[1]": texts[1]}
    assert folded(hours, ones, at) == {"[1]": texts[0]}
    twice = at[1:].cast(pa.int64())
    half_past = pa.array([each.as_py() // 3_600_000_000 * 3_600_000_000 for each in twice])
    keys = half_past.cast(pa.timestamp("us")).cast(at.type)
    assert len(folded(table, keys, at[1:])) == 2
