"""What the program says of a cluster is so: quick states here, all by `python -m tests.states`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from tests.clusters import Said
from tests.states.judge import Truth, judge
from tests.states.play import play
from tests.states.table import STATES, State
from tests.states.world import (
    APPEND_SECONDS,
    HOLDERS,
    SERVERS,
    Answers,
    Metrics,
    World,
    running_world,
)

QUICK = [state for state in STATES if state.is_quick]

PAUSE_SECONDS = 2.0
"""Between two questions, of a state that lasts twenty."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("states")) as world:
        yield world


@pytest.mark.processes
def test_everything_that_is_said_while_all_is_well_is_so(world: World) -> None:
    """F-5, F-6, F-7"""
    assert play(world, QUICK[0], pause_seconds=PAUSE_SECONDS).wrong == []


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("state", QUICK, ids=lambda state: state.name.replace(" ", "_"))
def test_everything_that_is_said_in_a_state_is_so(world: World, state: State) -> None:
    """The same without a pause, in every quick state."""
    assert play(world, state).wrong == []


@pytest.mark.processes
@pytest.mark.parametrize("seconds", [11, pytest.param(30, marks=pytest.mark.long)])
def test_a_disk_that_hangs_under_one_partition_stops_nothing_else(
    world: World, seconds: float
) -> None:
    """A majority of its replicas hang: the partition waits, the other one and all probes do not."""
    hanging = HOLDERS[:2]
    world.hang(0, *hanging)
    with ThreadPoolExecutor() as pool:
        appended = pool.submit(world.append, 0, seconds=seconds + APPEND_SECONDS)
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            assert world.append(1)
            for name in (*HOLDERS, *SERVERS):
                assert world.read_http(name, "/live") == (200, "live\n")
                assert world.read_http(name, "/health") is not None
        assert not appended.done()
        for name in hanging:
            status, text = world.read_http(name, "/health") or (0, "{}")
            partitions = json.loads(text)["partitions"]
            assert (status, partitions["1"]["problems"]) == (503, [])
            (problem,) = partitions["0"]["problems"]
            assert "disk call" in problem
        assert (world.read_http(HOLDERS[2], "/health") or (0, ""))[0] == 200
        world.go_on(*hanging)
        assert appended.result()
    world.wait_until_well()


def test_there_are_thirty_states_and_each_has_a_name_of_its_own() -> None:
    assert len({state.name for state in STATES}) == len(STATES) >= 30


class Told:
    """A world that says what a test lets it say."""

    data: ClassVar = {"s1": "a:1", "s2": "b:1", "s3": "c:1"}

    def answers(self, standing: str, *, writable: bool | None = True, code: int = 1) -> Answers:
        replicas = [
            {"replica_id": address, "standing": "current" if name != "s1" else standing}
            for name, address in self.data.items()
        ]
        current = sum(each["standing"] == "current" for each in replicas)
        partition = {"replica_states": replicas, "replicas_current": current, "writable": writable}
        partitions = [{"partition_id": number} | partition for number in range(2)]
        status = json.dumps({"healthy": code == 0, "partitions": partitions})
        verify = json.dumps({"passed": False, "checks": [
            {"check": name, "passed": False} for name in ("quorum", "recovery", "health")
        ]})  # fmt: skip
        health = {"coordinator_answer_age_seconds": 1.0, "problems": [], "partitions": {}}
        metrics = Metrics({("coordinator_lost", ""): 0.0})
        return Answers(
            100.0,
            Said(code, status, ""),
            Said(1, verify, ""),
            {"v1": (200, dict(health)), "v2": (200, dict(health))},
            {"v1": metrics, "v2": metrics},
        )


def test_the_judge_finds_what_is_not_so() -> None:
    """Each of the statements of F-5 and F-6, planted."""
    told = Told()
    world: World = told  # type: ignore[assignment]
    dead = Truth(whole={"s2", "s3"})
    assert judge(world, dead, told.answers("absent")).false == []
    (wrong,) = {
        text.partition(": ")[2] for text in judge(world, dead, told.answers("current")).false
    }
    assert wrong == "['s1'] said to be current"
    full = Truth(whole=set(), writable={0: False, 1: False})
    assert (
        "status of partition 0: said to be writable"
        in judge(world, full, told.answers("refusing")).false
    )
    assert "status ends with 0" in judge(world, dead, told.answers("absent", code=0)).false
    lost = Truth(coordinator=False, since=0.0)
    assert any("coordinator answered 1 s ago" in text for text in judge(
        world, lost, told.answers("current")
    ).false)  # fmt: skip
