"""A server's store partition as a value: the product's session keeper and what it waits for.

`step` runs the product: it thaws the keeper, steps it with one event, performs the effects, and
freezes it again. The same server and the same event always give the same result, so `Servers`
numbers both and steps each pair once; that is what makes a million states cheap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from traceback import extract_tb
from typing import Final, NamedTuple, TypeAlias, TypeVar

from proofs.model.frozen import LATER, NOW, Frozen, freeze, thaw
from proofs.model.ledger import ViolationError
from proofs.model.replica import Token, changes, tokens_of
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.record import NewRecord
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.store.recovery import HighWaterMarkResolved
from waltz.store.requests import (
    ConnectReplica,
    DropReplica,
    MetadataRead,
    MetadataWriteFailed,
    MetadataWritten,
    ReadMetadata,
    ReplicaAnswer,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    ReplicaRequest,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    WriteMetadata,
)
from waltz.store.session_keeper import (
    AppendsSubmitted,
    KeeperEffect,
    KeeperEvent,
    LoseOwnership,
    ReplicasAssigned,
    SessionKeeper,
)
from waltz.types import NO_SESSION, NOTHING, Generation, ReplicaId, SessionId, TransactionId

REPLICA_IDS: Final = tuple(ReplicaId(f"{name}:1") for name in "abcde")
INDEXES: Final = {replica_id: index for index, replica_id in enumerate(REPLICA_IDS)}


class MetadataWrite(NamedTuple):
    metadata: Frozen
    version: int
    session_id: SessionId


# What a server says to the world beyond its requests


class Ghost(NamedTuple):
    """Requests of a connection that its server has given up; they may arrive, unanswered."""

    replica: int
    session_id: SessionId
    requests: tuple[ReplicaRequest, ...]


class MarkResolved(NamedTuple):
    session_id: SessionId
    mark: TransactionId


class SessionOpened(NamedTuple):
    session_id: SessionId
    mark: TransactionId
    holders: tuple[int, ...]


class CommittedTokens(NamedTuple):
    session_id: SessionId
    first: TransactionId
    tokens: tuple[Token, ...]


class FailedTokens(NamedTuple):
    tokens: tuple[Token, ...]


Note: TypeAlias = Ghost | MarkResolved | SessionOpened | CommittedTokens | FailedTokens


class ModelServer(NamedTuple):
    generation: Generation
    keeper: Frozen | None = None
    """None: not started, or gone."""
    is_gone: bool = False
    """Whether it can do nothing any more."""
    session_id: SessionId = NO_SESSION
    """Of its connections."""
    connecting: tuple[int, ...] = ()
    """Replicas that it waits for a connection to."""
    queues: tuple[tuple[ReplicaRequest, ...] | None, ...] = (None,) * len(REPLICA_IDS)
    """Requests on their way, by replica; None: not connected."""
    broken: tuple[int, ...] = ()
    """Replicas whose connection has ended, but the server was not told yet."""
    unheard: tuple[tuple[Arrive, ...], ...] = ((),) * len(REPLICA_IDS)
    """Requests carried out whose answers are on their way, by replica."""
    untold: ReadAnswer | WriteAnswer | None = None
    """What the coordinator has answered and the server does not know."""
    later: tuple[tuple[int, ReplicaRequest], ...] = ()
    """Reads that are tried again after a while, each with the replica to read from."""
    reads_metadata: bool = False
    write: MetadataWrite | None = None
    is_open: bool = False
    has_deadline: bool = False
    high_water_mark: TransactionId = NOTHING
    """The last commit of an open session."""
    submitted: tuple[Token, ...] = ()
    """Undecided appends, oldest first."""
    assigned_seen: tuple[ReplicaId, ...] | None = None

    @property
    def pure_head(self) -> int | None:
        """A replica whose next request changes nothing there."""
        for index, queue in enumerate(self.queues):
            if queue and not changes(queue[0]):
                return index
        return None


# What happens to a server


class Start(NamedTuple): ...


class Wake(NamedTuple): ...


class Connect(NamedTuple):
    replica: int


class Break(NamedTuple):
    """The connection ends; what was on its way is lost, and the server will learn it."""

    replica: int


class Lose(NamedTuple):
    """The server learns that a connection has ended."""

    replica: int


class Answer(NamedTuple):
    """To the oldest request on its way to `replica`, at once."""

    replica: int
    is_refusal: bool
    answer: ReplicaAnswer


class Arrive(NamedTuple):
    """The oldest request on its way to `replica` is carried out; the answer is on its way."""

    replica: int
    request: ReplicaRequest
    is_refusal: bool
    answer: ReplicaAnswer


class Hear(NamedTuple):
    """The oldest answer on its way from `replica` arrives."""

    replica: int


class Show(NamedTuple):
    assigned: tuple[ReplicaId, ...]


class ReadAnswer(NamedTuple):
    metadata: Frozen
    version: int
    assigned: tuple[ReplicaId, ...]


class WriteAnswer(NamedTuple):
    """None: the write failed, or its answer was lost."""

    version: int | None


class Decide(NamedTuple):
    """The coordinator has done what it was asked; the answer is on its way."""

    answer: ReadAnswer | WriteAnswer


class SubmitTokens(NamedTuple):
    tokens: tuple[Token, ...]


class ReadAgain(NamedTuple):
    """The oldest of the reads that wait is sent."""


Happening: TypeAlias = (
    Start
    | Wake
    | Connect
    | Break
    | Lose
    | Answer
    | Arrive
    | Hear
    | Decide
    | Show
    | ReadAnswer
    | WriteAnswer
    | SubmitTokens
    | ReadAgain
)


Part = TypeVar("Part")


def link(server: ModelServer, replica: int) -> ReplicaLink:
    return ReplicaLink(server.session_id, REPLICA_IDS[replica], 1)


def _with(parts: tuple[Part, ...], replica: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:replica], part, *parts[replica + 1 :])


def _quietly(server: ModelServer, happening: Happening) -> ModelServer | None:
    """Return the server after what its keeper is not told; None: it is told."""
    match happening:
        case Break(replica):
            return server._replace(
                queues=_with(server.queues, replica, ()),
                broken=tuple(sorted((*server.broken, replica))),
            )
        case Arrive(replica):
            queue = server.queues[replica]
            assert queue
            unheard = (*server.unheard[replica], happening)
            return server._replace(
                queues=_with(server.queues, replica, queue[1:]),
                unheard=_with(server.unheard, replica, unheard),
            )
        case Decide(answer):
            return server._replace(untold=answer)
        case ReadAgain():
            (replica, request), *later = server.later
            queue = server.queues[replica]
            if queue is not None and replica not in server.broken:
                server = server._replace(queues=_with(server.queues, replica, (*queue, request)))
            return server._replace(later=tuple(later))
        case _:
            return None


class _Office:
    """One step of one server's keeper."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.keeper: SessionKeeper = (
            SessionKeeper(server.generation) if server.keeper is None else thaw(server.keeper)
        )
        self.queues = list(server.queues)
        self.connecting = list(server.connecting)
        self.broken = list(server.broken)
        self.unheard = list(server.unheard)
        self.untold = server.untold
        self.later = list(server.later)
        self.submitted = list(server.submitted)
        self.session_id = server.session_id
        self.reads_metadata = server.reads_metadata
        self.write = server.write
        self.is_open = server.is_open
        self.assigned_seen = server.assigned_seen
        self.notes: list[Note] = []

    def step(self, happening: Happening) -> tuple[ModelServer, tuple[Note, ...]]:
        now = LATER if isinstance(happening, Wake) else NOW
        for effect in self.keeper.step(self.events(happening), now):
            self.perform(effect)
        self.keeper.check_invariants()
        mark = self.keeper.high_water_mark
        server = ModelServer(
            self.server.generation,
            freeze(self.keeper),
            False,
            self.session_id,
            tuple(sorted(self.connecting)),
            tuple(self.queues),
            tuple(sorted(self.broken)),
            tuple(self.unheard),
            self.untold,
            tuple(self.later),
            self.reads_metadata,
            self.write,
            self.is_open,
            self.keeper.deadline is not None,
            NOTHING if mark is None else mark,
            tuple(self.submitted),
            self.assigned_seen,
        )
        return server, tuple(self.notes)

    def events(self, happening: Happening) -> Sequence[KeeperEvent]:
        """Take `happening` out of what is waited for, and return it as the keeper is told it."""
        match happening:
            case Start() | Wake():
                return ()
            case Connect(replica):
                self.connecting.remove(replica)
                self.queues[replica] = ()
                return (ReplicaConnected(link(self.server, replica)),)
            case Lose(replica):
                self.forget(replica)
                return (ReplicaLost(link(self.server, replica), "cut"),)
            case Answer(replica, is_refusal, answer):
                return self.answered(replica, self.sent(replica), is_refusal, answer)
            case Hear(replica):
                first, *rest = self.unheard[replica]
                self.unheard[replica] = tuple(rest)
                return self.answered(*first)
            case Show(assigned):
                self.assigned_seen = assigned
                return (ReplicasAssigned(assigned),)
            case ReadAnswer(metadata, version, assigned):
                self.reads_metadata, self.untold = False, None
                return (MetadataRead(thaw(metadata), version, assigned),)
            case WriteAnswer(None):
                self.write = self.untold = None
                return (MetadataWriteFailed("conflict, or lost"),)
            case WriteAnswer(version):
                self.write = self.untold = None
                assert version is not None
                return (MetadataWritten(version),)
            case SubmitTokens(tokens):
                self.submitted += tokens
                records = [NewRecord(token.to_bytes(16, "big"), 0, b"", 0) for token in tokens]
                return (AppendsSubmitted(tuple(records)),)
            case _:
                raise AssertionError(happening)

    def sent(self, replica: int) -> ReplicaRequest:
        """Take the oldest request off the way to `replica`."""
        queue = self.queues[replica]
        assert queue
        self.queues[replica] = queue[1:]
        return queue[0]

    def answered(
        self, replica: int, request: ReplicaRequest, is_refusal: bool, answer: ReplicaAnswer
    ) -> tuple[KeeperEvent]:
        over = link(self.server, replica)
        if is_refusal:
            return (RequestFailed(over, request, "refused"),)
        return (RequestAnswered(over, request, answer),)

    def forget(self, replica: int) -> None:
        self.queues[replica] = None
        self.unheard[replica] = ()
        if replica in self.broken:
            self.broken.remove(replica)
        self.later = [read for read in self.later if read[0] != replica]

    def perform(self, effect: KeeperEffect) -> None:
        match effect:
            case ConnectReplica(opened):
                self.session_id = opened.session_id
                self.connecting.append(INDEXES[opened.replica_id])
            case DropReplica(dropped):
                self.drop(INDEXES[dropped.replica_id], dropped.session_id)
            case SendRequest(over, request, delay_seconds):
                self.send(INDEXES[over.replica_id], freeze_request(request), delay_seconds)
            case ReadMetadata():
                self.reads_metadata = True
            case WriteMetadata(metadata, version):
                self.write = MetadataWrite(freeze(metadata), version, metadata.session_id)
            case HighWaterMarkResolved(mark):
                self.notes.append(MarkResolved(self.session_id, mark))
            case StoreOpened(session_id, mark):
                assert not self.is_open
                self.is_open = True
                holders = tuple(INDEXES[each.replica_id] for each in self.keeper.holders(mark))
                if self.keeper.high_water_mark is not None:  # else it has ended in the same step
                    self.notes.append(SessionOpened(session_id, mark, holders))
            case StoreClosed():
                assert self.is_open
                self.is_open = False
            case Committed(batch):
                tokens = tokens_of(batch)
                assert tuple(self.submitted[: len(tokens)]) == tokens, "outcome out of order"
                del self.submitted[: len(tokens)]
                first = batch.first_transaction_id
                self.notes.append(CommittedTokens(self.session_id, first, tokens))
            case AppendsFailed(count):
                assert count <= len(self.submitted)
                self.notes.append(FailedTokens(tuple(self.submitted[:count])))
                del self.submitted[:count]
            case LoseOwnership():
                assert not self.is_open
                self.submitted = []

    def send(self, replica: int, request: ReplicaRequest, delay_seconds: float) -> None:
        queue = self.queues[replica]
        if queue is None or replica in self.broken:
            return
        if delay_seconds:
            self.later.append((replica, request))
        else:
            self.queues[replica] = (*queue, request)

    def drop(self, replica: int, session_id: SessionId) -> None:
        if replica in self.connecting:
            self.connecting.remove(replica)
        note_ghost(self.notes, replica, session_id, self.queues[replica])
        self.forget(replica)


