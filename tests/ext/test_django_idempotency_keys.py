"""DjangoIdempotencyKeys: the tests of IdempotencyKeys on Django's connection, and the snapshots of
requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sql
from django.db import connections, transaction

import waltz
from tests.client import test_idempotency_keys
from tests.client.conftest import OpenEngine
from tests.client.keyed_writer import Asked, asked
from tests.client.test_idempotency_keys import keyed
from tests.clusters import ROOT, wait_until
from tests.ext.conftest import KINDS
from tests.ext.django_project import alias_of, migrate
from waltz.client.databases.idempotency_keys import KEPT, KEPT_MIN, KEYS_TABLE
from waltz.errors import ConfigurationError, LocalProtocolError
from waltz.ext.django.django_callbacks import DjangoCallbacks
from waltz.ext.django.django_idempotency_keys import DjangoIdempotencyKeys
from waltz.testing import InMemoryCluster

BY_VALUE = [
    test_idempotency_keys.test_a_key_leads_to_the_first_transaction_that_had_it,
    test_idempotency_keys.test_a_large_batch_is_noted_at_once,
    test_idempotency_keys.test_a_key_is_forgotten_by_the_log_and_not_by_a_clock,
    test_idempotency_keys.test_a_repeated_key_gets_the_first_transaction_and_another_content_an_error,
    test_idempotency_keys.test_the_key_of_a_parked_transaction_is_known,
]


class Keys(DjangoIdempotencyKeys):
    """Made and looked at as IdempotencyKeys are."""

    table = sql.table(KEYS_TABLE)

    def __init__(self, engine: sql.Engine, *, kept: int = KEPT) -> None:
        super().__init__(using=alias_of(engine.url), kept=kept)
        self.engine = engine

    def create_table(self) -> None:
        migrate(self.engine.url)


class Nothing(DjangoCallbacks):
    """Keeps nothing but the marks and the keys; a subclass may have the `apply` of SqlCallbacks."""

    def __init__(self, engine: sql.Engine, *, keys: DjangoIdempotencyKeys | None = None) -> None:
        super().__init__(using=alias_of(engine.url), keys=keys)

    def apply(self, *given: Sequence[waltz.Transaction]) -> None:
        pass


class OfSqlCallbacks(Nothing):
    """Calls the `apply` of a subclass with a connection that is none."""

    def __init_subclass__(cls) -> None:
        applied = cls.apply
        cls.apply = lambda self, transactions: applied(self, None, transactions)  # type: ignore


def noted(keys: Keys, transactions: Sequence[waltz.Transaction]) -> None:
    with transaction.atomic(using=keys.using):
        keys.note(transactions)


@pytest.fixture(autouse=True)
def on_django(monkeypatch: pytest.MonkeyPatch, engine: sql.Engine) -> None:
    """Let the tests of IdempotencyKeys make DjangoIdempotencyKeys."""
    monkeypatch.setattr(waltz, "IdempotencyKeys", Keys)
    monkeypatch.setattr(test_idempotency_keys, "Nothing", OfSqlCallbacks)
    monkeypatch.setattr(test_idempotency_keys, "noted", noted)
    migrate(engine.url)


def named(test: Callable[..., None]) -> str:
    return test.__name__.removeprefix("test_")


@pytest.mark.parametrize("test", BY_VALUE, ids=named)
def test_what_idempotency_keys_do_is_done(
    engine: sql.Engine, test: Callable[[sql.Engine], None]
) -> None:
    test(engine)


def test_processes_that_race_with_one_key_write_it_once_and_get_one_answer(
    open_engine: OpenEngine,
) -> None:
    test_idempotency_keys.test_processes_that_race_with_one_key_write_it_once_and_get_one_answer(
        open_engine
    )


@pytest.mark.parametrize("database", KINDS[1:], indirect=True)
def test_a_key_is_found_though_the_snapshot_of_the_request_is_older(engine: sql.Engine) -> None:
    """A view with ATOMIC_REQUESTS at REPEATABLE READ has read before another process writes."""
    keys = Keys(engine)
    connection = connections[keys.using]
    level = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    count = f"SELECT count(*) FROM {KEYS_TABLE}"
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Nothing(engine, keys=keys))
        if connection.vendor == "mysql":
            connection.cursor().execute(level)
        with transaction.atomic(using=keys.using):
            cursor = connection.cursor()
            if connection.vendor == "postgresql":
                cursor.execute(level)
            cursor.execute(count)
            assert cursor.fetchone() == (0,)
            other = cluster.open_client(Nothing(engine, keys=keys))
            assert asked(other, Asked(keys, "one", b"{}", 0)) == (0, True)
            client.wait_until_applied()
            assert asked(client, Asked(keys, "one", b"{}", 0)) == (0, False)
            cursor.execute(count)
            assert cursor.fetchone() == (0,), "the snapshot was not older: nothing was shown"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_program_of_the_page_runs(engine: sql.Engine) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (program,) = re.findall(r"```python\n([^`]*DjangoIdempotencyKeys\(\).*?)```", page, re.DOTALL)
    program = program.replace("Keys()", f"Keys(using={alias_of(engine.url)!r})")
    names: dict[str, Any] = {"Notes": partial(Nothing, engine)}
    exec(program.replace("-> Notes", ""), names)
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(names["callbacks"]())
        keys = names["KEYS"]
        client.submit(names["AddNote"](keys, "a key", 0, b"body"))
        wait_until(lambda: keys.find(0, "a key") is not None, "the key is not noted")
        client.submit(names["AddNote"](keys, "a key", 0, b"body"))
        client.flush()
        assert client.get_high_water_mark(0) == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_cannot_be_kept_is_refused(engine: sql.Engine) -> None:
    with pytest.raises(LocalProtocolError, match="expected at least 1000"):
        DjangoIdempotencyKeys(kept=KEPT_MIN - 1)
    with pytest.raises(LocalProtocolError, match="are in the database 'default', and what is"):
        Nothing(engine, keys=DjangoIdempotencyKeys())
    keys = Keys(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {KEYS_TABLE}")
    callbacks = Nothing(engine, keys=keys)
    with pytest.raises(ConfigurationError, match=f"has no table {KEYS_TABLE}: run"):
        callbacks.get_client_high_water_mark(keyed(0, None).partition_id)
    assert Nothing(engine).get_client_high_water_mark(keyed(0, None).partition_id) == -1
