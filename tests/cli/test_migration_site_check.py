"""`waltz migrate check`: planted problems are found, and a site that is well raises no alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.original_site import (
    AFTER_CLIENTS,
    ROOT,
    Site,
    Stores,
    metadata_of,
    peers_of,
)
from tests.wire.golden import DIRECTORY
from waltz.cli.migration.original_files import Role
from waltz.cli.migration.site_check import checkup
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.types import PartitionId, ReplicaId, SessionId

THIRD = ReplicaId("vm:47330")
FIRST = ReplicaId("vm:47310")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_site_that_is_well_raises_no_alarm(site: Site) -> None:
    found = site.check()
    assert [each for each in found.findings if each.is_well is not True] == []
    assert all(step.is_ready for step in found.steps)
    assert found.is_well is True


@pytest.mark.parametrize("tree", ["3-server-up", "4-after-clients", "6-storage3-back",
                                  "7-two-servers", "8-server1-dead"])  # fmt: skip
def test_no_golden_tree_of_a_cluster_that_is_well_raises_an_alarm(site: Site, tree: str) -> None:
    site.metadata = metadata_of(tree)
    site.peers = peers_of(site.metadata)
    found = site.check(with_records=False)
    assert [each for each in found.findings if each.is_well is not True] == []
    assert found.is_well is True


@pytest.mark.parametrize(
    "name", ["storage-empty", "storage-partitions-added", "storage-after-clients"]
)
def test_no_golden_directory_raises_an_alarm_and_none_is_changed(name: str) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        return {
            str(each): (each.read_bytes(), each.stat().st_mtime_ns)
            for each in (DIRECTORY / name).rglob("*")
            if each.is_file()
        }

    before = state()
    found = checkup([], [DIRECTORY / name], None, with_records=True)
    assert [each for each in found.findings if each.is_well is not True
            and each.check != "disk-space"] == []  # fmt: skip
    assert state() == before


def test_while_a_storage_node_is_away_no_step_is_ready(site: Site) -> None:
    """As the original's own tree says it."""
    site.metadata = metadata_of("5-storage3-down")
    site.peers = peers_of(site.metadata)
    found = site.check(with_records=False)
    for step in found.steps:
        assert step.is_ready is (step.role not in ("storage", "server", "all")) or (
            step.title.startswith("Features")
        )
    (alarm,) = [each for each in found.findings if each.is_well is False]
    assert (alarm.check, alarm.subject) == ("replicas", THIRD)
    assert alarm.cause == "it takes no part in the sessions of partitions 0-1"


Plant = Callable[[Site], None]
PLANTED: list[tuple[str, str, Plant]] = []
"""A check, a part of its cause or of what it found, and what has to be planted for that."""


def planted(check: str, said: str) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        PLANTED.append((check, said, plant))
        return plant

    return keep


# Configuration files


@planted("file", "expected ',' or ']'")
def _(site: Site) -> None:
    site.texts[Role.SERVER] = "server.port: [1\n"


@planted("file", "cannot read")
def _(site: Site) -> None:
    site.write()
    (site.directory / "waltz-server.yml").unlink()
    (site.directory / "waltz-server.yml").mkdir()
    site.write = lambda: [(site.directory / "waltz-server.yml", Role.SERVER)]  # type: ignore[method-assign]


@planted("configuration", "server.port is missing")
def _(site: Site) -> None:
    del site.server["server.port"]


@planted("configuration", "server.port and server.jetty.port are the same port")
def _(site: Site) -> None:
    site.server["server.jetty.port"] = site.server["server.port"]


@planted("configuration", "server.feedCacheSize")
def _(site: Site) -> None:
    site.server["server.feedCacheSize"] = "64 MB"


@planted("configuration", "coordinator.address is missing")
def _(site: Site) -> None:
    """A file of an older release, and no tools' file that would say where the ZooKeeper is."""
    for keys in (site.storage, site.server, site.tools):
        keys.pop("zookeeper.connectString", None)


@planted("key", "server.minFetchSize is one")
def _(site: Site) -> None:
    site.server["server.minFetchSizes"] = 200


@planted("place", "zookeeper.connectString is other:2181 there")
def _(site: Site) -> None:
    site.storage["zookeeper.connectString"] = "other:2181"


