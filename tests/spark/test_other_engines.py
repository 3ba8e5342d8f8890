"""DuckDB opens the tables of a target by its own readers, and has the rows of the batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.duck import Duck, opened_duck
from tests.spark.tables_by_value import (
    CLUSTER,
    LAYOUT,
    LAYOUTS,
    Event,
    batch,
    folded,
    positive,
    ranged,
)
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.table_store import Batch, Column, Layout, Rows
from waltz.spark.pipelines.tables import PLACES, Measure, TableDefinition

Kind = type[DeltaTables | IcebergTables]
BUCKETS = 5
COLUMNS = [each.name for each in LAYOUT.columns]
VALUES = Layout(
    TableDefinition(
        "values",
        (("name", "name"),),
        tuple(Measure(each, "last", "x") for each in ("number", "text", "real", "bytes")),
    ),
    (
        Column("name", "TEXT"),
        Column("number", "INTEGER"),
        Column("text", "TEXT"),
        Column("real", "REAL"),
        Column("bytes", "BLOB"),
        *(Column(each, "INTEGER") for each in PLACES),
    ),
)
"""A table with a column of each type that tables have."""


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    with opened_duck() as opened:
        yield opened


@pytest.fixture(params=[DeltaTables, IcebergTables])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def random_events(seed: int, count: int) -> list[Event]:
    chance = random.Random(seed)
    return [
        (
            chance.choice([None, "", "k", "ключ", "a long name " * 5, f"name {number % 40}"]),
            chance.choice([None, 0, -1, (1 << 62) + number % 3]),
            chance.choice([None, chance.randint(-1000, 1000)]),
            0,
            number,
        )
        for number in range(count)
    ]


def test_duckdb_has_the_fold_of_all_batches(duck: Duck, tmp_path: Path, kind: Kind) -> None:
    events, per_batch = random_events(seed=1, count=400), 80
    with kind(tmp_path / "target", create=True, buckets=BUCKETS) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        for first in range(0, len(events), per_batch):
            end = first + per_batch
            store.add(batch(events[first:end], [ranged(first, end)]))
            for layout, taken in zip(LAYOUTS, (events[:end], positive(events[:end])), strict=True):
                path = store.directory / layout.definition.name
                assert duck.rows(path, COLUMNS) == sorted(folded(taken), key=repr)
        store.tidy(0, delete=True)
        truth = sorted(folded(events), key=repr)
        assert duck.rows(store.directory / "t", COLUMNS) == truth


def literal(value: int | str) -> str:
    """Return a value as it stands in a query: what is bound later skips no file."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def test_duckdb_finds_each_row_by_a_value_although_it_skips_files(
    duck: Duck, tmp_path: Path, kind: Kind
) -> None:
    events = random_events(seed=2, count=150)
    with kind(tmp_path / "target", create=True, buckets=BUCKETS) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        store.add(batch(events, [ranged(0, 150)]))
    rows = sorted(folded(events), key=repr)
    for place, name in enumerate(COLUMNS):
        for value in {row[place] for row in rows}:
            condition = f'"{name}" IS NULL' if value is None else f'"{name}" = {literal(value)}'
            found = duck.rows(tmp_path / "target" / "t", COLUMNS, condition)
            assert found == [each for each in rows if each[place] == value], (name, value)


def test_duckdb_has_values_of_every_type_as_they_are(
    duck: Duck, tmp_path: Path, kind: Kind
) -> None:
    values: list[tuple[Any, ...]] = [
        ("least", -(1 << 63), "", -float("inf"), b""),
        ("greatest", (1 << 63) - 1, "\U0010ffff" * 40, float("inf"), bytes(range(256))),
        ("none", None, None, None, None),
        ("small", 0, "Ω'\"\n", 5e-324, b"\0"),
    ]
    rows = [(*each, 0, number, 0, number) for number, each in enumerate(values)]
    with kind(tmp_path / "target", create=True, buckets=BUCKETS) as store:
        store.prepare(CLUSTER, "definition", [VALUES])
        store.add(Batch([ranged(0, len(rows))], [], [Rows(VALUES, rows)]))
    path = tmp_path / "target" / "values"
    names = [each.name for each in VALUES.columns]
    assert duck.rows(path, names) == sorted(rows, key=repr)
    assert {name: duck.types(path)[name] for name in names[:5]} == {
        "name": "VARCHAR",
        "number": "BIGINT",
        "text": "VARCHAR",
        "real": "DOUBLE",
        "bytes": "BLOB",
    }
