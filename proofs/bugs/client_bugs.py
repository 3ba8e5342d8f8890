"""Seeded bugs of the client: verdicts, retries, marks, request IDs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.client.appends import retries_shell, submissions_shell
from waltz.client.appends.own_appends import OwnAppends
from waltz.client.appends.submission import Submission
from waltz.client.appends.transaction_monitor import TransactionMonitor
from waltz.client.applying import calls
from waltz.client.bulk import Bulk
from waltz.client.partitions.client_partition import ClientPartition
from waltz.client.partitions.waiting_calls_shell import WaitingCalls
from waltz.connections import sources_shell
from waltz.host import ANY_VERSION
from waltz.reader.followed_feed import FeedCursor
from waltz.server.clients import directory_shell


def _giving_up_all(lose: Callable[..., None]) -> Callable[..., None]:
    def lost(self: Any) -> None:
        lose(self)
        self.retries += self.monitor.stop()
        self.monitor.start()

    return lost


def _numbering_anew(lose: Callable[..., None]) -> Callable[..., None]:
    def opened(self: Any, *arguments: Any) -> None:
        if not len(self.own):
            self.own.numbers.last = 0
        lose(self, *arguments)

    return opened


def _giving_up_what_is_undecided(see_to_client_id: Callable[..., None]) -> Callable[..., None]:
    def seen_to(self: Any) -> None:
        if self._held:
            own = self.own
            own.retries += own.monitor.stop()
            own.monitor.start()
            own.rows.fail_before(own.numbers.last + 1)
        see_to_client_id(self)

    return seen_to


def _settling_at_once(settle: Callable[..., Any]) -> Callable[..., Any]:
    def settled(self: Any, mark: Any) -> Any:
        for answer in self.held.flushes:
            self.retries += self.monitor.flush(answer.request_id)
        self.held.flushes = []
        return settle(self, mark)

    return settled


def _sampling_when_sent(submit: Callable[..., None]) -> Callable[..., None]:
    def submitted(self: Any, submissions: Any, now: float) -> None:
        for submission in submissions:
            submission.client_high_water_mark = self.feed.high_water_mark
        submit(self, submissions, now)

    return submitted


def _on_what_is_applied(_: Callable[..., Any]) -> Callable[..., Any]:
    def columns(self: Any, rows: Any, mark: Any) -> Any:
        return self.rows.columns(rows, mark)

    return columns


def _claiming_always(_: Callable[..., bool]) -> Callable[..., bool]:
    def claimed(self: Any) -> bool:
        self.undecided.clear()
        return True

    return claimed


def _sending_again(execute: Callable[..., Any]) -> Callable[..., Any]:
    def executed(submission: Any) -> Any:
        if submission.draft is None:
            return execute(submission)
        calls.tell_lock_failure(submission)
        submission.client_high_water_mark = submission.runner.application.high_water_mark
        return True

    return executed


def _keeping_refused(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request_id: dict(self.items()).get(request_id)


def _refusing(_: Callable[..., None]) -> Callable[..., None]:
    return lambda submission: submission.context.on_completion(False)


def _ending_unwritten(_: Callable[..., None]) -> Callable[..., None]:
    return lambda submission, error: calls.tell_refusal(submission)


def _keeping_those_before(take: Callable[..., Any]) -> Callable[..., Any]:
    def flushed(self: Any, request_id: Any) -> Any:
        return take(self, request_id._replace(sequence_number=request_id.sequence_number - 1))

    return flushed


def _flushing_all(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request_id: self._take_all()


def _mounting_one_on(mount: Callable[..., Any]) -> Callable[..., Any]:
    def mounted(self: Any, *arguments: Any) -> Any:
        self.position += self.phase.value == "fed as the log grows"
        return mount(self, *arguments)

    return mounted


def _allocating_blindly(allocate: Callable[..., Any]) -> Callable[..., Any]:
    return lambda coordinator, root: allocate(_CarelessCoordinator(coordinator), root)


class _CarelessCoordinator:
    """Writes nodes whoever has written them since they were read."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        written: int = await self._original.write(path, data, version=ANY_VERSION)
        return written


def _noting_late(tell_applied: Callable[..., None]) -> Callable[..., None]:
    def told(self: Any, last: Any) -> None:
        noted = self._applied_through
        tell_applied(self, last)
        asyncio.get_running_loop().call_soon(setattr, self, "_applied_through", last)
        self._applied_through = noted

    return told


