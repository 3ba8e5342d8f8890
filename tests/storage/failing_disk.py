"""What each operation of a storage node does when the disk fails under it: everything is tried, and
judged. `python -m tests.storage.failing_disk` prints the table.

Each trial does one operation while the n-th write (sync, read, ...) fails, for every n until
nothing fails any more. Then the disk is well again, and four lives go on from there: the same
process reads; its writer is reopened; the process is started anew; the power is cut. In each of
them what was answered must be true, and what was refused must be there, partly there or not there.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Final

from tests.storage.crash_states import go_on, look
from tests.storage.recorded_work import Found, Node, Promise, new_records, read_log
from tests.storage.support import DIRECTORY, fresh_disk, t
from waltz.errors import CorruptionError, WaltzError
from waltz.record import batch_from_block
from waltz.sim.simulated_disk import DiskOperation, Fault, SimulatedDisk, fail_nth
from waltz.storage.drain import Drain
from waltz.storage.log.segment import SEGMENT_HEADER_BYTES
from waltz.storage.partition_replica import StoragePartition
from waltz.types import NO_SESSION, PartitionId, SessionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    RecordHeaderListRequest,
    RecordListRequest,
    RepairRequest,
    SetLowWaterMarkRequest,
    StorageMessage,
    TruncateRequest,
)

ZERO: Final = PartitionId(0)
SESSION: Final = SessionId(3)
POWER_CUTS: Final = 3
"""Draws of what survives, per trial."""

TRIALS_MAX: Final = 100
"""More operations on the disk than one operation of the node has."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A way in which a disk fails."""

    column: str
    name: str
    operation: DiskOperation
    error: int = errno.EIO
    done: float | None = None
    forever: bool = False
    suffix: str = ""
    """Only files whose name ends so."""

    def fault(self, number: int) -> Fault:
        fail = fail_nth(self.operation, number, self.error, done=self.done, forever=self.forever)

        def fault(operation: DiskOperation, path: str) -> None:
            if path.endswith(self.suffix):
                fail(operation, path)

        return fault


FAILURES: Final = (
    Failure("write", "nothing written", DiskOperation.WRITE, done=0.0),
    Failure("write", "a part written", DiskOperation.WRITE, done=0.6),
    Failure("no space", "a part written", DiskOperation.WRITE, errno.ENOSPC, done=0.6),
    Failure("sync", "once, nothing durable", DiskOperation.SYNC, done=0.0),
    Failure("sync", "once, a part durable", DiskOperation.SYNC, done=0.5),
    Failure("sync", "once, all durable", DiskOperation.SYNC, done=1.0),
    Failure("sync", "from then on", DiskOperation.SYNC, done=0.0, forever=True),
    Failure("read", "once", DiskOperation.READ),
    Failure("read", "from then on", DiskOperation.READ, forever=True),
    Failure("read", "indexes, from then on", DiskOperation.READ, forever=True, suffix=".idx"),
    Failure("read", "data, from then on", DiskOperation.READ, forever=True, suffix=".seg"),
    Failure("preallocate", "no space", DiskOperation.PREALLOCATE, errno.ENOSPC),
    Failure("truncate", "once", DiskOperation.TRUNCATE),
    Failure("open", "too many files", DiskOperation.OPEN, errno.EMFILE),
    Failure("remove", "once", DiskOperation.REMOVE),
    Failure("rename", "once", DiskOperation.RENAME),
    Failure("make directory", "once", DiskOperation.MAKE_DIRECTORY),
    Failure("sync directory", "once", DiskOperation.SYNC_DIRECTORY),
)


