from __future__ import annotations

import json
from dataclasses import replace

from waltz.figures import BOUNDS, Sample
from waltz.limits import REPORT_REPLICAS_MAX
from waltz.server.appends.stage_seconds import StageSeconds
from waltz.server.server_metrics import (
    SERVER_METRICS,
    SERVER_PARTITION_FAMILIES,
    SERVER_PARTITION_METRICS,
    CoordinatorContact,
    ServerPartitionState,
    ServerStage,
    ServerState,
    original_gauges,
    server_health_json,
    told_durations,
    told_problems,
    told_reports,
)
from waltz.store.standing import ReplicaReport, StoreReport
from waltz.types import (
    NO_SESSION,
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    SessionId,
    TransactionId,
)
from waltz.wire.report_protocol import DurationsReport, DurationsRequest, Standing

NODE = ReplicaId("s:1")


def store(standing: Standing, takes_appends: bool | None) -> StoreReport:
    replica = ReplicaReport(NODE, standing, takes_appends, 2.0, "has its reason")
    return StoreReport(SessionId(4), TransactionId(3), None, (NODE,), (replica,))


WELL = ServerPartitionState(
    partition_id=PartitionId(0),
    generation=Generation(1),
    reason=None,
    high_water_mark=TransactionId(3),
    store=store(Standing.CURRENT, True),
)
FULL = replace(WELL, store=store(Standing.REFUSING, False))
SILENT = replace(WELL, store=store(Standing.SILENT, None))
UNTOLD = replace(WELL, store=store(Standing.UNKNOWN, None))
UNWELL = ServerPartitionState(
    partition_id=PartitionId(1), generation=Generation(1), reason="2 of 3 replicas are lost"
)


def server(
    *partitions: ServerPartitionState, stage: ServerStage = ServerStage.SERVING
) -> ServerState:
    return ServerState(
        stage=stage, server_id=ServerId(1), advertised="host:7000", partitions=partitions
    )


def test_server_is_well_while_it_serves_and_all_its_partitions_take_appends() -> None:
    """SV-26, MT-43."""
    assert server(WELL).is_healthy
    assert server().is_healthy, "one without partitions waits for some"
    assert not server(WELL, UNWELL).is_healthy
    assert not server(WELL, stage=ServerStage.STOPPING).is_healthy


def test_health_says_what_is_wrong_and_where() -> None:
    health = server_health_json(server(WELL, UNWELL))
    assert not health["healthy"]
    assert health["problems"] == []
    assert health["partitions"]["0"] == {
        "writable": True,
        "problems": [],
        "unknown": [],
        "replicas": {
            NODE: {"standing": "current", "answer_age_seconds": 2.0, "text": "has its reason"}
        },
    }
    assert health["partitions"]["1"]["problems"] == ["takes no appends: 2 of 3 replicas are lost"]
    stopping = server_health_json(server(stage=ServerStage.STOPPING))
    assert stopping["problems"] == ["the server is stopping"]


def test_a_partition_with_a_session_is_not_well_if_its_replicas_take_no_appends() -> None:
    """F-6"""
    assert not server(FULL).is_healthy
    assert FULL.problems()[0].startswith("takes no appends: 0 of 1 replicas take appends")
    assert server_health_json(server(FULL))["partitions"]["0"]["writable"] is False
    assert told_problems(server(WELL, FULL).partitions)[0].partition_id == 0


def test_what_nobody_can_say_is_unknown_and_a_replica_that_is_silent_is_a_problem() -> None:
    for state, is_healthy in ((UNTOLD, True), (SILENT, False)):
        assert server(state).is_healthy is is_healthy
        health = server_health_json(server(state))["partitions"]["0"]
        assert health["writable"] is None
        assert bool(health["problems"]) is not is_healthy
        assert bool(health["unknown"]) is is_healthy
    assert [shown(state, "writable") for state in (WELL, FULL, UNTOLD)] == [1, 0, -1]
    assert [shown(state, "replicas_current") for state in (WELL, SILENT)] == [1, 0]
    assert shown(SILENT, "replicas_silent") == 1


def shown(state: ServerPartitionState, name: str) -> float | None:
    (value,) = [each.value(state) for each in SERVER_PARTITION_METRICS if each.name == name]
    return value


def test_a_coordinator_that_does_not_answer_is_a_problem_with_its_age() -> None:
    """F-7"""
    for contact, problem in (
        (CoordinatorContact(3.0, None), None),
        (CoordinatorContact(9.0, "no answer in 3 s"), None),
        (CoordinatorContact(41.0, "no answer in 3 s"), "not answered for 41 s (no answer in 3 s)"),
        (CoordinatorContact(None, None), "never answered"),
    ):
        state = replace(server(WELL), coordinator=contact)
        assert state.is_healthy is (problem is None)
        found = server_health_json(state)
        assert found["coordinator_answer_age_seconds"] == contact.age_seconds
        assert (problem or "") in "".join(found["problems"])
        lost = [each.value(state) for each in SERVER_METRICS if each.name == "coordinator_lost"]
        assert lost == [None if contact.age_seconds is None else problem is not None]


def test_a_server_that_is_not_registered_is_not_well() -> None:
    """It waits for partitions that nobody gives it."""
    state = replace(server(), is_registered=False)
    assert not state.is_healthy
    assert "not registered with the coordinator" in server_health_json(state)["problems"][0]
    starting = replace(state, stage=ServerStage.STARTING)
    assert server_health_json(starting)["problems"] == ["the server is starting"]


def test_tools_are_told_what_is_known_and_how_old_it_is() -> None:
    well, silent = told_reports([WELL, replace(SILENT, partition_id=PartitionId(1))])
    assert (well.writable, silent.writable) == (1, -1)
    assert well.reason is None
    assert silent.replicas[0].standing == Standing.SILENT
    assert silent.replicas[0].age_milliseconds == 2000
    assert told_reports([UNWELL])[0].replicas == ()