def _telling_nobody(end: Callable[..., None]) -> Callable[..., None]:
    def ended(self: Any, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        outcomes, self._outcomes = self._outcomes, {}
        end(self, error)
        self._waiting, self._outcomes = waiting, outcomes

    return ended


CLIENT_BUGS: Final = (
    Bug(
        name="a lost connection is taken for not written",
        breaks="I5 verdicts",
        patches=(Patch(OwnAppends, "lose_stream", _giving_up_all),),
        workloads=("append",),
        plans=("flapping",),
        caught=Scene(24, "append", "flapping"),
    ),
    Bug(
        name="request numbers begin anew with each connection",
        breaks="I6 at most once",
        patches=(Patch(ClientPartition, "_open_stream", _numbering_anew),),
        workloads=("append",),
        plans=("flapping",),
        caught=Scene(14, "append", "flapping"),
    ),
    Bug(
        name="a flush is believed before the feed has come as far",
        breaks="I5 verdicts",
        patches=(Patch(OwnAppends, "settle", _settling_at_once),),
        workloads=("append",),
        plans=("one_way",),
        caught=Scene(13, "append", "one_way"),
    ),
    Bug(
        name="the mark is sampled when an append is sent, not before it is executed",
        breaks="I7 locks",
        patches=(Patch(ClientPartition, "_submit", _sampling_when_sent),),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(1, "bank", "none"),
    ),
    Bug(
        name="a context is told its end by whoever comes",
        breaks="I5 verdicts",
        patches=(Patch(Submission, "claim_verdict", _claiming_always),),
        workloads=("append",),
        plans=("none",),
        caught=Scene(11, "append", "none"),
    ),
    Bug(
        name="a refused append is sent again as it was",
        breaks="I7 locks",
        patches=(Patch(retries_shell, "execute_again", _sending_again),),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(0, "lock_contention", "none"),
    ),
    Bug(
        name="a refused append stays registered",
        breaks="I5 verdicts",
        patches=(Patch(TransactionMonitor, "abort", _keeping_refused),),
        workloads=("lock_contention",),
        plans=("flapping",),
        caught=Scene(0, "lock_contention", "flapping"),
    ),
    Bug(
        name="a context whose time is up is told that it is not in the log",
        breaks="I5 verdicts",
        patches=(Patch(submissions_shell, "tell_expiration", _refusing),),
        workloads=("append", "bank"),
        plans=("none",),
        caught=Scene(1, "bank", "none"),
    ),
    Bug(
        name="a client that closes calls undecided appends unwritten",
        breaks="I5 verdicts",
        patches=(Patch(submissions_shell, "tell_end", _ending_unwritten),),
        workloads=("append", "bank"),
        plans=("client_crash",),
        caught=Scene(0, "append", "client_crash"),
    ),
    Bug(
        name="a flush leaves the append it names",
        breaks="I12 convergence",
        patches=(Patch(TransactionMonitor, "flush", _keeping_those_before),),
        workloads=("append",),
        plans=("broken_connections",),
        caught=Scene(1, "append", "broken_connections"),
    ),
    Bug(
        name="a flush fails appends sent after it",
        breaks="I5 verdicts",
        patches=(Patch(TransactionMonitor, "flush", _flushing_all),),
        workloads=("append",),
        plans=("flapping",),
        caught=Scene(4, "append", "flapping"),
    ),
    Bug(
        name="a reader skips a transaction when it connects again",
        breaks="I4 feed",
        patches=(Patch(FeedCursor, "mount", _mounting_one_on),),
        workloads=("late_reader",),
        plans=("flapping", "server_crash"),
        caught=Scene(1, "late_reader", "server_crash"),
    ),
    Bug(
        name="a client takes its next ID while appends of the last are undecided",
        breaks="I6 at most once",
        patches=(Patch(ClientPartition, "_see_to_client_id", _giving_up_what_is_undecided),),
        workloads=("append", "bulk"),
        plans=("none", "slow_links"),
        caught=Scene(130, "bulk", "none"),
    ),
    Bug(
        name="a call that waits looks at a mark that moves after those that wait were told",
        breaks="waits end",
        patches=(Patch(WaitingCalls, "tell_applied", _noting_late),),
        workloads=("append",),
        plans=("none",),
        caught=Scene(3, "append", "none"),
    ),
    Bug(
        name="a partition that a client leaves does not end the calls that wait for it",
        breaks="waits end",
        patches=(Patch(WaitingCalls, "end", _telling_nobody),),
        workloads=("slow_consumer",),
        plans=("none",),
        caught=Scene(1, "slow_consumer", "none"),
    ),
    Bug(
        name="rows that depend on a state have their locks compared with a later one",
        breaks="I7 locks",
        patches=(Patch(Bulk, "columns", _on_what_is_applied),),
        workloads=("bulk",),
        plans=("none",),
        caught=Scene(18, "bulk", "none"),
    ),
    Bug(
        name="two clients may get one ID",
        breaks="I6 at most once",
        patches=(
            Patch(sources_shell, "allocate_client_id", _allocating_blindly),
            Patch(directory_shell, "allocate_client_id", _allocating_blindly),
        ),
        workloads=("append",),
        plans=("none",),
        caught=Scene(0, "append", "none"),
    ),
)
