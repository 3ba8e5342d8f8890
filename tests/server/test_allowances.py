"""Who shares a bucket, for how long it is kept, and whom the time waited is counted for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

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
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.message import Message

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


def rows_of(messages: Iterable[Message]) -> Iterator[bytes | int | None]:
    """Yield the sequence number and the data of each append; None for another message."""
    for message in messages:
        if not isinstance(message, AppendBatch):
            yield None
            continue
        for row, data in enumerate(message.appends.bodies.data):
            yield message.request_id.sequence_number + row
            yield data


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


LARGE = "appends: 2000/s, append_bytes: 4MiB/s"
SIZES = st.lists(st.integers(0, 3_000), min_size=1, max_size=60)


@given(messages=st.lists(st.one_of(st.none(), SIZES), min_size=1, max_size=6))
def test_portions_have_all_appends_in_order_and_each_is_of_one_step_and_an_append(
    messages: list[list[int] | None],
) -> None:
    """4 MiB per second are 83,886 bytes per portion, 2,000 appends per second 40."""
    text = TEXT.replace("appends: 10/s, append_bytes: 64KiB/s", LARGE)
    allowance = Allowances().find(policy(text), "anonymous", 0.0)
    assert allowance is not None
    assert allowance.append_bytes is not None
    sent: list[Message] = []
    number = 1
    for sizes in messages:
        if sizes is None:
            sent.append(flush(number))
            continue
        rows = [append(number + row, data=bytes(size)) for row, size in enumerate(sizes)]
        sent.append(together(*rows))
        number += len(rows)
    assert allowance.portions(sent, 0.0) == [sent]
    allowance.append_bytes.take(1 << 24, 0.0)
    portions = allowance.portions(sent, 0.0)
    assert list(rows_of(chain(*portions))) == list(rows_of(sent))
    for portion in portions:
        costs = [len(row) for row in rows_of(portion) if isinstance(row, bytes)]
        assert len(costs) <= 40
        assert sum(costs[:-1]) < 83_886
        assert portion


def test_appends_within_the_quota_are_one_portion_and_over_it_several() -> None:
    allowance = Allowances().find(policy(), "anonymous", 0.0)
    assert allowance is not None
    message = together(*(append(number, data=bytes(8_000)) for number in range(1, 11)))
    assert [len(each) for each in allowance.portions([message], 0.0)] == [1]
    assert allowance.appends is not None
    allowance.appends.take(20, 0.0)
    found = allowance.portions([flush(0), message], 0.0)
    # 10 appends per second are none in 20 ms, and 64 KiB per second 1,310 bytes: the least counts.
    assert [[*map(append_cost, each)] for each in found] == [
        [(0, 0), (5, 40_000)],
        [(4, 32_000)],
        [(1, 8_000)],
    ]
    many = together(*(append(number, data=b"") for number in range(1, 71)))
    found = allowance.portions([many], 0.0)
    assert [[*map(append_cost, each)] for each in found] == [[(32, 0)], [(32, 0)], [(6, 0)]]
