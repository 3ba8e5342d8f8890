"""Eleven things at which the Java original hangs, loops or lies, and what happens here instead.

H1 to H11 are those of the protocol's description. Where a client could hang at an original server,
it is our client that is stepped.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.client.partition_world import World as ClientWorld
from tests.client.partition_world import only, request, sent, submission
from tests.server.builders import (
    append,
    batch,
    data_request,
    flush,
    mark_request,
    mount,
    peer,
    received,
    request_id,
    tid,
)
from tests.server.partition_bench import NOT_READY, READY, Bench, feed_of, mounted, opened
from tests.server.test_server_partition import wait_in_vain
from tests.server.test_server_shell import ABSENT, PARTITIONS, Caller, World, play
from waltz.client.partitions.client_partition_events import (
    AppendRefused,
    FailSubmission,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.connections.pending_requests import (
    Answered,
    MarkArrived,
    MarksWanted,
    PartitionAttached,
    PendingRequests,
    SendRequests,
)
from waltz.errors import LocalProtocolError
from waltz.host import Host
from waltz.limits import LONG_WAIT_SECONDS, MOUNT_SECONDS_MAX, RETRY_SECONDS_MIN
from waltz.server.feeding.backlog import PENDING_APPENDS_MAX, StopReading
from waltz.server.server_partition_events import (
    ConnectionLost,
    PartitionRevoked,
    RecordsRead,
    RequestsDropped,
    StoreReadFailed,
)
from waltz.store.events import StoreClosed
from waltz.types import ClientId, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    AppendRequest,
    FeedData,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    MountRequest,
    MountResponse,
    MountState,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
    TransactionDataResponse,
)


def test_h1_transaction_asked_for_too_early_or_in_vain_is_served_later() -> None:
    """H1, CS-17: the original fails it until its process is restarted."""
    bench = mounted()
    (early,) = bench.say(data_request(0))
    assert isinstance(early, TransactionDataResponse)
    assert early.data is None
    bench.say(append(5))
    bench.commit()
    (answer,) = bench.say(data_request(0))
    assert isinstance(answer, TransactionDataResponse)
    assert answer.data == b"data"

    bench = Bench(9)
    assert bench.say(data_request(3)) == []
    ((failed,),) = bench.step(StoreReadFailed(tid(3), "no replica")).values()
    assert isinstance(failed, TransactionDataResponse)
    assert failed.data is None
    bench.now += RETRY_SECONDS_MIN
    assert bench.say(data_request(3)) == []
    ((found,),) = bench.step(RecordsRead(tid(3), batch(3, 7))).values()
    assert isinstance(found, TransactionDataResponse)
    assert found.data == b"%08d" % 3


def test_h2_mount_that_does_not_count_is_answered_and_what_is_dropped_is_counted() -> None:
    """H2: the original says nothing to either, and counts nothing."""
    bench = Bench()
    assert bench.say(mount(connection_sequence=1), sequence=1) == [READY]
    assert bench.say(mount(), connection=2, sequence=0) == [NOT_READY]
    bench.say(append(2), connection=2, sequence=0)
    bench.say(append(3, generation=9), connection=1, sequence=1)
    assert bench.others == [
        RequestsDropped(2, "stale connection", 1),
        RequestsDropped(2, "stale connection", 1),
        RequestsDropped(1, "stale generation", 1),
    ]


def test_h2_what_no_server_answers_our_client_asks_again() -> None:
    """H2, SV-04: the protocol has no answer to a flush, a mark or an append for a partition that is
    elsewhere, nor has an original server one to every mount."""
    world = ClientWorld().mounted()
    world.step(Submitted([submission()]))
    for _ in range(3):
        assert sent(world.sleep(LONG_WAIT_SECONDS)) == [FlushRequest(request(2))]
    world.step(StreamLost(0))
    (first,) = sent(world.step(StreamOpened(1)))
    assert isinstance(first, MountRequest)
    (second,) = sent(world.sleep(MOUNT_SECONDS_MAX))
    assert isinstance(second, MountRequest)
    assert second.request_id != first.request_id

    asking = PendingRequests(ClientId(7))
    asking.step([PartitionAttached(PartitionId(0), 1)], 0.0)
    (effect,) = asking.step([MarksWanted((PartitionId(0),), 1)], 0.0)
    assert isinstance(effect, SendRequests)
    assert asking.deadline is not None
    (effect,) = asking.step([], asking.deadline)
    assert isinstance(effect, SendRequests)
    assert isinstance(effect.messages[0], HighWaterMarkRequest)


def test_h3_partition_whose_store_has_ended_still_answers_mounts() -> None:
    """H3, CI-25: one that dies at the start stays in the original's table and is silent."""
    bench = Bench(None)
    bench.step(StoreClosed("generation 2 owns the partition"))
    assert bench.say(mount()) == []
    assert wait_in_vain(bench) == {1: [NOT_READY]}
    bench.say(flush(3, 8), mount(client=8), connection=2, client=8)
    bench.step(PartitionRevoked(comes_back=False))
    assert bench.machine.closed


