"""`waltz server`: its options and file, and a server as a process."""

from __future__ import annotations

import http.client
import json
import os
import signal
from pathlib import Path

import pytest

from tests.clusters import (
    RunningCluster,
    partition_at,
    run_waltz,
    running_server,
    wait_until,
)
from tests.zookeepers import running_zookeeper
from waltz.cli.server_node import server_config, unfinished
from waltz.cli.trial_directory import choose_ports
from waltz.configuration.server_settings import server_settings
from waltz.configuration.settings import Given
from waltz.server.server_metrics import (
    COORDINATOR_SILENT_SECONDS_MAX,
    ServerPartitionState,
    ServerStage,
    ServerState,
)
from waltz.types import Address, Generation, PartitionId


def test_settings_become_the_servers_configuration() -> None:
    """CF-21, CF-23 to CF-25, CF-32, CF-103, CF-104, CF-110."""
    given = {
        "coordinator.address": "c:1",
        "server.bindAddress": "0.0.0.0",
        "server.port": 7000,
        "server.advertisedAddress": "outside:47000",
        "server.optimisticLockTableSize": 10,
        "server.feedCacheSize": 20,
        "server.minFetchSize": 30,
        "storage.checkpointInterval": 40,
        "server.preferredPartitions": [2],
        "server.connectionRestoreTimeout": 50,
        "server.idleTimeout": 60.5,
    }
    settings = server_settings({name: Given(value, "test") for name, value in given.items()})
    config = server_config(settings, "me.example")
    assert config.address == Address("0.0.0.0", 7000)
    assert config.advertised == Address("outside", 47000)
    assert config.lock_table_slots == 10
    assert config.feed_cache_bytes == 20
    assert config.feed_fetch_min == 30
    assert config.checkpoint_transactions == 40
    assert config.preferred_partitions == (2,)
    assert (config.restore_seconds, config.idle_seconds) == (50, 60.5)


def test_what_a_stop_waits_for_is_named_by_partition() -> None:
    """CF-112."""
    state = ServerState(
        stage=ServerStage.STOPPING,
        server_id=None,
        advertised="host:1",
        partitions=(
            ServerPartitionState(
                partition_id=PartitionId(0), generation=Generation(1), reason=None
            ),
            ServerPartitionState(
                partition_id=PartitionId(3),
                generation=Generation(1),
                reason="no quorum",
                pending_requests=7,
                pending_bytes=4000,
            ),
        ),
    )
    assert [str(each) for each in unfinished(state)] == [
        "partition=3 pending_requests=7 pending_bytes=4000"
    ]


def test_check_judges_and_prints_what_would_be_in_force(tmp_path: Path) -> None:
    """TL-91."""
    path = tmp_path / "server.yml"
    path.write_text("coordinator.address: 127.0.0.1:1\nserver: {port: 7000, feedCashSize: 1}\n")
    done = run_waltz("server", "--check", str(path), "--http-address", "127.0.0.1:9000")
    assert done.returncode == 0
    assert "did you mean server.feedCacheSize?" in done.stderr
    assert "server.jetty.port: 9000  # --http-address" in done.stdout


def test_check_refuses_what_several_workers_would_not_start_with(tmp_path: Path) -> None:
    path = tmp_path / "server.yml"
    path.write_text("coordinator.address: 127.0.0.1:1\nserver.port: 7000\n")
    preferring = tmp_path / "preferring.yml"
    preferring.write_text(f"{path.read_text()}server.preferredPartitions: [1]\n")
    check = ("server", "--check", "--workers", "2")
    assert run_waltz(*check, str(path)).returncode == 0
    refused = run_waltz(*check, str(preferring))
    assert (refused.returncode, "would prefer the same" in refused.stderr) == (1, True)
    beyond = run_waltz(*check, str(path), "--address", "127.0.0.1:65535")
    assert (beyond.returncode, "worker 1 would have port 65536" in beyond.stderr) == (1, True)


