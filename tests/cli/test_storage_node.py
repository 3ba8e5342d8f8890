"""`waltz storage`: its options and file, and a node as a process."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from tests.clusters import RunningCluster, run_waltz, start_node
from tests.storage.states import healthy, node_of
from tests.storage.talkers import NOBODY, P0, Talker, load, next_of
from waltz.cli.command_settings import read_settings
from waltz.cli.storage_node import unfinished
from waltz.cli.trial_directory import choose_ports
from waltz.configuration.settings import Given
from waltz.configuration.storage_settings import PORT, STORAGE_KEYS, data_address, storage_settings
from waltz.errors import ConfigurationError
from waltz.types import NO_SESSION, Address
from waltz.wire.storage_protocol import OpenRequest

STOPS = 5

LEAST = """\
storage.directory: {directory}
storage.bindAddress: 127.0.0.1
storage: {{port: {data}, admin.port: {admin}, jetty.port: {http}}}
coordinator.address: {coordinator}
"""


def write_file(path: Path, **changes: object) -> str:
    values: dict[str, object] = {
        "directory": path.parent / "data",
        "data": 7201,
        "admin": 7202,
        "http": 7203,
        "coordinator": "127.0.0.1:7100",
    }
    path.write_text(LEAST.format(**(values | changes)))
    return str(path)


def test_options_override_the_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "node.yml")
    assert read_settings(path, {}, STORAGE_KEYS, storage_settings)[PORT] == 7201
    settings = read_settings(
        path, {"storage.port": Given(7301, "--address")}, STORAGE_KEYS, storage_settings
    )
    assert str(data_address(settings)) == "127.0.0.1:7301"


def test_without_file_and_options_the_usage_says_what_is_missing() -> None:
    """TL-91."""
    done = run_waltz("storage", "--directory", "data")
    assert done.returncode == 2
    assert "Usage: waltz storage [OPTIONS] [CONFIG_PATH]" in done.stderr
    assert "missing: --coordinator, --address, --admin-address" in done.stderr
    assert "storage.admin.port" in done.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"\xff\xfe", "not text in UTF-8"), (b"- 1", "holds a list")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """TL-91: exit 1 with a message."""
    path = tmp_path / "node.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as raised:
        read_settings(str(path), {}, STORAGE_KEYS, storage_settings)
    assert str(path) in str(raised.value)
    done = run_waltz("storage", str(path))
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_check_judges_and_prints_what_would_be_in_force(tmp_path: Path) -> None:
    path = write_file(tmp_path / "node.yml")
    with Path(path).open("a") as file:
        file.write("storage.segment.cash.capacity: 7\n")
    done = run_waltz("storage", "--check", path, "--http-address", "127.0.0.1:9000")
    assert done.returncode == 0
    assert "did you mean storage.segment.cache.capacity?" in done.stderr
    assert "storage.jetty.port: 9000  # --http-address" in done.stdout
    printed = tmp_path / "printed.yml"
    printed.write_text(done.stdout)
    again = run_waltz("storage", "--check", str(printed))
    assert again.returncode == 0
    assert "storage.jetty.port: 9000" in again.stdout


def test_check_reads_the_files_for_tls(tmp_path: Path) -> None:
    """CF-47, CF-60: a Java key store is answered with the way to convert it."""
    path = write_file(tmp_path / "node.yml")
    store = tmp_path / "server.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    done = run_waltz("storage", path, "--check", "--tls-cert", str(store))
    assert (done.returncode, f"{store} is not PEM" in done.stderr) == (1, True)
    assert "openssl pkcs12" in done.stderr


def test_check_refuses_what_a_start_would_refuse(tmp_path: Path) -> None:
    path = write_file(tmp_path / "node.yml", admin=7201)
    done = run_waltz("storage", path, "--check")
    assert done.returncode == 1
    assert "storage.port and storage.admin.port are the same port" in done.stderr


def test_what_a_stop_waits_for_is_named_by_partition() -> None:
    """CF-112."""
    node = node_of(healthy(0), healthy(3, call_seconds=31.02), healthy(4, queue_requests=7))
    assert [str(each) for each in unfinished(node)] == [
        "partition=3 queue_requests=0 disk_call_seconds=31.0",
        "partition=4 queue_requests=7 disk_call_seconds=0.0",
    ]


@pytest.mark.processes
class TestProcess:
    def test_a_directory_in_use_is_refused(self, cluster: RunningCluster) -> None:
        """SD-09: the message names the directory."""
        place = cluster.state["storages"][0]
        done = run_waltz(
            *("storage", "--coordinator", cluster.coordinator),
            *("--address", "127.0.0.1:1", "--admin-address", "127.0.0.1:2"),
            *("--directory", str(cluster.directory / place["name"])),
        )
        assert done.returncode == 1
        assert str(cluster.directory / place["name"]) in done.stderr

    def test_a_copied_directory_is_refused(self, cluster: RunningCluster, tmp_path: Path) -> None:
        """CX-03: both addresses are named, and what to do."""
        place = cluster.state["storages"][0]
        copy = tmp_path / "copy"
        shutil.copytree(cluster.directory / place["name"], copy)
        data, admin = choose_ports("127.0.0.1", 0, 2)
        done = run_waltz(
            *("storage", "--coordinator", cluster.coordinator, "--directory", str(copy)),
            *("--address", f"127.0.0.1:{data}", "--admin-address", f"127.0.0.1:{admin}"),
        )
        assert done.returncode == 1
        assert f"is that of storage node {place['address']}, not of 127.0.0.1:{data}" in done.stderr
        assert "moved or copied" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_missing_directory_is_refused(self, cluster: RunningCluster) -> None:
        done = run_waltz(
            *("storage", "--coordinator", cluster.coordinator),
            *("--address", "127.0.0.1:1", "--admin-address", "127.0.0.1:2"),
            *("--directory", str(cluster.directory / "nowhere")),
        )
        assert done.returncode == 1
        assert "nowhere" in done.stderr

    def test_an_http_port_in_use_is_named(self, cluster: RunningCluster, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        taken = cluster.coordinator
        path = write_file(tmp_path / "node.yml", coordinator=taken)
        done = run_waltz("storage", path, "--http-address", taken)
        assert done.returncode == 1
        assert f"HTTP port {taken.rpartition(':')[2]} on 127.0.0.1 is in use" in done.stderr
        assert list((tmp_path / "data").iterdir()) == []

    def test_a_node_runs_from_its_file_and_stops_when_told(
        self, cluster: RunningCluster, tmp_path: Path
    ) -> None:
        """CF-40 to CF-46, CF-110, MT-43 to MT-46."""
        data, admin, port = choose_ports("127.0.0.1", 0, 3)
        arguments = node_arguments(cluster, tmp_path, data=data, admin=admin, http=port)
        with started(*arguments, "--advertised", f"127.0.0.1:{data}") as node:
            assert ask(port, "/live") == (200, b"live\n")
            assert ask(port, "/ping") == (200, b"pong\n")
            status, body = ask(port, "/health")
            assert (status, json.loads(body)["partitions"]["1"]["problems"]) == (200, [])
            _, text = ask(port, "/metrics")
            assert b'waltz_storage_usable{partition="0"} 1.0' in text
            assert b"process_resident_memory_bytes" in text
            assert (tmp_path / "data" / "waltz-storage.ctl").exists()
        assert node.returncode == 0
        assert "not_a_storage_node_of_the_cluster" in (tmp_path / "log").read_text()

    def test_being_told_to_stop_under_load_loses_nothing(
        self, cluster: RunningCluster, tmp_path: Path
    ) -> None:
        """SN-30, CF-112: process by process; the last one is asked for all that was answered."""
        data, admin, port = choose_ports("127.0.0.1", 0, 3)
        arguments = node_arguments(cluster, tmp_path, data=data, admin=admin, http=port)
        answered = 0

        async def talker() -> Talker:
            connected = await Talker.connect(Address("127.0.0.1", data), admin=False)
            state = cluster.state
            key, count = UUID(state["cluster_key"]), state["partition_count"]
            await connected.ask(OpenRequest(NO_SESSION, -1, NOBODY, key, count))
            return connected

        async def work(node: subprocess.Popen[str]) -> None:
            under_way = asyncio.Event()

            def note(count: int) -> None:
                nonlocal answered
                answered = max(answered, count)
                under_way.set()

            loading = asyncio.create_task(load(await talker(), P0, note))
            await under_way.wait()
            node.send_signal(signal.SIGTERM)
            await loading
            node.wait(60)

        async def count() -> int:
            return await next_of(await talker(), P0)

        for _ in range(STOPS):
            with started(*arguments) as node:
                asyncio.run(work(node))
            assert node.returncode == 0
        assert answered >= STOPS
        with started(*arguments):
            assert asyncio.run(count()) >= answered


def node_arguments(cluster: RunningCluster, place: Path, **ports: int) -> list[str]:
    """A node of its own beside the cluster's, with all partitions in `place/data`."""
    (place / "data").mkdir()
    path = write_file(place / "node.yml", coordinator=cluster.coordinator, **ports)
    return [path, "--assign-all", "--disk-free-min", "64MiB"]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `waltz storage` until the block ends and stop it; its log lies beside the file."""
    with (Path(arguments[0]).parent / "log").open("a") as log:
        node = start_node("storage", *arguments, stdout=subprocess.PIPE, stderr=log)
    try:
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        yield node
        if node.poll() is None:
            node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
    finally:
        node.kill()
        node.communicate()


def ask(port: int, path: str, accept: str | None = "*/*") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={} if accept is None else {"Accept": accept})
    answer = connection.getresponse()
    return answer.status, answer.read()
