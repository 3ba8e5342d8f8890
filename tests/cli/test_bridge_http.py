"""`waltz bridge http` as a process, on a real cluster, with a receiver of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import waltz
from tests.bridge.judge import faults, read_log, read_received
from tests.bridge.kills import configuration, receiving
from tests.cli.test_outbox_run import answer_of, free_port
from tests.cli.test_restore_trial import kill_everything
from tests.clusters import (
    ROOT,
    RunningCluster,
    run_tool,
    run_waltz,
    running_cluster,
    start_cluster,
    wait_until,
)
from tests.restore.stored_archive import archive_of, nodes_of_file
from tests.restore.stored_archive import store as store_archive
from tests.shares import one_in

NOBODY = "http://127.0.0.1:9/in"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three partitions with 30 transactions each, of the headers 0, 1 and 2."""
    directory = tmp_path_factory.mktemp("bridge") / "bridge-http"
    with running_cluster(directory, "--partitions", "3") as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for number in range(90):
                client.append(number % 3, b"%d" % number, header=number // 3 % 3)
        yield cluster


def progress_of(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "progress.json").read_text()))


def test_once_posts_what_the_log_has_and_a_second_time_nothing(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with receiving(kept, 0.0) as port:
        url = f"http://127.0.0.1:{port}/in"
        file = configuration(tmp_path, cluster.coordinator, url, "count: 7")
        done = run_waltz("bridge", "http", str(file), "--once")
        assert done.returncode == 0, done.stderr
        assert "posted 90 transactions in 15 posts" in done.stdout
        assert faults(read_log(cluster.coordinator), read_received(kept, 3)) == []
        size = kept.stat().st_size
        done = run_waltz("bridge", "http", str(file), "--once", "--json")
        told = json.loads(done.stdout.removeprefix("ready\n"))
        assert (done.returncode, told["healthy"]) == (0, True)
        assert kept.stat().st_size == size


def test_some_partitions_and_some_headers_are_posted(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with receiving(kept, 0.0) as port:
        url = f"http://127.0.0.1:{port}/in"
        lines = ("partitions: 1,2", "headers: [1, 7]")
        file = configuration(tmp_path, cluster.coordinator, url, *lines)
        assert run_waltz("bridge", "http", str(file), "--once").returncode == 0
    log = read_log(cluster.coordinator)
    wanted = [[fact for fact in facts if fact[1] == 1] for facts in log]
    assert read_received(kept, 3) == [[], *wanted[1:]]
    places = progress_of(tmp_path)["partitions"]
    assert {each: found["next"] for each, found in places.items()} == {"1": 30, "2": 30}


def test_a_bridge_that_begins_with_the_latest_begins_there_for_good(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    file = configuration(tmp_path, cluster.coordinator, NOBODY, "start: latest")
    assert run_waltz("bridge", "http", str(file), "--once").returncode == 0
    places = progress_of(tmp_path)["partitions"]
    assert [found["next"] for found in places.values()] == [30, 30, 30]


def test_a_bridge_runs_until_it_is_told_to_stop_and_has_its_progress_for_itself(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    port = free_port()
    lines = (f"httpAddress: 127.0.0.1:{free_port()}", "retryMax: 0.2", "partitions: 0")
    url = f"http://127.0.0.1:{port}/in"
    file = configuration(tmp_path, cluster.coordinator, url, *lines)
    with (tmp_path / "log").open("w") as log:
        bridge = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", "bridge", "http", str(file)],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip
    try:
        text = tmp_path / "log"
        wait_until(lambda: "bridge_refused" in text.read_text(), "it does not post")
        address = text.read_text().split("http_started address=")[1].split()[0]
        assert '\nwaltz_bridge_next_transaction{partition="0"} 0.0\n' in answer_of(
            f"http://{address}/metrics"
        )
        refused = run_tool("bridge", "skip", file, "0", "0", "0", "--reason", "r")
        assert (refused.code, "a bridge runs with" in refused.err) == (1, True)
        second_file = tmp_path / "second.yaml"
        second_file.write_text(file.read_text().replace(lines[0], ""))
        second = run_waltz("bridge", "http", str(second_file), "--once")
        assert second.returncode == 1
        assert "is locked" in second.stderr
        assert json.loads(run_tool("bridge", "status", file, "--json").out)["in_use"]
        with receiving(tmp_path / "kept", 0.0, port):
            wait_until(
                lambda: progress_of(tmp_path)["partitions"]["0"]["next"] == 30, "nothing came"
            )
            health = json.loads(answer_of(f"http://{address}/health"))
            assert (health["healthy"], health["partitions"][0]["posted"]) == (True, 30)
        bridge.send_signal(signal.SIGINT)
        assert bridge.wait(60) == 0
    finally:
        bridge.kill()
        bridge.communicate()
    assert "bridge_resumed" in text.read_text()


@pytest.mark.parametrize("last", one_in(2, [9, 4]))
def test_after_a_restore_a_bridge_goes_on_unless_something_it_posted_is_missing(
    tmp_path: Path, last: int
) -> None:
    directory = tmp_path / "bridge-restored"
    cluster = start_cluster(directory, "--partitions", "1")
    kept = tmp_path / "kept"
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        for number in range(10):
            client.append(0, b"%d before" % number)
    with receiving(kept, 0.0) as port:
        url = f"http://127.0.0.1:{port}/in"
        file = configuration(tmp_path, cluster.coordinator, url)
        assert run_waltz("bridge", "http", str(file), "--once").returncode == 0
        kill_everything(cluster)
        archive = store_archive(
            archive_of(directory / "storage-1", nodes_of_file(directory / "coordinator.json")),
            tmp_path / "archive",
        )
        for name in ("storage-1", "storage-2", "storage-3"):
            shutil.rmtree(directory / name)
        (directory / "coordinator.json").unlink()
        restored = run_tool(
            *("restore", "cluster", archive, "--directory", directory, "--same-key"),
            *("--marks", f"0={last}"),
        )
        assert restored.code == 0, restored.err
        with running_cluster(directory) as cluster:
            with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
                for number in range(10):
                    client.append(0, b"%d after" % number)
            configuration(tmp_path, cluster.coordinator, url)
            done = run_waltz("bridge", "http", str(file), "--once")
            log = read_log(cluster.coordinator)
            (tmp_path / "latest").mkdir()
            latest = configuration(tmp_path / "latest", cluster.coordinator, url, "start: latest")
            begun = run_waltz("bridge", "http", str(latest), "--once")
            again = run_waltz("bridge", "http", str(latest), "--once")
    assert (begun.returncode, again.returncode) == (0, 0), begun.stderr + again.stderr
    found = progress_of(tmp_path / "latest")
    assert found["partitions"]["0"]["next"] == last + 11
    assert found["partitions"]["0"]["history"] != found["cluster"]
    if last == 9:
        assert done.returncode == 0, done.stderr
        assert faults(log, read_received(kept, 1)) == []
        place = progress_of(tmp_path)
        assert place["partitions"]["0"]["history"] != place["cluster"]
    else:
        assert done.returncode == 1
        assert "Transactions 5 to 9" in done.stderr
        assert len(read_received(kept, 1)[0]) == 10, "nothing of the new history was posted"


def test_a_bridge_that_waits_for_its_cluster_tells_it_and_stops_at_once(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    file = configuration(tmp_path, "waltz://127.0.0.1:9", NOBODY, f"httpAddress: {address}")
    with (tmp_path / "log").open("w") as log:
        bridge = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", "bridge", "http", str(file)],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip
    try:
        assert bridge.stdout is not None
        assert bridge.stdout.readline() == "ready\n"
        assert answer_of(f"http://{address}/live") == "live\n"
        bridge.send_signal(signal.SIGTERM)
        assert bridge.wait(60) == 0
    finally:
        bridge.kill()
        bridge.communicate()
    assert "stop_took_too_long" not in (tmp_path / "log").read_text()


def test_a_progress_goes_with_one_cluster(cluster: RunningCluster, tmp_path: Path) -> None:
    file = configuration(tmp_path, cluster.coordinator, NOBODY, "start: latest")
    assert run_waltz("bridge", "http", str(file), "--once").returncode == 0
    text = (tmp_path / "progress.json").read_text()
    key = progress_of(tmp_path)["cluster"]
    (tmp_path / "progress.json").write_text(text.replace(key, "0" * 8 + key[8:]))
    done = run_waltz("bridge", "http", str(file), "--once")
    assert done.returncode == 1
    assert f"cluster {key} answers" in done.stderr


def test_a_check_shows_neither_the_address_nor_the_secret(tmp_path: Path) -> None:
    file = configuration(tmp_path, "h:1", "https://hooks.example/geheim")
    said = run_tool("bridge", "http", file, "--check")
    assert said.code == 0, said.err
    assert "geheim" not in said.out
    assert "bridge.count: 500  # default" in said.out
    for text in ("", "short\n", "a" * 32 + "\n" + "b" * 32 + "\n" + "c" * 32, "x" * 5_000):
        (tmp_path / "secret").write_text(text)
        said = run_tool("bridge", "http", file, "--check")
        assert (said.code, "secret" in said.err) == (1, True)
    (tmp_path / "secret").unlink()
    assert "cannot read the secret" in run_tool("bridge", "http", file, "--check").err