def test_every_figure_has_a_name_of_its_own_and_a_meaning() -> None:
    families = [(each.name, each.meaning) for each in SERVER_PARTITION_FAMILIES]
    of_partitions = [(each.name, each.meaning) for each in SERVER_PARTITION_METRICS]
    for figures in (
        [(each.name, each.meaning) for each in SERVER_METRICS],
        of_partitions + families,
    ):
        assert len({name for name, _ in figures}) == len(figures)
        assert all(meaning.endswith(".") for _, meaning in figures)


def test_tools_of_the_original_find_their_names() -> None:
    """`ServerCli list` reads the number of partitions and the replicas of each."""
    replicas = (ReplicaId("storage-1:7000"), ReplicaId("storage-2:7000"))
    state = ServerState(
        stage=ServerStage.SERVING,
        server_id=ServerId(3),
        advertised="server:7100",
        partitions=(
            ServerPartitionState(
                partition_id=PartitionId(0),
                generation=Generation(1),
                reason=None,
                replica_ids=replicas,
            ),
            ServerPartitionState(
                partition_id=PartitionId(1), generation=Generation(1), reason="opening"
            ),
        ),
    )
    gauges = json.loads(json.dumps(original_gauges(state)))
    assert gauges["waltz-server.waltz-server-num-partitions"] == {"value": 2}
    assert gauges["waltz-server.replica-info"] == {"value": {"0": [*replicas]}}
    assert gauges["waltz-server.server-id"] == {"value": 3}
    assert gauges["waltz-server.is-closed"] == {"value": False}


def samples(state: ServerPartitionState, name: str) -> list[Sample]:
    (family,) = [each for each in SERVER_PARTITION_FAMILIES if each.name == name]
    found = list(family.samples(state))
    assert all(len(labels) == len(family.labels) for labels, _ in found)
    return found


def test_each_replica_has_the_standing_that_it_told_and_nothing_that_nobody_can_say() -> None:
    unheard = ReplicaReport(NODE, Standing.UNKNOWN, None, None, "has not been asked")
    untold = replace(
        WELL, store=StoreReport(SessionId(4), TransactionId(3), None, (NODE,), (unheard,))
    )
    assert samples(FULL, "replica_standing") == [((NODE, "refusing"), 1)]
    assert samples(WELL, "replica_standing") == [((NODE, "current"), 1)]
    assert samples(WELL, "replica_takes_appends") == [((NODE,), True)]
    assert samples(WELL, "replica_answer_age_seconds") == [((NODE,), 2.0)]
    assert samples(FULL, "replica_takes_appends") == [((NODE,), False)]
    assert samples(untold, "replica_standing") == [((NODE, "unknown"), 1)]
    assert samples(untold, "replica_takes_appends") == []
    assert samples(untold, "replica_answer_age_seconds") == []
    for name in ("replica_standing", "replica_takes_appends", "replica_answer_age_seconds"):
        assert samples(UNWELL, name) == [], "it has no store"


def test_a_partition_has_no_more_replicas_in_its_samples_than_tools_are_told_of() -> None:
    many = tuple(
        ReplicaReport(ReplicaId(f"s:{number}"), Standing.CURRENT, True, 1.0, "")
        for number in range(REPORT_REPLICAS_MAX + 5)
    )
    state = replace(WELL, store=StoreReport(SessionId(4), TransactionId(3), None, (NODE,), many))
    assert len(samples(state, "replica_standing")) == REPORT_REPLICAS_MAX


def test_a_session_that_nobody_knows_has_neither_number_nor_age() -> None:
    assert shown(WELL, "session_id") == 4
    assert shown(UNWELL, "session_id") is None
    assert shown(UNWELL, "session_seconds") is None
    assert shown(replace(WELL, session_seconds=7.5), "session_seconds") == 7.5
    no_session = StoreReport(NO_SESSION, None, "no majority", (), ())
    assert shown(replace(WELL, store=no_session), "session_id") is None


def test_whether_the_coordinator_answers_is_known_once_it_was_asked() -> None:
    def read(name: str, contact: CoordinatorContact | None) -> float | None:
        (metric,) = [each for each in SERVER_METRICS if each.name == name]
        return metric.value(replace(server(WELL), coordinator=contact))

    answers, lost = CoordinatorContact(1.0, None, 9.0, 2), CoordinatorContact(5.0, "gone", 3.0, 4)
    for name, expected in (
        ("coordinator_connected", [None, None, 1, 0]),
        ("coordinator_state_seconds", [None, None, 9, 3]),
        ("coordinator_answer_age_seconds", [None, None, 1, 5]),
        ("coordinator_calls_lost", [None, 0, 2, 4]),
    ):
        unasked = CoordinatorContact(None, None)
        assert [read(name, each) for each in (None, unasked, answers, lost)] == expected


def test_durations_are_told_by_bucket_of_each_stage() -> None:
    seconds = StageSeconds()
    for each in (0.00005, 0.0001, 0.3, 99.0):
        seconds.store.add(each)
    asked = DurationsRequest(5, PartitionId(3))
    told = told_durations(asked, seconds)
    assert [each.stage for each in told.stages] == ["wait", "store", "feed"]
    store = told.stages[1]
    assert store.sum_microseconds == 99_300_150
    counts = {each.bound_microseconds: each.count for each in store.buckets}
    assert {bound: count for bound, count in counts.items() if count} == {100: 2, 500_000: 1, -1: 1}
    assert len(store.buckets) == len(BOUNDS) + 1
    assert told_durations(asked, None) == DurationsReport(5, ())
