"""The coordinator's nodes of a restored cluster, by value."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.restore.memory_archive import (
    KEY,
    NEW_KEY,
    OLD_DIRECTORY,
    RESTORE_ID,
    STORAGES,
    MemoryArchive,
    make_archive,
)
from tests.restore.test_restore_plan import plan
from waltz.cluster.log_history import LogHistory, decode_histories, encode_histories
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState, is_set_back
from waltz.cluster.server_assignment import (
    MembershipRead,
    PartitionAssignment,
    ServerDescriptor,
    proposed_assignment,
    routes,
)
from waltz.cluster.store_params import StoreParams, decode_counter
from waltz.errors import ConfigurationError, CorruptionError, UnavailableError
from waltz.restore.archived_cluster import archived_cluster
from waltz.restore.directory_report import DirectoryReport, PartitionHeld
from waltz.restore.restore_plan import RestorePlan
from waltz.restore.restored_nodes import RestoredNodes, restored_nodes
from waltz.store.judgement import RecoveryStanding, judge
from waltz.types import (
    Address,
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    TransactionId,
)
from waltz.wire.storage_protocol import SessionInfo


def reports_of(
    found: RestorePlan, *, client_id: int = 7, generation: int = 3
) -> dict[ReplicaId, DirectoryReport]:
    return {
        each.replica_id: DirectoryReport(
            found.restore_id,
            each.replica_id,
            UUID(int=number),
            {
                p: PartitionHeld(found.lasts[p], "ab" * 32, 10, client_id, Generation(generation))
                for p in each.partitions
            },
        )
        for number, each in enumerate(found.storages, 1)
    }


def nodes_of(
    archive: MemoryArchive, *, same_key: bool = False, client_id: int = 7, generation: int = 3
) -> tuple[RestorePlan, RestoredNodes, dict[str, bytes | None]]:
    found = plan(archive, same_key=same_key)
    reports = reports_of(found, client_id=client_id, generation=generation)
    made = restored_nodes(found, archived_cluster(archive), reports, root="/waltz")
    return found, made, {path.removeprefix("/waltz/"): data for path, data in made.nodes}


def data(nodes: dict[str, bytes | None], path: str) -> bytes:
    found = nodes[path]
    assert found is not None
    return found


def test_the_metadata_of_partitions_comes_after_all_else_and_the_store_parameters_last() -> None:
    found, made, _ = nodes_of(make_archive([10, 3]), same_key=True)
    paths = [path for path, _ in made.nodes]
    first = paths.index("/waltz/store/partition/0")
    assert paths[first:] == ["/waltz/store/partition/0", "/waltz/store/partition/1"]
    assert "/waltz/history" in paths[:first]
    assert made.last == ("/waltz/store", StoreParams(found.cluster_key, 2).encode())
    for place, path in enumerate(paths):
        parent = path.rpartition("/")[0]
        assert parent == "/waltz" or parent in paths[:place], f"{path} before its parent"


def test_no_client_and_no_server_gets_an_id_that_one_of_the_former_cluster_has() -> None:
    _, _, nodes = nodes_of(make_archive([10]))
    assert decode_counter(data(nodes, "ids/client")) == 1_000_041
    assert decode_counter(data(nodes, "ids/server")) == 1_000_007


def test_the_log_may_know_of_younger_clients_and_generations_than_the_coordinators_copy() -> None:
    _, _, nodes = nodes_of(make_archive([10]), client_id=900, generation=30)
    assert decode_counter(data(nodes, "ids/client")) == 1_000_900
    metadata = PartitionMetadata.decode(data(nodes, "store/partition/0"), PartitionId(0))
    assert metadata.generation == 1030


def test_ids_at_their_end_end_the_restore() -> None:
    with pytest.raises(ConfigurationError, match="has given client IDs up to 2147483647"):
        nodes_of(make_archive([10]), client_id=2**31 - 1)


def test_the_first_recovery_finds_candidates_that_hold_exactly_the_point() -> None:
    found, _, nodes = nodes_of(make_archive([10, 3]))
    for partition_id, last in found.lasts.items():
        path = f"store/partition/{partition_id}"
        metadata = PartitionMetadata.decode(data(nodes, path), partition_id)
        session = found.sessions[partition_id]
        assert metadata.session_id == session
        assert metadata.replica_states == dict.fromkeys(STORAGES, ReplicaState(session, None))
        assert not is_set_back(metadata)
        for replica_id in STORAGES:
            held = SessionInfo(session, last, last)
            assert judge(replica_id, metadata.replica_states, held) == (
                RecoveryStanding.CANDIDATE,
                None,
            )
            # A directory of the former cluster, or a blank one, has no vote.
            for session_id in (12, 500, -1):
                was = SessionInfo(type(session)(session_id), last, last)
                standing, _ = judge(replica_id, metadata.replica_states, was)
                assert standing is RecoveryStanding.INCONSISTENT


def test_the_first_server_assigns_all_partitions_under_higher_generations() -> None:
    _, _, nodes = nodes_of(make_archive([10, 3]))
    assignment = PartitionAssignment.decode(data(nodes, "serverDescriptors"))
    server = ServerDescriptor(ServerId(1_000_008), Address("w1", 1))
    for child_version in (0, 1, 9):
        alone = MembershipRead(0, child_version, assignment, {})
        assert routes(alone) == {}
        joined = replace(alone, descriptors={server.server_id: server})
        proposed = proposed_assignment(joined, server.server_id, 2)
        assert proposed is not None
        assert proposed.servers == {server.server_id: {0: 1006, 1: 1006}}


def test_a_clone_has_no_history_and_no_preferences_of_other_servers() -> None:
    _, _, nodes = nodes_of(make_archive([10]))
    assert not {"history", "serverPreferences"} & nodes.keys()
    found, made, _ = nodes_of(make_archive([10]))
    assert StoreParams.decode(made.last[1]).cluster_key == NEW_KEY == found.cluster_key


def test_a_restore_with_the_same_key_begins_another_history() -> None:
    archive = make_archive([10, 0])
    before = LogHistory(UUID(int=1), 77, {PartitionId(0): TransactionId(3)}, (UUID(int=2),))
    archive.coordinator_nodes["history"] = encode_histories((before,))
    _, made, nodes = nodes_of(archive, same_key=True)
    assert StoreParams.decode(made.last[1]).cluster_key == KEY
    assert data(nodes, "serverPreferences/w1.example:7301") == b"preferences"
    assert decode_histories(data(nodes, "history")) == (
        before,
        LogHistory(
            RESTORE_ID,
            1000,
            {PartitionId(0): TransactionId(10), PartitionId(1): TransactionId(0)},
            (OLD_DIRECTORY,),
        ),
    )


def test_what_is_dropped_is_told() -> None:
    archive = make_archive([2])
    archive.coordinator_nodes["notes/spark-q-0"] = b"{}"
    _, made, nodes = nodes_of(archive)
    assert len(made.changes) == 2
    assert made.changes[0].startswith("consumer orders: its mark 3")
    assert made.changes[1].startswith("note spark-q-0: refuses every batch")
    assert "consumers" not in nodes
    assert b"restored" in data(nodes, "notes/spark-q-0")


def test_nothing_is_written_before_all_directories_have_reported_the_same() -> None:
    archive = make_archive([10])
    found, archived = plan(archive), archived_cluster(archive)
    reports = reports_of(found)
    two = {each: report for each, report in reports.items() if each != STORAGES[2]}
    with pytest.raises(UnavailableError, match=r"1 of 3 storage directories.*s3\.example"):
        restored_nodes(found, archived, two, root="/waltz")
    other = {**reports, STORAGES[2]: replace(reports[STORAGES[2]], restore_id=UUID(int=9))}
    with pytest.raises(CorruptionError, match="filled for another restore"):
        restored_nodes(found, archived, other, root="/waltz")
    held = reports[STORAGES[2]].partitions[PartitionId(0)]
    for wrong in (held._replace(last=TransactionId(8)), held._replace(sha256="cd" * 32)):
        bad = replace(reports[STORAGES[2]], partitions={PartitionId(0): wrong})
        with pytest.raises(CorruptionError):
            restored_nodes(found, archived, {**reports, STORAGES[2]: bad}, root="/waltz")
