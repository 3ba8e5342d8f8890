"""The seven checks of `waltz cluster verify`, by value (TL-51 to TL-58)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.cluster_verification import CHECKS, Facts, Fault, verdict
from waltz.cli.server_answers import ServerAnswers
from waltz.cli.storage_questions import StorageReport
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.server_assignment import MembershipRead, PartitionAssignment, ServerDescriptor
from waltz.cluster.storage_placement import StoragePlacement
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

A, B, C, D = (ReplicaId(f"{name}:6000") for name in "abcd")
ZERO, ONE = PartitionId(0), PartitionId(1)
BOTH = (ZERO, ONE)
V1, V2 = ServerId(1), ServerId(2)
G1 = Generation(1)
WELL = StorageReport(None, None, {ZERO: True, ONE: True})
DEAD = StorageReport("refused on the data port", "refused on the admin port")
CURRENT = ReplicaState(SessionId(4), None)


def session(**states: ReplicaState) -> PartitionMetadata:
    """Session 4, with the state of each replica by its host's name."""
    named = {ReplicaId(f"{name}:6000"): state for name, state in states.items()}
    return PartitionMetadata(G1, SessionId(4), named)


def report(number: PartitionId, writable: int = 1, **standings: Standing) -> PartitionReport:
    """What a server says of a partition, with how each replica stands, by its host's name."""
    found = {"a": Standing.CURRENT, "b": Standing.CURRENT, "c": Standing.CURRENT} | standings
    replicas = [
        ReplicaEntry(ReplicaId(f"{name}:6000"), standing, -1, 5, f"is {standing.name.lower()}")
        for name, standing in found.items()
    ]
    reason = None if writable == 1 else "there is a reason"
    head = (G1, SessionId(4), TransactionId(9))
    return PartitionReport(number, *head, writable, reason, tuple(replicas))


SESSION = session(a=CURRENT, b=CURRENT, c=CURRENT)
DESCRIPTORS = {each: ServerDescriptor(each, Address(f"v{each}", 7000)) for each in (V1, V2)}
HEALTHY = Facts(
    ClusterMetadata(
        name="c",
        root="/c",
        cluster_key=UUID(int=1),
        partition_count=2,
        placement=StoragePlacement(
            2, {A: BOTH, B: BOTH, C: BOTH}, {A: 1, B: 2, C: 3}, dict.fromkeys((A, B, C), 6001)
        ),
        membership=MembershipRead(
            1, 2, PartitionAssignment(2, 2, {V1: {ZERO: G1}, V2: {ONE: G1}}), DESCRIPTORS
        ),
        partitions={ZERO: SESSION, ONE: SESSION},
    ),
    {
        V1: ServerAnswers(
            None,
            frozenset([ZERO]),
            {ZERO: True},
            dict.fromkeys(map(str, (A, B, C)), True),
            {ZERO: report(ZERO)},
        ),
        V2: ServerAnswers(
            None,
            frozenset([ONE]),
            {ONE: True},
            dict.fromkeys(map(str, (A, B, C)), True),
            {ONE: report(ONE)},
        ),
    },
    {A: WELL, B: WELL, C: WELL},
)


def changed(**metadata: Any) -> Facts:
    return replace(HEALTHY, metadata=replace(HEALTHY.metadata, **metadata))


def placed(partitions: Mapping[ReplicaId, tuple[PartitionId, ...]]) -> Facts:
    return changed(placement=replace(HEALTHY.metadata.placement, partitions=partitions))


def joined(membership: MembershipRead) -> Facts:
    servers = {each: HEALTHY.servers[each] for each in membership.descriptors}
    return replace(changed(membership=membership), servers=servers)


def heard(answers: Mapping[ServerId, ServerAnswers]) -> Facts:
    return replace(HEALTHY, servers={**HEALTHY.servers, **answers})


def found(reports: Mapping[ReplicaId, StorageReport], facts: Facts = HEALTHY) -> Facts:
    return replace(facts, storages={**facts.storages, **reports})


