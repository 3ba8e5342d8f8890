"""An attester whose machine loses power, or that is killed and started again: judged afterwards.

The tree lies on a simulated disk, written as an archive in a directory is. Every state that a power
cut may leave is judged: what is signed is there, whole and right, and the next attester goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from proofs.crash_states import CrashState, RecordingDisk, crash_states
from tests.attest.trees import CLUSTER, PARTITION, MemoryBlocks, block_of, known_key, tree_hash
from waltz.archive.durable_directory import DurableDirectory
from waltz.attest import attester as attesting
from waltz.attest.attester import Attester
from waltz.attest.checkpoints import Checkpoint, verified_checkpoint
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import leaf_hash
from waltz.attest.notes import KeyKind
from waltz.attest.tree_files import TreeFiles
from waltz.errors import NotFoundError
from waltz.host import Disk
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.types import TransactionId

KEY = known_key("waltz/test", KeyKind.LOG)
RECORDS = [block_of(number, 1, b"some data") for number in range(600)]
LEAF_HASHES = [leaf_hash(Leaves(CLUSTER, PARTITION).entry(each)) for each in RECORDS]
SIZES = (1, 256, 300, 600)
"""600 is reached over a checkpoint on the way, at `STEP` after 300."""
STEP = 260


@cache
def root_of(size: int) -> bytes:
    """Return the root of the first records, by the definition of RFC 6962."""
    return tree_hash(LEAF_HASHES[:size])


class KilledError(Exception):
    """The process was killed before an operation on the disk."""


class DiskFiles(DurableDirectory):
    """The part of an archive that a tree uses, in the directory /a of a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, "/a")
        self.disk = disk

    def get(self, path: str, bytes_max: int) -> bytes:
        try:
            file = self.disk.open_to_read(f"/a/{path}")
        except FileNotFoundError:
            raise NotFoundError(path) from None
        return file.read_at(0, bytes_max + 1)


@dataclass(slots=True)
class Life:
    """A recorded life: the disk's steps, and after how many of them which size was answered."""

    disk: RecordingDisk
    answered: list[tuple[int, int]] = field(default_factory=list)

    def promised(self, steps: int) -> int:
        """Return the size of the last checkpoint that somebody was told of by then."""
        return max((size for at, size in self.answered if at <= steps), default=0)


def attester(disk: Disk) -> Attester:
    return Attester(TreeFiles(DiskFiles(disk), PARTITION), CLUSTER, PARTITION, KEY)


def extend(disk: Disk, size: int) -> Checkpoint:
    return attester(disk).extend(MemoryBlocks(RECORDS), TransactionId(size)).checkpoint


def recorded(dies_at: int | None = None) -> Life:
    """Attest the log as it grows. With `dies_at` the attester is killed before that operation on
    the disk; the next attester begins on the same disk, which has lost nothing."""
    operations = 0

    def kill(operation: DiskOperation, path: str) -> None:
        nonlocal operations
        if operation in (DiskOperation.OPEN, DiskOperation.READ):
            return
        operations += 1
        if operations - 1 == dies_at:
            raise KilledError(operation, path)

    disk = SimulatedDisk(["/a"], fault=kill)
    life = Life(RecordingDisk(disk))
    for size in SIZES:
        try:
            extend(life.disk, size)
        except KilledError:
            extend(life.disk, size)
        life.answered.append((len(life.disk.trace), size))
    return life


def operations_of(life: Life) -> int:
    return len(life.disk.trace)


def judge_life(life: Life, *, states_per_step: int, from_step: int = 0) -> int:
    """Judge all states that a power cut may leave; return how many there are. Raises
    AssertionError."""
    count = 0
    known: dict[bytes, int] = {}
    found = crash_states(
        life.disk.start, life.disk.trace, states_per_step=states_per_step, seed=len(life.disk.trace)
    )
    for state in found:
        if state.point.steps < from_step:
            continue
        count += 1
        if state.digest not in known:
            known[state.digest] = judge(state)
        promised = life.promised(state.point.steps)
        assert known[state.digest] >= promised, f"{state.point}: {promised} was answered"
    return count


def judge(state: CrashState) -> int:
    """Return the size that is signed in this state, once everything about it has been checked."""
    disk = state.image.disk()
    files = TreeFiles(DiskFiles(disk), PARTITION)
    note = files.checkpoint()
    size = 0
    if note is not None:
        signed = verified_checkpoint(note, KEY.public_key)
        size = signed.size
        assert signed.root == root_of(size), state.point
        hashes = files.hashes(size)
        assert [hashes.leaf(each) for each in range(size)] == LEAF_HASHES[:size], state.point
        assert hashes.root() == signed.root, state.point
    # The next attester comes to the end, whatever is left of tiles without a checkpoint.
    assert extend(disk, len(RECORDS)).root == root_of(len(RECORDS)), state.point
    return size


def shorten_steps(monkeypatch: object) -> None:
    """Have a checkpoint published on the way from 300 to 600."""
    monkeypatch.setattr(attesting, "CHECKPOINT_LEAVES_MAX", STEP)  # type: ignore[attr-defined]
