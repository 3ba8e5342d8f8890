"""Asks the policy about what servers and tools send, before anything else hears of it.

Owns the end of a denied peer's connection. Decides nothing: `Permissions` do.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz.access.auditing import Auditing
from waltz.access.permissions import Denial, Permissions
from waltz.access.policy import Mode
from waltz.access.policy_standing import PolicyStanding
from waltz.access.policy_watch_shell import PolicyWatch
from waltz.access.principals import principal_of, user_principal
from waltz.access.told_denials_shell import ToldDenials
from waltz.storage.partition_queue_shell import StoragePeer
from waltz.types import NameSource
from waltz.wire.message import Message


class Gate:
    """See the module. Without a policy everything is allowed.

    A node sends nothing but answers, so nothing goes on that another policy would have to end: each
    request is decided by the policy that is in force when the request arrives.
    """

    def __init__(
        self, watch: PolicyWatch, name_sources: Sequence[NameSource], auditing: Auditing
    ) -> None:
        self._watch = watch
        self._name_sources = name_sources
        self._auditing = auditing
        self._told = ToldDenials(watch, auditing)

    def standing(self) -> PolicyStanding | None:
        """Return what is known of the policy at this moment; None: there is none."""
        return self._told.standing()

    def lets(self, peer: StoragePeer, messages: Sequence[Message]) -> bool:
        """Return whether `messages` may be handed on; else the peer's connection has ended, and
        none of them was."""
        policy = self._watch.policy
        if policy is None and not self._auditing.is_on:
            return True
        if peer.permissions is None:
            user, certificate = peer.connection.user, peer.connection.certificate
            principal = (
                principal_of(certificate, self._name_sources)
                if user is None
                else user_principal(user)
            )
            peer.permissions = Permissions(principal)
        permissions = peer.permissions
        for denial in () if policy is None else permissions.denials(policy, messages):
            if policy is not None and policy.mode is Mode.DENY:
                self._deny(peer, permissions, denial)
                return False
            self._told.observed(permissions, denial, peer.connection.peer)
        if not self._auditing.is_on:
            return True
        for unaudited in self._auditing.refusals(messages):
            self._deny(peer, permissions, unaudited)
            return False
        self._auditing.note_allowed(permissions, policy, messages, peer=peer.connection.peer)
        return True

    def _deny(self, peer: StoragePeer, whose: Permissions, denial: Denial) -> None:
        self._told.denied(whose, denial, peer.connection.peer)
        peer.is_gone = True
        peer.connection.close()
