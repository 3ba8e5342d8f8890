"""A bridge to Kafka that is killed again and again while an application appends, and a judge in the
end.

python -m tests.bridge.kafka_kills [KILLS] [SEED]     # a run by hand, with a line per 20
"""

from __future__ import annotations

import base64
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bridge.judge import Fact, faults, read_log, repeats
from tests.bridge.kafka_broker import KafkaBroker, running_broker
from tests.bridge.kills import (
    AFTER_SECONDS_MAX,
    END_SECONDS_MAX,
    PARTITIONS,
    Killed,
    appending,
    forked,
)
from tests.clusters import ROOT, running_cluster, wait_until

BROKER_STARTS = 25
"""Kills after which the broker is stopped and started."""

PAUSES = 40
"""Kills after which a bridge is stopped for longer than its transaction may be open."""

TIMEOUT_SECONDS = 3
PAUSE_SECONDS = TIMEOUT_SECONDS + 2.0


def kafka_configuration(
    directory: Path, cluster: str, servers: str, topic: str, *more: str
) -> Path:
    """Write the configuration of a bridge; return the file. `more` are keys below `kafka`, or
    below `bridge` if they begin with a dot."""
    file = directory / "kafka.yaml"
    lines = ["bridge:", f"  cluster: {cluster}"]
    lines += [f"  {each[1:]}" for each in more if each.startswith(".")]
    lines += ["  kafka:", f"    servers: {servers}", f"    topic: {topic}", "    name: test"]
    lines += [f"    {each}" for each in more if not each.startswith(".")]
    file.write_text("\n".join([*lines, ""]))
    return file


@contextmanager
def consuming(servers: str, topic: str, path: Path) -> Iterator[None]:
    """Have a consumer, a process of its own, keep what is committed."""
    consumer = subprocess.Popen(
        [sys.executable, "-m", "tests.bridge.kafka_consumer", servers, topic, str(path)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline(), "the consumer has not begun"
        yield
        assert consumer.poll() is None, "the consumer has ended by itself"
    finally:
        consumer.kill()
        consumer.communicate()


def read_consumed(path: Path, partition_count: int) -> list[list[Fact]]:
    """Return what the consumer has seen, per partition in the order of arrival."""
    found: list[list[Fact]] = [[] for _ in range(partition_count)]
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        partition, number, header, _, value = line.split(" ")
        found[int(partition)].append((int(number), int(header), base64.b64decode(value)))
    return found


def exact_faults(log: list[list[Fact]], consumed: list[list[Fact]]) -> list[str]:
    """Return what is wrong; nothing if the consumer has seen the log: each transaction once, in
    order, and nothing else."""
    wrong = faults(log, consumed)
    count = repeats(consumed)
    return [*wrong, f"{count} came twice"] if count else wrong


@contextmanager
def restarting(broker: KafkaBroker, *, after: float) -> Iterator[None]:
    """Stop the broker `after` seconds from now, and start it again, beside the block."""

    def restart() -> None:
        time.sleep(after)
        broker.stop()
        broker.start()

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def pause(process_id: int) -> None:
    """Stop a bridge until Kafka has aborted its transaction, and let it continue."""
    os.kill(process_id, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    os.kill(process_id, signal.SIGCONT)


def run(
    directory: Path,
    broker: KafkaBroker,
    kills: int,
    seed: int,
    tell: Callable[[str], None],
    *,
    broker_starts: int = BROKER_STARTS,
) -> int:
    """Kill, let the bridge finish, and judge; return the number of transactions."""
    chance = random.Random(seed)
    kept, log = directory / "consumed", directory / "bridges.log"
    kept.touch()
    topic = f"kills-{seed}"
    broker.create_topic(topic, PARTITIONS)
    with (
        running_cluster(
            directory / f"kafka-kills-{seed}", "--partitions", str(PARTITIONS), "--servers", "2"
        ) as cluster,
        consuming(broker.address, topic, kept),
    ):
        file = kafka_configuration(
            directory, cluster.coordinator, broker.address, topic, ".count: 20", ".retryMax: 0.1",
            f"timeout: {TIMEOUT_SECONDS}",
        )  # fmt: skip
        with forked("kafka", file, log) as start, Killed(start) as bridge:
            with appending(cluster.coordinator, seed):
                for number in range(1, kills + 1):
                    size = kept.stat().st_size
                    if number % broker_starts == 0:
                        with restarting(broker, after=chance.random()):
                            time.sleep(chance.random() * AFTER_SECONDS_MAX)
                    elif chance.random() < 0.9:
                        wait_until(lambda size=size: kept.stat().st_size > size, f"see {log}")
                    if number % PAUSES == 0:
                        # It has a transaction under way at most moments: the application appends.
                        pause(bridge.process_id)
                        size = kept.stat().st_size
                        wait_until(lambda size=size: kept.stat().st_size > size, f"see {log}")
                    time.sleep(chance.random() * AFTER_SECONDS_MAX)
                    bridge.kill_and_start()
                    if number % 20 == 0:
                        tell(f"{number} kills: {kept.stat().st_size:,} bytes consumed")
            facts = read_log(cluster.coordinator)
            wait_until(
                lambda: sum(map(len, read_consumed(kept, PARTITIONS))) >= sum(map(len, facts)),
                f"{exact_faults(facts, read_consumed(kept, PARTITIONS))}; see {log}",
                END_SECONDS_MAX,
            )
            time.sleep(1.0)  # what comes beyond the log would come now
        wrong = exact_faults(facts, read_consumed(kept, PARTITIONS))
        assert not wrong, f"{wrong}, seed {seed}; see {log}"
    count = sum(map(len, facts))
    anew = log.read_text().count(" bridge_begins_anew ")
    tell(f"{count} transactions, each consumed once, {kills} kills, {anew} times begun anew")
    return count


def main(kills: str = "100", seed: str = "1") -> None:
    directory = Path(tempfile.mkdtemp(prefix="waltz-kafka-"))
    print(f"files in {directory}", flush=True)
    with running_broker(directory / "broker") as broker:
        run(directory, broker, int(kills), int(seed), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
