"""Asks a running cluster what pages inquire.

Each question is public: every tool may ask it, and none changes the log. No client is opened: only
the console's reader is, which mounts partitions to read them, as every reader does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from waltz.arrays import np
from waltz.cluster.paths import ClusterPaths
from waltz.console.inquiries import (
    LOCKS_SHOWN_MAX,
    REQUESTS_LOOKED_AT_MAX,
    SESSIONS_SHOWN_MAX,
    SINKS_SHOWN_MAX,
    DurationsOf,
    DurationsTold,
    HottestLocksOf,
    Inquiry,
    LifeOf,
    LocksOf,
    LocksTold,
    PipelinesOf,
    PipelinesTold,
    PlaceOf,
    PlaceTold,
    RequestOf,
    RequestTold,
    SessionsOf,
    SessionsTold,
    SessionTold,
    SinksOf,
    SinksTold,
    SinkTold,
    stages_between,
)
from waltz.console.log_window_shell import ReaderWindow
from waltz.console.transaction_life import Life, life_of
from waltz.errors import CorruptionError, NoNodeError, UnavailableError
from waltz.host import Host
from waltz.operators.explanation_shell import explain_transaction
from waltz.operators.hot_locks_shell import HottestLocks, ask_hot_locks, ask_hottest_locks
from waltz.operators.journals_shell import cluster_journals
from waltz.operators.questions_shell import ask_durations, ask_refusals
from waltz.record import request_id_bytes
from waltz.types import Address, PartitionId, RequestId, TransactionId
from waltz.wire.report_protocol import StageDurations

LATELY_SECONDS: Final = 60.0
"""Seconds over which recent durations are shown, as far as this console has looked so long."""

HOTTEST_SECONDS_MAX: Final = 10.0
"""Seconds that one server may take for the hot locks of all its partitions; those that it has not
told by then are shown as unknown."""

CHUNK_TRANSACTIONS: Final = 10_000
"""Transactions that are looked through at a time for a request ID, the newest first."""

NOTE_PREFIX: Final = "spark-"
TASKS_SUFFIX: Final = "-tasks"

NOTES_READ_MAX: Final = 500
"""Notes of sinks that are read for one answer."""


class ClusterInquirer:
    """Asks the processes of a running cluster. `address_of` returns the server of a partition as
    the poller knows it."""

    def __init__(
        self,
        host: Host,
        root: str,
        window: ReaderWindow,
        address_of: Callable[[PartitionId], Address | None],
        ask_pipelines: Callable[[], Any],
    ) -> None:
        self._host = host
        self._root = root
        self._window = window
        self._address_of = address_of
        self._ask_pipelines = ask_pipelines
        self._durations: dict[PartitionId, deque[tuple[float, tuple[StageDurations, ...]]]] = {}
        self._notes = NotesWatched()

    async def ask(self, question: Inquiry) -> Any:
        """Return the answer. Raises WaltzError: nobody can say."""
        match question:
            case LocksOf(number):
                return await self._locks(number)
            case HottestLocksOf(partition_count):
                return await self._hottest_locks(partition_count)
            case DurationsOf(number):
                return await self._durations_of(number)
            case SessionsOf(number):
                return await self._sessions(number)
            case LifeOf(number, transaction_id):
                return await self._life(number, transaction_id)
            case PlaceOf(number, milliseconds):
                return await self._place(number, milliseconds)
            case RequestOf(request_id):
                return await self._request(request_id)
            case SinksOf():
                return await self._sinks()
            case PipelinesOf():
                return PipelinesTold(tuple(await self._ask_pipelines()))

    def _server(self, partition_id: PartitionId) -> Address:
        address = self._address_of(partition_id)
        if address is None:
            raise UnavailableError(f"partition {partition_id} has no server now")
        return address

    async def _locks(self, partition_id: PartitionId) -> LocksTold:
        address = self._server(partition_id)
        hot = await ask_hot_locks(self._host, address, partition_id, LOCKS_SHOWN_MAX)
        assert hot.kept is not None
        if not hot.locks:
            return LocksTold(hot.kept)
        refused = await ask_refusals(self._host, address, partition_id, LOCKS_SHOWN_MAX)
        return LocksTold(hot.kept, hot.locks, refused.refusals)

    async def _hottest_locks(self, partition_count: int) -> HottestLocks:
        numbers = map(PartitionId, range(partition_count))
        servers = {number: self._address_of(number) for number in numbers}
        return await ask_hottest_locks(
            self._host, servers, LOCKS_SHOWN_MAX, seconds=HOTTEST_SECONDS_MAX
        )

    async def _durations_of(self, partition_id: PartitionId) -> DurationsTold:
        stages = await ask_durations(self._host, self._server(partition_id), partition_id)
        now = self._host.clock.now()
        past = self._durations.setdefault(partition_id, deque())
        while past and now - past[0][0] > LATELY_SECONDS:
            past.popleft()
        found = DurationsTold(stages)
        if past:
            at, before = past[0]
            lately = stages_between(before, stages)
            if lately is None:
                past.clear()
            else:
                found = DurationsTold(stages, lately, now - at)
        past.append((now, stages))
        return found

    async def _sessions(self, partition_id: PartitionId) -> SessionsTold:
        async with self._window.using() as reader:
            mark = await reader.high_water_mark(partition_id)
        if mark < 0:
            raise UnavailableError("the log is empty, and sessions are noted next to its records")
        begun: dict[int, list[tuple[int, int]]] = {}
        silent: dict[str, str] = {}
        async with cluster_journals(self._host, self._root) as journals:
            replicas = await journals.replicas(partition_id)
            for replica in replicas:
                answer = await journals.ask(replica, mark, mark)
                if answer.facts is None:
                    silent[str(replica.replica_id)] = answer.reason
                    continue
                noted = {each.session_id: each for each in answer.facts.begun}
                for each in noted.values():
                    found = begun.setdefault(each.session_id, [])
                    found.append((each.milliseconds, each.low_water_mark))
        return SessionsTold(
            tuple(
                SessionTold(session_id, *min(noted), len(noted))
                for session_id, noted in sorted(begun.items(), reverse=True)[:SESSIONS_SHOWN_MAX]
            ),
            len(replicas),
            silent,
        )

    async def _life(self, partition_id: PartitionId, transaction_id: TransactionId) -> Life:
        async with self._window.using() as reader:
            found = await explain_transaction(
                self._host, self._root, reader, partition_id, transaction_id
            )
        return life_of(found)

    async def _place(self, partition_id: PartitionId, milliseconds: int) -> PlaceTold:
        async with self._window.using() as reader:
            mark = await reader.high_water_mark(partition_id)
        end = TransactionId(mark + 1)
        async with cluster_journals(self._host, self._root) as journals:
            found = await journals.transaction_at(partition_id, milliseconds, end)
        if found.first == 0 and found.later is None and mark >= 0:
            raise UnavailableError(
                "no majority of its storage nodes tells which transactions are of that time"
            )
        return PlaceTold(found.first, found.later)

    async def _request(self, request_id: RequestId) -> RequestTold:
        """Look for a request ID from the end of the log on, by headers alone."""
        partition_id = request_id.partition_id
        wanted = np.frombuffer(request_id_bytes(request_id), np.uint8)
        async with self._window.using() as reader:
            last = await reader.high_water_mark(partition_id)
            first = end = last + 1
            while first > max(0, last + 1 - REQUESTS_LOOKED_AT_MAX):
                end, first = first, max(0, first - CHUNK_TRANSACTIONS)
                async for run in reader.read(
                    partition_id,
                    first,
                    end,
                    wants_data=lambda headers: np.zeros(len(headers), np.bool_),
                ):
                    rows = np.frombuffer(run.request_ids, np.uint8).reshape(-1, len(wanted))
                    places = np.flatnonzero((rows == wanted).all(axis=1))
                    if len(places):
                        found = run.first_transaction_id + int(places[0])
                        return RequestTold(found, first, last, None)
        refusals = None
        if (address := self._address_of(partition_id)) is not None:
            try:
                report = await ask_refusals(
                    self._host, address, partition_id, LOCKS_SHOWN_MAX, loser=request_id
                )
                refusals = len(report.refusals)
            except UnavailableError:
                pass  # then it is not known
        return RequestTold(None, first, last, refusals)

    async def _sinks(self) -> SinksTold:
        coordinator, paths = self._host.coordinator, ClusterPaths(self._root)
        try:
            names = await coordinator.children(paths.notes)
        except NoNodeError:
            return SinksTold(())
        wanted, unread = _wanted_notes(names)
        notes: dict[str, tuple[bytes, int]] = {}
        for name in wanted:
            try:
                node = await coordinator.read(paths.note(name))
            except NoNodeError:
                continue  # removed just now
            notes[name] = node.data or b"", node.version
        found = self._notes.sinks(notes, self._host.clock.now())
        left_out = max(0, len(found) - SINKS_SHOWN_MAX)
        return SinksTold(tuple(found[:SINKS_SHOWN_MAX]), left_out + unread)


def _sink_of(name: str) -> str:
    """Return the quoted ID of the sink that has left a note of this name."""
    return name[len(NOTE_PREFIX) :].rpartition("-")[0]


def _wanted_notes(names: Sequence[str]) -> tuple[list[str], int]:
    """Return the notes of sinks to read, and how many sinks are left out: a sink is read as a whole
    or not at all, for some of its tasks do not tell how far it is."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(NOTE_PREFIX):
            groups.setdefault(_sink_of(name), []).append(name)
    wanted: list[str] = []
    left_out = 0
    for notes in groups.values():
        if len(wanted) + len(notes) > NOTES_READ_MAX:
            left_out += 1
        else:
            wanted += notes
    return wanted, left_out


