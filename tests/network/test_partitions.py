"""Real processes on machines of their own, and a network that is cut between them.

`make network-matrix` plays every case; here are a few, and proof that the judges can fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.network.__main__ import judge_sessions
from tests.network.cases import DIRECTIONS, KINDS, all_cases, ways
from tests.network.deployment import CLIENTS, STORAGES, server_names
from tests.network.links import Way, refusal, run_alone

SERVERS = server_names(2)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        pytest.param(["--cases", "1"], 1, id="one"),
        pytest.param(["--short"], len(KINDS), id="one of each kind", marks=pytest.mark.long),
    ],
)
def test_whatever_is_cut_off_nobody_loses_anything_and_all_go_on_after_it(
    tmp_path: Path, chosen: list[str], count: int
) -> None:
    """CM-12, ST-04, SN-14, PM-04: cuts shorter and longer than a session."""
    if (reason := refusal()) is not None:
        pytest.skip(reason)
    seen = tmp_path / "seen.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.network", "--seed", "a sample", *chosen),
            *("--json", str(seen), "--directory", str(tmp_path / "cluster")),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(seen.read_text())
    assert found["violations"] == []
    assert len(found["cases"]) == count
    assert found["transactions"] > 100


def test_a_case_for_every_process_and_every_pair_in_each_direction() -> None:
    cases = {case.name: case.ways for case in all_cases(SERVERS)}
    everyone = ("zookeeper", *STORAGES, *SERVERS, *CLIENTS)
    for process in everyone:
        both, sends, is_sent = (cases[f"{process} | everyone, {how}"] for how in DIRECTIONS)
        others = set(everyone) - {process}
        assert sends == {Way(process, other) for other in others}
        assert is_sent == {Way(other, process) for other in others}
        assert both == sends | is_sent
    for server in SERVERS:
        for other in ("zookeeper", *STORAGES, *CLIENTS):
            assert cases[f"{server} | {other}, both ways"] == ways(server, [other], "both ways")


def test_generations_and_sessions_that_go_back_are_found() -> None:
    assert list(judge_sessions([{0: (1, 1)}, {0: (1, 2)}, {0: (2, 2)}])) == []
    assert len(list(judge_sessions([{0: (1, 2)}, {0: (1, 1)}]))) == 1
    assert len(list(judge_sessions([{0: (2, 2)}, {0: (1, 3)}]))) == 1


@pytest.mark.processes
def test_a_peer_that_cannot_be_reached_is_given_up_though_something_was_sent() -> None:
    """LC-82: the system alone would repeat it for a quarter of an hour, and probe nobody."""
    if (reason := refusal()) is not None:
        pytest.skip(reason)
    done = run_alone("-m", "tests.network.silent_peer", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "near to far ended",
        "far to near ended",
        "nothing is cut answered",
    ]