def reported(*reports: PartitionReport, facts: Facts = HEALTHY) -> Facts:
    """As `facts`, but that the servers say this of their partitions."""
    servers = dict(facts.servers)
    for each in reports:
        owner = facts.owner(each.partition_id)
        assert owner is not None
        servers[owner] = replace(servers[owner], reports={each.partition_id: each})
    return replace(facts, servers=servers)


def faults(facts: Facts, check: str) -> list[tuple[str, tuple[PartitionId, ...]]]:
    return [(fault.text, fault.partition_ids) for fault in verdict(facts).failed(check)]


def test_a_cluster_that_is_well_passes_every_check() -> None:
    judged = verdict(HEALTHY)
    assert judged.faults == ()
    assert judged.has_passed
    assert (judged.partition_ids, judged.failed_partitions) == (BOTH, ())
    assert all(check.__doc__ for check in CHECKS.values()), "they are what is printed"


def test_every_partition_needs_exactly_one_live_server() -> None:
    """TL-52"""
    membership = HEALTHY.metadata.membership
    assert faults(joined(replace(membership, descriptors={})), "assignment") == [
        ("no server is running; start one", BOTH)
    ]
    dead = replace(membership, descriptors={V1: DESCRIPTORS[V1]})
    assert faults(joined(dead), "assignment") == [
        ("server 2 is not running, and still owns them", (ONE,))
    ]
    stale = replace(membership, child_version=3)
    ((text, concerned),) = faults(joined(stale), "assignment")
    assert "were not reassigned; that is for server v1:7000 to do" in text
    assert concerned == BOTH
    nobody = replace(membership, assignment=PartitionAssignment(2, 2, {V1: {ZERO: G1}, V2: {}}))
    assert faults(joined(nobody), "assignment") == [("no server owns them", (ONE,))]
    twin = {V1: DESCRIPTORS[V1], V2: ServerDescriptor(V2, Address("v1", 7000))}
    ((text, _),) = faults(joined(replace(membership, descriptors=twin)), "assignment")
    assert text.startswith("two servers run at v1:7000")


def test_servers_and_the_coordinator_have_to_agree() -> None:
    """TL-53"""
    silent = heard({V1: ServerAnswers("it takes TLS only")})
    assert faults(silent, "servers") == [
        ("server v1:7000 does not answer: it takes TLS only", (ZERO,))
    ]
    assert not faults(silent, "connectivity")
    assert not faults(silent, "health")
    swapped = replace(HEALTHY.servers[V1], assigned=frozenset([ONE]))
    assert faults(heard({V1: swapped}), "servers") == [
        ("server v1:7000 owns them and does not know it", (ZERO,)),
        ("server v1:7000 believes that it owns them, and does not own them", (ONE,)),
    ]


def test_every_server_has_to_reach_every_storage_node() -> None:
    """TL-54"""
    blind = replace(HEALTHY.servers[V2], reaches={str(A): True, str(B): False})
    judged = heard({V2: blind})
    assert faults(judged, "connectivity") == [
        ("server v2:7000 does not reach storage node b:6000", (ONE,)),
    ]
    (fault,) = verdict(judged).unknown("connectivity")
    assert fault.text == "server v2:7000 does not say whether it reaches storage node c:6000"


def test_a_node_that_holds_nothing_need_not_be_looked_at_by_servers() -> None:
    """F-27: servers of the original tell of storage nodes with partitions only."""
    empty = placed({A: BOTH, B: BOTH, C: BOTH, D: ()})
    silent = found({D: replace(WELL, usable={})}, empty)
    placement = replace(
        empty.metadata.placement,
        groups={A: 1, B: 2, C: 3, D: 4},
        partitions={A: BOTH, B: BOTH, C: BOTH, D: ()},
    )
    facts = replace(silent, metadata=replace(silent.metadata, placement=placement))
    assert verdict(facts).is_well is True
    unreached = replace(HEALTHY.servers[V1], reaches={str(D): False})
    told = replace(facts, servers={**facts.servers, V1: unreached})
    assert faults(told, "connectivity") == [
        ("server v1:7000 does not reach storage node d:6000", ()),
    ]


