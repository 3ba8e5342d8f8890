"""Checks of nodes by their files, next to a cluster that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import RunningCluster, run_waltz, running_cluster
from waltz.cli.doctor.installation_checks import java_findings
from waltz.cli.trial_directory import read_cluster_file
from waltz.types import Address

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("doctor") / "cluster") as running:
        yield running


def examined(*arguments: str) -> tuple[int, dict[tuple[str, str], bool | None], list[Any]]:
    """Return exit code, verdicts by check and subject, and the findings."""
    ran = run_waltz("doctor", "--json", *arguments)
    findings = json.loads(ran.stdout)
    verdicts = {(each["check"], each["subject"]): each["is_well"] for each in findings}
    return ran.returncode, verdicts, findings


def storage_file(directory: Path, coordinator: str, data: Address, admin: Address) -> Path:
    path = directory / "storage.yml"
    path.write_text(
        f"storage.port: {data.port}\nstorage.admin.port: {admin.port}\n"
        f"storage.directory: {directory}\ncoordinator.address: {coordinator}\n"
        "storage.diskFreeMin: 1MiB\n"
    )
    return path


def test_a_node_that_runs_is_well(cluster: RunningCluster, tmp_path: Path) -> None:
    place = read_cluster_file(cluster.directory).storages[0]
    path = storage_file(tmp_path, cluster.coordinator, place.address, place.admin_address)
    code, verdicts, findings = examined("--storage", str(path))
    of_node = {key: well for key, well in verdicts.items() if key[0] != "library"}
    assert of_node.pop(("coordinator", cluster.coordinator)) is True
    assert of_node.pop(("configuration", str(path))) is True
    assert of_node.pop(("port", f"{path} data {place.address}")) is True
    assert of_node.pop(("port", f"{path} admin {place.admin_address}")) is True
    assert of_node.pop(("disk-space", str(tmp_path))) is True
    assert {check for check, _ in of_node} == {"python", "open-files", "clock"} | {
        "disk-kind",
        "disk-sync",
    }
    assert code == {True: 0, False: 1, None: 3}[worst(findings)]


def worst(findings: list[Any]) -> bool | None:
    states = [each["is_well"] for each in findings]
    return False if False in states else None if None in states else True


def test_a_wrong_port_and_a_dead_coordinator_are_wrong(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    place = read_cluster_file(cluster.directory).storages[0]
    path = storage_file(tmp_path, "127.0.0.1:1", place.admin_address, place.address)
    code, verdicts, findings = examined("--storage", str(path))
    assert code == 1
    assert verdicts[("port", f"{path} data {place.admin_address}")] is False
    assert verdicts[("port", f"{path} admin {place.address}")] is False
    assert verdicts[("coordinator", "127.0.0.1:1")] is False
    causes = [each["cause"] for each in findings if each["is_well"] is False]
    assert any("a storage node's admin port answers there" in cause for cause in causes)
    assert any("Connection refused" in cause for cause in causes)


def test_a_file_that_is_refused_is_named_with_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "server.yml"
    path.write_text("server.port: 99999\n")
    code, verdicts, findings = examined("--server", str(path))
    assert code == 1
    assert verdicts[("configuration", str(path))] is False
    (cause,) = [each["cause"] for each in findings if each["check"] == "configuration"]
    assert "server.port" in cause
    assert "coordinator.address is missing" in cause
    assert not [check for check, _ in verdicts if check in ("port", "coordinator")]


def test_a_coordinator_is_asked_for_its_cluster(cluster: RunningCluster) -> None:
    code, verdicts, _ = examined("--coordinator", cluster.coordinator)
    assert verdicts[("coordinator", cluster.coordinator)] is True
    assert code in (0, 3)


def test_java_is_looked_for_if_asked() -> None:
    found = {each.check: each for each in java_findings()}
    assert {*found} == {"spark", "java"}
    assert found["spark"].is_well is True
