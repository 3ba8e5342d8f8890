"""The plan: its order, its readiness, and a way back for each step."""

from __future__ import annotations

from dataclasses import replace

from tests.cli.original_site import metadata_of, peers_of
from waltz.cli.doctor.finding import Checked
from waltz.cli.migration.steps import plan

WELL = metadata_of("7-two-servers")
PEERS = peers_of(WELL)


def test_storage_nodes_come_before_servers_and_servers_before_clients() -> None:
    steps = plan(WELL, PEERS, [])
    roles = [each.role for each in steps]
    assert roles == ["all", "tools", *["storage"] * 3, *["server"] * 2, "client", "all"]
    assert all(each.is_ready and each.back and each.do for each in steps)


def test_a_fault_that_was_found_keeps_the_preparation_from_being_ready() -> None:
    fault = Checked("key", "f: x", False, "not known", "misspelt", "correct it")
    first, *others = plan(WELL, PEERS, [fault])
    assert (first.is_ready, first.why) == (False, ("key f: x: misspelt",))
    assert all(each.is_ready for each in others)


def test_a_server_that_does_not_answer_is_not_replaced() -> None:
    address = WELL.membership.descriptors[min(WELL.membership.descriptors)].address
    silent = replace(PEERS, versions={**PEERS.versions, address: None})
    step = next(each for each in plan(WELL, silent, []) if str(address) in each.title)
    assert (step.is_ready, step.why) == (False, (f"server {address} does not answer",))


def test_steps_are_numbered_and_say_why_and_how_back() -> None:
    down = metadata_of("5-storage3-down")
    lines = list(plan(down, peers_of(down), [])[2].lines(2))
    assert lines[0] == "2. Replace storage node vm:47310: NOT READY"
    assert lines[1] == "     because partition 0 lacks vm:47330"
    assert any(line.startswith("     back: ") for line in lines)


def test_without_metadata_nothing_is_said_to_be_ready_that_depends_on_it() -> None:
    steps = plan(None, None, [])
    assert [each.is_ready for each in steps] == [True, None, None, None, True, True]
