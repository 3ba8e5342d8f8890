from __future__ import annotations

import json

from waltz.server.metrics import (
    SERVER_METRICS,
    SERVER_PARTITION_METRICS,
    PartitionState,
    ServerState,
    Stage,
    original_gauges,
    server_health_json,
)
from waltz.types import Generation, PartitionId, ReplicaId, ServerId, TransactionId

WELL = PartitionState(
    partition_id=PartitionId(0),
    generation=Generation(1),
    reason=None,
    high_water_mark=TransactionId(3),
)
UNWELL = PartitionState(
    partition_id=PartitionId(1), generation=Generation(1), reason="2 of 3 replicas are lost"
)


def server(*partitions: PartitionState, stage: Stage = Stage.SERVING) -> ServerState:
    return ServerState(
        stage=stage, server_id=ServerId(1), advertised="host:7000", partitions=partitions
    )


def test_server_is_well_while_it_serves_and_all_its_partitions_take_appends() -> None:
    """SV-26, MT-43."""
    assert server(WELL).is_healthy
    assert server().is_healthy, "one without partitions waits for some"
    assert not server(WELL, UNWELL).is_healthy
    assert not server(WELL, stage=Stage.STOPPING).is_healthy


def test_health_says_what_is_wrong_and_where() -> None:
    health = server_health_json(server(WELL, UNWELL))
    assert not health["healthy"]
    assert health["problems"] == []
    assert health["partitions"]["0"] == {"writable": True, "problems": []}
    assert health["partitions"]["1"]["problems"] == ["takes no appends: 2 of 3 replicas are lost"]
    stopping = server_health_json(server(stage=Stage.STOPPING))
    assert stopping["problems"] == ["the server is stopping"]


def test_every_figure_has_a_name_of_its_own_and_a_meaning() -> None:
    for figures in (SERVER_METRICS, SERVER_PARTITION_METRICS):
        names = [figure.name for figure in figures]
        assert len(set(names)) == len(names)
        assert all(figure.meaning.endswith(".") for figure in figures)


def test_tools_of_the_original_find_their_names() -> None:
    """`ServerCli list` reads the number of partitions and the replicas of each."""
    replicas = (ReplicaId("storage-1:7000"), ReplicaId("storage-2:7000"))
    state = ServerState(
        stage=Stage.SERVING,
        server_id=ServerId(3),
        advertised="server:7100",
        partitions=(
            PartitionState(
                partition_id=PartitionId(0),
                generation=Generation(1),
                reason=None,
                replica_ids=replicas,
            ),
            PartitionState(partition_id=PartitionId(1), generation=Generation(1), reason="opening"),
        ),
    )
    gauges = json.loads(json.dumps(original_gauges(state)))
    assert gauges["waltz-server.waltz-server-num-partitions"] == {"value": 2}
    assert gauges["waltz-server.replica-info"] == {"value": {"0": [*replicas]}}
    assert gauges["waltz-server.server-id"] == {"value": 3}
    assert gauges["waltz-server.is-closed"] == {"value": False}
