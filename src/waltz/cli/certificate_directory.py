"""The directory of a small CA: its certificate and key, and what it has issued.

    <directory>/     0700
      ca.pem         the CA's certificate: the one that processes trust
      ca.key.pem     the CA's key
      NAME.pem       a certificate, and its key

Each file is created with mode 0600 and appears whole, in one step; none is overwritten but by a
renewal. A key that others may read, and a directory that others may write to, are refused.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz.errors import ConfigurationError
from waltz.system.real_disk import DIRECTORY_MODE, owner_only

if TYPE_CHECKING:
    from waltz.system.certificates import Authority, CertificatePair, Described, Identity

AUTHORITY: Final = "ca"
AUTHORITY_FILE: Final = "ca.pem"
KEY_FILE: Final = "ca.key.pem"
AUTHORITY_NAME: Final = "Waltz CA"

AUTHORITY_DAYS: Final = 3650
"""Validity of a CA's certificate, if nobody says otherwise."""

CERTIFICATE_DAYS: Final = 365
"""Validity of a certificate that the CA issues, if nobody says otherwise."""

FILE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a file that is read; a certificate with its key has two thousand."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""The form of a certificate's name: it names a file, and a part of a URI."""

OTHERS_READ: Final = 0o077
"""The bits of a mode by which others may use a key."""

OTHERS_WRITE: Final = 0o022
"""The bits of a mode by which others may replace files of a directory."""


class CertificateDirectory:
    """The directory at a path, whether it is there yet or not."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def authorities(self) -> Path:
        """The file that processes trust."""
        return self.path / AUTHORITY_FILE

    @property
    def has_key(self) -> bool:
        """Whether the CA's key is there: its owner may have taken it away."""
        return (self.path / KEY_FILE).exists()

    def create(self, domain: str, *, now: datetime, days: int) -> None:
        """Make the directory and a CA in it, both or neither.

        Raises ConfigurationError: there is something already, or it cannot be made.
        """
        from waltz.system.certificates import Authority

        pair = Authority.create(AUTHORITY_NAME, domain, now=now, days=days).pair
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.new")
        with _explained(self.path):
            temporary.mkdir(mode=DIRECTORY_MODE)
            try:
                _write(temporary / KEY_FILE, pair.key)
                _write(temporary / AUTHORITY_FILE, pair.certificate)
                _sync(temporary)
                # Takes the place of an empty directory, and of nothing else.
                temporary.rename(self.path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            _sync(self.path.parent)

    def authority(self) -> Authority:
        """Return the CA. Raises ConfigurationError: there is none, or its files cannot be used."""
        from waltz.system.certificates import Authority, CertificatePair

        self._check_directory()
        pair = CertificatePair(_read(self.authorities), _read(self.path / KEY_FILE, is_secret=True))
        with _named(self.authorities):
            return Authority.load(pair)

    def issue(self, identity: Identity, *, now: datetime, days: int) -> Path:
        """Issue a certificate, and return its file.

        Raises ConfigurationError: there is one of this name, or the CA cannot issue it.
        """
        path = self.file_of(identity.name)
        pair = self.authority().issue(identity, now=now, days=days)
        with _explained(path), self._temporary(path) as temporary:
            _write(temporary, pair.certificate + pair.key)
            os.link(temporary, path)  # never replaces
            temporary.unlink()
            _sync(self.path)
        return path

    def renew(self, name: str, *, now: datetime, days: int, new_key: bool = False) -> Path:
        """Replace a certificate by one like it that is valid from now on, and return its file.

        Raises ConfigurationError: there is none of this name, or the CA cannot renew it.
        """
        path = self.file_of(name)
        authority, old = self.authority(), self._pair(path)
        with _named(path):
            fresh = authority.renew(old, now=now, days=days, new_key=new_key)
        self._replace(path, fresh.certificate + fresh.key)
        return path

    def renew_authority(self, *, now: datetime, days: int) -> Path:
        """Replace the CA's certificate by one for the same key, valid from now on, and return its
        file. Raises ConfigurationError: as `authority`."""
        fresh = self.authority().renewed(now=now, days=days)
        self._replace(self.authorities, fresh.pair.certificate)
        return self.authorities

    def described(self, name: str) -> Described:
        """Return the content of a certificate, or of the CA's. Raises ConfigurationError: there is
        none that can be read."""
        from waltz.system.certificates import describe

        path = self.authorities if name == AUTHORITY else self.file_of(name)
        content = _read(path)
        with _named(path):
            return describe(content)

    def is_own(self, name: str) -> bool:
        """Whether the directory's CA has issued the certificate. Raises ConfigurationError: one of
        them cannot be read."""
        from waltz.system.certificates import is_issued_by

        return is_issued_by(_read(self.file_of(name)), _read(self.authorities))

    def names(self) -> list[str]:
        """Return the names of what was issued, sorted. Raises ConfigurationError: the directory
        cannot be read."""
        with _explained(self.path):
            found = [path.name.removesuffix(".pem") for path in self.path.glob("*.pem")]
        return sorted(
            name for name in found if NAME.fullmatch(name) and name not in (AUTHORITY, "ca.key")
        )

    def file_of(self, name: str) -> Path:
        """Return the file of a certificate. Raises ConfigurationError: not a name."""
        if not NAME.fullmatch(name) or name in (AUTHORITY, "ca.key"):
            raise ConfigurationError(
                f"{name!r} cannot be the name of a certificate: letters, digits, '.', '_' and '-',"
                f" at most 63, and not {AUTHORITY!r}"
            )
        return self.path / f"{name}.pem"

    def _pair(self, path: Path) -> CertificatePair:
        from waltz.system.certificates import CertificatePair

        content = _read(path, is_secret=True)
        return CertificatePair(content, content)

    def _replace(self, path: Path, content: bytes) -> None:
        with _explained(path), self._temporary(path) as temporary:
            _write(temporary, content)
            temporary.rename(path)
            _sync(self.path)

    @contextmanager
    def _temporary(self, path: Path) -> Iterator[Path]:
        """Yield a name for a file that is to become the one at `path`; nothing has that name
        afterwards: what is half written on a full disk may be half of a key."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _check_directory(self) -> None:
        with _explained(self.path):
            mode = self.path.stat().st_mode
        if mode & OTHERS_WRITE:
            raise ConfigurationError(
                f"others may write to {self.path} (mode {stat.S_IMODE(mode):04o}), and could put"
                " their CA in the place of this one; chmod 700 it, after a look at what is in it"
            )


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read, and make it durable."""
    with open(path, "xb", opener=owner_only) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, *, is_secret: bool = False) -> bytes:
    """Return the file's content. Raises ConfigurationError: it cannot be read, is too large, or is
    a secret that others may read."""
    with _explained(path), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    if is_secret and mode & OTHERS_READ:
        raise ConfigurationError(
            f"others may read the key in {path} (mode {stat.S_IMODE(mode):04o}); chmod 600 it, and"
            " issue it anew if somebody may have read it"
        )
    return content


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot use {path}: {error.strerror}") from error


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's name to an error about its content."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
