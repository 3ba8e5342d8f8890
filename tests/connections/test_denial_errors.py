"""The error that a server's denial becomes."""

from __future__ import annotations

from waltz.connections.denial_errors import as_kind, denial_error
from waltz.errors import PermissionLostError
from waltz.types import ClientId, Generation, PartitionId, RequestId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.denial_protocol import NO_PARTITION, Denied, no_request

FIRST = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
APPENDS = Denied(AppendBatch.CODE, FIRST, 1, PartitionId(2), "append", "CN=a", "no role of CN=a")


def test_the_error_names_principal_verb_and_partition_and_what_to_do() -> None:
    error = denial_error(APPENDS)
    assert (error.principal, error.verb, error.partition) == ("CN=a", "append", 2)
    assert str(error) == (
        "the server's policy denies append at partition 2 to CN=a: no role of CN=a. Have the"
        " policy grant it: `waltz policy who-can append FILE --partition 2` names those who may"
    )
    assert not error.may_be_written
    assert not error.retryable


def test_the_error_of_a_whole_connection_names_no_partition_and_shows_no_control_characters() -> (
    None
):
    denied = Denied(0, no_request(NO_PARTITION), 1, NO_PARTITION, "connect", "\x1b[2J", "a\nb")
    error = denial_error(denied)
    assert error.partition is None
    assert str(error).startswith("the server's policy denies connect to \\x1b[2J: a\\nb.")


def test_a_special_kind_of_it_says_the_same_and_more() -> None:
    lost = as_kind(PermissionLostError, denial_error(APPENDS), "it may be written")
    assert (lost.principal, lost.verb, lost.partition) == ("CN=a", "append", 2)
    assert str(lost) == f"{denial_error(APPENDS)}; it may be written"
    assert lost.may_be_written
