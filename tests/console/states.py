"""Clusters in known states, as the answers of their processes: what the console is shown with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.storage_questions import StorageReport
from waltz.cluster.server_assignment import (
    MembershipRead,
    PartitionAssignment,
    ServerDescriptor,
)
from waltz.cluster.storage_placement import StoragePlacement
from waltz.console.answers import (
    COORDINATOR_FRESH_SECONDS,
    NODE_FRESH_SECONDS,
    ClusterAnswers,
    NodeTold,
    ServerTold,
    Told,
)
from waltz.console.node_figures import figures_in
from waltz.operators.questions_shell import ReportAnswers
from waltz.types import (
    Address,
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    SessionId,
    TransactionId,
)
from waltz.wire.report_protocol import PartitionReport, ReplicaEntry, Standing

NOW = 1000.0
KEY = UUID(int=0xDEADBEEF)
TEXTS = {
    Standing.UNKNOWN: "has not been asked yet in this store session",
    Standing.CURRENT: "holds every commit and takes appends",
    Standing.BEHIND: "is 12 transactions behind, and catching up",
    Standing.DAMAGED: "has 1 damaged records",
    Standing.REFUSING: "takes no appends: the disk is full",
    Standing.SILENT: "does not answer; it last did 4 s ago",
    Standing.RECOVERING: "is being filled",
    Standing.ABSENT: "cannot be reached",
}


def node_id(index: int) -> ReplicaId:
    return ReplicaId(f"127.0.0.1:{7200 + 2 * index}")


def server_address(index: int) -> Address:
    return Address("127.0.0.1", 7100 + index)


def entry(node: ReplicaId, standing: Standing = Standing.CURRENT, takes: int = -2) -> ReplicaEntry:
    usual = {Standing.CURRENT: 1, Standing.DAMAGED: 1, Standing.UNKNOWN: -1, Standing.SILENT: -1}
    taken = usual.get(standing, 0 if standing in TEXTS else -1) if takes == -2 else takes
    return ReplicaEntry(node, standing, taken, 300, TEXTS.get(standing, ""))


def partition_report(
    number: int,
    entries: Sequence[ReplicaEntry],
    *,
    writable: int = 1,
    reason: str | None = None,
    mark: int | None = 41,
) -> PartitionReport:
    return PartitionReport(
        PartitionId(number), Generation(3), SessionId(7),
        None if mark is None else TransactionId(mark), writable, reason, tuple(entries)
    )  # fmt: skip


def node_json(held: Sequence[int], **node: Any) -> str:
    figures = {
        "disk_free_bytes": 60 * 2**30,
        "disk_bytes": 100 * 2**30,
        "disk_free_minimum_bytes": 2**30,
        "appends_refused": False,
        "scrubbed_bytes": 5 * 2**30,
        "scrub_passes": 4,
        "scrub_last_pass_seconds": 611.0,
    }
    partition = {
        "durable_transaction_id": 41,
        "damaged_records": 0,
        "session_id": 7,
        "drain_seconds": {"count": 100, "sum": 0.4},
    }
    return json.dumps(
        {"node": figures | node, "partitions": {str(each): partition for each in held}}
    )


def storage_told(held: Sequence[int], **changes: Any) -> NodeTold:
    usable = {PartitionId(each): True for each in held}
    report = replace(StorageReport(None, None, usable, metrics_json=node_json(held)), **changes)
    return NodeTold(report, figures_in(report.metrics_json), 0.0041)


def full_node(held: Sequence[int]) -> NodeTold:
    """Return a node whose disk is full."""
    text = node_json(held, disk_free_bytes=900 * 2**20, appends_refused=True)
    problem = "appends are refused: 900.0 MiB free of 100.0 GiB, storage.diskFreeMin is 1.0 GiB"
    told = storage_told(held, metrics_json=text, problems=(problem,))
    return replace(told, figures=figures_in(text))


def gone(why: str = "connection refused") -> NodeTold:
    return NodeTold(StorageReport(why, why))


def cluster(
    *,
    partitions: int = 2,
    nodes: int = 3,
    servers: int = 1,
    replicas: int = 3,
    name: str = "orders",
    **changes: Any,
) -> ClusterAnswers:
    """Return a cluster in which all is well; `changes` are fields of the answers."""
    ids = [node_id(index) for index in range(nodes)]
    held: dict[ReplicaId, list[PartitionId]] = {each: [] for each in ids}
    for number in range(partitions):
        for index in range(replicas):
            held[ids[(number + index) % nodes]].append(PartitionId(number))
    placement = StoragePlacement(
        partitions,
        {node: tuple(sorted(each)) for node, each in held.items()},
        {node: index + 1 for index, node in enumerate(ids)},
        {node: Address.parse(node).port + 1 for node in ids},
    )
    owned = {
        ServerId(index + 1): {
            PartitionId(number): Generation(3)
            for number in range(partitions)
            if number % servers == index
        }
        for index in range(servers)
    }
    membership = MembershipRead(
        5, 9, PartitionAssignment(9, partitions, owned),
        {
            ServerId(index + 1): ServerDescriptor(ServerId(index + 1), server_address(index))
            for index in range(servers)
        },
    )  # fmt: skip
    metadata = ClusterMetadata(name, "/waltz", KEY, partitions, placement, membership, {})
    reports = {
        server_address(index): Told(
            ServerTold(
                ReportAnswers(
                    {
                        number: partition_report(
                            number, [entry(each) for each in placement.holding(number)]
                        )
                        for number in owned[ServerId(index + 1)]
                    },
                    0.4,
                    None,
                )
            ),
            NOW - 0.5,
        )
        for index in range(servers)
    }
    names = {str(node): f"storage-{index + 1}" for index, node in enumerate(ids)}
    names |= {str(server_address(index)): f"server-{index + 1}" for index in range(servers)}
    answers = ClusterAnswers(
        NOW,
        Told(metadata, NOW - 2.0, fresh_seconds=COORDINATOR_FRESH_SECONDS),
        reports,
        {
            node: Told(storage_told(held[node]), NOW - 1.0, fresh_seconds=NODE_FRESH_SECONDS)
            for node in ids
        },
        names,
        dict.fromkeys(map(PartitionId, range(partitions)), 12.5),
    )
    return replace(answers, **changes)


def with_node(answers: ClusterAnswers, index: int, told: NodeTold) -> ClusterAnswers:
    node = node_id(index)
    changed = replace(answers.nodes[node], answer=told)
    return replace(answers, nodes={**answers.nodes, node: changed})


def with_nodes_gone(answers: ClusterAnswers, *indexes: int) -> ClusterAnswers:
    for index in indexes:
        answers = with_node(answers, index, gone())
    return answers


def with_reports(
    answers: ClusterAnswers, reports: Mapping[int, PartitionReport], server: int = 0
) -> ClusterAnswers:
    """Replace reports of a server."""
    address = server_address(server)
    told = answers.servers[address]
    assert told.answer is not None
    assert told.answer.reports is not None
    merged = {**told.answer.reports.reports, **{PartitionId(n): r for n, r in reports.items()}}
    found = replace(told.answer, reports=replace(told.answer.reports, reports=merged))
    return replace(answers, servers={**answers.servers, address: replace(told, answer=found)})


def with_server(answers: ClusterAnswers, told: Told[ServerTold], server: int = 0) -> ClusterAnswers:
    return replace(answers, servers={**answers.servers, server_address(server): told})


def with_metadata(answers: ClusterAnswers, **changes: Any) -> ClusterAnswers:
    metadata = answers.coordinator.answer
    assert metadata is not None
    changed = replace(answers.coordinator, answer=replace(metadata, **changes))
    return replace(answers, coordinator=changed)


def standings(*wanted: Standing) -> list[ReplicaEntry]:
    """Return the replicas of a partition of a cluster of as many nodes."""
    return [entry(node_id(index), standing) for index, standing in enumerate(wanted)]
