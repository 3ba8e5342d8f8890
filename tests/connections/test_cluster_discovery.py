"""What a client without a coordinator knows, and when it looks for a server."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from waltz.connections.cluster_discovery import (
    ClusterDiscovery,
    ClusterIsAnother,
    ConnectionDown,
    ConnectionUp,
    DiscoveryStopped,
    Effect,
    Event,
    GuideFound,
    GuideLost,
    GuideNotFound,
    OpeningBegun,
    ReleaseGuide,
    ShowView,
    Told,
)
from waltz.connections.initial_connection import NotConnected, TryNode
from waltz.limits import RECONNECT_BROKEN_SECONDS_MAX
from waltz.types import Address, Generation, PartitionId, ServerId
from waltz.wire.discovery_protocol import PartitionEntry, ServerEntry, Topology

KEY = UUID(int=1)
GIVEN = (Address("given", 1), Address("other", 1))
ADDRESSES = {number: Address(f"server-{number}", 7) for number in range(1, 5)}
DOWN = GuideNotFound("refused", in_handshake=False, jitter=1.0)


def topology(
    *partitions: tuple[int, int, int],
    servers: Sequence[int] = (1, 2),
    version: int = 1,
    count: int = 2,
    key: UUID = KEY,
) -> Topology:
    """Each of `partitions` is its ID, generation and server."""
    return Topology(
        key,
        "c",
        count,
        version,
        tuple(ServerEntry(ServerId(n), (ADDRESSES[n],)) for n in servers),
        tuple(PartitionEntry(PartitionId(p), Generation(g), ServerId(s)) for p, g, s in partitions),
    )


FIRST = topology((0, 1, 1), (1, 1, 2))


class World:
    def __init__(self, refresh_seconds: float = 0.0) -> None:
        self.machine = ClusterDiscovery(
            GIVEN,
            connection_seconds_max=10.0,
            reconnect_seconds_max=5.0,
            refresh_seconds=refresh_seconds,
        )
        self.now = 100.0
        self.begun = self.step(OpeningBegun(0.0))

    def step(self, *events: Event) -> Sequence[Effect]:
        effects = self.machine.step(events, self.now)
        self.machine.check_invariants()
        due = self.machine.deadline
        assert self.machine.closed or due is None or due > self.now, "it would spin"
        return effects

    def connected(self) -> World:
        self.step(GuideFound(FIRST))
        self.step(ConnectionUp(ADDRESSES[1]), ConnectionUp(ADDRESSES[2]))
        return self

    def sleep_until_due(self) -> Sequence[Effect]:
        assert self.machine.deadline is not None
        self.now = self.machine.deadline
        return self.step()

    @property
    def is_due(self) -> bool:
        return self.machine.deadline is not None

    def routes(self) -> dict[int, tuple[str, int]]:
        partitions = self.machine.snapshot.partitions
        return {int(p): (a.host, int(g)) for p, (a, g) in partitions.items()}


def test_it_begins_with_the_first_address_given() -> None:
    """LC-11."""
    (effect,) = World().begun
    assert isinstance(effect, TryNode)
    assert effect.address == GIVEN[0]


def test_what_the_first_server_says_is_the_view() -> None:
    """LC-15, LC-63: the rest comes later."""
    world = World()
    (effect,) = world.step(GuideFound(FIRST))
    assert isinstance(effect, ShowView)
    assert effect.snapshot.cluster_key == KEY
    assert effect.snapshot.partition_count == 2
    assert world.routes() == {0: ("server-1", 1), 1: ("server-2", 1)}


def test_a_failure_before_anything_is_known_is_told() -> None:
    """LC-12, LC-14."""
    world = World()
    (effect,) = world.step(GuideNotFound("foreign", in_handshake=True, jitter=0.5))
    assert effect == NotConnected("given:1: foreign", in_handshake=True)
    assert world.machine.closed


def test_the_guide_is_released_once_there_is_another_connection() -> None:
    world = World()
    world.step(GuideFound(FIRST))
    assert world.step(ConnectionUp(ADDRESSES[1])) == [ReleaseGuide()]
    assert world.step(ConnectionUp(ADDRESSES[2])) == []


def test_the_higher_generation_wins_whoever_says_it() -> None:
    """LC-86: a server that is cut off from the others drags nobody back."""
    world = World().connected()
    world.step(Told(topology((0, 2, 2), (1, 1, 2), version=2)))
    assert world.step(Told(FIRST)) == []
    assert world.routes() == {0: ("server-2", 2), 1: ("server-2", 1)}
    world.step(Told(topology((0, 1, 1), (1, 5, 1), version=1)))
    assert world.routes() == {0: ("server-2", 2), 1: ("server-1", 5)}


def test_a_partition_that_nobody_serves_now_stays_where_it_was() -> None:
    world = World().connected()
    assert world.step(Told(topology((1, 1, 2), version=2))) == []
    assert world.routes()[0] == ("server-1", 1)


def test_more_partitions_are_seen_and_never_fewer() -> None:
    """CI-09, LC-61."""
    world = World().connected()
    world.step(Told(topology((2, 1, 1), count=3, version=2)))
    assert world.machine.snapshot.partition_count == 3
    assert world.step(Told(FIRST)) == []


def test_a_server_without_an_address_serves_nothing() -> None:
    world = World().connected()
    assert world.step(Told(topology((0, 9, 4), servers=(1, 2)))) == []


def test_views_in_any_order_come_to_the_same() -> None:
    """Merging is commutative: what counts is the generation."""
    random = Random(3)
    told = [
        topology((0, g, 1 + g % 2), (1, 7 - g, 1 + g % 3), servers=(1, 2, 3), version=g)
        for g in range(1, 7)
    ]
    results = []
    for _ in range(50):
        random.shuffle(told)
        world = World()
        world.step(GuideFound(told[0]))
        world.step(ConnectionUp(ADDRESSES[1]), *map(Told, told[1:]))
        results.append(world.routes())
    assert all(result == results[0] for result in results)


def test_another_cluster_is_told_once_and_ends_all() -> None:
    """LC-75: nothing of it is taken."""
    world = World().connected()
    world.step(*[ConnectionDown(ADDRESSES[n], 1.0) for n in (1, 2)])
    other = topology((0, 9, 1), (1, 9, 1), key=UUID(int=2))
    assert world.step(Told(other), Told(other)) == [ClusterIsAnother(KEY, UUID(int=2))]
    assert world.machine.closed
    assert world.routes() == {0: ("server-1", 1), 1: ("server-2", 1)}


def test_a_wrong_address_harms_nobody_while_the_own_cluster_is_there() -> None:
    """LC-75 is about recovery: two clusters in one list must not end a client that works."""
    world = World(refresh_seconds=30.0).connected()
    other = topology((0, 9, 1), (1, 9, 1), key=UUID(int=2))
    assert world.step(Told(other)) == []
    world.sleep_until_due()
    assert world.step(GuideFound(other)) == [ReleaseGuide()]
    assert world.routes() == {0: ("server-1", 1), 1: ("server-2", 1)}


def test_another_cluster_found_on_the_way_back_is_told_too() -> None:
    """LC-75."""
    world = World().connected()
    world.step(ConnectionDown(ADDRESSES[1], 1.0), ConnectionDown(ADDRESSES[2], 1.0))
    world.sleep_until_due()
    other = topology(key=UUID(int=2))
    assert world.step(GuideFound(other)) == [ClusterIsAnother(KEY, UUID(int=2))]


def test_when_nothing_is_left_it_looks_among_all_it_knows_for_ever() -> None:
    """LC-73, LC-74; UA-10, UA-11: those given stay the last resort."""
    world = World().connected()
    assert world.step(ConnectionDown(ADDRESSES[1], 1.0)) == []
    assert not world.is_due
    world.step(ConnectionDown(ADDRESSES[2], 1.0))
    assert world.machine.deadline == world.now + RECONNECT_BROKEN_SECONDS_MAX
    tried = []
    effects = list(world.sleep_until_due())
    for _ in range(40):
        while not effects:
            effects = list(world.sleep_until_due())
        (effect,) = effects
        assert isinstance(effect, TryNode)
        tried.append(effect.address)
        world.now += 1.0
        effects = list(world.step(DOWN))
    assert set(tried[:4]) == {*GIVEN, ADDRESSES[1], ADDRESSES[2]}
    assert tried[4:8] == tried[:4]
    assert not world.machine.closed


def test_connections_that_come_back_by_themselves_spare_the_search() -> None:
    world = World().connected()
    world.step(ConnectionDown(ADDRESSES[1], 1.0), ConnectionDown(ADDRESSES[2], 1.0))
    assert world.step(ConnectionUp(ADDRESSES[1])) == []
    assert world.machine.deadline is None


def test_a_guide_that_is_lost_again_and_again_is_looked_for_ever_more_rarely() -> None:
    """LC-64."""
    world = World()
    world.step(GuideFound(FIRST))
    pauses = []
    for _ in range(8):
        world.step(GuideLost(1.0))
        assert world.machine.deadline is not None
        pauses.append(world.machine.deadline - world.now)
        world.sleep_until_due()
        world.step(GuideFound(FIRST))
    expected = [min(5.0, RECONNECT_BROKEN_SECONDS_MAX * 2**n) for n in range(8)]
    assert pauses == pytest.approx(expected)


def test_now_and_then_a_server_without_a_connection_is_asked() -> None:
    """LC-88: what it tells may be news, and its name is resolved anew."""
    world = World(refresh_seconds=30.0).connected()
    tried = set()
    for number in range(6):
        (effect,) = world.sleep_until_due()
        assert isinstance(effect, TryNode)
        tried.add(effect.address)
        assert world.machine.deadline is None
        if number % 2:
            assert world.step(DOWN) == []
        else:
            effects = world.step(GuideFound(FIRST))
            assert effects == [ReleaseGuide()]
    assert tried <= {*GIVEN}
    assert world.machine.deadline == world.now + 30.0


def test_everything_lost_while_somebody_is_asked() -> None:
    world = World(refresh_seconds=30.0).connected()
    world.sleep_until_due()
    lost = [ConnectionDown(ADDRESSES[n], 1.0) for n in (1, 2)]
    assert world.step(*lost) == []
    world.step(DOWN)
    assert isinstance(world.sleep_until_due()[0], TryNode)


def test_it_stops() -> None:
    world = World().connected()
    assert world.step(DiscoveryStopped(), ConnectionDown(ADDRESSES[1], 0.5)) == []
    assert world.machine.closed


def test_no_course_of_events_makes_it_forget_or_spin() -> None:
    """The invariants, and `step`'s own check, over many courses."""
    for seed in range(200):
        random = Random(seed)
        world = World(refresh_seconds=random.choice((0.0, 3.0)))
        connected: list[Address] = []
        trying, guided = True, False
        effects: list[Effect] = []
        for _ in range(60):
            events: list[Event] = []
            choice = random.random()
            if trying and choice < 0.4:
                trying, guided = False, random.random() < 0.5 or not world.machine._snapshot
                found = topology((0, random.randint(1, 9), 1))
                events.append(GuideFound(found) if guided else DOWN)
            elif guided and choice < 0.5:
                guided = False
                events.append(GuideLost(random.random()))
            elif world.machine._snapshot and choice < 0.7:
                address = ADDRESSES[random.randint(1, 2)]
                connected.append(address)
                events.append(ConnectionUp(address))
            elif connected and choice < 0.95:
                address = connected.pop(random.randrange(len(connected)))
                events.append(ConnectionDown(address, random.random()))
            elif world.machine.deadline is not None:
                world.now = max(world.now, world.machine.deadline)
            effects = list(world.step(*events))
            trying = trying or any(isinstance(each, TryNode) for each in effects)
            guided = guided and ReleaseGuide() not in effects
            if world.machine.closed:
                break
