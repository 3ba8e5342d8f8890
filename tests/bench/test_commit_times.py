"""When transactions were committed, as a server notes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import waltz
from waltz.bench.commit_times import ENVIRONMENT, NOTE, committed_at, read_commits
from waltz.bench.trial_cluster import Shape, trial_cluster
from waltz.errors import WaltzError


def noted(*rows: tuple[int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(rows, np.int64)


def test_a_transaction_was_committed_with_the_first_batch_that_reaches_as_far() -> None:
    commits = noted((0, 4, 100), (1, 2, 110), (0, 9, 120))
    partition_ids = np.array([0, 0, 1, 0, 0], np.int64)
    transaction_ids = np.array([0, 4, 1, 5, 9], np.int64)
    assert committed_at(commits, partition_ids, transaction_ids).tolist() == [
        *(100, 100, 110, 120, 120)
    ]


@pytest.mark.parametrize(("partition_id", "transaction_id"), [(0, 5), (1, 0)])
def test_a_transaction_of_which_nothing_was_noted_is_told_of(
    partition_id: int, transaction_id: int
) -> None:
    with pytest.raises(WaltzError, match=f"commit times lack .* partition {partition_id}"):
        committed_at(noted((0, 4, 100)), np.array([partition_id]), np.array([transaction_id]))


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "commits"
    file.write_bytes(NOTE.pack(1, 2, 3) + NOTE.pack(4, 5, 6))
    assert read_commits(file).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("role", "name"), [("server", "begin_noting"), ("storage", "__init__"), ("", "__init__")]
)
def test_only_a_server_notes(tmp_path: Path, role: str, name: str) -> None:
    program = (
        "from waltz.bench import commit_times\n"
        "commit_times.install()\n"
        "from waltz.store.store_partition_shell import StorePartition\n"
        "print(StorePartition.__init__.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, role],
        env=os.environ | {ENVIRONMENT: str(tmp_path / "commits")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [name]


@pytest.mark.long
@pytest.mark.processes
def test_a_commit_is_noted_between_an_append_and_its_application(tmp_path: Path) -> None:
    shape = Shape(2, tls=False, slow_sync_seconds=0.0, is_fresh=False, notes_commits=True)
    with trial_cluster(tmp_path / "cluster", shape) as target:
        assert target.commits is not None
        with waltz.open_client(target.cluster, waltz.NoCallbacks()) as client:
            for transaction_id in range(3):
                before = time.monotonic_ns()
                assert client.append(1, b"data") == transaction_id
                after = time.monotonic_ns()
                (noted_at,) = committed_at(
                    read_commits(target.commits), np.array([1]), np.array([transaction_id])
                ).tolist()
                assert before < noted_at < after
