"""The answers to unfinished requests say nothing that the process does not know."""

from __future__ import annotations

from collections.abc import Sequence

from waltz.errors import (
    AlreadyClosedError,
    ConnectionFailedError,
    ConnectionLostError,
    HistoryChangedError,
    OperationTimeoutError,
    PartitionBlockedError,
    PermissionDeniedError,
    WaltzError,
)
from waltz.ext.unfinished import UNFINISHED, UNFINISHED_ERRORS

AGAIN: Sequence[type[WaltzError]] = (
    AlreadyClosedError,
    ConnectionFailedError,
    ConnectionLostError,
    OperationTimeoutError,
    PartitionBlockedError,
)
NEVER: Sequence[type[WaltzError]] = (HistoryChangedError, PermissionDeniedError)
"""Another attempt meets them, too."""


def test_every_error_that_another_attempt_may_not_meet_is_answered_as_unknown() -> None:
    assert [each for each in (*AGAIN, *NEVER) if issubclass(each, UNFINISHED_ERRORS)] == [*AGAIN]
    assert "may have taken effect" in UNFINISHED
