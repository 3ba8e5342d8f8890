"""`waltz cluster verify`, `check-connectivity` and `status` on a cluster of processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.clusters import Said, run_tool
from waltz.cluster.cluster_shell import ServerMembership
from waltz.system.real_host import real_host
from waltz.types import (
    Address,
    parse_coordinator,
)

pytestmark = pytest.mark.processes

CHECKS = ["assignment", "servers", "connectivity", "storages", "quorum", "recovery", "health"]


def test_a_cluster_that_is_well_passes(operated: OperatedCluster) -> None:
    """TL-50, TL-51"""
    found = operated.done("cluster", "verify", "--json").json
    assert found["passed"] is True
    assert [each["check"] for each in found["checks"]] == CHECKS
    assert found["partitions"] == {"0": True, "1": True}
    said = operated.done("cluster", "verify", "-p", "1")
    assert "partitions passed: 1\n" in said.out
    reached = operated.done("cluster", "check-connectivity", "--json").json
    nodes = [operated.storages[name].address for name in ("s1", "s2", "s3")]
    assert reached[operated.servers["v1"]]["reaches"] == dict.fromkeys(sorted(nodes), True)
    beyond = operated.tool("cluster", "verify", "-p", "1-2")
    assert beyond.code == 1
    assert "there is no partition 2; expected 0 to 1" in beyond.err


def test_a_server_that_does_not_answer_is_named(blank: OperatedCluster) -> None:
    """TL-50, TL-53: UNREACHABLE, with the reason."""
    blank.done("cluster", "create", "-n", "unreachable", "-p", "1")
    none = blank.tool("cluster", "check-connectivity")
    assert none.code == 1
    assert "no server of the cluster is running" in none.err
    registered, over = Event(), Event()

    async def pretend() -> None:
        host = real_host(parse_coordinator(blank.coordinator))
        membership = ServerMembership(
            host, Address("127.0.0.1", 1), lambda _: registered.set(), root=blank.root
        )
        await membership.start()
        while not over.is_set():
            await asyncio.sleep(0.02)
        await membership.stop()
        await host.coordinator.close()

    thread = Thread(target=asyncio.run, args=(pretend(),))
    thread.start()
    try:
        assert registered.wait(60)
        said = blank.tool("cluster", "check-connectivity")
        verified = blank.tool("cluster", "verify")
        as_json = blank.tool("cluster", "check-connectivity", "--json")
    finally:
        over.set()
        thread.join(60)
    assert said.code == as_json.code == verified.code == 1
    assert "server 127.0.0.1:1: UNREACHABLE: no connection to 127.0.0.1:1" in said.out
    assert as_json.json["127.0.0.1:1"]["reaches"] is None
    assert "servers: partition 0: server 127.0.0.1:1 does not answer" in verified.out
    assert "quorum: partition 0: no storage node holds it" in verified.out
    blank.done("cluster", "delete", "-n", "unreachable")


def test_what_a_node_knows_of_damage_and_obstacles_is_shown(operated: OperatedCluster) -> None:
    """TL-55, MT-50: by status and by verify, while no server can repair it."""
    operated.append(0, *(f"record {number}" for number in range(50)))
    operated.end("v1")
    operated.end("s3")
    node = operated.storages["s3"]
    segment = max((node.directory / "0").glob("*.seg"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[content.index(b"record 40")] ^= 1
    segment.write_bytes(content)
    operated.start_storage("s3")
    second = operated.storages["s2"].address
    offline = ("availability", "-s", second, "-p", "1", "--force", "-o")
    operated.done("admin storage", *offline, "false")

    status = operated.tool("cluster", "status", "--json")
    assert status.code == 1
    storages = {each["replica_id"]: each for each in status.json["storages"]}
    assert storages[operated.storages["s1"].address]["problems"] == []
    (damage,) = storages[node.address]["problems"]
    assert damage.startswith("partition 0: record ")
    assert damage.endswith("damaged, not repaired yet")
    assert storages[second]["problems"] == [
        "partition 1: an administrator has closed it to reads and writes of servers"
    ]
    shown = operated.tool("cluster", "status")
    assert f"storage node {node.address} {damage}" in shown.out
    assert "partition 0 takes no appends: no server has it" in shown.out
    verified = operated.tool("cluster", "verify")
    assert verified.code == 1
    assert f"storages: partition 0: storage node {node.address}: record" in verified.out
    listed = operated.tool("admin storage", "list", "-s", node.address, "--json").json
    assert listed[0]["partitions"][0]["problems"] == [damage.removeprefix("partition 0: ")]

    operated.done("admin storage", *offline, "true")
    operated.start_server("v1")
    operated.wait_until_verified("the damage is not repaired")
    assert "record 40" in operated.tail(0)


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    """TL-01: while it waits for a ZooKeeper that says nothing."""

    async def main() -> tuple[int, str]:
        connected = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            connected.set()
            await reader.read()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "waltz.cli.main", "cluster", "verify"),
            *("--zookeeper", f"127.0.0.1:{port}/x?sessionTimeout=60000"),
            stderr=subprocess.PIPE,
        )
        await asyncio.wait_for(connected.wait(), 60)
        process.send_signal(signal.SIGINT)
        _, said = await asyncio.wait_for(process.communicate(), 60)
        server.close()
        return process.returncode or 0, said.decode()

    code, said = asyncio.run(main())
    assert code == 130
    assert "Traceback" not in said


def test_nothing_is_verified_where_there_is_no_cluster(blank: OperatedCluster) -> None:
    for command in ("verify", "check-connectivity", "status", "list"):
        said: Said = blank.tool("cluster", command)
        assert (said.code, said.out) == (1, "")
        assert f"there is no cluster at {blank.root}" in said.err
    elsewhere = run_tool("status", "--zookeeper", f"{blank.zookeeper}/nowhere")
    assert elsewhere.code == 1
    assert "there is no cluster at /nowhere" in elsewhere.err
