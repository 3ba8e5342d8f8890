"""Requests that have a line in the audit log, and requests that are counted, by value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.audit.logs import content, verified
from tests.server.builders import append, flush, mount, together
from waltz.access.auditing import Auditing
from waltz.access.permissions import Permissions
from waltz.access.policy import Policy
from waltz.access.policy_text import parse_policy
from waltz.audit.audit_entry import AuditDecision
from waltz.audit.audit_file import AuditSettings
from waltz.audit.audit_shell import Audit
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.system.real_host import real_host
from waltz.types import PartitionId
from waltz.wire.admin_protocol import PartitionAccessRequest
from waltz.wire.client_protocol import AddPreferredPartitionRequest
from waltz.wire.discovery_protocol import TopologyRequest

POLICY = parse_policy(
    b"""
version: 7
mode: deny
default: deny
break_glass: [CN=root]
roles:
  counted: {verbs: [append, read], partitions: 3, audit: [append]}
grants: {CN=a: [counted]}
""",
    "p.yaml",
)


def lines(scene: Callable[[Auditing], None]) -> list[dict[str, Any]]:
    """Return the entries that a scene leaves, without those of the file."""
    disk = SimulatedDisk(["/d"])

    async def main() -> None:
        audit = Audit(replace(real_host(None), disk=disk), AuditSettings("/d/audit"), "node")
        await audit.start()
        scene(Auditing(audit))
        await audit.stop()

    asyncio.run(main())
    found = verified([content(disk)])[1]
    return [each.fields for each in found if each.fields["decision"] != "opened"]


def allowed(principal: str, policy: Policy | None, *messages: Any) -> list[tuple[Any, ...]]:
    found = lines(
        lambda auditing: auditing.note_allowed(
            Permissions(principal), policy, messages, peer="p:1", connection=5
        )
    )
    return [(each["verb"], each["partition"], each["count"], each["reason"]) for each in found]


SUM = "sum of at most 60 seconds"


def test_what_operators_do_has_a_line_with_or_without_a_policy() -> None:
    prefer = AddPreferredPartitionRequest(flush().request_id, (PartitionId(1), PartitionId(2)))
    admin = PartitionAccessRequest(1, (PartitionId(3),), readable=True, writable=False)
    for policy in (POLICY, None):
        assert allowed("CN=b", policy, prefer, TopologyRequest(True)) == [
            ("prefer", None, 1, "AddPreferredPartitionRequest of partitions 1, 2")
        ]
        assert [each[0] for each in allowed("CN=b", policy, admin)] == ["admin"]


def test_appends_are_counted_for_those_whose_role_says_so_and_all_data_of_break_glass() -> None:
    messages = [mount(), together(append(1), append(2)), together(append(3))]
    assert allowed("CN=a", POLICY, *messages) == [("append", 3, 3, SUM)]
    assert allowed("CN=b", POLICY, *messages) == []
    assert allowed("CN=a", None, *messages) == []
    assert allowed("CN=root", POLICY, *messages) == [("read", 3, 1, SUM), ("append", 3, 3, SUM)]


def test_a_denial_that_is_repeated_is_counted() -> None:
    def scene(auditing: Auditing) -> None:
        rights = Permissions("CN=b")
        for _ in range(4):
            for denial in rights.denials(POLICY, [together(append(1))]):
                auditing.note_denial(AuditDecision.DENIED, rights, POLICY, denial, peer="p:1")

    first, others = lines(scene)
    assert (first["peer"], first["count"], first["policy"]) == ("p:1", 1, 7)
    assert first["reason"] == "no grant names CN=b; default: deny"
    assert (others["decision"], others["principal"], others["count"]) == ("denied", "CN=b", 3)
