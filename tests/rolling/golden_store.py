"""The store of `golden_server`: sessions on a partition's replicas, quorums, reads and writes.

A session begins with a recovery and ends with the first replica that fails a write or a read; the
next call opens the next one. Not played: the original's routing by latency (replicas are read in
turns), its caches, and the change of the replicas while a server runs.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tests.rolling.golden_link import (
    RefusedError,
    StorageConnection,
    Storages,
    joined_records,
    split_headers,
    split_records,
)
from tests.rolling.golden_recovery import COPIED_MAX, AbortedError, Recovery
from tests.rolling.golden_tree import FencedError, GenerationError, Metadata, Tree

BATCH_MAX: Final = 100
"""Records that are written to the replicas at once; twice as many wait behind them."""

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 20.0
CHECKPOINT: Final = 250_000
"""Transactions of a session, after which the next one begins."""

CONNECTING, RECOVERING, ACTIVE, CLOSED = "connecting", "recovering", "active", "closed"

Say = Callable[[str], None]
T = TypeVar("T")


class SessionClosedError(Exception):
    """The session is over; the next one is to be tried."""


class PartitionClosedError(Exception):
    """The partition is no longer this server's."""


class NotFoundError(Exception):
    """There is no such transaction yet."""


@dataclass(frozen=True)
class Request:
    """A transaction that is to be written; `resolve` is told its ID, or None: it is not written."""

    request_id: bytes
    generation: int
    header: bytes
    body: bytes
    """Length, data and checksum, as the client has sent them."""
    resolve: Callable[[int | None], None]

    def on_wire(self, number: int) -> bytes:
        return struct.pack(">q", number) + self.request_id + self.header + self.body


class Batch:
    """Requests on their way to all replicas, and the votes on them, under the session's lock."""

    def __init__(self, first: int, requests: list[Request], voters: int, quorum: int) -> None:
        self.first = first
        self.requests = requests
        self.records = [each.on_wire(first + place) for place, each in enumerate(requests)]
        self._voters = voters
        self._quorum = quorum
        self._votes = 0
        self.abstentions = 0

    @property
    def outcome(self) -> bool | None:
        """Whether a majority holds it; None: undecided."""
        if self._votes >= self._quorum:
            return True
        return False if self.abstentions > self._voters - self._quorum else None

    def vote(self) -> None:
        self._votes += 1

    def abstain(self) -> None:
        if self.outcome is None:
            self.abstentions += 1


