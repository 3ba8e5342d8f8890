"""The corruption matrix: a small directory, damaged in one place at a time, judged twice.

A storage node must not serve a wrong byte, and its log must not become shorter without a word. The
look at the files must find something in every case.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, cast
from uuid import UUID

from tests.storage.directories import History, Plan, SeededRandom, SteadyClock, make_history
from tests.storage.independent_reader import parse_directory, read_files
from tests.storage.support import GOLDEN, GOLDEN_KEY
from waltz.errors import ConfigurationError, CorruptionError
from waltz.host import Host, Network, Workers
from waltz.record import batch_from_block
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.drain import Drain
from waltz.storage.inspection.findings import Finding
from waltz.storage.inspection.survey import InspectionTarget
from waltz.storage.inspection.verification import Options, verify
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.real_host import NoCoordinator
from waltz.types import Address, PartitionId, SessionId, TransactionId
from waltz.wire.storage_protocol import (
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RepairRequest,
    StorageMessage,
    SuccessResponse,
)

BLOCK_BYTES: Final = 512
MASKS: Final = (0x01, 0x80, 0xFF)
LARGE_BYTES: Final = 20_000
LARGE_STEP: Final = 13
DIRECTORY: Final = "/storage"
CONTROL_FILE: Final = "waltz-storage.ctl"
NODE_FILE: Final = "waltz-storage.node"
RESERVE_FILE: Final = "waltz-storage.reserve"
ONLY_A_JOURNAL: Final = "nothing rests on a journal; what it tells is judged by its own tests"
COMMON: Final = (CONTROL_FILE, NODE_FILE, RESERVE_FILE)

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class DataSet:
    """A directory before it is damaged. `earlier` are older states of it, for stale blocks.

    `by_the_original` says that it was never opened by this release.
    """

    name: str
    key: UUID
    files: dict[str, bytes]
    earlier: tuple[dict[str, bytes], ...] = ()
    by_the_original: bool = False


PLANS: Final = (
    Plan("small", 700, (0, 120), ((None, 6), (2, 8), (3, 5), (0, 3))),
    Plan("aligned", 1_600, (88, 88), ((None, 8), (0, 6), (0, 14))),
)
"""Small segments with records of any size, a truncation that is written over, several sessions; and
records that fill blocks exactly, so that swapped blocks hold whole ones."""

CONTINUED: Final = Plan("continued", 900, (0, 100), ((None, 8), (2, 9)), first_session=1)


def data_sets(directory: Path) -> list[DataSet]:
    """Make the directories of the matrix below `directory`: ours, the original's, and one that the
    original began and our node went on with."""
    found = [_data_set(make_history(directory / plan.name, plan)) for plan in PLANS]
    shutil.copytree(GOLDEN / "storage-partitions-added", directory / CONTINUED.name)
    found.append(_data_set(make_history(directory / CONTINUED.name, CONTINUED, key=GOLDEN_KEY)))
    theirs = read_files(GOLDEN / "storage-after-clients")
    found.append(DataSet("original", GOLDEN_KEY, theirs, by_the_original=True))
    return found


def _data_set(history: History) -> DataSet:
    return DataSet(history.name, history.key, history.files, history.earlier)


class Case(NamedTuple):
    """One fault: what, in which file, where, and how. Prints as its recipe and is read back."""

    kind: str
    path: str
    place: int = 0
    argument: str = ""

    def __str__(self) -> str:
        return " ".join(map(str, self)).strip()

    @classmethod
    def parse(cls, text: str) -> Case:
        kind, path, place, *argument = text.split()
        return cls(kind, path, int(place), "".join(argument))


def damaged(data_set: DataSet, case: Case) -> dict[str, bytes]:
    """The files after the fault; equal to those before where it changes nothing."""
    files = dict(data_set.files)
    start, end = case.place * BLOCK_BYTES, (case.place + 1) * BLOCK_BYTES
    content = bytearray(files[case.path])
    match case.kind:
        case "flip":
            content[case.place] ^= int(case.argument, 16)
        case "zero":
            content[start:end] = bytes(len(content[start:end]))
        case "stale":
            old = data_set.earlier[int(case.argument)].get(case.path, b"")[start:end]
            content[start:end] = old.ljust(len(content[start:end]), b"\0")
        case "swap":
            other_path, _, number = case.argument.partition("#")
            begin = int(number) * BLOCK_BYTES
            other = content if other_path == case.path else bytearray(files[other_path])
            mine, theirs = content[start:end], other[begin : begin + BLOCK_BYTES]
            size = min(len(mine), len(theirs))
            content[start : start + size] = theirs[:size]
            other[begin : begin + size] = mine[:size]
            files[other_path] = bytes(other)
        case "cut":
            del content[case.place :]
        case "lose":
            del files[case.path]
            return files
    files[case.path] = bytes(content)
    return files


# Cases


def all_cases(data_set: DataSet) -> Iterator[Case]:
    """Every fault of the matrix, file by file; of a large file each byte once, not with all masks,
    and of its pairs of blocks some."""
    for path, content in sorted(data_set.files.items()):
        is_large = len(content) > LARGE_BYTES
        yield Case("lose", path)
        for place in range(len(content)):
            masks = MASKS if not is_large else (MASKS[place % len(MASKS)],)
            yield from (Case("flip", path, place, f"{mask:#04x}") for mask in masks)
        yield from (Case("cut", path, place) for place in cut_places(content))
        for block in range(block_count(content)):
            yield Case("zero", path, block)
            for moment in range(len(data_set.earlier)):
                yield Case("stale", path, block, str(moment))
            for other, other_content in sorted(data_set.files.items()):
                if other >= path:
                    start = block + 1 if other == path else 0
                    step = 1 if not is_large else LARGE_STEP
                    for number in range(start, block_count(other_content), step):
                        yield Case("swap", path, block, f"{other}#{number}")


def block_count(content: bytes) -> int:
    return -(-len(content) // BLOCK_BYTES)


def cut_places(content: bytes) -> Iterator[int]:
    """Sizes to cut a file to: all of a small one, of a large one those around blocks."""
    for size in range(len(content)):
        if len(content) <= 4096 or size % BLOCK_BYTES in (0, 1, BLOCK_BYTES - 1) or size < 300:
            yield size


OLD_RECORDS: Final = "whole records that a truncation removed are back: only other replicas know"


def is_flawless(files: Files) -> bool:
    """Whether nothing in the files says that they are not as they should be."""
    try:
        directory = parse_directory(files)
    except (AssertionError, KeyError, struct.error):
        return False
    return all(
        record.request_id[8:12] == number.to_bytes(4, "big")
        for number in directory.partitions
        for record in directory.records(number)
    )


def changed_paths(data_set: DataSet, files: Files) -> set[str]:
    before = data_set.files
    return {path for path in {*before, *files} if before.get(path) != files.get(path)}


def carries_no_information(data_set: DataSet, case: Case, files: Files) -> str | None:
    """Return why nobody can notice the fault; None if it must be found.

    This is the whole list.
    """
    changed = changed_paths(data_set, files)
    if changed == {RESERVE_FILE}:
        return "the reserve file has no content and is made anew"
    if all(path.endswith(".jnl") for path in changed):
        return ONLY_A_JOURNAL
    is_in_segments = all(path.endswith((".seg", ".idx")) for path in changed)
    if case.kind in ("stale", "swap") and is_in_segments and is_flawless(files):
        return OLD_RECORDS
    is_creation_time = changed == {CONTROL_FILE} and case.kind == "flip" and 4 <= case.place < 12
    if data_set.by_the_original and is_creation_time:
        return "the original keeps the creation time of its control file nowhere else"
    (path, *more) = sorted(changed)
    if case.kind == "flip" and is_in_segments and not more and 4 <= case.place < 12:
        data, index = (files[path[:-4] + suffix][4:12] for suffix in (".seg", ".idx"))
        if data == index:
            return "the original's times of creation differ by a little, and now they are equal"
    return None


# What a storage node makes of it


class Outcome(Enum):
    INTACT = "every record is served, nothing is amiss"
    DAMAGED = "damage is reported, all other records are served"
    TORN = "a tail that nothing proves was durable is cut, and reported"
    PARTITION_REFUSED = "the partition refuses service"
    NODE_REFUSED = "the node refuses to start"


class ViolationError(AssertionError):
    """A promise is broken; the text says which."""


class SilentNetwork:
    """Implements `host.Network` for a node that nobody talks to."""

    async def connect(self, address: Address) -> object:
        raise AssertionError

    async def listen(self, address: Address, accept: object) -> SilentListener:
        return SilentListener()


class SilentListener:
    address = Address("nowhere", 1)

    async def close(self) -> None:
        """Nobody listens."""


class InlineWorkers:
    """Implements `host.Workers` on the spot."""

    def start(self, function: Callable[[], Callable[[], object]]) -> None:
        function()()

    async def run_blocking(self, function: Callable[[], object]) -> object:
        return function()


def disk_with(files: Files) -> SimulatedDisk:
    """A disk that holds the files durably, and the directories of both partitions."""
    disk = SimulatedDisk([DIRECTORY, f"{DIRECTORY}/0", f"{DIRECTORY}/1"])
    for path, content in files.items():
        file = disk.open(f"{DIRECTORY}/{path}", create=True)
        file.write_at(0, content)
        file.sync()
    for directory in (DIRECTORY, f"{DIRECTORY}/0", f"{DIRECTORY}/1"):
        disk.sync_directory(directory)
    return disk


def expected_records(data_set: DataSet) -> dict[int, list[bytes]]:
    directory = parse_directory(data_set.files)
    return {
        number: [record.to_bytes() for record in directory.records(number)] for number in (0, 1)
    }


def expected_fences(data_set: DataSet) -> dict[int, int]:
    """The sessions below which the partitions refuse all; what the original's control file has lost
    is lost."""
    directory = parse_directory(data_set.files)
    return {
        number: -1 if data_set.by_the_original else entry.current.session
        for number, entry in enumerate(directory.control.entries)
    }


class NodeJudge:
    """Opens damaged directories as a storage node does, twice, for a start must not make good what
    the one before it has refused."""

    def __init__(self, data_set: DataSet) -> None:
        self._data_set = data_set
        self._expected = expected_records(data_set)
        self._fences = expected_fences(data_set)

    async def judge(self, case: Case, files: Files) -> Outcome:
        """Start a node on the files, read and scrub all, mend what it finds damaged, and start
        again.

        Raises ViolationError.
        """
        disk = disk_with(files)
        changed = changed_paths(self._data_set, files)
        touched = {
            number
            for number in self._expected
            if any(path in COMMON or path.startswith(f"{number}/") for path in changed)
        }
        try:
            first = await self._outcomes(disk, touched, is_first=True)
        except ConfigurationError as error:
            if not self._may_refuse(changed, files):
                raise ViolationError(f"the node refuses to start: {error}") from error
            return Outcome.NODE_REFUSED
        if set(first.values()) <= {Outcome.INTACT, Outcome.DAMAGED}:
            for path, content in self._data_set.files.items():
                self._check_mended(disk, path, content)
        outcome = max(first.values(), key=list(Outcome).index)
        if outcome in (Outcome.INTACT, Outcome.DAMAGED) and self._is_as_before(disk):
            return outcome  # a second start would find what no fault has touched
        second = await self._outcomes(disk, touched, is_first=False)
        for number, found in first.items():
            expected = Outcome.INTACT if found is Outcome.DAMAGED else found
            if second[number] is not expected:
                raise ViolationError(f"after {found.name} a second start: {second[number].name}")
        return outcome

    async def _outcomes(
        self, disk: SimulatedDisk, touched: set[int], *, is_first: bool
    ) -> dict[int, Outcome]:
        """Raises ConfigurationError: the node does not start; ViolationError."""
        node = await self._start(disk)
        outcomes = {}
        try:
            for number, records in self._expected.items():
                queue = node._queues.get(PartitionId(number))
                if queue is None:
                    raise ViolationError(f"partition {number} is not there")
                view = PartitionView(queue.partition, records, self._data_set.by_the_original)
                is_touched = number in touched and is_first
                outcomes[number] = view.judge() if is_touched else view.look()
                if number not in touched and outcomes[number] is not Outcome.INTACT:
                    raise ViolationError(f"partition {number} has nothing to do with it")
                view.check_fence(self._fences[number])
        finally:
            await node.stop()
        return outcomes

    def _is_as_before(self, disk: SimulatedDisk) -> bool:
        return all(
            disk.exists(f"{DIRECTORY}/{path}") and disk.content(f"{DIRECTORY}/{path}") == content
            for path, content in self._data_set.files.items()
        )

    def _check_mended(self, disk: SimulatedDisk, path: str, content: bytes) -> None:
        """All is healed or repaired: so every byte is back, but for times of creation."""
        if not path.endswith((".seg", ".idx")):
            return
        found = disk.content(f"{DIRECTORY}/{path}")
        if found[:4] + found[12:] != content[:4] + content[12:]:
            raise ViolationError(f"{path} is not what it was, after all was mended")

    async def _start(self, disk: SimulatedDisk) -> StorageNode:
        host = Host(
            clock=SteadyClock(),
            network=cast(Network, SilentNetwork()),
            disk=disk,
            random=SeededRandom("corruption"),
            workers=cast(Workers, InlineWorkers()),
            coordinator=NoCoordinator(),
        )
        config = StorageConfig(
            directory=DIRECTORY,
            cluster_key=self._data_set.key,
            partition_count=2,
            data_address=Address("nowhere", 1),
            admin_address=Address("nowhere", 2),
        )
        node = StorageNode(host, config)
        await node.start()
        return node

    def _may_refuse(self, changed: set[str], files: Files) -> bool:
        """Whether what tells whose directory this is, was hit: all copies of it."""
        if CONTROL_FILE in changed:
            return files.get(CONTROL_FILE, b"")[:128] != self._data_set.files[CONTROL_FILE][:128]
        if NODE_FILE in changed:
            before, after = self._data_set.files[NODE_FILE], files.get(NODE_FILE, b"")
            return all(before[at : at + 128] != after[at : at + 128] for at in (0, 4096))
        return False


class PartitionView:
    """What can be had of one partition of a node, by its own methods."""

    def __init__(
        self, partition: StoragePartition, records: Sequence[bytes], by_the_original: bool
    ) -> None:
        self._partition = partition
        self._records = records
        self._by_the_original = by_the_original

    def judge(self) -> Outcome:
        partition = self._partition
        if partition.damage is not None:
            return Outcome.PARTITION_REFUSED
        self._read_all()
        self._scrub()
        damaged = self._damaged()
        self._read_all(must_serve=set(range(partition.log.next_transaction_id)) - damaged)
        self._vote(damaged)
        found = partition.log.next_transaction_id
        if found > len(self._records):
            raise ViolationError(f"{found} records, where {len(self._records)} were")
        if found < len(self._records) and not self._by_the_original:
            raise ViolationError(f"{found} records are left of {len(self._records)}")
        if damaged:
            self._repair()
        if found < len(self._records):
            return Outcome.TORN
        return Outcome.DAMAGED if damaged else Outcome.INTACT

    def look(self) -> Outcome:
        """Read all once, and mend nothing."""
        partition = self._partition
        if partition.damage is not None:
            return Outcome.PARTITION_REFUSED
        if partition.log.damage:
            return Outcome.DAMAGED
        self._read_all(must_serve=range(partition.log.next_transaction_id))
        is_whole = partition.log.next_transaction_id == len(self._records)
        return Outcome.INTACT if is_whole else Outcome.TORN

    def check_fence(self, expected: int) -> None:
        """What was refused once is refused for ever."""
        partition = self._partition
        if partition.damage is None and partition.promises.fence < expected:
            raise ViolationError(
                f"session {partition.promises.fence} is let in where {expected} was"
            )

    def _read_all(self, must_serve: Collection[int] = ()) -> None:
        position = 0
        while position < len(self._records):
            first = TransactionId(position)
            try:
                batch = self._partition.log.records.read(first, count_max=1000, bytes_max=1_000_000)
            except CorruptionError as error:
                if position in must_serve:
                    raise ViolationError(f"record {position} is refused: {error}") from error
                position += 1
                continue
            if not len(batch):
                if position in must_serve:
                    raise ViolationError(f"record {position} is absent")
                return
            if batch.first_transaction_id != position:
                raise ViolationError(f"{batch.first_transaction_id} is served for {position}")
            expected = b"".join(self._records[position : position + len(batch)])
            if batch.block != expected:
                raise ViolationError(f"wrong bytes are served from record {position} on")
            position += len(batch)

    def _scrub(self) -> None:
        position = TransactionId(0)
        while position < self._partition.log.next_transaction_id:
            step = self._partition.scrub(position, 4096)
            if step.next_transaction_id <= position:
                raise ViolationError(f"the scrubber does not get beyond {position}")
            position = step.next_transaction_id

    def _damaged(self) -> set[int]:
        return {
            number
            for first, following in self._partition.log.damage
            for number in range(first, following)
        }

    def _ask(self, request: StorageMessage) -> StorageMessage:
        (answer,) = Drain(self._partition, [request]).run()
        return answer

    def _vote(self, damaged: set[int]) -> None:
        """A damaged replica does not say how much it has."""
        session, number = self._session(), self._partition.partition_id
        answer = self._ask(MaxTransactionIdRequest(session, 1, number, offline=False))
        if damaged and not isinstance(answer, FailureResponse):
            raise ViolationError(f"it votes in spite of damage to {sorted(damaged)}: {answer}")
        last = TransactionId(self._partition.log.next_transaction_id - 1)
        if not damaged and answer != MaxTransactionIdResponse(session, 1, number, last):
            raise ViolationError(f"it does not vote: {answer}")

    def _session(self) -> SessionId:
        session = self._partition.promises.fence
        self._partition.announce(session)
        return session

    def _repair(self) -> None:
        """Bring all damaged records back, as another replica would, and read everything again."""
        session, number = self._session(), self._partition.partition_id
        while ranges := self._partition.log.damage:
            first, following = ranges[0]
            block = b"".join(self._records[first:following])
            batch = batch_from_block(block, first)
            answer = self._ask(RepairRequest(session, 1, number, batch))
            if not isinstance(answer, SuccessResponse):
                raise ViolationError(f"records {first} to {following - 1} stay lost: {answer}")
        self._read_all(must_serve=range(self._partition.log.next_transaction_id))
        self._vote(set())


# What the look at the files makes of it


def findings_of(files: Files) -> list[Finding]:
    return verify(disk_with(files), InspectionTarget(DIRECTORY), Options()).findings


class VerifyJudge:
    """Looks at damaged directories as `waltz disk verify` does."""

    def __init__(
        self, data_set: DataSet, look: Callable[[Files], list[Finding]] = findings_of
    ) -> None:
        self._data_set = data_set
        self._look = look
        self._before = look(data_set.files)

    def judge(self, case: Case, files: Files) -> str:
        """Return what is found first. Raises ViolationError."""
        new = [finding for finding in self._look(files) if finding not in self._before]
        if new:
            return new[0].kind.value
        raise ViolationError("verify finds nothing")


@dataclass
class Tally:
    """Cases by what became of them."""

    cases: int = 0
    unchanged: int = 0
    node: Counter[str] = field(default_factory=Counter)
    verify: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def merge(self, other: Tally) -> None:
        self.cases += other.cases
        self.unchanged += other.unchanged
        self.node += other.node
        self.verify += other.verify
        self.violations += other.violations


def run_cases(
    data_set: DataSet, cases: Iterable[Case], *, verify_judge: VerifyJudge | None = None
) -> Tally:
    """Judge every case twice; violations are collected with their recipes."""
    judge = NodeJudge(data_set)
    look = verify_judge or VerifyJudge(data_set)
    tally = Tally()

    async def run() -> None:
        for case in cases:
            files = damaged(data_set, case)
            if files == data_set.files:
                tally.unchanged += 1
                continue
            tally.cases += 1
            reason = carries_no_information(data_set, case, files)
            try:
                if reason != OLD_RECORDS:
                    tally.node[(await judge.judge(case, files)).value] += 1
                tally.verify[reason or look.judge(case, files)] += 1
            except ViolationError as error:
                tally.violations.append(f"'{data_set.name} {case}': {error}")
            except Exception as error:
                tally.violations.append(f"'{data_set.name} {case}': {error!r}")

    asyncio.run(run())
    return tally
