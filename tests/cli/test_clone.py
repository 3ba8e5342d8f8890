"""`waltz clone`: a cluster with the content of an archive and a key of its own, started."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.clusters import run_tool, start_node, wait_until
from tests.restore.memory_archive import KEY, make_archive
from tests.restore.stored_archive import store


@pytest.mark.processes
def test_a_clone_runs_with_a_key_of_its_own_and_continues_the_log(tmp_path: Path) -> None:
    url = store(make_archive([30]), tmp_path / "archive")
    directory = tmp_path / "clone"
    arguments = ("--directory", str(directory), "--port", "0", "--no-console", "--marks", "0=20")
    process = start_node("clone", url, *arguments, stderr=subprocess.PIPE)

    def state() -> dict[str, object]:
        path = directory / "cluster.json"
        found: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
        assert process.poll() is None, process.communicate()[1]
        return found

    try:
        wait_until(lambda: state().get("ready"), "the clone does not start")
        place = ("--cluster", str(state()["coordinator"]))
        key = run_tool("cluster", "show-cluster-key", *place).out.strip()
        assert key == state()["cluster_key"] != str(KEY)
        assert run_tool("append", *place, "--partition", "0", "more").out.strip() == "21"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
