"""A policy as a value, and its decisions.

Owns the one rule by which something is allowed. Knows no file and no connection.

    A principal that a break-glass pattern matches may do everything.
    A principal that some grant matches may do what one of its roles says, and nothing else.
    For any other principal the default decides.

A role allows a request if it has the verb, if the request's partition, if any, is one of the
role's, and if the header of an append is one of the role's. Several roles do not add up: one of
them has to allow all of it. The limits of a principal are the least that its roles have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from waltz.access.principals import Pattern
from waltz.access.quota import NO_QUOTA, Quota, least
from waltz.types import PartitionId


class Verb(Enum):
    """A kind of request that a peer may be allowed."""

    CONNECT = "connect"
    """Learn which servers there are, and get a client ID; every role includes it."""
    APPEND = "append"
    """Append to a partition."""
    READ = "read"
    """Mount a partition, and be given its transactions, marks and outcomes."""
    STATUS = "status"
    """Be told how servers, partitions, clients and replicas are."""
    EXPLAIN = "explain"
    """Be told of refused appends and of the locks that refused them."""
    PREFER = "prefer"
    """Change which partitions a server prefers."""
    CUT = "cut"
    """Have servers hold their partitions for a cut."""
    SERVER = "server"
    """Open sessions at a storage node, and read and change what it holds."""
    ADMIN = "admin"
    """Use the admin port of a storage node."""


VERBS: Final = {each.value: each for each in Verb}

PLACED_VERBS: Final = frozenset({Verb.APPEND, Verb.READ})
"""Verbs for which a role must name partitions: nobody is granted all of them by omission."""


SUMMED_VERBS: Final = frozenset({Verb.APPEND, Verb.READ})
"""Verbs of which an audit log has sums. Those of a break-glass principal always are counted."""

AUDITED_VERBS: Final = frozenset({Verb.PREFER, Verb.CUT, Verb.ADMIN})
"""Verbs each request of which is in the audit log: what operators do."""


class Mode(Enum):
    OBSERVE = "observe"
    """Nothing is refused; what would be is logged and counted."""
    DENY = "deny"


class NumberRange(NamedTuple):
    """The numbers from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"


@dataclass(frozen=True, slots=True)
class Role:
    """`partitions` and `headers` ascend and do not overlap; None: all."""

    name: str
    verbs: frozenset[Verb]
    partitions: tuple[NumberRange, ...] | None = None
    headers: tuple[NumberRange, ...] | None = None
    quota: Quota = NO_QUOTA
    audited: frozenset[Verb] = frozenset()
    """Verbs whose requests are counted in the audit log."""

    def has(self, verb: Verb, partition_id: PartitionId | None) -> bool:
        """Whether the role allows the verb at the partition, if any, with some header. `connect`
        concerns no partition."""
        if partition_id is None or self.partitions is None or verb is Verb.CONNECT:
            return verb in self.verbs
        return verb in self.verbs and is_in(partition_id, self.partitions)

    def allows_header(self, header: int | None) -> bool:
        """Whether an append may have the header; None: with some header."""
        return header is None or self.headers is None or is_in(header, self.headers)


def is_in(number: int, ranges: Sequence[NumberRange]) -> bool:
    return any(first <= number <= last for first, last in ranges)


@dataclass(frozen=True, slots=True)
class Grant:
    pattern: Pattern
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A question with the answer that the policy's author expects; `line` is where it stands."""

    principal: str
    verb: Verb
    partition_id: PartitionId | None
    header: int | None
    is_allowed: bool
    line: int


