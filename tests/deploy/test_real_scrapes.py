"""Real processes export every metric that an expression of the rules uses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.parser import text_string_to_metric_families

import waltz
import waltz.metrics
from deploy.artefacts import expressions
from tests.client.applications import Recorder
from tests.clusters import RunningCluster, running_cluster, start_node, wait_until
from tests.spark.short_sessions import SHORT_LIVED
from waltz.cli.trial_directory import choose_ports


@contextmanager
def running_node(log: Path, *arguments: str) -> Iterator[None]:
    with log.open("w") as file:
        node = start_node(*arguments, stderr=file)
    try:
        yield
    finally:
        node.terminate()
        node.communicate(timeout=60)


@contextmanager
def running_pipeline(log: Path, *arguments: str) -> Iterator[None]:
    """Run a pipeline, which ends by a signal only, until the block ends."""
    with log.open("w") as file:
        command = (sys.executable, "-m", "waltz.cli.main", "pipeline", "run", *arguments)
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def scrape(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "text/plain"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def answers(port: int) -> bool:
    try:
        return bool(scrape(port))
    except OSError:
        return False


def names_in(text: str) -> set[str]:
    """The names of samples that the families declare, whether there is one now or not."""

    def of(family: MetricFamily) -> set[str]:
        if family.type == "histogram":
            return {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        return {family.name + ("_total" if family.type == "counter" else "")}

    return {name for family in text_string_to_metric_families(text) for name in of(family)}


def observed(cluster: RunningCluster, directory: Path) -> str:
    """Return the answers to a scraper of a server, a storage node, an archiver and a pipeline that
    have HTTP ports."""
    ports = choose_ports("127.0.0.1", 0, 8)
    address = [f"127.0.0.1:{port}" for port in ports]
    shared = ("--coordinator", cluster.coordinator)
    (directory / "storage").mkdir()
    server = ("server", *shared, "--address", address[0], "--http-address", address[1])
    storage = (
        *("storage", *shared, "--directory", str(directory / "storage"), "--assign-all"),
        *("--address", address[2], "--admin-address", address[3], "--http-address", address[4]),
    )
    archive = directory / "archive.yml"
    archive.write_text(
        f"archive:\n  target: file://{directory}/archive\n  httpAddress: {address[6]}\n"
        f"coordinator.address: {cluster.coordinator}\n"
    )
    pipeline = directory / "pipeline.yaml"
    pipeline.write_text(
        f"pipeline: archive\ncluster: {cluster.coordinator}\ntarget: parquet\n"
        f"spark: {json.dumps({'spark.master': 'local[1]', **SHORT_LIVED})}\n"
    )
    with ExitStack() as nodes:
        derives = (str(pipeline), "--every", "60", "--http-address", address[7])
        nodes.enter_context(running_pipeline(directory / "pipeline.log", *derives))
        nodes.enter_context(running_node(directory / "server.log", *server))
        archiver = ("archive", "run", str(archive))
        nodes.enter_context(running_node(directory / "archive.log", *archiver))
        nodes.enter_context(running_node(directory / "storage.log", *storage))

        def is_open() -> bool:
            is_there = all(answers(ports[place]) for place in (1, 4, 6, 7))
            return is_there and 'waltz_server_append_seconds_count{partition="' in scrape(ports[1])

        wait_until(is_open, "the server has opened no partition")
        return "".join(scrape(ports[place]) for place in (1, 4, 6, 7))


@pytest.mark.processes
def test_every_metric_that_an_expression_uses_comes_out_of_a_real_process(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with running_cluster(tmp_path / "cluster") as cluster:
        with waltz.open_client(cluster.coordinator, Recorder()) as client:
            client.append(0, b"one")
            waltz.metrics.register(client, registry=registry)
            of_client = generate_latest(registry).decode()
        exported = names_in(of_client) | names_in(observed(cluster, tmp_path))
    used = {
        name for _, expression in expressions() for name in re.findall(r"\bwaltz_\w+", expression)
    }
    assert used <= exported
    assert 'waltz_client_append_seconds_count{client="waltz"} 1.0' in of_client
