"""Who shares a bucket, for how long it is kept, and whom the time waited is counted for."""

from __future__ import annotations

from tests.server.builders import append, flush, together
from waltz.access.policy import Policy
from waltz.access.policy_text import parse_policy
from waltz.access.quota import Quota
from waltz.server.quotas.allowances import (
    OTHER_PRINCIPALS,
    THROTTLED_PRINCIPALS_MAX,
    Allowances,
    append_cost,
)

TEXT = """
version: 1
mode: deny
default: allow
break_glass: [CN=root]
roles:
  wide: {verbs: [status], quota: {appends: 100/s, read_bytes: 1MiB/s, connections: 5}}
  narrow: {verbs: [status], quota: {appends: 10/s, append_bytes: 64KiB/s}}
  free: {verbs: [status]}
grants:
  CN=both: [wide, narrow]
  CN=*: [wide]
  CN=free*: [free]
  DNS=x: [free]
  anonymous: [narrow]
"""


def policy(text: str = TEXT) -> Policy:
    return parse_policy(text.encode(), "p.yaml")


def quota(allowances: Allowances, given: Policy | None, name: str) -> Quota | None:
    found = allowances.find(given, name, 0.0)
    return None if found is None else found.quota


def test_the_least_limit_of_all_roles_holds() -> None:
    allowances, given = Allowances(), policy()
    assert quota(allowances, given, "CN=both") == Quota(64 * 1024, 10, 1 << 20, 5)
    assert quota(allowances, given, "CN=free1") == Quota(None, 100, 1 << 20, 5)
    for unlimited in ("DNS=x", "CN=root", "DNS=nobody"):
        assert quota(allowances, given, unlimited) == Quota()


def test_a_policy_that_observes_or_has_no_quotas_keeps_nothing() -> None:
    allowances = Allowances()
    assert allowances.find(policy(), "CN=a", 0.0) is not None
    for other in (policy(TEXT.replace("mode: deny", "mode: observe")), None):
        assert allowances.find(other, "CN=a", 0.0) is None
        assert not allowances.holds(other, lambda: 0.0)
        assert len(allowances) == 0


def test_a_principal_keeps_its_buckets_when_the_policy_changes() -> None:
    allowances = Allowances()
    before = allowances.find(policy(), "anonymous", 0.0)
    assert before is not None
    assert before.appends is not None
    position = before.appends.take(40, 0.0)
    assert before.appends.wait_seconds(position, 0.0) == 2.0
    next_policy = policy(TEXT.replace("appends: 10/s, ", "appends: 40/s, "))
    after = allowances.find(next_policy, "anonymous", 0.0)
    assert after is before
    assert before.appends.wait_seconds(position, 0.0) == 0.5
    without = allowances.find(policy(TEXT.replace("appends: 10/s, ", "")), "anonymous", 0.0)
    assert without is not None
    assert without.appends is None


def test_strangers_do_not_fill_the_memory_nor_make_a_flooding_principal_forget_its_debt() -> None:
    allowances, given = Allowances(principals_max=10), policy()
    flooding = allowances.find(given, "CN=flood", 0.0)
    assert flooding is not None
    assert flooding.appends is not None
    flooding.appends.take(10_000, 0.0)
    for number in range(1_000):
        allowances.find(given, f"CN=x{number}", 0.0)
        assert len(allowances) <= 10
    assert allowances.find(given, "CN=flood", 0.0) is flooding


def test_memory_is_bounded_even_if_everybody_floods() -> None:
    allowances, given = Allowances(principals_max=10), policy()
    for number in range(100):
        found = allowances.find(given, f"CN=x{number}", 0.0)
        assert found is not None
        assert found.appends is not None
        found.appends.take(10_000, 0.0)
        assert len(allowances) <= 10


def test_the_time_waited_is_counted_for_a_bounded_number_of_principals() -> None:
    allowances = Allowances()
    for number in range(THROTTLED_PRINCIPALS_MAX + 50):
        allowances.note_throttled(f"CN={number}", 0.5)
    allowances.note_throttled("CN=0", 1.0)
    found = dict(allowances.throttled())
    assert len(found) == THROTTLED_PRINCIPALS_MAX + 1
    assert found["CN=0",] == 1.5
    assert found[OTHER_PRINCIPALS,] == 25.0


def test_appends_cost_their_data_and_locks_and_nothing_else_costs_anything() -> None:
    message = together(append(1, write=[1, 2], read=[3], data=bytes(1000)), append(2, data=b""))
    assert append_cost(message) == (2, 1000 + 3 * 4)
    assert append_cost(flush()) == (0, 0)