def test_h3_partition_that_fails_ends_alone_is_reported_and_opened_again() -> None:
    """H3: its clients are cut off, mount again, and find all that was committed."""

    async def scene(world: World, host: Host) -> None:
        server = world.server
        assert server is not None
        caller, other = await Caller.connect(host, 7), await Caller.connect(host, 8)
        await caller.mount()
        await other.mount(partition=PARTITIONS[1])
        caller.append(b"before")
        await caller.hear(FeedData)
        broken = server._partitions.running[PARTITIONS[0]].machine
        del broken._feeds
        caller.append(b"undecided")
        with pytest.raises(EOFError):
            await caller.hear(FeedData)
        health = await other.ask(
            ServerPartitionsHealthRequest(other.id()), ServerPartitionsHealthResponse
        )
        assert (PARTITIONS[1], True) in health.health
        again = await Caller.connect(host, 7)
        await again.mount(0)
        assert server._partitions.running[PARTITIONS[0]].machine is not broken
        assert server._partitions._failures[PARTITIONS[0]].count == 1
        request = again.append(b"after", 0)
        heard = []
        while request not in heard:
            heard.append((await again.hear(FeedData)).request_id)

    play(scene)


def test_h4_nudge_goes_on_after_a_partition_was_unmounted_for_long() -> None:
    """H4, PM-43: the original's timer dies at the first exception."""
    world = ClientWorld().mounted()
    world.step(Submitted([submission()]))
    world.step(StreamLost(0))
    for _ in range(5):
        assert sent(world.sleep(10 * LONG_WAIT_SECONDS)) == []
    (mounting,) = sent(world.step(StreamOpened(1)))
    assert isinstance(mounting, MountRequest)
    ready = world.hear(MountResponse(mounting.request_id, MountState.READY), stream=1)
    assert FlushRequest(request(2)) in sent(ready)
    for _ in range(3):
        assert sent(world.sleep(LONG_WAIT_SECONDS)) == [FlushRequest(request(2))]


def test_h5_mount_behind_a_half_open_connection_gets_through_once_that_is_known_to_be_dead() -> (
    None
):
    """H5, CS-24: until then it is told to ask again; how soon a dead peer is known is the network's
    (`tests/system/test_tcp_network.py`)."""
    bench = Bench()
    assert bench.say(mount(connection_sequence=5), sequence=5) == [READY]
    assert bench.say(mount(), connection=2, sequence=0) == [NOT_READY]
    bench.step(ConnectionLost(1))
    assert bench.say(mount(), connection=2, sequence=0) == [READY]


def test_h6_slow_partition_holds_up_no_other_one_of_the_same_connection() -> None:
    """H6: appends to a partition without a quorum wait; the other one goes on."""

    async def scene(world: World, host: Host) -> None:
        server = world.server
        assert server is not None
        caller = await Caller.connect(host)
        await caller.mount()
        await caller.mount(partition=PARTITIONS[1])
        full = server._partitions.running[PARTITIONS[0]].machine
        silent: list[object] = []

        def keep_silent(records: object, *, at_once: bool = False) -> None:
            silent.append(records)

        server._partitions.running[PARTITIONS[0]]._store.append = keep_silent  # type: ignore
        for number in range(200):
            caller.append(b"%d" % number)
        while full.pending_count < 200:
            await asyncio.sleep(0.01)
        for number in range(10):
            mark = HighWaterMarkRequest(caller.id(PARTITIONS[1]))
            assert (await caller.ask(mark, HighWaterMarkResponse)).transaction_id == -1, number
        assert full.pending_count == 200

    play(scene)


