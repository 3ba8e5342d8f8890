"""Idempotency keys in one of Django's databases, noted where `DjangoCallbacks` applies.

Owns the notes, the rows of `IdempotencyKey`; what a key is, and what is forgotten when, is that of
`waltz.IdempotencyKeys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.client.databases.idempotency_keys import (
    KEPT,
    KEYS_PER_STATEMENT,
    KEYS_TABLE,
    KeyedTransaction,
    checked_kept,
    forgotten_up_to,
    hash_of,
    keys_in,
)
from waltz.client.transaction import Transaction
from waltz.ext.django.models import IdempotencyKey
from waltz.ext.django.usable_connection import usable_connection
from waltz.types import PartitionId, TransactionId

FIND: Final = (
    f"SELECT transaction_id, content_hash FROM {KEYS_TABLE}"  # noqa: S608 - a constant's name
    " WHERE partition_id = %s AND key_hash = %s"
)


class DjangoIdempotencyKeys:
    """The notes of keys in the database `using`, for `DjangoCallbacks(keys=...)` and
    `waltz.KeyedContext`; as `waltz.IdempotencyKeys`, in a table that `manage.py migrate` makes.

    A note is kept until `kept` further transactions of its partition have been applied.
    """

    def __init__(self, *, using: str = "default", kept: int = KEPT) -> None:
        """Does not connect yet. Raises LocalProtocolError: `kept` is less than 1,000."""
        self.using = using
        self.kept = checked_kept(kept)

    def find(self, partition_id: int, key: str) -> KeyedTransaction | None:
        """Return the transaction of `partition_id` with this key, if it is applied here and not
        forgotten. Within `atomic()`, and so in a view with `ATOMIC_REQUESTS`, by a connection that
        is opened for it: a snapshot of the request's own one may have begun before the transaction
        was applied. Raises LocalProtocolError: not a key; Django's errors: the database failed.
        """
        arguments = (partition_id, hash_of(key))
        shared = usable_connection(self.using)
        connection = shared.copy() if shared.in_atomic_block else shared
        try:
            with connection.cursor() as cursor:
                cursor.execute(FIND, arguments)
                row = cursor.fetchone()
        finally:
            if connection is not shared:
                connection.close()
        if row is None:
            return None
        return KeyedTransaction(PartitionId(partition_id), TransactionId(row[0]), row[1])

    def note(self, transactions: Sequence[Transaction]) -> None:
        """Note the keys of `transactions`, which are of one partition, dense and in order, in the
        database transaction of this thread, which applies them; forget keys that are too old. A key
        that is noted already keeps its note."""
        partition_id = transactions[0].partition_id
        notes = IdempotencyKey.objects.using(self.using).filter(partition_id=partition_id)
        found = keys_in(transactions)
        asked = list(found)
        for start in range(0, len(asked), KEYS_PER_STATEMENT):
            some = asked[start : start + KEYS_PER_STATEMENT]
            for known in notes.filter(key_hash__in=some).values_list("key_hash", flat=True):
                del found[known]
        IdempotencyKey.objects.using(self.using).bulk_create(
            IdempotencyKey(
                partition_id=partition_id,
                key_hash=key_hash,
                transaction_id=each.transaction_id,
                content_hash=each.content,
            )
            for key_hash, each in found.items()
        )
        last_forgotten = forgotten_up_to(transactions, self.kept)
        if last_forgotten is not None:
            notes.filter(transaction_id__lte=last_forgotten).delete()
