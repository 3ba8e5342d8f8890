"""What docs/tutorial.md shows works as it stands there, one step after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import ROOT, running_cluster, wait_until

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
STEPS = re.findall(r"```console\n\$ python (\w+\.py.*)\n(.*)\n```", PAGE)
PARTITIONS = 4


@pytest.mark.processes
def test_the_tutorial_is_true(tmp_path: Path) -> None:
    """PM-20 to PM-22, PM-50: its files and commands in their order; the server is killed, too."""
    assert [name for name in FILES if not any(step.startswith(name) for step, _ in STEPS)] == [
        "warehouse.py",
        "watch.py",
    ]
    with running_cluster(tmp_path / "cluster", "--partitions", str(PARTITIONS)) as cluster:
        for name, text in FILES.items():
            (tmp_path / name).write_text(text.replace("127.0.0.1:7100", cluster.coordinator))

        def start(command: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, *command.split()],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        for command, said in STEPS:
            out, err = start(command).communicate(timeout=240)
            assert (out.strip(), err) == (said, ""), command

        watching = start("watch.py one")
        assert watching.stdout is not None
        told = [watching.stdout.readline().strip() for _ in range(PARTITIONS)]
        assert sorted(told) == [f"partition {number} is there" for number in range(PARTITIONS)]
        server = next(p["name"] for p in cluster.state["processes"] if "server" in p["name"])
        cluster.kill(server)
        cluster.wait_until_restarted(server)
        wait_until(lambda: (tmp_path / "one.db").exists(), "there is no database")
        again = []
        while "partition 0 is there" not in again:
            again.append(watching.stdout.readline().strip())
        (tmp_path / "stop").touch()
        out, _ = watching.communicate(timeout=240)
        pieces, transactions = map(int, out.strip().splitlines()[-1].split())
        assert "partition 0 is away" in again
        assert pieces == transactions > 0


def test_every_command_of_the_page_is_run() -> None:
    shown = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    others = [line for line in shown if not line.startswith("python ")]
    assert [line.split()[0] for line in others] == ["pip", "waltz"]
    assert len(STEPS) == len(shown) - len(others)
