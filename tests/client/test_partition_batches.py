"""The machine of a partition with a server of version 5: batches, and refusals that are told."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pytest

from tests.client.partition_world import ME, OTHER, World, only, request, sent, submission
from waltz.client.partitions.client_partition_events import (
    Applied,
    ApplyTransactions,
    Effect,
    FlushWanted,
    HighWaterMarkLoaded,
    ReleaseRoom,
    RetrySubmissions,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.types import PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import (
    AppendBatch,
    AppendRejected,
    DataWanted,
    FeedBatch,
    Reason,
    Rejection,
)
from waltz.wire.client_protocol import (
    FeedRequest,
    FlushRequest,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.columns import Bodies, FeedColumns

NONE = TransactionId(-1)


def feed(first: int, runs: Sequence[tuple[int, int, int]], data: bytes | None = None) -> FeedBatch:
    """Runs of client, first number and length; `data` is that of each transaction."""
    rows = [(client, 3, 2, number, length) for client, number, length in runs]
    count = sum(length for _, _, length in runs)
    bodies = None
    if data is not None:
        bodies = Bodies([data] * count, np.full(count, crc32(data), np.uint32))
    columns = FeedColumns(np.array(rows, np.int32), np.arange(count, dtype=np.int32), bodies)
    return FeedBatch(PartitionId(2), TransactionId(first), columns)


def rejected(
    first: int, length: int, reason: Reason, at: int = -1, lock: int = 0
) -> AppendRejected:
    return AppendRejected(
        request(first), (Rejection(first, length, reason, TransactionId(at), lock),)
    )


def world(buffer_count_max: int = 10_000) -> World:
    made = World(buffer_count_max=buffer_count_max)
    made.step(StreamOpened(0, knows_batches=True))
    made.step(HighWaterMarkLoaded(NONE))
    made.hear(MountResponse(request(1), MountState.READY))
    return made


def ids(effects: Sequence[object]) -> list[int]:
    (effect,) = (each for each in effects if isinstance(each, ApplyTransactions))
    return [each.transaction_id for each in effect.transactions]


def test_what_one_step_brings_goes_out_as_one_batch() -> None:
    """B-2."""
    made = world()
    appends = [submission(n, mark=n) for n in (1, 2, 3)]
    effects = made.step(Submitted(appends[:2]), Submitted(appends[2:]))
    (batch,) = sent(effects)
    assert isinstance(batch, AppendBatch)
    assert batch.request_id == request(2)
    assert batch.appends.client_high_water_marks.tolist() == [1, 2, 3]


def batches(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    """The first sequence number and the length of each batch that goes out."""
    found = [each for each in sent(effects) if isinstance(each, AppendBatch)]
    return [(each.request_id.sequence_number, len(each.appends)) for each in found]


def test_while_two_batches_are_undecided_what_comes_waits_and_goes_out_as_one() -> None:
    """B-2: many small batches would cost everybody on the way as much as many large ones."""
    made = world()
    appends = [submission(n) for n in range(8)]
    assert batches(made.step(Submitted(appends[:2]))) == [(2, 2)]
    assert batches(made.step(Submitted(appends[2:4]))) == [(4, 2)]
    for late in appends[4:7]:
        assert not batches(made.step(Submitted([late])))
    assert not batches(made.hear(feed(0, [(ME, 2, 1)]))), "the first is half decided"
    assert batches(made.hear(feed(1, [(ME, 3, 1)]))) == [(6, 3)]
    assert not batches(made.step(Submitted(appends[7:])))
    assert batches(made.hear(rejected(4, 5, Reason.STALE_GENERATION))) == [(9, 1)]


def test_a_batch_goes_ahead_of_an_undecided_one_only_if_it_is_as_large() -> None:
    """B-2: contexts that come back together, and are submitted again, stay together."""
    made = world()
    appends = [submission(n) for n in range(9)]
    assert batches(made.step(Submitted(appends[:4]))) == [(2, 4)]
    for late in appends[4:7]:
        assert not batches(made.step(Submitted([late])))
    assert batches(made.step(Submitted(appends[7:8]))) == [(6, 4)]
    assert not batches(made.step(Submitted(appends[8:])))
    assert not batches(made.hear(feed(0, [(ME, 2, 4)]))), "four are undecided"
    assert batches(made.hear(feed(4, [(ME, 6, 3)]))) == [(10, 1)]


def test_what_waits_behind_batches_goes_out_on_the_next_stream() -> None:
    """CI-17."""
    made = world()
    for number in range(4):
        made.step(Submitted([submission(number)]))
    made.step(StreamLost(0))
    effects = made.step(StreamOpened(1, knows_batches=True))
    (mount,) = (each for each in sent(effects) if isinstance(each, MountRequest))
    effects = made.hear(MountResponse(mount.request_id, MountState.READY), stream=1)
    assert [type(each) for each in sent(effects)] == [FlushRequest, FeedRequest, AppendBatch]
    assert batches(effects) == [(mount.request_id.sequence_number + 1, 2)]


def test_a_flush_follows_the_appends_that_it_is_about() -> None:
    """CI-17."""
    made = world()
    messages = sent(made.step(Submitted([submission()]), FlushWanted(), Submitted([submission(2)])))
    assert [type(each) for each in messages] == [AppendBatch, FlushRequest, AppendBatch]
    assert messages[1] == FlushRequest(request(2))
    assert isinstance(messages[2], AppendBatch)
    assert messages[2].request_id == request(3)


def test_own_runs_settle_what_was_sent_and_others_do_not() -> None:
    """CI-15, CI-16."""
    made = world()
    mine = [submission(n) for n in (1, 2, 3, 4)]
    made.step(Submitted(mine))
    effects = made.hear(feed(0, [(OTHER, 2, 3), (ME, 2, 1), (ME, 4, 2), (OTHER, 9, 1)]))
    assert ids(effects) == list(range(7))
    assert only(effects, ReleaseRoom) == [ReleaseRoom(3)]
    assert only(effects, RetrySubmissions) == [RetrySubmissions([mine[1]])]
    assert [each.transaction_id for each in mine] == [3, None, 4, 5]
    (applied,) = only(effects, ApplyTransactions)
    assert isinstance(applied, ApplyTransactions)
    assert applied.own == {3: mine[0], 4: mine[2], 5: mine[3]}


@pytest.mark.parametrize(
    ("first", "length", "expected", "fed"),
    [(0, 3, [], 4), (3, 2, [], 4), (4, 3, [5, 6], 6), (0, 9, [5, 6, 7, 8], 8), (6, 2, [], 4)],
)
def test_repetitions_and_gaps_of_a_feed_are_left_out(
    first: int, length: int, expected: list[int], fed: int
) -> None:
    """CI-13."""
    made = world()
    made.hear(feed(0, [(OTHER, 1, 5)]))
    made.step(Applied(TransactionId(4)))
    effects = made.hear(feed(first, [(OTHER, 1, length)]))
    assert made.machine.feed.fed == fed
    if expected:
        assert ids(effects) == expected
    else:
        assert not only(effects, ApplyTransactions)


def test_an_own_append_that_was_fed_before_is_not_taken_for_a_later_one() -> None:
    made = world()
    mine = submission()
    made.step(Submitted([mine]))
    made.hear(feed(0, [(ME, 2, 1)]))
    made.hear(feed(0, [(ME, 2, 1), (OTHER, 1, 1)]))
    assert mine.transaction_id == 0
    assert made.machine.feed.fed == 1


def test_while_applying_fails_what_does_not_fit_is_dropped_and_asked_for_again() -> None:
    """PM-38."""
    made = world(buffer_count_max=4)
    made.hear(feed(0, [(OTHER, 1, 2)]))
    made.step(Applied(NONE, 1.0))
    made.hear(feed(2, [(OTHER, 3, 6)]))
    assert made.machine.feed.fed == 5
    assert made.machine.feed._gap_seen


def test_a_lock_refusal_waits_for_the_winner_and_knows_the_lock() -> None:
    """PM-24: CI-20."""
    made = world()
    mine = submission()
    made.step(Submitted([mine]))
    assert not only(made.hear(rejected(2, 1, Reason.LOCKED, 0, 77)), RetrySubmissions)
    assert (mine.lock_failure, mine.refused_lock_hash) == (0, 77)
    made.hear(feed(0, [(OTHER, 1, 1)]))
    effects = made.step(Applied(TransactionId(0)))
    assert only(effects, RetrySubmissions) == [RetrySubmissions([mine])]


@pytest.mark.parametrize("reason", [each for each in Reason if each is not Reason.LOCKED])
def test_every_other_refusal_is_executed_again_at_once(reason: Reason) -> None:
    """Before, a flush had to find it."""
    made = world()
    mine = [submission(n) for n in (1, 2, 3)]
    made.step(Submitted(mine))
    effects = made.hear(rejected(3, 2, reason))
    assert only(effects, RetrySubmissions) == [RetrySubmissions(mine[1:])]
    assert made.machine.own.monitor.count == 1
    assert made.hear(rejected(3, 2, reason)) == []


def test_data_are_asked_for_before_the_mount_and_handed_on() -> None:
    """PM-31."""
    made = World(with_data=True)
    made.step(StreamOpened(0, knows_batches=True))
    messages = sent(made.step(HighWaterMarkLoaded(NONE)))
    assert [type(each) for each in messages] == [DataWanted, MountRequest]
    made.hear(MountResponse(request(1), MountState.READY))
    (effect,) = only(made.hear(feed(0, [(OTHER, 1, 2)], b"data")), ApplyTransactions)
    assert isinstance(effect, ApplyTransactions)
    assert [each.data for each in effect.transactions] == [b"data"] * 2


def test_an_older_server_is_not_asked_for_data_nor_sent_batches() -> None:
    made = World(with_data=True)
    made.step(StreamOpened(0))
    assert [type(each) for each in sent(made.step(HighWaterMarkLoaded(NONE)))] == [MountRequest]


def test_data_that_came_along_are_bounded() -> None:
    """CS-24."""
    made = world()
    data = bytes(9 * 1024 * 1024)
    room = []
    for number in range(3):
        made.hear(feed(number, [(OTHER, number + 1, 1)], data))
        room.append(made.machine.feed.has_room)
    made.step(Applied(TransactionId(0)))
    room.append(made.machine.feed.has_room)
    assert room == [True, True, False, True], "what is handed over is not buffered"


def test_what_was_not_sent_when_the_stream_is_lost_is_not_sent_on_the_next() -> None:
    made = world()
    assert RequestId(ME, request(1).generation, PartitionId(2), 1) == request(1)
    messages = sent(made.step(Submitted([submission()]), StreamOpened(1, knows_batches=True)))
    assert [type(each) for each in messages] == [MountRequest]
    assert made.machine.own.monitor.count == 1
