"""Seeded bugs of what clients are fed and told: caches, reads, outcomes, streams that go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene, forgotten
from proofs.patches import Patch
from waltz.client.appends.bulk_appends import BulkAppends
from waltz.client.appends.own_appends import OwnAppends
from waltz.client.partitions.outcome_questions import OutcomeQuestions
from waltz.record import request_id_bytes
from waltz.server.appends import outcomes
from waltz.server.appends.outcomes import Outcomes
from waltz.server.feeding.feed import Feeds
from waltz.server.feeding.feed_cache import FeedCache
from waltz.types import TransactionId
from waltz.wire.batch_protocol import Outcome


def _of_any_partition(find: Callable[..., Any]) -> Callable[..., Any]:
    """What is cached of one partition is found for another."""

    def found(self: Any, partition_id: Any, transaction_id: Any) -> Any:
        for other in sorted(self._shelves):
            if (entry := find(self, other, transaction_id)) is not None:
                return entry
        return None

    return found


def _from_its_first(feed: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a cached batch is cut out at its beginning."""

    def found(self: Any, partition_id: Any, entry: Any, first: Any, count: Any) -> Any:
        return feed(self, partition_id, entry, entry.batch.first_transaction_id, count)

    return found


def _looking_at_the_last(ask: Callable[..., None]) -> Callable[..., None]:
    """An outcome is looked for among the newest records only."""

    def asked(self: Any, connection_id: Any, request: Any, end: Any, *, is_final: bool) -> None:
        after = TransactionId(max(request.after, end - 5))
        ask(self, connection_id, replace(request, after=after), end, is_final=is_final)

    return asked


def _finding_the_batch(_: Callable[..., Any]) -> Callable[..., Any]:
    """A record is said to be where its batch begins."""

    def place(batch: Any, request_id: Any) -> Any:
        for each in batch.request_ids():
            if each.tobytes() == request_id_bytes(request_id):
                return batch.first_transaction_id
        return None

    return place


def _giving_back_all(fail: Callable[..., None]) -> Callable[..., None]:
    """All rows under way go with those that failed."""
    return lambda self, number: fail(self, 2**31)


def _numbering_rows_again(take_rows: Callable[..., Any]) -> Callable[..., Any]:
    """The numbers of rows are not counted."""

    def taken(self: Any, *arguments: Any) -> Any:
        before = self.numbers.last
        messages = take_rows(self, *arguments)
        self.numbers.last = before
        return messages

    return taken


def _ending_half_way(receive: Callable[..., Any]) -> Callable[..., Any]:
    """A search that was given up half-way is taken for one that has found nothing."""

    def received(self: Any, response: Any, now: float) -> Any:
        if response.outcome is Outcome.NOT_FOUND:
            response = replace(response, outcome=Outcome.NOT_COMMITTED)
        return receive(self, response, now)

    return received


FEED_BUGS: Final = (
    Bug(
        name="what is cached of one partition is found for another",
        breaks="I4 feed",
        patches=(
            Patch(FeedCache, "find_headers", _of_any_partition),
            Patch(FeedCache, "find", _of_any_partition),
        ),
        workloads=("postponing", "append"),
        plans=("none",),
        caught=Scene(1, "append", "none"),
    ),
    Bug(
        name="a part of a cached batch is cut out at its beginning",
        breaks="I4 feed",
        patches=(Patch(FeedCache, "feed", _from_its_first),),
        workloads=("postponing", "database"),
        plans=("client_crash", "server_crash"),
        caught=Scene(26, "postponing", "client_crash"),
    ),
    Bug(
        name="who waits for old records is forgotten when they have come",
        breaks="I12 convergence",
        patches=(Patch(Feeds, "wake_fetching", forgotten),),
        workloads=("late_reader",),
        plans=("none", "server_crash"),
        caught=Scene(12, "late_reader", "none"),
    ),
    Bug(
        name="who takes more is not fed further",
        breaks="I12 convergence",
        patches=(Patch(Feeds, "resume", forgotten),),
        workloads=("slow_consumer",),
        plans=("partial_partition", "pauses"),
        caught=Scene(1005, "slow_consumer", "partial_partition"),
    ),
    Bug(
        name="an outcome is looked for among the newest records only",
        breaks="I13 outcomes",
        patches=(Patch(Outcomes, "ask", _looking_at_the_last),),
        workloads=("append", "crowd"),
        plans=("none", "client_crash"),
        caught=Scene(0, "append", "none"),
    ),
    Bug(
        name="an outcome names the first transaction of the batch",
        breaks="I13 outcomes",
        patches=(Patch(outcomes, "place_of", _finding_the_batch),),
        workloads=("append", "crowd"),
        plans=("none",),
        caught=Scene(1, "crowd", "none"),
    ),
    Bug(
        name="a search that was given up half-way is taken for one that has found nothing",
        breaks="I13 outcomes",
        patches=(Patch(OutcomeQuestions, "receive", _ending_half_way),),
        workloads=("append", "crowd"),
        plans=("none", "client_crash"),
        caught=Scene(35, "crowd", "none"),
    ),
    Bug(
        name="rows under way are given up with those that failed",
        breaks="I6 at most once",
        patches=(Patch(BulkAppends, "fail_before", _giving_back_all),),
        workloads=("bulk",),
        plans=("none", "server_crash"),
        caught=Scene(0, "bulk", "none"),
    ),
    Bug(
        name="the numbers of rows are used again",
        breaks="I6 at most once",
        patches=(Patch(OwnAppends, "take_rows", _numbering_rows_again),),
        workloads=("bulk",),
        plans=("none",),
        caught=Scene(0, "bulk", "none"),
    ),
)
