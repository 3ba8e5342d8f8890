"""Waits until transactions are applied here: those of a token, or all that servers have now.

Owns how many partitions are waited for within one time limit. Submits nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from waltz.client.consistency_token import ConsistencyToken
from waltz.client.engine_shell import ClientEngine
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.errors import OperationTimeoutError
from waltz.types import NOTHING, PartitionId, TransactionId

OLD_MARK_RETRY_SECONDS: Final = 0.1
"""Time until a server is asked again that knew less of the log than has been applied here."""


async def wait_for_token(
    engine: ClientEngine,
    token: ConsistencyToken,
    timeout_seconds: float | None,
) -> dict[PartitionId, TransactionId]:
    """Return the marks of `token` once they are applied. Raises as `wait_until_applied`."""
    marks = dict(token.marks)
    runners = [engine.runner(number) for number in marks]
    engine.check_token(token)
    await _wait_in_time(
        runners,
        lambda runner: runner.waiting.applied(marks[runner.partition_id]),
        marks,
        timeout_seconds,
    )
    # The log may have been restored meanwhile: then other transactions have these numbers now.
    engine.check_token(token)
    return marks


async def wait_for_servers(
    engine: ClientEngine, partitions: Collection[int], timeout_seconds: float | None
) -> dict[PartitionId, TransactionId]:
    """Ask the servers for the high-water marks of `partitions`, and return these once they are
    applied. Raises as `wait_until_applied`."""
    runners = [engine.runner(number) for number in dict.fromkeys(partitions)]
    marks: dict[PartitionId, TransactionId] = {}

    async def wait(runner: PartitionRunner) -> None:
        asking = _mark_not_before_applied(engine, runner, timeout_seconds)
        mark = await runner.waiting.unless_ended(asking)
        marks[runner.partition_id] = mark
        await runner.waiting.applied(mark)

    await _wait_in_time(runners, wait, marks, timeout_seconds)
    return dict(sorted(marks.items()))


async def _mark_not_before_applied(
    engine: ClientEngine, runner: PartitionRunner, timeout_seconds: float | None
) -> TransactionId:
    """Ask, for as long as the caller has, until a server answers that knows the log at least as
    far as it has been applied here: one that does not has lost the partition, or this client is
    ahead of the log, which ends the partition."""
    await runner.waiting.applied(NOTHING)  # from then on it is known how far that is
    applied = runner.application.high_water_mark
    while True:
        try:
            mark = await engine.get_high_water_mark(runner.partition_id, timeout_seconds)
        except OperationTimeoutError:
            if timeout_seconds is not None:
                raise
        else:
            if mark >= applied:
                return mark
            await asyncio.sleep(OLD_MARK_RETRY_SECONDS)


async def _wait_in_time(
    runners: Sequence[PartitionRunner],
    wait: Callable[[PartitionRunner], Coroutine[Any, Any, None]],
    marks: Mapping[PartitionId, TransactionId],
    timeout_seconds: float | None,
) -> None:
    """Do `wait` for all `runners` at the same time. Raises OperationTimeoutError: a partition has
    not been applied through its mark in `marks`, or has none there, when the time is up."""
    tasks = [asyncio.create_task(wait(runner)) for runner in runners]
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.gather(*tasks)
    except TimeoutError:
        applied = {each.partition_id: each.application.high_water_mark for each in runners}
        missing = [
            f"partition {number} is at {mark} of {marks.get(number, 'an unknown mark')}"
            for number, mark in applied.items()
            if mark < marks.get(number, mark + 1)
        ]
        raise OperationTimeoutError(
            f"transactions were not applied in {timeout_seconds} s: {'; '.join(missing)}"
        ) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
