"""Contexts and rows sent to one partition: what the feed and the server say decides both."""

from __future__ import annotations

import numpy as np
import pytest

from tests.client.partition_world import ME, OTHER, request, submission
from tests.client.test_partition_batches import rejected
from waltz.client.appends.bulk_appends import BULK_RETRY_SECONDS
from waltz.client.appends.own_appends import OwnAppends
from waltz.client.appends.request_numbers import SEQUENCE_NUMBERS_PER_CLIENT_ID
from waltz.client.appends.submission import Submission
from waltz.client.bulk import BulkRows, ManyAppends
from waltz.client.partitions.client_partition_events import (
    BulkApplied,
    ReleaseRoom,
    RetrySubmissions,
)
from waltz.types import (
    NOTHING,
    ClientId,
    Generation,
    PartitionId,
    TransactionId,
)
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, Reason, Rejection
from waltz.wire.client_protocol import FlushResponse
from waltz.wire.fed import FedRun

GENERATION = Generation(3)


def rows(count: int) -> Submission:
    data = [b"row %d" % number for number in range(count)]
    made = Submission(9, ManyAppends(2, BulkRows(data)), PartitionId(2))
    made.execute(NOTHING)
    return made


def sent(own: OwnAppends, *submissions: Submission) -> list[int]:
    """The numbers of what goes out, contexts first."""
    own.send(submissions, GENERATION)
    messages = [*own.take_batches(), *own.take_rows(NOTHING, GENERATION, 0.0)]
    own.check_invariants()
    numbers: list[int] = []
    for message in messages:
        assert isinstance(message, AppendBatch)
        first = message.request_id.sequence_number
        numbers += range(first, first + len(message.appends))
    return numbers


def fed(at: int, *runs: tuple[ClientId, int, int]) -> FedRun:
    ids = [(request(number, client_id=client), count) for client, number, count in runs]
    total = sum(count for _, count in ids)
    return FedRun(TransactionId(at), ids, np.zeros(total, np.int32))


def started() -> OwnAppends:
    return OwnAppends(ME, PartitionId(2), 0)


def test_contexts_and_rows_of_one_run_are_decided_together() -> None:
    """CI-14, CI-15, B-3."""
    own = started()
    first, bulk, second = submission(1), rows(3), submission(2)
    assert sent(own, first, bulk) == [1, 2, 3, 4]
    assert sent(own, second) == [5]
    assert own.last_sent == request(5)
    own.decide(fed(10, (OTHER, 1, 2), (ME, 1, 5)))
    own.check_invariants()
    assert (first.transaction_id, second.transaction_id) == (12, 16)
    assert bulk.bulk is not None
    assert bulk.bulk.transaction_ids.tolist() == [13, 14, 15]
    assert own.take_effects() == [ReleaseRoom(2)]
    assert len(own) == 0
    assert own.settle(TransactionId(14)) == []
    assert own.settle(TransactionId(15)) == [BulkApplied(bulk)]
    assert own.committed.through(TransactionId(15)) == {12: first}
    own.committed.forget_through(TransactionId(15))
    assert own.committed.through(TransactionId(99)) == {16: second}


def test_rows_that_have_come_fail_older_contexts_and_the_other_way_round() -> None:
    """CI-15."""
    own = started()
    first, bulk = submission(1), rows(2)
    assert sent(own, first, bulk) == [1, 2, 3]
    own.decide(fed(0, (ME, 3, 1)))
    assert own.take_effects() == [RetrySubmissions([first])]
    assert sent(own, first) == [4, 5], "the older row is sent again, behind the context"
    own.decide(fed(1, (ME, 5, 1)))
    assert own.take_effects() == [RetrySubmissions([first])]
    assert own.settle(TransactionId(1)) == [BulkApplied(bulk)]
    more = rows(1)
    assert sent(own, more) == [6]
    assert sent(own, first) == [7]
    own.decide(fed(2, (ME, 7, 1)))
    assert sent(own) == [8], "and the row again that is older than the context"


def test_a_flush_waits_for_its_mark_and_takes_rows_too() -> None:
    """CI-17, CI-21."""
    own = started()
    bulk = rows(2)
    assert sent(own, bulk) == [1, 2]
    own.hear(FlushResponse(request(2), TransactionId(4)), 0.0)
    assert own.settle(TransactionId(3)) == []
    assert sent(own) == []
    own.settle(TransactionId(4))
    assert sent(own) == [3, 4]


