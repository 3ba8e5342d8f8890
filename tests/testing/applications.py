"""Counters as an application: each transaction adds one to a counter, under its lock."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from waltz import (
    AsyncWaltzClient,
    JsonSerializer,
    PartitionLocalLock,
    Transaction,
    TransactionBuilder,
    TransactionContext,
    WaltzClientCallbacks,
)
from waltz.testing import SimulatedApplication
from waltz.testing.application_simulation import Log

JSON = JsonSerializer()


class Database:
    """What outlives a process."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.values: Counter[int] = Counter()
        self.applied = 0


class Counters(WaltzClientCallbacks):
    def __init__(self, database: Database) -> None:
        self.database = database

    def get_client_high_water_mark(self, partition_id: int) -> int:
        return self.database.marks.get(partition_id, -1)

    def apply_transaction(self, transaction: Transaction) -> None:
        number, value = transaction.get_transaction_data(JSON)
        self.database.values[number] = value
        self.database.applied += 1
        self.database.marks[transaction.partition_id] = transaction.transaction_id


class Count(TransactionContext):
    """Decides on what has been applied: with a lock nobody else can have been faster."""

    def __init__(self, database: Database, number: int, *, locks: bool = True) -> None:
        self.database = database
        self.number = number
        self.locks = locks
        self.executions = 0
        self.lock_failures = 0
        self.completions: list[bool] = []

    def partition_id(self, partition_count: int) -> int:
        return self.number % partition_count

    def execute(self, builder: TransactionBuilder) -> bool:
        self.executions += 1
        if self.locks:
            builder.set_write_locks([PartitionLocalLock("counter", self.number)])
        builder.set_transaction_data([self.number, self.database.values[self.number] + 1], JSON)
        return True

    def on_lock_failure(self, transaction_id: int) -> None:
        self.lock_failures += 1

    def on_completion(self, result: bool) -> None:
        self.completions.append(result)


class Counting(SimulatedApplication):
    """Right in every way."""

    locks = True

    def __init__(self, name: str) -> None:
        self.database = Database()

    def callbacks(self) -> WaltzClientCallbacks:
        return Counters(self.database)

    async def work(self, client: AsyncWaltzClient, random: Random) -> None:
        for _ in range(12):
            await client.submit(Count(self.database, random.randrange(3), locks=self.locks))
            await asyncio.sleep(random.choice((0.0, 0.0, random.uniform(0.0, 5.0))))

    def check(self, log: Log) -> None:
        logged = [JSON.deserialize(fed.data)[0] for each in log.values() for fed in each]
        assert self.database.applied == len(logged), "applied each once"
        assert self.database.values == Counter(logged), "an addition is lost"


class WithoutLocks(Counting):
    """Wrong: two clients may add to the same value."""

    locks = False


class _Forgetful(Counters):
    def get_client_high_water_mark(self, partition_id: int) -> int:
        return self.database.marks.get(partition_id, -1) // 3 * 3


class Forgetful(Counting):
    """Wrong: it remembers only every third mark."""

    def callbacks(self) -> WaltzClientCallbacks:
        return _Forgetful(self.database)


class _Hasty(Counters):
    """Wrong: what is changed before the mark is there is changed again after a death between."""

    def apply_transaction(self, transaction: Transaction) -> None:
        self.database.applied += 1
        number, value = transaction.get_transaction_data(JSON)
        self.database.values[number] = value
        self.database.marks[transaction.partition_id] = transaction.transaction_id


class Hasty(Counting):
    def callbacks(self) -> WaltzClientCallbacks:
        return _Hasty(self.database)


class _Poisoned(Counters):
    def apply_transaction(self, transaction: Transaction) -> None:
        if transaction.transaction_id == 3:
            raise ValueError("three is too many")
        super().apply_transaction(transaction)


class Poisoned(Counting):
    """Wrong: it cannot apply all that it writes."""

    def callbacks(self) -> WaltzClientCallbacks:
        return _Poisoned(self.database)
