"""The certificates of a cluster of `waltz up --tls`: made once, in its directory, and renewed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz.cli.certificate_directory import (
    AUTHORITY,
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    CertificateDirectory,
)
from waltz.cli.trial_directory import CLIENT, TLS_DIRECTORY, ClusterFile, trial_tls
from waltz.types import TlsSettings

if TYPE_CHECKING:
    from waltz.system.certificates import Described

TRIAL_DOMAIN: Final = "waltz"
NODE: Final = "node"
"""The name of the certificate for servers, storage nodes and the coordinator."""

THROW_AWAY: Final = "waltz up, throw-away CA"
"""The name of the CAs that earlier releases made at each start."""


def trial_certificates(directory: Path, cluster: ClusterFile, *, now: datetime) -> TlsSettings:
    """Return the certificate and the CA of the cluster's processes.

    The CA, its certificate for the processes and the one for clients are made once, and renewed
    when half of their time is over, if the CA's key is there. Raises ConfigurationError: the files
    cannot be used.
    """
    from waltz.system.certificates import Identity

    certificates = CertificateDirectory(directory / TLS_DIRECTORY)
    _forget_throw_away(certificates)
    if not certificates.authorities.exists():
        certificates.create(TRIAL_DOMAIN, now=now, days=AUTHORITY_DAYS)
    hosts = {"localhost", "127.0.0.1"}
    hosts |= {place.address.host for place in cluster.storages}
    hosts |= {place.address.host for place in cluster.servers}
    for name, names in ((NODE, tuple(sorted(hosts))), (CLIENT, ())):
        if not certificates.file_of(name).exists():
            uri = f"spiffe://{TRIAL_DOMAIN}/up/{name}"
            identity = Identity(name, names, uri, accepts=name == NODE)
            certificates.issue(identity, now=now, days=CERTIFICATE_DAYS)
        elif certificates.has_key and is_half_over(certificates.described(name), now):
            certificates.renew(name, now=now, days=CERTIFICATE_DAYS)
    return trial_tls(directory, NODE)


def is_half_over(certificate: Described, now: datetime) -> bool:
    """Whether more than half of the certificate's time is over."""
    return now - certificate.not_before > certificate.not_after - now


def _forget_throw_away(certificates: CertificateDirectory) -> None:
    """Delete the certificates of an earlier release, whose CA's key was kept nowhere: nothing can
    be renewed by it."""
    if not certificates.authorities.exists() or certificates.has_key:
        return
    if certificates.described(AUTHORITY).name.startswith(THROW_AWAY):
        for name in (AUTHORITY, NODE, CLIENT):
            (certificates.path / f"{name}.pem").unlink(missing_ok=True)
