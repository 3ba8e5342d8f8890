"""A pipeline whose parts are killed loses nothing and has nothing twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.spark import table_kills
from tests.spark.kills import started


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.parametrize("kinds", [("driver",), ("worker", "server", "driver")], ids=" ".join)
def test_files_and_copies_are_the_log_whatever_is_killed(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    """PS-02, PS-07. `make spark-kill` has more kills."""
    with started(tmp_path, seed=11) as (run, client):
        for kind in kinds:
            run.round(client, kind)
        assert sum(run.kills.values()) == len(kinds)
        assert run.pipeline.starts >= 2


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_are_the_fold_of_the_log_whatever_is_killed(tmp_path: Path, kind: str) -> None:
    """20 kills; `make spark-kill` has more."""
    order = random.Random(12)
    with table_kills.started(tmp_path, seed=12, kind=kind) as (run, client):
        for _ in range(20):
            run.round(client, order.choice(table_kills.VICTIMS))
        assert sum(run.kills.values()) == 20
        run.finish()
