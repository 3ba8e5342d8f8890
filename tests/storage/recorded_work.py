"""Work on a storage directory, recorded: every step on the disk, and for every moment what was
promised: which records, which session and marks, which fence."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter
from random import Random
from zlib import crc32

from proofs.crash_states import (
    Image,
    RecordingDisk,
    Step,
)
from tests.storage.support import (
    fresh_disk,
    make_partition,
    open_control,
    t,
)
from waltz.host import Disk
from waltz.limits import INDEX_SYNC_RECORDS
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.drain import Drain
from waltz.storage.journal.pacing import JournalPacing, LogWorked
from waltz.storage.partition_replica import StoragePartition
from waltz.types import NO_SESSION, PartitionId, SessionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    RecordListRequest,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

PARTITIONS = (0, 1)
THRESHOLD = 2500
"""Segment size in bytes: about ten records, five sectors."""

SIZES = (0, 3, 40, 40, 120, 120, 400, 1100)
"""Bytes of data in a record: many per sector, and some over several."""

EVERYTHING = 1 << 30


@dataclass(frozen=True, slots=True)
class Found:
    """What a partition says of itself once it is opened again."""

    log: bytes = b""
    """All its records, back to back."""
    info: str = ""
    """Session, marks and flags."""
    session: SessionId = NO_SESSION
    """The lowest one that is not refused."""
    problem: str | None = None
    """What no power cut may lead to, whatever was promised."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What whoever asks a partition may rely on.

    Until a request is answered, the state before and the one after are both right, and of records
    all in between: then there are several versions, in order of time.
    """

    logs: tuple[bytes, ...]
    infos: tuple[str, ...]
    fence: SessionId
    """The highest session that was answered."""
    asked: SessionId
    """The highest session that was heard of."""

    def breach(self, found: Found) -> str | None:
        """Return what of this does not hold in `found`."""
        if found.problem is not None:
            return found.problem
        if found.info not in self.infos:
            return f"promised {' or '.join(self.infos)}; found {found.info}"
        if not self.fence <= found.session <= self.asked:
            return (
                f"session {self.fence} was answered, {self.asked} the highest that asked;"
                f" {found.session} is served"
            )
        for one, other in pairwise(self.logs * 2 if len(self.logs) == 1 else self.logs):
            shorter, longer = sorted((one, other), key=len)
            if found.log.startswith(shorter) and longer.startswith(found.log):
                return None
        return (
            f"promised {' to '.join(str(len(log)) for log in self.logs)} bytes of records; found"
            f" {len(found.log)}, right up to {max(_same(found.log, log) for log in self.logs)}"
        )


def _same(one: bytes, other: bytes) -> int:
    """How many bytes are the same at the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class Workload:
    """The recorded life of a directory, and what was promised in it."""

    start: Image
    trace: Sequence[Step]
    promises: Sequence[tuple[int, tuple[Promise, ...]]]
    """Ascending: from so many steps on, one for each partition."""
    kinds: Counter[str]
    """How often what was done."""

    def promised(self, steps: int) -> tuple[Promise, ...]:
        return self.promises[bisect_right(self.promises, steps, key=itemgetter(0)) - 1][1]


# The directory


class Node:
    """A directory as a node has it open."""

    def __init__(self, disk: Disk, *, threshold: int = THRESHOLD) -> None:
        self.control = open_control(disk, assigned=PARTITIONS)
        self.partitions = [
            make_partition(disk, self.control, number=number, threshold=threshold)
            for number in PARTITIONS
        ]
        for partition in self.partitions:
            partition.open()

    def close(self) -> None:
        for partition in self.partitions:
            partition.close()
        self.control.close()


def drained(
    partition: StoragePartition, requests: Sequence[StorageMessage]
) -> Sequence[StorageMessage]:
    """Return the answers to `requests`, once the journal has what they bring."""
    chain, journal = partition.log, partition.journal
    segment, last = chain.newest_segment, t(chain.next_transaction_id - 1)
    answers = Drain(partition, requests).run()
    now_last, notes = t(chain.next_transaction_id - 1), journal.take_notes()
    if partition.writer.failure is None:
        worked = LogWorked(
            journal.openings, segment, chain.newest_segment, last, 1, now_last, 2, notes
        )
        # A machine of its own has no entry yet, so every drain brings some.
        journal.write(JournalPacing().step([worked], 0.0), segment)
    return answers


