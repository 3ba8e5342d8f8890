"""Whether a world gets well once nothing more goes wrong.

From a state on, the latest owner goes on alone: what it waits for happens, in a fixed order, all
replicas can be reached, and it may open as many sessions as it likes. If that is not enough, the
assignment is put back as it was. It must end with an open session, all assigned replicas equal, and
an append committed that was submitted on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proofs.model.ledger import ViolationError
from proofs.model.scene import ModelScene
from proofs.model.state import Action, Budget, State
from proofs.model.store_server import REPLICA_IDS, ModelServer
from proofs.model.world import World
from waltz.types import ReplicaId

STEPS_MAX: Final = 1_000
"""More than it ever takes."""

SPARE_APPENDS: Final = 8
"""Submitted, one by one, to a session in which a replica waits for the log to grow."""


class Healer:
    """Remembers what got well, so a state costs only the steps that no other has taken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._well: set[State] = set()

    def heal(self, state: State) -> None:
        """Raises ViolationError: I12, or what else is broken on the way."""
        path: list[State] = []
        state = self._alone(state)
        while state not in self._well:
            path.append(state)
            if len(path) > STEPS_MAX:
                raise ViolationError("I12", "it goes on for ever")
            action = self._next(state)
            if action is None:
                break
            state = self._world.after(state, action)
        self._well.update(path)

    def _alone(self, state: State) -> State:
        """Leave one server in the world, and nothing on its way from another."""
        world = self._world
        scene = ModelScene(world, state)
        started = [
            k for k, number in enumerate(scene.servers) if world.servers[number].keeper is not None
        ]
        owner = started[-1]
        for k in range(len(scene.servers)):
            if k != owner:
                generation = world.servers[scene.servers[k]].generation
                scene.servers[k] = world.servers.number(ModelServer(generation, is_gone=True))
        scene.ghosts = ()
        used = scene.budget
        scene.budget = Budget(used.appends, blanks=used.blanks, rollbacks=used.rollbacks)
        return scene.state()

    def _next(self, state: State) -> Action | None:
        """Return what happens next; None: all is well. Raises ViolationError: nothing can."""
        world = self._world
        scene = ModelScene(world, state)
        k = next(
            k for k, number in enumerate(scene.servers) if world.servers[number].keeper is not None
        )
        server = world.servers[scene.servers[k]]
        if server.broken:
            return Action("learn", k, server.broken[0])
        for index, queue in enumerate(server.queues):
            if queue:
                return Action("arrive", k, index)
        if server.write is not None:
            return Action("write", k)
        coordinator = world.coordinators[scene.coordinator]
        if server.assigned_seen != coordinator.assigned:
            return Action("show", k)
        if server.connecting and self._can_connect(scene, server):
            return Action("connect", k, server.connecting[0])
        if server.later:
            return Action("read_again", k, server.later[0][0])
        if server.has_deadline:
            return Action("wake", k)
        if not server.is_open:
            return self._put_back(coordinator.assigned)
        if self._is_well(scene, server):
            return None
        if scene.budget.appends < world.scope.appends + SPARE_APPENDS:
            return Action("submit", k, number=1)
        raise ViolationError("I12", "a replica never takes part again")

    def _put_back(self, assigned: Sequence[ReplicaId]) -> Action:
        """Return how an operator undoes a change of the assignment: what the replica taken away
        holds may be missed."""
        first = REPLICA_IDS[: self._world.scope.replicas]
        missing = [index for index, replica_id in enumerate(first) if replica_id not in assigned]
        if not missing:
            raise ViolationError("I12", "nothing can happen, and no session is open")
        places = [at for at, replica_id in enumerate(assigned) if replica_id not in first]
        return Action("replace_replica", replica=missing[0], number=places[0])

    def _can_connect(self, scene: ModelScene, server: ModelServer) -> bool:
        replica = self._world.replicas[scene.replicas[server.connecting[0]]]
        if replica.fence > server.session_id:
            raise ViolationError("I12", "a replica refuses the newest session")
        return True

    def _is_well(self, scene: ModelScene, server: ModelServer) -> bool:
        world = self._world
        ledger = world.ledgers[scene.ledger]
        replicas = [
            world.replicas[number]
            for number, queue in zip(scene.replicas, server.queues, strict=False)
            if queue is not None
        ]
        appended = scene.budget.appends > 0 and ledger.committed[-1:] == (scene.budget.appends,)
        return (
            appended
            and len(replicas) == world.scope.replicas
            and all(
                replica.log == ledger.committed and replica.session_id == server.session_id
                for replica in replicas
            )
        )
