"""The error that a server's `Denied` becomes in a process that has asked.

Owns its text, with what to do about it. The texts of a server are a peer's: they are bounded, and
shown without control characters.
"""

from __future__ import annotations

from typing import TypeVar

from waltz.errors import PermissionDeniedError
from waltz.log_fields import printable
from waltz.wire.denial_protocol import NO_PARTITION, Denied

E = TypeVar("E", bound=PermissionDeniedError)


def denial_error(denied: Denied) -> PermissionDeniedError:
    """Return the error of a request that was denied: nothing of it was served or stored."""
    principal, verb = printable(denied.principal), printable(denied.verb)
    partition = None if denied.partition_id == NO_PARTITION else denied.partition_id
    place = "" if partition is None else f" at partition {partition}"
    which = "" if partition is None else f" --partition {partition}"
    return PermissionDeniedError(
        f"the server's policy denies {verb}{place} to {principal}: {printable(denied.reason)}."
        f" Have the policy grant it: `waltz policy who-can {verb} FILE{which}` names those who may",
        principal,
        verb,
        partition,
    )


def as_kind(kind: type[E], error: PermissionDeniedError, addition: str) -> E:
    """Return `error` as a more special one, whose text says `addition`."""
    return kind(f"{error}; {addition}", error.principal, error.verb, error.partition)
