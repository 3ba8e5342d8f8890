"""A bridge's figures: what was posted, what waits and why, and how far each partition is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from waltz.figures import Metric, counter, gauge


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """A partition at one moment. Counts are since the start of the process.

    next_id    the next transaction to post; all before it were accepted, left out or skipped.
    last_sent  the last transaction of the post under way, or of the one refused; None: none is.
    trouble    why the last attempt failed; None: it did not.
    """

    partition_id: int
    next_id: int
    last_sent: int | None
    doing: str
    posted: int
    posts: int
    refusals: int
    refused_in_a_row: int
    trouble: str | None


@dataclass(frozen=True, slots=True)
class BridgeFigures:
    """A bridge at one moment. `cluster_key` is empty, and there are no partitions, until the
    cluster has answered; `trouble` is that of the process as a whole."""

    cluster_key: str
    receiver: str
    partitions: tuple[PartitionFigures, ...]
    trouble: str | None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing waits for a receiver that does not take it, or for the cluster."""
        return (
            self.trouble is None
            and bool(self.partitions)
            and all(each.trouble is None for each in self.partitions)
        )


BRIDGE_METRICS: Final[tuple[Metric[BridgeFigures], ...]] = (
    gauge("healthy", "1 if nothing is wrong.", lambda each: float(each.is_healthy)),
)

BRIDGE_PARTITION_METRICS: Final[tuple[Metric[PartitionFigures], ...]] = (
    gauge(
        "next_transaction",
        "The next transaction to post; all before it are done with.",
        lambda each: each.next_id,
    ),
    counter(
        "transactions",
        "Transactions that the receiver, or Kafka, accepted.",
        lambda each: each.posted,
    ),
    counter(
        "posts",
        "Posts that the receiver accepted; for Kafka its transactions.",
        lambda each: each.posts,
    ),
    counter(
        "failed_attempts",
        "Attempts that were not accepted, or had no answer; or the log or the progress failed.",
        lambda each: each.refusals,
    ),
    gauge(
        "failed_attempts_in_a_row",
        "Such attempts since the last success: above 0 the partition waits.",
        lambda each: each.refused_in_a_row,
    ),
)


def bridge_json(figures: BridgeFigures) -> dict[str, Any]:
    """Return the answer to `/health`."""
    return {
        "healthy": figures.is_healthy,
        "cluster_key": figures.cluster_key,
        "receiver": figures.receiver,
        "trouble": figures.trouble,
        "partitions": [
            {
                "partition": each.partition_id,
                "next": each.next_id,
                "last_sent": each.last_sent,
                "doing": each.doing,
                "posted": each.posted,
                "posts": each.posts,
                "failed_attempts": each.refusals,
                "failed_in_a_row": each.refused_in_a_row,
                "trouble": each.trouble,
            }
            for each in figures.partitions
        ],
    }
