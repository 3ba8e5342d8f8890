"""Clients that know some servers and no coordinator, against running clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import waltz
from tests.client.applications import Recorder
from tests.client.telling_servers import closed_port
from tests.clusters import (
    RunningCluster,
    partition_at,
    run_tool,
    running_cluster,
    running_server,
    wait_until,
)
from waltz.cli.trial_directory import choose_ports, read_cluster_file, trial_client_tls
from waltz.operators.questions_shell import find_coordinator
from waltz.system.real_host import real_coordinator, real_host
from waltz.types import Address, ServersAddress, TlsSettings

pytestmark = pytest.mark.processes


def servers_of(cluster: RunningCluster) -> list[str]:
    """Where the servers with partitions are."""
    done = run_tool("status", "--cluster", cluster.coordinator, "--json")
    return sorted({each["server"] for each in done.json["partitions"]})


def server_file(directory: Path, coordinator: str, port: int) -> Path:
    """The file of one more server on `port`, who would like partition 0."""
    directory.mkdir(exist_ok=True)
    path = directory / "server.yml"
    path.write_text(
        f"coordinator.address: {coordinator}\n"
        f"server: {{port: {port}, bindAddress: 127.0.0.1}}\n"
        "server.preferredPartitions: [0]\n"
    )
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    directory = tmp_path_factory.mktemp("pair")
    with running_cluster(directory, "--partitions", "4", "--servers", "2") as cluster:
        wait_until(lambda: len(servers_of(cluster)) == 2, "there are no two servers")
        yield cluster


@contextmanager
def opened(cluster: str, events: list[Any], **options: Any) -> Iterator[waltz.WaltzClient]:
    with waltz.open_client(cluster, waltz.NoCallbacks(), listener=events.append, **options) as it:
        yield it


def test_one_live_server_of_three_is_enough(pair: RunningCluster) -> None:
    """LC-10, LC-11, LC-60: and the other one is found through it."""
    events: list[Any] = []
    one, two = servers_of(pair)
    with opened(f"waltz://{closed_port()},{closed_port()},{one}", events) as client:
        assert client.partition_count == 4
        for partition in range(4):
            assert client.append(partition, b"x") >= 0
    connected = {str(e.address) for e in events if isinstance(e, waltz.ServerConnected)}
    assert connected == {one, two}


def test_the_commands_take_servers_too(pair: RunningCluster) -> None:
    where = ("--cluster", f"waltz://{','.join(servers_of(pair))}", "--partition", "3")
    done = run_tool("append", *where, "found")
    assert done.code == 0, done.err
    tailed = run_tool("tail", *where, "--from", done.out.strip(), "--no-follow")
    assert tailed.out == f"{done.out.strip()}\t0\tfound\n"
    wrong = run_tool("append", "--cluster", "waltz://nowhere", "--partition", "0", "x")
    assert wrong.code == 2
    assert "nowhere" in wrong.err


def test_a_server_that_is_added_is_connected_and_left_when_it_goes(
    pair: RunningCluster, tmp_path: Path
) -> None:
    """LC-61."""
    events: list[Any] = []
    (port,) = choose_ports("127.0.0.1", 0, 1)
    added = f"127.0.0.1:{port}"
    with opened(f"waltz://{servers_of(pair)[0]}", events) as client:
        with running_server(server_file(tmp_path / "added", pair.coordinator, port)):
            wait_until(
                lambda: partition_at(pair.coordinator, 0) == (added, True),
                "the server has not got its partition",
            )
            assert client.append(0, b"at the added server", timeout_seconds=60) >= 0
            told = [str(e.address) for e in events if isinstance(e, waltz.ServerConnected)]
            assert added in told
        assert client.append(0, b"back again", timeout_seconds=60) >= 0
        gone = [str(e.address) for e in events if isinstance(e, waltz.ServerDisconnected)]
        assert added in gone


def test_an_idle_client_outlives_all_servers(pair: RunningCluster) -> None:
    """LC-71, LC-73, UA-10: killed and started again, and nobody calls the client meanwhile."""
    events: list[Any] = []
    one, two = servers_of(pair)
    with opened(f"waltz://{one},{two}", events) as client:
        for partition in range(4):
            client.append(partition, b"before")
        before = {each["name"]: each["restarts"] for each in pair.state["processes"]}
        events.clear()
        names = [name for name in before if name.startswith("server")]
        for name in names:
            pair.kill(name)
        for name in names:
            pair.wait_until_restarted(name, before[name] + 1)

        def is_back() -> bool:
            mounted = [e for e in events if isinstance(e, waltz.PartitionMounted)]
            return {int(e.partition_id) for e in mounted} == {0, 1, 2, 3}

        wait_until(is_back, "the client has not come back")
        assert any(isinstance(e, waltz.ServerDisconnected) for e in events)
        for partition in range(4):
            assert client.append(partition, b"after", timeout_seconds=60) >= 0


@pytest.mark.long
def test_a_cluster_replaced_behind_the_same_address_is_recognised(tmp_path: Path) -> None:
    """LC-75, LC-76: told once, nothing taken, and a new client works."""
    events: list[Any] = []
    recorder = Recorder()
    (port,) = choose_ports("127.0.0.1", 0, 1)
    address = f"waltz://127.0.0.1:{port}"
    first, second = tmp_path / "first", tmp_path / "second"
    with (
        running_cluster(first, "--partitions", "1") as old,
        running_server(server_file(tmp_path / "own", old.coordinator, port)),
    ):
        client = waltz.open_client(address, recorder, listener=events.append)
        assert client.append(0, b"old", timeout_seconds=60) == 0
    with running_cluster(second, "--partitions", "1") as new:
        where = ("--cluster", new.coordinator, "--partition", "0")
        assert run_tool("append", *where, "new", "newer").code == 0
        with running_server(server_file(tmp_path / "own", new.coordinator, port)):

            def is_told() -> bool:
                return any(isinstance(e, waltz.ClusterChanged) for e in events)

            wait_until(is_told, "the other cluster was not recognised")
            with pytest.raises(waltz.ClusterChangedError, match="another cluster answers"):
                client.append(0, b"for the old cluster")
            client.close()
            assert sum(isinstance(e, waltz.ClusterChanged) for e in events) == 1
            assert recorder.data == [b"old"]
            with waltz.open_client(address, waltz.NoCallbacks()) as another:
                assert another.append(0, b"newest", timeout_seconds=60) == 2


def test_servers_are_found_over_tls(tmp_path: Path) -> None:
    """LC-02: the same, with certificates for the name of the host."""
    with running_cluster(tmp_path / "tls", "--partitions", "1", "--tls") as cluster:
        tls = trial_client_tls(tmp_path / "tls", read_cluster_file(tmp_path / "tls"))
        assert isinstance(tls, TlsSettings)

        def server_of_the_partition() -> str | None:
            """None: the partition has no server yet."""
            where = (*tls_arguments(tls), "--cluster", cluster.coordinator)
            (found,) = run_tool("status", "--json", *where).json["partitions"]
            server: str | None = found["server"]
            return server

        wait_until(lambda: server_of_the_partition() is not None, "nobody serves the partition")
        server = str(server_of_the_partition())
        with waltz.open_client(f"waltz://{server}", waltz.NoCallbacks(), tls=tls) as client:
            assert client.append(0, b"sealed") == 0
        port = server.rpartition(":")[2]
        with waltz.open_reader(f"waltz://localhost:{port}", tls=tls) as reader:
            assert [run.data for run in reader.read(0, 0, 1)] == [[b"sealed"]]


def tls_arguments(tls: TlsSettings) -> list[str]:
    assert tls.authorities
    assert tls.certificate
    return ["--tls-ca", tls.authorities, "--tls-cert", tls.certificate]


def test_tools_that_know_one_server_find_the_coordinator_through_it(pair: RunningCluster) -> None:
    """F-36: status, cluster and admin take the address of servers as append and tail do."""
    servers = f"waltz://{closed_port()},{servers_of(pair)[0]}"
    for command in (
        ("status", "--json"),
        ("cluster", "list", "--json"),
        ("cluster", "verify", "--json"),
        ("admin", "storage", "list", "--json"),
    ):
        by_servers = run_tool(*command, "--cluster", servers)
        assert by_servers.code == 0, (command, by_servers.err)
        assert by_servers.json


def test_who_cannot_be_told_where_the_coordinator_is_learns_why(pair: RunningCluster) -> None:
    storage = pair.state["storages"][0]["address"]
    done = run_tool("cluster", "list", "--cluster", f"waltz://{closed_port()},{storage}")
    assert done.code == 1
    assert "no server of waltz://" in done.err
    assert f"{storage}: " in done.err, "each with its reason"
    assert "Give the coordinator's address" in done.err


def test_notes_and_replicas_are_found_through_servers(pair: RunningCluster) -> None:
    """F-36: once these have told where the coordinator is; also from a thread with a loop."""
    servers = f"waltz://{closed_port()},{servers_of(pair)[0]}"

    async def note() -> bytes:
        with waltz.open_notes(servers) as notes:
            return notes.change("told by a server", lambda _: b"1")

    assert asyncio.run(note()) == b"1"
    with waltz.open_notes(pair.coordinator) as notes:
        assert notes.read("told by a server") == b"1"
        notes.remove("told by a server")
    with waltz.open_replicas(servers) as nodes, waltz.open_notes(servers) as notes:
        assert len(nodes.replicas()) == 4 * 3
        assert nodes.cluster_key == notes.read_cluster_key()


@pytest.mark.long
def test_an_address_that_means_another_coordinator_here_is_not_believed(
    pair: RunningCluster, tmp_path: Path
) -> None:
    """F-36: servers of another machine say 127.0.0.1:7100, and a cluster of this one is there."""
    servers = ServersAddress.parse(f"waltz://{servers_of(pair)[0]}")
    keys = [pair.state["cluster_key"]]
    with running_cluster(tmp_path / "here", "--partitions", "1") as here:
        keys.append(here.state["cluster_key"])
        found = find_coordinator(
            real_host(None), servers, lambda _: real_coordinator(Address.parse(here.coordinator))
        )
        with pytest.raises(waltz.ConfigurationError) as raised:
            asyncio.run(found)
    said = str(raised.value)
    assert f"are of cluster {keys[0]} and have their coordinator at {pair.coordinator}" in said
    assert f"where cluster {keys[1]} answers from here" in said
    assert "Give the coordinator's address as it is reached from here" in said
