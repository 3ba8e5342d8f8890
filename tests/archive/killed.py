"""Archivers that are killed: `python -m tests.archive.killed DIRECTORY KILLS SEED`.

Starts an archiver on a log in memory, kills it with SIGKILL after a random time, starts the next
one, and so on; in the end one may finish, and the archive must equal the log. Each archiver is a
child forked before any library has started a thread, so that hundreds take seconds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import tests.archive.test_archiver_shell as at_work
from tests.archive.archives import directory_target
from tests.archive.listed_log import ListedLog
from waltz.archive.archive import read_archive
from waltz.archive.archive_verification import verify

KILL_SECONDS_MAX = 0.25
"""An archiver of this log needs about as long for its first commits."""


def archive(directory: Path, mark: int) -> None:
    at_work.run(ListedLog({0: mark, 1: mark // 2}), directory_target(directory))


def in_child(work, *arguments) -> int:  # type: ignore[no-untyped-def]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def expect_whole(directory: Path, mark: int) -> None:
    target = directory_target(directory)
    log = ListedLog({0: mark, 1: mark // 2})
    at_work.expect_equal(read_archive(target), log)
    found = verify(target, log=log, replicas=True)
    assert found.verdict is True, found.findings
    listed = {each.path for prefix in ("log", "staging") for each in target.list(prefix)}
    there = {
        str(path.relative_to(directory))
        for prefix in ("log", "staging")
        for path in (directory / prefix).rglob("*")
        if path.is_file()
    }
    assert there == listed, "what a killed archiver leaves can be swept"
    print(f"manifests={found.manifests} orphans={found.orphans}", flush=True)


def main(directory: Path, kills: int, seed: int) -> None:
    source = random.Random(seed)
    mark = 0
    for _ in range(kills):
        mark += source.randrange(60)
        child = in_child(archive, directory, mark)
        time.sleep(source.uniform(0, KILL_SECONDS_MAX))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for work in (archive, expect_whole):
        _, status = os.waitpid(in_child(work, directory, mark), 0)
        assert status == 0, f"{work.__name__} failed; seed {seed}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
