"""Restores and clones that are killed.

    python -m tests.restore.killed restore|clone DIRECTORY KILLS SEED

Starts a restore of a cluster of `waltz up`, kills it with SIGKILL after a random time, looks at
what it has left, runs the same command again, and so on. A storage directory in which a node would
start must hold the archive's log and nothing else, at any time; a cluster that exists must have
three of them; and a restore that is let run to its end must end so. A restore is a child forked
before any library has started a thread; a clone is the command, killed with all processes that it
has started.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.archive.killed import in_child
from tests.restore.memory_archive import MemoryArchive, make_archive
from tests.restore.stored_archive import nodes_of_file, store
from tests.storage.independent_reader import parse_directory, read_files
from waltz.cli.restore_points import PointWish
from waltz.cli.restore_trial import restore_trial
from waltz.restore.points import AtMarks
from waltz.storage.directory.control_struct import CONTROL_FILE_NAME
from waltz.storage.directory.restored_files import MARK_FILE_NAME
from waltz.types import PartitionId, TransactionId

LASTS = {0: 1_900, 1: -1, 2: 700}
NODES = ("storage-1", "storage-2", "storage-3")
ENDED_SHARE = 0.1
"""The share of restores that are let run to their end after a kill."""


def restore(url: str, directory: Path, start_over: bool) -> None:
    marks = {PartitionId(p): TransactionId(last) for p, last in LASTS.items()}
    restore_trial(
        url,
        PointWish(AtMarks(marks), "killed"),
        directory,
        same_key=False,
        name=None,
        allow_empty=True,
        start_over=start_over,
        port=0,
    )


class Judge:
    """Looks at what a killed restore has left, with the second reader."""

    def __init__(self, memory: MemoryArchive) -> None:
        self._right = {p: memory.log(p, last) for p, last in LASTS.items()}
        self.seen: Counter[str] = Counter()

    def look(self, directory: Path) -> str:
        """Return the state: `nothing`, `cut short`, `whole` or `exists`."""
        usable = [name for name in NODES if self._is_usable(directory / name)]
        for name in usable:
            found = parse_directory(read_files(directory / name))
            logs = {
                p: b"".join(each.to_bytes() for each in found.records(p)) for p in found.partitions
            }
            assert logs == self._right, f"{name} serves a part of the log"
        state = "nothing"
        if any((directory / name).exists() for name in NODES):
            state = "cut short" if len(usable) < len(NODES) else "whole"
        if self._exists(directory):
            assert len(usable) == len(NODES), "a cluster exists that was restored in part"
            state = "exists"
        self.seen[state] += 1
        return state

    def _is_usable(self, directory: Path) -> bool:
        return (directory / CONTROL_FILE_NAME).exists() and not (
            directory / MARK_FILE_NAME
        ).exists()

    def _exists(self, directory: Path) -> bool:
        tree = directory / "coordinator.json"
        if not tree.exists():
            return False
        try:
            return bool(nodes_of_file(tree).get("store"))
        except KeyError:
            return False  # the root is not there yet


def kill_restores(directory: Path, kills: int, source: random.Random) -> Judge:
    memory = make_archive([2_000, 0, 800])
    url_of = directory / "archive"
    assert os.waitpid(in_child(store, memory, url_of), 0)[1] == 0
    url = f"file://{url_of}"
    judge = Judge(memory)
    began = time.monotonic()
    place = directory / "0"
    assert os.waitpid(in_child(restore, url, place, False), 0)[1] == 0
    seconds = time.monotonic() - began
    assert judge.look(place) == "exists"
    for number in range(1, kills + 1):
        if judge.look(place) == "exists" or source.random() < ENDED_SHARE:
            end_restore(judge, url, place)
            shutil.rmtree(place)
            place = directory / str(number)
        child = in_child(restore, url, place, True)
        time.sleep(source.uniform(0, seconds * 0.8))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    end_restore(judge, url, place)
    return judge


def end_restore(judge: Judge, url: str, place: Path) -> None:
    """Let the restore run to its end, unless it is there."""
    if judge.look(place) != "exists":
        assert os.waitpid(in_child(restore, url, place, True), 0)[1] == 0
    assert judge.look(place) == "exists"


def kill_clones(directory: Path, kills: int, source: random.Random) -> Judge:
    memory = make_archive([2_000, 0, 800])
    url_of = directory / "archive"
    assert os.waitpid(in_child(store, memory, url_of), 0)[1] == 0
    judge = Judge(memory)
    marks = ",".join(f"{p}={last}" for p, last in LASTS.items())
    options = ("--allow-empty", "--port", "0", "--no-console")
    arguments = ("clone", f"file://{url_of}", "--marks", marks, *options)
    place = directory / "0"
    seconds = run_clone(arguments, place, partial(is_ready, place))
    assert judge.look(place) == "exists"
    for number in range(1, kills + 1):
        if judge.look(place) == "exists":
            shutil.rmtree(place)
            place = directory / str(number)
        moment = source.uniform(seconds * 0.1, seconds * 1.2)
        until = time.monotonic() + moment
        run_clone((*arguments, "--start-over"), place, partial(_past, until))
    if judge.look(place) != "exists":
        run_clone((*arguments, "--start-over"), place, partial(is_ready, place))
    assert judge.look(place) == "exists"
    return judge


def _past(end: float) -> bool:
    return time.monotonic() >= end


def is_ready(place: Path) -> bool:
    path = place / "cluster.json"
    return path.exists() and bool(json.loads(path.read_text())["ready"])


def run_clone(arguments: tuple[str, ...], place: Path, is_over: Callable[[], bool]) -> float:
    """Run the command until `is_over`, kill it with all that it has started, and return how long it
    ran."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", *arguments, "--directory", str(place)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not is_over():
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1].decode())
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return time.monotonic() - began


def main(kind: str, directory: Path, kills: int, seed: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    run = {"restore": kill_restores, "clone": kill_clones}[kind]
    judge = run(directory, kills, random.Random(seed))
    print(f"kills={kills} " + " ".join(f"{k}={n}" for k, n in sorted(judge.seen.items())))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
