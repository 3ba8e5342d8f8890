"""`waltz attest` and `waltz prove` on archives in a directory, with a witness that is a process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from tests.archive.archives import KEY as CLUSTER
from tests.archive.archives import NOW, add, directory_target
from tests.clusters import run_waltz
from waltz.archive.commits import commit
from waltz.archive.manifest import Manifest, TimeMark
from waltz.attest.notes import PublicKey
from waltz.cli.attest import open_place
from waltz.cli.attest_check import Check
from waltz.cli.commands import waltz
from waltz.types import NOTHING, PartitionId

LOG_NAME = f"waltz/{CLUSTER}"


def called(*arguments: str | Path) -> Result:
    return CliRunner().invoke(waltz, [str(each) for each in arguments])


class Attested:
    """An archive of two partitions, the key that signs it, and what is said of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.archive = directory / "archive"
        self.url = f"file://{self.archive}"
        add(directory_target(self.archive), {0: [(0, 300)], 1: [(0, 40)]})
        self.key = directory / "log.key"
        self.public = called("attest", "keygen", LOG_NAME, "-o", self.key).stdout.strip()

    def run(self, *arguments: str) -> Result:
        return called("attest", "run", self.url, "--key", self.key, *arguments)

    def check(self) -> Result:
        return called("attest", "check", self.url, "--log-key", self.public)


@pytest.fixture
def attested(tmp_path: Path) -> Attested:
    return Attested(tmp_path)


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    done = called("attest", "keygen", "waltz/a", "-o", path)
    assert (done.exit_code, path.stat().st_mode & 0o777) == (0, 0o600)
    assert done.stdout.startswith("waltz/a+")
    assert path.read_text().strip() not in done.output
    again = run_waltz("attest", "keygen", "waltz/a", "-o", str(path))
    assert (again.returncode, again.stderr) == (
        1,
        f"waltz: {path} cannot be written: File exists\n",
    )


def test_a_key_that_cannot_be_written_whole_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    command = f"ulimit -f 0; {sys.executable} -m waltz.cli.main attest keygen waltz/a -o {path}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{path} cannot be written" in done.stderr
    assert not path.exists(), "the same command can be given again"


def test_what_is_archived_is_attested_proven_and_checked(attested: Attested) -> None:
    done = attested.run()
    assert done.exit_code == 0, done.output
    assert "partition 0: 300 transactions attested, 300 of them new" in done.output
    assert "partition 1: 40 transactions attested, 40 of them new" in done.output
    add(directory_target(attested.archive), {0: [(300, 700)]}, salt="more")
    again = json.loads(attested.run("--json").output)
    assert [(each["attested"], each["new"]) for each in again["partitions"]] == [
        (700, 400),
        (40, 0),
    ]
    checked = attested.check()
    assert checked.exit_code == 0, checked.output
    assert "partition 0: 700 transactions are as they were attested" in checked.output
    for target in ("0:0", "0:699", "1:39"):
        path = attested.directory / "proof"
        assert called("prove", attested.url, target, "-o", path).exit_code == 0
        shown = called("verify-proof", path, "--log-key", attested.public, "--json")
        assert f"{json.loads(shown.output)['partition']}:" in target
    assert "is not attested" in str(called("prove", attested.url, "0:700").exception)


def test_names_in_a_proof_of_somebody_do_not_act_on_the_terminal(attested: Attested) -> None:
    attested.run()
    path = attested.directory / "proof"
    called("prove", attested.url, "0:5", "-o", path)
    path.write_text(
        path.read_text().replace(f"\N{EM DASH} {LOG_NAME}", "\N{EM DASH} a\x9b31m\u202e")
    )
    done = called("verify-proof", path, "--log-key", attested.public)
    assert done.exit_code == 1
    assert "by a\\x9b31m\\u202e it says" in done.output
    assert all(each.isprintable() for each in done.output.splitlines())


def test_nothing_attested_is_not_said_to_be_well(attested: Attested) -> None:
    done = attested.check()
    assert done.exit_code == 3
    assert "partition 0: nothing was attested" in done.output


def test_a_key_of_another_name_or_kind_signs_nothing(attested: Attested) -> None:
    other = attested.directory / "other"
    called("attest", "keygen", "waltz/other", "-o", other)
    done = called("attest", "run", attested.url, "--key", other)
    assert f"has to be called {LOG_NAME}" in str(done.exception)
    witness = attested.directory / "witness"
    called("attest", "keygen", LOG_NAME, "--witness", "-o", witness)
    done = called("attest", "run", attested.url, "--key", witness)
    assert "is the key of a witness" in str(done.exception)
    assert not (attested.archive / "attest").exists()


def test_an_archive_that_was_set_back_is_refused(attested: Attested) -> None:
    older = attested.directory / "older"
    shutil.copytree(attested.archive, older)
    add(directory_target(attested.archive), {0: [(300, 700)]}, salt="more")
    attested.run()
    shutil.copytree(attested.archive / "attest", older / "attest")
    done = called("attest", "run", f"file://{older}", "--key", attested.key)
    assert (done.exit_code, "700 transactions of partition 0 are attested" in done.output) == (
        1,
        True,
    )
    done = called("attest", "check", f"file://{older}", "--log-key", attested.public)
    assert done.exit_code == 1
    assert "transaction 300 was attested and is not in the archive" in done.output


