"""The keys that say by which name peers are known, the same for servers and storage nodes."""

from __future__ import annotations

from typing import Final

from waltz.access.principals import Pattern, parse_pattern
from waltz.configuration.keys import Key, ValueKind, boolean, text, whole_number
from waltz.types import NAME_SOURCES, NameSource


def name_sources() -> ValueKind[tuple[NameSource, ...]]:
    """Return the kind of orders of names; no source may stand twice."""

    def convert(value: object) -> tuple[NameSource, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
            raise ValueError
        found = tuple(NameSource(each.strip()) for each in parts)
        if not found or len(set(found)) != len(found):
            raise ValueError
        return found

    def show(value: tuple[NameSource, ...]) -> str:
        return ", ".join(each.value for each in value)

    return ValueKind(f"some of {show(NAME_SOURCES)}, each once", convert, show)


BREAK_GLASS_MAX: Final = 100
"""Patterns of access.breakGlass: each connection tries all of them."""


def patterns() -> ValueKind[tuple[Pattern, ...]]:
    """Return the kind of lists of principals; a text alone is one of them, commas and all."""

    def convert(value: object) -> tuple[Pattern, ...]:
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list) or not 0 < len(parts) <= BREAK_GLASS_MAX:
            raise ValueError
        if not all(isinstance(each, str) for each in parts):
            raise ValueError
        return tuple(map(parse_pattern, parts))

    def show(value: tuple[Pattern, ...]) -> str:
        return ", ".join(each.text for each in value)

    return ValueKind(
        f"a list of 1 to {BREAK_GLASS_MAX} principals, as CN=ops-*, with at most one * each",
        convert,
        show,
    )


PRINCIPAL_FROM: Final = Key(
    name="access.principalFrom",
    kind=name_sources(),
    default=NAME_SOURCES,
    guarded="access",
    description="Kinds of names in a peer's verified certificate of which the first one there is"
    " becomes its principal: URI and DNS name among the subject alternative names, common name,"
    " whole subject.",
)

FROM_COORDINATOR: Final = "coordinator"
"""The value of access.policy with which a process follows the policy that the coordinator keeps."""

POLICY: Final = Key(
    name="access.policy",
    kind=text(f"the path of a policy file, or {FROM_COORDINATOR}"),
    guarded="access",
    description="File that says what each peer may do, docs/operating/policy.md; read again when it"
    f" changes. {FROM_COORDINATOR}: the policy that the coordinator keeps, stored by"
    " waltz policy apply. Without the key"
    " every peer may do everything.",
)

POLICY_DEMANDED: Final = Key(
    name="access.policyDemanded",
    kind=boolean(),
    default=False,
    guarded="access",
    description="Whether a process with access.policy: coordinator that finds no policy there when"
    " it starts refuses all but access.breakGlass until one is stored. Without it such a process"
    " refuses nobody.",
)

BREAK_GLASS: Final = Key(
    name="access.breakGlass",
    kind=patterns(),
    guarded="access",
    description="Principals that may do everything at this process, whatever the policy says;"
    " without a policy the key changes nothing.",
)
TOKENS: Final = Key(
    name="access.tokens",
    kind=text("the path of a file of tokens"),
    guarded="access",
    description="File of the tokens by which clients without a certificate are known,"
    " docs/operating/policy.md; read again when it changes. With server.ssl.trustStore a client"
    " then has to show a certificate or a token.",
)

LOCAL_SOCKETS: Final = Key(
    name="access.localSockets",
    kind=text("the path of an existing directory"),
    guarded="access",
    description="Directory in which this process listens on a socket for each of its ports, but"
    " HTTP. The system proves which user of this machine connects there: the principal is"
    " user:NAME, docs/operating/policy.md. Linux only.",
)

AUDIT_FILE: Final = Key(
    name="access.audit.file",
    kind=text("the path of a file"),
    guarded="access",
    description="Audit log of this process, docs/operating/audit.md: what was denied and what"
    " operators did. Without it there is none.",
)

AUDIT_STRICT: Final = Key(
    name="access.audit.strict",
    kind=boolean(),
    default=False,
    guarded="access",
    description="Whether appends and reads are refused, too, while the audit log takes no entries.",
)

AUDIT_FILE_SIZE: Final = Key(
    name="access.audit.fileSize",
    kind=whole_number(1, 100_000, "MiB"),
    default=64,
    guarded="access",
    description="Size from which on the file is replaced by a new one.",
)

AUDIT_FILES: Final = Key(
    name="access.audit.files",
    kind=whole_number(2, 1_000),
    default=10,
    guarded="access",
    description="Number of files of the audit log; with one more, the oldest is removed.",
)

AUDIT_KEYS: Final = (AUDIT_FILE, AUDIT_STRICT, AUDIT_FILE_SIZE, AUDIT_FILES)
