"""`waltz bench` as it is called."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.clusters import ROOT, RunningCluster, run_waltz, wait_until
from waltz.bench.processes import resident_bytes
from waltz.bench.workload import Workload, read_workloads
from waltz.cli.bench import DEFAULT, bench

QUICK = """\
some: {verb: submit, partitions: 2, window: 8, warm_up_seconds: 0, consumers: 1}
other: {verb: append, window: 1, partitions: 1, warm_up_seconds: 0}
"""


def test_the_workloads_are_listed() -> None:
    done = CliRunner().invoke(bench, ["--list", "feed-*"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()] == [
        "feed-callbacks",
        "feed-bodies",
    ]
    every = json.loads(CliRunner().invoke(bench, ["--list", "--json"]).output)
    assert every == {name: each.about for name, each in read_workloads().items()}
    assert set(DEFAULT) <= every.keys()


def test_wrong_calls_are_told(tmp_path: Path) -> None:
    both = CliRunner().invoke(bench, ["--cluster", "127.0.0.1:1", "--with-tls"])
    assert both.exit_code == 2
    assert "--tls-ca" in both.output
    assert run_waltz("bench", "nothing-like-it").stderr.startswith(
        "waltz: no workload 'nothing-like-it'; there are: one-at-a-time, "
    )
    done = run_waltz("bench", "--file", str(tmp_path / "none"))
    assert "cannot read" in done.stderr
    assert done.returncode == 1


@pytest.mark.long
@pytest.mark.processes
def test_a_running_cluster_is_measured(cluster: RunningCluster, tmp_path: Path) -> None:
    file = tmp_path / "quick.yaml"
    file.write_text(QUICK)
    where = ("--file", str(file), "--cluster", cluster.coordinator, "--directory", str(tmp_path))
    done = run_waltz("bench", *where, "--seconds", "0.3", "--rounds", "2", "--json",
                     "--plot", str(tmp_path / "plot.svg"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    some, other = value["results"]
    assert some["workload"]["name"] == "some"
    assert len(some["rounds"]) == 2
    assert some["rate"]["min"] > 0
    assert some["consumer_latency_seconds"]["p50"] > 0
    assert other["latency_seconds"]["p50"] > 0
    assert set(other["multiples"]) >= {"p50 per write+sync", "processor per pack+crc"}
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    assert "some: round 2 of 2" in done.stderr
    shown = run_waltz("bench", *where, "other", "--seconds", "0.3", "--rounds", "1")
    assert "calibration: write + fdatasync of 4 KiB" in shown.stdout
    assert "\nother: " in shown.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_told_to_end_leaves_nothing_behind(
    tmp_path: Path, number: int, code: int
) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", "bench", "submit-locks", "--with-tls"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup this process ignores SIGHUP, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert running.stderr is not None
    seen = iter(running.stderr)
    assert any("warm-up" in line for line in seen)
    state = json.loads(next(tmp_path.glob("bench-*/cluster-1/cluster.json")).read_text())
    running.send_signal(number)
    running.communicate(timeout=120)
    assert running.returncode == code
    assert list(tmp_path.iterdir()) == []
    places = [Path(f"/proc/{each['pid']}") for each in state["processes"]]
    wait_until(lambda: not any(place.exists() for place in places), "processes are left")


@pytest.mark.long
@pytest.mark.processes
def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", "bench", "submit-locks"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    assert any("round 1" in line for line in running.stderr)
    state = json.loads(next(tmp_path.glob("bench-*/cluster-1/cluster.json")).read_text())
    workers = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children")
               .read_text().split()]  # fmt: skip
    assert len(workers) >= 2
    running.kill()
    running.wait()
    running.stderr.close()
    started = [*workers, *(each["pid"] for each in state["processes"])]
    wait_until(lambda: not any(map(resident_bytes, started)), "processes are left")


def test_the_page_names_every_key_and_every_option_and_no_others() -> None:
    page = (ROOT / "docs" / "operating" / "bench.md").read_text()
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    keys = {key for cell in table for key in re.findall(r"`(\w+)`", cell)}
    assert keys == Workload.__dataclass_fields__.keys() - {"name"}
    options = {option for parameter in bench.params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", page)) <= options


def test_the_example_of_the_page_is_a_file_of_workloads(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating" / "bench.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "mine.yaml"
    file.write_text(example)
    names = ["orders", "orders-sizes-100", "orders-sizes-1000", "orders-sizes-10000"]
    assert list(read_workloads(file)) == names
