"""Compares what the program says of a cluster with what the test has done to it.

A statement is false if it says good what the test knows not to be so: a replica that is said to be
current and is not, a partition that is said to be writable and takes no append, a command that says
that all is well while something is not. Nothing false may ever be said, from the moment on at which
something is done; what is true must be said in the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.states.world import HOLDERS, PARTITIONS, SERVERS, Answers, Metrics, World
from waltz.server.server_metrics import COORDINATOR_SILENT_SECONDS_MAX
from waltz.store.replica_reports_shell import REPLICA_WORD_SECONDS_MAX

SLACK_SECONDS = 3.0
"""Between what the test does and notes, on a busy machine, and what the program sees of it."""


@dataclass
class Truth:
    """What the test knows.

    whole        storage nodes that hold everything and take appends
    unsure       those that may or may not, while they catch up or are repaired
    writable     per partition whether appends are committed; None: that changes just now
    untold       whether the servers are of a version that cannot say
    unsaid       storage nodes of a version that cannot say whether they take appends
    servers      servers that run and answer
    coordinator  whether it answers
    well         whether nothing at all is wrong
    placed       per partition the storage nodes that it is assigned to
    """

    whole: set[str] = field(default_factory=lambda: {*HOLDERS})
    unsure: set[str] = field(default_factory=set)
    writable: dict[int, bool | None] = field(default_factory=lambda: dict.fromkeys(range(2), True))
    untold: bool = False
    unsaid: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=lambda: {*SERVERS})
    coordinator: bool = True
    well: bool | None = False
    placed: dict[int, set[str]] = field(
        default_factory=lambda: {number: {*HOLDERS} for number in range(PARTITIONS)}
    )
    since: float = 0.0
    """When what makes it so was done."""


@dataclass
class Found:
    """`false` has what is not so; `missing` what is so and is not said yet."""

    false: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def judge(world: World, truth: Truth, answers: Answers) -> Found:
    found = Found()
    if not truth.coordinator:
        _judge_without_coordinator(truth, answers, found)
    else:
        _judge_status(world, truth, answers, found)
        _judge_verify(truth, answers, found)
    for name in SERVERS:
        _judge_server(world, truth, answers, name, found)
    return found


def _judge_without_coordinator(truth: Truth, answers: Answers, found: Found) -> None:
    for command, said in (("status", answers.status), ("verify", answers.verify)):
        if said.code == 0:
            found.false.append(f"{command} ends with 0 without a coordinator")
        if "coordinator" not in said.err:
            found.missing.append(f"{command} does not name the coordinator: {said.err[-200:]}")


def _judge_status(world: World, truth: Truth, answers: Answers, found: Found) -> None:
    if not answers.status.out:
        found.missing.append(f"status says nothing: {answers.status.err[-300:]}")
        return
    status = json.loads(answers.status.out)
    if answers.status.code == 0 and truth.well is False:
        found.false.append("status ends with 0")
    if status["healthy"] is True and truth.well is False:
        found.false.append("status says healthy")
    if truth.well is True and answers.status.code != 0:
        found.missing.append(f"status ends with {answers.status.code}")
    names = {address: name for name, address in world.data.items()}
    for partition in status["partitions"]:
        number = partition["partition_id"]
        current = {
            names.get(each["replica_id"], each["replica_id"])
            for each in partition["replica_states"]
            if each["standing"] == "current"
        }
        _compare(truth, number, current, f"status of partition {number}", found)
        if partition["replicas_current"] not in (None, len(current)):
            found.false.append(f"status of partition {number} counts {current} otherwise")
        _judge_writable(
            truth, number, partition["writable"], f"status of partition {number}", found
        )


def _compare(truth: Truth, number: int, current: set[str], what: str, found: Found) -> None:
    true = truth.whole & truth.placed[number]
    possible = true | truth.unsure
    if wrong := current - possible:
        found.false.append(f"{what}: {sorted(wrong)} said to be current")
    may_say = truth.writable[number] is True and not truth.untold
    if may_say and (unsaid := true - truth.unsaid - truth.unsure - current):
        found.missing.append(f"{what}: {sorted(unsaid)} not said to be current")


def _judge_writable(truth: Truth, number: int, said: bool | None, what: str, found: Found) -> None:
    is_so = truth.writable[number]
    if said is True and is_so is False:
        found.false.append(f"{what}: said to be writable")
    if said is False and is_so is True:
        found.missing.append(f"{what}: said not to be writable")
    cannot_say = truth.untold or truth.unsaid
    if said is None and is_so is True and not cannot_say:
        found.missing.append(f"{what}: not said to be writable")


def _judge_verify(truth: Truth, answers: Answers, found: Found) -> None:
    if not answers.verify.out:
        found.missing.append(f"verify says nothing: {answers.verify.err[-300:]}")
        return
    verify = json.loads(answers.verify.out)
    results = {each["check"]: each["passed"] for each in verify["checks"]}
    if truth.well is False and (verify["passed"] is True or answers.verify.code == 0):
        found.false.append("verify passes")
    if truth.well is True and answers.verify.code != 0:
        found.missing.append(f"verify ends with {answers.verify.code}")
    whole = truth.whole | truth.unsure
    if results["recovery"] is True and any(held - whole for held in truth.placed.values()):
        found.false.append("verify: recovery passes")
    if truth.untold and results["recovery"] is True:
        found.false.append("verify: recovery passes, and nobody has said so")
    if results["health"] is True and False in truth.writable.values():
        found.false.append("verify: health passes")
    if results["quorum"] is True and False in truth.writable.values():
        found.false.append("verify: quorum passes")


def _judge_server(world: World, truth: Truth, answers: Answers, name: str, found: Found) -> None:
    answer, metrics = answers.health.get(name), answers.metrics.get(name)
    if name not in truth.servers:
        if answer is not None:
            found.false.append(f"{name} answers")
        return
    if answer is None or metrics is None:
        found.missing.append(f"{name} does not answer")
        return
    status, health = answer
    elapsed = answers.asked_at - truth.since
    _judge_contact(truth, status, health, metrics, elapsed, name, found)
    names = {address: node for node, address in world.data.items()}
    for text, partition in health["partitions"].items():
        number, what = int(text), f"health of {name}, partition {text}"
        for replica, told in partition["replicas"].items():
            node = names.get(replica, replica)
            if told["standing"] != "current" or node in truth.whole | truth.unsure:
                continue
            if told["answer_age_seconds"] < elapsed - SLACK_SECONDS:
                found.false.append(f"{what}: {node} current {told['answer_age_seconds']:.0f} s ago")
        is_late = elapsed > REPLICA_WORD_SECONDS_MAX + SLACK_SECONDS
        if is_late:
            _judge_writable(truth, number, partition["writable"], what, found)
        # A partition that has moved between the two questions is in one answer only.
        shown = {1.0: True, 0.0: False, -1.0: None}[metrics.values.get(("writable", text), -1.0)]
        if is_late:
            _judge_writable(truth, number, shown, f"metrics of {name}, partition {text}", found)
        if is_late and truth.writable[number] is False and status == 200:
            found.missing.append(f"{what}: 200, and no append is taken")


def _judge_contact(
    truth: Truth,
    status: int,
    health: dict[str, Any],
    metrics: Metrics,
    elapsed: float,
    name: str,
    found: Found,
) -> None:
    age = health["coordinator_answer_age_seconds"]
    is_lost = any("coordinator" in problem for problem in health["problems"])
    if bool(metrics.values["coordinator_lost", ""]) and not is_lost:
        found.missing.append(f"metrics of {name} have lost the coordinator, /health has not")
    if truth.coordinator:
        if is_lost:
            found.missing.append(f"health of {name} has no coordinator")
        return
    if age is not None and age < elapsed - SLACK_SECONDS:
        found.false.append(f"health of {name}: the coordinator answered {age:.0f} s ago")
    is_late = elapsed > COORDINATOR_SILENT_SECONDS_MAX + SLACK_SECONDS
    if is_late and (status == 200 or not is_lost):
        found.false.append(f"health of {name} is {status} without a coordinator")
    if not is_late and not is_lost:
        found.missing.append(f"health of {name} has not lost the coordinator yet")


def all_texts(found: Found) -> Iterator[str]:
    yield from (f"FALSE: {each}" for each in found.false)
    yield from (f"not said: {each}" for each in found.missing)
