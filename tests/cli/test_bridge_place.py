"""`waltz bridge status` and `skip`, beside a real cluster and beside none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import waltz
from tests.bridge.judge import read_received
from tests.bridge.kills import configuration, receiving
from tests.cli.test_bridge_http import NOBODY, progress_of
from tests.clusters import RunningCluster, run_tool, run_waltz, running_cluster
from waltz.bridge.bridge_progress import (
    BridgeProgress,
    PartitionProgress,
    ProgressFile,
    progress_text,
)
from waltz.cli.bridge_place import progress_file, read_bridge
from waltz.system.real_disk import RealDisk


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three partitions, the last one with 30 transactions."""
    directory = tmp_path_factory.mktemp("bridge") / "bridge-place"
    with running_cluster(directory, "--partitions", "3") as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for number in range(30):
                client.append(2, b"%d" % number)
        yield cluster


def test_what_cannot_be_delivered_waits_is_told_and_can_be_skipped(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    file = configuration(tmp_path, cluster.coordinator, NOBODY, "retryMax: 0.1", "partitions: 2")
    done = run_waltz("bridge", "http", str(file), "--once")
    assert done.returncode == 1
    assert "partition 2 waits at transaction 0: no answer" in done.stderr
    status = json.loads(run_tool("bridge", "status", file, "--json").out)
    assert (status["in_use"], status["trouble"]) == (False, None)
    (row,) = status["partitions"]
    assert (row["partition"], row["next"], row["end"], row["waiting"]) == (2, 0, 30, 30)

    def skip(first: str, last: str) -> Any:
        return run_tool("bridge", "skip", file, "2", first, last, "--reason", "a bug")

    assert "waits at transaction 0" in skip("3", "4").err
    assert "ends with transaction 29" in skip("0", "30").err
    assert progress_of(tmp_path)["partitions"]["2"]["next"] == 0
    assert skip("0", "27").code == 0
    status = json.loads(run_tool("bridge", "status", file, "--json").out)
    (skipped,) = status["skips"]
    assert (skipped["first"], skipped["last"], skipped["reason"]) == (0, 27, "a bug")
    said = run_tool("bridge", "status", file)
    assert "skipped: partition 2, 0 to 27" in said.out
    kept = tmp_path / "kept"
    with receiving(kept, 0.0) as port:
        configuration(tmp_path, cluster.coordinator, f"http://127.0.0.1:{port}/in", "partitions: 2")
        assert run_waltz("bridge", "http", str(file), "--once").returncode == 0
    assert [fact[0] for fact in read_received(kept, 3)[2]] == [28, 29]


def test_the_status_of_a_bridge_that_has_not_begun_leaves_nothing_behind(tmp_path: Path) -> None:
    """A lock that an administrator has made could not be opened by the bridge's own user."""
    file = configuration(tmp_path, "waltz://127.0.0.1:9", NOBODY)
    before = sorted(tmp_path.iterdir())
    found = json.loads(run_tool("bridge", "status", file, "--json").out)
    assert (found["has_begun"], found["in_use"]) == (False, False)
    assert sorted(tmp_path.iterdir()) == before


def test_a_progress_that_cannot_be_opened_is_told_in_a_line(tmp_path: Path) -> None:
    """Another user than the bridge's own may have no right to open the file."""
    file = configuration(tmp_path, "waltz://127.0.0.1:9", NOBODY)
    (tmp_path / "progress.json").mkdir()
    said = run_tool("bridge", "status", file)
    assert (said.code, "bridge.progress: Is a directory" in said.err) == (1, True)
    said = run_tool("bridge", "skip", file, "0", "0", "0", "--reason", "r")
    assert (said.code, "bridge.progress: Is a directory" in said.err) == (1, True)
    (tmp_path / "progress.json.lock").unlink()
    (tmp_path / "progress.json.lock").mkdir()
    said = run_tool("bridge", "skip", file, "0", "0", "0", "--reason", "r")
    assert (said.code, "bridge.progress: Is a directory" in said.err) == (1, True)
    file.write_text(file.read_text().replace("progress.json", "missing/progress.json"))
    done = run_waltz("bridge", "http", str(file), "--once")
    assert done.returncode == 1
    assert "bridge.progress: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_progress_that_is_named_by_a_link_stays_where_the_link_leads(tmp_path: Path) -> None:
    """A link that was replaced by a file would be back, with the old progress, after a restart of a
    container; and a bridge that is given the file itself would not see the lock."""
    key = UUID(int=7)
    progress = BridgeProgress(key, {0: PartitionProgress(17, key)})
    (tmp_path / "kept").mkdir()
    kept = tmp_path / "kept" / "progress.json"
    kept.write_bytes(progress_text(progress))
    (tmp_path / "progress.json").symlink_to(kept)
    file = progress_file(read_bridge(str(configuration(tmp_path, "h:1", NOBODY))))
    unlock = file.lock()
    assert ProgressFile(RealDisk(), str(kept)).is_locked()
    unlock()
    file.save(progress.reaching({0: PartitionProgress(18, key)}))
    assert (tmp_path / "progress.json").is_symlink()
    assert b'"next": 18' in kept.read_bytes()


@pytest.mark.long
def test_what_the_cluster_does_not_tell_is_unknown(tmp_path: Path) -> None:
    file = configuration(tmp_path, "waltz://127.0.0.1:9", NOBODY)
    found = json.loads(run_tool("bridge", "status", file, "--json").out)
    assert (found["has_begun"], found["partitions"], found["trouble"]) == (False, [], None)
    assert "nothing waits" in run_tool("bridge", "skip", file, "0", "0", "0", "--reason", "r").err
    key = UUID(int=7)
    progress = BridgeProgress(key, {0: PartitionProgress(17, key)})
    (tmp_path / "progress.json").write_bytes(progress_text(progress))
    found = json.loads(run_tool("bridge", "status", file, "--json").out)
    (row,) = found["partitions"]
    assert (row["next"], row["end"], row["waiting"]) == (17, None, None)
    assert found["trouble"]