class Decision(NamedTuple):
    is_allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """`version` is the author's, and grows with each change."""

    version: int
    mode: Mode
    allows_by_default: bool
    break_glass: tuple[Pattern, ...]
    roles: tuple[Role, ...]
    grants: tuple[Grant, ...]
    cases: tuple[Case, ...] = ()
    _plain: dict[str, Grant] = field(init=False, repr=False, compare=False)
    """Grants to one principal each; the others have to be tried one after the other."""
    _open: tuple[Grant, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        plain = {each.pattern.text: each for each in self.grants if each.pattern.end is None}
        stars = tuple(each for each in self.grants if each.pattern.end is not None)
        object.__setattr__(self, "_plain", plain)
        object.__setattr__(self, "_open", stars)

    @property
    def has_quotas(self) -> bool:
        return any(each.quota != NO_QUOTA for each in self.roles)

    def breaks_glass(self, principal: str) -> bool:
        return any(each.matches(principal) for each in self.break_glass)

    def grants_of(self, principal: str) -> tuple[Grant, ...]:
        """Return the grants that match the principal."""
        found = tuple(each for each in self._open if each.pattern.matches(principal))
        own = self._plain.get(principal)
        return found if own is None else (own, *found)


NOBODY_MAY: Final = Policy(
    version=0, mode=Mode.DENY, allows_by_default=False, break_glass=(), roles=(), grants=()
)
"""In force where a policy is demanded and none was stored yet. Any that is stored is newer."""


def decide(
    policy: Policy,
    principal: str,
    verb: Verb,
    partition_id: PartitionId | None = None,
    header: int | None = None,
) -> Decision:
    """Return whether the policy allows `principal` the verb at a partition, and why. None: the
    request is for no single partition, or it is no append of one transaction.

    Whether the policy denies or only observes is not weighed here.
    """
    if policy.breaks_glass(principal):
        return Decision(True, f"{principal} is in break_glass")
    grants = policy.grants_of(principal)
    if not grants:
        if policy.version == NOBODY_MAY.version:
            return Decision(False, "no policy is stored yet, and access.policyDemanded is set")
        word = "allow" if policy.allows_by_default else "deny"
        return Decision(policy.allows_by_default, f"no grant names {principal}; default: {word}")
    placed = [
        (grant, role) for grant in grants for role in grant.roles if role.has(verb, partition_id)
    ]
    for grant, role in placed:
        if verb is not Verb.APPEND or role.allows_header(header):
            return Decision(True, f"role {role.name} of {grant.pattern.text}")
    return Decision(False, _denial(principal, verb, partition_id, header, is_placed=bool(placed)))


def _denial(
    principal: str,
    verb: Verb,
    partition_id: PartitionId | None,
    header: int | None,
    *,
    is_placed: bool,
) -> str:
    where = "" if partition_id is None else f" at partition {partition_id}"
    what = f" with header {header}" if is_placed else ""
    return f"no role of {principal} has {verb.value}{where}{what}"


def headers_allowed(
    policy: Policy, principal: str, partition_id: PartitionId | None
) -> tuple[NumberRange, ...] | None:
    """Return the headers with which `principal` may append to the partition, in ranges that ascend
    and do not overlap; None: with all. A partition of None is some partition."""
    if policy.breaks_glass(principal):
        return None
    grants = policy.grants_of(principal)
    if not grants:
        return None if policy.allows_by_default else ()
    found: list[NumberRange] = []
    for grant in grants:
        for role in grant.roles:
            if role.has(Verb.APPEND, partition_id):
                if role.headers is None:
                    return None
                found += role.headers
    return joined(sorted(found))


def quota_of(policy: Policy, principal: str) -> Quota:
    """Return the limits of the principal: of each kind the least that one of its roles has. A
    principal that a break-glass pattern matches, or that no grant matches, has none."""
    if policy.breaks_glass(principal):
        return NO_QUOTA
    return least(role.quota for grant in policy.grants_of(principal) for role in grant.roles)


def audited(policy: Policy, principal: str) -> frozenset[Verb]:
    """Return the verbs of which the principal's requests are counted in the audit log: those that
    one of its roles says."""
    if policy.breaks_glass(principal):
        return SUMMED_VERBS
    roles = [role for grant in policy.grants_of(principal) for role in grant.roles]
    return frozenset().union(*(role.audited for role in roles))


def joined(ranges: Iterable[NumberRange]) -> tuple[NumberRange, ...]:
    """Return the numbers of `ranges`, which ascend, in as few ranges as possible."""
    found: list[NumberRange] = []
    for each in ranges:
        if found and each.first <= found[-1].last + 1:
            found[-1] = NumberRange(found[-1].first, max(found[-1].last, each.last))
        else:
            found.append(each)
    return tuple(found)