@pytest.mark.processes
def test_a_server_runs_from_its_file_takes_what_it_prefers_and_hands_it_back(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """SV-25, SV-31, CF-20 to CF-33, CF-110, CF-112, MT-43."""
    first = str(cluster.state["servers"][0]["address"])
    port, http_port = choose_ports("127.0.0.1", 0, 2)
    path = tmp_path / "server.yml"
    path.write_text(
        f"coordinator.address: {cluster.coordinator}\n"
        f"server: {{port: {port}, bindAddress: 127.0.0.1, jetty.port: {http_port}}}\n"
        "server.preferredPartitions: [1]\n"
    )
    run_waltz("append", "--cluster", cluster.coordinator, "--partition", "1", "before")
    with running_server(path) as node:

        def has_moved() -> bool:
            return partition_at(cluster.coordinator, 1) == (f"127.0.0.1:{port}", True)

        wait_until(has_moved, "the partition does not move to where it is preferred")
        assert ask(http_port, "/live") == (200, b"live\n")
        wait_until(lambda: ask(http_port, "/health")[0] == 200, "the server does not become well")
        found = json.loads(ask(http_port, "/health")[1])["partitions"]["1"]
        assert (found["writable"], found["problems"], found["unknown"]) == (True, [], [])
        assert [each["standing"] for each in found["replicas"].values()] == ["current"] * 3
        done = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "1", "here")
        assert (done.returncode, done.stdout) == (0, "1\n")
        _, text = ask(http_port, "/metrics")
        assert b'waltz_server_commits_total{partition="1"} 1.0' in text
        assert b"waltz_server_unsent_peak_bytes" in text
        # As the original's `ServerCli list` asks: without a word of what it takes.
        gauges = json.loads(ask(http_port, "/metrics", None)[1])["gauges"]
        assert gauges["waltz-server.waltz-server-num-partitions"]["value"] == 1
        replicas = gauges["waltz-server.replica-info"]["value"]["1"]
        assert sorted(replicas) == sorted(storage_nodes(cluster))
    assert node.returncode == 0
    wait_until(
        lambda: partition_at(cluster.coordinator, 1)[0] == first, "the partition is not handed back"
    )
    done = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "1", "after")
    assert (done.returncode, done.stdout) == (0, "2\n")


def storage_nodes(cluster: RunningCluster) -> list[str]:
    done = run_waltz("status", "--cluster", cluster.coordinator, "--json")
    return [each["replica_id"] for each in json.loads(done.stdout)["storages"]]


def ask(port: int, path: str, accept: str | None = "*/*") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={} if accept is None else {"Accept": accept})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.processes
@pytest.mark.long
def test_a_server_says_that_its_zookeeper_hangs(tmp_path: Path) -> None:
    """F-7: with the age of its last answer, and that it is back once it is."""
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        coordinator = f"zookeeper://{zookeeper.address}/hangs?sessionTimeout=4000"
        made = run_waltz("cluster", "create", "-n", "c", "-p", "1", "--cluster", coordinator)
        assert made.returncode == 0, made.stderr
        port, http_port = choose_ports("127.0.0.1", 0, 2)
        config = tmp_path / "server.yml"
        config.write_text(
            f"coordinator.address: '{coordinator}'\n"
            f"server: {{port: {port}, bindAddress: 127.0.0.1, jetty.port: {http_port}}}\n"
        )

        def health() -> tuple[list[str], float]:
            connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=30)
            connection.request("GET", "/health")
            found = json.loads(connection.getresponse().read())
            told = [each for each in found["problems"] if "coordinator" in each]
            return told, found["coordinator_answer_age_seconds"]

        with running_server(config):
            told, age = health()
            assert told == []
            assert age < COORDINATOR_SILENT_SECONDS_MAX
            pid = zookeeper.process.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_until(lambda: health()[0], "the server does not notice")
                told, age = health()
                assert age > COORDINATOR_SILENT_SECONDS_MAX
                assert f"not answered for {age:.0f} s" in told[0]
            finally:
                os.kill(pid, signal.SIGCONT)
            wait_until(lambda: not health()[0], "the server does not notice that it is back")
