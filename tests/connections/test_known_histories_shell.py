"""What is taken in before a connection is used: told by a server or by others, or unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from tests.client.fake_cluster import CLUSTER_KEY, OLDER_CODEC, FakeCluster, run_with_cluster
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.connections.connection_shell import ServerConnection
from waltz.connections.known_histories_shell import KnownHistories
from waltz.errors import HistoryChangedError, RemoteProtocolError, UnavailableError
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.history_protocol import HistoriesRequest
from waltz.wire.message import Codec

PLAIN = Histories(CLUSTER_KEY)
ONE, TWO = (
    LogHistory(UUID(int=number), 0, {PartitionId(0): TransactionId(number)}) for number in (1, 2)
)
FIRST, BOTH = Histories(CLUSTER_KEY, (ONE,)), Histories(CLUSTER_KEY, (ONE, TWO))

Otherwise = Callable[[], Awaitable[Histories]]


class Learner:
    """Histories that are learnt from one server; `refused` are those that the owner refuses."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.told: list[Histories] = []
        self.refused: Histories | None = None
        self.known = KnownHistories(self._take)

    def _take(self, histories: Histories) -> None:
        if histories == self.refused:
            raise HistoryChangedError("not these")
        self.told.append(histories)

    async def learn(
        self, histories: Histories | None, otherwise: Otherwise | None = None
    ) -> Histories | None:
        self.cluster.server.histories = histories
        connection = await ServerConnection.open(self.cluster.host, self.cluster.server.address)
        try:
            await self.known.learn(connection, CLUSTER_KEY, otherwise)
        finally:
            connection.close()
        return self.known.current


def test_histories_are_taken_in_as_they_grow() -> None:
    async def work(cluster: FakeCluster) -> None:
        learner = Learner(cluster)
        for histories in (PLAIN, PLAIN, FIRST, FIRST, BOTH):
            assert await learner.learn(histories) == histories
        assert learner.told == [PLAIN, FIRST, BOTH]
        assert cluster.server.count(HistoriesRequest) == 2

    run_with_cluster(work, codec=CLIENT_CODEC)


@pytest.mark.parametrize("older", [PLAIN, FIRST])
def test_a_server_of_an_earlier_history_is_not_used(older: Histories) -> None:
    async def work(cluster: FakeCluster) -> None:
        learner = Learner(cluster)
        await learner.learn(BOTH)
        with pytest.raises(UnavailableError, match="is of the time before the log was restored"):
            await learner.learn(older)
        assert learner.known.current == BOTH

    run_with_cluster(work, codec=CLIENT_CODEC)


def test_what_the_owner_refuses_is_refused_each_time() -> None:
    async def work(cluster: FakeCluster) -> None:
        learner = Learner(cluster)
        await learner.learn(PLAIN)
        learner.refused = FIRST
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="not these"):
                await learner.learn(FIRST)
        assert learner.known.current == PLAIN

    run_with_cluster(work, codec=CLIENT_CODEC)


@pytest.mark.parametrize("codec", [CLIENT_CODEC, OLDER_CODEC], ids=["earlier", "original"])
def test_where_the_server_does_not_know_somebody_else_is_asked_and_has_to_tell(
    codec: Codec,
) -> None:
    async def nobody() -> Histories:
        raise UnavailableError("nobody tells")

    async def first() -> Histories:
        return FIRST

    async def work(cluster: FakeCluster) -> None:
        learner = Learner(cluster)
        assert await learner.learn(None) is None
        assert await learner.learn(None, first) == FIRST
        with pytest.raises(UnavailableError, match="nobody tells"):
            await learner.learn(None, nobody)
        assert learner.told == [FIRST]

    run_with_cluster(work, codec=codec)
