"""Certificates for tests: made by the product's own CA, as files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from waltz.system.certificates import Authority, Identity
from waltz.types import TlsSettings

_NUMBERS = itertools.count()


class TlsFiles:
    """A CA in a directory of its own below `directory`."""

    def __init__(self, directory: Path, *, days_ago: int = 0) -> None:
        """Its certificates were made `days_ago`, and are valid for a year from then on."""
        self.directory = directory / f"tls-{next(_NUMBERS)}"
        self.directory.mkdir()
        self._made_at = datetime.now(UTC) - timedelta(days=days_ago)
        self._authority = Authority.create("tests", "tests", now=self._made_at, days=3650)
        self.authorities = self._write("ca.pem", self._authority.pair.certificate)

    def issue(self, name: str, *hosts: str) -> str:
        """Write certificate and key for `hosts` into one file, whose path is returned."""
        identity = Identity(name, hosts, f"spiffe://tests/{name}", accepts=True)
        pair = self._authority.issue(identity, now=self._made_at, days=365)
        return self._write(f"{name}-{next(_NUMBERS)}.pem", pair.certificate + pair.key)

    def peer(self, *hosts: str) -> TlsSettings:
        """Settings of a process that shows a certificate and asks for one."""
        return TlsSettings(
            certificate=self.issue("peer", *(hosts or ("127.0.0.1", "localhost"))),
            authorities=self.authorities,
        )

    def believing(self, other: TlsFiles) -> TlsSettings:
        """As `peer`, but it trusts the CA of `other`."""
        return replace(self.peer(), authorities=other.authorities)

    def _write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)
