"""The tables of Waltz as models: marks, transactions that were parked, and idempotency keys.

Owns their fields, which are those of `SqlCallbacks`: tables that it has made are taken over by
`manage.py migrate --fake-initial`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.db import models
from django.db.models.functions import Now

from waltz.client.databases.idempotency_keys import HASH_CHARACTERS, KEYS_TABLE
from waltz.client.databases.stored_marks import (
    HISTORY_CHARACTERS,
    MARKS_TABLE,
    parked_table_name,
)

PARKED_TABLE: Final = parked_table_name(MARKS_TABLE)

PARKED: Final = "parked"
RETRY: Final = "retry"
"""States of a parked transaction: it stays, or is applied when its partition is loaded next."""


class HighWaterMark(models.Model):
    """The last transaction of a partition that was applied to this database."""

    partition_id: models.IntegerField[int, int] = models.IntegerField(primary_key=True)
    high_water_mark: models.BigIntegerField[int, int] = models.BigIntegerField()
    history: models.CharField[str | None, str | None] = models.CharField(
        max_length=HISTORY_CHARACTERS, null=True
    )

    class Meta:
        db_table = MARKS_TABLE
        verbose_name = "high-water mark"

    def __str__(self) -> str:
        return f"partition {self.partition_id}: {self.high_water_mark}"


class ParkedTransaction(models.Model):
    """A transaction that could not be applied, and that the mark has passed."""

    pk: Any = models.CompositePrimaryKey("partition_id", "transaction_id")
    partition_id: models.IntegerField[int, int] = models.IntegerField()
    transaction_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    client_id: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)
    generation: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)
    sequence_number: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)
    header: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)
    data: models.BinaryField[bytes | None, bytes | None] = models.BinaryField(null=True)
    error: models.TextField[str, str] = models.TextField()
    state: models.CharField[str, str] = models.CharField(max_length=16)
    parked_at: Any = models.DateTimeField(null=True, db_default=Now())

    class Meta:
        db_table = PARKED_TABLE

    def __str__(self) -> str:
        return f"transaction {self.transaction_id} of partition {self.partition_id}"


class IdempotencyKey(models.Model):
    """An idempotency key of a transaction that was applied to this database, as its hash."""

    pk: Any = models.CompositePrimaryKey("partition_id", "key_hash")
    partition_id: models.IntegerField[int, int] = models.IntegerField()
    key_hash: models.CharField[str, str] = models.CharField(max_length=HASH_CHARACTERS)
    transaction_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    content_hash: models.CharField[str | None, str | None] = models.CharField(
        max_length=HASH_CHARACTERS, null=True
    )

    class Meta:
        db_table = KEYS_TABLE
        indexes: ClassVar = [
            models.Index(
                fields=["partition_id", "transaction_id"], name=f"{KEYS_TABLE}_by_transaction"
            )
        ]

    def __str__(self) -> str:
        return f"key of transaction {self.transaction_id} of partition {self.partition_id}"
