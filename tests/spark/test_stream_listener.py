"""A stream of a real Spark, as Prometheus sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

import waltz
from tests.clusters import RunningCluster, wait_until
from waltz.errors import ConfigurationError
from waltz.spark import observe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 300.0


def read(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"waltz_stream_{name}", labels)


@pytest.mark.spark
@pytest.mark.processes
def test_a_stream_that_runs_shows_how_far_it_is(
    spark: SparkSession, running: RunningCluster, tmp_path: Path
) -> None:
    with waltz.open_client(running.coordinator, waltz.NoCallbacks()) as client:
        last = [client.append(0, b"%d" % number) for number in range(7)][-1]
    registry = CollectorRegistry()
    observation = observe(spark, registry=registry)
    assert observe(spark, registry=registry) is observation

    class Other:
        streams: Any = None

    with pytest.raises(ConfigurationError):
        observe(Other(), registry=registry)  # type: ignore[arg-type]
    query = (
        spark.readStream.format("waltz")
        .option("cluster", running.coordinator)
        .option("partitions", "0")
        .option("startingOffsets", json.dumps({"0": last - 6}))
        .option("maxTransactionsPerTrigger", 5)
        .load()
        .writeStream.format("noop")
        .queryName("sevens")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    place = {"query": "sevens", "source": "0", "partition": "0"}
    try:
        wait_until(
            lambda: read(registry, "taken_in_transactions", **place) == last + 1,
            "the stream has not taken in all",
            SECONDS_MAX,
        )
        assert read(registry, "log_transactions", **place) == last + 1
        assert read(registry, "lag_transactions", **place) == 0
        assert read(registry, "lag_seconds", **place) == 0
        assert read(registry, "transactions_total", query="sevens") == 7
        assert read(registry, "batches_total", query="sevens") == 2
        parts = {"query": "sevens", "part": "addBatch"}
        assert read(registry, "batch_seconds_count", **parts) == 2
    finally:
        query.stop()
    wait_until(
        lambda: read(registry, "batches_total", query="sevens") is None,
        "a query that has ended is still shown",
        SECONDS_MAX,
    )
    assert read(registry, "failures_total") == 0
    observation.close()
    observation.close()
    assert read(registry, "failures_total") is None
