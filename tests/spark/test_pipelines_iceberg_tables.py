"""Iceberg tables: their snapshots, files and catalog, and what stops them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table

from tests.spark.duck import opened_duck
from tests.spark.tables_by_value import CLUSTER, LAYOUT, LAYOUTS, Event, batch, folded, ranged
from tests.spark.test_pipelines_target import Killed, MortalIceberg, contents, prepared, truth
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.pipelines.bucket_join import BUCKET
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.lake_tables import BUCKETS


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[MortalIceberg]:
    store = prepared(MortalIceberg, tmp_path / "target")
    assert isinstance(store, MortalIceberg)
    with store:
        yield store


def catalog_of(store: IcebergTables) -> SqlCatalog:
    """The catalog as another program opens it."""
    return SqlCatalog("waltz", uri=f"sqlite:///{store.path}")


def files_of(table: Table) -> set[str]:
    return {each.file.file_path for each in table.scan().plan_files()}


def properties_of(table: Table) -> dict[str, str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    found = snapshot.summary.additional_properties
    return {key: value for key, value in found.items() if key.startswith("waltz.")}


def written_by_another(table: Table, bucket: int) -> pa.Table:
    """Append a copy of the table's rows to one of its buckets, as any program may."""
    content = table.scan().to_arrow()
    place = content.column_names.index(BUCKET)
    copied = content.set_column(place, BUCKET, pa.array([bucket] * len(content), pa.int32()))
    table.append(copied)
    return copied


def events_of(first: int, end: int) -> list[Event]:
    return [(f"k{each % 7}", 0, 1, 0, each) for each in range(first, end)]


def test_each_snapshot_says_how_far_it_is_and_replaces_few_files(iceberg: MortalIceberg) -> None:
    iceberg.add(batch([(str(each), 0, 1, 0, each) for each in range(200)], [ranged(0, 200)]))
    catalog = catalog_of(iceberg)
    before = files_of(catalog.load_table("tables.t"))
    assert len(before) > 50
    iceberg.add(batch([("7", 0, 1, 0, 200)], [ranged(200, 300)]))
    table = catalog.load_table("tables.t")
    assert len(before - files_of(table)) == 1, "the bucket of the only key"
    assert properties_of(table) == {"waltz.batch": "2", "waltz.mark.0": "300"}
    iceberg.add(batch([("7", 0, -1, 0, 4)], [ranged(0, 5, partition=1)]))
    aside = properties_of(catalog.load_table("tables.positive"))
    assert aside == {"waltz.batch": "3", "waltz.mark.0": "300", "waltz.mark.1": "5"}


def test_a_commit_costs_the_same_however_many_there_were(iceberg: MortalIceberg) -> None:
    counts = []
    for number in range(12):
        iceberg.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
        table = iceberg._format.opened("t")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        counts.append(len(snapshot.manifests(table.io)))
    assert counts == [1, *[2] * 11], "of what was added, and of what was removed"


def test_a_snapshot_of_another_writer_is_never_overwritten(iceberg: MortalIceberg) -> None:
    iceberg.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
    stale = iceberg._format.opened("t")
    other = catalog_of(iceberg).load_table("tables.t")
    # Into another bucket: pyiceberg alone would see no conflict.
    ours = stale.scan().to_arrow()[BUCKET][0].as_py()
    written_by_another(other, (ours + 1) % BUCKETS)
    files = {each.name for each in (iceberg.directory / "t" / "metadata").iterdir()}
    iceberg.steps = -1
    data = iceberg._format.files(stale)
    with (
        pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*another writer"),
        iceberg._format_errors_named(),
    ):
        iceberg._format.commit(stale, LAYOUT, data, [], 2, [ranged(5, 6)])
    assert iceberg._format.opened("t").scan().to_arrow().num_rows == 2
    assert {each.name for each in (iceberg.directory / "t" / "metadata").iterdir()} == files


