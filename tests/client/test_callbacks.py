"""What all callbacks have in common; those for databases: `test_sql_callbacks.py`."""

from __future__ import annotations

import pytest

from tests.client.sql_applications import transactions
from waltz.client.applying.callbacks import NoCallbacks, WaltzClientCallbacks
from waltz.errors import LocalProtocolError
from waltz.types import PartitionId, TransactionId

P0 = PartitionId(0)


def test_callbacks_need_a_way_to_apply() -> None:
    class Nothing(WaltzClientCallbacks):
        def get_client_high_water_mark(self, partition_id: PartitionId) -> int:
            return -1

    with pytest.raises(LocalProtocolError, match="Nothing cannot apply transaction 0: define"):
        Nothing().apply_transaction(transactions(0, 1)[0])


def test_a_client_that_only_writes_applies_nothing() -> None:
    callbacks = NoCallbacks()
    assert callbacks.get_client_high_water_mark(P0) is None  # type: ignore[func-returns-value]
    callbacks.apply_transactions(transactions(0, 3))
    callbacks.uncaught_exception(P0, TransactionId(0), ValueError())
