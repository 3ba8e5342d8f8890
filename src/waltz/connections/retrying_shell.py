"""Runs an operation within its time, and repeats it as its policy allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from waltz.connections.retry import Operation, RetryPolicy
from waltz.errors import ConnectionLostError, OperationTimeoutError, WaltzError
from waltz.host import Host

T = TypeVar("T")


async def with_retries(
    host: Host,
    client: object,
    policy: RetryPolicy,
    operation: Operation,
    attempt: Callable[[], Awaitable[T]],
    seconds_max: float,
    failed: ConnectionLostError | None = None,
) -> T:
    """Return what `attempt` returns. `failed`: the error of an attempt that was made before.

    Raises ConnectionLostError, with the earlier ones as `earlier`: the policy wants no more
    attempts; OperationTimeoutError: all attempts together took longer than `seconds_max`; and any
    other error that `attempt` raises.
    """
    earlier: list[WaltzError] = []
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                try:
                    if failed is not None:
                        first, failed = failed, None
                        raise first
                    return await attempt()
                except ConnectionLostError as error:
                    error.earlier = tuple(earlier)
                    decide = partial(policy.should_retry, client, operation, len(earlier), error)
                    if not await host.workers.run_blocking(decide):
                        raise
                    earlier.append(error)
    except TimeoutError:
        raise too_late(operation, seconds_max, earlier) from None


def too_late(
    operation: Operation, seconds_max: float, earlier: Sequence[WaltzError] = ()
) -> OperationTimeoutError:
    """Return the error of an operation that took too long, after `earlier` errors."""
    late = OperationTimeoutError(f"{operation.value}: no answer in {seconds_max:g} s")
    late.earlier = tuple(earlier)
    return late
