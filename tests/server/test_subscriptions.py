"""The clients that are told how the cluster changes, and how often they are told."""

from __future__ import annotations

from waltz.server.clients.subscriptions import (
    TOPOLOGY_PUSH_SECONDS,
    Event,
    Stopped,
    Subscribed,
    SubscriberLeft,
    Subscriptions,
    TellTopology,
    TopologyChanged,
)


class World:
    def __init__(self, *subscribers: int) -> None:
        self.full: set[int] = set()
        self.machine = Subscriptions(self.full)
        self.now = 10.0
        self.told(*map(Subscribed, subscribers))

    def told(self, *events: Event) -> list[int]:
        effects = self.machine.step(events, self.now)
        self.machine.check_invariants()
        return [each for effect in effects for each in effect.connection_ids]


def test_every_subscriber_is_told_of_a_change() -> None:
    """LC-61."""
    assert World(1, 2).told(TopologyChanged()) == [1, 2]


def test_whoever_subscribes_knows_what_there_is() -> None:
    assert World().told(Subscribed(1)) == []


def test_changes_in_quick_succession_are_told_once() -> None:
    world = World(1)
    assert world.told(TopologyChanged(), TopologyChanged()) == [1]
    world.now += TOPOLOGY_PUSH_SECONDS / 2
    assert world.told(TopologyChanged()) == []
    assert world.told(TopologyChanged()) == []
    assert world.machine.deadline is not None
    world.now = world.machine.deadline
    assert world.told() == [1]
    assert world.machine.deadline is None


def test_a_full_connection_is_told_when_it_has_room() -> None:
    world = World(1, 2)
    world.full.add(2)
    assert world.told(TopologyChanged()) == [1]
    world.now += TOPOLOGY_PUSH_SECONDS
    assert world.told() == []
    world.full.clear()
    assert world.machine.deadline is not None
    world.now = world.machine.deadline
    assert world.told() == [2]


def test_who_has_left_is_told_nothing() -> None:
    world = World(1, 2)
    world.full.add(1)
    world.told(TopologyChanged())
    world.full.clear()
    assert world.told(SubscriberLeft(1), SubscriberLeft(7)) == []
    assert world.machine.deadline is None
    world.now += 1.0
    assert world.machine.step([TopologyChanged()], world.now) == [TellTopology((2,))]


def test_it_ends() -> None:
    world = World(1)
    assert world.told(TopologyChanged(), Stopped()) == []
    assert world.machine.closed
