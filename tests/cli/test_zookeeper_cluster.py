"""Whole clusters on a real ZooKeeper: their own, and one that runs elsewhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

import waltz
from tests.cluster.golden import golden_tree
from tests.clusters import (
    RunningCluster,
    partition_at,
    run_waltz,
    running_cluster,
    running_server,
    start_cluster,
    start_node,
    wait_until,
    wait_until_healthy,
)
from tests.live.faults import Proxy
from tests.zookeepers import RunningZooKeeper, running_zookeeper, tree_at
from waltz.cli.trial_directory import choose_ports
from waltz.cluster.cluster_shell import ClusterView, ServerMembership, StorageEntry, create_cluster
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.host import Node
from waltz.server.server_shell import Server, ServerConfig
from waltz.system.real_host import real_host
from waltz.types import Address, PartitionId, ZooKeeperAddress, parse_coordinator

pytestmark = pytest.mark.processes

ROOT = "/prod/waltz"


def append(coordinator: str, *data: str) -> list[str]:
    done = run_waltz("append", "--cluster", coordinator, "--partition", "0", *data)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def tail(coordinator: str) -> list[str]:
    done = run_waltz(
        *("tail", "--cluster", coordinator, "--partition", "0"),
        *("--from", "earliest", "--no-follow"),
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t")[2] for line in done.stdout.splitlines()]


def restarts(cluster: RunningCluster) -> dict[str, int]:
    return {process["name"]: process["restarts"] for process in cluster.state["processes"]}


def test_a_cluster_runs_its_own_zookeeper_and_starts_it_again(tmp_path: Path) -> None:
    """CM-01, CM-27, PM-04: nobody else has to be started again."""
    with running_cluster(tmp_path / "c", "--partitions", "1", "--zookeeper") as cluster:
        coordinator = cluster.coordinator
        assert coordinator.startswith("zookeeper://127.0.0.1:")
        assert append(coordinator, "a", "b") == ["0", "1"]
        cluster.kill("zookeeper")
        cluster.wait_until_restarted("zookeeper")
        assert append(coordinator, "c") == ["2"]
        wait_until_healthy("--cluster", coordinator)
        assert restarts(cluster) == {
            "zookeeper": 1,
            "storage-1": 0,
            "storage-2": 0,
            "storage-3": 0,
            "server-1": 0,
        }
    with running_cluster(tmp_path / "c") as cluster:
        assert cluster.coordinator == coordinator
        assert append(coordinator, "d") == ["3"]
        assert tail(coordinator) == ["a", "b", "c", "d"]
    done = run_waltz("up", "--directory", str(tmp_path / "c"), "--coordinator", "zookeeper://a:1/b")
    assert done.returncode == 1
    assert f"created with --coordinator {coordinator}" in done.stderr


@pytest.mark.long
def test_a_cluster_that_speaks_tls_reaches_its_zookeeper_in_the_clear_and_says_so(
    tmp_path: Path,
) -> None:
    """CM-01, TS-01."""
    options = ("--partitions", "1", "--zookeeper", "--tls")
    with running_cluster(tmp_path / "waltz-data", *options) as cluster:
        done = run_waltz("append", "--partition", "0", "a", cwd=tmp_path)
        assert done.stdout.split() == ["0"], done.stderr
        wait_until_healthy(cwd=tmp_path)
        done = run_waltz("status", "--cluster", cluster.coordinator)
        assert done.returncode == 1, "what the metadata says is shown all the same"
        assert "partition 0 may or may not take appends: its server does not answer" in done.stdout
        assert "it closed the connection" not in done.stdout
        for line in done.stdout.splitlines():
            if line.startswith(("server 127", "storage node 127")):
                assert "it takes TLS only" in line, "neither reachable nor gone"
                assert "--tls-ca" in line, "the remedy"
        assert done.stdout.count("it takes TLS only") == 7, "a server, and both ports of each node"
    for name in "storage-1", "server-1":
        said = (cluster.directory / "logs" / f"{name}.log").read_text()
        assert "connections to ZooKeeper at 127.0.0.1" in said


@pytest.mark.long
def test_a_zookeeper_of_its_own_ends_with_the_cluster_that_was_killed(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "c", "--partitions", "1", "--zookeeper")
    processes = cluster.state["processes"]
    assert "zookeeper" in [process["name"] for process in processes]
    cluster.process.kill()
    cluster.process.communicate()
    wait_until(
        lambda: not any(Path(f"/proc/{process['pid']}").exists() for process in processes),
        "a process lives on",
    )


def test_a_cluster_of_the_embedded_coordinator_keeps_it(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "c", "--partitions", "1"):
        pass
    done = run_waltz("up", "--directory", str(tmp_path / "c"), "--zookeeper")
    assert done.returncode == 1
    assert "created with --zookeeper False" in done.stderr


@pytest.mark.parametrize(
    "options",
    [("--coordinator", "127.0.0.1:1"), ("--zookeeper", "--coordinator", "zookeeper://a:1/b")],
)
def test_what_up_cannot_use_as_a_coordinator_is_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run_waltz("up", "--directory", str(tmp_path / "c"), *options)
    assert done.returncode == 2
    assert "--coordinator" in done.stderr
    assert not (tmp_path / "c").exists()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(
    zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("cluster"),
        *("--partitions", "2"),
        *("--coordinator", f"zookeeper://{zookeeper.address}{ROOT}?sessionTimeout=10000"),
    ) as cluster:
        yield cluster


def sessions(tree: dict[str, Node], partition_id: PartitionId) -> tuple[int, int, list[object]]:
    """Generation, session and the states of the replicas, whatever these are called."""
    node = tree[f"/store/partition/{partition_id}"]
    metadata = PartitionMetadata.decode(node.data or b"", partition_id)
    return metadata.generation, metadata.session_id, list(metadata.replica_states.values())


def test_its_tree_is_that_of_the_original(zookeeper: RunningZooKeeper, tmp_path: Path) -> None:
    """CM-02, CM-05: the same nodes and values, where no host or port is in them."""
    root = "/several/names"
    coordinator = f"zookeeper://{zookeeper.address}{root}"
    options = ("--partitions", "2", "--name", "golden", "--coordinator", coordinator)
    with running_cluster(tmp_path / "c", *options):
        check_tree(coordinator, root)


def check_tree(coordinator: str, root: str) -> None:
    golden = {
        path.removeprefix("/waltz_cluster"): node
        for path, node in golden_tree("3-server-up").items()
    }
    partitions = [PartitionId(0), PartitionId(1)]

    def ours() -> dict[str, Node]:
        found = tree_at(coordinator, root)
        return {path: node for path, node in found.items() if not path.startswith("/storageDirec")}

    def has_recovered() -> bool:
        tree = ours()
        return tree.keys() == golden.keys() and all(
            sessions(tree, number) == sessions(golden, number) for number in partitions
        )

    wait_until(has_recovered, "the partitions have other sessions than those of the original")
    tree = ours()
    assert {path for path, node in tree.items() if node.data is None} == {
        path for path, node in golden.items() if node.data is None
    }
    assert tree[""].data == golden[""].data
    for path in ("/serverDescriptors", "/ids/server", "/store/partition"):
        assert tree[path] == golden[path]


def has_settled(coordinator: str) -> bool:
    """Whether every replica takes part in its partition's session: nothing is written any more."""
    status = json.loads(run_waltz("status", "--cluster", coordinator, "--json").stdout)
    return all(
        partition["replicas_current"] == len(status["storages"])
        for partition in status["partitions"]
    )


