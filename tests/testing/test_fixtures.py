"""The fixtures as an application's tests use them; and the page that shows them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import ROOT
from tests.testing.applications import Counting, Forgetful
from waltz.testing import InMemoryCluster, SimulationFailedError
from waltz.testing.fixtures import Simulate

PAGE = (ROOT / "docs" / "testing-your-application.md").read_text()


def run_pytest(
    directory: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = f"{ROOT / 'src'}{os.pathsep}{directory}"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_is_true(tmp_path: Path) -> None:
    """PM-60, PM-62: its files, as they stand there, are a suite that passes."""
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == [
        "conftest.py", "accounts.py", "test_accounts.py", "test_faults.py",
        "test_async_accounts.py", "test_simulated.py",
    ]  # fmt: skip
    for name, text in files:
        (tmp_path / name).write_text(text)
    done = run_pytest(tmp_path, "--strict-markers")
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_a_failing_seed_prints_the_line_that_repeats_it(tmp_path: Path) -> None:
    """The line is run as it stands there, and fails alike."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["waltz.testing.fixtures"]\n')
    (tmp_path / "test_it.py").write_text(
        "from tests.testing.applications import Forgetful\n"
        "def test_it(waltz_simulate):\n"
        "    waltz_simulate(Forgetful, seeds=3, faults=['none', 'pauses'])\n"
    )
    done = run_pytest(tmp_path, PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    assert done.returncode == 1, done.stdout
    found = re.search(
        r"replay: WALTZ_SEED=(\d+) WALTZ_FAULTS=(\w+) pytest '(test_it.py::test_it)'", done.stdout
    )
    assert found, done.stdout
    seed, faults, test = found.groups()
    again = run_pytest(
        tmp_path, test, PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}", WALTZ_SEED=seed,
        WALTZ_FAULTS=faults,
    )  # fmt: skip

    def violations(said: str) -> list[str]:
        return re.findall(r"^E  .*client-\d has applied .*$", said, re.MULTILINE)

    assert again.returncode == 1, again.stdout
    assert violations(again.stdout) == violations(done.stdout) != []


@pytest.mark.parametrize("word", ["it's", "plain"])
def test_a_shell_takes_the_name_of_the_test_from_the_line(
    waltz_simulate: Simulate, request: pytest.FixtureRequest, word: str
) -> None:
    with pytest.raises(SimulationFailedError) as raised:
        waltz_simulate(Forgetful, faults=["none"])
    *_, name = shlex.split(raised.value.replay)
    assert name == request.node.nodeid
    assert word in name


def test_seeds_go_through_the_plans_in_turns(
    waltz_simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WALTZ_SEED", "WALTZ_SEEDS", "WALTZ_FAULTS"):
        monkeypatch.delenv(name, raising=False)
    outcomes = waltz_simulate(Counting, seeds=3, faults=["none", "pauses"], clients=1)
    assert [(each.seed, each.faults) for each in outcomes] == [
        (0, "none"), (1, "pauses"), (2, "none"),
    ]  # fmt: skip
    monkeypatch.setenv("WALTZ_SEEDS", "1")
    assert len(waltz_simulate(Counting, faults=["none"], clients=1)) == 1
    monkeypatch.setenv("WALTZ_SEED", "many")
    with pytest.raises(Exception, match="WALTZ_SEED is 'many'; expected a number"):
        waltz_simulate(Counting, faults=["none"])


@pytest.mark.waltz(partitions=2)
def test_the_cluster_of_a_test_is_empty(waltz_cluster: InMemoryCluster) -> None:
    with waltz_cluster.open_reader() as reader:
        assert [reader.high_water_mark(number) for number in range(2)] == [-1, -1]
    assert issubclass(SimulationFailedError, AssertionError)
