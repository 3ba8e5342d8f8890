"""The field of a scenario's clients: versions, applications, progress and tides."""

from __future__ import annotations

from dataclasses import replace

from waltz.sim.applications.databases import DatabaseApplication
from waltz.sim.applications.scenario_field import ScenarioField
from waltz.sim.judges.history import ContextVerdict, History
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import Scenario, draw_scenario
from waltz.types import PartitionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.storage_protocol import STORAGE_CODEC

SCENARIO = draw_scenario(1, "append", "none")


def make_field(scenario: Scenario = SCENARIO, history: History | None = None) -> ScenarioField:
    return ScenarioField(scenario, history or History(), RunTrace(), lambda: 0.0, lambda: 7)


def test_the_field_tells_of_cluster_and_clients() -> None:
    field = make_field()
    assert (field.partition_count, field.client_count) == (7, len(SCENARIO.clients))
    assert not field.grows
    assert make_field(draw_scenario(1, "append", "growing_cluster")).grows


def test_each_life_speaks_the_next_version_and_the_last_one_stays() -> None:
    field = make_field(
        replace(SCENARIO, versions={"server-0": (4, 5)}, storage_versions={"server-0": (1, 0)})
    )
    assert [field.next_version("server-0") for _ in range(3)] == [4, 5, 5]
    assert [field.next_storage_version("server-0") for _ in range(3)] == [1, 0, 0]
    assert field.next_version("server-1") == CLIENT_CODEC.versions[-1]
    assert field.next_storage_version("server-1") == STORAGE_CODEC.versions[-1]


def test_applications_of_one_kind_share_a_database() -> None:
    field = make_field()
    names = ("client-0", "client-1")
    applications = [field.application(name, "database-0") for name in names]
    other = field.application("client-2", "database-1")
    assert field.applications == [*applications, other]
    databases = [
        each._database for each in field.applications if isinstance(each, DatabaseApplication)
    ]
    assert databases[0] is databases[1] is not databases[2]
    field.close()


def test_a_share_of_the_transactions_is_reached_once_as_many_have_ended() -> None:
    history, loop = History(), SimulatedLoop(1)
    field = make_field(history=history)

    async def scene() -> None:
        await field.reached(0.0)
        waiting = loop.create_task(field.reached(1.0))
        for left in reversed(range(SCENARIO.transactions)):
            context = history.submit("client-0", PartitionId(0))
            history.end(context, ContextVerdict.COMMITTED)
            tide = field.tide
            field.raise_tide()
            assert tide.is_set()
            assert not field.tide.is_set()
            assert not (waiting.done() and left)
        await waiting

    try:
        loop.run_until_complete(scene())
    finally:
        loop.shut_down()