class Situation:
    """A directory at work: partition 0 in session 3 with several segments, records beyond the local
    mark, and index entries that were not synced; partition 1 untouched."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = fresh_disk() if disk is None else disk
        self.node: Node | None = None
        self.asked = NO_SESSION
        """The highest session that was heard of."""

    @property
    def partition(self) -> StoragePartition:
        assert self.node is not None
        return self.node.partitions[0]

    def open(self) -> None:
        self.node = Node(self.disk)
        self.partition.announce(self.asked)

    def ask(self, *requests: StorageMessage) -> list[StorageMessage]:
        self.asked = max(self.asked, *(request.session_id for request in requests))
        self.partition.announce(self.asked)
        return Drain(self.partition, requests).run()

    def append(self, *sizes: int) -> StorageMessage:
        records = new_records(self.partition.log.next_transaction_id, sizes, 7)
        return AppendRecordsRequest(SESSION, 1, ZERO, records, False)


def busy() -> Situation:
    situation = Situation()
    situation.open()
    situation.asked = SESSION
    for request in (
        situation.append(*[100] * 50),
        SetLowWaterMarkRequest(SESSION, 2, ZERO, t(49), offline=False),
    ):
        _succeed(situation, request)
    for size in (40, 900, 900, 30):
        _succeed(situation, situation.append(size, 20))
    return situation


def _succeed(situation: Situation, request: StorageMessage) -> None:
    (answer,) = situation.ask(request)
    assert not isinstance(answer, FailureResponse), answer


def killed() -> Situation:
    situation = busy()
    situation.disk.release_locks()
    situation.node = None
    return situation


def unassigned() -> Situation:
    situation = busy()
    situation.partition.unassign(delete_files=False)
    return situation


def switched_off() -> Situation:
    situation = busy()
    situation.partition.set_access(readable=False, writable=False)
    return situation


MENDED: Final = new_records(0, [100] * 50, 7).slice(t(17), 1)
"""The first record of the second segment."""


def bitten() -> Situation:
    """A byte of a record has changed, and that was found."""
    situation = busy()
    path = f"{DIRECTORY}/0/{MENDED.first_transaction_id:019d}.seg"
    place = SEGMENT_HEADER_BYTES + len(MENDED.block) // 2
    situation.disk.damage(path, place, bytes([situation.disk.content(path)[place] ^ 1]))
    try:
        situation.partition.log.records.read(MENDED.first_transaction_id, count_max=1, bytes_max=1)
    except CorruptionError:
        return situation
    raise AssertionError("a changed byte was not found")


def _repair(situation: Situation) -> Sequence[StorageMessage]:
    return situation.ask(RepairRequest(SESSION, 1, ZERO, MENDED))


Act = Callable[[Situation], Sequence[StorageMessage] | None]


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that a node does; `act` returns the answers, or raises."""

    name: str
    start: Callable[[], Situation]
    act: Act
    session: SessionId = SESSION
    """The one that rests on success."""
    mends: bool = False
    """Whether something is damaged before."""


def _keep(last: int) -> TruncateRequest:
    return TruncateRequest(SESSION, 1, ZERO, t(last), False)


def _mark(session: SessionId, mark: int) -> SetLowWaterMarkRequest:
    return SetLowWaterMarkRequest(session, 1, ZERO, t(mark), offline=False)


def _close(situation: Situation) -> None:
    assert situation.node is not None
    node, situation.node = situation.node, None
    try:
        node.close()
    finally:
        situation.disk.release_locks()


DEEDS: Final = (
    Deed("start in a fresh directory", Situation, Situation.open, NO_SESSION),
    Deed("start after a kill", killed, Situation.open),
    Deed("append", busy, lambda s: s.ask(s.append(10, 300, 10))),
    Deed("appends of one drain, one rolls over", busy, lambda s: s.ask(s.append(10, 2000, 10))),
    Deed("append and mark", busy, lambda s: s.ask(s.append(10), _mark(SESSION, 58))),
    Deed("start of a session", busy, lambda s: s.ask(_mark(SessionId(4), 57)), SessionId(4)),
    Deed("truncate within a segment", busy, lambda s: s.ask(_keep(56))),
    Deed("truncate over segments", busy, lambda s: s.ask(_keep(50))),
    Deed("truncate below the local mark", busy, lambda s: s.ask(_keep(20))),
    Deed("read records", busy, lambda s: s.ask(RecordListRequest(SESSION, 1, ZERO, t(0), 99))),
    Deed("list", busy, lambda s: s.ask(RecordHeaderListRequest(SESSION, 1, ZERO, t(0), 99))),
    Deed("switch off", busy, lambda s: _switch(s, False)),
    Deed("switch on", switched_off, lambda s: _switch(s, True)),
    Deed("assign", unassigned, lambda s: _void(s.partition.assign())),
    Deed("give up", busy, lambda s: s.partition.unassign(delete_files=False)),
    Deed("give up with files", busy, lambda s: s.partition.unassign(delete_files=True)),
    Deed("scrub", busy, lambda s: _void(s.partition.scrub(t(0), 1 << 20))),
    Deed("repair", bitten, _repair, mends=True),
    Deed("close", busy, _close),
)  # fmt: skip


def _switch(scene: Situation, available: bool) -> None:
    scene.partition.set_access(readable=available, writable=available)


def _void(_: object) -> None:
    """A command answers nothing but that it was done."""


@dataclass(frozen=True, slots=True)
class Case:
    deed: Deed
    failure: Failure
    number: int
    """Which of the disk's operations of that kind failed."""

    def __str__(self) -> str:
        failure = self.failure
        return f"{self.deed.name}; {failure.column}, {failure.name}, number {self.number}"


@dataclass(frozen=True, slots=True)
class Verdict:
    case: Case
    outcome: str
    """What was seen: one of OUTCOMES."""
    breaches: tuple[str, ...]


DONE = "done"
REFUSED = "refused"
CLOSED = "closed"
STUCK = "stuck"
DAMAGED = "damaged"
SILENT = "silent"
ENDED = "ended"