@planted("place", "cluster.root is /waltz there")
def _(site: Site) -> None:
    site.server["cluster.root"] = "/waltz"


@planted("preferred", "the cluster has the partitions 0 to 1")
def _(site: Site) -> None:
    site.server["server.preferredPartitions"] = "[0, 7]"


@planted("cluster-key", "the key of cluster golden is")
def _(site: Site) -> None:
    site.storage["cluster.key"] = "00112233-4455-6677-8899-aabbccddeeff"


@planted("partitions", "cluster.numPartitions is 3")
def _(site: Site) -> None:
    site.storage["cluster.numPartitions"] = 3


@planted("storage-node", "not of the cluster")
def _(site: Site) -> None:
    site.storage["storage.port"] = 47390


# Key stores


@planted("tls-store", "is the password right?")
def _(site: Site) -> None:
    site.server["server.ssl.keyStore.password"] = "changed"


@planted("tls-store", "No such file")
def _(site: Site) -> None:
    site.server["server.ssl.trustStore.location"] = str(site.directory / "gone.jks")


@planted("tls-store", "0 private keys")
def _(site: Site) -> None:
    (site.directory / "key.p12").write_bytes(Stores().trust_store())


@planted("tls-store", "neither JKS nor PKCS12")
def _(site: Site) -> None:
    (site.directory / "trust.jks").write_bytes(b"nothing of the kind")


@planted("tls-store", "JCEKS")
def _(site: Site) -> None:
    (site.directory / "trust.jks").write_bytes(b"\xce\xce\xce\xce" + bytes(40))


@planted("tls-expiry", "it has expired")
def _(site: Site) -> None:
    stores = Stores(days_ago=100)
    (site.directory / "key.p12").write_bytes(stores.key_store(days=90))
    (site.directory / "trust.jks").write_bytes(stores.trust_store())


@planted("tls-expiry", "it expires within 30 days")
def _(site: Site) -> None:
    stores = Stores(days_ago=100)
    (site.directory / "key.p12").write_bytes(stores.key_store(days=110))
    (site.directory / "trust.jks").write_bytes(stores.trust_store())


@planted("tls-trust", "signed by no CA of the trust store")
def _(site: Site) -> None:
    (site.directory / "trust.jks").write_bytes(Stores().trust_store())


@planted("configuration", "would demand certificates of its peers and show none")
def _(site: Site) -> None:
    for last in ("location", "password", "type"):
        del site.server[f"server.ssl.keyStore.{last}"]


# The storage directory


@planted("directory", "has no waltz-storage.ctl")
def _(site: Site) -> None:
    (site.data / "waltz-storage.ctl").unlink()


@planted("directory", "the control file is damaged")
def _(site: Site) -> None:
    damage(site.data / "waltz-storage.ctl", 132, 36 * 2)


@planted("directory-records", "faults: 1")
def _(site: Site) -> None:
    damage(site.data / "0" / "0000000000000000000.idx", 128 + 8, 4)


@planted("directory-cluster", "its key is")
def _(site: Site) -> None:
    site.metadata = replace(site.metadata, cluster_key=type(site.metadata.cluster_key)(int=9))
    site.peers = peers_of(site.metadata)


@planted("directory-partitions", "it was made for 2; there are 1")
def _(site: Site) -> None:
    membership = site.metadata.membership
    held = {each: {PartitionId(0): 1} for each in [*membership.assignment.servers][:1]}
    site.metadata = replace(
        site.metadata,
        partition_count=1,
        placement=replace(
            site.metadata.placement,
            partition_count=1,
            partitions=dict.fromkeys(site.metadata.placement.partitions, (PartitionId(0),)),
        ),
        membership=replace(membership, assignment=PartitionAssignment(1, 1, held)),  # type: ignore[arg-type]
        partitions={PartitionId(0): site.metadata.partitions[PartitionId(0)]},
    )
    site.peers = peers_of(site.metadata)


@planted("directory-sessions", "sessions that ZooKeeper does not know")
def _(site: Site) -> None:
    """ZooKeeper was set back: the tree is older than what the node has promised."""
    older = {
        number: replace(
            found,
            session_id=SessionId(-1),
            replica_states={
                each: replace(state, session_id=SessionId(-1))
                for each, state in found.replica_states.items()
            },
        )
        for number, found in site.metadata.partitions.items()
    }
    site.metadata = replace(site.metadata, partitions=older)
    site.peers = peers_of(site.metadata)


