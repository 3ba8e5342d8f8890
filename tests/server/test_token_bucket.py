"""Token buckets against exact arithmetic, and by value."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from waltz.server.quotas.token_bucket import BURST_SECONDS, TokenBucket

RATES = st.integers(1, 1 << 40)
TAKERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.25, 1.0, 7.5]), st.integers(1, 1 << 30)),
    min_size=1,
    max_size=12,
)


def times_admitted(rate: int, takers: list[tuple[float, int]]) -> list[Fraction]:
    """When each taker is admitted, as one who has them stand in line would say: a bucket that is
    empty at `zero` has given all that was taken by then, so each taker moves `zero` on."""
    burst = Fraction(BURST_SECONDS)
    zero, now, found = -burst, Fraction(0), []
    for pause, amount in takers:
        now += Fraction(pause)
        zero = max(zero, now - burst) + Fraction(amount, rate)
        found.append(max(now, zero))
    return found


@given(RATES, TAKERS)
def test_each_taker_is_admitted_when_exact_arithmetic_says(
    rate: int, takers: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(rate, 0.0)
    now = 0.0
    for (pause, amount), expected in zip(takers, times_admitted(rate, takers), strict=True):
        now += pause
        position = bucket.take(amount, now)
        wait = bucket.wait_seconds(position, now)
        assert abs(now + wait - float(expected)) <= 1e-9 * max(1.0, float(expected))


@given(RATES, TAKERS)
def test_no_period_admits_more_than_the_rate_and_the_burst_or_one_taker(
    rate: int, takers: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(rate, 0.0)
    now, admitted = 0.0, []
    for pause, amount in takers:
        now += pause
        position = bucket.take(amount, now)
        admitted.append((now + bucket.wait_seconds(position, now), amount))
    for start, (since, _) in enumerate(admitted):
        for (until, _), total in zip(
            admitted[start:], accumulate(amount for _, amount in admitted[start:]), strict=True
        ):
            largest = max(rate * BURST_SECONDS, max(amount for _, amount in admitted[start:]))
            assert total <= (rate * (until - since) + largest) * (1 + 1e-9) + 1


@given(RATES, TAKERS, RATES)
def test_takers_are_admitted_in_order_and_all_of_them_whatever_the_rate_becomes(
    rate: int, takers: list[tuple[float, int]], next_rate: int
) -> None:
    bucket = TokenBucket(rate, 0.0)
    now = 0.0
    positions = []
    for pause, amount in takers:
        now += pause
        positions.append(bucket.take(amount, now))
    bucket.change_rate(next_rate, now)
    waits = [bucket.wait_seconds(each, now) for each in positions]
    assert waits == sorted(waits)
    later = now + waits[-1] * (1 + 1e-9) + 1e-6
    assert all(bucket.wait_seconds(each, later) <= 1e-6 * max(1, later) for each in positions)


def test_a_bucket_that_was_left_alone_has_two_seconds_of_tokens_and_no_more() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.wait_seconds(bucket.take(20, 1_000.0), 1_000.0) == 0
    first, second = bucket.take(5, 1_000.0), bucket.take(10, 1_000.0)
    assert bucket.wait_seconds(first, 1_000.0) == 0.5
    assert bucket.wait_seconds(second, 1_000.0) == 1.5
    assert bucket.wait_seconds(second, 1_001.0) == 0.5
    assert not bucket.is_full(1_003.0)
    assert bucket.is_full(1_003.5)


def test_a_slower_rate_takes_what_was_saved() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.change_rate(1, 0.0)
    assert bucket.wait_seconds(bucket.take(3, 0.0), 0.0) == 1.0