class NotesWatched:
    """The notes of sinks with the times at which they were seen to change: the coordinator keeps no
    time that a client is told."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, float | None]] = {}
        """The version of each sink's notes together, since when the sink is watched, and when the
        version was seen to change."""

    def sinks(self, notes: Mapping[str, tuple[bytes, int]], now: float) -> list[SinkTold]:
        """Return the sinks of these notes, each a name with its data and version."""
        groups: dict[str, list[str]] = {}
        for name in notes:
            groups.setdefault(_sink_of(name), []).append(name)
        self._seen = {each: seen for each, seen in self._seen.items() if each in groups}
        return [self._sink(each, groups[each], notes, now) for each in sorted(groups)]

    def _sink(
        self,
        quoted: str,
        names: Sequence[str],
        notes: Mapping[str, tuple[bytes, int]],
        now: float,
    ) -> SinkTold:
        version = sum(notes[name][1] + 1 for name in names)
        before, since, changed_at = self._seen.get(quoted, (version, now, None))
        if before != version:
            changed_at = now
        self._seen[quoted] = version, since, changed_at
        changed = None if changed_at is None else now - changed_at
        write_id = unquote(quoted, errors="replace")
        return _sink_told(write_id, names, notes, changed, now - since)


def _sink_told(
    write_id: str,
    names: Sequence[str],
    notes: Mapping[str, tuple[bytes, int]],
    changed: float | None,
    watched: float,
) -> SinkTold:
    """Return a sink by its tasks' notes; those of earlier batches are over."""
    from waltz.spark.sink_progress import TaskProgress

    try:
        tasks = [
            TaskProgress.decode(notes[name][0]) for name in names if not name.endswith(TASKS_SUFFIX)
        ]
    except CorruptionError as error:
        return SinkTold(write_id, -1, 0, {}, None, changed, watched, str(error))
    last = max((each.batch for each in tasks), default=-1)
    current = [each for each in tasks if each.batch == last]
    marks: dict[int, int] = {}
    for task in current:
        for number, mark in task.marks.items():
            marks[number] = min(mark, marks.get(number, mark))
    refusal = next((each.refusal[1] for each in current if each.refusal is not None), None)
    return SinkTold(write_id, last, len(current), marks, refusal, changed, watched)
