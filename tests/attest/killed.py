"""Attesters that are killed: `python -m tests.attest.killed DIRECTORY KILLS SEED`.

Starts an attester on a log in memory, kills it with SIGKILL after a random time, starts the next
one, and so on; in the end one may finish. After each kill what is signed is read by means of its
own: root and tiles by the definition of RFC 6962. Each attester is a child forked before any
library has started a thread.
"""

from __future__ import annotations

import base64
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.archive.archives import directory_target
from tests.attest.trees import CLUSTER, PARTITION, block_of, known_key, tree_hash
from waltz.attest import attester as attesting
from waltz.attest.attester import Attester
from waltz.attest.leaves import Leaves
from waltz.attest.notes import KeyKind, parse_note
from waltz.attest.tree_files import TreeFiles
from waltz.record import batch_from_block
from waltz.types import PartitionId, TransactionId

KEY = known_key("waltz/test", KeyKind.LOG)
COUNT = 40_000
STEP = 3_000
KILL_SECONDS_MAX = 0.4
"""An attester needs about as long for a few of its checkpoints."""


class OneBlock:
    """The whole log in one block."""

    def __init__(self) -> None:
        self.batch = batch_from_block(block_of(0, COUNT), TransactionId(0))

    def blocks(
        self, partition_id: PartitionId, first: TransactionId, end: TransactionId
    ) -> Iterator[bytes]:
        yield self.batch.slice(first, end - first).block


def attest(directory: Path, log: OneBlock) -> None:
    attesting.CHECKPOINT_LEAVES_MAX = STEP  # type: ignore[misc]
    files = TreeFiles(directory_target(directory), PARTITION)
    Attester(files, CLUSTER, PARTITION, KEY).extend(log, TransactionId(COUNT))


def in_child(directory: Path, log: OneBlock) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            attest(directory, log)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


class Judge:
    """Has seen what was signed after each kill."""

    def __init__(self, log: OneBlock) -> None:
        hashes = Leaves(CLUSTER, PARTITION).hashes(log.batch)
        self._leaves = [hashes[place : place + 32] for place in range(0, len(hashes), 32)]
        self._roots: dict[int, bytes] = {}

    def look(self, directory: Path) -> int:
        """Return the size that is signed. Raises AssertionError: it is not the log's, or a tile of
        it is missing."""
        root = directory / "attest" / str(PARTITION)
        try:
            content = (root / "checkpoint").read_bytes()
        except FileNotFoundError:
            return 0
        note = parse_note(content)
        assert KEY.public_key.verified_time(note) is not None
        _, size_text, told, _ = note.text.split("\n")
        size = int(size_text)
        if size not in self._roots:
            self._roots[size] = tree_hash(self._leaves[:size])
        assert base64.b64decode(told) == self._roots[size]
        for tile in range(-(-size // 256)):
            wanted = b"".join(self._leaves[tile * 256 : min(size, tile * 256 + 256)])
            name = f"{tile:03}"
            width = len(wanted) // 32
            path = root / "tile" / "0" / (name if width == 256 else f"{name}.p/{width}")
            assert path.read_bytes() == wanted, path
        return size


def main(directory: Path, kills: int, seed: int) -> None:
    drawn = random.Random(seed)
    log = OneBlock()
    judge = Judge(log)
    sizes = [0]
    finished = 0
    for number in range(kills):
        if judge.look(directory) == COUNT:  # begin again elsewhere
            finished += 1
            directory = directory.with_name(str(number))
            sizes.append(0)
        child = in_child(directory, log)
        time.sleep(drawn.uniform(0, KILL_SECONDS_MAX))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        size = judge.look(directory)
        assert size >= sizes[-1], "nothing that was signed is taken back"
        sizes.append(size)
    child = in_child(directory, log)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert judge.look(directory) == COUNT
    parts = len({size for size in sizes if 0 < size < COUNT})
    print(f"kills={kills} finished={finished} sizes={parts}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
