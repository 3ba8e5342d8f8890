"""The target of a definition leads to what keeps its tables."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.buckets import bucket_url, object_store
from waltz.errors import ConfigurationError, NotFoundError
from waltz.spark.pipelines.definition import PipelineDefinition, TargetKind
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.object_store_tables import ObjectStoreTables
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.table_store import TableStore

__all__ = ["bucket_url", "object_store"]


def defined(kind: TargetKind, target: Path) -> PipelineDefinition:
    return PipelineDefinition("tables", "127.0.0.1:7100", target, target_kind=kind)


def test_each_kind_of_target_is_opened_as_what_it_is(tmp_path: Path) -> None:
    kinds: tuple[tuple[TargetKind, type[TableStore]], ...] = (
        ("sqlite", TableStore),
        ("delta", DeltaTables),
        ("iceberg", IcebergTables),
    )
    for name, kind in kinds:
        with pytest.raises(NotFoundError, match=r"^WALTZ-2015 .*run the pipeline"):
            open_tables(defined(name, tmp_path / name), create=False)
        with open_tables(defined(name, tmp_path / name), create=True) as store:
            assert type(store) is kind


def test_a_url_is_opened_as_delta_tables_in_an_object_store(
    tmp_path: Path, bucket_url: str
) -> None:
    definition = replace(defined("delta", tmp_path / "tables"), url=bucket_url)
    with open_tables(definition, create=True) as store:
        assert type(store) is ObjectStoreTables
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_tables_whose_package_is_missing_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TargetKind, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"{package} is missing: run `pip install '\."):
        open_tables(defined(kind, tmp_path / "tables"), create=True)
    assert not (tmp_path / "tables").exists()