def test_storage_nodes_have_to_have_what_is_assigned_to_them() -> None:
    """TL-55"""

    def with_b(report: StorageReport) -> Facts:
        return found({B: report})

    ((text, concerned),) = faults(with_b(DEAD), "storages")
    assert text.startswith("storage node b:6000 does not answer: refused on the data port; refused")
    assert concerned == BOTH
    ((text, concerned),) = faults(with_b(replace(WELL, usable={ONE: True})), "storages")
    assert "storage node b:6000 has not taken them; run waltz admin storage sync" in text
    assert concerned == (ZERO,)
    closed = replace(WELL, usable={ZERO: True, ONE: False})
    assert faults(with_b(closed), "storages") == [
        ("storage node b:6000 does not let servers use it", (ONE,))
    ]
    told = replace(closed, partition_problems={ONE: ("record 5 damaged",)})
    assert faults(with_b(told), "storages") == [("storage node b:6000: record 5 damaged", (ONE,))]
    full = replace(WELL, problems=("no space for appends",))
    assert faults(with_b(full), "storages") == [("storage node b:6000: no space for appends", BOTH)]
    elsewhere = replace(WELL, partition_problems={PartitionId(9): ("not this cluster's",)})
    assert verdict(with_b(elsewhere)).has_passed


def test_a_storage_node_without_a_group_was_added_half() -> None:
    """CM-25"""
    half = replace(HEALTHY.metadata.placement, groups={A: 1, C: 3})
    assert faults(changed(placement=half), "storages") == [
        ("storage node b:6000 has no group; remove it and add it again", BOTH)
    ]


def test_a_quorum_is_over_the_partition_s_own_replicas() -> None:
    """TL-56: the original counts all storage nodes."""
    own = placed({A: BOTH, B: (ZERO,), C: (ZERO,)})
    lost = found({B: DEAD, C: DEAD}, own)
    assert faults(lost, "quorum") == [
        ("1 of 3 replicas, no majority; not b:6000, c:6000", (ZERO,))
    ], "partition 1 has one replica, which is well"
    one = found({B: DEAD})
    assert not faults(one, "quorum")
    two = placed({A: BOTH, B: BOTH, C: ()})
    assert faults(replace(two, storages=one.storages), "quorum") == [
        ("1 of 2 replicas, no majority; not b:6000", BOTH)
    ]
    assert faults(placed({A: (ZERO,), B: (ZERO,), C: (ZERO,)}), "quorum") == [
        ("no storage node holds it: waltz cluster assign", (ONE,))
    ]


def test_a_replica_counts_only_while_it_takes_part_and_serves() -> None:
    """TL-56"""
    away = reported(report(ZERO, b=Standing.ABSENT, c=Standing.SILENT))
    assert faults(away, "quorum") == [("1 of 3 replicas, no majority; not b:6000, c:6000", (ZERO,))]
    closed = replace(WELL, usable={ZERO: False, ONE: True})
    offline = found({B: closed, C: closed})
    assert faults(offline, "quorum") == [
        ("1 of 3 replicas, no majority; not b:6000, c:6000", (ZERO,))
    ]


def test_a_replica_that_tools_cannot_ask_is_not_said_to_be_away() -> None:
    """Its servers' port answers, and its server says that it takes part: appends go on."""
    hidden = StorageReport(None, "refused on the admin port")
    judged = verdict(found({B: hidden, C: hidden}))
    assert judged.result("quorum") == "passed"
    assert judged.result("storages") == "FAILED", "what they have taken cannot be looked at"
    old = replace(HEALTHY.servers[V1], reports=None, silence="too old")
    assert verdict(found({B: hidden, C: hidden}, heard({V1: old}))).result("quorum") == "unknown"
    away = reported(report(ZERO, b=Standing.ABSENT, c=Standing.ABSENT))
    assert faults(found({B: hidden, C: hidden}, away), "quorum") == [
        ("1 of 3 replicas, no majority; not b:6000, c:6000", (ZERO,))
    ]