OUTCOMES: Final = {
    DONE: "answered with success: the failure is of no consequence",
    REFUSED: "answered with a failure; everything goes on as before",
    CLOSED: "answered with a failure; the partition takes no writes until it is switched on again,"
    " and what is durable is read",
    STUCK: "the same, but only a new start of the node lets the partition write again",
    DAMAGED: "the node goes on; what it could not read counts as damaged until it is repaired or"
    " can be read by a scrub or the next start, and meanwhile the partition does not vote",
    SILENT: "the node goes on; a partition refuses all service until it is switched on again or, if"
    " that is refused too, the node is started anew",
    ENDED: "the node does not start, or has stopped as it was told",
}


def _try(case: Case) -> tuple[Situation, bool] | None:
    """Do the deed while the disk fails, and tell whether it says that it was done; None: nothing
    has failed."""
    situation = case.deed.start()
    met = False
    fault = case.failure.fault(case.number)

    def watched(operation: DiskOperation, path: str) -> None:
        nonlocal met
        try:
            fault(operation, path)
        except OSError:
            met = True
            raise

    situation.disk.fault = watched
    try:
        answers = case.deed.act(situation)
        is_done = not any(isinstance(answer, FailureResponse) for answer in answers or ())
    except (WaltzError, OSError):
        is_done = False
    situation.disk.fault = None
    return (situation, is_done) if met else None


def _outcome(situation: Situation, *, is_done: bool, mends: bool) -> str:
    """Judge by what the node says now; this changes it."""
    node = situation.node
    if node is None:
        return ENDED
    if any(partition.damage is not None for partition in node.partitions):
        return SILENT
    if any(partition.log.damage for partition in node.partitions) and not mends:
        return DAMAGED
    assigned = [partition for partition in node.partitions if partition.promises.info.is_assigned]
    writable = all(partition.writer.is_open for partition in assigned)
    if is_done and writable:
        return DONE
    try:
        for partition in assigned:
            partition.set_access(readable=True, writable=True)
        if mends:
            _succeed(situation, situation.append(10))
        else:
            go_on(node, situation.disk, 0)
    except (WaltzError, OSError, AssertionError):
        return STUCK
    return REFUSED if writable else CLOSED


def _see(situation: Situation) -> Found:
    """What partition 0 says, opened or assigned if it is not."""
    if situation.node is None:
        situation.open()
    info = situation.partition.promises.info
    if not info.is_assigned:
        situation.partition.assign()
    return Found(read_log(situation.partition), repr(info), situation.asked)


def _see_around(log: bytes, situation: Situation) -> Found:
    """The same, where damaged records count as read if all others are as in `log`."""
    if situation.node is None:
        situation.open()
    partition = situation.partition
    whole = batch_from_block(log, t(0))
    parts = []
    for number in range(partition.log.next_transaction_id):
        if any(first <= number < following for first, following in partition.log.damage):
            records = whole.slice(t(number), 1)
        else:
            records = partition.log.records.read(t(number), count_max=1, bytes_max=1)
        parts.append(bytes(records.block))
    return Found(b"".join(parts), repr(partition.promises.info), situation.asked)


def _scrub(situation: Situation) -> Situation:
    """Read everything again."""
    partition = situation.partition
    position = t(0)
    while position < partition.log.next_transaction_id:
        position = partition.scrub(position, 1000).next_transaction_id
    return situation


@cache
def _promise(deed: Deed, *, is_done: bool) -> Promise:
    """What may be found after the deed: all of it if it was done, else any part."""
    before, after = deed.start(), deed.start()
    deed.act(after)
    other = _see(after)
    one = other if deed.mends else _see(before)
    asked = max(before.asked, after.asked)
    if is_done:
        return Promise((other.log,), (other.info,), deed.session, asked)
    fence = min(before.asked, deed.session)
    return Promise((one.log, other.log), (one.info, other.info), fence, asked)