def test_a_compaction_by_another_program_is_joined_with(iceberg: MortalIceberg) -> None:
    iceberg.add(batch(events_of(0, 20), [ranged(0, 20)]))
    table = catalog_of(iceberg).load_table("tables.t")
    table.dynamic_partition_overwrite(table.scan().to_arrow())
    assert properties_of(catalog_of(iceberg).load_table("tables.t")) == {}
    iceberg.add(batch(events_of(20, 40), [ranged(20, 40)]))
    assert contents(iceberg) == truth(events_of(0, 40))


def test_a_table_that_was_put_back_or_lost_is_refused(iceberg: MortalIceberg) -> None:
    for number in range(2):
        iceberg.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
    table = iceberg._format.opened("t")
    first = table.history()[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .* has 1 batches, .* has 2.*rebuild"):
        iceberg.add(batch([("k", 0, 7, 0, 2)], [ranged(2, 3)]))
    catalog_of(iceberg).drop_table("tables.t")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*tables\.t"):
        iceberg.add(batch([("k", 0, 7, 0, 2)], [ranged(2, 3)]))


def test_tidying_leaves_what_the_present_snapshot_needs_and_what_is_young(
    iceberg: MortalIceberg,
) -> None:
    for number in range(3):
        iceberg.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
    iceberg.steps = 2  # both tables are joined, nothing is planned
    with pytest.raises(Killed):
        iceberg.add(batch([("k", 0, 7, 0, 3)], [ranged(3, 4)]))
    path = iceberg.directory / "t"

    def files(folder: str) -> set[str]:
        return {str(each.relative_to(path)) for each in (path / folder).rglob("*.*")}

    before = files("data") | files("metadata")
    assert len(files("data")) == 4
    assert [each.files for each in iceberg.tidy(168, delete=True)] == [(), ()]
    (_, found) = iceberg.tidy(0, delete=False)
    assert found.byte_count == sum((path / each).stat().st_size for each in found.files)
    assert files("data") | files("metadata") == before
    assert len(iceberg._format.opened("t").snapshots()) == 3
    assert iceberg.tidy(0, delete=True)[1] == found
    table = iceberg._format.opened("t")
    assert [path / each for each in files("data")] == [
        Path(each.removeprefix("file://")) for each in files_of(table)
    ]
    assert len(table.snapshots()) == 1
    (listed,) = path.glob("metadata/snap-*.avro")
    manifests = {each.name for each in path.glob("metadata/*-m*.avro")}
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list == f"file://{listed}"
    assert {Path(each.manifest_path).name for each in snapshot.manifests(table.io)} == manifests
    assert iceberg.tidy(0, delete=False)[1].files == ()
    iceberg.steps = -1
    iceberg.add(batch([("k", 0, 7, 0, 3)], [ranged(3, 4)]))
    assert contents(iceberg) == truth([("k", 0, 7, 0, each) for each in range(4)])


def test_tidying_spares_snapshots_that_were_present_within_the_retained_time_and_tags(
    iceberg: MortalIceberg,
) -> None:
    for number in range(3):
        iceberg.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
    table = iceberg._format.opened("t")
    first, second, third = (each.snapshot_id for each in table.snapshots())
    table.manage_snapshots().create_tag(first, "kept").commit()
    iceberg.tidy(0, delete=True)
    left = iceberg._format.opened("t")
    assert {each.snapshot_id for each in left.snapshots()} == {first, third}
    old = left.scan(snapshot_id=first).to_arrow()
    assert old["the_count"].to_pylist() == [1]
    assert second not in {each.snapshot_id for each in left.snapshots()}


def test_rebuilt_tables_are_where_the_old_ones_were_and_old_files_are_tidied_away(
    tmp_path: Path,
) -> None:
    (tmp_path / "scratch").mkdir()
    one = LAYOUTS[0]
    with (
        IcebergTables(tmp_path / "target", create=True, buckets=2) as store,
        IcebergTables(tmp_path / "scratch" / "tables", create=True, buckets=3) as fresh,
        opened_duck() as duck,
    ):
        store.prepare(CLUSTER, "definition", LAYOUTS)
        store.add(batch(events_of(0, 20), [ranged(0, 20)]))
        fresh.prepare(CLUSTER, "another", [one])
        rows = batch(events_of(0, 30), [ranged(0, 30)])
        fresh.add(type(rows)(rows.ranges, [], rows.tables[:1]))
        store.replace_by(fresh)
        assert catalog_of(store).list_tables("tables") == [("tables", "t")]
        location = catalog_of(store).load_table("tables.t").location()
        assert location == f"file://{tmp_path}/target/t"
        # Another process that prepared the old tables at the same marks is refused.
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*was replaced meanwhile"):
            store.add(batch(events_of(30, 31), [ranged(30, 31)]))
        names = [each.name for each in one.columns]
        seen = duck.rows(tmp_path / "target" / "t", names)
        assert seen == sorted(folded(events_of(0, 30)), key=repr)
    with IcebergTables(tmp_path / "target", create=False) as found:
        left = {each.table: each.files for each in found.tidy(0, delete=True)}
        assert left["positive"] != ()
        assert [
            each for each in (tmp_path / "target" / "positive").rglob("*") if each.is_file()
        ] == []
        assert len(list((tmp_path / "target" / "t" / "data").rglob("*.parquet"))) == 3
        found.expect(CLUSTER, "another")
        assert sorted(found.rows(one), key=repr) == sorted(folded(events_of(0, 30)), key=repr)


def test_readers_without_a_catalog_find_the_present_metadata(iceberg: MortalIceberg) -> None:
    for number in range(2):
        iceberg.add(batch(events_of(number, number + 1), [ranged(number, number + 1)]))
        table = StaticTable.from_metadata(f"file://{iceberg.directory}/t")
        assert table.metadata_location == iceberg._format.opened("t").metadata_location
    iceberg.steps = 6  # a table has the batch
    with pytest.raises(Killed):
        iceberg.add(batch(events_of(2, 3), [ranged(2, 3)]))
    table = StaticTable.from_metadata(f"file://{iceberg.directory}/t")
    assert properties_of(table)["waltz.batch"] == "2", "the state that all tables have"
    iceberg.steps = -1
    iceberg.add(batch(events_of(2, 3), [ranged(2, 3)]))
    table = StaticTable.from_metadata(f"file://{iceberg.directory}/t")
    assert properties_of(table)["waltz.batch"] == "3"


def test_a_table_that_another_program_has_cut_or_shaped_otherwise_is_refused(
    iceberg: MortalIceberg,
) -> None:
    iceberg.add(batch(events_of(0, 20), [ranged(0, 20)]))
    table = catalog_of(iceberg).load_table("tables.t")
    with table.update_schema() as shape:
        shape.delete_column("the_sum")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .* no column the_sum; .*rebuild"):
        iceberg.add(batch(events_of(20, 40), [ranged(20, 40)]))
    with table.update_spec() as update:
        update.remove_field(BUCKET)
    table.append(table.scan().to_arrow())
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*another program.*rebuild"):
        iceberg.add(batch(events_of(20, 40), [ranged(20, 40)]))


def test_a_directory_that_no_location_can_say_or_of_another_format_is_refused(
    tmp_path: Path,
) -> None:
    for name in ("a#b", "a?b"):
        with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*no location of Iceberg"):
            IcebergTables(tmp_path / name, create=True)
        assert not (tmp_path / name).exists()
    with prepared(IcebergTables, tmp_path / "a b" / "ключ") as store:
        store.add(batch(events_of(0, 3), [ranged(0, 3)]))
        assert contents(store) == truth(events_of(0, 3))
    with prepared(DeltaTables, tmp_path / "delta") as store:
        store.add(batch(events_of(0, 3), [ranged(0, 3)]))
    with (
        IcebergTables(tmp_path / "delta", create=False) as other,
        pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*is not of Iceberg tables"),
    ):
        other.prepare(CLUSTER, "definition", LAYOUTS)
    with sqlite3.connect(tmp_path / "delta" / "waltz.db") as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
    assert not {each for each in tables if "iceberg" in each}
