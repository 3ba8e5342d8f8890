"""Kafka as the destination of a bridge, with the progress in Kafka's own transactions.

Owns what follows from an error: which progress counts, and whether this process may continue. The
calls are in `kafka_calls_shell.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from uuid import UUID

from waltz.bridge.bridge_progress import PartitionProgress
from waltz.bridge.delivery import Accepted, Refused
from waltz.bridge.destination_shell import (
    Available,
    DeliveryFailedError,
    Lane,
    LogEnds,
    ReplacedError,
)
from waltz.bridge.kafka_calls_shell import (
    KafkaCallError,
    KafkaCalls,
    KafkaOptions,
    PartitionProducer,
)
from waltz.bridge.kafka_progress import KAFKA_REMEDY, KafkaProgress, check_not_set_back
from waltz.bridge.kafka_record import Run
from waltz.bridge.kafka_verdict import Verdict
from waltz.host import Host, Workers
from waltz.types import PartitionId

log = logging.getLogger(__name__)

LEFT_OUT_SECONDS: Final = 10.0
"""Progress past transactions that are left out is committed this often, without records."""

FLUSH_SECONDS_MAX: Final = 5.0
"""Time for that at the end."""


class KafkaDestination:
    """Implements `Destination`. `workers` have a thread per delivery that may be under way."""

    remedy = KAFKA_REMEDY

    def __init__(self, host: Host, workers: Workers, options: KafkaOptions, own_id: UUID) -> None:
        """`own_id`: this process's name, by which it knows its own progress."""
        self._host = host
        self._workers = workers
        self._options = options
        self._own_id = own_id
        self._calls = KafkaCalls(options, host.clock.now)
        self._lanes: dict[PartitionId, KafkaLane] = {}

    @property
    def receiver(self) -> str:
        return f"kafka://{self._options.servers}/{self._options.topic}"

    @property
    def count_max(self) -> int:
        return self._options.choice.count_max

    async def start(self) -> None:
        """Do nothing: the progress is taken over partition by partition, in `begin`."""

    async def begin(self, ends: LogEnds, *, with_first: bool) -> Mapping[PartitionId, Lane]:
        """Return a lane per partition, each of which has replaced the one of a former process.
        Raises ConfigurationError: the topics, or the progress, are not fit; KafkaCallError."""
        calls, numbers = self._calls, list(map(int, ends.marks))
        await self._workers.run_blocking(lambda: calls.check_topics(numbers))
        lanes = {
            each: KafkaLane(
                self._host, self._workers, calls, self._own_id,
                KafkaProgress(
                    ends.cluster_key, self._options.name, self._options.topic, each,
                    PartitionProgress(0 if with_first else ends.marks[each] + 1, ends.history),
                    self._own_id,
                ),
            )
            for each in ends.marks
        }  # fmt: skip
        beginning = [asyncio.ensure_future(each.begin()) for each in lanes.values()]
        try:
            await asyncio.gather(*beginning)
        except BaseException:
            for task in beginning:
                task.cancel()
            await asyncio.gather(*beginning, return_exceptions=True)
            for each in lanes.values():
                await each.close()
            raise
        self._lanes = lanes
        return dict(lanes)

    async def flush(self) -> None:
        """Commit the places after transactions that are left out, if Kafka does so in time: else
        they are left out again."""
        with suppress(DeliveryFailedError, TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS_MAX):
                for each in self._lanes.values():
                    await each.flush()

    def end(self) -> None:
        """Have calls that are still under way end soon."""
        self._calls.abandon()


