"""The world as a value: servers, replicas, coordinator, what is on its way, what was said.

A state is a tuple of small numbers, each naming a part that is kept once. `successors` gives
everything that may happen next. Three things happen at once here with what they follow from, for
delaying them gives nothing new:

- What changes nothing at a replica (session info, last ID, reads) is asked and answered at once.
  Answered later it would say the same: until then nobody but the session itself may change the
  replica, unless a newer session has shut it out, and then there is no answer.
- An answer reaches its server when the request is carried out. A server that learns it later does
  later what follows, and all that follows is requests, which may be on their way for any time. An
  answer that never comes is a connection that is cut while its request is on its way.
- The metadata are read when that is asked for: what is read too early fails to be replaced.

So what may be delayed, overtaken, or lost is every request that changes something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from proofs.model import ledger as ledgers
from proofs.model.frozen import freeze
from proofs.model.ledger import Ledger, ViolationError
from proofs.model.replica import (
    CORRECT,
    Backup,
    ModelReplica,
    ReplicaRules,
    process,
)
from proofs.model.scene import ModelScene
from proofs.model.scope import INVARIANTS, Scope
from proofs.model.state import Action, Budget, Coordinator, Parts, State
from proofs.model.store_server import (
    REPLICA_IDS,
    Ghost,
    ModelServer,
    Servers,
    thaw_metadata,
)
from waltz.cluster import partition_metadata
from waltz.cluster.partition_metadata import NEW_PARTITION, SESSION_CLIMB
from waltz.errors import FencedError
from waltz.majority import majority
from waltz.store.requests import AppendToReplica, ReplicaAnswer, ReplicaRequest
from waltz.types import NO_SESSION, Generation, SessionId


class World:
    def __init__(
        self,
        scope: Scope,
        rules: ReplicaRules = CORRECT,
        invariants: Collection[str] = INVARIANTS,
    ) -> None:
        self.scope = scope
        self.rules = rules
        self.invariants = frozenset(invariants)
        self.replica_count = scope.replicas + scope.spares
        self.servers = Servers()
        self.replicas: Parts[ModelReplica] = Parts()
        self.coordinators: Parts[Coordinator] = Parts()
        self.ghosts: Parts[tuple[Ghost, ...]] = Parts()
        self.ledgers: Parts[Ledger] = Parts()
        self.budgets: Parts[Budget] = Parts()
        self._processed: dict[
            tuple[int, SessionId, ReplicaRequest], tuple[int, tuple[bool, ReplicaAnswer]]
        ] = {}
        self._asks: dict[int, int | None] = {}
        self._may_open: dict[tuple[int, Generation], bool] = {}
        self._offers: dict[int, tuple[Action, ...]] = {}
        self._checked: set[tuple[int, ...]] = set()

    def initial(self) -> State:
        """Nothing has happened yet; the first server has started."""
        assigned = REPLICA_IDS[: self.scope.replicas]
        coordinator = Coordinator(
            freeze(NEW_PARTITION), 0, NO_SESSION, NEW_PARTITION.generation, assigned, NO_SESSION
        )
        servers = [
            self.servers.number(ModelServer(Generation(k + 1), assigned_seen=assigned))
            for k in range(self.scope.servers)
        ]
        state = (
            *servers,
            *[self.replicas.number(ModelReplica())] * self.replica_count,
            self.coordinators.number(coordinator),
            self.ghosts.number(()),
            self.ledgers.number(Ledger()),
            self.budgets.number(Budget()),
        )
        state = self.after(state, Action("start", 0))
        return self._opened(state) if self.scope.starts_with else state

    def _opened(self, state: State) -> State:
        """Go on as long as the first server waits for something, without faults."""
        while True:
            server = self.servers[state[0]]
            waited = [
                Action("connect", 0, index)
                for index in server.connecting
                if index < self.scope.starts_with
            ]
            waited += [Action("arrive", 0, at) for at, queue in enumerate(server.queues) if queue]
            waited += [Action("hear", 0, at) for at, heard in enumerate(server.unheard) if heard]
            if server.untold is not None:
                waited.append(Action("learn_decision", 0))
            elif server.reads_metadata:
                waited.append(Action("read", 0))
            elif server.write is not None:
                waited.append(Action("write", 0))
            if not waited:
                return state
            state = self.after(state, waited[0])

    def after(self, state: State, action: Action) -> State:
        """Raises ViolationError."""
        scene = ModelScene(self, state)
        getattr(scene, action.verb)(action)
        return scene.state()

    def successors(self, state: State) -> Iterator[tuple[Action, State]]:
        """Raises ViolationError."""
        for action in self.possible(state):
            yield action, self.after(state, action)

    # What may happen

    def possible(self, state: State) -> Iterator[Action]:
        scene = ModelScene(self, state)
        for k, number in enumerate(scene.servers):
            for action in self.offers(number):
                if self.is_possible(scene, action._replace(server=k)):
                    yield action._replace(server=k)
            yield from self.submissions(scene, k)
        for k, number in enumerate(scene.servers):
            server = self.servers[number]
            if k and server.keeper is None and not server.is_gone:
                before = self.servers[scene.servers[k - 1]]
                if before.keeper is not None or before.is_gone:
                    yield Action("start", k)
        for place in range(len(scene.ghosts)):
            yield Action("haunt", number=place)
        yield from self.faults(scene)

    def offers(self, number: int) -> tuple[Action, ...]:
        """What a server waits for, whatever the rest of the world is like."""
        known = self._offers.get(number)
        if known is not None:
            return known
        server = self.servers[number]
        offers = [Action("connect", replica=index) for index in server.connecting]
        for index, queue in enumerate(server.queues):
            if queue:
                offers.append(Action("arrive", replica=index))
            if index in server.broken:
                offers.append(Action("learn", replica=index))
            elif queue is not None:
                offers.append(Action("cut", replica=index))
        offers += [
            Action("hear", replica=index) for index, answers in enumerate(server.unheard) if answers
        ]
        if server.untold is not None:
            offers.append(Action("learn_decision"))
        elif server.reads_metadata:
            offers.append(Action("read"))
        elif server.write is not None and _in_order(server.write.session_id) < self.scope.sessions:
            offers += [Action("write"), Action("lose_written")]
        if server.later:
            offers.append(Action("read_again", replica=server.later[0][0]))
        if server.has_deadline:
            offers.append(Action("wake"))
        if server.keeper is not None and self.scope.replacements:
            offers.append(Action("show"))
        result = self._offers[number] = tuple(offers)
        return result

    def is_possible(self, scene: ModelScene, action: Action) -> bool:
        """Whether what a server waits for may happen now."""
        scope, budget = self.scope, scene.budget
        match action.verb:
            case "cut":
                return budget.cuts < scope.cuts
            case "lose_written":
                return budget.lost_writes < scope.lost_writes
            case "show":
                assigned = self.coordinators[scene.coordinator].assigned
                return self.servers[scene.servers[action.server]].assigned_seen != assigned
            case _:
                return True

    def submissions(self, scene: ModelScene, k: int) -> Iterator[Action]:
        server = self.servers[scene.servers[k]]
        if not server.is_open:
            return
        room = self.scope.transaction_ids - 1 - server.high_water_mark - len(server.submitted)
        for count in range(1, self.scope.batch + 1):
            if count <= min(room, self.scope.appends - scene.budget.appends):
                yield Action("submit", k, number=count)

    def faults(self, scene: ModelScene) -> Iterator[Action]:
        scope, budget = self.scope, scene.budget
        last = self.coordinators[scene.coordinator].last_session
        for index, number in enumerate(scene.replicas):
            replica = self.replicas[number]
            if budget.crashes < scope.crashes:
                yield from self.crashes(scene, index)
            if budget.blanks < scope.blanks and replica.answered != NO_SESSION:
                yield Action("blank", replica=index)
            if budget.rollbacks < scope.rollbacks and replica.session_id != NO_SESSION:
                yield Action("back_up", replica=index)
            if replica.backup is not None and self.may_roll_back(replica.backup, last):
                yield Action("roll_back", replica=index)
        if budget.replacements < scope.replacements:
            assigned = self.coordinators[scene.coordinator].assigned
            for index in range(self.replica_count):
                if REPLICA_IDS[index] not in assigned:
                    for place in range(len(assigned)):
                        yield Action("replace_replica", replica=index, number=place)

        coordinator = self.coordinators[scene.coordinator]
        states = thaw_metadata(coordinator.metadata).replica_states
        if states and budget.set_backs < scope.set_backs:
            yield Action("copy_metadata")
        if coordinator.copy not in (None, coordinator.metadata) and any(
            server.keeper is None and not server.is_gone
            for server in (self.servers[number] for number in scene.servers)
        ):
            yield Action("set_back")

    def may_roll_back(self, backup: Backup, last: SessionId) -> bool:
        """Disks older than the last session show it; younger ones look like one that lags."""
        if self.scope.rolls_back_within_session:
            return backup.session_id >= last
        return backup.session_id < last

    def crashes(self, scene: ModelScene, index: int) -> Iterator[Action]:
        yield Action("crash", replica=index)
        for k, number in enumerate(scene.servers):
            server = self.servers[number]
            queue = server.queues[index]
            if not queue:
                continue
            _, (is_refusal, _) = self.process(scene.replicas[index], server.session_id, queue[0])
            if is_refusal:
                continue
            for count in range(1, len(queue) + 1):
                yield Action("crash", k, index, count)
            if isinstance(queue[0], AppendToReplica):
                for kept in range(1, len(queue[0].batch)):
                    yield Action("tear", k, index, kept)

    # Parts, each worked out once

    def process(
        self, number: int, session_id: SessionId, request: ReplicaRequest
    ) -> tuple[int, tuple[bool, ReplicaAnswer]]:
        """Return the replica that comes of it, whether it refuses, and what it answers."""
        key = (number, session_id, request)
        known = self._processed.get(key)
        if known is not None:
            return known
        replica = self.replicas[number]
        reply = process(replica, session_id, request, self.rules)
        if reply.replica.log != replica.log and session_id < replica.answered:
            self.object(
                "I9",
                f"session {session_id} changes a replica that has answered session"
                f" {replica.answered}",
            )
        result = (self.replicas.number(reply.replica), (reply.is_refusal, reply.answer))
        self._processed[key] = result
        return result

    def may_open(self, number: int, generation: Generation) -> bool:
        """Whether a server of `generation` may open a session, by the product's rule."""
        key = (number, generation)
        known = self._may_open.get(key)
        if known is None:
            try:
                partition_metadata.next_session(
                    thaw_metadata(self.coordinators[number].metadata), generation
                )
                known = True
            except FencedError:
                known = False
            self._may_open[key] = known
        return known

    def asks(self, number: int) -> int | None:
        """Return the replica that a server asks something that changes nothing, -1 for the
        coordinator, None if there is nothing of the kind."""
        try:
            return self._asks[number]
        except KeyError:
            server = self.servers[number]
            ask = -1 if server.reads_metadata else server.pure_head
            self._asks[number] = ask
            return ask

    # What must hold

    def object(self, invariant: str, text: str) -> None:
        """Raises ViolationError if `invariant` is looked at."""
        if invariant in self.invariants:
            raise ViolationError(invariant, text)

    def check(self, scene: ModelScene) -> None:
        blanks = scene.budget.blanks + scene.budget.rollbacks
        key = (scene.ledger, blanks, *scene.replicas)
        if key in self._checked:
            return
        replicas = [self.replicas[number] for number in scene.replicas]
        copies_min = majority(self.scope.replicas) - blanks
        try:
            ledgers.check_replicas(self.ledgers[scene.ledger], replicas, copies_min)
        except ViolationError as error:
            if error.invariant in self.invariants:
                raise
        self._checked.add(key)


def _in_order(session_id: SessionId) -> int:
    """Return `session_id` without the distance that tells of a coordinator that was set back."""
    return session_id % SESSION_CLIMB