def judge(case: Case) -> Verdict | None:
    """Try one case and what may follow; None: it does not happen, for nothing failed."""
    tried = _try(case)
    if tried is None:
        return None
    situation, is_done = tried
    was_assigned = situation.node is not None and situation.partition.promises.info.is_assigned
    outcome = _outcome(situation, is_done=is_done, mends=case.deed.mends)
    promise = _promise(case.deed, is_done=is_done)
    breaches: list[str] = []

    def check(life: str, life_of: Callable[[Situation], Found]) -> None:
        repeated = _try(case)
        assert repeated is not None
        try:
            breach = promise.breach(life_of(repeated[0]))
        except Exception as error:  # whatever it is, it must not be
            breach = f"{type(error).__name__}: {error}"
        if breach is not None:
            breaches.append(f"{case}: {outcome}; {life}: {breach}")

    see_around = partial(_see_around, max(promise.logs, key=len))
    is_damaged = case.deed.mends and not is_done
    if is_damaged or outcome == DAMAGED:
        check("in the same process", see_around)
    elif was_assigned and outcome in (DONE, REFUSED, CLOSED, STUCK):
        check("in the same process", _see)
    if outcome == DAMAGED:
        check("after a scrub", _then(_scrub, see_around))
    elif outcome in (DONE, REFUSED, CLOSED) or (outcome == SILENT and _can_reopen(situation)):
        goes_on = see_around if is_damaged else partial(_go_on, see_around)
        check("with its writer reopened", _then(_reopen, goes_on))
    check("in a new process", _then(_restart, see_around if is_damaged else _look))
    for seed in range(POWER_CUTS):
        check("after a power cut", _then(_cut(seed), see_around if is_damaged else _look))
    return Verdict(case, outcome, tuple(breaches))


def _then(
    happen: Callable[[Situation], Situation], see: Callable[[Situation], Found]
) -> Callable[[Situation], Found]:
    return lambda situation: see(happen(situation))


def _can_reopen(situation: Situation) -> bool:
    try:
        _reopen(situation)
    except (WaltzError, OSError):
        return False
    return True


def _reopen(situation: Situation) -> Situation:
    assert situation.node is not None
    for partition in situation.node.partitions:
        if partition.promises.info.is_assigned and not partition.writer.is_open:
            partition.set_access(readable=True, writable=True)
    return _scrub(situation)


def _restart(situation: Situation) -> Situation:
    situation.disk.release_locks()
    situation.node = None
    return situation


def _cut(seed: int) -> Callable[[Situation], Situation]:
    def cut(situation: Situation) -> Situation:
        after = Situation(situation.disk.crash_clone(Random(seed)))
        after.asked = situation.asked
        return after

    return cut


def _go_on(see_around: Callable[[Situation], Found], situation: Situation) -> Found:
    assert situation.node is not None
    if situation.partition.log.damage:
        return see_around(situation)
    return go_on(situation.node, situation.disk, 0)[0]


def _look(situation: Situation) -> Found:
    return look(situation.disk, 0)[0]


def verdicts(deed: Deed, failure: Failure) -> list[Verdict]:
    """Those of every number at which something fails."""
    found: list[Verdict] = []
    for number in range(1, TRIALS_MAX):
        verdict = judge(Case(deed, failure, number))
        if verdict is None:
            return found
        found.append(verdict)
    raise AssertionError(f"{deed.name}: more than {TRIALS_MAX} operations of the disk")


# The page

COLUMNS: Final = tuple(dict.fromkeys(failure.column for failure in FAILURES))

TITLE: Final = """# What a node does when its disk fails

An operation of the node is an operation on files, and each of these can fail. The table tells what
the node does then. It is printed by `python -m tests.storage.failing_disk`, which tries every
operation of the node with every failure at every place where it can happen: the first write of the
operation, the second one, and so on; a write that leaves nothing or a part, a sync that fails once
and then seems to succeed, a read that fails once or for good. After each trial the disk is well
again, and it is checked that whatever was answered with success is still there, in the same
process, with the writer opened again, in a new process and after a power cut; that what was refused
is there, partly there or not there, but nothing else; and that work goes on. Where a cell has
several words, it depends on which of the operation's writes, syncs or reads fails.
"""


def row(deed: Deed, found: Sequence[Verdict]) -> str:
    """The line of the table for a deed."""
    cells = []
    for column in COLUMNS:
        seen = {each.outcome for each in found if each.case.failure.column == column}
        cells.append(", ".join(word for word in OUTCOMES if word in seen) or "-")
    return f"| {deed.name} | {' | '.join(cells)} |"


def page(rows: Sequence[str]) -> str:
    """The whole page; `rows` in the order of DEEDS."""
    words = [f"| {word} | {meaning} |" for word, meaning in OUTCOMES.items()]
    return "\n".join(
        [
            TITLE,
            f"| operation of the node | {' | '.join(COLUMNS)} |",
            "|---" * (1 + len(COLUMNS)) + "|",
            *rows,
            "",
            "| word | meaning |",
            "|---|---|",
            *words,
            "| - | the operation does no such thing |",
            "",
        ]
    )


def main() -> int:
    """Print the page; what does not hold goes to the standard error."""
    breaches: list[str] = []
    rows = []
    for deed in DEEDS:
        found = [verdict for failure in FAILURES for verdict in verdicts(deed, failure)]
        rows.append(row(deed, found))
        breaches += [breach for verdict in found for breach in verdict.breaches]
    print(page(rows), end="")
    print("\n".join(breaches), end="\n" if breaches else "", file=sys.stderr)
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())