def freeze_request(request: ReplicaRequest) -> ReplicaRequest:
    """Return `request` as what it is equal to for ever: without the number of an attempt."""
    frozen: ReplicaRequest = thaw(freeze(request))
    return frozen


def note_ghost(
    notes: list[Note],
    replica: int,
    session_id: SessionId,
    requests: tuple[ReplicaRequest, ...] | None,
) -> None:
    """What changes nothing is lost with the connection: no answer, no effect."""
    left = tuple(request for request in requests or () if changes(request))
    if left:
        notes.append(Ghost(replica, session_id, left))


class Servers:
    """All servers met so far, by number."""

    def __init__(self) -> None:
        self._known: list[ModelServer] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, type, Happening], tuple[int, tuple[Note, ...]]] = {}

    def __getitem__(self, number: int) -> ModelServer:
        return self._known[number]

    @property
    def step_count(self) -> int:
        return len(self._steps)

    def __len__(self) -> int:
        return len(self._known)

    def number(self, server: ModelServer) -> int:
        number = self._numbers.get(server)
        if number is None:
            number = self._numbers[server] = len(self._known)
            self._known.append(server)
        return number

    def step(self, number: int, happening: Happening) -> tuple[int, tuple[Note, ...]]:
        """Return the server that comes of it, and what it has said. Raises ViolationError: an
        assertion of the product failed."""
        # Tuples of two kinds may be equal.
        key = (number, type(happening), happening)
        known = self._steps.get(key)
        if known is not None:
            return known
        before = self._known[number]
        notes: tuple[Note, ...] = ()
        try:
            server = _quietly(before, happening)
            if server is None:
                server, notes = _Office(before).step(happening)
        except AssertionError as error:
            last = extract_tb(error.__traceback__)[-1]
            raise ViolationError(
                "assertion", f"{last.name}: {last.line} (after {happening})"
            ) from error
        result = (self.number(server), notes)
        self._steps[key] = result
        return result


def thaw_metadata(metadata: Frozen) -> PartitionMetadata:
    thawed: PartitionMetadata = thaw(metadata)
    return thawed