class KafkaLane:
    """One partition: its producer, and its progress as Kafka has acknowledged it. Implements
    `Lane`."""

    def __init__(
        self,
        host: Host,
        workers: Workers,
        calls: KafkaCalls,
        own_id: UUID,
        progress: KafkaProgress,
    ) -> None:
        """`progress`: where the partition begins if Kafka knows nothing of it."""
        self._host = host
        self._workers = workers
        self._calls = calls
        self._own_id = own_id
        self._progress = progress
        self._ahead: PartitionProgress | None = None
        """The place after transactions that are left out, which Kafka is not told yet."""
        self._committed_at = host.clock.now()
        self._producer: PartitionProducer | None = None
        self._unknown: Run | None = None
        """The run of which it is not known whether it is committed."""
        self._is_delivering = False
        """Set until the worker's thread of a delivery has ended: its caller may be cancelled
        before."""

    @property
    def place(self) -> PartitionProgress:
        return self._ahead or self._progress.place

    async def begin(self) -> None:
        """Replace the producer of every former process, and take over its progress. Raises
        ConfigurationError; CorruptionError; DeliveryFailedError."""
        await self._workers.run_blocking(self._take_over)

    def _take_over(self) -> None:
        found = self._opened()
        if found is not None:
            found.check_topic(self._progress.topic)
        known = found or self._progress
        kept = known.reaching(known.place, self._own_id)
        self._commit(Run((), kept.place.next_id - 1), kept)

    def _opened(self) -> KafkaProgress | None:
        """Open a producer; return what is committed. Once the producer is there, nothing of an
        older one can be committed any more."""
        begun = self._progress
        producer = self._calls.producer(begun.cluster_key, begun.partition_id)
        found = self._calls.read_progress(begun.cluster_key, begun.partition_id, to_end=True)
        self._producer = producer
        return found

    def _commit(self, run: Run, progress: KafkaProgress) -> None:
        producer = self._producer
        assert producer is not None, "opened"
        self._unknown = run
        try:
            producer.commit(run.records, progress)
        except BaseException as error:
            if isinstance(error, KafkaCallError) and error.trouble.verdict in (
                Verdict.REFUSED,
                Verdict.ABORT,
            ):
                self._unknown = None
            self._producer = None
            producer.end()
            raise
        self._unknown = None
        self._progress = progress
        self._ahead = None
        self._committed_at = self._host.clock.now()

    def _reopened(self, first: int) -> Accepted | None:
        """Open a producer after an error; return what is done with already. Raises ReplacedError;
        HistoryChangedError: Kafka was set back."""
        unknown, known = self._unknown, self._progress
        found = self._opened()
        try:
            if found is not None and found.by not in (None, self._own_id):
                raise ReplacedError(
                    f"another process has begun as bridge {known.name} and delivers partition"
                    f" {known.partition_id} (it calls itself {found.by}): this one ends. Two"
                    " bridges need two names (bridge.kafka.name), and two topics"
                )
            check_not_set_back(found, known)
        except BaseException:
            self._end_producer()
            raise
        assert found is not None, "known"
        self._progress = found
        self._unknown = None
        done = found.place.next_id
        log.info(
            "bridge_begins_anew partition=%d next=%d known=%d",
            known.partition_id, done, known.place.next_id,
        )  # fmt: skip
        if done <= first:
            return None
        self._ahead = None
        is_last = unknown is not None and unknown.last + 1 == done
        return Accepted(done - 1, len(unknown.records) if is_last and unknown is not None else 0)

    async def deliver(
        self, available: Available, count_max: int, sending: Callable[[int], None]
    ) -> Accepted | Refused:
        loop = asyncio.get_running_loop()

        def tell(last: int) -> None:
            loop.call_soon_threadsafe(sending, last)

        def delivered() -> Accepted | str:
            try:
                return self._delivered(available, count_max, tell)
            finally:
                self._is_delivering = False

        self._is_delivering = True
        outcome = await self._workers.run_blocking(delivered)
        if isinstance(outcome, Accepted):
            return outcome
        return Refused(outcome, self._host.random.uniform(0.0, 1.0), is_for_content=True)

    def _delivered(
        self, available: Available, count_max: int, sending: Callable[[int], None]
    ) -> Accepted | str:
        """Commit a run; return what came of it, or why its content is not taken."""
        if self._producer is None:
            done = self._reopened(available.first)
            if done is not None:
                return done
        assert self._producer is not None, "opened"
        limit = self._producer.record_bytes_max
        run = self._calls.options.choice.run(
            self._progress.partition_id, available.columns, available.first, count_max,
            available.history, limit,
        )  # fmt: skip
        if not run.records:
            return Accepted(run.last, 0)
        sending(run.last)
        place = PartitionProgress(run.last + 1, available.history)
        try:
            self._commit(run, self._progress.reaching(place, self._own_id))
        except KafkaCallError as error:
            if error.trouble.verdict is Verdict.REFUSED:
                return self._refusal(run, limit, error)
            raise
        return Accepted(run.last, len(run.records))

    def _refusal(self, run: Run, limit: int, error: KafkaCallError) -> str:
        if len(run.records) > 1:
            return str(error)
        (record,) = run.records
        return (
            f"topic {self._progress.topic} does not take transaction {record.transaction_id}, of"
            f" {len(record.value):,} bytes; its max.message.bytes is {limit:,}. {error}"
        )

    async def keep(self, to: PartitionProgress, *, is_due: bool) -> None:
        """Return at once unless transactions were left out for some time: what was delivered is
        committed with its progress. Raises DeliveryFailedError."""
        if to.next_id <= self._progress.place.next_id:
            return
        self._ahead = to
        if self._host.clock.now() - self._committed_at >= LEFT_OUT_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        """Commit the place after transactions that are left out, unless a delivery is under way,
        or has failed: then they are left out again. Raises DeliveryFailedError."""
        to = self._ahead  # None if a delivery that nobody awaited has committed more
        if self._is_delivering or self._producer is None or to is None:
            return
        progress = self._progress.reaching(to, self._own_id)
        await self._workers.run_blocking(lambda: self._commit(Run((), to.next_id - 1), progress))

    async def close(self) -> None:
        # Not by a worker: all of them may wait for Kafka. A commit under way is aborted by it.
        self._end_producer()

    def _end_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.end()
