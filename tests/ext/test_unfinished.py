"""What a request is told says nothing that the process does not know."""

from __future__ import annotations

from waltz.errors import (
    AlreadyClosedError,
    ConnectionFailedError,
    ConnectionLostError,
    HistoryChangedError,
    OperationTimeoutError,
    PartitionBlockedError,
    PermissionDeniedError,
)
from waltz.ext.unfinished import UNFINISHED, UNFINISHED_ERRORS


def test_every_error_that_another_attempt_may_not_meet_is_answered_as_unknown() -> None:
    for kind in (
        AlreadyClosedError,
        ConnectionFailedError,
        ConnectionLostError,
        OperationTimeoutError,
        PartitionBlockedError,
    ):
        assert issubclass(kind, UNFINISHED_ERRORS)
    for kind in (HistoryChangedError, PermissionDeniedError):
        assert not issubclass(kind, UNFINISHED_ERRORS), "another attempt meets it, too"
    assert "may have taken effect" in UNFINISHED
