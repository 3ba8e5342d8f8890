"""`waltz migrate check` as a command: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.cli.original_site import Site
from tests.clusters import run_tool


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def run_check(site: Site, *arguments: str) -> Any:
    (tools, _), (server, _), (storage, _) = site.write()
    return run_tool(
        *("migrate", "check", "-c", tools, "--server", server, "--storage", storage), *arguments
    )


def test_the_command_prints_findings_plan_and_tables(site: Site) -> None:
    said = run_check(site, "--offline", "--records")
    assert said.code == 3
    for heading in ("FOUND", "KEYS THAT ARE DROPPED", "WHAT WILL DIFFER", "THE PLAN", "METRICS"):
        assert f"{heading}\n" in said.out
    assert "ZooKeeperCli assign-partition -> waltz cluster assign  (-p takes ranges)" in said.out
    assert "waltz-storage.partition-N.session-id -> waltz_storage_session_id\n" in said.out
    assert "     back: stop the node, start the original" not in said.out  # no node is known
    site.server["server.port"] = "none"
    assert run_check(site, "--offline").code == 1
    document = json.loads(run_check(site, "--offline", "--json").out)
    assert document.keys() == {"findings", "keys", "differences", "plan", "metrics", "tools"}


def test_a_zookeeper_that_does_not_answer_is_an_unknown(site: Site) -> None:
    for keys in (site.tools, site.server, site.storage):
        keys["zookeeper.connectString"] = "127.0.0.1:1"
    site.tools["zookeeper.connectTimeout"] = 1000
    said = run_check(site)
    assert said.code == 3
    assert "unknown cluster" in said.out


def test_it_wants_something_to_look_at() -> None:
    said = run_tool("migrate", "check")
    assert (said.code, "give -c, --server, --storage or --directory" in said.err) == (2, True)


@pytest.mark.processes
def test_a_running_cluster_is_asked_and_its_processes_are_told_apart(
    operated: OperatedCluster, tmp_path: Path
) -> None:
    """Processes of ours are there already: their steps are done."""
    tools = tmp_path / "tools.yml"
    place = f"zookeeper.connectString: {operated.zookeeper}\ncluster.root: {operated.root}"
    tools.write_text(f"{place}\n")
    operated.wait_until_verified("before the check")
    said = run_tool("migrate", "check", "-c", tools, "--json")
    document = json.loads(said.out)
    assert [each for each in document["findings"] if each["is_well"] is not True] == []
    replaced = [each for each in document["plan"] if each["role"] in ("storage", "server")]
    nodes = [operated.storages[name].address for name in ("s1", "s2", "s3")]
    assert [each["title"].split(" (")[0] for each in replaced] == [
        *(f"Replace storage node {each}" for each in sorted(nodes)),
        f"Replace server {operated.servers['v1']}",
    ]
    states = [(each["title"], each["is_done"], each["is_ready"], each["why"]) for each in replaced]
    assert [each for each in states if each[1:] != (True, True, [])] == []
    assert said.code == 0
    tools.write_text(f"{place}/nothing\n")
    elsewhere = run_tool("migrate", "check", "-c", tools)
    assert (elsewhere.code, "has no cluster at this path" in elsewhere.out) == (1, True)
