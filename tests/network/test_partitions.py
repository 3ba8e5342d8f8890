"""Real processes on machines of their own, and a network that is cut between them.

`make network-matrix` plays every case; here are a few, and proof that the judges can fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.network.cases import DIRECTIONS, KINDS, all_cases, ways
from tests.network.deployment import CLIENTS, STORAGES, server_names
from tests.network.judgement import (
    judge_clients,
    judge_metadata,
    judge_replica,
    judge_servers,
)
from tests.network.links import Way, refusal, run_alone

SERVERS = server_names(2)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        pytest.param(["--cases", "2"], 2, id="two"),
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


SENT = [["sent", 0, name, 0.0] for name in ("a", "b")]


@pytest.mark.parametrize(
    ("line", "violation"),
    [
        (["written", 0, "a", 1, 0.0], "a is transaction 1; it is not"),
        (["written", 0, "z", 2, 0.0], "z is transaction 2; it is not"),
        (["refused", 0, "b", "why", False], "b is not written, why; it is"),
        (["applied", 0, 1, "b"], "handed 1 of 0, not 0"),
        (["applied", 0, 0, "b"], "handed b as 0"),
    ],
)
def test_what_a_client_was_told_is_held_against_the_log(line: list[Any], violation: str) -> None:
    log = {0: ["a", "b"]}
    sound = [["written", 0, "b", 1, 0.0], ["applied", 0, 0, "a"], ["applied", 0, 1, "b"]]
    assert list(judge_clients(log, {"c": [*SENT, *sound]})) == []
    (found,) = judge_clients(log, {"c": [*SENT, line]})
    assert violation in found


def test_a_transaction_is_in_the_log_once_and_somebody_has_sent_it() -> None:
    assert list(judge_clients({0: ["a"], 1: ["a"]}, {"c": SENT})) == ["a is in the log 2 times"]
    (found,) = judge_clients({0: ["z"]}, {"c": SENT})
    assert found == "z is in the log and nobody has sent it"


@pytest.mark.parametrize("held", [["a"], ["a", "c"], ["a", "b", "c"], []])
def test_a_replica_that_holds_anything_else_is_found(held: Sequence[str]) -> None:
    assert list(judge_replica({0: ["a", "b"]}, "storage-1", {0: ["a", "b"]})) == []
    assert len(list(judge_replica({0: ["a", "b"]}, "storage-1", {0: held}))) == 1


@pytest.mark.parametrize(
    ("logs", "violation"),
    [
        (
            {
                "one": "partition_opened partition=0 generation=3",
                "two": "partition_opened partition=0 generation=3",
            },
            "generation 3 of partition 0",
        ),
        (
            {
                "one": "store_opened partition=0 session=4 mark=7",
                "two": "store_opened partition=0 session=4 mark=7",
            },
            "session 4 of partition 0 was opened 2 times",
        ),
        (
            {
                "one": "store_opened partition=0 session=4 mark=7",
                "two": "store_opened partition=0 session=5 mark=6",
            },
            "session 5 of 0 began at 6, behind 7",
        ),
        ({"one": "2026 ERROR partition_failed partition=0"}, "one said"),
    ],
)
def test_two_owners_at_a_time_are_found(logs: Mapping[str, str], violation: str) -> None:
    (found,) = judge_servers(logs)
    assert violation in found


def test_generations_and_sessions_that_go_back_are_found() -> None:
    assert list(judge_metadata([{0: (1, 1)}, {0: (1, 2)}, {0: (2, 2)}])) == []
    assert len(list(judge_metadata([{0: (1, 2)}, {0: (1, 1)}]))) == 1
    assert len(list(judge_metadata([{0: (2, 2)}, {0: (1, 3)}]))) == 1


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