@planted("directory-assignment", "the cluster counts on partitions 0-1 of this node")
def _(site: Site) -> None:
    (site.data / "waltz-storage.ctl").write_bytes(
        (DIRECTORY / "storage-empty" / "waltz-storage.ctl").read_bytes()
    )


@planted("disk-space", "storage.diskFreeMin keeps")
def _(site: Site) -> None:
    site.storage["storage.diskFreeMin"] = "100000TiB"


# The cluster


@planted("replicas", "it takes no part in the sessions of partition")
def _(site: Site) -> None:
    """Its ports do not answer, and the idle partitions' servers have not noticed."""
    storages = dict(site.peers.facts.storages)
    storages[THIRD] = replace(storages[THIRD], trouble="refused", usable={})
    site.peers = replace(site.peers, facts=replace(site.peers.facts, storages=storages))


@planted("replicas", "it takes no part in the sessions of partition")
def _(site: Site) -> None:
    """It answers everybody but a server."""
    servers = dict(site.peers.facts.servers)
    for server_id, answers in servers.items():
        servers[server_id] = replace(answers, reaches={**(answers.reaches or {}), FIRST: False})
    site.peers = replace(site.peers, facts=replace(site.peers.facts, servers=servers))


@planted("copies", "fewer than 3 replicas")
def _(site: Site) -> None:
    placement = site.metadata.placement
    kept = {node: held for node, held in placement.partitions.items() if node != THIRD}
    site.metadata = replace(site.metadata, placement=replace(placement, partitions=kept))
    site.peers = peers_of(site.metadata)


@planted("storage-node", "half added")
def _(site: Site) -> None:
    placement = site.metadata.placement
    ports = {node: port for node, port in placement.admin_ports.items() if node != THIRD}
    site.metadata = replace(site.metadata, placement=replace(placement, admin_ports=ports))
    site.peers = replace(site.peers, facts=replace(site.peers.facts, metadata=site.metadata))


@planted("partition-count", "partitions are being added, 3 in all")
def _(site: Site) -> None:
    placement = replace(site.metadata.placement, partition_count=3)
    site.metadata = replace(site.metadata, placement=placement)
    site.peers = peers_of(site.metadata)


@planted("cluster-servers", "does not answer")
def _(site: Site) -> None:
    servers = dict(site.peers.facts.servers)
    first = next(iter(servers))
    address = site.metadata.membership.descriptors[first].address
    servers[first] = type(servers[first])("no answer")
    site.peers = replace(
        site.peers,
        facts=replace(site.peers.facts, servers=servers),
        versions={**site.peers.versions, address: None},
    )


@planted("cluster-health", "takes no appends for them")
def _(site: Site) -> None:
    servers = {
        each: replace(answers, health=dict.fromkeys(answers.health or {}, False))
        for each, answers in site.peers.facts.servers.items()
    }
    site.peers = replace(site.peers, facts=replace(site.peers.facts, servers=servers))


def damage(path: Path, at: int, count: int) -> None:
    content = bytearray(path.read_bytes())
    for position in range(at, at + count):
        content[position] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(("check", "said", "plant"), PLANTED)
def test_a_planted_problem_is_found_and_the_preparation_is_not_ready(
    site: Site, check: str, said: str, plant: Plant
) -> None:
    plant(site)
    found = site.check()
    alarms = [each for each in found.findings if each.is_well is False]
    assert [
        each for each in alarms if each.check == check and said in f"{each.found}: {each.cause}"
    ], alarms
    assert all(each.remedy for each in alarms)
    assert found.is_well is False
    assert found.steps[0].is_ready is False


def test_more_than_25_problems_are_planted() -> None:
    assert len(PLANTED) >= 25


def test_without_an_answer_of_any_process_steps_are_not_known_to_be_ready(site: Site) -> None:
    found = checkup(site.write(), [], None, with_records=False)
    assert {step.is_ready for step in found.steps if step.role not in ("all", "client")} == {None}
    assert found.is_well is None


def test_the_golden_directory_is_that_of_the_golden_tree() -> None:
    assert AFTER_CLIENTS.exists()
    assert metadata_of("4-after-clients").root == ROOT
