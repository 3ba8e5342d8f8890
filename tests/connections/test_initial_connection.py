"""One address after the other, until one works or time is up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from waltz.connections.initial_connection import (
    ATTEMPT_SECONDS_MAX,
    NODE_CONNECTION_SECONDS_MIN,
    Began,
    Connected,
    Effect,
    Event,
    InitialConnection,
    NodeAnswered,
    NodeFailed,
    NotConnected,
    TryNode,
)
from waltz.limits import RECONNECT_BROKEN_SECONDS_MAX, RECONNECT_SECONDS_MIN
from waltz.types import Address

ONE, TWO, THREE = (Address(name, 6000) for name in ("one", "two", "three"))
REFUSED = NodeFailed("refused", in_handshake=False, jitter=1.0)
FOREIGN = NodeFailed("not a server of ours", in_handshake=True, jitter=1.0)


class World:
    def __init__(
        self, *addresses: Address, seconds_max: float | None = 10.0, pause: float = 5.0
    ) -> None:
        self.machine = InitialConnection(
            addresses, seconds_max=seconds_max, pause_seconds_max=pause
        )
        self.now = 100.0

    def step(self, *events: Event) -> Sequence[Effect]:
        effects = self.machine.step(events, self.now)
        self.machine.check_invariants()
        return effects

    def tried(self, *events: Event) -> list[Address]:
        return [each.address for each in self.step(*events) if isinstance(each, TryNode)]

    def sleep_until_due(self) -> Sequence[Effect]:
        assert self.machine.deadline is not None
        self.now = self.machine.deadline
        return self.step()


def test_addresses_are_tried_one_after_the_other() -> None:
    """LC-11, LC-13: a transport error does not end the procedure."""
    world = World(ONE, TWO, THREE)
    assert world.tried(Began()) == [ONE]
    assert world.tried() == []
    assert world.tried(REFUSED) == [TWO]
    assert world.tried(REFUSED) == [THREE]


def test_the_first_that_answers_ends_the_procedure() -> None:
    """LC-15."""
    world = World(ONE, TWO, THREE)
    world.step(Began())
    assert world.step(NodeAnswered()) == [Connected()]
    assert world.machine.closed


def test_a_failed_handshake_ends_the_procedure_with_failure() -> None:
    """LC-12: the good address after it is not tried."""
    world = World(ONE, TWO)
    world.step(Began())
    (effect,) = world.step(FOREIGN)
    assert effect == NotConnected("one:6000: not a server of ours", in_handshake=True)
    assert world.machine.closed


def test_the_time_out_names_each_address_and_its_reason() -> None:
    """LC-14."""
    world = World(ONE, TWO, THREE, seconds_max=2.0)
    world.step(Began())
    world.step(REFUSED)
    world.now += 2.0
    (effect,) = world.step()
    assert effect == NotConnected(
        "no server in 2 s: one:6000: refused; two:6000: no answer; three:6000: not tried",
        in_handshake=False,
    )


def test_one_address_does_not_use_up_the_time_of_the_others() -> None:
    """LC-14: a black hole before a good address."""
    world = World(ONE, TWO, THREE, seconds_max=9.0)
    assert world.step(Began()) == [TryNode(ONE, 3.0)]
    world.now += 3.0
    assert world.step(REFUSED) == [TryNode(TWO, 3.0)]
    world.now += 1.0
    assert world.step(REFUSED) == [TryNode(THREE, 5.0)]


def test_each_of_many_addresses_gets_some_time() -> None:
    many = [Address("many", 1 + number) for number in range(1000)]
    world = World(*many, seconds_max=2.0)
    assert world.step(Began()) == [TryNode(many[0], NODE_CONNECTION_SECONDS_MIN)]


@pytest.mark.parametrize(
    ("seconds_max", "shortest"),
    [(1e9, RECONNECT_SECONDS_MIN), (None, RECONNECT_BROKEN_SECONDS_MAX)],
)
def test_after_the_last_address_the_first_comes_again_after_a_growing_pause(
    seconds_max: float | None, shortest: float
) -> None:
    """LC-64: with jitter, up to the longest pause."""
    world = World(ONE, TWO, seconds_max=seconds_max, pause=1.0)
    world.step(Began())
    pauses = []
    for _ in range(8):
        assert world.tried(REFUSED) == [TWO]
        assert world.tried(REFUSED) == []
        assert world.machine.deadline is not None
        pauses.append(world.machine.deadline - world.now)
        assert world.sleep_until_due() == [TryNode(ONE, ATTEMPT_SECONDS_MAX)]
    expected = [min(1.0, shortest * 2**n) for n in range(8)]
    assert pauses == pytest.approx(expected)


def test_jitter_takes_up_to_half_of_the_pause() -> None:
    world = World(ONE)
    world.step(Began())
    world.step(NodeFailed("refused", in_handshake=False, jitter=0.0))
    assert world.machine.deadline == pytest.approx(world.now + RECONNECT_SECONDS_MIN / 2)


def test_without_a_time_out_it_goes_on_for_ever_and_forgives_handshakes() -> None:
    """LC-73: nobody would start it again."""
    world = World(ONE, TWO, seconds_max=None)
    world.step(Began())
    assert world.tried(FOREIGN) == [TWO]
    for _ in range(100):
        world.step(FOREIGN)
        world.now += 10.0
        world.step()
    assert not world.machine.closed


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    world = World(ONE, seconds_max=1.0)
    world.step(Began())
    world.now += 1.0
    world.step()
    assert world.step(NodeAnswered(), REFUSED) == []


def test_a_reason_that_several_servers_share_is_said_once() -> None:
    addresses = [Address("a", 1), Address("b", 2), Address("c", 3)]
    machine = InitialConnection(addresses, seconds_max=1.0, pause_seconds_max=1.0)
    machine._reasons = {
        Address("a", 1): "no CA",
        Address("b", 2): "refused",
        Address("c", 3): "no CA",
    }
    machine._give_up_at = 0.0
    (effect,) = machine._look(1.0)
    assert isinstance(effect, NotConnected)
    assert effect.reason.endswith(": a:1, c:3: no CA; b:2: refused")
