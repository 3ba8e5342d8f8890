"""What others do under the same loads, and the page that is printed from it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.peers.__main__ import measure, median_round, peers, spark_figures
from bench.peers.etcd import field, put, transaction
from bench.peers.kafka import PARTITIONS, keep_producing, linger_milliseconds
from bench.peers.kafka_node import VERSION, jars, properties, run
from bench.peers.league import NOT_HERE, page, table
from bench.peers.ours import workload_of
from bench.peers.peer import (
    LOADS,
    Found,
    Load,
    Peer,
    UnavailableHereError,
    closed_loop,
    free_ports,
    program,
    tree_seconds,
)
from bench.peers.postgresql import PostgreSql
from tests.clusters import ROOT, wait_until
from tests.databases import running_database


def test_the_page_is_what_is_printed_from_the_figures() -> None:
    figures = json.loads((ROOT / "bench" / "league.json").read_text())
    assert (ROOT / "docs" / "league.md").read_text() == page(figures, spark_figures())


def test_the_page_states_each_system_s_durability_and_what_is_missing() -> None:
    page = table(json.loads((ROOT / "bench" / "league.json").read_text()))
    for peer in peers():
        assert f"| {peer.name} | {peer.durability} | {peer.driver} | {peer.batching} | " in page
    for name in NOT_HERE:
        assert f"- {name}: " in page


def test_the_order_is_that_of_appends_per_core_second() -> None:
    def system(seconds: float) -> dict[str, object]:
        found = Found(1000, 1.0, 0.002, 0.005, seconds)
        values = {name: getattr(found, name) for name in Found.__dataclass_fields__}
        return {
            "calibration": {"sync_seconds": 0.001, "pack_seconds": 1e-6},
            "durability": "d", "driver": "d", "batching": "b",
            "found": {LOADS[0].name: values}, "missing": {LOADS[1].name: "no verb"},
        }  # fmt: skip

    page = table(
        {
            "trial": True,
            "machine": {"cores": 2, "load_before": 0.0, "load_after": 0.0},
            "seconds": 1.0,
            "rounds": 1,
            "systems": {"dear": system(0.5), "cheap": system(0.25)},
        }
    )
    cheap = "| cheap | 1,000 | 4,000 | 2.00 | 5.00 | 2.0 | 250 |"
    dear = "| dear | 1,000 | 2,000 | 2.00 | 5.00 | 2.0 | 500 |"
    assert f"{cheap}\n{dear}\n" in page
    assert f"- cheap, {LOADS[1].name}: no verb\n" in page
    assert "trial figures" in page


class Sleeping(Peer):
    """Burns some processor time in a process of its own."""

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        program = "for _ in range(3_000_000): pass\nprint('ready', flush=True)\nimport time\n"
        command = [sys.executable, "-c", f"{program}time.sleep(60)"]
        with self.process(command, directory / "log"):
            wait_until((directory / "log").read_text, "it is not ready")
            yield

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        raise AssertionError("no load is applied to it")


def test_a_peer_counts_the_processes_that_it_has_started_while_they_run(tmp_path: Path) -> None:
    peer = Sleeping()
    with peer.running(tmp_path):
        (pid,) = peer._running
        assert tree_seconds(pid) > 0
    assert peer._running == []
    assert not Path(f"/proc/{pid}").exists()


def test_etcd_s_messages_are_packed_as_its_protocol_says() -> None:
    assert put(b"k", b"v") == b"\x0a\x01k\x12\x01v"
    assert field(2, bytes(300))[:3] == b"\x12\xac\x02"
    assert transaction([put(b"k", b"v")]) == b"\x12\x08\x12\x06\x0a\x01k\x12\x01v"


class Producer:
    """Answers one record at a time; none is answered before it is asked."""

    def __init__(self, error: str | None = None) -> None:
        self.error = error
        self.partitions: Counter[int] = Counter()
        self.most = 0
        self._unanswered: deque[Callable[[Any, Any], None]] = deque()

    def produce(
        self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[Any, Any], None]
    ) -> None:
        assert (topic, len(value)) == ("batches", 128)
        self.partitions[partition] += 1
        self._unanswered.append(on_delivery)
        self.most = max(self.most, len(self._unanswered))

    def poll(self, timeout: float) -> int:
        self._unanswered.popleft()(self.error, None)
        return 1


def test_kafka_s_batches_are_outstanding_until_their_last_record_is_answered() -> None:
    producer, load = Producer(), LOADS[2]
    calls, seconds, p50, p99 = keep_producing(producer, "batches", load, 0.05)
    assert producer.most == load.outstanding * load.batch
    assert producer.partitions.total() == calls * load.batch
    assert {each % load.batch for each in producer.partitions.values()} == {0}
    assert sorted(producer.partitions) == list(range(PARTITIONS["batches"]))
    assert seconds >= 0.05
    assert 0 < p50 <= p99


def test_a_record_that_kafka_refuses_is_not_counted() -> None:
    with pytest.raises(RuntimeError, match="not in the log: no space"):
        keep_producing(Producer("no space"), "batches", LOADS[2], 0.05)


def test_kafka_s_nodes_listen_on_this_machine_only_and_know_each_other(tmp_path: Path) -> None:
    lines = properties(1, [1000, 1001, 1002], [2000, 2001, 2002], tmp_path).splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found["node.id"] == "1"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:2001"
    voters = "0@127.0.0.1:2000,1@127.0.0.1:2001,2@127.0.0.1:2002"
    assert found["controller.quorum.voters"] == voters


def test_kafka_waits_for_more_of_a_batch_only_where_there_is_more() -> None:
    assert [linger_milliseconds(load) for load in LOADS[:3]] == [0, 1, 5]


def test_maven_is_asked_for_kafka_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableHereError, match="no mvn: apt-get install maven"):
        jars()
    maven = tmp_path / "mvn"
    maven.write_text(
        "#!/bin/sh\n"
        'for each; do case "$each" in -DoutputDirectory=*) into="${each#*=}";; esac; done\n'
        '/bin/mkdir "$into" && echo jar > "$into/kafka.jar"\n'
    )
    maven.chmod(0o755)
    found = jars()
    assert [each.name for each in found.iterdir()] == ["kafka.jar"]
    assert f"<version>{VERSION}</version>" in (found.parent / "pom.xml").read_text()
    maven.unlink()
    assert jars() == found


def test_what_maven_or_java_says_is_the_reason() -> None:
    with pytest.raises(UnavailableHereError, match="sh: no such artifact"):
        run(["/bin/sh", "-c", "echo no such artifact; exit 1"])


def test_our_loads_are_those_of_the_others() -> None:
    verbs = [
        (each.verb, each.window, each.batch)
        for each in (workload_of(load, 1.0) for load in LOADS[:3])
    ]
    assert verbs == [("append", 1, 1), ("submit", 64, 1), ("append_many", 8, 100)]
    assert [len(load.data) for load in LOADS] == [128] * 3 + [1024] * 3


def test_the_round_in_the_middle_counts() -> None:
    rounds = [Found(count, 1.0, 0.1, 0.2, 0.3) for count in (7, 900, 8)]
    assert median_round(rounds).transactions == 8


def test_a_closed_loop_keeps_so_many_calls_outstanding() -> None:
    inside, most = 0, 0

    async def call() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1

    calls, seconds, p50, p99 = asyncio.run(closed_loop(call, 5, 0.05))
    assert most == 5
    assert calls >= 5
    assert seconds >= 0.05
    assert 0.001 <= p50 <= p99


def test_a_process_is_counted_with_its_children_that_have_gone() -> None:
    before = tree_seconds(os.getpid())
    if (child := os.fork()) == 0:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert tree_seconds(os.getpid()) >= before + 0.05


def test_what_is_not_installed_is_told_with_its_package() -> None:
    with pytest.raises(UnavailableHereError, match="no-such-program: apt-get install some"):
        program("no-such-program", "some")
    assert len(set(free_ports(5))) == 5


class Missing(PostgreSql):
    def _program(self, name: str) -> str:
        raise UnavailableHereError("it is not there")


def test_a_peer_that_cannot_be_run_is_in_the_page_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = measure(Missing(), 0.1, 1)
    assert (found["found"], found["missing"]) == ({}, {"all": "it is not there"})


@pytest.mark.processes
@pytest.mark.long
def test_postgresql_is_measured_with_every_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_database("postgresql"):
        pass  # it is installed now
    for place in (tmp_path, *tmp_path.parents):
        if place.is_relative_to(tempfile.gettempdir()) and place != Path(tempfile.gettempdir()):
            place.chmod(0o755)  # it runs as somebody else
    monkeypatch.chdir(tmp_path)
    found = measure(PostgreSql(), 1.0, 1)
    assert found["missing"] == {}
    assert list(found["found"]) == [load.name for load in LOADS]
    for load in LOADS:
        each = found["found"][load.name]
        assert each["transactions"] % load.batch == 0
        assert 0 < each["p50_seconds"] <= each["p99_seconds"]
        assert each["processor_seconds"] > 0
    assert list(tmp_path.iterdir()) == []
