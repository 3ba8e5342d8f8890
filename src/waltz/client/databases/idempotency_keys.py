"""Idempotency keys: a transaction that is asked for twice by one key is in the log once.

    keys = waltz.IdempotencyKeys(engine)

    class PlaceOrder(waltz.KeyedContext):
        def execute_once(self, builder):
            builder.set_data(self.content)
            return True

    with waltz.open_client(cluster, Orders(engine, keys=keys)) as client:
        client.submit(PlaceOrder(keys, request.headers["Idempotency-Key"], 0, request.body))

The key's hash travels in an envelope of the data. Each process that applies the transaction to a
database notes the key there, in the database transaction that applies it; and the transaction has a
write lock on the key. So a second one is either refused for the lock, and executed again when the
first one is applied here, or finds the note. Owns the table of notes. SQLAlchemy is imported when
an IdempotencyKeys is made.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

from waltz.client.transaction import (
    PartitionLocalLock,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.envelope import enclosed, opened
from waltz.errors import IdempotencyKeyReusedError, LocalProtocolError
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

KEYS_TABLE: Final = "waltz_keys"
KEY_CHARACTERS_MAX: Final = 1024
"""A key is kept as a hash; longer ones are mistakes."""

KEPT: Final = 1_000_000
"""Transactions of a partition for which a key is remembered, unless the application says."""

KEPT_MIN: Final = 1_000
"""A context that was refused for its key's lock has to find the note once its client, which may lag
behind other processes of the same database, has applied the transaction."""

KEYS_PER_STATEMENT: Final = 500
"""Keys of one question: databases bound the parameters of a statement."""

HASH_CHARACTERS: Final = 64

TIDY_EVERY: Final = 1_000
"""Transactions between two deletions of old notes."""

LOCK_NAME: Final = "waltz-key"
KEY_FIELD: Final = "idempotency-key"
CONTENT_FIELD: Final = "idempotency-content"
"""Names in the envelope; each value is a SHA-256 in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class KeyedTransaction:
    """The transaction that has a key; `content` is the SHA-256 of what was asked for, None if the
    application gave none."""

    partition_id: PartitionId
    transaction_id: TransactionId
    content: str | None


class NotedKeys(Protocol):
    """The notes of keys in a database: `IdempotencyKeys`, or those of a framework."""

    def find(self, partition_id: int, key: str) -> KeyedTransaction | None:
        """Return the transaction of `partition_id` with this key, if it is applied here and not
        forgotten. It must see all that is committed: the snapshot of a database transaction that
        has begun before shows too little. Raises LocalProtocolError: not a key; what the database
        raises."""
        ...


