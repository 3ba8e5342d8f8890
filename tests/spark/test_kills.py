"""A pipeline whose parts are killed loses nothing and has nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kills import started


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_files_and_copies_are_the_log_whatever_is_killed(tmp_path: Path) -> None:
    """PS-02, PS-07. One kill of each kind of part; `make spark-kill` has more."""
    with started(tmp_path, seed=11) as (run, client):
        for kind in ("worker", "server", "driver"):
            run.round(client, kind)
        assert sum(run.kills.values()) == 3
        assert run.pipeline.starts >= 2
