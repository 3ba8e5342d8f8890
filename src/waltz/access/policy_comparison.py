"""Comparison of two policies; the holders of a verb; grants that look like mistakes.

Owns the comparison: whatever the roles are called and however ranges are cut, only what is allowed
counts. It asks `decide`, as the processes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from waltz.access.policy import (
    PLACED_VERBS,
    Mode,
    NumberRange,
    Policy,
    Verb,
    decide,
    joined,
    quota_of,
)
from waltz.access.policy_text import HEADER_MAX, HEADER_MIN
from waltz.access.principals import ANONYMOUS_PRINCIPAL
from waltz.access.quota import Quota
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId

ANYBODY_ELSE: Final = "anybody else"
"""The row of all principals that no pattern matches."""

ALL_HEADERS: Final = NumberRange(HEADER_MIN, HEADER_MAX)

_UNNAMED: Final = ""
"""A principal that no pattern matches, and no connection has."""


class Change(NamedTuple):
    """A verb that a principal gets or loses. Empty `partitions`: for what concerns no partition."""

    principal: str
    verb: Verb
    is_gained: bool
    partitions: tuple[NumberRange, ...]
    headers: tuple[NumberRange, ...]
    """The headers of appends; for other verbs all."""


class QuotaChange(NamedTuple):
    """A limit of a principal that differs; None: there is none."""

    principal: str
    limit: str
    before: int | None
    after: int | None


class Holder(NamedTuple):
    principal: str
    reason: str


def principals_of(*policies: Policy) -> list[str]:
    """Return one principal for each pattern of the policies, and one that none names.

    The text of a pattern is a principal that the pattern matches, and every wider pattern, too.
    """
    texts = {
        pattern.text: None
        for policy in policies
        for pattern in (*policy.break_glass, *(grant.pattern for grant in policy.grants))
    }
    return [*texts, _UNNAMED]


def shown(principal: str) -> str:
    return principal or ANYBODY_ELSE


def holders(
    policy: Policy, verb: Verb, partition_id: PartitionId | None, header: int | None
) -> list[Holder]:
    """Return the principals of the policy that may do this, each with the reason."""
    found = []
    for principal in principals_of(policy):
        decision = decide(policy, principal, verb, partition_id, header)
        if decision.is_allowed:
            reason = decision.reason if principal else "default: allow"
            found.append(Holder(shown(principal), reason))
    return found


def changes(old: Policy, new: Policy) -> list[Change]:
    """Return what the new policy grants and the old one does not, and the reverse."""
    return [
        change
        for principal in principals_of(old, new)
        for verb in Verb
        for is_gained, before, after in ((True, old, new), (False, new, old))
        for change in _granted_only_by(after, before, principal, verb, is_gained=is_gained)
    ]


def quota_changes(old: Policy, new: Policy) -> list[QuotaChange]:
    """Return the limits that differ."""
    return [
        QuotaChange(shown(principal), name, before, after)
        for principal in principals_of(old, new)
        for name, before, after in zip(
            Quota._fields, quota_of(old, principal), quota_of(new, principal), strict=True
        )
        if before != after
    ]


def _granted_only_by(
    policy: Policy, other: Policy, principal: str, verb: Verb, *, is_gained: bool
) -> Iterator[Change]:
    partitions, headers = _cells(policy, other, principal)
    if verb is not Verb.APPEND:
        headers = [ALL_HEADERS]
    found: dict[tuple[NumberRange, ...], list[NumberRange]] = {}
    for place in partitions:
        new = [
            each
            for each in headers
            if _is_only_in(
                policy,
                other,
                principal,
                verb,
                place.first,
                each.first if verb is Verb.APPEND else None,
            )
        ]
        if new:
            found.setdefault(joined(new), []).append(place)
    for its_headers, places in found.items():
        yield Change(shown(principal), verb, is_gained, joined(places), its_headers)
    if not found and _is_only_in(policy, other, principal, verb, None, None):
        yield Change(shown(principal), verb, is_gained, (), ())


def _is_only_in(
    policy: Policy,
    other: Policy,
    principal: str,
    verb: Verb,
    partition: int | None,
    header: int | None,
) -> bool:
    place = None if partition is None else PartitionId(partition)
    return (
        decide(policy, principal, verb, place, header).is_allowed
        and not decide(other, principal, verb, place, header).is_allowed
    )


def _cells(
    policy: Policy, other: Policy, principal: str
) -> tuple[list[NumberRange], list[NumberRange]]:
    """Return ranges of partitions and headers within which both policies decide alike."""
    roles = [
        role
        for each in (policy, other)
        for grant in each.grants_of(principal)
        for role in grant.roles
    ]
    partitions = [each for role in roles for each in role.partitions or ()]
    headers = [each for role in roles for each in role.headers or ()]
    return _cut(partitions, 0, PARTITIONS_MAX - 1), _cut(headers, HEADER_MIN, HEADER_MAX)


def _cut(ranges: Sequence[NumberRange], low: int, high: int) -> list[NumberRange]:
    starts = {low, high + 1}
    for first, last in ranges:
        starts |= {first, last + 1}
    return [NumberRange(start, end - 1) for start, end in pairwise(sorted(starts))]


def doubts(policy: Policy) -> list[str]:
    """Return what is allowed in a policy and may be a mistake, a sentence each."""
    found = []
    used = {role.name for grant in policy.grants for role in grant.roles}
    for role in policy.roles:
        if role.name not in used:
            found.append(f"role {role.name} is granted to nobody")
        if Verb.APPEND in role.verbs and Verb.READ not in role.verbs:
            found.append(
                f"role {role.name} may append and not read: a client mounts a partition before it"
                " appends, which takes read"
            )
    if policy.mode is Mode.OBSERVE:
        found.append("mode: observe refuses nothing")
        if policy.has_quotas:
            found.append("mode: observe holds nobody to a quota")
    if policy.allows_by_default:
        found.append("default: allow lets everybody whom no grant names do everything")
    for verb in (Verb.SERVER, Verb.ADMIN):
        if not holders(policy, verb, None, None):
            found.append(f"nobody has {verb.value}")
    for verb in Verb:
        if decide(policy, ANONYMOUS_PRINCIPAL, verb).is_allowed and verb in (
            *PLACED_VERBS,
            Verb.SERVER,
            Verb.ADMIN,
        ):
            found.append(f"{ANONYMOUS_PRINCIPAL} peers, without a certificate, have {verb.value}")
    return found
