"""The decisions of a policy."""

from __future__ import annotations

import random

import pytest

from tests.access.oracle import Universe, rights
from waltz.access.policy import VERBS, Policy, Verb, decide, headers_allowed, is_in
from waltz.access.policy_text import parse_policy
from waltz.types import PartitionId

EXAMPLE = """
version: 7
mode: deny
default: deny
break_glass: ["CN=ops-*"]
roles:
  orders: {verbs: [append, read], partitions: 0-7, headers: 100..199}
  refunds: {verbs: [append, read], partitions: [2, 9], headers: [-5..-1, 7]}
  reader: {verbs: [read], partitions: all}
  operator: {verbs: [status, admin]}
  node: {verbs: [server]}
grants:
  spiffe://prod/orders: [orders]
  CN=spark: [reader]
  CN=both: [orders, refunds]
  CN=waltz-*: [node, operator]
  CN=waltz-7: [reader]
"""

PRINCIPALS = (
    "anonymous",
    "CN=ops-1",
    "CN=ops",
    "CN=spark",
    "CN=spark2",
    "CN=both",
    "CN=waltz-7",
    "CN=waltz-8",
    "DNS=waltz-7",
    "DN=CN=spark",
    "spiffe://prod/orders",
    "spiffe://prod/orders/x",
)
PATTERNS = (*PRINCIPALS, "CN=*", "CN=waltz-*", "CN=*-7", "spiffe://prod/*", "DNS=*", "CN=s*k")
UNIVERSE = Universe(
    PRINCIPALS, tuple(VERBS), (None, 0, 1, 2, 7, 8, 9, 99), (None, -6, -5, -1, 0, 7, 99, 100)
)


def policy(text: str = EXAMPLE) -> Policy:
    return parse_policy(text.encode(), "policy.yaml")


@pytest.mark.parametrize(
    ("principal", "verb", "partition", "header", "is_allowed", "reason"),
    [
        ("spiffe://prod/orders", "append", 3, 150, True, "role orders of spiffe://prod/orders"),
        ("spiffe://prod/orders", "append", 3, 99, False,
         "no role of spiffe://prod/orders has append at partition 3 with header 99"),
        ("spiffe://prod/orders", "append", 8, 150, False,
         "no role of spiffe://prod/orders has append at partition 8"),
        ("spiffe://prod/orders", "status", None, None, False,
         "no role of spiffe://prod/orders has status"),
        ("spiffe://prod/orders", "connect", None, None, True,
         "role orders of spiffe://prod/orders"),
        ("CN=ops-1", "admin", None, None, True, "CN=ops-1 is in break_glass"),
        ("CN=opsy", "admin", None, None, False, "no grant names CN=opsy; default: deny"),
        ("anonymous", "read", 0, None, False, "no grant names anonymous; default: deny"),
        ("CN=waltz-7", "read", 5, None, True, "role reader of CN=waltz-7"),
        ("CN=waltz-7", "server", 5, None, True, "role node of CN=waltz-*"),
        ("DNS=waltz-7", "server", 5, None, False, "no grant names DNS=waltz-7; default: deny"),
    ],
)  # fmt: skip
def test_a_decision_says_why(
    principal: str,
    verb: str,
    partition: PartitionId | None,
    header: int | None,
    is_allowed: bool,
    reason: str,
) -> None:
    assert decide(policy(), principal, VERBS[verb], partition, header) == (is_allowed, reason)


def test_two_roles_do_not_add_up() -> None:
    """One has the partition and the other the header; none has both."""
    assert not decide(policy(), "CN=both", Verb.APPEND, PartitionId(9), 150).is_allowed
    assert not decide(policy(), "CN=both", Verb.APPEND, PartitionId(3), 7).is_allowed
    assert decide(policy(), "CN=both", Verb.APPEND, PartitionId(2), 150).is_allowed
    assert decide(policy(), "CN=both", Verb.APPEND, PartitionId(2), -5).is_allowed


def test_the_default_is_only_for_those_whom_no_grant_names() -> None:
    open_policy = policy(EXAMPLE.replace("default: deny", "default: allow"))
    assert decide(open_policy, "anonymous", Verb.ADMIN).is_allowed
    assert not decide(open_policy, "CN=spark", Verb.ADMIN).is_allowed


def random_policy(drawn: random.Random) -> str:
    """Return the text of a policy with roles, grants and patterns at random."""
    roles = []
    for number in range(drawn.randint(1, 4)):
        verbs = drawn.sample(UNIVERSE.verbs, drawn.randint(1, 4))
        parts = [f"verbs: [{', '.join(verbs)}]"]
        if {"append", "read"} & set(verbs) or drawn.random() < 0.5:
            parts.append(f"partitions: {drawn.choice(['all', '0-1', '[2, 7-9]', '7', '0..8'])}")
        if "append" in verbs and drawn.random() < 0.7:
            headers = drawn.choice(["all", "-5..-1", "[-6, 7]", "0-100", "100"])
            parts.append(f"headers: {headers}")
        roles.append(f"  r{number}: {{{', '.join(parts)}}}")
    grants = []
    for pattern in drawn.sample(PATTERNS, drawn.randint(1, 6)):
        names = [f"r{number}" for number in range(len(roles))]
        given = drawn.sample(names, drawn.randint(1, len(names)))
        grants.append(f"  {pattern}: [{', '.join(given)}]")
    glass = f'break_glass: ["{drawn.choice(PATTERNS)}"]' if drawn.random() < 0.3 else ""
    default = drawn.choice(["allow", "deny"])
    start = ["version: 1", "mode: deny", f"default: {default}", glass]
    return "\n".join([*start, "roles:", *roles, "grants:", *grants])


@pytest.mark.parametrize("questions", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_an_oracle_that_lists_every_right_agrees(questions: int) -> None:
    drawn = random.Random(questions)
    allowed = asked = 0
    while asked < questions:
        text = random_policy(drawn)
        expected, tried = rights(text, UNIVERSE), policy(text)
        for _ in range(max(500, questions // 250)):
            principal, verb, partition, header = question = (
                drawn.choice(UNIVERSE.principals),
                drawn.choice(UNIVERSE.verbs),
                drawn.choice(UNIVERSE.partitions),
                drawn.choice(UNIVERSE.headers),
            )
            place = None if partition is None else PartitionId(partition)
            found = decide(tried, principal, VERBS[verb], place, header)
            assert found.is_allowed == (question in expected), (text, question, found)
            allowed += found.is_allowed
            asked += 1
            if verb == "append" and place is not None and header is not None:
                headers = headers_allowed(tried, principal, place)
                assert (headers is None or is_in(header, headers)) == found.is_allowed
    assert asked / 10 < allowed < asked * 9 / 10, "the questions tell both answers apart"