class Replica:
    """One replica in one session, in a thread of its own."""

    def __init__(self, session: StoreSession, place: str) -> None:
        self.place = place
        self.state = CONNECTING
        self.next_id = -1
        self.reads = 0
        self.last_session = self.low_water_mark = -1
        """The session and the mark that the storage node has persisted."""
        self._session = session
        self._changed = session.changed
        self._held: Batch | None = None
        self._connection: StorageConnection | None = None
        name = f"partition {session.partition} at {place}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, words: str) -> None:
        self._session.say(f"{self.place}: {words}")

    def deliver(self, batch: Batch) -> None:
        """Take a batch in the place of an older one, with the session's lock held."""
        if self._held is not None:
            self._held.abstain()
        if self.state == CLOSED:
            batch.abstain()
        else:
            self._held = batch

    # Requests, which raise RefusedError or OSError

    def call(self, name: str, rest: bytes) -> bytes:
        assert self._connection is not None
        session = self._session
        return self._connection.call(name, session.number, session.partition, rest)

    def truncate(self, last: int) -> int:
        """Return the last transaction ID that is left."""
        (left,) = struct.unpack(">q", self.call("Truncate", struct.pack(">q?", last, False)))
        return int(left)

    def records(self, first: int, count: int) -> list[bytes]:
        return split_records(self.call("RecListReq", struct.pack(">qi", first, count)))

    def append(self, records: list[bytes]) -> None:
        self.call("Append", joined_records(records))

    # The thread

    def _run(self) -> None:
        session = self._session
        try:
            self._connect()
            next_id = session.recovery.recover(self)
            with self._changed:
                self.next_id, self.state = next_id, ACTIVE
                self._changed.notify_all()
            self._follow()
        except (SessionClosedError, AbortedError):
            pass
        except (RefusedError, FencedError, OSError) as error:
            self.say(f"closed: {error}")
        finally:
            with self._changed:
                self.state = CLOSED
                if self._held is not None:
                    self._held.abstain()
                if not session.is_open:
                    session.recovery.abort()
                self._changed.notify_all()

    def _connect(self) -> None:
        """Announce the session to the storage node, however long it is away."""
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                self._connection = self._session.storages.connection(self.place)
                answer = self.call("LastSessionInfoReq", b"\0")
            except (RefusedError, OSError) as error:
                if pause == RETRY_SECONDS_MIN:
                    self.say(f"not connected: {error}")
                self._session.rest(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            else:
                break
        self.last_session, self.low_water_mark, _ = struct.unpack(">qqq", answer)
        with self._changed:
            self.state = RECOVERING

    def _follow(self) -> None:
        while True:
            with self._changed:
                while self._held is None or self._held.first < self.next_id:
                    self._session.check()
                    self._changed.wait()
                self._session.check()
                batch = self._held
            if self.next_id < batch.first:
                count = min(COPIED_MAX, batch.first - self.next_id)
                records = self._session.records(self.next_id, count)
                self.append(records)
                self._advance(len(records))
                continue
            self.append(batch.records)
            self._advance(len(batch.records), batch)

    def _advance(self, count: int, batch: Batch | None = None) -> None:
        with self._changed:
            self.next_id += count
            if batch is not None:
                batch.vote()
                if self._held is batch:
                    self._held = None
            self._changed.notify_all()


class StoreSession:
    """One session of a partition: its replicas, the batch under way, and what waits behind it."""

    def __init__(self, store: StorePartition, metadata: Metadata) -> None:
        self.partition = store.number
        self.number = metadata.session
        self.generation = metadata.generation
        self.tree = store.tree
        self.storages = store.storages
        self.places: Sequence[str] = store.places
        self.quorum = len(self.places) // 2 + 1
        self.changed = threading.Condition()
        self.is_closed = False
        self.is_open = False
        self.next_id = 0
        self._low_water_mark = -1
        self._note_mark = store.note_mark
        self._say = store.say
        self._queue: deque[Request] = deque()
        self._batch: Batch | None = None
        self.recovery = Recovery(self, metadata.states)
        self._replicas = {place: Replica(self, place) for place in self.places}
        self._writer = threading.Thread(target=self._write, daemon=True)

    @property
    def is_full(self) -> bool:
        """A checkpoint is due."""
        return self.next_id - 1 - self._low_water_mark >= CHECKPOINT

    def say(self, words: str) -> None:
        self._say(f"session {self.number}: {words}")

    def replica(self, place: str) -> Replica:
        return self._replicas[place]

    def open(self) -> None:
        """Return once a majority has recovered. Raises AbortedError."""
        for each in self._replicas.values():
            each.start()
        with self.changed:
            while not self.is_open:
                if self.is_closed or self.recovery.is_aborted:
                    raise AbortedError("the recovery has failed")
                self.changed.wait()
        self._note_mark(self.next_id - 1)
        self._writer.start()

    def note_open(self, mark: int) -> None:
        """Note that the metadata has the session's replicas: the session is open at `mark`. The
        caller holds the session's lock."""
        if not self.is_open:
            self.is_open = True
            self._low_water_mark, self.next_id = mark, mark + 1
            self.say(f"open at {mark}")
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def check(self) -> None:
        """Raises SessionClosedError."""
        if self.is_closed:
            raise SessionClosedError

    def rest(self, seconds: float) -> None:
        """Wait. Raises SessionClosedError: the session was closed meanwhile."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closed, seconds)
            self.check()

    def leftover(self) -> tuple[int, list[Request]]:
        """Return the ID that the first pending request would have, and all of them, of a closed
        session."""
        if self._writer.is_alive():
            self._writer.join()
        batch = [] if self._batch is None else self._batch.requests
        return self.next_id, [*batch, *self._queue]

    # Writing; all raise SessionClosedError

    def append(self, request: Request) -> None:
        with self.changed:
            while len(self._queue) > 2 * BATCH_MAX:
                self.check()
                self.changed.wait()
            self.check()
            self._queue.append(request)
            self.changed.notify_all()

    def flush(self) -> int:
        """Return the high-water mark once no request is pending."""
        with self.changed:
            while self._queue or self._batch is not None:
                self.check()
                self.changed.wait()
            self.check()
            return self.next_id - 1

    def _write(self) -> None:
        """Write batch after batch until the session is closed, by a failure at the latest."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.is_closed or self._queue)
                if self.is_closed:
                    return
                batch = self._batch = self._next_batch()
                while batch.outcome is None and not self.is_closed:
                    self.changed.wait()
                if not batch.outcome:
                    self.say(f"transactions from {batch.first} on are undecided")
                    self.close()
                    return
                self.next_id += len(batch.requests)
                abstentions = batch.abstentions
            for place, request in enumerate(batch.requests):
                request.resolve(batch.first + place)
            self._note_mark(self.next_id - 1)
            with self.changed:
                self._batch = None
                self.changed.notify_all()
            if abstentions:
                self.say(f"{abstentions} replicas missed transaction {batch.first}")
                self.close()

    def _next_batch(self) -> Batch:
        """Give what waits to all replicas, with the lock held."""
        count = min(BATCH_MAX, len(self._queue))
        requests = [self._queue.popleft() for _ in range(count)]
        replicas = self._replicas.values()
        voters = sum(each.state != CONNECTING for each in replicas)
        batch = Batch(self.next_id, requests, voters, self.quorum)
        for each in replicas:
            each.deliver(batch)
        self.changed.notify_all()
        return batch

    # Reading; all raise SessionClosedError

    def records(self, first: int, count: int) -> list[bytes]:
        """Return at least one record. Raises NotFoundError."""
        rest = struct.pack(">qi", first, self._visible(first, count))
        return split_records(self._read("RecListReq", first, rest))

    def headers(self, first: int, count: int) -> list[tuple[int, bytes, bytes]]:
        rest = struct.pack(">qi", first, self._visible(first, count))
        return split_headers(self._read("HdrListReq", first, rest))

    def _visible(self, first: int, count: int) -> int:
        with self.changed:
            if not 0 <= first < self.next_id:
                raise NotFoundError(f"transaction {first} of partition {self.partition}")
            return min(count, self.next_id - first)

    def _read(self, name: str, first: int, rest: bytes) -> bytes:
        replica = self._route(first)
        try:
            return replica.call(name, rest)
        except (RefusedError, OSError) as error:
            replica.say(f"a read failed: {error}")
            self.close()
            raise SessionClosedError from error

    def _route(self, wanted: int) -> Replica:
        """Return a replica that holds the transaction, each in its turn."""
        with self.changed:
            while True:
                self.check()
                able = [
                    each
                    for each in self._replicas.values()
                    if each.state == ACTIVE and each.next_id > wanted
                ]
                if able:
                    chosen = min(able, key=lambda each: each.reads)
                    chosen.reads += 1
                    return chosen
                if all(each.state == CLOSED for each in self._replicas.values()):
                    self.close()
                    raise SessionClosedError
                self.changed.wait()


class StorePartition:
    """A partition's sessions, one after the other. All calls are repeated until they succeed, or
    raise PartitionClosedError or GenerationError."""

    def __init__(
        self, tree: Tree, storages: Storages, number: int, generation: int, say: Say
    ) -> None:
        self.tree = tree
        self.storages = storages
        self.number = number
        self.places = tree.replicas.get(number, [])
        self.changed = threading.Condition()
        self.mark: int | None = None
        """The high-water mark; None: no session has been open yet."""
        self.generation = generation
        self.is_healthy = True
        self.is_closed = False
        self._say = say
        self._creating = threading.Lock()
        self._session: StoreSession | None = None
        """The newest one, which may be about to open."""
        self._pending: tuple[int, list[Request]] = 0, []
        """Requests of earlier sessions whose fate the next one decides."""

    def say(self, words: str) -> None:
        self._say(f"partition {self.number}, {words}")

    def raise_generation(self, generation: int) -> None:
        with self.changed:
            self.generation = max(self.generation, generation)
            self.changed.notify_all()

    def note_mark(self, mark: int) -> None:
        with self.changed:
            self.mark = mark
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            session = self._session
            self.changed.notify_all()
        if session is not None:
            session.close()

    def append(self, request: Request) -> None:
        """Hand a transaction over; its generation must be the partition's."""

        def hand_over(session: StoreSession) -> None:
            if request.generation != self.generation:
                raise GenerationError(f"an append of generation {request.generation}")
            if session.is_full:
                session.flush()
                session.close()
            session.append(request)

        self._on_session(hand_over)

    def flush(self) -> int:
        return self._on_session(StoreSession.flush)

    def headers(self, first: int, count: int) -> list[tuple[int, bytes, bytes]]:
        """Return the headers from `first` on, at least one. Raises NotFoundError."""
        return self._on_session(lambda session: session.headers(first, count))

    def record(self, number: int) -> bytes:
        """Raises NotFoundError."""
        return self._on_session(lambda session: session.records(number, 1))[0]

    def _on_session(self, call: Callable[[StoreSession], T]) -> T:
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                return call(self._usable())
            except (SessionClosedError, AbortedError):
                with self.changed:
                    self.changed.wait_for(lambda: self.is_closed, pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def _usable(self) -> StoreSession:
        with self._creating:
            now = self._session
            if now is None or now.is_closed or now.generation != self.generation:
                now = self._create()
            return now

    def _create(self) -> StoreSession:
        before, self._session = self._session, None
        if before is not None:
            before.close()
            first, requests = before.leftover()
            if requests:
                assert not self._pending[1], "a session takes requests once it is open"
                self._pending = first, requests
        try:
            metadata = self.tree.begin_session(self.number, self.generation)
            with self.changed:
                if self.is_closed:
                    raise PartitionClosedError
                session = self._session = StoreSession(self, metadata)
            session.open()
        except (GenerationError, AbortedError):
            self.is_healthy = False
            if self._session is not None:
                self._session.close()
            raise
        (first, requests), self._pending = self._pending, (0, [])
        for place, request in enumerate(requests):
            number = first + place
            request.resolve(number if number < session.next_id else None)
        self.is_healthy = True
        return session
