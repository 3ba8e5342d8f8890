"""Operations that are repeated, against a coordinator that loses its first answers."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.simulated import World, simulate
from waltz.connections.retry import NoRetries, Operation, RetryPolicy, RetryReads
from waltz.connections.retrying_shell import with_retries
from waltz.errors import ConnectionLostError, OperationTimeoutError
from waltz.host import Host


def retried(
    lost_count: int,
    policy: RetryPolicy,
    *,
    seconds_each: float = 0.0,
    failed: ConnectionLostError | None = None,
) -> int:
    """Return the number of attempts of an operation that loses its first `lost_count` answers, and
    of which an attempt that was made before may have `failed`."""

    async def story(world: World) -> int:
        async def work(host: Host) -> int:
            attempts = 0

            async def attempt() -> int:
                nonlocal attempts
                attempts += 1
                await asyncio.sleep(seconds_each)
                if attempts <= lost_count:
                    raise ConnectionLostError(f"lost {attempts}")
                return attempts

            return await with_retries(
                host,
                None,
                policy,
                Operation.HIGH_WATER_MARK,
                attempt,
                seconds_max=5.0,
                failed=failed,
            )

        return await world.run(work)

    return simulate(story)


def test_an_operation_is_repeated_as_often_as_its_policy_allows() -> None:
    assert retried(0, NoRetries()) == 1
    assert retried(2, RetryReads(2)) == 3


def test_the_last_error_carries_the_earlier_ones() -> None:
    with pytest.raises(ConnectionLostError, match="lost 3") as raised:
        retried(3, RetryReads(2))
    assert [str(each) for each in raised.value.earlier] == ["lost 1", "lost 2"]


def test_all_attempts_together_have_one_time_limit() -> None:
    with pytest.raises(OperationTimeoutError, match="no answer in 5 s") as raised:
        retried(9, RetryReads(9), seconds_each=2.0)
    assert [str(each) for each in raised.value.earlier] == ["lost 1", "lost 2"]


def test_an_attempt_that_was_made_before_counts() -> None:
    assert retried(1, RetryReads(2), failed=ConnectionLostError("lost 0")) == 2
    with pytest.raises(ConnectionLostError, match="lost 0"):
        retried(0, NoRetries(), failed=ConnectionLostError("lost 0"))
    with pytest.raises(ConnectionLostError, match="lost 2") as raised:
        retried(3, RetryReads(2), failed=ConnectionLostError("lost 0"))
    assert [str(each) for each in raised.value.earlier] == ["lost 0", "lost 1"]
