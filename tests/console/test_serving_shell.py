"""`waltz console` as a process, and the console of `waltz up`."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clusters import RunningCluster, run_waltz, running_cluster, start_node, wait_until
from waltz.cli.trial_directory import choose_ports
from waltz.types import Address

pytestmark = pytest.mark.processes


@contextmanager
def running_console(*arguments: str) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    address = Address("127.0.0.1", choose_ports("127.0.0.1", 0, 1)[0])
    process = start_node(
        "console", "--http", str(address), *arguments,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield address, process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def get(address: Address, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def is_served(address: Address) -> bool:
    try:
        return get(address, "/nodes")[0] == 200
    except ConnectionRefusedError:
        return False


def first_event(address: Address, path: str) -> object:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, "the stream has ended"
        return json.loads(line[6:])
    finally:
        connection.close()


def test_a_console_shows_a_running_cluster_and_ends_when_told(cluster: RunningCluster) -> None:
    appended = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "0", "secret")
    number = appended.stdout.strip()
    with running_console("--cluster", cluster.coordinator) as (address, process):
        wait_until(
            lambda: "All 2 partitions take appends" in get(address, "/")[1], "it is not well"
        )
        status, text = get(address, f"/transaction?partition=0&id={number}&data=1")
        assert status == 200
        assert "secret" in text
        event = first_event(address, "/events?page=/nodes")
        assert isinstance(event, dict)
        assert len(event["regions"]) == 3
        assert get(address, "/", Host="evil.example")[0] == 421
        process.terminate()
        assert process.wait(60) == 0


def test_a_console_without_a_cluster_says_so() -> None:
    with running_console("--cluster", "127.0.0.1:9") as (address, _):
        status, text = get(address, "/")
        assert status == 200
        assert "Nothing is known of this cluster" in text


def test_an_address_that_others_reach_is_refused() -> None:
    done = run_waltz("console", "--cluster", "127.0.0.1:9", "--http", "0.0.0.0:7180")
    assert done.returncode == 1
    assert "the console has no login" in done.stderr
    assert "ssh -L" in done.stderr


def test_waltz_up_has_a_console_with_names_that_shows_a_killed_node(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", "--partitions", "2", "--console") as running:
        entry = next(each for each in running.state["processes"] if each["role"] == "console")
        address = Address.parse(entry["address"])
        wait_until(
            lambda: "All 2 partitions take appends" in get(address, "/")[1], "it is not well"
        )
        assert "storage-1" in get(address, "/")[1]
        running.kill_and_await("console")
        wait_until(lambda: is_served(address), "the console is not back")
        assert f"console at          http://{address}/" in running.stop()
