"""A process that asks for transactions by keys, in order, and prints the ID that each key has.

python -m tests.client.keyed_writer COORDINATOR DATABASE_URL FIRST END

Owns no judgement: the test kills the process and reads the log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future

import sqlalchemy as sql

import waltz
from tests.client.sql_applications import new_engine

PARTITION = 1


class Nothing(waltz.SqlCallbacks):
    """Keeps nothing but the marks and the keys."""

    def apply(self, connection: sql.Connection, transactions: Sequence[waltz.Transaction]) -> None:
        pass


class Asked(waltz.KeyedContext):
    """Writes what was asked for; `ended` has whether this context has written it."""

    timeout_seconds = 60.0

    def __init__(
        self, keys: waltz.NotedKeys, key: str, content: bytes, partition: int = PARTITION
    ) -> None:
        super().__init__(keys, key, partition, content)
        self.ended: Future[bool] = Future()

    def execute_once(self, builder: waltz.TransactionBuilder) -> bool:
        assert self.content is not None
        builder.set_data(self.content)
        return True

    def on_completion(self, result: bool) -> None:
        if not result:
            self.ended.set_result(False)

    def on_application(self) -> None:
        self.ended.set_result(True)

    def on_expiration(self) -> None:
        self.ended.set_exception(TimeoutError())

    def on_exception(self, error: Exception) -> None:
        self.ended.set_exception(error)


def asked(client: waltz.WaltzClient, context: Asked) -> tuple[int, bool]:
    """Return the transaction that has the key, and whether this context has written it."""
    client.submit(context)
    is_new = context.ended.result(60)
    found = context.keys.find(context.partition, context.key)
    assert found is not None
    assert is_new or context.first == found
    return found.transaction_id, is_new


def main(coordinator: str, url: str, first: str, end: str) -> None:
    engine = new_engine(url)
    keys = waltz.IdempotencyKeys(engine)
    with waltz.open_client(coordinator, Nothing(engine, keys=keys)) as client:
        for number in range(int(first), int(end)):
            context = Asked(keys, f"key {number}", b'{"key": %d}' % number)
            transaction_id, _ = asked(client, context)
            print(number, transaction_id, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
