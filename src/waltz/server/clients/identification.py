"""The principal of a connection that arrives: its local user, its certificate or its bearer token.

Owns the rule, and who is refused at once because neither will do. Knows no socket, and shows no
token in a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from waltz.access.policy_watch_shell import AccessConfig
from waltz.access.principals import (
    ANONYMOUS_PRINCIPAL,
    principal_of,
    token_principal,
    user_principal,
)
from waltz.types import NAME_SOURCES, CertificateNames, LocalUser, NameSource

PLAIN: Final = (
    "a bearer token was sent in plain, where others can read it: it is not taken; make another one,"
    " and speak TLS"
)
UNKNOWN_TOKEN: Final = "the bearer token is not known here"  # noqa: S105 -- a reason
NOBODY: Final = (
    "neither a certificate nor a bearer token was shown; versions 0 to 4 have no place for a token"
)


class Identified(NamedTuple):
    principal: str
    by_token: bool = False


class Unidentified(NamedTuple):
    """A peer that is refused, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Identification:
    """The rule of one server. `token_name` returns the name of a token; None: the server takes
    none, and skips those that are shown. `demands_identity`: a peer that speaks TLS must show a
    certificate or a token."""

    name_sources: Sequence[NameSource] = NAME_SOURCES
    token_name: Callable[[str], str | None] | None = None
    demands_identity: bool = False

    def of(
        self,
        certificate: CertificateNames | None,
        shown: str | None,
        *,
        is_encrypted: bool,
        user: LocalUser | None = None,
    ) -> Identified | Unidentified:
        """Return the principal of a peer; `certificate` is the verified one, `shown` the token,
        `user` the local user that the system proves, and None is for none of each. A user counts,
        or else a certificate, whatever token comes with it."""
        if user is not None:
            return Identified(user_principal(user))
        if certificate is not None:
            return Identified(principal_of(certificate, self.name_sources))
        if shown is not None and self.token_name is not None:
            if not is_encrypted:
                return Unidentified(PLAIN)
            name = self.token_name(shown)
            if name is None:
                return Unidentified(UNKNOWN_TOKEN)
            return Identified(token_principal(name), by_token=True)
        if self.demands_identity and is_encrypted:
            return Unidentified(NOBODY)
        return Identified(ANONYMOUS_PRINCIPAL)


BY_CERTIFICATE: Final = Identification()
"""The rule without any configuration."""


def rule_of(access: AccessConfig) -> Identification:
    """Return the rule that the configuration of a process says."""
    return Identification(access.name_sources, access.token_name, access.demands_identity)
