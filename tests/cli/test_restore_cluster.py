"""What `docs/operating/restore.md` shows works as it stands there, line by line: a cluster on a
real ZooKeeper loses its storage nodes and is restored under its own key, each directory by a
command of its own."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.clusters import ROOT, Said, run_tool, wait_until
from tests.restore.memory_archive import make_archive
from tests.restore.stored_archive import archive_of, nodes_of_coordinator, store
from tests.zookeepers import RunningZooKeeper
from waltz.types import TransactionId

PAGE = (ROOT / "docs" / "operating" / "restore.md").read_text()
NODES = ("s1", "s2", "s3")
HEADING = "## A majority of the replicas is lost"


def lines(page: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


class Story:
    """The cluster of the page, with the addresses and directories of this test."""

    def __init__(self, cluster: OperatedCluster, tmp_path: Path) -> None:
        self.cluster = cluster
        self.place = tmp_path
        self.url = ""
        self.waiting: subprocess.Popen[str] | None = None
        self.restored: list[str] = []

    def words(self, line: str) -> list[str]:
        line = line.replace("file:///backup/waltz", self.url)
        line = line.replace("zookeeper://zoo.example:2181/prod/waltz", self.cluster.coordinator)
        for name in NODES:
            place = self.cluster.storages[name]
            if f"-s {name}.example" in line:
                line = line.replace("--directory /data/waltz", f"--directory {place.directory}")
            line = line.replace(f"{name}.example:7201", place.address)
        return shlex.split(line, comments=True)[1:]

    def play(self, line: str) -> None:
        match re.split(r"\s+", line):
            case ["mv", *_]:
                for name in NODES:
                    directory = self.cluster.storages[name].directory
                    directory.rename(directory.with_suffix(".lost"))
            case ["mkdir", *_]:
                for name in NODES:
                    self.cluster.storages[name].directory.mkdir()
            case ["waltz", "restore", "cluster", *_]:
                self.begin(line)
            case ["waltz", "restore", "storage", *_]:
                self.fill(line)
            case ["systemctl", *words]:
                self.start_or_stop(words)
            case ["waltz", "cluster", "verify"]:
                self.cluster.wait_until_verified("after the restore")
            case ["waltz", "cluster", "delete", *_]:
                done = run_tool(*self.words(line), "--cluster", self.cluster.coordinator, "-f")
                assert done.code == 0, done.err
            case ["waltz", *_]:
                self.succeeds(line)
            case _:
                raise AssertionError(f"nothing known to do for {line!r}")

    def start_or_stop(self, words: list[str]) -> None:
        match words:
            case ["stop", "waltz-server", *_]:
                self.cluster.kill("v1")
            case ["stop", "waltz-storage", *_]:
                for name in NODES:
                    self.cluster.kill(name)
            case ["start", "waltz-storage", *_]:
                for name in NODES:
                    self.cluster.start_storage(name)
            case ["start", "waltz-server", *_]:
                self.cluster.start_server("v1")
            case _:
                raise AssertionError(f"nothing known to do for {words}")

    def begin(self, line: str) -> None:
        """Run the command until it waits for directories."""
        self.waiting = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", *self.words(line)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.waiting.stderr is not None
        for said in self.waiting.stderr:
            if "0 of 3 directories are filled" in said:
                break
        self.nothing_starts()

    def fill(self, line: str) -> None:
        """Fill a directory; with the last one the waiting command ends."""
        self.succeeds(line)
        self.restored.append(line)
        if len(self.restored) == len(NODES):
            assert self.waiting is not None
            out, err = self.waiting.communicate(timeout=60)
            assert self.waiting.returncode == 0, err
            assert "restored cluster pay: 2 partitions, 3 storage nodes" in out

    def succeeds(self, line: str) -> Said:
        said = run_tool(*self.words(line))
        assert said.code == 0, (line, said.out, said.err)
        return said

    def nothing_starts(self) -> None:
        """A cluster that is restored in part has no process that serves."""
        place = self.cluster.storages["s1"]
        at = ("--coordinator", self.cluster.coordinator, "--address", place.address)
        for said in (
            run_tool(*("server", *at)),
            run_tool(
                *("storage", *at, "--admin-address", place.admin),
                *("--directory", str(place.directory)),
            ),
        ):
            assert (said.code, "there is no cluster at" in said.err) == (1, True), said.err


@pytest.fixture
def blank(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatedCluster]:
    """A cluster of one test alone, which moves its directories away."""
    with operated_cluster(tmp_path_factory.mktemp("restored"), operators_zookeeper) as cluster:
        yield cluster


@pytest.mark.processes
def test_every_command_of_the_runbook_does_what_it_says(
    blank: OperatedCluster, tmp_path: Path
) -> None:
    blank.done("cluster", "create", "--name", "pay", "--partitions", "2")
    for group, name in enumerate(NODES):
        blank.add_storage(name, group)
        blank.done("cluster", "auto-assign", "-g", str(group))
        blank.start_storage(name)
    blank.done("admin storage", "sync-partitions")
    blank.start_server("v1")
    story = Story(blank, tmp_path)
    assert blank.append(0, *(f"before {number}" for number in range(40)))[-1] == 39
    assert blank.append(1, "one") == [0]
    blank.wait_until_verified("before the archive is made")
    nodes = nodes_of_coordinator(blank.coordinator, blank.root)
    archived = tmp_path / "archived"
    shutil.copytree(blank.storages["s1"].directory, archived)
    memory = archive_of(archived, nodes)
    story.url = store(memory, tmp_path / "archive")
    lost = blank.append(0, "after the archive")
    assert lost == [40]
    _, _, rest = PAGE.partition(HEADING)
    for line in lines(rest.partition("\n## ")[0]):
        story.play(line)
    assert len(story.restored) == 3
    key = run_tool("cluster", "show-cluster-key", "--cluster", blank.coordinator).out.strip()
    assert key == str(memory.cluster_key)
    assert blank.tail(0) == [f"before {number}" for number in range(40)]
    assert blank.append(0, "continued") == [TransactionId(40)]
    # A node that is started by mistake on the disk of before takes no part.
    blank.kill("s3")
    place = blank.storages["s3"]
    said = run_tool(
        *("storage", "--coordinator", blank.coordinator, "--address", place.address),
        *("--admin-address", place.admin),
        *("--directory", str(place.directory.with_suffix(".lost"))),
    )
    assert said.code == 1
    assert "of the time before the log was restored from an archive" in said.err
    for name in ("s1", "s2", "v1"):
        blank.end(name)
    assert run_tool("cluster", "delete", "-n", "pay", "--cluster", blank.coordinator).code == 0


def test_the_page_names_what_there_is() -> None:
    for line in lines(PAGE):
        words = shlex.split(line, comments=True)
        if words[0] != "waltz":
            continue
        group = 3 if words[1] in ("restore", "cluster") else 2
        said = run_tool(*words[1:group], "--help")
        assert said.code == 0, line
        for option in (each for each in words[group:] if each.startswith("--")):
            # The cluster's place is in the environment.
            assert option in said.out, (line, option)
    for target in re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / "operating" / target).exists(), target


def test_a_coordinator_is_named_once() -> None:
    for options in ((), ("--coordinator", "a:1", "-c", "tool.yml")):
        said = run_tool("restore", "cluster", "file:///x", *options)
        assert (said.code, "give the cluster's place" in said.err) == (2, True)
    said = run_tool("restore", "cluster", "file:///x", "--directory", "d", "-s", "a:1/2")
    assert (said.code, "--directory excludes" in said.err) == (2, True)


@pytest.mark.processes
def test_directories_here_are_filled_by_one_command_and_a_storage_needs_a_plan(
    blank: OperatedCluster, tmp_path: Path
) -> None:
    memory = make_archive([200, 4])
    url = store(memory, tmp_path / "archive")
    at = ("--coordinator", blank.coordinator)
    early = run_tool(
        "restore", "storage", url, "-s", "a.example:1", "--directory", tmp_path / "a", *at
    )
    assert (early.code, "no restore was begun at" in early.err) == (1, True)
    wishes: list[str] = []
    for number, name in enumerate("abc", 1):
        (tmp_path / name).mkdir()
        wishes += ["-s", f"{name}.example:{number}/9={tmp_path / name}"]
    said = run_tool("restore", "cluster", url, *at, *wishes, "--name", "copy", "--json")
    assert said.code == 0, said.err
    assert [each["sha256"] for each in said.json["partitions"]] == [
        each["sha256"] for each in run_tool("disk", "checksum", tmp_path / "b", "--json").json
    ]
    again = run_tool("restore", "cluster", url, *at, *wishes, "--name", "copy")
    assert (again.code, "is finished: the cluster is at" in again.err) == (1, True)
    wrong = run_tool("restore", "storage", url, "-s", "z:1", "--directory", tmp_path, *at)
    assert (wrong.code, "has no storage node z:1" in wrong.err) == (1, True)
    checked = run_tool(
        "restore", "storage", url, "-s", "a.example:1", "--directory", tmp_path / "a", *at
    )
    assert (checked.code, "holds what storage node a.example:1" in checked.out) == (0, True)
    wait_until(
        lambda: (
            run_tool("cluster", "delete", "-n", "copy", "--cluster", blank.coordinator).code == 0
        ),
        "the cluster cannot be deleted",
    )
