"""Processes of the release before this one and of this one, in one cluster, under load.

docs/operating/upgrades.md says what an operator does; here it is done.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.clusters import ROOT, start_cluster
from tests.interop.nodes import running_loop
from tests.live.launch import WALTZ
from tests.rolling.accounts import read_replicas
from tests.rolling.releases import PREVIOUS, NoHistoryError, previous_release, source_of
from tests.rolling.road import Manner, Road, driven
from waltz.cluster.cluster_shell import create_cluster
from waltz.cluster.paths import ClusterPaths
from waltz.host import Coordinator

pytestmark = pytest.mark.processes

NEW: Final = Manner("new")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Manner:
    """The release before this one. Without the history of the repository this is an error."""
    return Manner("old", str(previous_release(tmp_path_factory.mktemp("previous"))))


def drive(
    directory: Path, first: Manner, steps: Callable[[Road], Coroutine[Any, Any, None]], servers: int
) -> Road:
    """Play the steps on a cluster of that first manner, and judge it."""

    async def main() -> Road:
        road = Road(directory, first, servers=servers, partitions=2, cluster_key=uuid4())
        async with driven(road):
            await steps(road)
            assert await road.judged() == []
        return road

    return asyncio.run(main())


def test_one_node_of_each_role_is_replaced_by_this_release_and_back(
    tmp_path: Path, old: Manner
) -> None:
    async def steps(road: Road) -> None:
        await road.replace("storage-1", NEW)
        await road.replace("server-1", NEW)
        await road.replace_writer(NEW)
        await road.replace("server-1", old)
        await road.replace("storage-1", old)

    road = drive(tmp_path, old, steps, servers=2)
    assert len(road.steps) == 6
    assert all(each.told for each in road.read_accounts())


ORDERS: Final = {
    "storage nodes, servers, clients": ("storage", "server", "client"),
    "servers, storage nodes, clients": ("server", "storage", "client"),
    "clients, servers, storage nodes": ("client", "server", "storage"),
}


@pytest.mark.long
@pytest.mark.parametrize("way", ["in order", "killed"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_process_is_replaced_in_any_order_and_back(
    tmp_path: Path, old: Manner, order: str, way: str
) -> None:
    async def steps(road: Road) -> None:
        replace = road.replace if way == "in order" else road.crash_and_replace
        for manner in (NEW, old):
            for role in ORDERS[order]:
                if role == "client":
                    await road.replace_writer(manner)
                else:
                    for name in road.storages if role == "storage" else road.servers:
                        await replace(name, manner)

    road = drive(tmp_path, old, steps, servers=2)
    assert len(road.steps) == 13
    assert all(each.told for each in road.read_accounts())


def said_by(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the release that a Python has."""
    return subprocess.run(
        [python, "-m", WALTZ, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("--tls",)], ids=["plain", "tls"])
def test_a_directory_of_waltz_up_is_started_by_either_release(
    tmp_path: Path, old: Manner, more: tuple[str, ...]
) -> None:
    directory = tmp_path / "data"
    for number, python in enumerate((old.python, NEW.python, old.python, NEW.python)):
        cluster = start_cluster(directory, "--partitions", "1", *more, python=python)
        try:
            place = ("--cluster", cluster.coordinator, "--partition", "0")
            tls = directory / "tls"
            trusted = ("--tls-ca", str(tls / "ca.pem"), "--tls-cert", str(tls / "client.pem"))
            done = said_by(python, "append", *place, *(trusted if more else ()), f"by {number}")
            assert done.returncode == 0, done.stderr
        finally:
            cluster.stop()
    log, differences = read_replicas(sorted(directory.glob("storage-*")))
    assert differences == []
    assert [each.data for each in log[0]] == [b"by 0", b"by 1", b"by 2", b"by 3"]


ASKING: Final = (
    "access.policy", "access.tokens", "access.localSockets", "access.audit.file", "http.tokens",
    "http.tls.keyStore.location",
)  # fmt: skip
"""Keys by which this release asks peers for something, or writes down what they did."""


@pytest.mark.parametrize("role", ["server", "storage"])
def test_the_release_before_starts_without_a_key_that_it_does_not_know(
    tmp_path: Path, old: Manner, role: str
) -> None:
    """A way back that nothing refuses, and behind which nobody is asked for anything."""
    path = tmp_path / "node.yml"
    asking = ASKING if role == "server" else [key for key in ASKING if key != "access.tokens"]
    keys = {f"{role}.port": 7000, "coordinator.address": "127.0.0.1:1"}
    if role == "storage":
        keys |= {"storage.directory": str(tmp_path), "storage.admin.port": 7001}
    lines = [f"{key}: {value}\n" for key, value in (keys | dict.fromkeys(asking, path)).items()]
    path.write_text("".join(lines))
    done = said_by(old.python, role, "--check", str(path))
    assert done.returncode == 0, done.stderr
    for key in asking:
        assert f"warning: {key} (" in done.stderr, key
    assert done.stderr.count("is not known and ignored") == len(asking)


def test_the_release_before_does_not_delete_a_cluster_that_keeps_a_policy(
    tmp_path: Path, old: Manner
) -> None:
    """It takes the node for that of somebody else, and leaves everything where it is."""

    async def prepare(door: Coordinator) -> None:
        await create_cluster(door, name="road", partition_count=1, cluster_key=uuid4(), storages=[])
        await door.create(ClusterPaths().policy, b"version: 1")

    with running_loop(tmp_path) as loop:
        loop.ask(prepare)
        command = ("cluster", "delete", "-n", "road", "--cluster", str(loop.address))
        refused = said_by(old.python, *command)
        assert refused.returncode == 1, refused.stdout
        assert "nodes of no cluster, or of another one: policy" in refused.stderr
        done = said_by(NEW.python, *command)
        assert done.returncode == 0, done.stderr


def test_a_repository_without_the_commit_is_an_error_that_says_what_to_fetch(
    tmp_path: Path,
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(NoHistoryError, match="git fetch --unshallow"):
        source_of(PREVIOUS, tmp_path, tmp_path / "tree")


def test_every_door_of_the_page_names_its_test_or_says_that_there_is_none() -> None:
    page = (ROOT / "docs" / "operating" / "upgrades.md").read_text()
    doors = page.partition("## Doors that close")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in doors.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    for row in rows:
        said = row[2]
        names = re.findall(r"`(test_\w+)`", said)
        assert names or "no test" in said or said.startswith(("the same", "as above")), row
        for name in names:
            assert f"def {name}(" in Path(__file__).read_text(), name
