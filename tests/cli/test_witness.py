"""`waltz witness` as a process: over restarts by SIGKILL, and between two archives of one log."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attest.trees import CLUSTER, PARTITION, MemoryBlocks, MemoryFiles, block_of, known_key
from tests.clusters import run_waltz, start_node
from tests.live.launch import free_addresses
from waltz.attest.attester import Attester
from waltz.attest.notes import KeyKind, SecretKey
from waltz.attest.tree_files import TreeFiles
from waltz.attest.witness_judge import REQUEST_BYTES_MAX
from waltz.cli.cosigning import Witness
from waltz.errors import AttestationError, ConnectionFailedError
from waltz.types import TransactionId

pytestmark = pytest.mark.processes

LOG = known_key(f"waltz/{CLUSTER}", KeyKind.LOG)
RECORDS = [block_of(number, 1, b"some data") for number in range(600)]
OTHERS = [*RECORDS[:400], *(block_of(number, 1, b"forged") for number in range(400, 600))]


class WitnessProcess:
    """A witness with its files in `directory`, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        key = SecretKey.generate("witness.example/w", KeyKind.WITNESS)
        (directory / "key").write_text(key.secret_text())
        (directory / "log.key").write_text(str(LOG.public_key))
        self.key = key.public_key
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._address = next(free_addresses(1))
        self.url = f"http://{self._address}"

    def start(self) -> None:
        self._process = start_node(
            *("witness", "--http", str(self._address)),
            *("--key", str(self._directory / "key")),
            *("--log", str(self._directory / "log.key")),
            *("--memory", str(self._directory / "memory")),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        while "witness_started" not in line:
            assert line, "the witness ended"
            line = self._process.stderr.readline()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def forget(self) -> None:
        """Start with an empty memory."""
        self.kill()
        (self._directory / "memory").unlink(missing_ok=True)
        self.start()

    def asked(self) -> Witness:
        return Witness(self.url, self.key)


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WitnessProcess]:
    process = WitnessProcess(tmp_path_factory.mktemp("witness"))
    process.start()
    yield process
    process.kill()


class Archive:
    """A tree of some records, signed by `key`."""

    def __init__(self, records: list[bytes], key: SecretKey = LOG) -> None:
        self.files = TreeFiles(MemoryFiles(), PARTITION)
        self._records = MemoryBlocks(records)
        self.attester = Attester(self.files, CLUSTER, PARTITION, key)

    def attest(self, end: int) -> None:
        self.attester.extend(self._records, TransactionId(end))

    def cosign(self, witness: Witness) -> int:
        note = self.attester.cosign(lambda note, tree: [witness.cosign(note, tree)])
        assert note is not None
        found = witness.key.verified_time(note)
        assert found is not None
        return found


def test_a_log_that_grows_is_cosigned_over_the_death_of_its_witness(
    witness: WitnessProcess,
) -> None:
    witness.forget()
    archive = Archive(RECORDS)
    for end in (100, 300, 500):
        archive.attest(end)
        assert archive.cosign(witness.asked()) > 1_700_000_000
        witness.kill()
        witness.start()
    forged = Archive(OTHERS)
    forged.attest(600)
    with pytest.raises(AttestationError, match="refuses, status 422: the proof does not show"):
        forged.cosign(witness.asked())
    forged = Archive(OTHERS)
    forged.attest(500)
    with pytest.raises(AttestationError, match="status 409: another tree of 500 leaves"):
        forged.cosign(witness.asked())
    archive.attest(600)
    archive.cosign(witness.asked())
    older = Archive(RECORDS)
    older.attest(200)
    with pytest.raises(AttestationError, match="has cosigned 600 transactions before"):
        older.cosign(witness.asked())


def test_a_log_of_another_key_is_refused(witness: WitnessProcess) -> None:
    other = Archive(RECORDS, SecretKey.generate(f"waltz/{CLUSTER}", KeyKind.LOG))
    other.attest(600)
    with pytest.raises(AttestationError, match="status 403"):
        other.cosign(witness.asked())


def test_a_witness_that_is_away_or_signs_with_another_key_is_named(
    witness: WitnessProcess,
) -> None:
    archive = Archive(RECORDS)
    archive.attest(600)
    with pytest.raises(ConnectionFailedError, match=r"does not answer: .*refused"):
        archive.cosign(Witness("http://127.0.0.1:1", witness.key))
    other = SecretKey.generate("witness.example/w", KeyKind.WITNESS).public_key
    with pytest.raises(AttestationError, match="has not signed with the key of witness"):
        archive.cosign(Witness(witness.url, other))


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"old 0\n\nx\n\n", 400), (b"x" * (REQUEST_BYTES_MAX + 1), 413)],
)
def test_what_is_not_a_request_is_refused_over_http(
    witness: WitnessProcess, body: bytes, status: int
) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{witness.url}/add-checkpoint", body)
    assert caught.value.code == status


def test_a_witness_does_not_start_with_the_key_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(LOG.secret_text())
    done = run_waltz(
        *("witness", "--key", str(tmp_path / "key"), "--log", str(LOG.public_key)),
        *("--memory", str(tmp_path / "memory")),
    )
    assert done.returncode == 1
    assert "is the key of a log; `waltz attest keygen --witness` makes a witness's" in done.stderr
    assert not (tmp_path / "memory").exists()
