"""Attempts of a sink that are killed, or come back from the dead, write each row once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters import running_cluster
from tests.spark.sink_kills import Run


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [8, 20])
def test_every_row_is_in_the_log_once(tmp_path: Path, kills: int) -> None:
    """PS-07. Kills at moments that a seed has drawn; `make spark-kill` has more."""
    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        run = Run(cluster, seed=5)
        run.kill(kills)
        assert run.kills["killed"] > 0
        assert kills < 20 or run.kills["stopped"] > 0  # a few may find every attempt over already
