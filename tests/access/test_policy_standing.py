"""The figures of a process about its policy, from a standing to readings."""

from __future__ import annotations

from collections.abc import Sequence

from waltz.access.policy_standing import PolicyStanding, denied_requests, policy_metrics
from waltz.figures import Family, Metric

STANDING = PolicyStanding(7, True, False, ((("append", "denied"), 2), (("read", "observed"), 1)))


def readings(standing: PolicyStanding | None) -> dict[str, float | None]:
    metrics: Sequence[Metric[PolicyStanding | None]] = policy_metrics(lambda found: found)
    return {each.name: each.value(standing) for each in metrics}


def test_a_standing_is_a_version_and_two_flags() -> None:
    assert readings(STANDING) == {
        "policy_version": 7,
        "policy_denies": 1,
        "policy_file_faulty": 0,
    }
    assert readings(STANDING._replace(is_faulty=True))["policy_file_faulty"] == 1


def test_without_a_policy_no_figure_is_given() -> None:
    assert set(readings(None).values()) == {None}
    family: Family[PolicyStanding | None] = denied_requests(lambda found: found)
    assert list(family.samples(None)) == []


def test_where_none_is_in_force_what_cannot_be_used_is_a_figure_all_the_same() -> None:
    assert readings(PolicyStanding(None, False, True)) == {
        "policy_version": None,
        "policy_denies": None,
        "policy_file_faulty": 1,
    }


def test_denials_are_counted_by_verb_and_outcome() -> None:
    family: Family[PolicyStanding] = denied_requests(lambda standing: standing)
    assert [each.name for each in family.labels] == ["verb", "outcome"]
    assert list(family.samples(STANDING)) == list(STANDING.denials)
