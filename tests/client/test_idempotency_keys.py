"""Idempotency keys: by value on real databases, with clients that race, and in killed processes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sql

import waltz
from tests.client.conftest import OpenEngine
from tests.client.keyed_writer import PARTITION, Asked, Nothing, asked
from tests.client.sql_applications import P0
from tests.client.sql_processes import in_threads
from tests.clusters import ROOT, running_cluster, wait_until
from waltz.client.databases import idempotency_keys
from waltz.client.databases.idempotency_keys import KEPT_MIN, TIDY_EVERY
from waltz.client.transaction import Transaction
from waltz.envelope import enclosed, opened
from waltz.errors import IdempotencyKeyReusedError, LocalProtocolError
from waltz.testing import InMemoryCluster
from waltz.types import ClientId, Generation, RequestId, TransactionId

FIRST = RequestId(ClientId(1), Generation(1), P0, 1)


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def keyed(number: int, key: str | None, content: str | None = None) -> Transaction:
    """A transaction as it is applied, with the key in its envelope as the log has it."""
    values = {} if key is None else {"idempotency-key": hashed(key)}
    if content is not None:
        values["idempotency-content"] = hashed(content)
    data = enclosed(values, b"data") if values else b"data"
    return Transaction(FIRST, TransactionId(number), 0, data, lambda _, __: data)


def noted(keys: waltz.IdempotencyKeys, transactions: Sequence[Transaction]) -> None:
    with keys.engine.begin() as connection:
        keys.note(connection, transactions)


def test_a_key_leads_to_the_first_transaction_that_had_it(engine: sql.Engine) -> None:
    keys = waltz.IdempotencyKeys(engine)
    keys.create_table()
    keys.create_table()
    noted(keys, [keyed(0, "a", "x"), keyed(1, None), keyed(2, "b"), keyed(3, "a", "y")])
    noted(keys, [keyed(4, "b"), keyed(5, "A")])
    assert keys.find(0, "a") == waltz.KeyedTransaction(P0, TransactionId(0), hashed("x"))
    assert keys.find(0, "b") == waltz.KeyedTransaction(P0, TransactionId(2), None)
    assert keys.find(0, "A") == waltz.KeyedTransaction(P0, TransactionId(5), None)
    assert keys.find(0, "c") is None
    assert keys.find(1, "a") is None, "keys are of one partition"


def test_a_large_batch_is_noted_at_once(engine: sql.Engine) -> None:
    keys = waltz.IdempotencyKeys(engine)
    keys.create_table()
    batch = [keyed(number, f"key {number % 1700}") for number in range(2000)]
    noted(keys, batch[:900])
    noted(keys, batch[900:])
    with engine.connect() as connection:
        assert connection.execute(
            sql.select(sql.func.count()).select_from(keys.table)
        ).scalar() == (1700)
    assert all(
        (found := keys.find(0, f"key {number}")) and found.transaction_id == number
        for number in (0, 899, 900, 1699)
    )


def test_a_key_is_forgotten_by_the_log_and_not_by_a_clock(engine: sql.Engine) -> None:
    keys = waltz.IdempotencyKeys(engine, kept=KEPT_MIN)
    keys.create_table()
    noted(keys, [keyed(0, "old"), keyed(1, "later")])
    for number in range(2, KEPT_MIN):
        noted(keys, [keyed(number, None)])
    assert keys.find(0, "old") is not None
    noted(keys, [keyed(number, None) for number in range(KEPT_MIN, KEPT_MIN + TIDY_EVERY)])
    assert keys.find(0, "old") is None
    assert keys.find(0, "later") is None
    noted(keys, [keyed(KEPT_MIN + TIDY_EVERY, "old")])
    found = keys.find(0, "old")
    assert found is not None
    assert found.transaction_id == KEPT_MIN + TIDY_EVERY


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    engine = sql.create_engine("sqlite://")
    keys = waltz.IdempotencyKeys(engine)
    for wrong in ("", "x" * 1025, b"key"):
        with pytest.raises(LocalProtocolError, match="1 to 1024 characters"):
            keys.find(0, wrong)  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError, match="1 to 1024 characters"):
            Asked(keys, wrong, b"")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="expected at least 1000"):
        waltz.IdempotencyKeys(engine, kept=KEPT_MIN - 1)
    with pytest.raises(LocalProtocolError, match="give both one engine"):
        Nothing(sql.create_engine("sqlite://"), keys=keys)


def log_of(cluster: InMemoryCluster) -> list[bytes]:
    with cluster.open_reader() as log:
        return [
            data for columns in log.read(0, 0, log.high_water_mark(0) + 1) for data in columns.data
        ]


def test_a_repeated_key_gets_the_first_transaction_and_another_content_an_error(
    engine: sql.Engine,
) -> None:
    keys = waltz.IdempotencyKeys(engine)
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Nothing(engine, keys=keys))
        client.append(0, b"without a key")
        assert asked(client, Asked(keys, "one", b"{}", 0)) == (1, True)
        assert asked(client, Asked(keys, "one", b"{}", 0)) == (1, False)
        assert asked(client, Asked(keys, "two", b"{}", 0)) == (2, True)
        with pytest.raises(IdempotencyKeyReusedError, match="transaction 1 of partition 0 has"):
            asked(client, Asked(keys, "one", b"[]", 0))
        client.close()
        # Another process, after a restart, with the same database.
        other = cluster.open_client(Nothing(engine, keys=waltz.IdempotencyKeys(engine)))
        assert asked(other, Asked(keys, "one", b"{}", 0)) == (1, False)
        data = log_of(cluster)
    assert [waltz.StringSerializer().deserialize(each) for each in data] == (
        ["without a key", "{}", "{}"]
    )
    assert dict(opened(data[1]).values) == {
        "idempotency-key": hashed("one"),
        "idempotency-content": hashed("{}"),
    }


@pytest.mark.parametrize("content", [None, b"mine"])
def test_data_that_has_another_key_gets_the_key_that_it_is_asked_for_by(
    tmp_path: Path, content: bytes | None
) -> None:
    """A transaction is passed on as it came, from one partition to another."""
    keys = waltz.IdempotencyKeys(sql.create_engine(f"sqlite:///{tmp_path / 'app.db'}"))
    keys.create_table()
    values = {"idempotency-key": hashed("theirs"), "idempotency-content": hashed("of theirs")}
    came = enclosed({**values, "traceparent": "00-7"}, b"data")

    class PassedOn(waltz.KeyedContext):
        def execute_once(self, builder: waltz.TransactionBuilder) -> bool:
            builder.set_data(came)
            return True

    builder = waltz.TransactionBuilder()
    assert PassedOn(keys, "mine", 0, content).execute(builder)
    expected = {"idempotency-key": hashed("mine"), "traceparent": "00-7"}
    if content is not None:
        expected["idempotency-content"] = hashed("mine")
    assert opened(builder.data) == (expected, b"data")
    noted(keys, [Transaction(FIRST, TransactionId(0), 0, builder.data, lambda _, __: b"")])
    assert keys.find(0, "mine") is not None
    assert keys.find(0, "theirs") is None


def test_processes_that_race_with_one_key_write_it_once_and_get_one_answer(
    open_engine: OpenEngine,
) -> None:
    rounds, racers = 12, 3
    answers: list[list[tuple[int, bool]]] = [[] for _ in range(rounds)]
    with InMemoryCluster(for_tests=True) as cluster:

        def race(engine: sql.Engine) -> None:
            keys = waltz.IdempotencyKeys(engine)
            client = cluster.open_client(Nothing(engine, keys=keys))
            for number, found in enumerate(answers):
                found.append(asked(client, Asked(keys, f"key {number}", b"%d" % number, 0)))

        in_threads([partial(race, open_engine()) for _ in range(racers)])
        data = log_of(cluster)
    texts = Counter(opened(each).data for each in data)
    assert texts == Counter(b"%d" % number for number in range(rounds))
    for found in answers:
        assert len({transaction_id for transaction_id, _ in found}) == 1
        assert sum(is_new for _, is_new in found) == 1


def test_keys_whose_locks_are_equal_are_told_apart(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_keys, "_lock_number", lambda key_hash: 7)
    with InMemoryCluster(for_tests=True) as cluster:

        def write(name: str, engine: sql.Engine) -> None:
            keys = waltz.IdempotencyKeys(engine)
            client = cluster.open_client(Nothing(engine, keys=keys))
            for number in range(10):
                _, is_new = asked(client, Asked(keys, f"{name} {number}", name.encode(), 0))
                assert is_new

        in_threads([partial(write, name, open_engine()) for name in ("a", "b")])
        assert Counter(opened(each).data for each in log_of(cluster)) == {b"a": 10, b"b": 10}


def test_the_key_of_a_parked_transaction_is_known(engine: sql.Engine) -> None:
    class Failing(Nothing):
        def apply(
            self, connection: sql.Connection, transactions: Sequence[waltz.Transaction]
        ) -> None:
            if any(opened(each.data).data == b"bad" for each in transactions):
                raise ValueError("never to be applied")

    keys = waltz.IdempotencyKeys(engine)
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(
            Failing(engine, keys=keys), on_apply_failure="park", apply_attempts_max=1
        )
        client.submit(Asked(keys, "one", b"bad", 0))
        wait_until(lambda: client.parked_transactions() == {P0: 1}, "it is not parked")
        assert asked(client, Asked(keys, "one", b"bad", 0)) == (0, False)
        assert len(log_of(cluster)) == 1


def test_the_program_of_the_page_runs(engine: sql.Engine) -> None:
    page = (ROOT / "docs" / "idempotency-keys.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with InMemoryCluster(for_tests=True) as cluster:

        class Opening:
            IdempotencyKeys, KeyedContext = waltz.IdempotencyKeys, waltz.KeyedContext
            open_client = staticmethod(lambda _, callbacks: cluster.open_client(callbacks))

        names: dict[str, object] = {"engine": engine, "Orders": Nothing}
        names |= {"request_key": "one", "request_body": b"{}"}
        exec(program.replace("import waltz\n", ""), names | {"waltz": Opening})
        wait_until(lambda: len(log_of(cluster)) == 1, "nothing was written")
        keys = waltz.IdempotencyKeys(engine)
        wait_until(lambda: keys.find(0, "one") is not None, "it is not applied")


@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_a_process_that_is_killed_and_asks_again_writes_each_key_once(
    tmp_path: Path, kills: int
) -> None:
    random, told, asked_up_to = Random(kills), dict[int, set[int]](), 0
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with running_cluster(tmp_path / "keyed") as cluster:
        for kill in range(kills + 1):
            is_last = kill == kills
            # The last key that was told may have been told twice; later ones may be in the log.
            first = max(0, asked_up_to - 10)
            end = first + 40 if is_last else 1_000_000
            command = [sys.executable, "-m", "tests.client.keyed_writer", cluster.coordinator, url]
            process = subprocess.Popen(
                [*command, str(first), str(end)], stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            assert process.stdout is not None
            dies_after = random.randrange(1, 30)
            for count, line in enumerate(process.stdout, start=1):
                number, transaction_id = map(int, line.split())
                told.setdefault(number, set()).add(transaction_id)
                asked_up_to = max(asked_up_to, number)
                if count == dies_after and not is_last:
                    time.sleep(random.random() / 20)
                    process.kill()
            assert (process.wait(60) == 0) == is_last
        with waltz.open_reader(cluster.coordinator) as log:
            found = [
                (columns.first_transaction_id + place, data[data.rindex(b'{"key": ') :])
                for columns in log.read(PARTITION, 0, log.high_water_mark(PARTITION) + 1)
                for place, data in enumerate(columns.data)
            ]
    assert [data for _, data in found] == [b'{"key": %d}' % each for each in range(len(found))]
    assert told == {number: {transaction_id} for number, (transaction_id, _) in enumerate(found)}
