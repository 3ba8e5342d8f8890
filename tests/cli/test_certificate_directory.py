"""The directory of a small CA: modes, what is refused, and that nothing is half there."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from waltz.cli.certificate_directory import FILE_BYTES_MAX, CertificateDirectory
from waltz.errors import ConfigurationError
from waltz.system.certificates import Identity

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def identity(name: str) -> Identity:
    return Identity(name, ("127.0.0.1",), f"spiffe://here/{name}", accepts=True)


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateDirectory:
    made = CertificateDirectory(tmp_path / "ca")
    made.create("here", now=NOW, days=3650)
    return made


@pytest.fixture
def umask_of_nobody() -> Iterator[None]:
    """New files are open to everybody, unless their creator says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask_of_nobody")
def test_only_the_owner_may_use_the_files(tmp_path: Path) -> None:
    made = CertificateDirectory(tmp_path / "ca")
    made.create("here", now=NOW, days=3650)
    made.issue(identity("s1"), now=NOW, days=365)
    made.renew("s1", now=NOW, days=365)
    made.renew_authority(now=NOW, days=3650)
    assert mode(made.path) == 0o700
    names = sorted(path.name for path in made.path.iterdir())
    assert names == ["ca.key.pem", "ca.pem", "s1.pem"]
    assert {mode(path) for path in made.path.iterdir()} == {0o600}
    assert [path.name for path in tmp_path.iterdir()] == ["ca"]


def test_keys_are_created_with_their_mode_and_no_mode_is_ever_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise AssertionError("a file was open to others before")

    monkeypatch.setattr(os, "chmod", refused)
    monkeypatch.setattr(os, "fchmod", refused)
    made = CertificateDirectory(tmp_path / "ca")
    made.create("here", now=NOW, days=3650)
    made.issue(identity("s1"), now=NOW, days=365)
    made.renew("s1", now=NOW, days=365, new_key=True)


def test_nothing_that_is_there_is_overwritten(certificates: CertificateDirectory) -> None:
    certificates.issue(identity("s1"), now=NOW, days=365)
    before = {path: path.read_bytes() for path in certificates.path.iterdir()}
    with pytest.raises(ConfigurationError, match=r"s1\.pem: File exists"):
        certificates.issue(identity("s1"), now=NOW, days=365)
    with pytest.raises(ConfigurationError, match="Directory not empty"):
        certificates.create("here", now=NOW, days=3650)
    assert {path: path.read_bytes() for path in certificates.path.iterdir()} == before
    assert [*certificates.path.parent.iterdir()] == [certificates.path]


def test_a_failed_creation_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    made = CertificateDirectory(tmp_path / "ca")
    with pytest.raises(ConfigurationError, match="No space left"):
        made.create("here", now=NOW, days=3650)
    assert [*tmp_path.iterdir()] == []


def test_an_empty_directory_becomes_the_authority_s(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir(mode=0o755)
    CertificateDirectory(tmp_path / "ca").create("here", now=NOW, days=3650)
    assert mode(tmp_path / "ca") == 0o700


def test_a_key_that_others_may_read_is_refused(certificates: CertificateDirectory) -> None:
    (certificates.path / "ca.key.pem").chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"others may read the key in .* \(mode 0640\)"):
        certificates.issue(identity("s1"), now=NOW, days=365)


def test_a_directory_that_others_may_write_to_is_refused(
    certificates: CertificateDirectory,
) -> None:
    certificates.path.chmod(0o770)
    with pytest.raises(ConfigurationError, match=r"others may write to .* \(mode 0770\)"):
        certificates.issue(identity("s1"), now=NOW, days=365)


@pytest.mark.parametrize(
    "name", ["", "ca", "ca.key", "../s1", "a/b", ".hidden", "-x", "x" * 64, "a b", "a\n"]
)
def test_a_name_is_a_file_of_the_directory(certificates: CertificateDirectory, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a certificate"):
        certificates.issue(identity(name), now=NOW, days=365)


def test_only_a_certificate_that_is_there_and_whole_is_renewed(
    certificates: CertificateDirectory,
) -> None:
    with pytest.raises(ConfigurationError, match=r"s1\.pem: No such file"):
        certificates.renew("s1", now=NOW, days=365)
    path = certificates.issue(identity("s1"), now=NOW, days=365)
    path.write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigurationError, match=r"s1\.pem has more than 65536 bytes"):
        certificates.renew("s1", now=NOW, days=365)
    path.write_bytes(b"x")
    with pytest.raises(ConfigurationError, match=r"s1\.pem: there is no certificate in it"):
        certificates.renew("s1", now=NOW, days=365)


def test_what_was_issued_is_listed_and_nothing_else(certificates: CertificateDirectory) -> None:
    for name in ("s2", "s1"):
        certificates.issue(identity(name), now=NOW, days=365)
    (certificates.path / ".s3.pem.1234.new").touch(mode=0o600)
    (certificates.path / "notes").touch(mode=0o600)
    assert certificates.names() == ["s1", "s2"]
    assert certificates.is_own("s1")
    assert certificates.described("s1").uris == ("spiffe://here/s1",)
    assert certificates.described("ca").uses == ("CA",)


@contextmanager
def no_file_longer_than(count: int) -> Iterator[None]:
    """Have writes fail as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_cannot_be_written_leaves_no_part_of_a_key(
    certificates: CertificateDirectory,
) -> None:
    certificates.issue(identity("node"), now=NOW, days=365)
    files = {each: each.read_bytes() for each in certificates.path.iterdir()}
    with no_file_longer_than(100), pytest.raises(ConfigurationError, match="File too large"):
        certificates.issue(identity("other"), now=NOW, days=365)
    with no_file_longer_than(100), pytest.raises(ConfigurationError, match="File too large"):
        certificates.renew("node", now=NOW, days=365)
    assert {each: each.read_bytes() for each in certificates.path.iterdir()} == files
