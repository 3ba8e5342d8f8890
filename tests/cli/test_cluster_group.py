"""The tree of `waltz cluster` (TL-01)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters import run_waltz

pytestmark = pytest.mark.processes


def test_the_process_ends_with_the_codes_that_are_promised(tmp_path: Path) -> None:
    """TL-01: usage 2, failure 1 with one line that names the address."""
    assert run_waltz("cluster").returncode == 2
    assert "create" in run_waltz("cluster", "-h").stdout
    unknown = run_waltz("cluster", "nope")
    assert unknown.returncode == 2
    assert "No such command 'nope'" in unknown.stderr
    missing = run_waltz("cluster", "create", "-n", "x", "--cluster", "127.0.0.1:1")
    assert missing.returncode == 2
    assert "--partitions" in missing.stderr
    config = tmp_path / "tool.yml"
    config.write_text("zookeeper: {connectString: '127.0.0.1:1', connectTimeout: 200}\n")
    done = run_waltz("cluster", "list", "-c", str(config))
    assert done.returncode == 1
    assert done.stderr == "waltz: no ZooKeeper answers at 127.0.0.1:1\n"
