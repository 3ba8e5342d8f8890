"""The requests of peers as entries of the audit log.

Owns which requests have a line each, and which are counted. Knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from waltz.access.message_verbs import NEEDED_VERB, partitions_asked
from waltz.access.permissions import Denial, Permissions
from waltz.access.policy import AUDITED_VERBS, SUMMED_VERBS, Policy, Verb, audited
from waltz.audit.audit_entry import AuditDecision
from waltz.audit.audit_shell import Audit
from waltz.audit.pending_entries import Summed
from waltz.types import PartitionId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_message import ClientMessage
from waltz.wire.message import Message


class Auditing:
    """See the module."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._counted: WeakKeyDictionary[Permissions, tuple[Policy, frozenset[Verb]]] = (
            WeakKeyDictionary()
        )
        """The verbs of each connection that are counted, by the policy that says so."""

    @property
    def is_on(self) -> bool:
        return self._audit.is_on

    def refusals(self, messages: Sequence[Message]) -> list[Denial]:
        """Return those of `messages` that may not be served, since they could not be audited, with
        the reason."""
        found: list[Denial] = []
        for message in messages:
            verb = NEEDED_VERB.get(type(message))
            if verb in AUDITED_VERBS or verb in SUMMED_VERBS:
                reason = self._audit.refusal(is_data=verb in SUMMED_VERBS)
                if reason is not None:
                    found.append(Denial(verb, None, reason, is_repeated=False, message=message))
        return found

    def note_denial(
        self,
        decision: AuditDecision,
        whose: Permissions,
        policy: Policy | None,
        denial: Denial,
        *,
        peer: str,
        connection: int | None = None,
    ) -> None:
        """Have a line for the first denial of its kind, and a sum of those that are repeated.
        `whose` are the rights of the connection, `peer` and `connection` its address and number."""
        if not self._audit.is_on:
            return
        version = None if policy is None else policy.version
        verb, partition = denial.verb.value, denial.partition_id
        if denial.is_repeated:
            self._audit.add(Summed(whose.principal, verb, partition, version, decision), 1)
            return
        self._audit.note(
            decision,
            verb,
            whose.principal,
            peer,
            partition=partition,
            reason=denial.reason,
            connection=connection,
            request=_request_of(denial.message),
            policy=version,
        )

    def note_allowed(
        self,
        whose: Permissions,
        policy: Policy | None,
        messages: Sequence[Message],
        *,
        peer: str,
        connection: int | None = None,
    ) -> None:
        """Have a line for each request that an operator makes, and count others as roles say."""
        counted = self._counted_of(whose, policy)
        version = None if policy is None else policy.version
        for message in messages:
            verb = NEEDED_VERB.get(type(message))
            if verb in AUDITED_VERBS:
                asked = partitions_asked(message)
                self._audit.note(
                    AuditDecision.ALLOWED,
                    verb.value,
                    whose.principal,
                    peer,
                    partition=asked[0] if len(asked) == 1 else None,
                    reason=type(message).__name__ + _listed(asked),
                    connection=connection,
                    request=_request_of(message),
                    policy=version,
                )
            elif verb in counted:
                count = len(message.appends) if isinstance(message, AppendBatch) else 1
                for partition in partitions_asked(message) or (None,):
                    self._audit.add(Summed(whose.principal, verb.value, partition, version), count)

    def _counted_of(self, whose: Permissions, policy: Policy | None) -> frozenset[Verb]:
        if policy is None:
            return frozenset()
        known = self._counted.get(whose)
        if known is None or known[0] is not policy:
            known = self._counted[whose] = (policy, audited(policy, whose.principal))
        return known[1]


def _listed(asked: Sequence[PartitionId]) -> str:
    return "" if len(asked) < 2 else f" of partitions {', '.join(map(str, asked))}"


def _request_of(message: Message | None) -> str | None:
    return str(message.request_id) if isinstance(message, ClientMessage) else None
