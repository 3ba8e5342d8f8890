"""`waltz verify-proof`, which needs no cluster; `waltz prove` is tested with `waltz attest`."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.attest.test_inclusion import KEY, PROOF, WITNESSES
from waltz.cli.prove import read_key_text, read_public_key, verify_proof, write_proof
from waltz.errors import ConfigurationError

LOG_KEY = ("--log-key", str(KEY.public_key))


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    path = tmp_path / "200.tlog-proof"
    path.write_text(str(PROOF))
    return path


def test_a_proof_is_shown_with_what_it_proves(proof: Path) -> None:
    keys = [part for each in WITNESSES for part in ("--witness-key", str(each.public_key))]
    done = CliRunner().invoke(verify_proof, [str(proof), *LOG_KEY, *keys])
    assert done.exit_code == 0, done.output
    assert "the proof holds: transaction 200 of partition 3 of cluster 00112233-" in done.output
    assert "200:some data" in done.output
    assert "cosigned    by witness.example/a at 2023-11-14T22:13:20Z" in done.output


def test_without_witnesses_it_says_so(proof: Path) -> None:
    done = CliRunner().invoke(verify_proof, [str(proof), *LOG_KEY])
    assert done.exit_code == 0
    assert "cosigned    by no witness that you have named" in done.output


def test_json_has_every_field(proof: Path) -> None:
    done = CliRunner().invoke(verify_proof, [str(proof), *LOG_KEY, "--json"])
    found = json.loads(done.output)
    assert (found["holds"], found["partition"], found["transaction"]) == (True, 3, 200)
    assert bytes.fromhex(found["data_hex"]) == b"200:some data"


def test_a_proof_that_does_not_hold_ends_with_1_and_the_reason(proof: Path) -> None:
    proof.write_text(proof.read_text().replace("\nindex 200\n", "\nindex 201\n"))
    done = CliRunner().invoke(verify_proof, [str(proof), *LOG_KEY])
    assert done.exit_code == 1
    assert "does not hold: the entry is transaction 200; the proof is of 201" in done.output
    done = CliRunner().invoke(verify_proof, [str(proof), *LOG_KEY, "--json"])
    assert (done.exit_code, json.loads(done.output)["holds"]) == (1, False)


def test_a_witness_that_was_named_must_have_cosigned_unless_fewer_will_do(proof: Path) -> None:
    from waltz.attest.notes import KeyKind, SecretKey

    other = SecretKey.generate("witness.example/other", KeyKind.WITNESS).public_key
    arguments = [str(proof), *LOG_KEY, "--witness-key", str(other)]
    assert CliRunner().invoke(verify_proof, arguments).exit_code == 1
    assert CliRunner().invoke(verify_proof, [*arguments, "--witnesses", "0"]).exit_code == 0


def test_a_proof_is_written_whole_or_not_at_all(proof: Path) -> None:
    """The file may be the only copy of the proof, and half a proof says that the log is wrong."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = proof.read_text()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a disk that is full
    try:
        for path in (proof, proof.with_name("new")):
            with pytest.raises(ConfigurationError, match="cannot be written: File too large"):
                write_proof(path, before * 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*proof.parent.iterdir()] == [proof]
    assert proof.read_text() == before
    write_proof(proof, "another")
    assert proof.read_text() == "another"


def test_a_key_is_a_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY.public_key}\n")
    assert read_public_key(str(path)) == read_public_key(str(KEY.public_key)) == KEY.public_key
    with pytest.raises(ConfigurationError, match="neither a file nor a key"):
        read_public_key("nothing")


@pytest.mark.parametrize(
    ("content", "reason"), [(b"x" * 5000, "more than 4 KiB"), (b"\xff", "not ASCII")]
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason):
        read_key_text(path)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_key_text(tmp_path / "none")
