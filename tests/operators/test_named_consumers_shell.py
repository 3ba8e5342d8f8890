"""Named consumers, put together from the coordinator's marks and the answers of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.client.applications import Recorder
from tests.server.logical_caller import LogicalCaller
from tests.server.real_server import running_server
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.consumer_marks import KeptMark
from waltz.cluster.consumers_shell import read_consumers
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.connections.logical_handshake import Handshake
from waltz.errors import RemoteProtocolError, UnavailableError
from waltz.operators.client_questions_shell import (
    ClientMount,
    Lag,
    MountedClient,
    ServerClients,
)
from waltz.operators.named_consumers_shell import (
    ConsumerPartition,
    ConsumersView,
    read_named_consumers,
    view_consumers,
)
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.client_label import ClientLabel, label_extension
from waltz.wire.client_protocol import MountRequest, MountResponse, MountState
from waltz.wire.clients_protocol import AppliedMark, AppliedMarks

P0, P1 = PartitionId(0), PartitionId(1)
A, B = Address("a", 1), Address("b", 1)


def mount(
    partition_id: PartitionId, applied: int | None, mark: int, lag: Lag | None
) -> ClientMount:
    last = None if applied is None else TransactionId(applied)
    told = None if applied is None else 0.1
    return ClientMount(partition_id, TransactionId(mark), last, told, None, lag, False)


def client(
    name: str | None,
    *mounts: ClientMount,
    client_id: int = 1,
    tells_marks: bool = True,
    is_connected: bool = True,
    is_consumer: bool = True,
) -> MountedClient:
    return MountedClient(
        client_id, ClientId(client_id), name, "", "", "", is_consumer, "", "h:1", 5, tells_marks,
        is_connected, 9.0, 0.1, mounts, 0,
    )  # fmt: skip


def answer(
    marks: dict[PartitionId, int],
    *clients: MountedClient,
    lags: dict[tuple[int, int], Lag] | None = None,
    generation: int = 1,
) -> ServerClients:
    return ServerClients(
        0.2,
        {each: Generation(generation) for each in marks},
        {each: TransactionId(mark) for each, mark in marks.items()},
        clients,
        {(PartitionId(p), TransactionId(t)): lag for (p, t), lag in (lags or {}).items()},
        True,
    )


def owners(
    *addresses: Address, generation: int = 1
) -> dict[PartitionId, tuple[Address, Generation]]:
    """The servers of the first partitions."""
    return {
        PartitionId(number): (address, Generation(generation))
        for number, address in enumerate(addresses)
    }


def kept(mark: int, wall: int = 100) -> KeptMark:
    return KeptMark(TransactionId(mark), wall)


def test_a_connected_client_tells_more_than_was_kept() -> None:
    view = view_consumers(
        {"orders": {P0: kept(5)}},
        {A: answer({P0: 9}, client("orders", mount(P0, 7, 9, Lag(2.0, 2.2))))},
        owners(A),
    )
    (found,) = view.consumers
    expected = ConsumerPartition(
        P0, kept(5), TransactionId(7), True, TransactionId(9), Lag(2.0, 2.2)
    )
    assert found.partitions == (expected,)
    assert (found.lag_transactions, found.lag) == (2, Lag(2.0, 2.2))
    assert found.is_current
    assert view.is_complete


def test_what_is_kept_is_a_lower_bound_of_the_mark_and_an_upper_one_of_the_lag() -> None:
    view = view_consumers(
        {"orders": {P0: kept(5, 300), P1: kept(3, 200)}},
        {A: answer({P0: 9, P1: 3}, lags={(0, 5): Lag(40.0, 41.0), (1, 3): Lag(0.0, 0.0)})},
        owners(A, A),
    )
    (found,) = view.consumers
    assert [each.lag for each in found.partitions] == [Lag(0.0, 41.0), Lag(0.0, 0.0)]
    assert (found.lag_transactions, found.last_known_milliseconds) == (4, 300)
    assert not found.is_current


def test_what_nobody_knows_is_unknown() -> None:
    """The server is away; the lag has no upper bound; the node cannot be read."""
    view = view_consumers(
        {"orders": {P0: kept(5)}, "export": {P1: kept(1)}, "odd": RemoteProtocolError("no JSON")},
        {A: answer({P1: 9}, lags={(1, 1): Lag(40.0, None)}), B: UnavailableError("it is away")},
        owners(B, A),
    )
    export, odd, orders = view.consumers
    assert (orders.lag_transactions, orders.lag) == (None, None)
    assert (export.lag_transactions, export.lag) == (8, None)
    assert (odd.trouble, odd.partitions, odd.lag) == ("no JSON", (), None)
    assert (odd.lag_transactions, odd.is_current) == (None, False)
    assert view.unasked == {B: "it is away"}
    assert not view.is_complete


def test_a_consumer_whose_kept_marks_cannot_be_read_may_be_further_behind_elsewhere() -> None:
    """One partition is mounted; which others were kept is not known."""
    (found,) = view_consumers(
        {"orders": RemoteProtocolError("no JSON")},
        {A: answer({P0: 9}, client("orders", mount(P0, 9, 9, Lag(0.0, 0.0))))},
        owners(A),
    ).consumers
    assert [each.lag_transactions for each in found.partitions] == [0]
    assert (found.lag_transactions, found.lag, found.is_current) == (None, None, False)


def test_a_client_that_has_mounted_more_than_its_server_tells_may_be_further_behind() -> None:
    told = client("orders", mount(P0, 9, 9, Lag(0.0, 0.0)))
    (found,) = view_consumers(
        {}, {A: answer({P0: 9}, replace(told, mounts_left_out=1))}, owners(A)
    ).consumers
    assert (found.lag_transactions, found.lag, found.is_current) == (None, None, False)


def test_answers_of_nobody_have_no_age() -> None:
    view = view_consumers({"orders": {P0: kept(5)}}, {A: UnavailableError("away")}, owners(A))
    assert view.age_seconds is None


def test_a_client_that_does_not_tell_or_is_interrupted_may_be_further() -> None:
    for other in (
        client("orders", mount(P0, 7, 9, Lag(2.0, 2.2)), tells_marks=False),
        client("orders", mount(P0, 7, 9, Lag(2.0, 2.2)), is_connected=False),
    ):
        (found,) = view_consumers({}, {A: answer({P0: 9}, other)}, owners(A)).consumers
        assert not found.is_current
        assert found.lag == Lag(0.0, 2.2)


def test_of_several_instances_the_one_that_has_applied_most_counts() -> None:
    view = view_consumers(
        {},
        {
            A: answer(
                {P0: 9},
                client("orders", mount(P0, 7, 9, Lag(2.0, 2.2)), client_id=1),
                client("orders", mount(P0, 9, 9, Lag(0.0, 0.0)), client_id=2),
                client("orders", mount(P0, None, 9, None), client_id=3),
            )
        },
        owners(A),
    )
    (found,) = view.consumers
    assert (found.lag_transactions, len(found.instances)) == (0, 3)


def test_only_the_server_that_has_a_partition_says_where_its_log_ends() -> None:
    """The other one may have lost it without knowing, and would say that nobody is behind."""
    lost = answer({P0: 7}, client("orders", mount(P0, 7, 7, Lag(0.0, 0.0))))
    for owned, expected in (
        (owners(B, generation=2), (2, None)),
        (owners(A), (0, Lag(0.0, 0.0))),
        (owners(A, generation=2), (None, None)),
        ({}, (None, None)),
    ):
        answers = {A: lost, B: answer({P0: 9}, generation=2)}
        (found,) = view_consumers({}, answers, owned).consumers
        assert (found.lag_transactions, found.lag) == expected


def test_only_consumers_are_shown_unless_everybody_is_asked_for() -> None:
    answers = {
        A: answer(
            {P0: 9},
            client("orders", mount(P0, 7, 9, None), client_id=1),
            client("python", mount(P0, 7, 9, None), client_id=2, is_consumer=False),
            client(None, mount(P0, None, 9, None), client_id=3, is_consumer=False),
            client(None, mount(P0, None, 9, None), client_id=4, is_consumer=False),
        )
    }
    assert [each.name for each in view_consumers({}, answers, owners(A)).consumers] == ["orders"]
    everybody = view_consumers({}, answers, owners(A), everybody=True).consumers
    assert [each.name for each in everybody] == ["orders", "python", None, None]


def test_a_mark_beyond_the_end_of_the_log_is_no_negative_lag() -> None:
    view = view_consumers({"orders": {P0: kept(70)}}, {A: answer({P0: 9})}, owners(A))
    assert (view.consumers[0].lag_transactions, view.consumers[0].lag) == (None, None)


def test_the_marks_of_a_consumer_outlive_it(tmp_path: Path) -> None:
    """Kept once it has told, shown while it is away, and gone on from when it is back."""
    options = ClientOptions(name="orders", instance="1", is_consumer=True)

    async def play() -> None:
        async with running_server(tmp_path) as (host, server):

            async def until(is_right: Callable[[ConsumersView], bool]) -> ConsumersView:
                while not is_right(view := await read_named_consumers(host, DEFAULT_ROOT)):
                    await asyncio.sleep(0.05)
                return view

            async with AsyncWaltzClient(host, Recorder(), options) as first:
                for _ in range(3):
                    await first.append(0, b"x")
                view = await until(lambda view: any(each.is_current for each in view.consumers))
                assert view.consumers[0].name == "orders"
                while not server.consumers().lags:
                    await asyncio.sleep(0.05)
                assert [each.is_connected for each in server.consumers().lags] == [True]
            view = await until(
                lambda view: (
                    not view.consumers[0].instances
                    and view.consumers[0].partitions[0].kept is not None
                    and view.consumers[0].partitions[0].kept.transaction_id == 2
                )
            )
            assert view.is_complete
            assert (view.consumers[0].lag_transactions, view.consumers[0].lag) == (0, Lag(0, 0))
            async with AsyncWaltzClient(host, Recorder(), ClientOptions(name="other")) as writer:
                await writer.append(0, b"y")
                view = await until(lambda view: view.consumers[0].lag_transactions == 1)
            assert [each.name for each in view.consumers] == ["orders"]
            (lag,) = server.consumers().lags
            assert (lag.name, lag.is_connected, lag.transactions) == ("orders", False, 1)
            assert list(await read_consumers(host.coordinator)) == ["orders"]

    asyncio.run(play())


def test_marks_that_a_peer_cannot_have_applied_are_not_kept(tmp_path: Path) -> None:
    """Beyond the end of the log, and of partitions that it has not mounted."""

    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            async with AsyncWaltzClient(host, Recorder(), ClientOptions()) as writer:
                for _ in range(3):
                    await writer.append(0, b"x")
            extension = label_extension(ClientLabel("orders", is_consumer=True))
            request = replace(Handshake().request, extensions=(extension,))
            caller = await LogicalCaller.connect(host, server.address, request)
            caller.say(AppliedMarks((AppliedMark(P0, TransactionId(1)),)))
            request_id = RequestId(ClientId(77), Generation(1), P0, 1)
            caller.say(MountRequest(request_id, TransactionId(2), 1))
            assert (await caller.hear(MountResponse)).state is MountState.READY
            lies = (2**62, 3, -2, 0)
            caller.say(*[AppliedMarks((AppliedMark(P0, TransactionId(lie)),)) for lie in lies])
            while not (found := await read_consumers(host.coordinator)):
                await asyncio.sleep(0.05)
            assert isinstance(found["orders"], dict)
            assert [mark.transaction_id for mark in found["orders"].values()] == [0]
            assert [each.transactions for each in server.consumers().lags] == [2]

    asyncio.run(play())
