"""`waltz parked` on an application's database; each kind of database is in `test_sql_tables.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql
from click.testing import CliRunner, Result

from tests.client.sql_applications import APPLIED, P0, Applying, rows, transactions
from waltz.cli.commands import waltz
from waltz.errors import ConfigurationError, NotFoundError


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def application(url: str) -> Iterator[Applying]:
    """One that waits for transaction 1, after it has parked transaction 0."""
    engine = sql.create_engine(url)
    APPLIED.metadata.create_all(engine)
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    (one,) = transactions(0, 1)
    one.provide_data(b"[not] json\n")
    callbacks.park(one, ValueError("[no] such thing"))
    yield callbacks
    engine.dispose()


Run = Callable[..., Result]


@pytest.fixture
def run(url: str) -> Run:
    def run(*arguments: str, **options: str) -> Result:
        environment = {"WALTZ_DATABASE": options.get("url", url)}
        return CliRunner().invoke(waltz, ["parked", *arguments], env=environment)

    return run


AT = ("-p", "0", "-t")


def test_what_is_parked_is_listed_and_shown(application: Applying, run: Run) -> None:
    listed = run("list")
    assert listed.exit_code == 0
    assert "ValueError: [no]" in listed.output
    (entry,) = json.loads(run("list", "--json").output)
    assert entry["parked_at"].startswith("20")
    del entry["parked_at"]
    assert entry == {
        "partition": 0,
        "transaction": 0,
        "request_id": str(transactions(0, 1)[0].request_id),
        "header": 0,
        "bytes": 11,
        "state": "parked",
        "error": "ValueError: [no] such thing",
    }
    shown = run("show", *AT, "0").output
    assert r"data: '[not] json\n'" in shown
    assert json.loads(run("show", *AT, "0", "--json").output)["data_hex"] == b"[not] json\n".hex()


def test_the_next_transaction_is_skipped_and_no_other(application: Applying, run: Run) -> None:
    assert "only that can be skipped" in str(run("skip", *AT, "7").exception)
    done = run("skip", *AT, "1", "--reason", "ticket 5")
    assert done.output == "partition 0 continues after transaction 1\n"
    assert Applying(application.engine).get_client_high_water_mark(P0) == 1
    entry = json.loads(run("list", "--json").output)[1]
    assert (entry["transaction"], entry["bytes"], entry["error"]) == (1, None, "ticket 5")
    assert "in the log only" in run("show", *AT, "1").output
    assert "unknown" in run("list").output
    assert "skipped without its data" in str(run("retry", *AT, "1").exception)


def test_a_parked_transaction_is_applied_when_the_application_starts_next(
    application: Applying, run: Run
) -> None:
    assert run("retry", *AT, "0").exit_code == 0
    assert json.loads(run("list", "--json").output)[0]["state"] == "retry"
    assert rows(application.engine) == []
    Applying(application.engine).get_client_high_water_mark(P0)
    assert rows(application.engine) == [0]
    assert run("list").output == "none\n"


def test_a_parked_transaction_is_forgotten_after_a_question(
    application: Applying, run: Run
) -> None:
    assert run("drop", *AT, "0").exit_code == 1
    assert run("list").output != "none\n"
    assert run("drop", *AT, "0", "--yes").exit_code == 0
    assert run("list").output == "none\n"
    missing = run("drop", *AT, "0", "--yes").exception
    assert isinstance(missing, NotFoundError)


def test_an_application_that_has_parked_nothing_has_nothing_to_show(url: str, run: Run) -> None:
    engine = sql.create_engine(url)
    Applying(engine).get_client_high_water_mark(P0)
    engine.dispose()
    assert run("list").output == "none\n"
    assert json.loads(run("list", "--json").output) == []
    assert "no transaction is parked in that database" in str(run("show", *AT, "0").exception)


def test_a_database_that_is_none_of_ours_is_left_alone(tmp_path: Path, run: Run) -> None:
    for url, said in (
        ("no URL", "expected an SQLAlchemy URL"),
        ("nodb://x", "expected an SQLAlchemy URL"),
        (f"sqlite:///{tmp_path / 'other.db'}", "there is no table waltz_high_water_marks"),
    ):
        error = run("list", url=url).exception
        assert isinstance(error, ConfigurationError)
        assert said in str(error)
    assert "--database" in CliRunner().invoke(waltz, ["parked", "list"]).output


def test_a_database_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    said = run("list", url=f"sqlite:///{tmp_path / 'typo.db'}")
    assert isinstance(said.exception, ConfigurationError)
    assert [*tmp_path.iterdir()] == []
