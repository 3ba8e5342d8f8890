"""A state taken apart, in which one thing happens: what each action does.

What follows from it at once happens with it, unless the scope says otherwise; `world.py` says why
that leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from proofs.model import ledger as ledgers
from proofs.model.frozen import Frozen
from proofs.model.ledger import ViolationError
from proofs.model.replica import (
    ModelReplica,
    Token,
    backed_up,
    blanked,
    crashed,
    rolled_back,
    torn,
)
from proofs.model.state import Action, Budget, State
from proofs.model.store_server import (
    REPLICA_IDS,
    Answer,
    Arrive,
    Break,
    CommittedTokens,
    Connect,
    Decide,
    FailedTokens,
    Ghost,
    Happening,
    Hear,
    Lose,
    MarkResolved,
    ModelServer,
    Note,
    ReadAgain,
    ReadAnswer,
    SessionOpened,
    Show,
    Start,
    SubmitTokens,
    Wake,
    WriteAnswer,
    note_ghost,
    thaw_metadata,
)
from waltz.cluster.partition_metadata import last_session
from waltz.store.requests import AppendToReplica, AskMaxTransactionId
from waltz.types import SessionId, TransactionId

if TYPE_CHECKING:
    from proofs.model.world import World


class ModelScene:
    """A state taken apart, in which one thing happens."""

    __slots__ = ("budget", "coordinator", "ghosts", "ledger", "replicas", "servers", "world")

    def __init__(self, world: World, state: State) -> None:
        count, replicas = world.scope.servers, world.replica_count
        self.world = world
        self.servers = list(state[:count])
        self.replicas = list(state[count : count + replicas])
        self.coordinator, ghosts, self.ledger, budget = state[count + replicas :]
        self.ghosts: tuple[Ghost, ...] = world.ghosts[ghosts]
        self.budget: Budget = world.budgets[budget]

    def state(self) -> State:
        world = self.world
        self.tidy()
        world.check(self)
        return (
            *self.servers,
            *self.replicas,
            self.coordinator,
            world.ghosts.number(self.ghosts),
            self.ledger,
            world.budgets.number(self.budget),
        )

    def tidy(self) -> None:
        """Forget what can have no effect any more, so that states that differ in it are one."""
        world = self.world
        if self.ghosts:
            left = [
                ghost
                for ghost in self.ghosts
                if world.replicas[self.replicas[ghost.replica]].fence <= ghost.session_id
            ]
            self.ghosts = tuple(sorted(left, key=lambda ghost: ghost[:2]))
        for k, number in enumerate(self.servers):
            server = world.servers[number]
            if server.keeper is not None and self.is_shut_out(server):
                self.servers[k] = world.servers.number(ModelServer(server.generation, is_gone=True))

    def is_shut_out(self, server: ModelServer) -> bool:
        """Whether a server can open no session any more and is refused wherever it may turn."""
        if self.world.may_open(self.coordinator, server.generation):
            return False
        return all(
            self.world.replicas[self.replicas[index]].fence > server.session_id
            for index, queue in enumerate(server.queues)
            if queue is not None or index in server.connecting
        )

    # What happens to servers

    def start(self, action: Action) -> None:
        self.tell(action.server, Start())

    def wake(self, action: Action) -> None:
        self.tell(action.server, Wake())

    def connect(self, action: Action) -> None:
        self.tell(action.server, Connect(action.replica))

    def arrive(self, action: Action) -> None:
        """The oldest request from a server to a replica arrives."""
        self.carry_out(action.server, action.replica)
        self.settle(action.server)

    def hear(self, action: Action) -> None:
        """The oldest answer from a replica to a server arrives."""
        self.tell(action.server, Hear(action.replica))

    def read(self, action: Action) -> None:
        """The coordinator reads the metadata for a server."""
        self.decide(action.server, self.metadata_read())

    def learn_decision(self, action: Action) -> None:
        """The coordinator's answer arrives."""
        answer = self.world.servers[self.servers[action.server]].untold
        assert answer is not None
        self.tell(action.server, answer)

    def read_again(self, action: Action) -> None:
        self.tell(action.server, ReadAgain())

    def show(self, action: Action) -> None:
        self.tell(action.server, Show(self.world.coordinators[self.coordinator].assigned))

    def submit(self, action: Action) -> None:
        first = self.budget.appends + 1
        self.budget = self.budget._replace(appends=self.budget.appends + action.number)
        self.tell(action.server, SubmitTokens(tuple(range(first, first + action.number))))

    def write(self, action: Action) -> None:
        self.decide(action.server, WriteAnswer(self.replace_metadata(action.server)))

    def lose_written(self, action: Action) -> None:
        """The metadata are written, but the server does not learn it."""
        self.budget = self.budget._replace(lost_writes=self.budget.lost_writes + 1)
        self.replace_metadata(action.server)
        self.decide(action.server, WriteAnswer(None))

    def replace_metadata(self, k: int) -> int | None:
        world = self.world
        coordinator = world.coordinators[self.coordinator]
        write = world.servers[self.servers[k]].write
        assert write is not None
        if write.version != coordinator.version:
            return None
        if write.session_id < coordinator.session_id:
            raise ViolationError("I10", "the metadata go back to an older session")
        self.put_metadata(write.metadata)
        return coordinator.version + 1

    def put_metadata(self, frozen: Frozen) -> None:
        coordinator, metadata = self.world.coordinators[self.coordinator], thaw_metadata(frozen)
        self.coordinator = self.world.coordinators.number(
            coordinator._replace(
                metadata=frozen,
                version=coordinator.version + 1,
                session_id=metadata.session_id,
                generation=metadata.generation,
                last_session=last_session(metadata.replica_states),
            )
        )

    def copy_metadata(self, _: Action) -> None:
        """Somebody makes a backup of the coordinator."""
        self.budget = self.budget._replace(set_backs=self.budget.set_backs + 1)
        coordinator = self.world.coordinators[self.coordinator]
        self.coordinator = self.world.coordinators.number(
            coordinator._replace(copy=coordinator.metadata)
        )

    def set_back(self, _: Action) -> None:
        """The backup is restored after all servers were stopped, and nothing is on its way."""
        copy = self.world.coordinators[self.coordinator].copy
        assert copy is not None
        for k, number in enumerate(self.servers):
            server = self.world.servers[number]
            if server.keeper is not None:
                self.servers[k] = self.world.servers.number(
                    ModelServer(server.generation, is_gone=True)
                )
        self.ghosts = ()
        self.put_metadata(copy)
        self.coordinator = self.world.coordinators.number(
            self.world.coordinators[self.coordinator]._replace(copy=None)
        )

    # What happens to connections and replicas

    def cut(self, action: Action) -> None:
        """A connection ends; what is on its way may still arrive, then or later."""
        self.budget = self.budget._replace(cuts=self.budget.cuts + 1)
        server = self.world.servers[self.servers[action.server]]
        notes: list[Note] = []
        note_ghost(notes, action.replica, server.session_id, server.queues[action.replica])
        self.take(notes)
        self.tell(action.server, Lose(action.replica))

    def learn(self, action: Action) -> None:
        """A server is told that a connection has ended."""
        self.tell(action.server, Lose(action.replica))

    def haunt(self, action: Action) -> None:
        """The oldest request of a connection given up arrives; `number` is its place."""
        ghost = self.ghosts[action.number]
        number = self.replicas[ghost.replica]
        self.replicas[ghost.replica], _ = self.world.process(
            number, ghost.session_id, ghost.requests[0]
        )
        rest = ghost._replace(requests=ghost.requests[1:])
        others = [other for at, other in enumerate(self.ghosts) if at != action.number]
        self.ghosts = tuple([*others, rest] if rest.requests else others)

    def crash(self, action: Action) -> None:
        """A replica crashes; before, `number` requests of a server are carried out, unanswered."""
        queue = self.world.servers[self.servers[action.server]].queues[action.replica] or ()
        for request in queue[: action.number]:
            session_id = self.world.servers[self.servers[action.server]].session_id
            self.replicas[action.replica], _ = self.world.process(
                self.replicas[action.replica], session_id, request
            )
        self.budget = self.budget._replace(crashes=self.budget.crashes + 1)
        self.put(action.replica, crashed(self.replica(action.replica), self.world.rules))
        self.disconnect(action.replica)

    def tear(self, action: Action) -> None:
        """A replica crashes in the middle of an append, of which `number` records are kept."""
        self.budget = self.budget._replace(crashes=self.budget.crashes + 1)
        queue = self.world.servers[self.servers[action.server]].queues[action.replica]
        assert queue
        assert isinstance(queue[0], AppendToReplica)
        replica = torn(self.replica(action.replica), queue[0].batch, action.number)
        self.put(action.replica, crashed(replica, self.world.rules))
        self.disconnect(action.replica)

    def blank(self, action: Action) -> None:
        self.budget = self.budget._replace(blanks=self.budget.blanks + 1)
        self.put(action.replica, blanked(self.replica(action.replica), self.committed))
        self.disconnect(action.replica)

    def back_up(self, action: Action) -> None:
        self.budget = self.budget._replace(rollbacks=self.budget.rollbacks + 1)
        self.put(action.replica, backed_up(self.replica(action.replica)))

    def roll_back(self, action: Action) -> None:
        self.put(action.replica, rolled_back(self.replica(action.replica), self.committed))
        self.disconnect(action.replica)

    def replace_replica(self, action: Action) -> None:
        """The assignment gets a spare in place of a replica, or the other way round."""
        self.budget = self.budget._replace(replacements=self.budget.replacements + 1)
        coordinator = self.world.coordinators[self.coordinator]
        assigned = list(coordinator.assigned)
        assigned[action.number] = REPLICA_IDS[action.replica]
        self.coordinator = self.world.coordinators.number(
            coordinator._replace(assigned=tuple(sorted(assigned)))
        )

    @property
    def committed(self) -> tuple[Token, ...]:
        return self.world.ledgers[self.ledger].committed

    def replica(self, index: int) -> ModelReplica:
        return self.world.replicas[self.replicas[index]]

    def put(self, index: int, replica: ModelReplica) -> None:
        self.replicas[index] = self.world.replicas.number(replica)

    def disconnect(self, index: int) -> None:
        """A replica has crashed: nothing sent to it arrives any more."""
        self.ghosts = tuple(ghost for ghost in self.ghosts if ghost.replica != index)
        for k, number in enumerate(self.servers):
            server = self.world.servers[number]
            if server.queues[index] is not None and index not in server.broken:
                self.step(k, Break(index))

    # What follows at once

    def tell(self, k: int, happening: Happening) -> None:
        self.step(k, happening)
        self.settle(k)

    def step(self, k: int, happening: Happening) -> None:
        self.servers[k], notes = self.world.servers.step(self.servers[k], happening)
        if notes:
            self.take(notes)

    def decide(self, k: int, answer: ReadAnswer | WriteAnswer) -> None:
        if self.world.scope.is_reduced:
            self.tell(k, answer)
        else:
            self.step(k, Decide(answer))

    def metadata_read(self) -> ReadAnswer:
        coordinator = self.world.coordinators[self.coordinator]
        return ReadAnswer(coordinator.metadata, coordinator.version, coordinator.assigned)

    def settle(self, k: int) -> None:
        """Answer all that changes nothing."""
        while self.world.scope.is_reduced:
            ask = self.world.asks(self.servers[k])
            if ask is None:
                return
            if ask < 0:
                self.step(k, self.metadata_read())
            else:
                self.carry_out(k, ask)

    def carry_out(self, k: int, index: int) -> None:
        """The oldest request of a connection arrives and is answered."""
        server = self.world.servers[self.servers[k]]
        queue = server.queues[index]
        assert queue
        if isinstance(queue[0], AskMaxTransactionId) and self.replica(index).lost_committed:
            self.check_vote(server.session_id)
        self.replicas[index], answer = self.world.process(
            self.replicas[index], server.session_id, queue[0]
        )
        if self.world.scope.is_reduced:
            self.step(k, Answer(index, *answer))
        else:
            self.step(k, Arrive(index, queue[0], *answer))

    def check_vote(self, session_id: SessionId) -> None:
        """A replica that has lost committed records is asked for its vote: not before the mark is
        resolved, unless it is by a session that was replaced."""
        is_newest = session_id == self.world.coordinators[self.coordinator].session_id
        marks = dict(self.world.ledgers[self.ledger].marks)
        if is_newest and session_id not in marks:
            self.world.object("I11", "a replica that has lost committed records votes")

    def check_undercut(self, session_id: SessionId, mark: TransactionId) -> None:
        """No mark on a disk is undercut (I10): unless a disk was lost, and even then not that of a
        replica that votes (I14)."""
        for index, number in enumerate(self.replicas):
            replica = self.world.replicas[number]
            low_water_mark = replica.low_water_mark
            if low_water_mark > mark and replica.session_id < session_id:
                text = (
                    f"session {session_id} resolves {mark}, but replica {index} has the low-water"
                    f" mark {low_water_mark}"
                )
                self.world.object("I10", text)
                if self.votes(index, session_id):
                    self.world.object("I14", text)

    def votes(self, index: int, session_id: SessionId) -> bool:
        """Whether the session asks this replica, and it is as the last session left it."""
        metadata = thaw_metadata(self.world.coordinators[self.coordinator].metadata)
        state = metadata.replica_states.get(REPLICA_IDS[index])
        if state is None or state.closing_high_water_mark is not None:
            return False
        return self.replica(index).session_id >= state.session_id and any(
            server.session_id == session_id and server.queues[index] is not None
            for server in (self.world.servers[number] for number in self.servers)
        )

    def take(self, notes: Collection[Note]) -> None:
        """Write down what a server has said, and what it has given up."""
        ledger = self.world.ledgers[self.ledger]
        try:
            for note in notes:
                match note:
                    case Ghost():
                        self.ghosts = (*self.ghosts, note)
                    case MarkResolved(session_id, mark):
                        self.check_undercut(session_id, mark)
                        ledger = ledgers.resolved(ledger, session_id, mark)
                    case SessionOpened(session_id, mark, holders):
                        held = [self.replica(index) for index in holders]
                        ledger = ledgers.opened(ledger, session_id, mark, held)
                    case CommittedTokens(session_id, first, tokens):
                        ledger = ledgers.committed(ledger, session_id, first, tokens)
                    case FailedTokens(tokens):
                        ledger = ledgers.failed(ledger, tokens)
        except ViolationError as error:
            if error.invariant in self.world.invariants:
                raise
        self.ledger = self.world.ledgers.number(ledger)
