"""The principal of a connection: the one name by which a policy knows its peer.

Owns how a name in a certificate becomes a principal, and how a pattern of a policy matches one.
Knows no certificate: it is given the names of one that was verified. Always: principals of
different kinds differ, whatever a certificate says, and no name makes a principal `anonymous`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from waltz.types import NAME_SOURCES, CertificateNames, LocalUser, NameSource

PRINCIPAL_CHARACTERS_MAX: Final = 256
"""Characters of a principal; a certificate with a longer name is nobody's."""

ANONYMOUS_PRINCIPAL: Final = "anonymous"
"""The principal of a peer without a verified certificate, or without a usable name in it."""

PATTERN_EXPECTED: Final = (
    "expected scheme://..., DNS=..., CN=..., DN=..., token:..., user:... or uid:..., with at most"
    f" one * in what follows, or {ANONYMOUS_PRINCIPAL}"
)

_URI_START: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
TOKEN_PRINCIPAL: Final = "token:"  # noqa: S105 -- the kind of name
"""Start of the principal of a peer that has shown a bearer token; no URI becomes one like it."""

USER_PRINCIPAL: Final = "user:"
"""Start of the principal of a user of this machine who has a name; no URI becomes one like it."""

UID_PRINCIPAL: Final = "uid:"
"""The same for a user without a name."""

_PROVEN_OTHERWISE: Final = (TOKEN_PRINCIPAL, USER_PRINCIPAL, UID_PRINCIPAL)
_PREFIXES: Final = ("DNS=", "CN=", "DN=", *_PROVEN_OTHERWISE)


def principal_of(
    names: CertificateNames | None, sources: Sequence[NameSource] = NAME_SOURCES
) -> str:
    """Return the principal of a peer whose verified certificate has these names; None: it has shown
    no certificate.

    The first source of which the certificate has a name decides, with the first name of that kind.
    A name that cannot be shown, is too long or is no URI with an authority makes the peer
    anonymous: another name of the certificate might grant more than that one.
    """
    if names is None:
        return ANONYMOUS_PRINCIPAL
    for source in sources:
        if name := _first_name(names, source):
            is_of_its_kind = source is not NameSource.URI or _is_uri(name)
            return name if is_of_its_kind and is_principal(name) else ANONYMOUS_PRINCIPAL
    return ANONYMOUS_PRINCIPAL


def _is_uri(name: str) -> bool:
    return not name.startswith(_PROVEN_OTHERWISE) and _URI_START.match(name) is not None


def token_principal(name: str) -> str:
    """Return the principal of a peer whose bearer token has this name."""
    return f"{TOKEN_PRINCIPAL}{name}"


def user_principal(user: LocalUser) -> str:
    """Return the principal of a user of this machine. A name that cannot be shown, or is too long,
    counts as none: the user's number is as good a proof."""
    named = f"{USER_PRINCIPAL}{user.name}"
    return named if user.name and is_principal(named) else f"{UID_PRINCIPAL}{user.uid}"


def _first_name(names: CertificateNames, source: NameSource) -> str | None:
    match source:
        case NameSource.URI:
            return names.uris[0] if names.uris else None
        case NameSource.DNS:
            return f"DNS={names.dns_names[0].lower()}" if names.dns_names else None
        case NameSource.COMMON_NAME:
            return f"CN={names.common_names[0]}" if names.common_names else None
        case NameSource.DISTINGUISHED_NAME:
            return f"DN={names.distinguished_name}" if names.distinguished_name else None


def kind_of(text: str) -> str:
    """Return the start of a principal or pattern that says which kind of name follows, for instance
    `CN=` or `spiffe://`; empty if the text names no kind, or nothing follows."""
    start = _URI_START.match(text)
    prefix = start.group() if start else next(filter(text.startswith, _PREFIXES), "")
    return prefix if len(text) > len(prefix) else ""


def is_principal(text: str) -> bool:
    """Whether some connection can have this principal."""
    is_shown = text.isprintable() and len(text) <= PRINCIPAL_CHARACTERS_MAX
    return text == ANONYMOUS_PRINCIPAL or (is_shown and bool(kind_of(text)))


class Pattern(NamedTuple):
    """A pattern of a policy: a principal, or two parts with a `*` between, for which any characters
    stand. It matches principals of its own kind of name only."""

    text: str
    start: str
    end: str | None
    """None: the pattern has no `*`."""

    def matches(self, principal: str) -> bool:
        if self.end is None:
            return principal == self.text
        return (
            len(principal) >= len(self.start) + len(self.end)
            and principal.startswith(self.start)
            and principal.endswith(self.end)
        )


def parse_pattern(text: str) -> Pattern:
    """Return the pattern. Raises ValueError: it can match no principal, or has more than one
    `*`."""
    is_lower = not text.startswith("DNS=") or text[4:] == text[4:].lower()
    if not is_principal(text) or text.count("*") > 1 or not is_lower:
        raise ValueError(PATTERN_EXPECTED)
    start, star, end = text.partition("*")
    return Pattern(text, start, end if star else None)
