"""`waltz server --workers`: servers on the cores of one machine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import waltz
from tests.clusters import (
    RunningCluster,
    run_waltz,
    running_cluster,
    running_server,
    wait_until,
)
from waltz.cli.server_workers import ServerWorkers, worker_addresses
from waltz.cli.trial_directory import choose_ports
from waltz.configuration.server_settings import server_settings
from waltz.configuration.settings import Given, Settings
from waltz.errors import ConfigurationError


def settings(**values: Any) -> Settings:
    given = {"coordinator.address": "127.0.0.1:1", "server.port": 7000} | {
        f"server.{name}": value for name, value in values.items()
    }
    return server_settings({name: Given(value, "test") for name, value in given.items()})


def test_each_worker_has_the_next_port_of_each_address() -> None:
    assert worker_addresses(settings(), 0) == ["--address", "127.0.0.1:7000"]
    several = settings(bindAddress="0.0.0.0", advertisedAddress="outside:47000")
    assert worker_addresses(several, 2) == [
        *("--address", "0.0.0.0:7002"),
        *("--advertised", "outside:47002"),
    ]


def test_ports_that_there_are_not_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="worker 1 would have port 65536"):
        ServerWorkers(settings(port=65_535), [], 2)


def test_workers_that_would_all_prefer_the_same_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="would prefer the same"):
        ServerWorkers(settings(preferredPartitions=[1]), [], 2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path / "cluster", "--partitions", "6") as cluster:
        yield cluster


def test_workers_share_the_partitions_and_one_that_dies_comes_back(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """SV-26: one configuration, several servers; SIGTERM stops them all."""
    (port, _) = choose_ports("127.0.0.1", 0, 2)
    config = tmp_path / "server.yml"
    config.write_text(
        json.dumps(
            {
                "coordinator.address": cluster.coordinator,
                "server.bindAddress": "127.0.0.1",
                "server.port": port,
            }
        )
    )

    def serving() -> set[int]:
        said = json.loads(run_waltz("status", "--cluster", cluster.coordinator, "--json").stdout)
        return {
            int(each["server"].rsplit(":", 1)[1]) for each in said["partitions"] if each["server"]
        }

    with running_server(config, "--workers", "2"):
        wait_until(lambda: {port, port + 1} <= serving(), "the workers got no partitions")
        log = (tmp_path / "log").read_text()
        pids = [int(pid) for pid in re.findall(r"worker_started name=worker-\d pid=(\d+)", log)]
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: "ended by signal 9" in (tmp_path / "log").read_text(), "not noticed")
        wait_until(lambda: {port, port + 1} <= serving(), "it did not come back")
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for partition in range(client.partition_count):
                client.append(partition, b"x", timeout_seconds=60)
    for pid in pids[1:]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