def test_h6_whoever_fills_a_partition_does_not_close_it_to_others() -> None:
    """H6."""
    bench = mounted()
    bench.say(mount(client=8), connection=2, client=8)
    bench.say(*[append(n) for n in range(PENDING_APPENDS_MAX)])
    bench.say(append(1, client=8), connection=2, client=8)
    assert bench.others == [StopReading(1)]


def test_h7_flush_and_mount_are_answered_across_failed_sessions() -> None:
    """H7, CS-18: an original flush that fails inside the store is never answered."""
    bench = mounted()
    bench.say(append(2), flush(2))
    assert bench.say(mount(client=8), connection=2, client=8) == []
    assert bench.step(StoreClosed("a replica was lost")) == {}
    heard = bench.fail(1)
    assert heard[1] == [FlushResponse(request_id(7, 2), tid(-1))]
    assert heard[2] == [MountResponse(request_id(8), MountState.READY)]


def test_h8_mark_is_never_a_made_up_number() -> None:
    """H8, CS-20: the original answers -2^63 while it recovers; ours answers when it knows."""
    bench = Bench(None)
    assert bench.say(mark_request(4)) == []
    bench.step(StoreClosed("no quorum"))
    heard = bench.step(opened(6))
    assert heard == {1: [HighWaterMarkResponse(mark_request(4).request_id, tid(6))]}


def test_h8_made_up_mark_of_an_original_server_is_no_answer_to_our_client() -> None:
    """H8."""
    asking = PendingRequests(ClientId(7))
    asking.step([PartitionAttached(PartitionId(0), 1), MarksWanted((PartitionId(0),), 1)], 0.0)
    question = RequestId(ClientId(7), mark_request().request_id.generation, PartitionId(0), 1)
    lie = HighWaterMarkResponse(question, TransactionId(-(2**63)))
    effects = asking.step([Answered(1, [lie], 0.5)], 1.0)
    assert not any(isinstance(effect, MarkArrived) for effect in effects)


def test_h9_h10_preferences_asked_for_at_once_are_each_answered_and_nothing_spins() -> None:
    """H9, H10, SV-25: adding and then removing has the original loop for ever."""

    async def scene(_: World, host: Host) -> None:
        caller, other = await Caller.connect(host, 7), await Caller.connect(host, 8)
        await caller.mount()
        caller.say(AddPreferredPartitionRequest(caller.id(), PARTITIONS[:1]))
        other.say(AddPreferredPartitionRequest(other.id(), (ABSENT,)))
        assert (await caller.hear(AddPreferredPartitionResponse)).result
        assert not (await other.hear(AddPreferredPartitionResponse)).result
        for _number in range(10):
            caller.say(
                AddPreferredPartitionRequest(caller.id(), PARTITIONS),
                RemovePreferredPartitionRequest(caller.id(), PARTITIONS),
                AddPreferredPartitionRequest(caller.id(), ()),
            )
        kinds = [type(await caller.hear_any()) for _ in range(30)]
        assert kinds.count(RemovePreferredPartitionResponse) == 10
        # It goes on with its partitions: with nobody else in the cluster nothing has moved.
        sent_id = caller.append(b"still here")
        assert (await caller.hear(FeedData)).request_id == sent_id

    play(scene)


def test_h11_append_that_an_old_link_cannot_carry_fails_once() -> None:
    """H11, CS-14: the original reconnects and tries again for ever."""
    with pytest.raises(LocalProtocolError, match="upgrade"):
        CLIENT_CODEC.encode(append(1, append=[1]), 1)
    world = ClientWorld().mounted()
    waiting = submission()
    (message,) = sent(world.step(Submitted([waiting])))
    assert isinstance(message, AppendRequest)
    error = LocalProtocolError("the link carries no such locks")
    effects = world.step(AppendRefused(message.request_id, error))
    assert only(effects, FailSubmission) == [FailSubmission(waiting, error)]
    assert sent(world.sleep(10 * LONG_WAIT_SECONDS)) == []


def test_stale_append_is_found_out_by_the_next_flush() -> None:
    """H2, CS-23, SV-12: silent on the wire, and yet no client waits for ever."""
    bench = mounted()
    bench.step(received(peer(), append(2, generation=0)))
    assert bench.say(flush(2)) == [FlushResponse(request_id(7, 2), tid(-1))]
    bench.say(append(3))
    assert bench.commit() == {1: feed_of([3], 0)}
