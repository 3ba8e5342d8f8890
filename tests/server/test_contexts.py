"""Which logical connections are kept, for whom, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from waltz.server.clients.contexts import (
    BROKEN_CONNECTIONS_MAX,
    CROWDED,
    EXPIRED,
    REPEATED,
    UNKNOWN,
    ContextBroken,
    ContextClosed,
    ContextOpened,
    Contexts,
    Effect,
    Event,
    RefuseRestore,
    ReleaseContext,
    RestoreContext,
    RestoreRequested,
)
from waltz.types import CertificateNames, LocalUser

ALICE, BOB = (
    CertificateNames((), ("shared.example",), (name,), f"CN={name}") for name in ("alice", "bob")
)


def key(number: int) -> UUID:
    return UUID(int=number)


class World:
    def __init__(self, restore_seconds: float = 10.0, **bounds: int) -> None:
        self.machine = Contexts(restore_seconds, **bounds)
        self.now = 100.0

    def step(self, *events: Event) -> Sequence[Effect]:
        effects = self.machine.step(events, self.now)
        self.machine.check_invariants()
        return effects

    def opened(
        self, *numbers: int, certificate: CertificateNames | LocalUser | None = None
    ) -> World:
        self.step(*[ContextOpened(number, key(number), certificate) for number in numbers])
        return self


def test_a_broken_connection_is_restored_in_time() -> None:
    """LC-47, LC-48."""
    world = World().opened(1)
    assert world.step(ContextBroken(1, 50)) == []
    deadlines = [world.machine.deadline]
    world.now = 109.9
    assert world.step(RestoreRequested(key(1), None, 1)) == [RestoreContext(1)]
    assert [*deadlines, world.machine.deadline] == [110.0, None]
    assert world.machine.broken_count == 0


def test_after_its_time_it_is_released_and_unknown() -> None:
    """LC-49."""
    world = World().opened(1)
    world.step(ContextBroken(1, 0))
    world.now = 110.0
    assert world.step(RestoreRequested(key(1), None, 1)) == [
        ReleaseContext(1, EXPIRED),
        RefuseRestore(UNKNOWN),
    ]
    assert len(world.machine) == 0


def test_an_id_of_nobody_is_unknown() -> None:
    """LC-50, LC-53: such as one of another server, or of this one before it was restarted."""
    assert World().opened(1).step(RestoreRequested(key(2), None, 1)) == [RefuseRestore(UNKNOWN)]


@pytest.mark.parametrize("is_broken", [True, False])
def test_an_intruder_learns_nothing_and_changes_nothing(is_broken: bool) -> None:
    """LC-51."""
    world = World().opened(1, certificate=ALICE)
    if is_broken:
        world.step(ContextBroken(1, 0))
    for other in (BOB, None):
        assert world.step(RestoreRequested(key(1), other, 1)) == [RefuseRestore(UNKNOWN)]
    assert world.machine.broken_count == is_broken
    assert world.step(RestoreRequested(key(1), ALICE, 1)) == [RestoreContext(1)]


def test_a_local_user_s_connection_is_restored_by_that_user_only() -> None:
    ann = LocalUser(1000, "ann")
    world = World().opened(1, certificate=ann)
    for other in (LocalUser(1001, "ann"), LocalUser(1000), ALICE, None):
        assert world.step(RestoreRequested(key(1), other, 1)) == [RefuseRestore(UNKNOWN)]
    assert world.step(RestoreRequested(key(1), LocalUser(1000, "ann"), 1)) == [RestoreContext(1)]


def test_of_two_that_present_an_id_the_second_has_it() -> None:
    """LC-51: the server may not have noticed the break yet."""
    world = World().opened(1)
    for attempt in (1, 2):
        assert world.step(RestoreRequested(key(1), None, attempt)) == [RestoreContext(1)]
    assert len(world.machine) == 1


def test_a_second_break_begins_a_new_time_and_a_repeated_one_does_not() -> None:
    world = World().opened(1)
    world.step(ContextBroken(1, 0))
    world.now += 5
    world.step(ContextBroken(1, 0))
    assert world.machine.deadline == 110.0
    world.step(RestoreRequested(key(1), None, 1))
    world.step(ContextBroken(1, 0))
    assert world.machine.deadline == 115.0


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_request_that_is_sent_again_restores_nothing(is_broken: bool) -> None:
    """LC-54: what follows it has been worked off, and would count as what comes next. One that was
    overtaken by the next is late, and not needed."""
    world = World().opened(1)
    world.step(RestoreRequested(key(1), None, 2))
    if is_broken:
        world.step(ContextBroken(1, 0))
    for attempt in (1, 2):
        assert world.step(RestoreRequested(key(1), None, attempt)) == [RefuseRestore(REPEATED)]
    assert world.machine.broken_count == is_broken
    assert world.step(RestoreRequested(key(1), None, 3)) == [RestoreContext(1)]


def test_one_that_was_given_up_is_forgotten() -> None:
    world = World().opened(1, 2)
    world.step(ContextBroken(1, 0), ContextClosed(1), ContextClosed(2), ContextClosed(3))
    assert world.step(RestoreRequested(key(1), None, 1)) == [RefuseRestore(UNKNOWN)]
    assert len(world.machine) == 0
    assert world.machine.deadline is None


def test_too_many_broken_ones_cost_the_oldest() -> None:
    """LC-52."""
    world = World(broken_max=2).opened(1, 2, 3)
    world.step(ContextBroken(2, 0), ContextBroken(1, 0))
    assert world.step(ContextBroken(3, 0)) == [ReleaseContext(2, CROWDED)]


def test_too_many_bytes_of_broken_ones_cost_the_oldest() -> None:
    """LC-52."""
    world = World(broken_bytes_max=100).opened(1, 2, 3)
    assert world.step(ContextBroken(1, 60), ContextBroken(2, 40)) == []
    assert world.step(ContextBroken(3, 41)) == [ReleaseContext(1, CROWDED)]
    assert world.step(RestoreRequested(key(2), None, 1)) == [RestoreContext(2)]


def test_a_thousand_breaks_leave_nothing_behind() -> None:
    """LC-70."""
    world = World().opened(*range(BROKEN_CONNECTIONS_MAX))
    for number in range(BROKEN_CONNECTIONS_MAX):
        world.machine.step([ContextBroken(number, 10)], world.now)
    world.now += 10.0
    assert len(world.step()) == BROKEN_CONNECTIONS_MAX
    assert len(world.machine) == 0
    assert world.machine.deadline is None


@pytest.mark.parametrize("seed", range(20))
def test_any_history_agrees_with_a_plain_one(seed: int) -> None:
    """A dictionary of deadlines is the oracle."""
    random = Random(seed)
    world = World()
    broken: dict[int, float] = {}
    alive: set[int] = set()
    for number in range(300):
        world.now += random.choice((0.0, 0.5, 4.0))
        some = random.choice(sorted(alive)) if alive else 0
        event: Event = random.choice(
            (
                ContextOpened(number + 1, key(number + 1), None),
                ContextBroken(some, 3),
                ContextClosed(some),
                RestoreRequested(key(some), None, number + 1),
            )
        )
        gone = {each for each, until in broken.items() if until <= world.now}
        for each in gone:
            del broken[each]
        alive -= gone
        expected: list[Effect] = []
        match event:
            case ContextOpened(opened, _, _):
                alive.add(opened)
            case ContextBroken(each, _) if each in alive:
                broken.setdefault(each, world.now + 10.0)
            case ContextClosed(each):
                alive.discard(each)
                broken.pop(each, None)
            case RestoreRequested():
                is_known = some in alive
                expected = [RestoreContext(some) if is_known else RefuseRestore(UNKNOWN)]
                broken.pop(some, None)
        effects = world.step(event)
        released = {each.connection_id for each in effects if isinstance(each, ReleaseContext)}
        assert released == gone
        assert [each for each in effects if not isinstance(each, ReleaseContext)] == expected
        assert len(world.machine) == len(alive)
        assert world.machine.deadline == min(broken.values(), default=None)
