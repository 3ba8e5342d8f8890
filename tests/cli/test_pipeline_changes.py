"""`waltz pipeline changes`, and what `tidy` does about changes, without cluster and Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.spark.tables_by_value import CLUSTER, batch, ranged
from waltz.cli.pipeline import pipeline
from waltz.errors import ChangesMissingError, ConfigurationError
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.table_store import Column, Layout, Rows
from waltz.spark.pipelines.tables import PLACES

DEFINITION = """\
pipeline: tables
cluster: 127.0.0.1:7100
target: {}
tables:
  accounts: {{keys: {{name: a}}, measures: {{n: count(*), raw: last(b)}}}}
"""
TYPES = ("TEXT", "INTEGER", "BLOB", *("INTEGER" for _ in PLACES))
Add = Callable[[int, str, bytes], None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.yaml"
    path.write_text(DEFINITION.format("tables.db\nchanges: 10"))
    return path


def adding(file: Path) -> Add:
    """Return what takes in a transaction of one row."""
    definition = parse_definition(file.read_text(), directory=file.parent)
    assert definition.tables is not None
    (table,) = definition.tables.tables
    layout = Layout(table, tuple(map(Column, ("name", "n", "raw", *PLACES), TYPES)))
    fingerprint = definition.tables.fingerprint()

    def add(place: int, name: str, raw: bytes) -> None:
        rows = Rows(layout, [(name, 1, raw, 0, place, 0, place)])
        with open_tables(definition, create=True) as store:
            store.prepare(CLUSTER, fingerprint, [layout])
            store.add(replace(batch([], [ranged(place, place + 1)]), tables=[rows]))

    return add


def run(*arguments: str) -> Result:
    return CliRunner().invoke(pipeline, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").output)
    return found


def test_a_reader_asks_from_position_to_position_and_is_told_each_change_once(file: Path) -> None:
    add = adding(file)
    add(0, "a", b"\1")
    whole = answer("changes", str(file), "accounts")
    row = dict(zip(("name", "n", "raw", *PLACES), ("a", 1, "01", 0, 0, 0, 0), strict=True))
    insert = {"kind": "insert", "before": None, "after": row}
    assert (whole["keys"], whole["more"]) == (["name"], False)
    assert whole["commits"] == [{"marks": {"0": 1}, "changes": [insert]}]
    assert whole["position"]["marks"] == {"0": 1}
    place = json.dumps(whole["position"])
    nothing = answer("changes", str(file), "accounts", "--after", place)
    assert (nothing["commits"], nothing["position"]) == ([], whole["position"])
    add(1, "a", b"\2")
    add(2, "b", b"\3")
    after = ("changes", str(file), "accounts", "--after", place)
    part = answer(*after, "--limit", "1")
    (commit,) = part["commits"]
    assert (commit["marks"], part["more"]) == ({"0": 2}, True)
    update = {"kind": "update", "before": row, "after": commit["changes"][0]["after"]}
    assert commit["changes"] == [update]
    assert (update["after"]["n"], update["after"]["raw"]) == (2, "02")
    rest = answer(*after[:-1], json.dumps(part["position"]), "--limit", "1")
    assert [each["marks"] for each in rest["commits"]] == [{"0": 3}]
    assert rest["more"] is False
    assert run(*after).output == (
        "update name = a: n = 1 -> 2, raw = 01 -> 02, last_transaction_id = 0 -> 1\n"
        "insert name = b: n = 1, raw = 03, first_partition = 0, first_transaction_id = 2,"
        " last_partition = 0, last_transaction_id = 2\n"
        f"position {json.dumps(rest['position'])}\n"
    )
    assert run(*after, "--limit", "1").output.endswith("; there are more\n")


def test_a_position_that_is_none_or_too_old_is_refused_before_anything_is_printed(
    file: Path,
) -> None:
    adding(file)(0, "a", b"")
    for text in ("17", "{", '{"0": 17}'):
        refused = run("changes", str(file), "accounts", "--after", text)
        assert isinstance(refused.exception, ConfigurationError)
        assert (refused.output, "position" in str(refused.exception)) == ("", True)
    place = answer("changes", str(file), "accounts")["position"]
    older = json.dumps({**place, "marks": {}})
    assert len(answer("changes", str(file), "accounts", "--after", older)["commits"]) == 1
    young = json.loads(run("tidy", str(file), "--delete", "--json").output)
    nothing = {"table": "accounts", "bytes": 0, "files": [], "changes": 0}
    assert young == {"deleted": True, "tables": [nothing]}
    arguments = ("tidy", str(file), "--retention-hours", "0")
    assert run(*arguments).output == "accounts: would delete 1 changes\n"
    assert run(*arguments, "--delete").output == "accounts: deleted 1 changes\n"
    refused = run("changes", str(file), "accounts", "--after", older, "--json")
    assert (type(refused.exception), refused.output) == (ChangesMissingError, "")


def test_tables_without_changes_say_what_to_write_into_the_definition(tmp_path: Path) -> None:
    file = tmp_path / "accounts.yaml"
    file.write_text(DEFINITION.format("tables.db"))
    adding(file)(0, "a", b"")
    for arguments, text in (
        (
            ("changes", str(file), "accounts"),
            "keeps no changes; run the pipeline, with `changes: 1000000` in",
        ),
        (("tidy", str(file)), "has no Delta or Iceberg table, and keeps no `changes`; only"),
    ):
        refused = run(*arguments)
        assert isinstance(refused.exception, ConfigurationError)
        assert text in str(refused.exception)
    file.write_text(DEFINITION.format("delta:tables\nchanges: 10"))
    refused = run("changes", str(file), "accounts")
    assert "WALTZ-1007 changes: Delta and Iceberg tables have their changes in" in str(
        refused.exception
    )


def test_a_number_that_json_lacks_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yaml"
    path.write_text(DEFINITION.format("tables.db\nchanges: 10"))
    definition = parse_definition(path.read_text(), directory=tmp_path)
    assert definition.tables is not None
    (table,) = definition.tables.tables
    types = ("TEXT", "INTEGER", "REAL", *("INTEGER" for _ in PLACES))
    layout = Layout(table, tuple(map(Column, ("name", "n", "raw", *PLACES), types)))
    values = [(str(each), 1, each, 0, 0, 0, 0) for each in (float("inf"), float("-inf"), 0.5)]
    with open_tables(definition, create=True) as store:
        store.prepare(CLUSTER, definition.tables.fingerprint(), [layout])
        store.add(replace(batch([], [ranged(0, 3)]), tables=[Rows(layout, values)]))

    def refused(text: str) -> None:
        raise ValueError(f"{text} is no JSON")

    found = json.loads(
        run("changes", str(path), "accounts", "--json").stdout, parse_constant=refused
    )
    (commit,) = found["commits"]
    assert [each["after"]["raw"] for each in commit["changes"]] == ["Infinity", "-Infinity", 0.5]
