"""A process on loopback, because nobody said where it shall listen, and the rest of its cluster."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cluster.simulated import KEY, World, settled, simulate
from tests.clusters import RunningCluster, partition_at, run_waltz, running_server, wait_until
from tests.shares import one_in
from waltz.cli.neighbours import refuse_to_be_missed
from waltz.cli.trial_directory import choose_ports
from waltz.cluster.cluster_shell import ServerMembership, StorageEntry, create_cluster
from waltz.configuration.server_settings import BIND_ADDRESS, TLS
from waltz.errors import ConfigurationError
from waltz.host import Coordinator, Host
from waltz.types import Address

BOUND = Address("127.0.0.1", 7300)


async def create(coordinator: Coordinator, *storages: Address) -> None:
    entries = [StorageEntry(each, each) for each in storages]
    await create_cluster(
        coordinator, name="c", partition_count=1, cluster_key=KEY, storages=entries, root="/waltz"
    )


async def judge(coordinator: Coordinator) -> None:
    await refuse_to_be_missed(coordinator, "/waltz", BIND_ADDRESS, TLS, BOUND)


def test_a_cluster_of_this_machine_only_is_joined_and_the_log_says_who_reaches_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        await world.ask(create, Address("127.0.0.1", 7201), Address("::1", 7202))
        await world.ask(judge)

    with caplog.at_level("INFO"):
        simulate(story)
    assert "listens_on_loopback address=127.0.0.1:7300" in caplog.text


def test_storage_nodes_by_other_addresses_keep_a_process_from_hiding_on_loopback() -> None:
    async def story(world: World) -> None:
        nodes = [Address(f"s{number}.example", 7201) for number in range(4)]
        await world.ask(create, Address("127.0.0.1", 7201), *nodes)
        said = "cluster knows s0.example:7201, s1.example:7201, s2.example:7201 and 1 more by"
        with pytest.raises(ConfigurationError, match=said):
            await world.ask(judge)

    simulate(story)


def test_a_server_by_another_address_does_so_too() -> None:
    async def main(host: Host) -> None:
        await ServerMembership(host, Address("v1.example", 7300), lambda _: None).start()

    async def story(world: World) -> None:
        await world.ask(create)
        world.start(main, "one")
        await settled()
        with pytest.raises(ConfigurationError, match=r"knows v1\.example:7300 by .*Set server\.b"):
            await world.ask(judge)

    simulate(story)


def test_no_cluster_is_told_by_what_needs_one() -> None:
    async def story(world: World) -> None:
        await world.ask(judge)

    simulate(story)


def answers(host: str, port: int) -> bool:
    """127.0.0.2 is reached by what listens at all addresses, not by what listens at 127.0.0.1."""
    try:
        socket.create_connection((host, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.processes
@pytest.mark.parametrize("workers", one_in(2, [1, 2]))
def test_a_server_that_was_told_no_address_is_on_loopback_and_says_so(
    cluster: RunningCluster, tmp_path: Path, workers: int
) -> None:
    """F-15: its HTTP port too; what it tells others is where it is."""
    port, _, http, _ = choose_ports("127.0.0.1", 0, 4)
    content = {
        "coordinator.address": cluster.coordinator,
        "server.port": port,
        "server.jetty.port": http,
    }
    path = tmp_path / "server.yml"
    path.write_text(json.dumps(content))

    ours = {f"127.0.0.1:{number}" for number in range(port, port + workers)}

    def is_owner() -> bool:
        return any(partition_at(cluster.coordinator, each)[0] in ours for each in (0, 1))

    with running_server(path, "--workers", str(workers)):
        for each in (port, http):
            assert answers("127.0.0.1", each)
            assert not answers("127.0.0.2", each)
        wait_until(is_owner, "it has no partition as 127.0.0.1")
    log = (tmp_path / "log").read_text()
    assert "listens_on_loopback address=127.0.0.1" in log
    assert "ports_open_to_anyone" not in log
    content |= {"server.bindAddress": "0.0.0.0", "server.advertisedAddress": f"127.0.0.1:{port}"}
    path.write_text(json.dumps(content))
    with running_server(path, "--workers", str(workers)):
        for each in (port, http):
            assert answers("127.0.0.2", each)
    assert "ports_open_to_anyone" in (tmp_path / "log").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("command", ["server", "storage"])
def test_a_file_of_the_original_for_several_machines_ends_with_the_remedy(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "node.yml"
    path.write_text(
        "zookeeper.connectString: zoo.example:2181\ncluster.root: /waltz\n"
        "server.port: 7300\n" + "storage: {directory: data, port: 7201, admin.port: 7202}\n"
    )
    for arguments in ([str(path)], ["--check", str(path)]):
        done = run_waltz(command, *arguments)
        assert done.returncode == 1
        assert f"{command}.bindAddress is not set" in done.stderr
        assert "zoo.example" in done.stderr
        assert "Traceback" not in done.stderr
