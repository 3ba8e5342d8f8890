"""The archiver's figures: what is archived, how far behind it is, and when that was last known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from waltz.figures import Metric, counter, gauge
from waltz.types import PartitionId


@dataclass(frozen=True, slots=True)
class ArchiverPartition:
    """A partition as the archiver knows it.

    archived           the last archived transaction, -1 for none; None: not read yet.
    high_water_mark    the highest mark that the log has told; None: none yet.
    lag_seconds        for how long, at least, the first transaction that is not archived has been
                       committed.
    trouble            why its newest transactions are not archived; None: nothing is wrong.
    is_different       copies of the log differ.
    """

    partition_id: PartitionId
    archived: int | None
    high_water_mark: int | None
    lag_seconds: float | None
    trouble: str | None
    is_different: bool

    @property
    def lag_transactions(self) -> int | None:
        if self.archived is None or self.high_water_mark is None:
            return None
        return max(0, self.high_water_mark - self.archived)


@dataclass(frozen=True, slots=True)
class ArchiverState:
    """The archiver at one moment. Counts are since its start."""

    target: str
    cluster_key: str
    manifest: int | None
    last_success_milliseconds: int | None
    commits: int
    races_lost: int
    failures: int
    objects: int
    byte_count: int
    swept: int
    trouble: str | None
    partitions: tuple[ArchiverPartition, ...]

    @property
    def is_healthy(self) -> bool:
        return self.trouble is None and not any(each.trouble for each in self.partitions)


ARCHIVER_METRICS: Final[tuple[Metric[ArchiverState], ...]] = (
    gauge(
        "healthy",
        "1 if the last round archived everything that the log had.",
        lambda state: float(state.is_healthy),
    ),
    gauge(
        "manifest",
        "The number of the archive's last manifest, -1 for none.",
        lambda state: state.manifest,
        absent="until the archive was read",
    ),
    gauge(
        "last_success_timestamp_seconds",
        "The time, since 1970, at which everything that the log had was last archived.",
        lambda state: (
            None
            if state.last_success_milliseconds is None
            else state.last_success_milliseconds / 1000
        ),
        absent="until that happens for the first time",
    ),
    counter("commits", "Manifests written.", lambda state: state.commits),
    counter("races_lost", "Commits that another archiver made first.", lambda s: s.races_lost),
    counter("failures", "Steps that failed and are tried again.", lambda state: state.failures),
    counter("objects", "Objects of records written.", lambda state: state.objects),
    counter("object_bytes", "Bytes of these objects.", lambda state: state.byte_count),
    counter("swept_objects", "Objects removed that no manifest names.", lambda s: s.swept),
)

ARCHIVER_PARTITION_METRICS: Final[tuple[Metric[ArchiverPartition], ...]] = (
    gauge(
        "archived_mark",
        "The last archived transaction, -1 for none.",
        lambda each: each.archived,
        absent="until the archive was read",
    ),
    gauge(
        "lag_transactions",
        "Transactions that the log has told and that are not archived.",
        lambda each: each.lag_transactions,
        absent="until the log has told its high-water mark",
    ),
    gauge(
        "lag_seconds",
        "Time for which, at least, the first transaction that is not archived has been committed.",
        lambda each: each.lag_seconds,
        absent="until the log has told its high-water mark",
    ),
    gauge(
        "copies_differ",
        "1 if copies of the log differ: nothing from the difference on is archived.",
        lambda each: float(each.is_different),
    ),
)


def health_json(state: ArchiverState) -> dict[str, Any]:
    """Return the answer to `/health`."""
    return {
        "healthy": state.is_healthy,
        "target": state.target,
        "cluster_key": state.cluster_key,
        "manifest": state.manifest,
        "trouble": state.trouble,
        "partitions": {
            str(each.partition_id): {
                "archived": each.archived,
                "high_water_mark": each.high_water_mark,
                "lag_transactions": each.lag_transactions,
                "lag_seconds": each.lag_seconds,
                "trouble": each.trouble,
            }
            for each in state.partitions
        },
    }
