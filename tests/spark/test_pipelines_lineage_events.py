"""The events of OpenLineage of a pipeline's passes, by value."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from openlineage.client.event_v2 import RunEvent
from openlineage.client.serde import Serde

from tests.spark.tables_by_value import CLUSTER
from tests.spark.test_parquet_archive import archived
from waltz.errors import CorruptionError
from waltz.spark.parquet_archive import Archive
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.lineage_events import ERROR_CHARACTERS_MAX, SCHEMA_PATH, LineageRuns
from waltz.spark.pipelines.table_store import Column, Layout
from waltz.spark.pipelines.target import TableWritten
from waltz.spark.pipelines.watch import ARCHIVE, BatchSeen, Beginning
from waltz.types import PartitionId, TransactionId

ROOT = Path(__file__).parents[2]
TABLES = """\
pipeline: tables
cluster: 127.0.0.1:7100
target: {target}
lineage: {{namespace: shop, job: accounts}}
archive: archive
tables:
  headers: {{keys: [header], measures: {{moves: count(*)}}}}
  days: {{keys: [header], measures: {{moves: count(*)}}}}
"""
COLUMNS = (Column("header", "INTEGER"), Column("moves", "INTEGER"))


class Told:
    """The passes of a definition, and the events that they have told, as they are sent."""

    def __init__(self, text: str, directory: Path, *, rebuild: bool = False) -> None:
        self.definition = parse_definition(text, directory=directory)
        self.now = datetime(2026, 11, 24, 10, tzinfo=UTC)
        self._ids = 0
        self._events: list[RunEvent] = []
        self.runs = LineageRuns(
            self.definition,
            self._events.append,
            version="1.0.0",
            spark_version="4.2.0",
            clock=self._clock,
            new_id=self._new_id,
            rebuild=rebuild,
        )

    def _clock(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def _new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def begins(self, marks: dict[int, int], *past: str, is_reread: bool = False) -> None:
        tables = self.definition.tables
        layouts = () if tables is None else tuple(Layout(e, COLUMNS) for e in tables.tables)
        next_ids = {PartitionId(each): TransactionId(end) for each, end in marks.items()}
        self.runs.begins(Beginning(CLUSTER, next_ids, layouts, past, is_reread))

    def took_in(self, marks: dict[int, int], **written: TableWritten) -> None:
        next_ids = {PartitionId(each): TransactionId(end) for each, end in marks.items()}
        self.runs.took_in(BatchSeen(next_ids, 1, 0, None, {}, written))

    def events(self) -> list[dict[str, Any]]:
        return [Serde.to_dict(each) for each in self._events]

    def states(self) -> list[tuple[str, str]]:
        return [(each["eventType"], each["run"]["runId"][-1]) for each in self.events()]


def outputs(event: dict[str, Any], facet: str) -> dict[str, dict[str, Any]]:
    """The facet of each output that has it, without what all facets have."""
    found = {}
    for each in event["outputs"]:
        facets = each.get("facets", {}) | each.get("outputFacets", {})
        if facet in facets:
            plain = {key: value for key, value in facets[facet].items() if key[0] != "_"}
            found[each["name"]] = plain
    return found


def test_the_page_shows_the_event_of_a_run_that_is_complete(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "pipelines.md").read_text()
    (shown,) = [
        json.loads(each)
        for each in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        if "eventType" in each
    ]
    told = Told(TABLES.format(target="delta:accounts"), Path("/srv"))
    told.begins({0: 250_000})
    told.took_in(
        {0: 250_391, 1: 7}, headers=TableWritten(20, 4_096, 3), days=TableWritten(2, 99, 1)
    )
    told.runs.pass_ended()
    start, complete = told.events()
    complete["outputs"].pop()  # the page shows one of the two tables
    assert complete == shown
    assert start["eventTime"] == "2026-11-24T10:00:01.000+00:00"
    assert start["run"] == complete["run"]
    assert [each["inputFacets"] for each in start["inputs"]] == [{}]
    assert not outputs(start, "outputStatistics")
    assert outputs(start, "schema") == outputs(complete, "schema") | {
        "/srv/accounts/days": outputs(start, "schema")["/srv/accounts/headers"]
    }


def test_the_facet_of_marks_is_what_its_schema_says() -> None:
    # Its formats are parsed when it is imported: a second in each process of pytest.
    from jsonschema import Draft202012Validator

    schema = json.loads((ROOT / SCHEMA_PATH).read_text())
    Draft202012Validator.check_schema(schema)
    told = Told(TABLES.format(target="accounts.db"), Path("/srv"))
    told.begins({0: 3, 1: 5})
    told.took_in({0: 9, 1: 5, 2: 4})
    told.runs.pass_ended()
    (log,) = told.events()[1]["inputs"]
    facet = log["inputFacets"]["waltz_marks"]
    Draft202012Validator(schema).validate(facet)
    assert (facet["start"], facet["end"]) == ({"0": 3, "2": 0}, {"0": 9, "2": 4})
    assert facet["_schemaURL"] == f"pkg:pypi/waltz-log@1.0.0#{SCHEMA_PATH}"
    assert not Draft202012Validator(schema).is_valid(facet | {"end": {"-1": 4}})


@pytest.mark.parametrize(
    ("target", "namespace", "name", "kind"),
    [
        ("accounts.db", "sqlite", "/srv/accounts.db.headers", "INTEGER"),
        ("delta:accounts", "file", "/srv/accounts/headers", "bigint"),
        ("iceberg:accounts", "file", "/srv/accounts/headers", "bigint"),
        ("delta:s3://bucket/a/accounts", "s3://bucket", "a/accounts/headers", "bigint"),
    ],
)
def test_tables_have_the_names_of_their_kind(
    target: str, namespace: str, name: str, kind: str
) -> None:
    told = Told(TABLES.format(target=target), Path("/srv"))
    told.begins({})
    (event,) = told.events()
    first = event["outputs"][0]
    assert (first["namespace"], first["name"]) == (namespace, name)
    fields = outputs(event, "schema")[name]["fields"]
    bucket = [("waltz_bucket", "int")] if kind == "bigint" else []
    assert [(each["name"], each["type"]) for each in fields] == [
        ("header", kind),
        ("moves", kind),
        *bucket,
    ]


def test_an_idle_pass_tells_nothing_and_each_other_pass_is_a_run() -> None:
    told = Told(TABLES.format(target="accounts.db"), Path("/srv"))
    for pass_ in range(3):
        told.runs.pass_begins()
        told.runs.log_has({PartitionId(0): TransactionId(9)})
        if pass_ != 1:
            told.begins({0: pass_})
            told.took_in({0: pass_ + 1}, headers=TableWritten(1), days=TableWritten(0))
        told.runs.pass_ended()
    assert told.states() == [("START", "2"), ("COMPLETE", "2"), ("START", "4"), ("COMPLETE", "4")]


def test_rows_of_several_batches_are_added_and_nothing_is_guessed() -> None:
    told = Told(TABLES.format(target="accounts.db"), Path("/srv"))
    told.begins({}, "days", is_reread=True)
    told.begins({})
    told.took_in({0: 1}, headers=TableWritten(2), days=TableWritten(1))
    told.took_in({0: 2}, headers=TableWritten(3), days=TableWritten(1))
    told.runs.pass_ended(dropped=("old",))
    start, complete = told.events()
    # What was written to a table aside, before it has joined the others, was not counted.
    assert outputs(complete, "outputStatistics") == {"/srv/accounts.db.headers": {"rowCount": 5}}
    assert outputs(complete, "lifecycleStateChange") == {
        "/srv/accounts.db.old": {"lifecycleStateChange": "DROP"}
    }
    assert not outputs(start, "lifecycleStateChange")


def test_a_failure_is_told_with_its_text_and_a_person_who_stops_a_run_aborts_it() -> None:
    told = Told(TABLES.format(target="accounts.db"), Path("/srv"))
    told.runs.failed(CorruptionError("x" * 5_000))  # before anything is known of the cluster
    told.runs.pass_begins()
    told.runs.failed(KeyboardInterrupt())
    told.runs.pass_begins()
    told.begins({})
    told.took_in({0: 7})
    told.runs.failed(KeyboardInterrupt())
    assert told.states() == [("START", "1"), ("FAIL", "1"), ("START", "3"), ("ABORT", "3")]
    start, fail, _, abort = told.events()
    assert (start["inputs"], outputs(fail, "schema")) == ([], {})
    message = fail["run"]["facets"]["errorMessage"]["message"]
    assert (message[:18], len(message)) == ("CorruptionError: x", ERROR_CHARACTERS_MAX)
    assert "errorMessage" not in abort["run"]["facets"]
    assert abort["inputs"][0]["inputFacets"]["waltz_marks"]["end"] == {"0": 7}


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_rebuild_is_told_and_overwrites(is_empty: bool) -> None:
    told = Told(TABLES.format(target="accounts.db"), Path("/srv"), rebuild=True)
    if not is_empty:
        told.begins({})
        told.took_in({0: 7}, headers=TableWritten(2), days=TableWritten(1))
    told.runs.pass_ended()
    assert told.states() == [("START", "1"), ("COMPLETE", "1")]
    start, complete = told.events()
    assert not outputs(start, "lifecycleStateChange")
    assert outputs(complete, "lifecycleStateChange") == {
        f"/srv/accounts.db.{each}": {"lifecycleStateChange": "OVERWRITE"}
        for each in ("headers", "days")
    }


def test_the_archive_is_an_input_only_if_it_has_what_is_read(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive", CLUSTER)
    archive.commit(archive.contents(), [archived(0, 0, 2)])

    def inputs(marks: dict[int, int], *, is_reread: bool = False) -> list[str]:
        told = Told(TABLES.format(target="accounts.db"), tmp_path)
        told.begins(marks, is_reread=is_reread)
        return [each["name"] for each in told.events()[0]["inputs"]]

    assert inputs({0: 1}) == ["log", str(tmp_path / "archive")]
    assert inputs({0: 2}) == ["log"]
    assert inputs({0: 2}, is_reread=True) == ["log", str(tmp_path / "archive")]


def test_an_archive_is_one_data_set_with_the_size_of_its_files() -> None:
    text = "pipeline: archive\ncluster: 127.0.0.1:7100\ntarget: archive\n"
    told = Told(f"{text}lineage: {{namespace: shop, job: log}}\n", Path("/srv"))
    told.begins({})
    told.took_in({0: 7}, **{ARCHIVE: TableWritten(7, 900, 1)})
    told.runs.pass_ended()
    complete = told.events()[1]
    assert outputs(complete, "outputStatistics") == {
        "/srv/archive": {"rowCount": 7, "size": 900, "fileCount": 1}
    }
    names = [each["name"] for each in outputs(complete, "schema")["/srv/archive"]["fields"]]
    assert names == ["partition", "transaction_id", "request_id", "header", "data"]


def test_what_fails_after_a_run_is_complete_is_not_told_of_that_run(tmp_path: Path) -> None:
    told = Told(TABLES.format(target="tables.db"), tmp_path)
    told.runs.pass_begins()
    told.begins({0: 3})
    told.took_in({0: 5})
    told.runs.pass_ended()
    ((_, complete),) = told.states()[1:]
    told.runs.failed(CorruptionError("the log did not answer when it was asked for its end"))
    assert [state for state, run in told.states() if run == complete] == ["START", "COMPLETE"]
    assert told.states()[-1][0] == "FAIL"
