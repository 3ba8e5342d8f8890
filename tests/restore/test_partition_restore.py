"""The plan of one partition's restore, by value."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.restore.test_partition_restoring_shell import ASSIGNED, BEFORE, LOST, OTHER, plan
from waltz.cluster.log_history import LogHistory, decode_histories, encode_histories
from waltz.cluster.server_assignment import NO_ASSIGNMENT
from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.restore.partition_restore import (
    PartitionRestore,
    check_history,
    fenced,
    is_over,
    reassigned,
    reserved_numbers,
    restored,
)
from waltz.types import Generation, PartitionId, SessionId, TransactionId


def test_the_numbers_are_above_all_that_can_have_been_given() -> None:
    assert reserved_numbers(BEFORE, Generation(9)) == (1_000_012, 1009)
    assert reserved_numbers(BEFORE, Generation(2)) == (1_000_012, 1005)
    with pytest.raises(ConfigurationError, match="there are none beyond"):
        reserved_numbers(BEFORE, Generation(2**31 - 5))


def test_the_same_words_resume_a_restore_however_much_was_archived_since() -> None:
    assert plan().difference(plan(last=TransactionId(120))) is None
    other = plan(last=TransactionId(50), point="--marks 7=50")
    assert plan().difference(other) == "its last transaction is 99, not 50"


def test_a_later_generation_ends_a_restore_that_was_begun() -> None:
    later = replace(BEFORE, generation=Generation(2000))
    for change in (fenced, restored):
        with pytest.raises(ConfigurationError, match="a server has opened the partition since"):
            change(later, plan())
    with pytest.raises(ConfigurationError, match="run the same command again"):
        restored(BEFORE, plan())


def test_a_restore_that_is_over_changes_no_metadata() -> None:
    after = replace(BEFORE, generation=Generation(3000), session_id=SessionId(1_000_400))
    assert is_over(after, plan())
    assert fenced(after, plan()) is restored(after, plan()) is None


def test_only_the_partitions_own_generation_is_raised() -> None:
    changed = reassigned(ASSIGNED, plan())
    assert changed is not None
    assert changed.membership_version == ASSIGNED.membership_version
    assert reassigned(changed, plan()) is None
    assert reassigned(NO_ASSIGNMENT, plan()) is None


def test_an_archive_of_before_another_restore_has_other_transactions_from_there_on() -> None:
    other = LogHistory(UUID(int=1), 5, {LOST: TransactionId(50), OTHER: TransactionId(10)})
    check_history((other,), (), LOST, TransactionId(49))
    check_history((other,), (other,), LOST, TransactionId(99))
    check_history((other,), (), PartitionId(7), TransactionId(99))
    with pytest.raises(ConfigurationError, match="name a point up to 49"):
        check_history((other,), (), LOST, TransactionId(50))
    assert decode_histories(encode_histories((other,))) == (other,)


def test_the_plan_is_read_back_and_garbage_is_refused() -> None:
    assert PartitionRestore.decode(plan().encode()) == plan()
    for data in (b"", b"[]", b'{"format":2}', plan().encode()[:-1]):
        with pytest.raises(RemoteProtocolError):
            PartitionRestore.decode(data)
