"""Reports on derived tables: what is asked for is shown, and a wrong query is named."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.report import write_report
from waltz.spark.pipelines.report_definition import ReportDefinition, Section
from waltz.spark.pipelines.table_store import Batch, Column, Layout, Rows, TableStore
from waltz.spark.pipelines.tables import PLACES, Measure, TableDefinition
from waltz.types import PartitionId, TransactionId

LAYOUT = Layout(
    TableDefinition("balances", (("account", "a"),), (Measure("balance", "sum", "b"),)),
    (
        Column("account", "TEXT"),
        Column("balance", "INTEGER"),
        *(Column(each, "INTEGER") for each in PLACES),
    ),
)
ALL = "SELECT account, balance FROM balances ORDER BY account"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tables.db"
    taken_in = TransactionRange(PartitionId(3), TransactionId(0), TransactionId(1_234))
    values = [(None, 5, 0, 0, 0, 0), ("a<b", 1_500_000, 0, 0, 0, 0), ("c", None, 0, 0, 0, 0)]
    with TableStore(path, create=True) as store:
        store.prepare(UUID(int=1), "definition", [LAYOUT])
        store.add(Batch([taken_in], [], [Rows(LAYOUT, values)]))
    return path


def report(database: Path, *sections: Section) -> str:
    target = database.parent / "report.html"
    write_report(ReportDefinition(target, "Accounts", sections, "All of them."), database)
    return target.read_text()


def test_rows_become_tables_and_drawings(database: Path) -> None:
    text = report(
        database,
        Section("All", ALL),
        Section("Bars", ALL, "bars", "As bars."),
        Section("Lines", "SELECT 1, 2, 3 UNION SELECT 2, NULL, 4", "lines"),
    )
    assert "<dt>transactions</dt><dd>1,234</dd>" in text
    assert "<tr><th>account</th><th>balance</th></tr>" in text
    assert "<tr><td>a&lt;b</td><td>1,500,000</td></tr><tr><td>c</td><td></td></tr>" in text
    assert text.count("<svg") == 2
    assert "As bars." in text
    assert not list(database.parent.glob(".report*"))


def test_nothing_may_be_there_to_show(database: Path) -> None:
    none = "SELECT account, balance FROM balances WHERE account = 'nobody'"
    text = report(database, *(Section("None", none, show) for show in ("table", "bars", "lines")))
    assert text.count("<svg") == 2


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("SELECT colour FROM balances", "no such column: colour"),
        ("DELETE FROM balances", "attempt to write a readonly database"),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
            "has more than 10000 rows",
        ),
    ],
)
def test_a_query_that_is_wrong_is_named(database: Path, query: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^WALTZ-1007 report: section 'X'.* {fault}"):
        report(database, Section("X", query))


def test_tables_must_have_been_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no database .*; run the pipeline"):
        report(tmp_path / "none.db")


@pytest.mark.parametrize("name", ["tables#1.db", "is it?.db", "100%41.db"])
def test_a_database_may_have_any_name(database: Path, name: str) -> None:
    assert "a&lt;b" in report(database.rename(database.with_name(name)), Section("All", ALL))
