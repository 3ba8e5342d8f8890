"""`waltz bisect` against a running cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import waltz
from tests.clusters import RunningCluster, run_waltz

pytestmark = pytest.mark.processes

BANK = """
class Balance:
    def __init__(self):
        self.total = 0

    def apply_transaction(self, transaction):
        self.total += int(transaction.data)


def is_covered(balance):
    return balance.total >= 0


def is_number(transaction):
    assert transaction.data.strip(b"-").isdigit(), transaction


def is_paid_in(transaction):
    return not transaction.data.startswith(b"-")


def fails(balance):
    raise ValueError("no such account")
"""


@pytest.fixture(scope="module")
def ledger(cluster: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the user's module. The log of partition 0 overdraws with transaction 30."""
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        client.append_many(0, [b"2"] * 30 + [b"-61"] + [b"0"] * 69)
        client.append_many(1, [b"1"] * 10)
    directory = tmp_path_factory.mktemp("ledger")
    (directory / "bank.py").write_text(BANK)
    return directory


def bisect(
    cluster: RunningCluster, ledger: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return run_waltz("bisect", "--cluster", cluster.coordinator, *arguments, cwd=ledger)


STATE = ("--state", "bank:Balance", "--test", "bank:is_covered")


@pytest.mark.parametrize("every", ["1", "7", "10000"])
def test_the_transaction_that_breaks_a_state_is_found(
    cluster: RunningCluster, ledger: Path, every: str
) -> None:
    done = bisect(cluster, ledger, "--partition", "0", *STATE, "--every", every, "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["found"]["transaction_id"], found["found"]["data"]) == (30, "-61")


def test_a_state_that_holds_ends_with_zero_and_says_what_was_applied(
    cluster: RunningCluster, ledger: Path
) -> None:
    done = bisect(cluster, ledger, "--partition", "1", *STATE)
    assert (done.returncode, done.stdout) == (
        0,
        "partition 1: the test has not failed; 10 transactions from 0 on were applied\n",
    )
    until = bisect(cluster, ledger, "--partition", "0", *STATE, "--to", "29")
    assert until.returncode == 0


def test_a_search_is_resumed_and_not_mixed_up(
    cluster: RunningCluster, ledger: Path, tmp_path: Path
) -> None:
    saved = ("--resume", str(tmp_path / "search"))
    first = bisect(cluster, ledger, "--partition", "0", *STATE, "--to", "19", *saved, "--json")
    assert (first.returncode, json.loads(first.stdout)["applied"]) == (0, 20)
    resumed = bisect(cluster, ledger, "--partition", "0", *STATE, *saved)
    assert "holds after 29 and fails after transaction 30" in resumed.stdout
    other = bisect(cluster, ledger, "--partition", "1", *STATE, *saved)
    assert "keeps another search" in other.stderr
    (tmp_path / "search").write_bytes(b"nothing")
    assert "keeps no search" in bisect(cluster, ledger, "--partition", "0", *STATE, *saved).stderr


def test_a_place_that_keeps_nothing_is_told_before_the_search(
    cluster: RunningCluster, ledger: Path, tmp_path: Path
) -> None:
    saved = ("--resume", str(tmp_path / "none" / "search"))
    done = bisect(cluster, ledger, "--partition", "0", *STATE, *saved)
    assert done.returncode == 1
    assert done.stderr == (
        f"waltz: the search cannot be kept in {saved[1]}: No such file or directory\n"
    )


def test_what_was_found_is_told_even_if_it_cannot_be_kept(
    cluster: RunningCluster, ledger: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "search"
    saved = ("--resume", str(directory))
    begun = bisect(cluster, ledger, "--partition", "0", *STATE, "--to", "9", *saved)
    assert begun.returncode == 0, begun.stderr
    (tmp_path / "search.part").mkdir()  # as a disk that has become full
    done = bisect(cluster, ledger, "--partition", "0", *STATE, *saved)
    assert "holds after 29 and fails after transaction 30" in done.stdout
    assert "cannot be kept" in done.stderr


def test_without_a_state_each_transaction_is_tested(cluster: RunningCluster, ledger: Path) -> None:
    every_number = bisect(cluster, ledger, "--partition", "0", "--test", "bank:is_number")
    assert every_number.returncode == 0, every_number.stderr
    assert every_number.stdout.endswith("has not failed; 100 transactions from 0 on were tested\n")
    done = bisect(cluster, ledger, "--partition", "0", "--test", "bank:is_paid_in")
    assert done.returncode == 1
    assert "the test fails for transaction 30, the first one of those from 0 on\n" in done.stdout
    assert done.stdout.endswith("\n-61\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--partition", "0", *STATE, "--to", "100"), "ends with transaction 99"),
        (("--partition", "0", "--test", "bank:is_number", "--resume", "x"), "only --state has"),
        (("--partition", "0", "--test", "nocolon"), "expected module:callable"),
        (("--partition", "0", "--test", "bank:nothing"), "has no attribute"),
        (("--partition", "0", "--test", "bank:fails"), "the test raised ValueError('no such"),
        (("--partition", "9", *STATE), "partition 9"),
    ],
)
def test_a_wrong_call_is_refused(
    cluster: RunningCluster, ledger: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = bisect(cluster, ledger, *arguments)
    assert (done.returncode != 0, "Traceback" in done.stderr) == (True, False)
    assert said in done.stderr
