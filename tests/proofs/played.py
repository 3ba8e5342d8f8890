"""A small world in which a test says what happens."""

from __future__ import annotations

from proofs.model.replica import ReplicaRules
from proofs.model.scene import ModelScene
from proofs.model.scope import Scope
from proofs.model.state import Action, State
from proofs.model.store_server import ModelServer
from proofs.model.world import World


class Play:
    """A world in which one thing after the other happens, as a test says."""

    def __init__(self, scope: Scope, **rules: bool) -> None:
        self.world = World(scope, ReplicaRules(**rules))
        self.state: State = self.world.initial()

    def does(self, verb: str, server: int = -1, replica: int = -1, number: int = 0) -> Play:
        action = Action(verb, server, replica, number)
        assert action in self.possible(), f"{action}, possible are {self.possible()}"
        self.state = self.world.after(self.state, action)
        return self

    def possible(self) -> list[Action]:
        return list(self.world.possible(self.state))

    def may(self, verb: str) -> bool:
        return any(action.verb == verb for action in self.possible())

    def scene(self) -> ModelScene:
        return ModelScene(self.world, self.state)

    def server(self, k: int) -> ModelServer:
        return self.world.servers[self.scene().servers[k]]

    def logs(self) -> list[tuple[int, ...]]:
        return [self.world.replicas[number].log for number in self.scene().replicas]

    def committed(self) -> tuple[int, ...]:
        return self.scene().committed

    def open_second(self, *replicas: int) -> Play:
        """The second server takes over with the replicas named."""
        self.does("start", 1).does("write", 1)
        for replica in replicas:
            self.does("connect", 1, replica)
        return self

    def arrive(self, server: int, *replicas: int) -> Play:
        for replica in replicas:
            self.does("arrive", server, replica)
        return self
