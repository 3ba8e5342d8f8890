from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from waltz.store.recovery_events import AskReplica, CopyRecords
from waltz.store.requests import AskSessionInfo
from waltz.types import ReplicaId, TransactionId

A, B = ReplicaId("a:1"), ReplicaId("b:1")


def test_what_is_asked_is_equal_by_value_and_never_changes() -> None:
    assert AskReplica(A, AskSessionInfo()) == AskReplica(A, AskSessionInfo())
    copy = CopyRecords(A, B, TransactionId(4), TransactionId(9))
    assert copy != CopyRecords(B, A, TransactionId(4), TransactionId(9))
    with pytest.raises(FrozenInstanceError):
        copy.first = TransactionId(5)  # type: ignore[misc]
