"""Who can be counted on is told of open store sessions only; of one that opens it is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.operators.test_cluster_growth_shell import Scene, play
from waltz.cli.open_sessions import opening_sessions, read_open_sessions
from waltz.cli.server_answers import ServerAnswers
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState, next_session
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.errors import ConfigurationError, UnavailableError
from waltz.host import Host
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import PartitionReport, ReplicaEntry, Standing

ZERO, ONE = map(PartitionId, range(2))
NODES = tuple(ReplicaId(f"{name}:1") for name in "abc")
METADATA = PartitionMetadata(
    Generation(1), SessionId(4), dict.fromkeys(NODES, ReplicaState(SessionId(4), None))
)
BEGUN = next_session(METADATA, Generation(2))


def report(*standings: Standing, session: int = 4) -> PartitionReport:
    replicas = tuple(
        ReplicaEntry(node, standing, -1, 10, "is so")
        for node, standing in zip(NODES, standings, strict=True)
    )
    return PartitionReport(
        ZERO, Generation(1), SessionId(session), TransactionId(1), 0, None, replicas
    )


def why(metadata: PartitionMetadata, owner: ServerAnswers | None) -> str | None:
    owners = {} if owner is None else {ZERO: owner}
    return opening_sessions({ZERO: metadata}, owners).get(ZERO)


def told(found: PartitionReport) -> ServerAnswers:
    return ServerAnswers(None, reports={ZERO: found})


CURRENT, RECOVERING, ABSENT = Standing.CURRENT, Standing.RECOVERING, Standing.ABSENT


def test_a_session_is_open_once_its_server_has_let_a_majority_in() -> None:
    """F-5: before that the server calls every replica recovering, and none of them is away."""
    assert why(METADATA, told(report(CURRENT, CURRENT, ABSENT))) is None
    assert why(METADATA, told(report(Standing.SILENT, Standing.REFUSING, RECOVERING))) is None
    opening = report(RECOVERING, RECOVERING, ABSENT, session=5)
    assert why(BEGUN, told(opening)) == "store session 5 is not open yet"
    waits = replace(opening, reason="session 5 waits for a majority")
    assert why(BEGUN, told(waits)) == "session 5 waits for a majority"


def test_a_session_that_another_one_has_replaced_since_says_nothing() -> None:
    assert why(BEGUN, told(report(*[CURRENT] * 3))) == "store session 5 is not open yet"
    assert why(METADATA, ServerAnswers(None, reports={})) == (
        "its server has not opened a store session yet"
    )


def test_without_a_report_the_metadata_says_whether_a_session_is_open() -> None:
    for owner in (None, ServerAnswers("it is away"), ServerAnswers(None, silence="it is of Java")):
        assert why(METADATA, owner) is None
        assert why(BEGUN, owner) == "store session 5 is not open yet"


PARTITIONS = [ZERO, ONE]


def check_whole(
    sessions: Mapping[PartitionId, PartitionMetadata],
    lost: Mapping[PartitionId, frozenset[ReplicaId]],
) -> None:
    for number, each in sessions.items():
        if len({*each.current_replicas} - lost[number]) < 3:
            raise ConfigurationError(f"partition {number} needs all of its replicas")


def test_a_session_that_opens_is_awaited_and_one_that_cannot_is_unknown() -> None:
    async def ask(host: Host) -> int:
        found = await read_open_sessions(host, DEFAULT_ROOT, PARTITIONS)
        assert len(found.sessions) == 2
        return min(
            len({*each.current_replicas} - found.lost[number])
            for number, each in found.sessions.items()
        )

    async def story(scene: Scene) -> None:
        for name in ("server-0", "storage-1", "storage-2"):
            scene.kill(name)
        scene.boot("server-0")
        with pytest.raises(UnavailableError, match=r"partition 0 can be counted on is unknown: .+"):
            await scene.ask(ask)
        asking = asyncio.create_task(scene.ask(ask))
        for name in ("storage-1", "storage-2"):
            scene.boot(name)
        assert await asking >= 2, "a majority, or the session would not be open"

    play(story, seeds=5)


def test_a_replica_on_its_way_into_the_session_is_awaited_before_a_command_is_refused() -> None:
    """F-5: a node that comes back has its partitions' sessions replaced."""

    async def ask(host: Host) -> None:
        await read_open_sessions(host, DEFAULT_ROOT, PARTITIONS, check_whole)

    async def story(scene: Scene) -> None:
        scene.kill("storage-1")
        with pytest.raises(ConfigurationError, match="needs all of its replicas"):
            await scene.ask(ask)
        scene.boot("storage-1")
        while True:
            try:
                await scene.ask(ask)
            except ConfigurationError:
                continue  # no server has noticed yet that the node is back
            break

    play(story, seeds=5)
