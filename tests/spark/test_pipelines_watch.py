"""What a pipeline that runs tells of itself, by value."""

from __future__ import annotations

from pathlib import Path

from waltz.spark.followed_metrics import FollowedPartition, LastVerify, pipeline_json
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.watch import BatchSeen, PipelineWatch
from waltz.spark.progress import PartitionLag
from waltz.types import PartitionId, TransactionId

P = PartitionId(0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def watch_of(kind: str, clock: Clock) -> PipelineWatch:
    definition = PipelineDefinition(kind, "127.0.0.1:1", Path("/data/t"))
    return PipelineWatch(definition, 30.0, clock=clock, wall=lambda: 1_700_000_000.5)


def batch(next_id: int, count: int, *, byte_count: int | None = None) -> BatchSeen:
    return BatchSeen(
        {P: TransactionId(next_id)}, count, 1, byte_count, {"read": 3.0, "commit": 0.5}
    )


def test_a_pipeline_that_has_not_begun_knows_nothing() -> None:
    state = watch_of("tables", Clock()).state()
    assert (state.rounds, state.batches, state.partitions) == (0, 0, ())
    assert (state.log_asked_milliseconds, state.last_verify, state.written_bytes) == (None,) * 3
    assert state.is_healthy


def test_batches_are_counted_while_a_round_lasts() -> None:
    clock = Clock()
    watch = watch_of("tables", clock)
    watch.log_has({P: TransactionId(30)})
    clock.now = 107.0
    watch.took_in(batch(10, 10))
    state = watch.state()
    assert (state.rounds, state.batches, state.transactions, state.undecodable) == (0, 1, 10, 1)
    assert state.partitions == (FollowedPartition(P, 10, 30, 7.0),)
    assert state.log_asked_milliseconds == 1_700_000_000_500
    assert {part: each.sum_seconds for part, each in state.seconds.items()} == {
        "commit": 0.5,
        "read": 3.0,
    }
    watch.took_in(batch(30, 20))
    clock.now = 110.0
    watch.round_ended([PartitionLag(P, 30, 31)])
    clock.now = 111.0
    state = watch.state()
    assert (state.rounds, state.batches, state.transactions) == (1, 2, 30)
    assert state.partitions == (FollowedPartition(P, 30, 31, 1.0),)


def test_an_archive_counts_bytes() -> None:
    watch = watch_of("archive", Clock())
    assert watch.state().written_bytes == 0
    watch.took_in(batch(10, 10, byte_count=700))
    watch.took_in(batch(12, 2, byte_count=70))
    assert watch.state().written_bytes == 770


def test_the_last_verify_is_told_only_of_the_target_that_is_there() -> None:
    watch = watch_of("tables", Clock())
    watch.round_ended([PartitionLag(P, 30, 30)])
    watch.verify_is(LastVerify(1, 30, 2))
    state = watch.state()
    assert state.last_verify == LastVerify(1, 30, 2)
    assert not state.is_healthy
    assert pipeline_json(state)["last_verify"] == {
        "verified_at": 1,
        "transactions": 30,
        "equal": False,
        "differences": 2,
    }
    watch.verify_is(LastVerify(2, 31, 0))  # the target was removed, and is made anew
    assert watch.state().last_verify is None
    watch.verify_is(None)
    assert watch.state().last_verify is None