def test_rows_that_lose_a_lock_wait_for_the_winner() -> None:
    """CI-20."""
    own = started()
    context, bulk = submission(1), rows(3)
    assert sent(own, context, bulk) == [1, 2, 3, 4]
    own.hear(rejected(1, 3, Reason.LOCKED, at=7, lock=5), 0.0)
    own.hear(rejected(4, 1, Reason.LOCKED, at=9), 0.0)
    own.settle(TransactionId(6))
    assert (sent(own), own.take_effects()) == ([], [])
    own.settle(TransactionId(7))
    assert own.take_effects() == [RetrySubmissions([context])]
    assert (context.lock_failure, context.refused_lock_hash) == (7, 5)
    assert sent(own) == [5, 6]
    own.settle(TransactionId(9))
    assert sent(own) == [7]


def test_rows_that_were_not_looked_at_are_sent_again_in_a_moment() -> None:
    own = started()
    assert sent(own, rows(2)) == [1, 2]
    own.hear(rejected(1, 2, Reason.STOPPING), 0.0)
    assert own.rows.send_at == BULK_RETRY_SECONDS
    assert sent(own) == []
    later = own.take_rows(NOTHING, GENERATION, BULK_RETRY_SECONDS)
    assert [len(each.appends) for each in later if isinstance(each, AppendBatch)] == [2]
    assert own.rows.send_at is None


@pytest.mark.parametrize("reason", [Reason.LOCKED, Reason.STOPPING])
def test_a_refusal_of_more_than_was_sent_is_one_of_what_was_sent(reason: Reason) -> None:
    """Lengths are a peer's word: two billion must cost no more than two."""
    own = started()
    context, bulk = submission(1), rows(1)
    assert sent(own, context, bulk) == [1, 2]
    least, most = -(2**31), 2**31 - 1
    rejections = (
        Rejection(least, most, reason, NOTHING, 0),
        Rejection(1, most, reason, NOTHING, 0),
    )
    own.hear(AppendRejected(request(1), rejections), 0.0)
    own.settle(NOTHING)
    assert own.take_effects() == [RetrySubmissions([context])]
    assert len(own) == 0


def test_one_append_of_a_batch_may_be_refused_by_the_link() -> None:
    """H11."""
    own = started()
    context, bulk = submission(1), rows(2)
    assert sent(own, context, bulk) == [1, 2, 3]
    assert own.refuse(request(3)) is bulk
    assert own.refuse(request(1)) is context
    assert own.refuse(request(1)) is None


def test_a_server_that_leaves_refusals_unsaid_is_not_waited_for() -> None:
    """CI-15: what it has refused would hold up all that follows until the next flush."""
    own = started()
    for number in range(1, 4):
        assert own.has_room(1)
        assert sent(own, submission(number)) == [number]
    own.knows_batches = True
    assert sent(own, submission(4)) == [4]
    assert not own.has_room(1)


def test_what_has_ended_is_not_told_of_and_nothing_is_left_after_the_end() -> None:
    own = started()
    context, bulk = submission(1), rows(2)
    assert sent(own, context, bulk) == [1, 2, 3]
    assert context.claim_verdict()
    own.decide(fed(0, (ME, 1, 1)))
    assert own.committed.through(TransactionId(0)) == {}
    own.lose_stream()
    own.close()
    assert (len(own), own.rows.bulks, own.last_sent) == (0, [], None)


# The last sequence numbers of a client ID

LAST = SEQUENCE_NUMBERS_PER_CLIENT_ID


def test_rows_end_with_the_last_number_and_go_on_under_the_next_client_id() -> None:
    own = OwnAppends(ME, PartitionId(2), LAST - 3)
    bulk = rows(8)
    own.send([bulk], GENERATION)
    messages = own.take_rows(NOTHING, GENERATION, 0.0)
    numbers = [
        each.request_id.sequence_number + place
        for each in messages
        for place in range(len(each.appends))
    ]
    assert numbers == [LAST - 2, LAST - 1, LAST]
    assert own.numbers.last > own.numbers.renewal_after
    assert own.take_rows(NOTHING, GENERATION, 0.0) == []
    own.decide(fed(0, (ME, LAST - 2, 3)))
    own.renew(OTHER)
    assert own.numbers.left == LAST
    (first, *_) = own.take_rows(NOTHING, GENERATION, 0.0)
    assert first.request_id == request(1, client_id=OTHER)
    own.decide(fed(3, (ME, 1, 2), (OTHER, 1, 5)))
    own.check_invariants()
    assert own.settle(TransactionId(9)) == [BulkApplied(bulk)]
    assert bulk.bulk is not None
    assert bulk.bulk.transaction_ids.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]


def test_nothing_undecided_is_left_behind_under_the_client_id_before() -> None:
    own = started()
    sent(own, submission(1))
    with pytest.raises(AssertionError):
        own.renew(OTHER)