@pytest.mark.long
def test_two_clusters_in_one_zookeeper_do_not_meet(cluster: RunningCluster, tmp_path: Path) -> None:
    """CM-05, CM-06"""
    elsewhere = cluster.coordinator.replace(ROOT, "/other")
    wait_until(lambda: has_settled(cluster.coordinator), "its replicas do not catch up")
    before = tree_at(cluster.coordinator, ROOT)
    with running_cluster(tmp_path / "c", "--partitions", "1", "--coordinator", elsewhere):
        assert append(elsewhere, "a") == ["0"]
        assert tree_at(cluster.coordinator, ROOT) == before
    done = run_waltz(
        *("up", "--directory", str(tmp_path / "d"), "--port", "0"),
        *("--coordinator", elsewhere),
    )
    assert done.returncode == 1
    assert "holds cluster" in done.stderr


@pytest.mark.long
def test_an_outage_stops_what_is_new_and_nothing_that_runs(
    zookeeper: RunningZooKeeper, cluster: RunningCluster
) -> None:
    """CM-14, CM-15, CM-27: safety rests on store sessions, so what runs may go on."""
    before = restarts(cluster)
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        first = client.append(0, b"before")
        zookeeper.kill()
        for number in range(1, 6):
            assert client.append(0, b"during") == first + number
        done = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "0", "x")
        assert done.returncode == 1
        assert f"no ZooKeeper answers at {zookeeper.address}" in done.stderr
        done = run_waltz("status", "--cluster", cluster.coordinator)
        assert done.returncode == 1
        assert f"no ZooKeeper answers at {zookeeper.address}" in done.stderr
        zookeeper.start()
        assert append(cluster.coordinator, "after") == [str(first + 6)]
        assert client.append(0, b"after") == first + 7
    assert restarts(cluster) == before


