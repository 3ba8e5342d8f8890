"""The way in, by value: who has room, who waits for how long, and who is woken."""

from __future__ import annotations

from itertools import product

import pytest

from waltz.client.appends.gate import EARLY_SECONDS, Entry, Gate
from waltz.errors import ClientClosedError, OperationTimeoutError, PartitionNotReadyError


class Waiting:
    """An entry that came at 100 s, and how often it was woken and has nudged."""

    def __init__(
        self, gate: Gate, timeout_seconds: float | None = None, *, needs_room: bool = True
    ) -> None:
        self.woken = self.nudges = 0
        self.entry = Entry(
            gate,
            100.0,
            needs_room=needs_room,
            timeout_seconds=timeout_seconds,
            mount_seconds_max=30.0,
            registration_seconds_max=2.0,
            nudge=self._nudge,
        )
        self.entry.wake = self._wake

    def _wake(self) -> None:
        self.woken += 1

    def _nudge(self) -> None:
        self.nudges += 1


def mounted(capacity: int) -> Gate:
    gate = Gate(capacity)
    gate.set_mounted(True)
    return gate


def test_a_gate_lets_in_as_many_as_have_room_once_it_is_mounted() -> None:
    gate = Gate(2)
    assert not gate.enter(needs_room=True)
    gate.set_mounted(True)
    assert [gate.enter(needs_room=True) for _ in range(3)] == [True, True, False]
    gate.release(1)
    assert [gate.enter(needs_room=True) for _ in range(2)] == [True, False]
    gate.release(2)
    gate.set_mounted(False)
    assert not gate.enter(needs_room=True)


def test_who_needs_no_room_waits_for_a_server_only_and_leaves_the_room_to_others() -> None:
    gate = Gate(1)
    assert not gate.enter(needs_room=False)
    first, second = Waiting(gate, needs_room=False), Waiting(gate)
    assert first.entry.step(101.0) == second.entry.step(101.0) == 29.0
    gate.set_mounted(True)
    assert gate.enter(needs_room=True)
    assert first.entry.step(102.0) is None
    assert gate.enter(needs_room=False)
    assert second.entry.step(102.0) == 2.0
    first.entry.leave()
    gate.release(1)
    assert second.entry.step(103.0) is None


def test_who_waits_for_a_server_is_woken_by_it_and_enters() -> None:
    gate = Gate(1)
    waiting = Waiting(gate)
    assert waiting.entry.step(101.0) == 29.0
    gate.set_mounted(True)
    assert waiting.woken == 1
    assert waiting.entry.step(102.0) is None
    assert waiting.entry.waited_seconds == 2.0
    assert not gate.enter(needs_room=True)


def test_a_gate_of_a_partition_without_a_server_says_so_in_time() -> None:
    """CI-11."""
    gate = Gate(1)
    gate.why = lambda: ": no server has it"
    waiting = Waiting(gate)
    assert waiting.entry.step(129.0) == 1.0
    with pytest.raises(PartitionNotReadyError, match="for 30 s: no server has it"):
        waiting.entry.step(130.0 - EARLY_SECONDS / 2)


def test_room_of_a_partition_that_was_mounted_is_waited_for_while_it_is_not() -> None:
    """Its server comes back, or the contexts that hold the room end otherwise."""
    gate = mounted(0)
    waiting = Waiting(gate)
    assert waiting.entry.step(100.0) == 2.0
    gate.set_mounted(False)
    assert waiting.entry.step(200.0) == 2.0
    gate.release(1)
    assert waiting.entry.step(201.0) is None


def test_a_gate_nudges_while_there_is_no_room() -> None:
    """PM-42."""
    gate = mounted(0)
    waiting = Waiting(gate)
    assert waiting.entry.step(100.0) == 2.0
    assert waiting.entry.step(101.5) == 0.5
    assert waiting.nudges == 0
    assert waiting.entry.step(102.0) == 2.0
    assert waiting.entry.step(104.0) == 2.0
    assert waiting.nudges == 2


@pytest.mark.parametrize("is_mounted", [True, False])
def test_the_time_of_a_context_is_up_before_there_is_room(is_mounted: bool) -> None:
    """PM-14."""
    gate = Gate(0)
    gate.set_mounted(is_mounted)
    waiting = Waiting(gate, timeout_seconds=0.5)
    assert waiting.entry.step(100.0) == 0.5
    with pytest.raises(OperationTimeoutError):
        waiting.entry.step(100.5)


def test_all_who_wait_are_told_what_a_gate_fails_with_and_nobody_enters() -> None:
    gate = mounted(0)
    several = [Waiting(gate) for _ in range(3)]
    for waiting in several:
        waiting.entry.step(100.0)
    first = ClientClosedError("first")
    gate.fail(first)
    gate.fail(ClientClosedError("second"))
    assert [waiting.woken for waiting in several] == [1, 1, 1]
    for waiting in several:
        with pytest.raises(ClientClosedError, match="first"):
            waiting.entry.step(101.0)
        waiting.entry.leave()
    gate.release(1)
    assert not gate.enter(needs_room=True)
    assert not gate.waiting


def test_room_goes_to_who_has_waited_longest_and_wakes_nobody_else() -> None:
    gate = mounted(0)
    several = [Waiting(gate) for _ in range(3)]
    for waiting in several:
        waiting.entry.step(100.0)
    gate.release(2)
    assert [waiting.woken for waiting in several] == [1, 1, 0]


OPERATIONS = ["release", "enter", "step 0", "step 1", "leave 0", "leave 1"]


@pytest.mark.parametrize("first", OPERATIONS)
def test_nobody_sleeps_while_there_is_room_whatever_comes_in_which_order(first: str) -> None:
    """Unless another one was woken for it, and has not looked yet."""
    for rest in product(OPERATIONS, repeat=5):
        gate = mounted(1)
        several = [Waiting(gate), Waiting(gate)]
        inside, asleep, gone = 0, [False, False], [False, False]
        for operation in (first, *rest):
            match operation.split():
                case ["release"]:
                    gate.release(min(inside, 1))
                    inside -= min(inside, 1)
                case ["enter"]:
                    inside += gate.enter(needs_room=True)
                case ["step", at] if not gone[int(at)]:
                    number = int(at)
                    several[number].woken = 0
                    asleep[number] = several[number].entry.step(100.0) is not None
                    if not asleep[number]:
                        inside += 1
                        several[number].entry.leave()
                        gone[number] = True
                case ["leave", at] if not gone[int(at)]:
                    several[int(at)].entry.leave()
                    gone[int(at)], asleep[int(at)] = True, False
            sleeping = [at for at in (0, 1) if asleep[at] and not several[at].woken]
            looking = [at for at in (0, 1) if asleep[at] and several[at].woken]
            assert inside == 1 or not sleeping or looking, (first, *rest)
