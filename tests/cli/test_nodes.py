"""`waltz server` and `waltz storage` as processes."""

from __future__ import annotations

import pytest

from tests.clusters import RunningCluster, run_waltz

pytestmark = pytest.mark.processes


def test_a_storage_node_refuses_a_directory_in_use(cluster: RunningCluster) -> None:
    """SD-09: the message names the directory."""
    place = cluster.state["storages"][0]
    done = run_waltz(
        *("storage", "--coordinator", cluster.coordinator),
        *("--address", "127.0.0.1:1", "--admin-address", "127.0.0.1:2"),
        *("--directory", str(cluster.directory / place["name"])),
    )
    assert done.returncode == 1
    assert str(cluster.directory / place["name"]) in done.stderr


def test_a_storage_node_refuses_a_missing_directory(cluster: RunningCluster) -> None:
    done = run_waltz(
        *("storage", "--coordinator", cluster.coordinator),
        *("--address", "127.0.0.1:1", "--admin-address", "127.0.0.1:2"),
        *("--directory", str(cluster.directory / "nowhere")),
    )
    assert done.returncode == 1
    assert "nowhere" in done.stderr


def test_a_server_whose_port_is_taken_names_it(cluster: RunningCluster) -> None:
    """SV-32."""
    address = cluster.state["servers"][0]["address"]
    done = run_waltz("server", "--coordinator", cluster.coordinator, "--address", address)
    assert done.returncode == 1
    assert f"port {address.rpartition(':')[2]} on 127.0.0.1 is in use" in done.stderr


def test_a_node_without_a_coordinator_names_it() -> None:
    done = run_waltz("server", "--coordinator", "127.0.0.1:1", "--address", "127.0.0.1:2")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
