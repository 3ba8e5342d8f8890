"""The comparison of two policies names each right that differs, and its principal."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tests.access.oracle import rights
from tests.access.test_policy import UNIVERSE, random_policy
from waltz.access.policy import NumberRange, Policy, Verb, is_in
from waltz.access.policy_comparison import (
    ALL_HEADERS,
    ANYBODY_ELSE,
    Change,
    QuotaChange,
    changes,
    doubts,
    holders,
    quota_changes,
)
from waltz.access.policy_text import parse_policy
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId

BASE = """
version: 1
mode: deny
default: deny
roles:
  a: {verbs: [append, read], partitions: 0-7, headers: 100..199}
  b: {verbs: [status]}
grants:
  CN=a: [a]
  CN=b: [b]
"""


def policy(*replaced: tuple[str, str]) -> Policy:
    text = BASE
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return parse_policy(text.encode(), "p.yaml")


def test_a_policy_that_is_only_written_otherwise_changes_nothing() -> None:
    added = "x: {verbs: [append, read], partitions: 4-7, headers: [100..150, 151-199]}"
    parts = ("a: {v", f"{added}\n  a: {{v"), ("0-7, ", "0-3, "), ("CN=a: [a]", "CN=a: [a, x]")
    assert changes(policy(), policy(*parts)) == []


def test_what_is_gained_and_lost_is_told_in_ranges() -> None:
    new = policy(("0-7", "2-9"), ("100..199", "150..249"))
    assert changes(policy(), new) == [
        Change("CN=a", Verb.APPEND, True, (NumberRange(2, 7),), (NumberRange(200, 249),)),
        Change("CN=a", Verb.APPEND, True, (NumberRange(8, 9),), (NumberRange(150, 249),)),
        Change("CN=a", Verb.APPEND, False, (NumberRange(0, 1),), (NumberRange(100, 199),)),
        Change("CN=a", Verb.APPEND, False, (NumberRange(2, 7),), (NumberRange(100, 149),)),
        Change("CN=a", Verb.READ, True, (NumberRange(8, 9),), (ALL_HEADERS,)),
        Change("CN=a", Verb.READ, False, (NumberRange(0, 1),), (ALL_HEADERS,)),
    ]


def test_a_new_default_is_told_of_those_whom_nobody_names() -> None:
    found = changes(policy(), policy(("default: deny", "default: allow")))
    everywhere = (NumberRange(0, PARTITIONS_MAX - 1),)
    assert found == [Change(ANYBODY_ELSE, verb, True, everywhere, (ALL_HEADERS,)) for verb in Verb]


@pytest.mark.parametrize("seed", range(8))
def test_the_changes_are_those_that_an_oracle_sees(seed: int) -> None:
    drawn = random.Random(seed)
    old, new = random_policy(drawn), random_policy(drawn)
    policies = [parse_policy(each.encode(), "p") for each in (old, new)]
    texts = {each.text for one in policies for each in one.break_glass}
    texts |= {grant.pattern.text for one in policies for grant in one.grants}
    places = [each for each in UNIVERSE.partitions if each is not None]
    headers = [each for each in UNIVERSE.headers if each is not None]
    universe = UNIVERSE._replace(principals=sorted(texts), partitions=places, headers=headers)
    before, after = rights(old, universe), rights(new, universe)
    told = {
        (change.principal, change.verb.value, place, header, change.is_gained)
        for change in changes(*policies)
        for place, header in product(places, headers)
        if is_in(place, change.partitions) and is_in(header, change.headers)
        and change.principal != ANYBODY_ELSE
    }  # fmt: skip
    gained = {(*each, True) for each in after - before}
    lost = {(*each, False) for each in before - after}
    assert told == gained | lost


def test_holders_are_patterns_and_those_whom_nobody_names() -> None:
    text = BASE.replace("default: deny", "default: allow\nbreak_glass: ['CN=ops*']")
    found = holders(parse_policy(text.encode(), "p"), Verb.APPEND, PartitionId(3), 100)
    assert [each.principal for each in found] == ["CN=ops*", "CN=a", ANYBODY_ELSE]
    assert found[-1].reason == "default: allow"


def test_what_may_be_a_mistake_is_said() -> None:
    text = """
version: 1
mode: observe
default: allow
roles:
  writer: {verbs: [append], partitions: all}
  unused: {verbs: [status]}
grants:
  anonymous: [writer]
  CN=a: [writer]
"""
    found = "\n".join(doubts(parse_policy(text.encode(), "p")))
    for part in (
        "role unused is granted to nobody",
        "role writer may append and not read",
        "mode: observe refuses nothing",
        "default: allow lets everybody",
        "anonymous peers, without a certificate, have append",
    ):
        assert part in found
    strict = "\n".join(doubts(policy()))
    assert strict == "nobody has server\nnobody has admin"


def test_limits_that_differ_are_told_for_each_principal() -> None:
    status = "b: {verbs: [status]"
    new = policy(
        (status, f"{status}, quota: {{appends: 5/s, connections: 2}}"),
        ("CN=a: [a]", "CN=a: [a, b]"),
    )
    assert quota_changes(policy(), new) == [
        QuotaChange("CN=a", "appends", None, 5),
        QuotaChange("CN=a", "connections", None, 2),
        QuotaChange("CN=b", "appends", None, 5),
        QuotaChange("CN=b", "connections", None, 2),
    ]
    assert quota_changes(new, new) == []
    assert "mode: observe holds nobody to a quota" in doubts(
        policy((status, f"{status}, quota: {{appends: 5/s}}"), ("mode: deny", "mode: observe"))
    )
