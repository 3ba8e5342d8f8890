"""Tells of what a policy denies: counts it, logs it, and has it in the audit log.

Owns the counts of one process. Decides nothing, and ends no connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from waltz.access.auditing import Auditing
from waltz.access.permissions import Denial, Permissions
from waltz.access.policy import Mode
from waltz.access.policy_standing import PolicyStanding
from waltz.access.policy_watch_shell import PolicyWatch
from waltz.audit.audit_entry import AuditDecision
from waltz.peer_log import PeerLog

logger = logging.getLogger(__name__)


class ToldDenials:
    """See the module."""

    def __init__(self, watch: PolicyWatch, auditing: Auditing) -> None:
        self._watch = watch
        self._auditing = auditing
        self._counts: Counter[tuple[str, str]] = Counter()
        self._peer_log = PeerLog(logger, asyncio.get_running_loop)

    def standing(self) -> PolicyStanding | None:
        """Return what is known of the policy at this moment; None: there is none."""
        policy, is_faulty = self._watch.policy, self._watch.is_faulty
        if policy is None and not is_faulty:
            return None
        return PolicyStanding(
            None if policy is None else policy.version,
            policy is not None and policy.mode is Mode.DENY,
            is_faulty,
            tuple(sorted(self._counts.items())),
        )

    def denied(
        self, whose: Permissions, denial: Denial, peer: str, connection: int | None = None
    ) -> None:
        """Tell of a request that was refused, or that ends the connection. `whose` are the rights
        of the connection, `peer` and `connection` its address and number."""
        self._note(AuditDecision.DENIED, whose, denial, peer, connection)
        self._peer_log.warning(
            "request_denied peer=%s principal=%s verb=%s partition=%s reason=%s",
            *_facts(whose, denial, peer),
        )

    def observed(
        self, whose: Permissions, denial: Denial, peer: str, connection: int | None = None
    ) -> None:
        """Tell of a request that was served, since the policy only observes."""
        self._note(AuditDecision.OBSERVED, whose, denial, peer, connection)
        if not denial.is_repeated:
            self._peer_log.warning(
                "request_would_be_denied peer=%s principal=%s verb=%s partition=%s reason=%s",
                *_facts(whose, denial, peer),
            )

    def _note(
        self,
        decision: AuditDecision,
        whose: Permissions,
        denial: Denial,
        peer: str,
        connection: int | None,
    ) -> None:
        self._counts[denial.verb.value, decision.value] += 1
        policy = self._watch.policy
        self._auditing.note_denial(
            decision, whose, policy, denial, peer=peer, connection=connection
        )


def _facts(whose: Permissions, denial: Denial, peer: str) -> tuple[object, ...]:
    return peer, whose.principal, denial.verb.value, denial.partition_id, denial.reason