class IdempotencyKeys:
    """The notes of keys in an application's database, next to what the transactions have changed.

    Give it to `SqlCallbacks(engine, keys=...)`, which then fetches the data of every transaction.
    A note is kept until `kept` further transactions of its partition have been applied: by the log,
    not by a clock, so that a pause does not shorten it. A key that comes again after that makes a
    second transaction.
    """

    def __init__(self, engine: Engine, *, table_name: str = KEYS_TABLE, kept: int = KEPT) -> None:
        """Does not connect yet. Raises LocalProtocolError: `kept` is less than `KEPT_MIN`."""
        import sqlalchemy as sql

        self.engine = engine
        self.kept = checked_kept(kept)
        self.table = sql.Table(
            table_name,
            sql.MetaData(),
            sql.Column("partition_id", sql.Integer, primary_key=True, autoincrement=False),
            sql.Column("key_hash", sql.String(HASH_CHARACTERS), primary_key=True),
            sql.Column("transaction_id", sql.BigInteger, nullable=False),
            sql.Column("content_hash", sql.String(HASH_CHARACTERS)),
            sql.Index(f"{table_name}_by_transaction", "partition_id", "transaction_id"),
        )

    def find(self, partition_id: int, key: str) -> KeyedTransaction | None:
        """Return the transaction of `partition_id` with this key, if it is applied here and not
        forgotten. Raises LocalProtocolError: not a key; SQLAlchemy's errors: the database failed.
        """
        columns = self.table.c
        wanted = self.table.select().where(
            columns.partition_id == partition_id, columns.key_hash == hash_of(key)
        )
        with self.engine.connect() as connection:
            row = connection.execute(wanted).mappings().first()
        if row is None:
            return None
        return KeyedTransaction(
            PartitionId(partition_id), TransactionId(row["transaction_id"]), row["content_hash"]
        )

    def create_table(self) -> None:
        """Create the table unless it exists; outside of transactions: MySQL commits before it."""
        from waltz.client.databases.sql_tables import create_table

        create_table(self.table, self.engine)

    def note(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        """Note the keys of `transactions`, which are of one partition, dense and in order, in the
        database transaction that applies them; forget keys that are too old.

        If a key is noted already, the note stays: this is the case for a transaction that was
        written after the key had been forgotten elsewhere.
        """
        table, partition_id = self.table, transactions[0].partition_id
        found = keys_in(transactions)
        asked = list(found)
        for start in range(0, len(asked), KEYS_PER_STATEMENT):
            some = asked[start : start + KEYS_PER_STATEMENT]
            known = table.select().where(
                table.c.partition_id == partition_id, table.c.key_hash.in_(some)
            )
            for each in connection.execute(known).mappings():
                del found[each["key_hash"]]
        if found:
            rows = [
                {
                    "partition_id": partition_id,
                    "key_hash": key_hash,
                    "transaction_id": each.transaction_id,
                    "content_hash": each.content,
                }
                for key_hash, each in found.items()
            ]
            connection.execute(table.insert(), rows)
        last_forgotten = forgotten_up_to(transactions, self.kept)
        if last_forgotten is not None:
            connection.execute(
                table.delete().where(
                    table.c.partition_id == partition_id,
                    table.c.transaction_id <= last_forgotten,
                )
            )


def checked_kept(kept: int) -> int:
    """Return the number. Raises LocalProtocolError: it is less than `KEPT_MIN`."""
    if kept < KEPT_MIN:
        raise LocalProtocolError(f"keys kept for {kept} transactions; expected at least {KEPT_MIN}")
    return kept


def keys_in(transactions: Sequence[Transaction]) -> dict[str, KeyedTransaction]:
    """Return the first transaction that has each key, by the key's hash."""
    found: dict[str, KeyedTransaction] = {}
    for each in transactions:
        values = opened(each.data).values
        key_hash, content_hash = values.get(KEY_FIELD, ""), values.get(CONTENT_FIELD, "")
        if len(key_hash) == HASH_CHARACTERS:
            content = content_hash if len(content_hash) == HASH_CHARACTERS else None
            keyed = KeyedTransaction(each.partition_id, each.transaction_id, content)
            found.setdefault(key_hash, keyed)
    return found


def forgotten_up_to(transactions: Sequence[Transaction], kept: int) -> TransactionId | None:
    """Return the last transaction whose key goes when these are applied; None: old notes stay until
    a later batch, since they are deleted once per TIDY_EVERY transactions."""
    first, last = transactions[0].transaction_id, transactions[-1].transaction_id
    if first // TIDY_EVERY == (last + 1) // TIDY_EVERY:
        return None
    return TransactionId(last - kept)


class KeyedContext(TransactionContext):
    """A transaction that is in the log at most once, however often it is asked for by its key.

    A subclass has `execute_once`. If the key is in the log already, nothing is written:
    `on_completion(False)` is called, and `first` has the transaction that has the key. Otherwise
    `on_completion(True)` is called as for any context, and `keys.find` returns the transaction once
    it is applied.
    """

    first: KeyedTransaction | None = None
    """The transaction that has the key, if it was found when this context was executed."""

    def __init__(
        self, keys: NotedKeys, key: str, partition: int, content: bytes | None = None
    ) -> None:
        """`partition` must be the same for all repeats of the key, whatever number of partitions
        the log has by then: keys hold within a partition, as locks do. `content` is what is asked
        for, such as the body of a request: it is compared with that of the transaction that has the
        key. Raises LocalProtocolError: not a key."""
        self.keys = keys
        self.key = key
        self.partition = partition
        self.content = content
        self._key_hash = hash_of(key)
        self._content_hash = None if content is None else hashlib.sha256(content).hexdigest()

    @final
    def partition_id(self, partition_count: int) -> int:
        return self.partition

    @abstractmethod
    def execute_once(self, builder: TransactionBuilder) -> bool:
        """Fill `builder`, or return False, as in `TransactionContext.execute`. The client calls
        this method only while no transaction with the key is applied here."""

    @final
    def execute(self, builder: TransactionBuilder) -> bool:
        """Find the transaction with the key, or write one.

        Raises IdempotencyKeyReusedError: the transaction that has the key is of another content;
        and what `execute_once` or the database raise. With each of them nothing is written.
        """
        self.first = self.keys.find(self.partition, self.key)
        if self.first is not None:
            self._expect_same(self.first)
            return False
        if not self.execute_once(builder):
            return False
        values, data = opened(builder.data)
        mine = {KEY_FIELD: self._key_hash}  # first: what is too long is left out at the end
        if self._content_hash is not None:
            mine[CONTENT_FIELD] = self._content_hash
        # A transaction that is passed on as it came has the key of another one.
        others = {name: values[name] for name in values if name not in (KEY_FIELD, CONTENT_FIELD)}
        builder.set_data(enclosed({**mine, **others}, data))
        lock = PartitionLocalLock(LOCK_NAME, _lock_number(self._key_hash))
        builder.set_write_locks([*builder.checked.get("write", ()), lock])
        return True

    def _expect_same(self, first: KeyedTransaction) -> None:
        mine = self._content_hash
        if mine is not None and first.content is not None and mine != first.content:
            raise IdempotencyKeyReusedError(
                f"transaction {first.transaction_id} of partition {first.partition_id} has this"
                " idempotency key and another content; a new request needs a new key"
            )


def hash_of(key: str) -> str:
    """Return the hash by which a key is kept: all databases compare hexadecimal digits alike.
    Raises LocalProtocolError: not a key."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise LocalProtocolError(
            f"an idempotency key has 1 to {KEY_CHARACTERS_MAX} characters; this one has"
            f" {len(key) if isinstance(key, str) else type(key).__name__}"
        )
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _lock_number(key_hash: str) -> int:
    """Return the number of the lock. Keys whose locks are equal wait for each other, and nothing
    worse: the notes tell them apart."""
    return int.from_bytes(bytes.fromhex(key_hash[:16]), "big", signed=True)
