"""A cluster of `waltz up` that is destroyed, restored from an archive and continued."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

import waltz
from tests.clusters import RunningCluster, run_tool, running_cluster, start_cluster, wait_until
from tests.restore.memory_archive import KEY, make_archive
from tests.restore.stored_archive import archive_of, nodes_of_file, store
from tests.storage.independent_reader import parse_directory, read_files

PARTITIONS = 4
ROUNDS = 40


def checksums(directory: Path) -> dict[str, list[tuple[int, int, str]]]:
    """What `waltz disk checksum` says of each storage directory."""
    return {
        name: [
            (each["partition_id"], each["last_transaction_id"], each["sha256"])
            for each in run_tool("disk", "checksum", directory / name, "--json").json
        ]
        for name in ("storage-1", "storage-2", "storage-3")
    }


def kill_everything(cluster: RunningCluster) -> None:
    """Kill `waltz up`, as the end of its machine does, and its children with it."""
    pids = [int(each["pid"]) for each in cluster.state["processes"]]
    cluster.process.kill()
    cluster.process.communicate()

    def is_gone() -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in pids if pid != os.getpid())

    wait_until(is_gone, "processes outlive waltz up")


@contextmanager
def client_of(coordinator: str) -> Iterator[waltz.WaltzClient]:
    with waltz.open_client(coordinator, waltz.NoCallbacks()) as client:
        yield client


def load(client: waltz.WaltzClient, rounds: int, words: str) -> None:
    for number in range(rounds):
        for partition in range(PARTITIONS):
            client.append(partition, f"{words} {number} {partition}".encode() * (1 + number % 50))


@pytest.mark.processes
def test_a_cluster_that_has_lost_everything_is_restored_and_continues(tmp_path: Path) -> None:
    """All storage directories and the coordinator are destroyed under a client that lives on."""
    directory = tmp_path / "cluster"
    cluster = start_cluster(directory, "--partitions", str(PARTITIONS))
    with client_of(cluster.coordinator) as survivor:
        load(survivor, ROUNDS, "before")
        old_id = survivor.client_id
        kill_everything(cluster)
        before = checksums(directory)
        whole = max(before, key=lambda name: [each[1] for each in before[name]])
        log = archive_of(directory / whole, nodes_of_file(directory / "coordinator.json"))
        url = store(log, tmp_path / "archive")
        assert [each[1] for each in before[whole]] == [ROUNDS - 1] * PARTITIONS
        for name in ("storage-1", "storage-2", "storage-3"):
            shutil.rmtree(directory / name)
        (directory / "coordinator.json").unlink()

        said = run_tool("restore", "cluster", url, "--directory", directory, "--same-key", "--json")
        assert said.code == 0, said.err
        assert said.json["cluster_key"] == str(log.cluster_key)
        assert checksums(directory) == dict.fromkeys(before, before[whole])
        for name in before:  # as the Java original finds it
            parse_directory(read_files(directory / name))

        with running_cluster(directory) as restored, client_of(restored.coordinator) as newcomer:
            load(newcomer, 3, "after")
            load(survivor, 2, "by a survivor")
            assert newcomer.client_id > 1_000_000 > old_id
            # Generations have risen so far that the survivor doubts its ID, too.
            assert survivor.client_id not in (old_id, newcomer.client_id)
            status = run_tool("status", "--cluster", restored.coordinator, "--json").json
            assert len(status["partitions"]) == PARTITIONS
    after = checksums(directory)
    tops = {name: [each[1] for each in found] for name, found in after.items()}
    whole = max(after, key=lambda name: tops[name])
    assert tops[whole] == [ROUNDS + 4] * PARTITIONS
    for number in range(PARTITIONS):
        up_to = run_tool(
            *("disk", "checksum", directory / whole / str(number)),
            *("--to", str(ROUNDS - 1), "--json"),
        ).json
        assert up_to[0]["sha256_to"] == sha256(log.log(number, ROUNDS - 1)).hexdigest()
    history = nodes_of_file(directory / "coordinator.json")["history"]
    (entry,) = json.loads(history)["histories"]
    assert entry["firsts"] == {str(number): ROUNDS for number in range(PARTITIONS)}


def test_a_directory_of_another_cluster_or_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    url = store(make_archive([5]), tmp_path / "archive")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "notes.txt").write_text("mine")
    said = run_tool("restore", "cluster", url, "--directory", strange)
    assert (said.code, "is not empty and holds no cluster" in said.err) == (1, True)

    clone = tmp_path / "clone"
    done = run_tool("clone", url, "--directory", clone, "--port", "0", "--no-start")
    assert done.code == 0, done.err
    before = read_files(clone)
    again = run_tool("clone", url, "--directory", clone, "--port", "0", "--no-start")
    assert again.code == 1
    assert "is finished: the cluster is at /waltz" in again.err
    same = run_tool("restore", "cluster", url, "--directory", clone, "--same-key")
    assert same.code == 1
    assert f"the archive of {KEY}: with --same-key give the directory" in same.err
    assert read_files(clone).keys() == before.keys()


def test_a_clone_into_the_archived_clusters_own_directory_is_refused(tmp_path: Path) -> None:
    url = store(make_archive([5]), tmp_path / "archive")
    first = tmp_path / "first"
    arguments = ("restore", "cluster", url, "--directory", first, "--same-key")
    assert run_tool(*arguments).code == 0
    said = run_tool("restore", "cluster", url, "--directory", first)
    assert said.code == 1
    assert "restore there with --same-key, or give an empty --directory for a clone" in said.err


def file_count(directory: Path) -> int:
    return sum(1 for _ in directory.rglob("*")) if directory.exists() else 0


def clone_command(url: str, directory: Path) -> tuple[str, ...]:
    return ("clone", url, "--directory", str(directory), "--port", "0", "--no-start")


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.long)])
def test_a_clone_killed_at_any_file_is_whole_or_does_not_start(kills: int, tmp_path: Path) -> None:
    """With SIGKILL, as soon as there is a number of files."""
    memory = make_archive([900, 0, 300])
    url = store(memory, tmp_path / "archive")
    logs = {0: memory.log(0, 899), 1: b"", 2: memory.log(2, 299)}
    draw = Random(kills)
    for number in range(kills):
        directory = tmp_path / str(number)
        arguments = (*clone_command(url, directory), "--allow-empty")
        process = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        limit = draw.randrange(1, 45)
        while process.poll() is None and file_count(directory) < limit:
            pass
        process.kill()
        process.communicate()
        if not any((directory / each).exists() for each in ("restoring.json", "cluster.json")):
            continue  # killed before anything was there: an empty directory
        coordinator = directory / "coordinator.json"
        if not (coordinator.exists() and nodes_of_file(coordinator).get("store")):
            up = run_tool("up", "--directory", directory, "--no-console", "--port", "0")
            assert up.code == 1
            assert "a restore was begun at /waltz: resume it" in up.err or (
                "was cut short (restoring.json in it)" in up.err
            )
            again = run_tool(*arguments, "--start-over")
            assert again.code == 0, again.err
        for name in ("storage-1", "storage-2", "storage-3"):
            found = parse_directory(read_files(directory / name))
            assert {
                p: b"".join(record.to_bytes() for record in found.records(p))
                for p in found.partitions
            } == logs
