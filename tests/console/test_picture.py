"""The picture of a cluster: in each state, what is said of it, and nothing that is not so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.console.states import (
    NOW,
    cluster,
    entry,
    full_node,
    gone,
    node_id,
    partition_report,
    server_address,
    standings,
    storage_told,
    with_metadata,
    with_node,
    with_nodes_gone,
    with_reports,
    with_server,
)
from waltz.cli.storage_questions import StorageReport
from waltz.cluster.server_assignment import MembershipRead, PartitionAssignment
from waltz.console.answers import ClusterAnswers, NodeTold, ServerTold, Told
from waltz.console.picture import NOTICES_MAX, ClusterPicture, Health, picture_of
from waltz.operators.questions_shell import ReportAnswers
from waltz.types import PartitionId, ServerId
from waltz.wire.report_protocol import ReplicaEntry, Standing

C, BEHIND, DAMAGED = Standing.CURRENT, Standing.BEHIND, Standing.DAMAGED
SILENT, ABSENT, REFUSING = Standing.SILENT, Standing.ABSENT, Standing.REFUSING
RECOVERING, UNKNOWN = Standing.RECOVERING, Standing.UNKNOWN
TROUBLE = "connect to 127.0.0.1:7100: connection refused"


class State(NamedTuple):
    """A cluster of two partitions, and the judgement of it and of partition 0; `sentence` is that
    of partition 0, `node` the state of the first storage node."""

    answers: ClusterAnswers
    health: Health
    partition: Health
    sentence: str
    node: Health = Health.WELL


def reported(
    entries: Sequence[ReplicaEntry],
    *,
    writable: int = 1,
    reason: str | None = None,
    answers: ClusterAnswers | None = None,
) -> ClusterAnswers:
    """Partition 0 is reported with these replicas."""
    report = partition_report(0, entries, writable=writable, reason=reason)
    return with_reports(answers or cluster(), {0: report})


def membership(answers: ClusterAnswers) -> MembershipRead:
    assert answers.coordinator.answer is not None
    return answers.coordinator.answer.membership


def without_servers() -> ClusterAnswers:
    answers = cluster()
    return with_metadata(answers, membership=replace(membership(answers), descriptors={}))


def unowned() -> ClusterAnswers:
    answers = cluster()
    nothing = PartitionAssignment(9, 2, {ServerId(1): {}})
    return with_metadata(answers, membership=replace(membership(answers), assignment=nothing))


def old_server(*, is_open: bool) -> ClusterAnswers:
    told = ServerTold(None, "its release cannot say this", dict.fromkeys((0, 1), is_open))  # type: ignore[arg-type]
    return with_server(cluster(), Told(told, NOW - 1))


WELL, IMPAIRED, DOWN, UNSURE = Health.WELL, Health.IMPAIRED, Health.DOWN, Health.UNKNOWN
ALL = "Partition 0 takes appends on all its replicas."
STATES = {
    "all is well": State(cluster(), WELL, WELL, ALL),
    "a node was killed": State(
        with_nodes_gone(reported(standings(ABSENT, C, C)), 0), DOWN, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 is away; if one more replica is"
        " lost, appends stop.", DOWN,
    ),
    "a node was killed, and its server has not noticed": State(
        with_nodes_gone(cluster(), 0), DOWN, WELL, ALL, DOWN
    ),
    "a node was stopped": State(
        with_node(reported(standings(SILENT, C, C)), 0, gone("no answer in 3 s")), DOWN, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 is away.", DOWN,
    ),
    "a node is cut off from its server alone": State(
        reported(standings(SILENT, C, C)), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 does not answer the server.",
    ),
    "two nodes were killed": State(
        with_nodes_gone(
            reported(standings(C, ABSENT, ABSENT), writable=0, reason="no majority"), 1, 2
        ), DOWN, DOWN,
        "Partition 0 takes no appends: storage-2 and storage-3 are away; one more replica is needed"
        " for a majority.",
    ),
    "all nodes were killed": State(
        with_nodes_gone(
            reported(standings(ABSENT, ABSENT, ABSENT), writable=0, reason="none"), 0, 1, 2
        ), DOWN, DOWN,
        "Partition 0 takes no appends: storage-1, storage-2 and storage-3 are away; 2 more replicas"
        " are needed for a majority.", DOWN,
    ),
    "no server has a session since a majority is away": State(
        with_nodes_gone(reported((), writable=0, reason="waits for replicas"), 0, 1), DOWN, DOWN,
        "Partition 0 takes no appends: waits for replicas.", DOWN,
    ),
    "a disk is full": State(
        with_node(reported(standings(REFUSING, C, C)), 0, full_node([0, 1])), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 refuses appends; if one more"
        " replica is lost, appends stop.", IMPAIRED,
    ),
    "two disks are full": State(
        reported(standings(REFUSING, REFUSING, C), writable=0, reason="refused"), DOWN, DOWN,
        "Partition 0 takes no appends: storage-1 and storage-2 refuse appends; one more replica is"
        " needed for a majority.",
    ),
    "a disk is blank": State(
        with_node(reported(standings(ABSENT, C, C)), 0, storage_told([])), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 takes no part; if one more"
        " replica is lost, appends stop.", IMPAIRED,
    ),
    "a replica is catching up": State(
        reported(standings(BEHIND, C, C)), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 is catching up; if one more"
        " replica is lost, appends stop.",
    ),
    "a replica is recovered": State(
        reported(standings(RECOVERING, C, C)), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 is being recovered; if one more"
        " replica is lost, appends stop.",
    ),
    "records are damaged": State(
        reported(standings(DAMAGED, C, C)), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 has damaged records.",
    ),
    "records of two replicas are damaged": State(
        reported(standings(DAMAGED, DAMAGED, C)), IMPAIRED, IMPAIRED,
        "Partition 0 takes appends with 1 of 3 replicas: storage-1 and storage-2 have damaged"
        " records.",
    ),
    "a node says that it is damaged": State(
        with_node(
            cluster(), 0,
            storage_told([0, 1], partition_problems={PartitionId(0): ("refuses all service",)}),
        ), IMPAIRED, WELL, ALL, IMPAIRED,
    ),
    "an administrator closed a node": State(
        with_node(cluster(), 0, storage_told([0, 1], usable={PartitionId(0): False})),
        IMPAIRED, WELL, ALL, IMPAIRED,
    ),
    "the node's tools port alone is gone": State(
        with_node(cluster(), 0, NodeTold(StorageReport(None, "refused"))),
        UNSURE, WELL, ALL, UNSURE,
    ),
    "a node has not answered for long": State(
        replace(
            cluster(), nodes={**cluster().nodes, node_id(0): Told(storage_told([0]), NOW - 60)}
        ),
        UNSURE, WELL, ALL, UNSURE,
    ),
    "a node has never been asked": State(
        replace(cluster(), nodes={k: v for k, v in cluster().nodes.items() if k != node_id(0)}),
        UNSURE, WELL, ALL, UNSURE,
    ),
    "replicas were not asked yet": State(
        reported(standings(UNKNOWN, C, C)), UNSURE, UNSURE,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 cannot be judged now.",
    ),
    "nobody can say": State(
        reported(standings(UNKNOWN, UNKNOWN, C), writable=-1, reason="too few have answered"),
        UNSURE, UNSURE, "Partition 0 may or may not take appends: too few have answered.",
    ),
    "a later release knows other standings": State(
        reported([entry(node_id(0), 99), entry(node_id(1)), entry(node_id(2))]),  # type: ignore[arg-type]
        UNSURE, UNSURE,
        "Partition 0 takes appends with 2 of 3 replicas: storage-1 cannot be judged now.",
    ),
    "the server was killed": State(
        with_server(cluster(), Told(None, None, TROUBLE)), DOWN, UNSURE,
        f"Partition 0 may or may not take appends: server-1 does not answer: {TROUBLE}.",
    ),
    "the server was killed after an answer": State(
        with_server(cluster(), replace(cluster().servers[server_address(0)], trouble=TROUBLE)),
        DOWN, UNSURE,
        f"Partition 0 may or may not take appends: server-1 does not answer: {TROUBLE}.",
    ),
    "the server was stopped": State(
        with_server(cluster(), replace(cluster().servers[server_address(0)], asked_at=NOW - 9)),
        DOWN, UNSURE,
        "Partition 0 may or may not take appends: server-1 does not answer: it has not answered for"
        " 9 s.",
    ),
    "the server has not answered yet": State(
        with_server(cluster(), Told()), UNSURE, UNSURE,
        "Partition 0 may or may not take appends: server-1 does not answer: it has not answered"
        " yet.",
    ),
    "no server runs": State(
        without_servers(), DOWN, DOWN,
        "Partition 0 takes no appends: no server of the cluster is running.",
    ),
    "a partition has no server": State(
        unowned(), DOWN, DOWN,
        "Partition 0 takes no appends: the coordinator names no running server for it.",
    ),
    "a partition has just moved": State(
        with_server(cluster(), Told(ServerTold(ReportAnswers({}, 0.1, None)), NOW)), UNSURE, UNSURE,
        "Partition 0 may or may not take appends: server-1 does not report on it: it may have just"
        " moved.",
    ),
    "the server is old": State(
        old_server(is_open=True), UNSURE, UNSURE,
        "Partition 0 may or may not take appends: server-1 cannot say: its release cannot say"
        " this.",
    ),
    "the server is old and has no session": State(
        old_server(is_open=False), DOWN, DOWN,
        "Partition 0 takes no appends: its server has no store session for it.",
    ),
    "the coordinator is away from the server": State(
        with_server(
            cluster(),
            Told(
                replace(
                    cluster().servers[server_address(0)].answer,  # type: ignore[type-var]
                    reports=ReportAnswers(
                        cluster().servers[server_address(0)].answer.reports.reports,  # type: ignore[union-attr]
                        31.0, "the coordinator has not answered for 31 s",
                    ),
                ),
                NOW,
            ),
        ), IMPAIRED, WELL, ALL,
    ),
    "the coordinator is away": State(
        replace(cluster(), coordinator=replace(cluster().coordinator, trouble="no answer in 10 s")),
        UNSURE, WELL, ALL,
    ),
    "the coordinator is away and no server runs": State(
        replace(
            without_servers(), coordinator=replace(without_servers().coordinator, trouble="gone")
        ), UNSURE, UNSURE,
        "Partition 0 may or may not take appends: no server was known to have it, and the"
        " coordinator does not answer: gone.",
    ),
    "the coordinator has been silent for long": State(
        replace(cluster(), coordinator=replace(cluster().coordinator, asked_at=NOW - 16)),
        UNSURE, WELL, ALL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_in_each_state_what_is_so_is_said(name: str) -> None:
    state = STATES[name]
    picture = picture_of(state.answers)
    partition = picture.partitions[0]
    assert (partition.health, partition.sentence) == (state.partition, state.sentence)
    assert picture.nodes[0].health is state.node
    assert picture.health is state.health
    assert (picture.health is WELL) == (not picture.notices)


def test_nothing_is_known_before_the_coordinator_has_answered() -> None:
    found = picture_of(ClusterAnswers(NOW, Told(None, None, "connection refused")))
    assert found.headline == (
        "Nothing is known of this cluster: the coordinator does not answer (connection refused)."
    )
    first = picture_of(ClusterAnswers(NOW, Told()))
    assert first.headline == (
        "Nothing is known of this cluster: the coordinator has not answered yet."
    )
    assert (found.health, found.partitions, found.nodes) == (UNSURE, (), ())


@pytest.mark.parametrize("name", STATES)
def test_what_is_not_known_has_no_figure(name: str) -> None:
    """A mark, a rate or a disk is only shown while the process that knows it answers."""
    picture = picture_of(STATES[name].answers)
    for partition in picture.partitions:
        if partition.current_replicas is None:
            assert (partition.mark, partition.rate, partition.session_id) == (None, None, None)
            assert partition.writable is not True
    for node in picture.nodes:
        if node.health in (UNSURE, DOWN) and "not" in node.text:
            assert node.free_bytes is None


def test_partitions_with_one_cause_share_a_sentence() -> None:
    answers = cluster(partitions=100, nodes=3)
    reports = {number: partition_report(number, standings(ABSENT, C, C)) for number in range(1, 99)}
    picture = picture_of(with_nodes_gone(with_reports(answers, reports), 0))
    node, partitions = (each.text for each in picture.notices)
    assert node == ("Storage node storage-1 does not answer: connection refused.")
    assert partitions == (
        "Partitions 1\N{EN DASH}98 take appends with 2 of 3 replicas: storage-1 is away; if one"
        " more replica is lost, appends stop."
    )
    assert picture.headline == (
        "All 100 partitions take appends, 98 with fewer replicas; 1 of 3 storage nodes is away."
    )


def test_of_many_sentences_the_worst_are_shown_and_the_others_counted() -> None:
    answers = cluster(partitions=100, nodes=3)
    reports = {
        number: partition_report(number, (), writable=-1, reason=f"reason {number}")
        for number in range(99)
    }
    reports[99] = partition_report(99, (), writable=0, reason="the worst")
    picture = picture_of(with_reports(answers, reports))
    assert len(picture.notices) == NOTICES_MAX
    assert picture.more_notices == 100 - NOTICES_MAX
    assert picture.notices[0].text == "Partition 99 takes no appends: the worst."


def rate_of(picture: ClusterPicture) -> float | None:
    return picture.rate


def test_the_rate_of_the_cluster_is_that_of_all_partitions_or_unknown() -> None:
    assert rate_of(picture_of(cluster())) == 25.0
    assert rate_of(picture_of(replace(cluster(), rates={PartitionId(0): 12.5}))) is None


def test_hostile_names_and_texts_are_made_plain() -> None:
    report = partition_report(0, (), writable=0, reason="\x1b[2J\u202egnol " + "x" * 5000)
    picture = picture_of(with_reports(cluster(name="a\nb\u2066"), {0: report}))
    assert picture.name == "a\\nb\\u2066"
    sentence = picture.partitions[0].sentence
    assert sentence.isprintable()
    assert "\\x1b[2J\\u202egnol" in sentence
    assert len(sentence) < 600


def headline(answers: ClusterAnswers) -> str:
    return picture_of(answers).headline


def test_the_headline_counts_what_is_so() -> None:
    dead = partition_report(0, standings(ABSENT, ABSENT, C), writable=0)
    odd = partition_report(1, (), writable=-1)
    poor = partition_report(2, standings(ABSENT, C, C))
    four = cluster(partitions=4)
    assert headline(cluster(partitions=1)) == "The partition takes appends on all its replicas."
    assert headline(with_reports(four, {0: dead})) == "1 of 4 partitions takes no appends."
    assert headline(with_reports(four, {0: dead, 1: odd, 2: poor})) == (
        "1 of 4 partitions takes no appends; it is not known whether 1 of 4 partitions takes"
        " appends; 1 takes appends with fewer replicas."
    )
    assert headline(STATES["the server was killed"].answers) == (
        "No partition is known to take appends; the server is away."
    )
    assert headline(with_nodes_gone(reported(standings(ABSENT, C, C)), 0)) == (
        "All 2 partitions take appends, 1 with fewer replicas; 1 of 3 storage nodes is away."
    )
    both = {number: partition_report(number, standings(ABSENT, C, C)) for number in range(2)}
    assert headline(with_reports(cluster(), both)) == (
        "All 2 partitions take appends, with fewer replicas."
    )
    assert headline(STATES["the coordinator is away"].answers) == (
        "All 2 partitions take appends on all their replicas; something else needs attention."
    )
    assert headline(without_servers()) == "All 2 partitions take no appends."


def test_reasons_have_the_names_of_addresses() -> None:
    reason = f"{node_id(1)} does not answer; x{node_id(2)}0 does"
    picture = picture_of(reported((), writable=0, reason=reason))
    assert picture.partitions[0].sentence == (
        f"Partition 0 takes no appends: storage-2 does not answer; x{node_id(2)}0 does."
    )
    assert picture.partitions[0].reason == f"storage-2 does not answer; x{node_id(2)}0 does"
