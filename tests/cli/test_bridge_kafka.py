"""`waltz bridge kafka` as a process, on a real cluster, with a real broker."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import waltz
from tests.bridge.judge import Fact, read_log
from tests.bridge.kafka_broker import KafkaBroker
from tests.bridge.kafka_kills import kafka_configuration
from tests.bridge.test_kafka_calls_shell import calls_of, committed
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
from waltz.bridge.bridge_progress import PartitionProgress
from waltz.bridge.kafka_calls_shell import KafkaCallError
from waltz.bridge.kafka_progress import KafkaProgress
from waltz.envelope import enclosed

LARGE = b"x" * 20_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three partitions with 30 transactions each, of the headers 0, 1 and 2; of the last one the
    tenth is large, and the eleventh has an envelope."""
    directory = tmp_path_factory.mktemp("bridge") / "bridge-kafka"
    with running_cluster(directory, "--partitions", "3") as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            special = {32: LARGE, 35: enclosed({"traceparent": "00-1"}, b"35")}
            for number in range(90):
                data = special.get(number, b"%d" % number)
                client.append(number % 3, data, header=number // 3 % 3)
        yield cluster


def topic_of(broker: KafkaBroker, partitions: int = 3, **config: str) -> str:
    name = f"t-{uuid4()}"
    broker.create_topic(name, partitions, **config)
    return name


def values(facts: list[Fact]) -> list[bytes]:
    return [b"35" if data.endswith(b"35") else data for _, _, data in facts]


def status_of(file: Path) -> Any:
    said = run_tool("bridge", "status", file, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


@contextmanager
def bridging(file: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as output:
        bridge = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", "bridge", "kafka", str(file)],
            stdout=subprocess.PIPE, stderr=output, text=True, cwd=ROOT,
        )  # fmt: skip
    try:
        yield bridge
    finally:
        bridge.kill()
        bridge.communicate()


def test_once_sends_what_the_log_has_and_a_second_time_nothing(
    cluster: RunningCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topic_of(kafka_broker)
    file = kafka_configuration(
        tmp_path, cluster.coordinator, kafka_broker.address, topic, ".count: 7"
    )
    assert not status_of(file)["has_begun"]
    assert "has not begun" in run_tool("bridge", "skip", file, *"000", "--reason", "r").err
    log = read_log(cluster.coordinator)
    counts = [len(facts) for facts in log]
    for posted in (sum(counts), 0):
        done = run_waltz("bridge", "kafka", str(file), "--once")
        assert (done.returncode, f"posted {posted} transactions in" in done.stdout) == (0, True)
    for each, facts in enumerate(log):
        assert committed(kafka_broker, topic, each) == values(facts)
    found = status_of(file)
    assert (found["in_use"], found["trouble"]) == (None, None)
    assert [(row["next"], row["waiting"]) for row in found["partitions"]] == [
        (count, 0) for count in counts
    ]
    none = kafka_configuration(
        tmp_path, cluster.coordinator, kafka_broker.address, topic, ".headers: 7", "name: none"
    )
    none.write_text(none.read_text().replace("    name: test\n", ""))
    assert run_waltz("bridge", "kafka", str(none), "--once").returncode == 0
    assert [row["next"] for row in status_of(none)["partitions"]] == counts, "nothing waits"
    other = topic_of(kafka_broker)
    changed = kafka_configuration(
        tmp_path,
        cluster.coordinator,
        kafka_broker.address,
        other,
        f"progressTopic: {topic}.waltz-progress",
    )
    done = run_waltz("bridge", "kafka", str(changed), "--once")
    assert (done.returncode, f"to topic {topic}" in done.stderr) == (1, True)


def test_while_the_cluster_does_not_answer_nobody_says_that_a_bridge_has_not_begun(
    tmp_path: Path,
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    file = kafka_configuration(tmp_path, f"waltz://{nobody}", nobody, "topic")
    found = status_of(file)
    assert (found["has_begun"], found["in_use"], found["partitions"]) == (None, None, [])
    assert nobody in found["trouble"]
    assert "bridge test, unknown\n" in run_tool("bridge", "status", file).out


@pytest.mark.long
def test_some_partitions_and_some_headers_are_sent_from_the_latest_on(
    cluster: RunningCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topic_of(kafka_broker)
    lines = (".partitions: 1,2", ".headers: [1, 7]", "key: transaction")
    place = (tmp_path, cluster.coordinator, kafka_broker.address)
    file = kafka_configuration(*place, topic, *lines)
    assert run_waltz("bridge", "kafka", str(file), "--once").returncode == 0
    log = read_log(cluster.coordinator)
    for each, facts in enumerate(log):
        wanted = values([fact for fact in facts if fact[1] in {1, 7}])
        assert committed(kafka_broker, topic, each) == (wanted if each else [])
    counts = [len(facts) for facts in log]
    assert [row["next"] for row in status_of(file)["partitions"]] == counts[1:], "the rest as well"
    latest = kafka_configuration(*place, topic, "name: latest", ".start: latest")
    latest.write_text(latest.read_text().replace("    name: test\n", ""))
    assert run_waltz("bridge", "kafka", str(latest), "--once").returncode == 0
    assert committed(kafka_broker, topic, 0) == []
    assert [row["next"] for row in status_of(latest)["partitions"]] == counts


def test_what_the_topic_does_not_take_waits_is_told_and_can_be_skipped_meanwhile(
    cluster: RunningCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topic_of(kafka_broker, max_message_bytes="10000")
    file = kafka_configuration(
        tmp_path, cluster.coordinator, kafka_broker.address, topic, ".retryMax: 0.2",
        f".httpAddress: 127.0.0.1:{free_port()}",
    )  # fmt: skip
    text = tmp_path / "log"
    with bridging(file, text) as bridge:
        wait_until(lambda: "bridge_refused" in text.read_text(), "it does not send")
        address = text.read_text().split("http_started address=")[1].split()[0]
        wait_until(
            lambda: (
                '\nwaltz_bridge_next_transaction{partition="2"} 10.0\n'
                in answer_of(f"http://{address}/metrics")
            ),
            "it does not come up to the large one",
        )
        assert "does not take transaction 10, of 20,000 bytes" in text.read_text()
        assert committed(kafka_broker, topic, 2) == values(read_log(cluster.coordinator)[2][:10])

        def skip(first: str, last: str) -> Any:
            return run_tool("bridge", "skip", file, "2", first, last, "--reason", "too large")

        assert "is at transaction 10" in skip("9", "10").err
        assert "ends with transaction 29" in skip("10", "30").err
        said = skip("10", "10")
        assert (said.code, "resumes at transaction 11" in said.out) == (0, True), said.err
        facts = read_log(cluster.coordinator)[2]
        wanted = values([*facts[:10], *facts[11:]])
        wait_until(lambda: committed(kafka_broker, topic, 2) == wanted, "it has not resumed")
        wait_until(
            lambda: bool(json.loads(answer_of(f"http://{address}/health"))["healthy"]), "unhealthy"
        )
        (skipped,) = status_of(file)["skips"]
        assert (skipped["first"], skipped["last"], skipped["reason"]) == (10, 10, "too large")
        bridge.send_signal(signal.SIGINT)
        assert bridge.wait(60) == 0
    assert "bridge_resumed partition=2" in text.read_text()


def test_a_skip_outlasts_a_bridge_that_begins_anew_all_the_time(
    cluster: RunningCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topic_of(kafka_broker)
    file = kafka_configuration(
        tmp_path, cluster.coordinator, kafka_broker.address, topic, f"progressTopic: {topic}.p",
        ".headers: [7]",
    )  # fmt: skip
    calls = calls_of(kafka_broker.address, topic)
    calls.check_topics([0, 1, 2])
    with waltz.open_reader(cluster.coordinator) as log:
        key, history = log.cluster_key, log.histories.current
    place = PartitionProgress(3, history)
    calls.producer(key, 1).commit((), KafkaProgress(key, "test", topic, 1, place, None))
    is_over = threading.Event()

    def begin_anew() -> None:
        while not is_over.is_set():
            with suppress(KafkaCallError):  # the skip replaces it in turn
                calls.producer(key, 1)

    bridge = threading.Thread(target=begin_anew)
    bridge.start()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", "bridge", "skip", file, "1", "3", "4",
             "--reason", "none"],
        ) as skip:  # fmt: skip
            with suppress(subprocess.TimeoutExpired):
                skip.wait(3)
            is_over.set()
            assert skip.wait(60) == 0
    finally:
        is_over.set()
        bridge.join()
    found = calls.read_progress(key, 1, to_end=True)
    assert found is not None
    assert found.place.next_id == 5


def test_a_later_bridge_of_one_name_replaces_the_one_that_runs(
    cluster: RunningCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topic_of(kafka_broker)
    place = (tmp_path, cluster.coordinator, kafka_broker.address, topic)
    file = kafka_configuration(*place, ".headers: 7")
    count = len(read_log(cluster.coordinator)[1])
    with bridging(file, tmp_path / "first") as first:
        wait_until(lambda: "bridge_started" in (tmp_path / "first").read_text(), "not started")
        (tmp_path / "other").mkdir()
        second_file = kafka_configuration(tmp_path / "other", *place[1:], ".headers: 7")
        with bridging(second_file, tmp_path / "second") as second:
            wait_until(lambda: "bridge_started" in (tmp_path / "second").read_text(), "not started")
            with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
                client.append(1, b"seven", header=7)
            assert first.wait(60) == 1
            assert "another process has begun as bridge test" in (tmp_path / "first").read_text()
            wait_until(lambda: committed(kafka_broker, topic, 1) == [b"seven"], "it did not come")
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    assert status_of(file)["partitions"][1]["next"] == count + 1


def test_progress_of_another_history_is_no_place_in_this_log(
    cluster: RunningCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topic_of(kafka_broker)
    file = kafka_configuration(
        tmp_path, cluster.coordinator, kafka_broker.address, topic, f"progressTopic: {topic}.p"
    )
    with waltz.open_reader(cluster.coordinator) as log:
        key = log.cluster_key
    calls = calls_of(kafka_broker.address, topic)
    calls.check_topics([0, 1, 2])
    place = PartitionProgress(5, UUID(int=99))
    calls.producer(key, 1).commit([], KafkaProgress(key, "test", topic, 1, place, None))
    done = run_waltz("bridge", "kafka", str(file), "--once")
    assert (done.returncode, "choose another bridge.kafka.name" in done.stderr) == (1, True)
    assert [committed(kafka_broker, topic, each) for each in range(3)] == [[], [], []]


@pytest.mark.long
@pytest.mark.parametrize("last", [9, 4])
def test_after_a_restore_a_bridge_continues_unless_something_it_sent_is_missing(
    kafka_broker: KafkaBroker, tmp_path: Path, last: int
) -> None:
    directory = tmp_path / "bridge-restored"
    cluster = start_cluster(directory, "--partitions", "1")
    topic = topic_of(kafka_broker, 1)
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        for number in range(10):
            client.append(0, b"%d before" % number)
    file = kafka_configuration(tmp_path, cluster.coordinator, kafka_broker.address, topic)
    assert run_waltz("bridge", "kafka", str(file), "--once").returncode == 0
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
        kafka_configuration(tmp_path, cluster.coordinator, kafka_broker.address, topic)
        done = run_waltz("bridge", "kafka", str(file), "--once")
        log = read_log(cluster.coordinator)
    seen = committed(kafka_broker, topic, 0)
    if last == 9:
        assert done.returncode == 0, done.stderr
        assert seen == values(log[0])
    else:
        assert done.returncode == 1
        assert "Transactions 5 to 9" in done.stderr
        assert "choose another bridge.kafka.name" in done.stderr
        assert len(seen) == 10, "nothing of the new history was sent"


def test_a_bridge_that_waits_for_kafka_tells_it_and_stops_at_once(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    file = kafka_configuration(tmp_path, cluster.coordinator, nobody, "none", "timeout: 2")
    text = tmp_path / "log"
    with bridging(file, text) as bridge:
        wait_until(lambda: "bridge_waits" in text.read_text(), "it does not tell")
        wait_until(lambda: "Connection refused" in text.read_text(), "it does not tell why")
        bridge.send_signal(signal.SIGTERM)
        assert bridge.wait(60) == 0
    assert "stop_took_too_long" not in text.read_text()


def test_a_check_reads_the_files_and_shows_no_secret(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("geheim\n")
    lines = (
        *("security.protocol: sasl_plaintext", "sasl.mechanism: PLAIN", "sasl.username: u"),
        f"sasl.passwordFile: {tmp_path / 'password'}",
    )
    file = kafka_configuration(tmp_path, "h:1", "kafka.example:9092", "t", *lines)
    said = run_tool("bridge", "kafka", file, "--check")
    assert said.code == 0, said.err
    assert "geheim" not in said.out + said.err
    assert "bridge.kafka.bytes: 4194304  # default" in said.out
    (tmp_path / "password").unlink()
    assert "cannot read" in run_tool("bridge", "kafka", file, "--check").err


def test_without_the_driver_a_bridge_says_how_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "confluent_kafka.py").write_text("raise ModuleNotFoundError(name=__name__)\n")
    file = kafka_configuration(tmp_path, "h:1", "localhost:9092", "t")
    done = subprocess.run(
        [sys.executable, "-m", "waltz.cli.main", "bridge", "kafka", str(file)],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""}, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "confluent_kafka is not installed" in done.stderr
    assert "pip install 'waltz-log[kafka]'" in done.stderr
