"""Reasons why a policy may not be stored: somebody would be locked out, or might be.

Owns what a new policy must not take from those who hold a cluster up: the person who stores it, the
servers, the clients that are connected. A policy that only observes locks nobody out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from waltz.access.policy import Decision, Mode, Policy, Verb, decide, headers_allowed
from waltz.access.policy_comparison import holders
from waltz.types import PartitionId


class Override(Enum):
    """The option with which a policy is stored in spite of a reason."""

    NONE = ""
    DENY = "--yes-deny"
    UNKNOWN = "--yes-unknown"


class Reason(NamedTuple):
    """A sentence that names who and the remedy."""

    text: str
    override: Override = Override.NONE


class SeenClient(NamedTuple):
    """A connected client. `mounts` has the partitions that it has mounted, each with whether it
    appends there; `is_complete` is False if there are more. `principal` None: not known."""

    principal: str | None
    address: str
    mounts: Mapping[PartitionId, bool]
    is_complete: bool


class Known(NamedTuple):
    """The peers of a cluster, as far as they are known."""

    applier: str
    partition_count: int
    servers: Mapping[str, str | None]
    """The principal of each live server by its address; None: not known."""
    clients: Sequence[SeenClient]
    unasked: Mapping[str, str]
    """Servers that did not tell their clients, each with why."""


def reasons_against(stored: Policy | None, new: Policy, known: Known) -> list[Reason]:
    """Return the reasons against storing `new` in place of `stored`; None: there is none yet."""
    found = [*_of_the_text(stored, new)]
    if new.mode is Mode.DENY:
        if stored is None:
            found.append(
                Reason(
                    "no policy is stored yet, so nobody has seen what this one denies; store it"
                    " with mode: observe first",
                    Override.DENY,
                )
            )
        found += _of_the_applier(new, known)
        found += _of_servers(new, known)
        found += _of_clients(stored, new, known)
    return found


def _of_the_text(stored: Policy | None, new: Policy) -> Iterator[Reason]:
    if stored is not None and new.version <= stored.version:
        yield Reason(
            f"version {new.version} is not above {stored.version}, which is stored; raise version"
        )
    for case in new.cases:
        decision = decide(new, case.principal, case.verb, case.partition_id, case.header)
        if decision.is_allowed != case.is_allowed:
            yield Reason(
                f"the case on line {case.line} is not as expected: {decision.reason}; correct the"
                " grants or the case"
            )


def _denials(
    policy: Policy, principal: str, verb: Verb, places: Iterable[PartitionId | None]
) -> Iterator[Decision]:
    for place in places:
        decision = decide(policy, principal, verb, place)
        if not decision.is_allowed:
            yield decision


def _first_denial(policy: Policy, principal: str, verb: Verb, known: Known) -> Decision | None:
    """Return why the principal lacks the verb for the cluster as a whole; None: it has it."""
    places = (None, *map(PartitionId, range(known.partition_count)))
    return next(_denials(policy, principal, verb, places), None)


def _of_the_applier(new: Policy, known: Known) -> Iterator[Reason]:
    if not holders(new, Verb.ADMIN, None, None):
        yield Reason("nobody would have admin; grant a role with admin to an operator")
    denial = _first_denial(new, known.applier, Verb.ADMIN, known)
    if denial is not None:
        yield Reason(
            f"you, {known.applier}, would not have admin: {denial.reason}; grant {known.applier} a"
            " role with admin and partitions: all, or say by --as who you are to storage nodes"
        )


def _of_servers(new: Policy, known: Known) -> Iterator[Reason]:
    for address, principal in known.servers.items():
        if principal is None:
            yield Reason(
                f"the principal of server {address} is not known: nobody can say if it would keep"
                " server; name the principals of all servers by --node-principal",
                Override.UNKNOWN,
            )
            continue
        denial = _first_denial(new, principal, Verb.SERVER, known)
        if denial is not None:
            yield Reason(
                f"server {address}, {principal}, would not have server: {denial.reason}; grant"
                f" {principal} a role with server"
            )


def _of_clients(stored: Policy | None, new: Policy, known: Known) -> Iterator[Reason]:
    for address, why in known.unasked.items():
        yield Reason(
            f"server {address} does not tell its clients: {why}; ask again once it does",
            Override.UNKNOWN,
        )
    for client in known.clients:
        if client.principal is None:
            yield Reason(
                f"the principal of the client at {client.address} is not known: its server's"
                " release does not tell; update the server",
                Override.UNKNOWN,
            )
            continue
        yield from _of_client(stored, new, client, client.principal)
        if not client.is_complete:
            yield Reason(
                f"client {client.principal} at {client.address} has mounted more partitions than"
                " its server tells; compare its grants by waltz policy diff",
                Override.UNKNOWN,
            )


def _of_client(
    stored: Policy | None, new: Policy, client: SeenClient, principal: str
) -> Iterator[Reason]:
    who = f"client {principal} at {client.address}, connected now,"
    remedy = f"grant {principal} a role with it"
    if lost := next(_denials(new, principal, Verb.CONNECT, (None,)), None):
        yield Reason(f"{who} would lose connect: {lost.reason}; {remedy}", Override.DENY)
        return
    for place, writes in client.mounts.items():
        for verb in (Verb.READ, Verb.APPEND) if writes else (Verb.READ,):
            for denial in _denials(new, principal, verb, (place,)):
                text = f"{who} would lose {verb.value}: {denial.reason}; {remedy}"
                yield Reason(text, Override.DENY)
        after = headers_allowed(new, principal, place) if writes else None
        if after and (stored is None or headers_allowed(stored, principal, place) != after):
            yield Reason(
                f"{who} appends to partition {place} with headers that are not known, and the"
                f" policy has others than before; grant {principal} all headers, or make sure that"
                " it uses those of its role",
                Override.UNKNOWN,
            )
