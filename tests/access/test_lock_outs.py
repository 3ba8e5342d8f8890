"""Policies that would lock somebody out: each attempt is refused, and names who and the remedy."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from waltz.access.lock_outs import Known, Override, Reason, SeenClient, reasons_against
from waltz.access.policy import Policy
from waltz.access.policy_text import POLICY_BYTES_MAX, parse_policy
from waltz.errors import ConfigurationError
from waltz.types import PartitionId

GOOD = """
version: 7
mode: deny
default: deny
roles:
  orders: {verbs: [append, read], partitions: 0-3}
  operator: {verbs: [status, admin]}
  node: {verbs: [server]}
grants:
  "CN=orders": [orders]
  "CN=ann": [operator]
  "CN=waltz-*": [node]
cases:
  - {principal: "CN=ann", verb: admin, expect: allow}
"""


def policy(text: str) -> Policy:
    return parse_policy(text.encode(), "new.yaml")


def changed(*pairs: tuple[str, str]) -> str:
    text = GOOD
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


ORDERS = SeenClient("CN=orders", "10.0.0.9:5", {PartitionId(2): True, PartitionId(3): False}, True)
SERVERS: dict[str, str | None] = {"a:1": "CN=waltz-a", "b:1": "CN=waltz-b"}
KNOWN = Known("CN=ann", 4, SERVERS, (ORDERS,), {})
STORED = policy(GOOD.replace("version: 7", "version: 6"))
GRANT_ORDERS = '"CN=orders": [orders]'
GRANT_ANN = '"CN=ann": [operator]'
GRANT_NODE = '"CN=waltz-*": [node]'
NO_CASE = ('cases:\n  - {principal: "CN=ann", verb: admin, expect: allow}\n', "")
ALLOWS = ("default: deny", "default: allow")
PLACED_ADMIN = ("{verbs: [status, admin]}", "{verbs: [status, admin], partitions: 0-2}")


@dataclass
class Attempt:
    """A new text, and what its refusal has to say."""

    text: str
    said: str
    override: Override = Override.NONE
    known: Known = KNOWN
    stored: Policy | None = field(default_factory=lambda: STORED)


ATTEMPTS = {
    "the version stays": Attempt(
        changed(("version: 7", "version: 6")), "version 6 is not above 6, which is stored"
    ),
    "the version falls": Attempt(
        changed(("version: 7", "version: 1")), "version 1 is not above 6, which is stored"
    ),
    "a case contradicts": Attempt(
        changed(("expect: allow", "expect: deny")), "the case on line 14 is not as expected"
    ),
    "no admin at all": Attempt(
        changed(("[status, admin]", "[status]"), NO_CASE), "nobody would have admin"
    ),
    "the operator is left out": Attempt(
        changed((GRANT_ANN, '"CN=bob": [operator]'), NO_CASE),
        "you, CN=ann, would not have admin: no grant names CN=ann",
    ),
    "the operator has another role": Attempt(
        changed((GRANT_ANN, '"CN=ann": [orders]\n  "CN=bob": [operator]'), NO_CASE),
        "you, CN=ann, would not have admin: no role of CN=ann has admin",
    ),
    "the operator's name is of another kind": Attempt(
        changed((GRANT_ANN, '"DNS=ann": [operator]'), NO_CASE),
        "you, CN=ann, would not have admin",
    ),
    "the operator's name is in other letters": Attempt(
        changed((GRANT_ANN, '"CN=Ann": [operator]'), NO_CASE),
        "you, CN=ann, would not have admin",
    ),
    "the operator has admin for some partitions": Attempt(
        changed(PLACED_ADMIN), "no role of CN=ann has admin at partition 3"
    ),
    "a grant takes from the operator what the default gives": Attempt(
        changed((GRANT_ANN, '"CN=ann": [orders]'), ALLOWS, NO_CASE),
        "you, CN=ann, would not have admin: no role of CN=ann has admin",
    ),
    "the operator shows no certificate": Attempt(
        GOOD, "you, anonymous, would not have admin", known=KNOWN._replace(applier="anonymous")
    ),
    "no server is granted anything": Attempt(
        changed((GRANT_NODE, '"CN=nodes": [node]')),
        "server a:1, CN=waltz-a, would not have server: no grant names CN=waltz-a",
    ),
    "one of the servers is left out": Attempt(
        changed((GRANT_NODE, '"CN=waltz-a": [node]')),
        "server b:1, CN=waltz-b, would not have server: no grant names CN=waltz-b",
    ),
    "servers are granted something else": Attempt(
        changed((GRANT_NODE, '"CN=waltz-*": [operator]')), "no role of CN=waltz-a has server"
    ),
    "a grant takes from servers what the default gives": Attempt(
        changed((GRANT_NODE, '"CN=waltz-*": [orders]'), ALLOWS), "no role of CN=waltz-a has server"
    ),
    "servers are granted some partitions": Attempt(
        changed(("{verbs: [server]}", "{verbs: [server], partitions: 1-3}")),
        "no role of CN=waltz-a has server at partition 0",
    ),
    "servers are granted by another kind of name": Attempt(
        changed((GRANT_NODE, '"spiffe://waltz-*": [node]')), "CN=waltz-a, would not have server"
    ),
    "a server's principal is not known": Attempt(
        GOOD,
        "the principal of server b:1 is not known",
        Override.UNKNOWN,
        KNOWN._replace(servers={"a:1": "CN=waltz-a", "b:1": None}),
    ),
    "a connected client is left out": Attempt(
        changed((GRANT_ORDERS, '"CN=other": [orders]')),
        "client CN=orders at 10.0.0.9:5, connected now, would lose connect",
        Override.DENY,
    ),
    "a connected client loses a partition that it reads": Attempt(
        changed(("0-3", "0-2")),
        "would lose read: no role of CN=orders has read at partition 3",
        Override.DENY,
    ),
    "a connected client loses append": Attempt(
        changed(("[append, read]", "[read]")),
        "would lose append: no role of CN=orders has append at partition 2",
        Override.DENY,
    ),
    "a connected client may use some headers": Attempt(
        changed(("partitions: 0-3", "partitions: 0-3, headers: 5")),
        "appends to partition 2 with headers that are not known",
        Override.UNKNOWN,
    ),
    "a client's principal is not known": Attempt(
        GOOD,
        "the principal of the client at 10.0.0.9:5 is not known",
        Override.UNKNOWN,
        KNOWN._replace(clients=(ORDERS._replace(principal=None),)),
    ),
    "a client has more mounts than are told": Attempt(
        GOOD,
        "has mounted more partitions than its server tells",
        Override.UNKNOWN,
        KNOWN._replace(clients=(ORDERS._replace(is_complete=False),)),
    ),
    "a server does not tell its clients": Attempt(
        GOOD,
        "server b:1 does not tell its clients: no answer",
        Override.UNKNOWN,
        KNOWN._replace(unasked={"b:1": "no answer"}),
    ),
    "the first policy of all denies": Attempt(
        GOOD, "store it with mode: observe first", Override.DENY, stored=None
    ),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_to_lock_somebody_out_is_refused(name: str) -> None:
    attempt = ATTEMPTS[name]
    found = reasons_against(attempt.stored, policy(attempt.text), attempt.known)
    (reason, *_) = [each for each in found if attempt.said in each.text]
    assert reason.override is attempt.override
    assert "; " in reason.text, "a remedy"


FAULTS = {
    "empty grants": changed((GRANT_ORDERS, ""), (GRANT_ANN, ""), (GRANT_NODE, "")),
    "an unknown role": changed((GRANT_ANN, '"CN=ann": [operators]')),
    "a pattern that can match nobody": changed((GRANT_ANN, '"ann": [operator]')),
    "a pattern for every kind of name": changed((GRANT_ANN, '"*": [operator]')),
    "no YAML": GOOD + "]",
    "too much": GOOD + "#" * POLICY_BYTES_MAX,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_text_with_a_fault_is_no_policy(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"new\.yaml"):
        policy(FAULTS[name])


def test_nothing_speaks_against_a_policy_that_takes_nothing_from_those_who_are_there() -> None:
    assert reasons_against(STORED, policy(GOOD), KNOWN) == []


def test_a_policy_that_observes_locks_nobody_out() -> None:
    text = changed(("mode: deny", "mode: observe"), (GRANT_NODE, '"CN=a": [node]'))
    known = KNOWN._replace(applier="anonymous", unasked={"b:1": "no answer"})
    assert reasons_against(None, policy(text), known) == []
    (reason,) = reasons_against(policy(GOOD), policy(text), known)
    assert reason == Reason("version 7 is not above 7, which is stored; raise version")


def test_a_break_glass_principal_needs_no_grant() -> None:
    text = changed((GRANT_ANN, '"CN=x": [operator]'), ("roles:", 'break_glass: ["CN=ann"]\nroles:'))
    assert reasons_against(STORED, policy(text), KNOWN) == []
