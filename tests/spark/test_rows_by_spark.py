"""Spark's own Delta source, which shares no code with Waltz, reads derived tables and archives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import ROOT
from tests.spark.tables_by_value import CLUSTER, LAYOUT, LAYOUTS, Event, batch, folded, ranged
from tests.spark.test_any_archive import logged, rows, span
from tests.spark.test_delta_archive import delta_archive
from tests.spark.test_other_engines import random_events
from waltz.spark.archive_location import DeltaLocation
from waltz.spark.pipelines.bucket_join import BUCKET, bucket_of
from waltz.spark.pipelines.delta_tables import DeltaTables

BUCKETS = 3
COLUMNS = [each.name for each in LAYOUT.columns]


def texts(found: Iterable[dict[str, Any]]) -> list[str]:
    """Return rows as `rows_by_spark` prints them."""
    return sorted(repr(sorted(row.items())) for row in found)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_fold_of_all_batches_and_the_archived_log(tmp_path: Path) -> None:
    late: list[Event] = [(f"late {each}", None, each, 0, each) for each in range(100, 400)]
    events, per_batch = random_events(seed=3, count=100) + late, 40
    with DeltaTables(tmp_path / "target", create=True, buckets=BUCKETS) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        for first in range(0, len(events), per_batch):
            end = first + per_batch
            store.add(batch(events[first:end], [ranged(first, end)]))
        files = store._format.files(store._format.opened("t"))
    assert max(map(len, files.values())) > 1, "buckets have several files"
    location = DeltaLocation(str(tmp_path / "archive"))
    delta_archive(location)
    paths = [str(tmp_path / "target" / "t"), location.root]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.rows_by_spark", *paths],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table, archive = json.loads(done.stdout.splitlines()[-1])
    found = [dict(zip(COLUMNS, row, strict=True)) for row in folded(events)]
    assert table == texts(row | {BUCKET: bucket_of((row["a"], row["b"]), BUCKETS)} for row in found)
    assert archive == texts(rows([logged(span(0, 0, 29)), logged(span(1, 0, 5))]))