def read_log(partition: StoragePartition) -> bytes:
    parts = []
    position = 0
    while len(
        records := partition.log.records.read(t(position), count_max=1000, bytes_max=EVERYTHING)
    ):
        parts.append(bytes(records.block))
        position = records.next_transaction_id
    return b"".join(parts)


def served_session(partition: StoragePartition) -> SessionId:
    """The lowest session that is not refused, in the words of a refusal."""
    request = MaxTransactionIdRequest(SessionId(-9), 1, partition.partition_id, offline=False)
    (answer,) = Drain(partition, [request]).run()
    assert isinstance(answer, FailureResponse), answer
    found = re.search(r"has changed to (-?\d+)", answer.message)
    assert found, answer
    return SessionId(int(found[1]))


def new_records(first: int, sizes: Iterable[int], mark: int, *, partition: int = 0) -> RecordBatch:
    """Records from `first` on; `mark` makes them unlike all others."""
    records = []
    for number, size in enumerate(sizes, first):
        data = (b"%d of %d;" % (number, mark) * (size // 6 + 1))[:size]
        request_id = struct.pack(">iiii", 1, mark, partition, number)
        records.append(NewRecord(request_id, mark, data, crc32(data)))
    return pack_records(t(first), records)


# Recording


class Replica:
    """What the recorder knows of one partition, kept apart from what the partition says."""

    def __init__(self, number: int) -> None:
        self.number = PartitionId(number)
        self.log = b""
        self.ends: list[int] = []
        """Where in the log each record ends."""
        self.low = -1
        self.local = -1
        self.session = SessionId(0)
        self.settled = Promise((), (), NO_SESSION, NO_SESSION)

    @property
    def last(self) -> int:
        return len(self.ends) - 1

    def extend(self, records: RecordBatch) -> None:
        start = len(self.log)
        self.log += bytes(records.block)
        self.ends += [start + int(end) for end in records.offsets[1:]]

    def cut(self, last: int) -> None:
        del self.ends[last + 1 :]
        self.log = self.log[: self.ends[-1] if self.ends else 0]
        self.local = min(self.local, last)


class Recorder:
    """Works on a fresh directory and writes down what it was promised, and when."""

    def __init__(self, seed: object, disk: SimulatedDisk, log: RecordBatch | None = None) -> None:
        """`log`: what partition 0 on `disk` holds, if it is not fresh; session 0 has begun then."""
        self.draw = Random(f"crash states {seed}")
        self.disk = disk
        self.recording = RecordingDisk(disk)
        self.kinds: Counter[str] = Counter()
        self.replicas = [Replica(number) for number in PARTITIONS]
        if log is not None:
            self.replicas[0].extend(log)
            self.replicas[0].low = self.replicas[0].local = self.replicas[0].last
            self.replicas[0].settled = Promise((), (), NO_SESSION, SessionId(0))
        self._promises: dict[int, tuple[Promise, ...]] = {}
        self._writes = 0
        self.node = Node(self.recording)
        for replica in self.replicas:
            # A directory that is not made yet is made as it is opened, so it says the same.
            replica.settled = self._promise_of(replica)
        self._promises[0] = tuple(replica.settled for replica in self.replicas)

    def workload(self) -> Workload:
        promises = sorted(self._promises.items())
        return Workload(self.recording.start, self.recording.trace, promises, self.kinds)

    # What may be done

    def append(self, replica: Replica) -> None:
        self._drain(replica, [self._new_append(replica, self.draw.randint(1, 3))])

    def drain(self, replica: Replica) -> None:
        """Appends that are written and synced together, a read and a refused one among them."""
        requests: list[StorageMessage] = []
        for count in self.draw.choices((1, 2, 3), k=self.draw.randint(2, 4)):
            requests.append(self._new_append(replica, count, requests))
            if self.draw.random() < 0.2:
                requests.append(RecordListRequest(replica.session, 1, replica.number, t(0), 5))
        self._drain(replica, requests)

    def start_session(self, replica: Replica) -> None:
        replica.session = SessionId(replica.session + self.draw.randint(1, 2))
        self._drain(replica, [self._new_mark(replica, replica.last)])

    def append_and_mark(self, replica: Replica) -> None:
        append = self._new_append(replica, 2)
        self._drain(replica, [append, self._new_mark(replica, replica.last + 2)])

    def truncate(self, replica: Replica) -> None:
        """A little, or over several segments, but not below the local mark."""
        keep = self.draw.randint(max(replica.local, replica.last - 12), replica.last)
        self._drain(replica, [self._new_truncate(replica, keep)])

    def truncate_one(self, replica: Replica) -> None:
        self._drain(replica, [self._new_truncate(replica, replica.last - 1)])

    def truncate_below_mark(self, replica: Replica) -> None:
        keep = self.draw.randint(-1, replica.local)
        self._drain(replica, [self._new_truncate(replica, keep)])

    def append_truncate_append(self, replica: Replica) -> None:
        keep = replica.last + 1
        first = self._new_append(replica, 3)
        last = self._new_append(replica, 2, first=keep + 1)
        self._drain(replica, [first, self._new_truncate(replica, keep), last])

    def switch_off_and_on(self, replica: Replica) -> None:
        for available in (False, True):
            access = {"readable": available, "writable": available}
            self._command(replica, partial(self._of(replica).set_access, **access))

    def give_up(self, replica: Replica) -> None:
        """And take it again, with its files."""
        self._give_up(replica, delete_files=False)

    def give_up_with_files(self, replica: Replica) -> None:
        self._give_up(replica, delete_files=True)

    def reopen(self, _: Replica) -> None:
        self.node.close()
        self._reopen()

    def die_and_reopen(self, _: Replica) -> None:
        """The process ends; what it wrote is seen, synced or not."""
        self.disk.release_locks()
        self._reopen()

    # How it is done

    def do(self, action: Callable[[Recorder, Replica], None], replica: Replica) -> None:
        self.kinds[action.__name__] += 1
        action(self, replica)

    def _of(self, replica: Replica) -> StoragePartition:
        return self.node.partitions[replica.number]

    def _new_append(
        self,
        replica: Replica,
        count: int,
        before: Sequence[StorageMessage] = (),
        *,
        first: int | None = None,
    ) -> AppendRecordsRequest:
        """From `first` on; else following the appends `before` or the last record."""
        if first is None:
            first = replica.last + 1
            for request in before:
                if isinstance(request, AppendRecordsRequest):
                    first = request.records.next_transaction_id
        self._writes += 1
        sizes = self.draw.choices(SIZES, k=count)
        records = new_records(first, sizes, self._writes, partition=replica.number)
        return AppendRecordsRequest(replica.session, 1, replica.number, records, False)

    def _new_mark(self, replica: Replica, held: int) -> SetLowWaterMarkRequest:
        mark = t(max(held, replica.low))
        return SetLowWaterMarkRequest(replica.session, 1, replica.number, mark, offline=False)

    def _new_truncate(self, replica: Replica, keep: int) -> TruncateRequest:
        return TruncateRequest(replica.session, 1, replica.number, t(keep), False)

    def _drain(self, replica: Replica, requests: Sequence[StorageMessage]) -> None:
        partition = self._of(replica)
        steps = len(self.recording.trace)
        partition.announce(replica.session)
        answers = drained(partition, requests)
        logs = [replica.log]
        for request, answer in zip(requests, answers, strict=True):
            assert not isinstance(answer, FailureResponse), (request, answer)
            if isinstance(request, AppendRecordsRequest):
                replica.extend(request.records)
            elif isinstance(request, TruncateRequest):
                replica.cut(request.transaction_id)
            elif isinstance(request, SetLowWaterMarkRequest):
                replica.low, replica.local = request.low_water_mark, replica.last
            logs.append(replica.log)
        info = partition.promises.info
        assert (info.low_water_mark, info.local_low_water_mark) == (replica.low, replica.local)
        self._settle(replica, steps, logs, replica.session)

    def _command(self, replica: Replica, action: Callable[[], object]) -> None:
        steps, log = len(self.recording.trace), replica.log
        action()
        self._settle(replica, steps, [log, replica.log], replica.settled.fence)

    def _give_up(self, replica: Replica, *, delete_files: bool) -> None:
        partition = self._of(replica)

        def unassign() -> None:
            partition.unassign(delete_files=delete_files)
            replica.low = replica.local = -1
            if delete_files:
                replica.cut(-1)

        # All promises end with that, but for the fence.
        self._command(replica, unassign)
        self._command(replica, partition.assign)

    def _reopen(self) -> None:
        self.node = Node(self.recording)
        for replica in self.replicas:
            partition = self._of(replica)
            found = Found(
                read_log(partition), repr(partition.promises.info), served_session(partition)
            )
            breach = replica.settled.breach(found)
            assert breach is None, breach
            partition.announce(replica.session)

    def _promise_of(self, replica: Replica, fence: SessionId = NO_SESSION) -> Promise:
        asked = max(replica.settled.asked, fence)
        return Promise((replica.log,), (repr(self._of(replica).promises.info),), fence, asked)

    def _settle(
        self, replica: Replica, steps: int, logs: Sequence[bytes], fence: SessionId
    ) -> None:
        """Note what was promised since `steps` steps, and what is from now on."""
        before, after = replica.settled, self._promise_of(replica, fence)
        meanwhile = Promise(
            (before.logs[0], *logs[1:]),
            before.infos + after.infos,
            min(before.fence, after.fence),
            after.asked,
        )
        for promise, since in ((meanwhile, steps + 1), (after, len(self.recording.trace))):
            replica.settled = promise
            self._promises[since] = tuple(each.settled for each in self.replicas)


Action = Callable[[Recorder, Replica], None]

SCRIPT: dict[Action, int] = {
    Recorder.append: 8,
    Recorder.drain: 5,
    Recorder.start_session: 4,
    Recorder.append_and_mark: 2,
    Recorder.truncate: 3,
    Recorder.truncate_one: 2,
    Recorder.truncate_below_mark: 1,
    Recorder.append_truncate_append: 1,
    Recorder.switch_off_and_on: 1,
    Recorder.give_up: 1,
    Recorder.give_up_with_files: 1,
    Recorder.reopen: 2,
    Recorder.die_and_reopen: 2,
}
"""What a workload does, and how often, in an order that its seed decides."""


BOUNDARY_SCRIPT: Sequence[Action] = (
    Recorder.append,
    Recorder.drain,
    Recorder.append,
    Recorder.truncate,
    Recorder.drain,
    Recorder.die_and_reopen,
    Recorder.drain,
    Recorder.append,
)


def record(seed: object) -> Workload:
    """The life of a fresh directory; or, for every tenth seed, one whose index passes the place
    where it is synced."""
    return _record_boundary(seed) if str(seed).endswith("9") else _record_life(seed)


def _record_life(seed: object) -> Workload:
    recorder = Recorder(seed, fresh_disk())
    first, second = recorder.replicas
    script = [action for action, count in SCRIPT.items() for _ in range(count)]
    recorder.draw.shuffle(script)
    for action in script:
        while first.last < 8:
            recorder.do(Recorder.drain, first)
        recorder.do(action, first)
        if recorder.draw.random() < 0.15:
            recorder.do(recorder.draw.choice((Recorder.append, Recorder.start_session)), second)
    return recorder.workload()


def _record_boundary(seed: object) -> Workload:
    disk = fresh_disk()
    log = new_records(0, [0] * (INDEX_SYNC_RECORDS - 5), 1)
    node = Node(disk, threshold=len(log.block) - 100)
    partition = node.partitions[0]
    partition.announce(SessionId(0))
    for request in (
        AppendRecordsRequest(SessionId(0), 1, PartitionId(0), log, False),
        SetLowWaterMarkRequest(SessionId(0), 2, PartitionId(0), t(len(log) - 1), offline=False),
    ):
        (answer,) = Drain(partition, [request]).run()
        assert isinstance(answer, SuccessResponse), answer
    node.close()
    recorder = Recorder(seed, SimulatedDisk(contents=disk.contents()), log)
    for action in BOUNDARY_SCRIPT:
        recorder.do(action, recorder.replicas[0])
    return recorder.workload()
