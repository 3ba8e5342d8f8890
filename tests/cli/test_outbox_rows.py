"""`waltz outbox` on an application's database; each kind of database is in
`test_outbox_tables.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.clusters import Said, run_tool
from waltz import ClientId
from waltz.outbox.claim import RelayState
from waltz.outbox.outbox_row import UnfitRow
from waltz.outbox.outbox_tables import OutboxStore, relay_engine

KEY = UUID(int=2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "outbox.yaml"
    file.write_text(
        f"outbox:\n  cluster: 127.0.0.1:1\n  database: sqlite:///{tmp_path / 'app.db'}\n"
    )
    return file


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OutboxStore]:
    """An outbox with a parked row and one that waits behind it."""
    store = OutboxStore(relay_engine(f"sqlite:///{tmp_path / 'app.db'}"), "waltz_outbox")
    store.create()
    with store.engine.begin() as connection:
        for content in (b"first", b"second"):
            row = {"partition_key": "k", "data": content, "locks": '{"append": [["a", 1]]}'}
            connection.execute(store.tables.rows.insert().values(row))
    state = RelayState(UUID(int=1), KEY, 3, clients=(ClientId(4),))
    store.take_over(-1, "host:1", state)
    store.settle(0, state, [], [UnfitRow(1, "k", "[a lock] was taken")])
    yield store
    store.engine.dispose()


def asked(*arguments: str | Path) -> Said:
    said = run_tool("outbox", *arguments)
    assert said.code == 0, said.err
    return said


def test_status_tells_what_the_database_says(file: Path, store: OutboxStore) -> None:
    found = asked("status", file, "--json").json
    assert found == {
        "outbox": "waltz_outbox",
        "holder": "host:1",
        "cluster_key": str(KEY),
        "partition_count": 3,
        "claimed": 0,
        "waiting": 1,
        "parked": 1,
    }
    assert "holder: host:1" in asked("status", file).out


def test_an_outbox_without_a_relay_has_no_cluster(file: Path, tmp_path: Path) -> None:
    store = OutboxStore(relay_engine(f"sqlite:///{tmp_path / 'app.db'}"), "waltz_outbox")
    store.create()
    found = asked("status", file, "--json").json
    assert found["holder"] is found["cluster_key"] is found["partition_count"] is None
    assert asked("parked", file).out == "none\n"
    store.engine.dispose()


def test_parked_rows_are_listed_with_their_reasons(file: Path, store: OutboxStore) -> None:
    (found,) = asked("parked", file, "--json").json
    assert (found["id"], found["key"], found["bytes"]) == (1, "k", 5)
    assert found["reason"] == "[a lock] was taken"
    assert "[a lock] was taken" in asked("parked", file).out


def test_a_parked_row_comes_back_with_other_locks_or_none(file: Path, store: OutboxStore) -> None:
    asked("retry", file, "1", "--locks", '{"append": [["b", 2]]}')
    assert [each.row_id for each in store.look((), 9, 99)] == [1, 2]
    assert store.load([1])[0].locks == '{"append": [["b", 2]]}'
    said = run_tool("outbox", "retry", file, "1")
    assert (said.code, "is not parked" in said.err) == (1, True)


def test_a_parked_row_comes_back_without_locks(file: Path, store: OutboxStore) -> None:
    asked("retry", file, "1", "--without-locks")
    assert store.load([1])[0].locks is None


def test_a_parked_row_is_deleted_for_good(file: Path, store: OutboxStore) -> None:
    asked("drop", file, "1", "--yes")
    assert store.parked() == []
    assert [each.row_id for each in store.look((), 9, 99)] == [2]


@pytest.mark.parametrize("command", [("retry",), ("drop", "--yes")])
def test_a_number_that_no_row_has_is_refused(
    file: Path, store: OutboxStore, command: tuple[str, ...]
) -> None:
    name, *options = command
    for number, code in ((str(2**63 - 1), 1), (str(2**63), 2), ("9" * 30, 2)):
        said = run_tool("outbox", name, file, number, *options)
        assert said.code == code, said.err
    assert len(store.parked()) == 1


def test_locks_that_no_relay_would_take_are_refused(file: Path, store: OutboxStore) -> None:
    for locks in ("{", '{"write": [["a", 1]]}'):
        said = run_tool("outbox", "retry", file, "1", "--locks", locks)
        assert said.code == 2, locks
    assert run_tool("outbox", "retry", file, "1", "--locks", "{}", "--without-locks").code == 2
    assert len(store.parked()) == 1


def test_the_database_may_be_named_by_the_environment(
    tmp_path: Path, store: OutboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("outbox.cluster: 127.0.0.1:1\n")
    said = run_tool("outbox", "status", file)
    assert (said.code, "WALTZ_DATABASE" in said.err) == (1, True)
    monkeypatch.setenv("WALTZ_DATABASE", f"sqlite:///{tmp_path / 'app.db'}")
    assert asked("status", file, "--json").json["waiting"] == 1


def test_a_database_without_an_outbox_is_told(file: Path, tmp_path: Path) -> None:
    said = run_tool("outbox", "status", file)
    assert (said.code, "no table waltz_outbox" in said.err) == (1, True)


def test_a_database_that_fails_is_told(tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text("outbox.cluster: h:1\noutbox.database: sqlite:////nowhere/app.db\n")
    said = run_tool("outbox", "status", file)
    assert (said.code, "the database failed" in said.err) == (1, True)


def test_the_statements_are_printed_for_a_dialect() -> None:
    said = asked("ddl", "postgresql", "--table", "box")
    assert said.out.count("CREATE TABLE box") == 3
    assert said.out.count(";") == 4