def test_what_was_attested_after_the_archive_was_opened_is_not_said_to_be_missing(
    attested: Attested,
) -> None:
    """The check of the partitions before may take hours, and both processes go on meanwhile."""
    attested.run()
    target, archive = open_place(attested.url)
    check = Check(target, archive, PartitionId(0), PublicKey.parse(attested.public))
    add(directory_target(attested.archive), {0: [(300, 700)]}, salt="more")
    attested.run()
    found = check.archived()
    assert (found.is_well, found.text) == (True, "700 transactions are as they were attested")


def test_an_attested_partition_that_the_archive_lacks_is_named(tmp_path: Path) -> None:
    attested = Attested(tmp_path)
    older = tmp_path / "older"
    target = directory_target(older)
    before = add(target, {0: [(0, 300)]}).contents
    noted = {PartitionId(1): (TimeMark(NOTHING, NOW),)}  # an archiver has found it empty
    commit(target, before, Manifest(0, None, NOW, "w", time_marks=noted))
    attested.run()
    shutil.copytree(attested.archive / "attest", older / "attest")
    done = called("attest", "check", f"file://{older}", "--log-key", attested.public)
    assert "partition 1: transaction 0 was attested and is not in the archive" in done.output
    assert done.exit_code == 1
    done = called("attest", "run", f"file://{older}", "--key", attested.key)
    assert "40 transactions of partition 1 are attested, and the archive ends" in done.output
    assert done.exit_code == 1


def test_a_tree_that_was_changed_keeps_no_other_partition_from_being_attested(
    attested: Attested,
) -> None:
    attested.run()
    (tile,) = (attested.archive / "attest" / "0" / "tile" / "1").rglob("1")
    tile.write_bytes(bytes(len(tile.read_bytes())))
    add(directory_target(attested.archive), {0: [(300, 700)], 1: [(40, 60)]}, salt="more")
    done = attested.run()
    assert "waltz: partition 0: the tiles of partition 0 do not have the root" in done.output
    assert "partition 1: 60 transactions attested, 20 of them new" in done.output
    assert done.exit_code == 1
    done = attested.run("--json")
    found = json.loads(done.stdout)
    assert [each["partition"] for each in found["partitions"]] == [1]
    assert len(found["not_attested"]) == 1


@pytest.mark.processes
def test_an_attester_that_goes_on_says_what_is_wrong_and_goes_on(attested: Attested) -> None:
    attested.run()
    (tile,) = (attested.archive / "attest" / "0" / "tile" / "1").rglob("1")
    tile.write_bytes(bytes(len(tile.read_bytes())))
    command = [sys.executable, "-m", "waltz.cli.main", "attest", "run", attested.url]
    with subprocess.Popen(
        [*command, "--key", str(attested.key), "--every", "0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(3)]
        process.kill()
    assert all("do not have the root" in each for each in said), said


def test_every_changed_byte_of_an_archive_is_found(attested: Attested) -> None:
    """Objects and tiles; a changed manifest does not open, or names other objects."""
    attested.run()
    random = Random(7)
    for path in sorted(attested.archive.rglob("*")):
        if not path.is_file() or path.name == "hint" or path.suffix == ".json":
            continue
        content = path.read_bytes()
        for _ in range(12):
            changed = bytearray(content)
            changed[random.randrange(len(changed))] ^= random.randrange(1, 256)
            path.write_bytes(changed)
            assert attested.check().exit_code == 1, path
        path.write_bytes(content)
    assert attested.check().exit_code == 0


class TestWitness:
    @pytest.fixture
    def witness(self, attested: Attested) -> Iterator[str]:
        """The option that names a witness of the archive's log."""
        from tests.clusters import start_node
        from tests.live.launch import free_addresses

        key = attested.directory / "witness.key"
        public = called("attest", "keygen", "witness.example/w", "--witness", "-o", key).stdout
        address = next(free_addresses(1))
        process = start_node(
            *("witness", "--http", str(address), "--key", str(key), "--log", attested.public),
            *("--memory", str(attested.directory / "memory")),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"http://{address}={public.strip()}"
        process.kill()
        process.communicate()

    @pytest.mark.processes
    def test_a_witness_cosigns_what_grows_and_no_fork(
        self, attested: Attested, witness: str
    ) -> None:
        fork = attested.directory / "fork"
        shutil.copytree(attested.archive, fork)
        done = attested.run("--witness", witness)
        assert done.exit_code == 0, done.output
        assert "cosigned by 1 of 1 witnesses" in done.output
        add(directory_target(attested.archive), {0: [(300, 500)]}, salt="true")
        assert attested.run("--witness", witness).exit_code == 0
        # Another record 0, of the same owner's key: the fork is attested, and not cosigned.
        add(directory_target(attested.directory / "forged"), {0: [(0, 600)]}, size=21)
        url = f"file://{attested.directory / 'forged'}"
        done = called("attest", "run", url, "--key", attested.key, "--witness", witness)
        assert done.exit_code == 3
        assert "status 422: the proof does not show" in done.output
        called("prove", url, "0:5", "-o", attested.directory / "proof")
        key = witness.partition("=")[2]
        verify = ("verify-proof", attested.directory / "proof", "--log-key", attested.public)
        assert called(*verify, "--witness-key", key).exit_code == 1
        assert called(*verify).exit_code == 0

    @pytest.mark.processes
    def test_a_witness_that_was_away_cosigns_later(self, attested: Attested, witness: str) -> None:
        url, _, key = witness.partition("=")
        done = attested.run("--witness", f"http://127.0.0.1:1={key}")
        assert done.exit_code == 3
        assert "does not answer" in done.output
        assert attested.check().exit_code == 0
        done = attested.run("--witness", f"{url}={key}")
        assert (done.exit_code, "0 of them new, cosigned by 1 of 1" in done.output) == (0, True)