def test_what_was_appended_in_an_outage_that_took_a_replica_is_there_once(
    zookeeper: RunningZooKeeper, cluster: RunningCluster
) -> None:
    """CM-27, ST-05: a new store session needs its number from the coordinator, and waits for it."""
    texts = [f"during {number}" for number in range(5)]
    before = restarts(cluster)
    with (
        waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        first = client.append(1, b"before")
        zookeeper.kill()
        cluster.kill("storage-1")
        appending = [pool.submit(client.append, 1, text.encode()) for text in texts]
        zookeeper.start()
        found = [appended.result(60) for appended in appending]
        assert found == [first + 1 + number for number in range(5)]
    cluster.wait_until_restarted("storage-1", before["storage-1"] + 1)
    with waltz.open_reader(cluster.coordinator) as reader:
        runs = list(reader.read(1, first, reader.high_water_mark(1) + 1))
    assert [data.decode() for run in runs for data in run.data] == ["before", *texts]
    assert restarts(cluster)["server-1"] == before["server-1"]


def test_a_server_cut_off_can_decide_nothing_once_another_has_its_partition(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    """CM-12, CM-15, CM-27, ST-05: it hears of nothing, believes that it serves, and is fenced by
    the storage nodes. It comes back by itself, with its ID."""
    root = "/cut"

    async def story(coordinator: str) -> None:
        proxy = Proxy(zookeeper.address)
        await proxy.start()
        behind = ZooKeeperAddress((proxy.address,), root, 3000)
        host, direct = real_host(behind), real_host(parse_coordinator(coordinator))
        server = Server(host, ServerConfig(address=Address("127.0.0.1", 0), root=root))
        view = ClusterView(direct, root=root)
        await view.start()
        await server.start()
        own = server.address

        async def until_it_serves(count: int) -> list[PartitionId]:
            while True:
                served = view.current.partitions
                found = [number for number, (address, _) in served.items() if address == own]
                if len(found) == count and len(served) == 2:
                    return found
                await asyncio.sleep(0.02)

        (partition,) = await until_it_serves(1)
        async with (
            waltz.open_async_client(str(behind), waltz.NoCallbacks()) as deceived,
            waltz.open_async_client(coordinator, waltz.NoCallbacks()) as informed,
        ):
            assert await deceived.append(partition, b"before") == 0
            proxy.hold()
            await until_it_serves(0)
            assert await informed.append(partition, b"during") == 1
            assert partition in server._partitions.running  # nobody has told it
            late = asyncio.create_task(deceived.append(partition, b"late"))
            assert await informed.append(partition, b"more") in (2, 3)
            proxy.cut()
            proxy.let_go()
            assert await late > 1
            await until_it_serves(1)
        await server.stop()
        await view.stop()
        for each in (host, direct):
            await each.coordinator.close()
        await proxy.stop()

    with running_cluster(
        tmp_path / "c",
        *("--partitions", "2"),
        *("--coordinator", f"zookeeper://{zookeeper.address}{root}?sessionTimeout=10000"),
    ) as cluster:
        asyncio.run(story(cluster.coordinator))
        with waltz.open_reader(cluster.coordinator) as reader:
            marks = [reader.high_water_mark(number) for number in (0, 1)]
            found = [
                data
                for number, mark in enumerate(marks)
                for run in reader.read(number, 0, mark + 1)
                for data in run.data
            ]
    assert found[:2] == [b"before", b"during"]
    assert sorted(found[2:]) == [b"late", b"more"]


def test_a_storage_node_finds_the_cluster_by_the_keys_of_the_original(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    """CF-46, SN-03"""
    coordinator = f"zookeeper://{zookeeper.address}/chroot/yaml"
    with running_cluster(tmp_path / "c", "--partitions", "1", "--coordinator", coordinator) as made:
        place = made.state["storages"][0]
    host, port = place["address"].rsplit(":", 1)
    config = tmp_path / "node.yml"
    config.write_text(
        f"""\
zookeeper.connectString: {zookeeper.address}/chroot
zookeeper.sessionTimeout: 30000
cluster.root: /yaml
storage.directory: {tmp_path / "c" / "storage-1"}
storage.bindAddress: {host}
storage.port: {port}
storage.admin.port: {place["admin"].rsplit(":", 1)[1]}
storage.diskFreeMin: 64MiB
"""
    )
    node = start_node("storage", str(config), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert node.stdout is not None
    assert node.stdout.readline() == "ready\n"
    node.terminate()
    _, said = node.communicate(timeout=60)
    assert node.returncode == 0
    assert "not_a_storage_node_of_the_cluster" not in said
    wait_until(lambda: node.poll() is not None, "the storage node lives on")


def test_a_server_finds_the_cluster_by_the_keys_of_the_original(
    zookeeper: RunningZooKeeper, cluster: RunningCluster, tmp_path: Path
) -> None:
    """CF-20, CM-01, CM-05, SV-25"""
    (port,) = choose_ports("127.0.0.1", 0, 1)
    chroot, root = ROOT.rsplit("/", 1)
    config = tmp_path / "server.yml"
    config.write_text(
        f"zookeeper: {{connectString: '{zookeeper.address}{chroot}', sessionTimeout: 10000}}\n"
        f"cluster.root: /{root}\n"
        f"server: {{port: {port}, bindAddress: 127.0.0.1, preferredPartitions: [1]}}\n"
    )
    first = str(cluster.state["servers"][0]["address"])

    def is_at(address: str) -> Callable[[], bool]:
        return lambda: partition_at(cluster.coordinator, 1) == (address, True)

    with running_server(config) as node:
        wait_until(is_at(f"127.0.0.1:{port}"), "the partition is not where it is preferred")
        done = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "1", "here")
        assert done.returncode == 0, done.stderr
    assert node.returncode == 0
    wait_until(is_at(first), "the partition is not handed back")


def test_what_a_server_prefers_is_kept_there_and_outlives_it(zookeeper: RunningZooKeeper) -> None:
    """SV-25: a change is a second node of its own until the first is gone."""
    root, address = "/prefers", Address("server", 7000)
    place = ZooKeeperAddress((zookeeper.address,), root, 2000)

    async def story() -> None:
        host = real_host(place)
        await create_cluster(
            host.coordinator,
            name="c",
            partition_count=2,
            cluster_key=UUID(int=1),
            storages=[StorageEntry(Address("storage", 1), Address("storage", 2))],
            root=root,
        )
        for preferred in (), (1,):
            server = ServerMembership(host, address, lambda _: None, root=root)
            await server.start()
            assert server.preferred_partitions == preferred
            assert await server.prefer(add=[PartitionId(1)])
            assert len(await host.coordinator.children(f"{root}/serverDescriptors")) == 1
            await server.stop()
        assert await host.coordinator.children(f"{root}/serverPreferences") == [str(address)]
        await host.coordinator.close()

    asyncio.run(story())