@pytest.mark.parametrize(
    "standing", [each for each in Standing if each not in (Standing.CURRENT, Standing.UNKNOWN)]
)
def test_all_replicas_have_to_take_part_in_the_session(standing: Standing) -> None:
    """TL-57, F-5: the metadata say that all do."""
    away = reported(report(ZERO, b=standing))
    text = f"storage node b:6000 is {standing.name.lower()}"
    assert faults(away, "recovery") == [(text, (ZERO,))]
    assert verdict(away).is_well is False


def test_a_session_counts_on_its_own_replicas_only() -> None:
    """TL-57"""
    never = changed(partitions={ZERO: SESSION})
    assert faults(never, "recovery") == [("no server has ever opened a store session", (ONE,))]
    leaving = session(a=CURRENT, b=CURRENT, c=CURRENT, d=CURRENT)
    assert faults(changed(partitions={ZERO: leaving, ONE: leaving}), "recovery") == [
        ("the store session still counts on d:6000, not assigned any more", BOTH)
    ], "one line for both"


def test_what_no_server_says_is_neither_passed_nor_failed() -> None:
    """F-5: a Java server says that it has a session, and nothing of its replicas."""
    old = replace(HEALTHY.servers[V1], reports=None, silence="too old")
    judged = verdict(heard({V1: old}))
    assert judged.is_well is None
    assert not judged.has_passed
    results = {check: judged.result(check) for check in ("quorum", "recovery", "health")}
    assert results == dict.fromkeys(results, "unknown")
    assert (judged.failed_partitions, judged.unconfirmed_partitions) == ((), (ZERO,))
    (fault,) = judged.unknown("health")
    assert fault.text == "it is not known whether server v1:7000 can commit appends: too old"
    assert verdict(found({B: DEAD}, heard({V1: old}))).is_well is False, "what is wrong stays so"
    unsure = reported(report(ZERO, -1, b=Standing.UNKNOWN, c=Standing.UNKNOWN))
    assert verdict(unsure).result("quorum") == "unknown"
    assert verdict(unsure).result("recovery") == "unknown"


def test_every_partition_s_server_has_to_take_appends() -> None:
    """TL-58, SV-26"""
    for health in ({ZERO: False}, {}):
        ill = replace(HEALTHY.servers[V1], health=health)
        assert faults(heard({V1: ill}), "health") == [
            ("server v1:7000 takes no appends for them", (ZERO,))
        ]


def test_appends_are_not_said_to_be_taken_where_nobody_could() -> None:
    """No server runs, or it does not answer: a check that looks at servers finds none."""
    membership = HEALTHY.metadata.membership
    assert faults(joined(replace(membership, descriptors={})), "health") == [
        ("no server runs that could take appends for them", BOTH)
    ]
    assert verdict(heard({V1: ServerAnswers("gone")})).result("health") == "unknown"


def test_a_session_alone_does_not_pass() -> None:
    """F-6: all disks are full, and the server has a session."""
    full = reported(report(ZERO, 0))
    assert faults(full, "health") == [
        ("server v1:7000 takes no appends: there is a reason", (ZERO,))
    ]
    assert verdict(reported(report(ZERO, -1))).result("health") == "unknown"


def test_a_server_that_has_lost_the_coordinator_is_named() -> None:
    """F-7"""
    lost = replace(HEALTHY.servers[V1], coordinator_problem="not answered for 40 s")
    assert faults(heard({V1: lost}), "servers") == [
        ("server v1:7000: not answered for 40 s", (ZERO,))
    ]


def test_only_what_was_asked_for_is_judged() -> None:
    """TL-51: -p"""
    gone = heard({V1: ServerAnswers("gone")})
    silent = found({C: StorageReport(None, None, {ZERO: True})}, gone)
    assert verdict(silent, [ONE]).faults == (
        Fault(
            "storages",
            "storage node c:6000 has not taken them; run waltz admin storage sync-partitions",
            (ONE,),
        ),
    )
    assert verdict(silent).failed_partitions == BOTH
    assert verdict(silent, [ZERO]).failed_partitions == (ZERO,)
    empty = placed({A: BOTH, B: BOTH, C: ()})
    lonely = found({C: DEAD}, empty)
    assert not verdict(lonely).has_passed, "a node that holds nothing is a fault all the same"
    assert verdict(lonely, BOTH).failed("storages") == ()
