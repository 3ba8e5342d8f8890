"""`waltz archive` against a running cluster: what its page says, and byte for byte."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.request import Request, urlopen

import pytest

import waltz
from tests.client.applications import Recorder
from tests.clusters import ROOT, RunningCluster, Said, run_tool, wait_until
from waltz.archive.archive import open_archive
from waltz.cli.metrics_document import SECTIONS
from waltz.cli.trial_directory import choose_ports

PAGE = (ROOT / "docs" / "operating" / "archive.md").read_text()
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "src" / "waltz").rglob("*.py")))

SEGMENT_HEADER_BYTES = 128

Running: TypeAlias = "tuple[list[subprocess.Popen[str]], int]"
"""Two archivers, and the HTTP port of the first."""


@pytest.fixture(scope="module")
def filled(cluster: RunningCluster) -> RunningCluster:
    with waltz.open_client(cluster.coordinator, Recorder()) as client:
        client.append_many(0, [b"%d" % number * (number % 50) for number in range(3000)])
        client.append_many(1, [b"x" * 100_000] * 30)
    return cluster


def file_of(cluster: RunningCluster, directory: Path, more: str = "") -> Path:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    text = text.replace("/var/backups/waltz", str(directory / "backup"))
    text = text.replace("127.0.0.1:7100", cluster.coordinator) + more
    path = directory / "archive.yml"
    path.write_text(text)
    return path


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("$ waltz ") for block in blocks for line in block.splitlines()]


def run(line: str, file: Path) -> Said:
    return run_tool(*(str(file) if word == "archive.yml" else word for word in shlex.split(line)))


@pytest.mark.processes
def test_every_command_of_the_page_does_what_it_says(
    filled: RunningCluster, tmp_path: Path
) -> None:
    file = file_of(filled, tmp_path)
    played = [line for line in commands() if line != "archive run archive.yml"]
    assert len(played) == len(commands()) - 1
    for line in played:
        said = run(line, file)
        assert said.code == 0, (line, said.out, said.err)
        if "verify" in line:
            assert "all that was looked at is right" in said.out
            assert "all that was looked at is right" in " ".join(PAGE.split())
        if "status" in line:
            (first, second) = re.findall(r"^ +(\d) +(\d+) +(\d+) +0 ", said.out, re.MULTILINE)
            assert (first, second) == (("0", "2999", "2999"), ("1", "29", "29"))


@pytest.mark.processes
def test_the_archive_equals_the_segments_byte_for_byte(
    filled: RunningCluster, tmp_path: Path
) -> None:
    file = file_of(filled, tmp_path)
    assert run("archive run archive.yml --once", file).code == 0
    archive = open_archive(f"file://{tmp_path}/backup")
    for partition in (0, 1):
        found = b"".join(archive.blocks(partition, 0, archive.end(partition)))
        for node in ("storage-1", "storage-2", "storage-3"):
            (segment,) = (filled.directory / node / str(partition)).glob("*.seg")
            assert segment.read_bytes()[SEGMENT_HEADER_BYTES:] == found
    nodes = archive.coordinator_nodes
    assert {"/store", "/store/partition/1", "/storageDirectories", "/ids/client"} <= nodes.keys()


@pytest.mark.processes
def test_damage_is_told_and_mended(filled: RunningCluster, tmp_path: Path) -> None:
    file = file_of(filled, tmp_path)
    assert run("archive run archive.yml --once", file).code == 0
    (harmed,) = (tmp_path / "backup" / "log" / "0").iterdir()
    data = bytearray(harmed.read_bytes())
    data[200] ^= 1
    harmed.write_bytes(data)
    said = run("archive verify archive.yml --json", file)
    assert said.code == 1
    assert said.json["right"] is False
    (finding,) = said.json["findings"]
    assert finding["partition"] == 0
    said = run("archive repair archive.yml", file)
    assert (said.code, "wrote 1 anew" in said.out) == (0, True)
    assert run("archive verify archive.yml --against replicas", file).code == 0


@pytest.fixture
def running(
    filled: RunningCluster, tmp_path: Path
) -> Iterator[tuple[list[subprocess.Popen[str]], int]]:
    (port,) = choose_ports("127.0.0.1", 0, 1)
    file_of(filled, tmp_path, f"archive.httpAddress: 127.0.0.1:{port}\n")
    command = [sys.executable, "-m", "waltz.cli.main", "archive", "run"]
    first = subprocess.Popen(
        [*command, str(tmp_path / "archive.yml")], stdout=subprocess.PIPE, text=True
    )
    (tmp_path / "second").mkdir()
    second_file = tmp_path / "second" / "archive.yml"
    second_file.write_text(
        (tmp_path / "archive.yml").read_text().partition("archive.httpAddress")[0]
    )
    second = subprocess.Popen([*command, str(second_file)], stdout=subprocess.PIPE, text=True)
    try:
        yield [first, second], port
    finally:
        for each in (first, second):
            each.kill()
            each.communicate()


@pytest.mark.processes
def test_two_archivers_follow_the_log_and_stop_when_told(
    filled: RunningCluster,
    running: Running,
    tmp_path: Path,
) -> None:
    processes, port = running
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"

    def metrics() -> str:
        asked = Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": "text/plain"})
        with urlopen(asked) as answer:
            return str(answer.read().decode())

    wait_until(lambda: 'archived_mark{partition="0"} 2999.0' in metrics(), "it is not archived")
    text = metrics()
    told = set(re.findall(r"^# TYPE (waltz_archiver_\w+)", text, re.MULTILINE))
    known = {each.name for section in SECTIONS.values() for each in section}
    assert told - {"waltz_archiver_info"} <= known | {f"{name}_info" for name in known}
    with urlopen(f"http://127.0.0.1:{port}/health") as answer:
        assert json.loads(answer.read())["healthy"] is True
    for each in processes:
        each.send_signal(signal.SIGTERM)
    assert [each.wait(60) for each in processes] == [0, 0]
    assert run("archive verify archive.yml --against log", tmp_path / "archive.yml").code == 0


def test_the_page_names_what_there_is() -> None:
    known = {each.name for section in SECTIONS.values() for each in section}
    assert set(re.findall(r"`(waltz_archiver_\w+)`", PAGE)) <= known
    for event in re.findall(r"^\| `([a-z]+(?:_[a-z]+)+)` \|", PAGE, re.MULTILINE):
        if not event.startswith("waltz_"):
            assert f'"{event} ' in SOURCE, event
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / "operating" / target).exists(), target
    alerts = (ROOT / "deploy" / "table.py").read_text()
    for alert in re.findall(r"`(Waltz\w+)`", PAGE):
        assert f'"{alert}"' in alerts, alert


def test_a_configuration_is_checked_and_printed(tmp_path: Path) -> None:
    path = tmp_path / "archive.yml"
    path.write_text("archive.target: file:///a\ncoordinator.address: 127.0.0.1:1\n")
    said = run("archive run archive.yml --check", path)
    assert "archive.every: 10  # default" in said.out
    path.write_text("archive.target: file:///a\narchive.every: never\n")
    said = run("archive run archive.yml --check", path)
    assert said.code == 1
    assert "archive.every" in said.err
    assert "coordinator.address is missing" in said.err
