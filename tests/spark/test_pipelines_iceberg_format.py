"""Iceberg's own ways: a catalog in a database, and hints for readers without one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pyiceberg.table import StaticTable

from tests.spark.tables_by_value import LAYOUT, ranged
from waltz.spark.pipelines.iceberg_format import IcebergFormat, noted


def test_a_catalog_is_opened_when_it_is_first_asked(tmp_path: Path) -> None:
    tables = IcebergFormat(tmp_path, tmp_path / "catalog.db")
    tables.close()
    assert list(tmp_path.iterdir()) == []
    with closing(tables):
        tables.create(LAYOUT, 1)
    with closing(IcebergFormat(tmp_path, tmp_path / "catalog.db")) as another:
        assert another.names() == ["t"]


def test_a_hint_names_the_present_metadata_once_it_is_told_to(tmp_path: Path) -> None:
    with closing(IcebergFormat(tmp_path, tmp_path / "catalog.db")) as tables:
        tables.create(LAYOUT, 1)
        tables.hint()
        tables.commit(tables.opened("t"), LAYOUT, {}, [], 1, [ranged(0, 5)])
        place = f"file://{tables.home('t')}"
        assert noted(StaticTable.from_metadata(place)) == {}, "other tables may lack the batch"
        tables.hint()
        found = noted(StaticTable.from_metadata(place))
    assert found == {"waltz.batch": "1", "waltz.mark.0": "5"}


def test_a_directory_without_a_table_is_listed_while_it_has_metadata(tmp_path: Path) -> None:
    with closing(IcebergFormat(tmp_path, tmp_path / "catalog.db")) as tables:
        tables.create(LAYOUT, 1)
        (tmp_path / "gone" / "metadata").mkdir(parents=True)
        assert (tables.names(), tables.directories()) == (["t"], ["gone", "t"])
