"""What operators are told of a server's clients, from what connections and partitions know."""

from __future__ import annotations

from waltz.server.clients.mounted_clients import (
    CLIENTS_LOOK_SECONDS,
    MOUNTS_PER_TURN,
    AppliedByClients,
    ClientsLook,
    ConnectionFacts,
    Looking,
    MountFacts,
    PartitionFacts,
    ToldMark,
)
from waltz.server.commit_ages import NO_LAG, Lag
from waltz.types import NOTHING, ClientId, Generation, PartitionId, TransactionId
from waltz.wire.client_label import ClientLabel
from waltz.wire.clients_protocol import (
    CLIENTS_TOLD_MAX,
    MOUNTS_TOLD_MAX,
    UNKNOWN_TIME,
    AppliedMark,
    ClientsRequest,
    MountEntry,
    PartitionMark,
)

P0, P1 = PartitionId(0), PartitionId(1)
LABEL = ClientLabel("orders", "orders-7", "shop.py", "0.1.0", is_consumer=True)


def connection(number: int, label: ClientLabel | None = LABEL) -> ConnectionFacts:
    return ConnectionFacts(number, label, "shop", "h:1", 5, True, False, 10.0, 99.0)


def partition(
    partition_id: PartitionId, mark: int, *mounts: MountFacts, lag: Lag | None = None
) -> PartitionFacts:
    told = PartitionMark(partition_id, Generation(2), TransactionId(mark))
    return PartitionFacts(
        told, mounts, lambda applied: NO_LAG if applied == TransactionId(mark) else lag
    )


def mount(number: int, sent: int | None = None, sampled: ToldMark | None = None) -> MountFacts:
    last = None if sent is None else TransactionId(sent)
    return MountFacts(number, ClientId(40 + number), last, sampled)


def applied(*marks: tuple[int, PartitionId, int, float]) -> AppliedByClients:
    told = AppliedByClients()
    for number, partition_id, mark, at in marks:
        told.note(number, AppliedMark(partition_id, TransactionId(mark)), at)
    return told


def look(*partitions: PartitionFacts, told: AppliedByClients | None = None) -> ClientsLook:
    looking = Looking(told or AppliedByClients(), 100.0)
    for each in partitions:
        assert len([*looking.take(each, 100.0)]) == 1 + len(each.mounts) // MOUNTS_PER_TURN
    return looking.end(connection, 100.0)


def test_a_mount_has_the_mark_that_was_told_and_its_lag() -> None:
    told = applied((1, P0, 7, 99.5))
    found = look(partition(P0, 9, mount(1, sent=9), lag=Lag(2.0, 2.25)), told=told)
    (client,) = found.clients
    assert (client.name, client.instance, client.is_consumer) == ("orders", "orders-7", True)
    assert (client.number, client.client_id, client.principal) == (1, 41, "shop")
    assert (client.connected_milliseconds, client.heard_milliseconds) == (90_000, 1_000)
    assert client.mounts == (
        MountEntry(P0, TransactionId(7), 500, TransactionId(9), 2_000, 2_250, False),
    )
    assert found.partitions == (PartitionMark(P0, Generation(2), TransactionId(9)),)


def test_nothing_is_said_of_a_client_that_has_told_nothing_but_what_it_was_sent() -> None:
    (client,) = look(partition(P0, 9, mount(1, sent=9), lag=Lag(2.0, 2.25))).clients
    assert client.mounts == (
        MountEntry(P0, None, UNKNOWN_TIME, TransactionId(9), UNKNOWN_TIME, UNKNOWN_TIME, False),
    )


def test_a_client_that_appends_has_applied_the_mark_of_its_last_append() -> None:
    sampled = ToldMark(TransactionId(8), 99.0)
    told = applied((1, P0, 7, 99.5), (2, P0, 9, 99.5))
    found = look(
        partition(P0, 9, mount(1, 9, sampled), mount(2, 9, sampled), mount(3, 9)), told=told
    )
    marks = [(each.mounts[0].applied, each.mounts[0].writes) for each in found.clients]
    assert marks == [(8, True), (9, True), (None, False)]


def test_what_nobody_knows_of_a_lag_is_not_said() -> None:
    told = applied((1, P0, 3, 99.5), (2, P0, 70, 99.5), (3, P0, 9, 60.0))
    half = look(partition(P0, 9, mount(1), lag=Lag(30.0, None)), told=told)
    assert half.clients[0].mounts[0].lag_min_milliseconds == 30_000
    assert half.clients[0].mounts[0].lag_max_milliseconds == UNKNOWN_TIME
    ahead = look(partition(P0, 9, mount(2), lag=None), told=told)
    assert ahead.clients[0].mounts[0].lag_min_milliseconds == UNKNOWN_TIME
    at_head = look(partition(P0, 9, mount(3)), told=told)
    assert at_head.clients[0].mounts[0].lag_max_milliseconds == 0


def test_marks_are_forgotten_with_their_connection() -> None:
    told = applied((1, P0, 7, 99.5), (1, P1, 8, 99.5), (2, P0, 9, 99.5))
    assert len(told) == 3
    told.forget(1)
    assert (len(told), told.of(1)) == (1, {})


def test_a_mark_that_falls_back_is_taken_as_it_was_told() -> None:
    """A database that was restored has applied less than before."""
    told = applied((1, P0, 7, 99.0), (1, P0, 2, 99.5))
    assert told.of(1) == {P0: ToldMark(TransactionId(2), 99.5)}


def test_clients_come_in_pages_in_the_order_of_their_connections() -> None:
    count = 2 * CLIENTS_TOLD_MAX + 1
    found = look(partition(P0, 9, *[mount(number) for number in range(count, 0, -1)]))
    numbers: list[int] = []
    while True:
        page = found.answer(ClientsRequest(5, numbers[-1] if numbers else 0, ()), (), 100.25)
        assert (page.request_number, page.age_milliseconds) == (5, 250)
        numbers += [each.number for each in page.clients]
        if not page.has_more:
            break
    assert numbers == [*range(1, count + 1)]
    assert found.answer(ClientsRequest(5, count, ()), (), 100.0).clients == ()


def test_a_page_has_a_bounded_number_of_mounts_and_one_client_at_least() -> None:
    partitions = [
        partition(PartitionId(number), 9, mount(1), mount(2))
        for number in range(MOUNTS_TOLD_MAX + 3)
    ]
    page = look(*partitions).answer(ClientsRequest(5, 0, ()), (), 100.0)
    (client,) = page.clients
    assert (len(client.mounts), client.mounts_left_out, page.has_more) == (MOUNTS_TOLD_MAX, 3, True)


def test_a_connection_that_has_just_ended_is_left_out() -> None:
    looking = Looking(AppliedByClients(), 100.0)
    assert [*looking.take(partition(P0, NOTHING, mount(1)), 100.0)] == [None]
    assert looking.end(lambda _: None, 100.0).clients == ()


def test_a_look_at_many_mounts_serves_longer() -> None:
    few = look(partition(P0, 9, mount(1)))
    many = look(partition(P0, 9, *[mount(number) for number in range(1, 10_001)]))
    assert [few.is_fresh(100.0 + CLIENTS_LOOK_SECONDS / 2), few.is_fresh(100.5)] == [True, False]
    assert [many.is_fresh(102.9), many.is_fresh(103.1)] == [True, False]
