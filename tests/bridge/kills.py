"""A bridge that is killed again and again while an application appends, and a judge in the end.

python -m tests.bridge.kills [KILLS] [SEED]     # a run by hand, with a line per 20
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import waltz
from tests.bridge.judge import Fact, faults, read_log, read_received, repeats
from tests.clusters import ROOT, running_cluster, wait_until

PARTITIONS = 3
SECRET = "0123456789abcdef0123456789abcdef"
AFTER_SECONDS_MAX = 0.3
"""A kill comes at a random time after the start, up to this; the start itself takes about half."""

END_SECONDS_MAX = 240.0
FAILURE_SHARE = 0.1


@contextmanager
def receiving(path: Path, share: float, port: int = 0) -> Iterator[int]:
    """Run a receiver; yield its port."""
    receiver = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.bridge.receiver"),
            *(str(path), SECRET, str(share), str(port)),
        ],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert receiver.stdout is not None
        yield int(receiver.stdout.readline())
    finally:
        receiver.kill()
        receiver.communicate()


def configuration(directory: Path, cluster: str, url: str, *more: str) -> Path:
    """Write the configuration of a bridge, and its secret; return the file."""
    file = directory / "bridge.yaml"
    (directory / "secret").write_text(SECRET)
    lines = [
        f"cluster: {cluster}",
        f"url: {url}",
        f"secretFile: {directory / 'secret'}",
        f"progress: {directory / 'progress.json'}",
        *more,
    ]
    file.write_text("bridge:\n" + "".join(f"  {each}\n" for each in lines))
    return file


@contextmanager
def appending(cluster: str, seed: int) -> Iterator[None]:
    """Append to all partitions until the end."""
    ended = threading.Event()

    def append() -> None:
        chance = random.Random(seed)
        number = 0
        with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
            while not ended.is_set():
                number += 1
                data = b"%d " % number + chance.randbytes(chance.choice([0, 20, 3000]))
                client.append(number % PARTITIONS, data, header=number % 5)
                time.sleep(0.002)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def forked(kind: str, file: Path, log: Path) -> Iterator[Callable[[], int]]:
    """Yield what starts a bridge of this kind, and returns its process ID."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.bridge.forked_bridges", kind, str(file), str(log)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip

    def start() -> int:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write("start\n")
        parent.stdin.flush()
        return int(parent.stdout.readline())

    try:
        yield start
    finally:
        parent.kill()
        parent.communicate()


class Killed:
    """A bridge that is killed and started; at the end it is killed for good."""

    def __init__(self, start: Callable[[], int]) -> None:
        self._start = start
        self.process_id = start()

    def __enter__(self) -> Self:
        return self

    def kill_and_start(self) -> None:
        os.kill(self.process_id, signal.SIGKILL)
        # Until it is gone it holds the lock of its files; nobody is to start two.
        wait_until(self._is_gone, f"bridge {self.process_id} lives on")
        self.process_id = self._start()

    def _is_gone(self) -> bool:
        try:
            os.kill(self.process_id, 0)
        except ProcessLookupError:
            return True
        return False

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)


def run(directory: Path, kills: int, seed: int, tell: Callable[[str], None]) -> int:
    """Kill, let the bridge finish, and judge; return the number of repeats."""
    chance = random.Random(seed)
    kept, log = directory / "received", directory / "bridges.log"
    kept.touch()
    with (
        running_cluster(
            directory / f"bridge-kills-{seed}", "--partitions", str(PARTITIONS), "--servers", "2"
        ) as cluster,
        receiving(kept, FAILURE_SHARE) as port,
    ):
        file = configuration(
            directory, cluster.coordinator, f"http://127.0.0.1:{port}/in", "count: 20",
            "retryMax: 0.1",
        )  # fmt: skip
        facts: list[list[Fact]] = []
        with forked("http", file, log) as start, Killed(start) as bridge:
            with appending(cluster.coordinator, seed):
                for number in range(1, kills + 1):
                    size = kept.stat().st_size
                    if chance.random() < 0.9:
                        wait_until(lambda size=size: kept.stat().st_size > size, f"see {log}")
                    time.sleep(chance.random() * AFTER_SECONDS_MAX)
                    bridge.kill_and_start()
                    if number % 20 == 0:
                        tell(f"{number} kills: {kept.stat().st_size:,} bytes received")
            facts = read_log(cluster.coordinator)
            wait_until(
                lambda: not faults(facts, read_received(kept, PARTITIONS)),
                f"{faults(facts, read_received(kept, PARTITIONS))}; see {log}",
                END_SECONDS_MAX,
            )
        received = read_received(kept, PARTITIONS)
        wrong = faults(facts, received)
        assert not wrong, f"{wrong}, seed {seed}; see {log}"
        count = sum(map(len, facts))
        tell(f"{count} transactions, each received, {repeats(received)} repeats, {kills} kills")
    return repeats(received)


def main(kills: str = "100", seed: str = "1") -> None:
    directory = Path(tempfile.mkdtemp(prefix="waltz-bridge-"))
    print(f"files in {directory}", flush=True)
    run(directory, int(kills), int(seed), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
