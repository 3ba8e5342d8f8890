"""`waltz archive cut` and `cuts`, against a running cluster and without one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

import waltz
from tests.archive.archives import NOW, add, directory_target
from tests.client.applications import Recorder
from tests.clusters import RunningCluster, run_tool, running_cluster
from waltz.archive.archive import open_archive, read_archive
from waltz.archive.manifest import Cut
from waltz.archive.named_cuts import record_cut
from waltz.cluster.log_history import LogHistory, encode_histories
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.restore.restoring_shell import put_node
from waltz.system.real_host import real_host
from waltz.types import PartitionId, TransactionId, parse_coordinator


def file_at(tmp_path: Path, coordinator: str = "127.0.0.1:1") -> Path:
    path = tmp_path / "archive.yml"
    path.write_text(
        f"archive.target: file://{tmp_path}/a\narchive.every: 1\n"
        f"coordinator.address: {coordinator}\n"
    )
    return path


@pytest.mark.long
@pytest.mark.processes
def test_a_cut_is_named_once_all_of_it_is_archived(cluster: RunningCluster, tmp_path: Path) -> None:
    file = file_at(tmp_path, cluster.coordinator)
    (tmp_path / "a").mkdir()
    assert run_tool("archive", "run", file, "--once").code == 0
    with waltz.open_client(cluster.coordinator, Recorder()) as client:
        last = max(client.append_many(0, [b"1", b"2", b"3"]))
        late = run_tool("archive", "cut", file, "late", "--timeout", "0")
        assert late.code == 1
        assert "cut late is not named: 3 transactions of partitions 0" in late.err
        assert "waltz archive run" in late.err
        archiving = [sys.executable, "-m", "waltz.cli.main", "archive", "run", str(file)]
        with subprocess.Popen([*archiving, "--end-with-stdin"], stdin=subprocess.PIPE) as archiver:
            assert archiver.stdin is not None
            said = run_tool("archive", "cut", file, "friday", "--json")
            archiver.stdin.close()
        assert said.code == 0, said.err
        assert said.json["name"] == "friday"
        assert said.json["marks"]["0"] == last
    (found,) = open_archive(f"file://{tmp_path}/a").cuts.values()
    assert found.name == "friday"
    assert {str(each): mark for each, mark in found.marks.items()} == said.json["marks"]
    again = run_tool("archive", "cut", file, "friday")
    assert (again.code, "has a cut 'friday' already" in again.err) == (1, True)
    assert "friday" in run_tool("archive", "cuts", file).out


@pytest.mark.processes
def test_the_archive_of_another_cluster_names_no_cut(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    add(directory_target(tmp_path / "a"), {0: [(0, 5)]})
    said = run_tool("archive", "cut", file_at(tmp_path, cluster.coordinator), "friday")
    assert (said.code, "has the log of cluster" in said.err) == (1, True)


@pytest.mark.processes
def test_an_archive_that_the_log_has_left_behind_names_no_cut(tmp_path: Path) -> None:
    """A restore went back behind what is archived: its IDs are those of other transactions now."""
    (tmp_path / "a").mkdir()
    with running_cluster(tmp_path / "cluster", "--partitions", "1") as cluster:
        file = file_at(tmp_path, cluster.coordinator)
        with waltz.open_client(cluster.coordinator, Recorder()) as client:
            client.append_many(0, [b"1", b"2", b"3"])
        assert run_tool("archive", "run", file, "--once").code == 0
        restore = LogHistory(uuid4(), NOW, {PartitionId(0): TransactionId(1)})

        async def restored() -> None:
            host = real_host(parse_coordinator(cluster.coordinator))
            path = ClusterPaths(DEFAULT_ROOT).history
            await put_node(host.coordinator, path, encode_histories((restore,)))
            await host.coordinator.close()

        asyncio.run(restored())
        said = run_tool("archive", "cut", file, "friday")
        assert (said.code, "archive to another target" in said.err) == (1, True)
        assert not open_archive(f"file://{tmp_path}/a").cuts


def test_cuts_are_listed_with_their_marks_the_oldest_first(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5)], 1: [(0, 2)]})
    file = file_at(tmp_path)
    assert "names no cut" in run_tool("archive", "cuts", file).out
    contents = archive.contents
    for name, mark, made_at in (("new", 4, NOW + 1), ("old", 1, NOW)):
        marks = {PartitionId(0): TransactionId(mark), PartitionId(1): TransactionId(-1)}
        cut = Cut(name, marks, made_at)
        contents = record_cut(target, contents, cut, now=NOW, writer=name)
    assert read_archive(target).contents == contents
    said = run_tool("archive", "cuts", file, "--json")
    assert [(each["name"], each["marks"]) for each in said.json["cuts"]] == [
        ("old", {"0": 1, "1": -1}),
        ("new", {"0": 4, "1": -1}),
    ]
    assert "0=4,1=-1" in run_tool("archive", "cuts", file).out


def test_a_wrong_name_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    add(directory_target(tmp_path / "a"), {0: [(0, 5)]})
    said = run_tool("archive", "cut", file_at(tmp_path), "a b")
    assert (said.code, "cannot be the name of a cut" in said.err) == (1, True)
