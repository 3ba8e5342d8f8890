"""Asks the policy about what clients send, before anything else hears of it.

Owns what becomes of a request that is denied. Decides nothing: `Permissions` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from waltz.access.auditing import Auditing
from waltz.access.permissions import Denial
from waltz.access.policy import Mode, Policy, Verb
from waltz.access.policy_standing import PolicyStanding
from waltz.access.policy_watch_shell import AccessConfig, PolicyWatch
from waltz.access.told_denials_shell import ToldDenials
from waltz.audit.audit_metrics import AuditStanding
from waltz.audit.audit_shell import Audit
from waltz.cluster.policy_node_shell import WatchedPolicyNode
from waltz.host import Host
from waltz.server.clients.clients_shell import Clients, ConnectedClient
from waltz.server.denial_answers import denied
from waltz.types import PartitionId
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.message import Message


class Enforcement:
    """See the module. Without a policy everything is allowed."""

    def __init__(
        self,
        host: Host,
        access: AccessConfig,
        clients: Clients,
        mounted: Callable[[], Mapping[int, Sequence[PartitionId]]],
        withdraw: Callable[[int, PartitionId], None],
        audit: Audit,
        root: str,
    ) -> None:
        """`mounted` returns the partitions that each connection has mounted here; `withdraw` ends
        one of these mounts. `audit` is started and stopped with this. `root` is the cluster's in
        the coordinator."""
        stored = WatchedPolicyNode(host.coordinator, root) if access.follows_coordinator else None
        self._watch = PolicyWatch(host, access, self._end_the_denied, audit, stored)
        self._clients = clients
        self._mounted = mounted
        self._withdraw = withdraw
        self._audit = audit
        self._auditing = Auditing(audit)
        self._told = ToldDenials(self._watch, self._auditing)

    async def start(self) -> None:
        """Begin the audit log, read the policy. Raises ConfigurationError: a file cannot be read or
        written, or the policy has a fault. Raises what reading a stored policy raises."""
        await self._audit.start()
        try:
            await self._watch.start()
        except BaseException:
            await self._audit.stop()
            raise

    async def stop(self) -> None:
        """Idempotent."""
        await self._watch.stop()
        await self._audit.stop()

    @property
    def policy(self) -> Policy | None:
        """The policy in force; None: there is none."""
        return self._watch.policy

    def audit_standing(self) -> AuditStanding | None:
        """Return how the audit log is at this moment; None: there is none."""
        return self._audit.standing()

    def standing(self) -> PolicyStanding | None:
        """Return what is known of the policy at this moment; None: there is none."""
        return self._told.standing()

    def allowed(
        self, client: ConnectedClient, messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        """Return those of `messages` that may be handed on; the others were answered. None: they
        cannot be answered, or the client may not be connected, and its connection has ended."""
        policy = self.policy
        passed: Sequence[Message] | None = messages
        if policy is not None:
            denials = [*client.permissions.denials(policy, messages)]
            if policy.mode is Mode.DENY:
                passed = self._without(client, messages, denials)
            else:
                for denial in denials:
                    self._told.observed(
                        client.permissions, denial, client.peer, client.connection_id
                    )
        if self._auditing.is_on and passed is not None:
            passed = self._without(client, passed, self._auditing.refusals(passed))
            if passed is not None:
                peer, number = client.peer, client.connection_id
                self._auditing.note_allowed(
                    client.permissions, policy, passed, peer=peer, connection=number
                )
        return passed

    def _without(
        self, client: ConnectedClient, messages: Sequence[Message], denials: Sequence[Denial]
    ) -> Sequence[Message] | None:
        if not denials:
            return messages
        first = {id(each.message): each for each in reversed(denials)}
        for denial in reversed(first.values()):
            if not self._deny(client, denial):
                return None
        return [each for each in messages if id(each) not in first]

    def _deny(self, client: ConnectedClient, denial: Denial) -> bool:
        """Answer the client; return False if its connection has ended instead, or after it."""
        self._told.denied(client.permissions, denial, client.peer, client.connection_id)
        is_told = Feature.DENIALS in client.link.features
        if is_told:
            self._clients.send(client.connection_id, [denied(denial, client.principal)])
        if is_told and denial.verb is not Verb.CONNECT:
            return True
        self._clients.end(client, f"denied: {denial.reason}")
        return False

    async def _end_the_denied(self, policy: Policy) -> None:
        """End what lasts without further requests and is allowed no longer."""
        if policy.mode is not Mode.DENY:
            return
        mounted = self._mounted()
        for client in list(self._clients):
            lost = client.permissions.lost(policy, mounted.get(client.connection_id, ()))
            for denial in lost:
                if not self._deny(client, denial):
                    break
                assert denial.partition_id is not None, "a mount"
                self._withdraw(client.connection_id, denial.partition_id)
            await asyncio.sleep(0)
