"""Ends what is under way: in partitions that a client leaves (PM-35, CI-28), or all of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from waltz.client.appends.submissions_shell import Submissions
from waltz.client.partitions.client_partition_events import PartitionClosed
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.errors import OperationTimeoutError, PartitionBlockedError, PartitionInactiveError

logger = logging.getLogger(__name__)


async def deactivate(
    leaving: Sequence[PartitionRunner],
    submissions: Submissions,
    error: PartitionInactiveError,
    flush_seconds_max: float,
    nudge_all: Callable[[], None],
) -> None:
    """Take no more for the partitions `leaving`, flush them, and end their contexts and the calls
    that wait for them, those that have no verdict by then with `error`."""
    for runner in leaving:
        runner.gate.fail(error)
    gone = {runner.partition_id for runner in leaving}
    try:
        await submissions.flush(flush_seconds_max, nudge_all, partitions=gone)
    except (OperationTimeoutError, PartitionBlockedError) as late:
        logger.info("deactivated_with_pending partitions=%s reason=%s", sorted(gone), late)
    for runner in leaving:
        runner.end_calls(error)
        runner.mailbox.put(PartitionClosed())
    for runner in leaving:
        await runner.application.idle.wait()
        submissions.give_up(runner.partition_id, error)
    await submissions.telling.all_told()


async def end_submissions(
    runners: Sequence[PartitionRunner],
    submissions: Submissions,
    error: Exception,
    seconds_max: float,
) -> None:
    """End all contexts with `error`, after the callbacks that run, for which it waits so long."""
    try:
        async with asyncio.timeout(seconds_max):
            for runner in runners:
                await runner.application.idle.wait()
            await submissions.end_all(error)
    except TimeoutError:
        logger.warning("close_incomplete unfinished=%d", len(submissions))
    submissions.forget_all(error)
