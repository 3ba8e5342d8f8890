"""What a listener is told: each event once, in order, and beside everything else."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest

from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.lifecycle_events import (
    ClusterChanged,
    ConnectionRestored,
    LifecycleEvent,
    PartitionMounted,
    PartitionUnmounted,
    ServerConnected,
    ServerDisconnected,
)
from waltz.client.listening_shell import LISTENER_EVENTS_MAX, Listening
from waltz.connections.tasks_shell import Tasks
from waltz.types import Address, PartitionId

ONE, TWO = Address("one", 1), Address("two", 1)
P0 = PartitionId(0)


def heard(work: Any, listener: Any = None) -> list[LifecycleEvent]:
    """What a listener hears of `work`."""
    events: list[LifecycleEvent] = []

    async def main(cluster: FakeCluster) -> None:
        tasks = Tasks(lambda error: pytest.fail(f"{error!r}"))
        listening = Listening(cluster.host, tasks, listener or events.append)
        listening.start()
        work(listening)
        listening.tell(ConnectionRestored(TWO))
        await listening.told()
        if listener is None:
            await until(lambda: events[-1:] == [ConnectionRestored(TWO)])
        await tasks.stop()

    run_with_cluster(main)
    return events[:-1]


def test_a_server_is_connected_once_however_many_connections_it_has() -> None:
    """LC-89."""

    def work(listening: Listening) -> None:
        listening.server_connected(ONE)
        listening.server_connected(ONE)
        listening.server_connected(TWO)
        listening.server_disconnected(ONE)
        listening.server_disconnected(ONE)
        listening.server_connected(ONE)

    assert heard(work) == [
        ServerConnected(ONE),
        ServerConnected(TWO),
        ServerDisconnected(ONE),
        ServerConnected(ONE),
    ]


def test_a_partition_is_mounted_and_unmounted_once() -> None:
    """LC-89."""

    def work(listening: Listening) -> None:
        for mounted in (False, True, True, False, False, True):
            listening.partition_mounted(P0, mounted)

    assert heard(work) == [PartitionMounted(P0), PartitionUnmounted(P0), PartitionMounted(P0)]


def test_what_a_listener_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """LC-89."""
    called: list[LifecycleEvent] = []

    def fail(event: LifecycleEvent) -> None:
        called.append(event)
        raise ValueError("no")

    def work(listening: Listening) -> None:
        listening.tell(ClusterChanged(UUID(int=1), UUID(int=2)))
        listening.server_connected(ONE)

    heard(work, fail)
    assert called[:2] == [ClusterChanged(UUID(int=1), UUID(int=2)), ServerConnected(ONE)]
    assert "listener_failed" in caplog.text


def test_events_that_wait_are_bounded() -> None:
    go = threading.Event()
    called: list[LifecycleEvent] = []

    def wait(event: LifecycleEvent) -> None:
        go.wait()
        called.append(event)

    def work(listening: Listening) -> None:
        for _ in range(LISTENER_EVENTS_MAX + 10):
            listening.tell(ServerConnected(ONE))
        go.set()

    heard(work, wait)
    assert LISTENER_EVENTS_MAX - 1 <= len(called) <= LISTENER_EVENTS_MAX


def test_a_listener_that_hangs_holds_up_no_data() -> None:
    """LC-89: off the hot path."""
    go = threading.Event()
    told: list[LifecycleEvent] = []

    def hang(event: LifecycleEvent) -> None:
        told.append(event)
        go.wait()

    async def work(cluster: FakeCluster) -> None:
        options = ClientOptions(listener=hang, close_seconds_max=0.05)
        async with AsyncWaltzClient(cluster.host, NoCallbacks(), options) as client:
            for number in range(10):
                assert await client.append(0, b"a") == number
            assert len(told) == 1
        go.set()

    run_with_cluster(work)
