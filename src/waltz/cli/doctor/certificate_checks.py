"""Checks of the TLS files that a configuration names: can they be used, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from waltz.cli.doctor.finding import Checked
from waltz.errors import ConfigurationError
from waltz.system.tls import TLS_FILE_BYTES_MAX, load
from waltz.types import TlsSettings

DAYS_LEFT_MIN: Final = 30
"""A certificate that ends sooner is called wrong: there is time to renew it, and reason to."""

RENEW: Final = "renew the certificate; a running node reads the file again by itself"


def validity_finding(subject: str, begins: datetime, ends: datetime, now: datetime) -> Checked:
    """Judge the time for which a certificate is valid."""
    said = f"valid from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC"
    if now >= ends:
        return Checked("tls-expiry", subject, False, said, "it has expired", RENEW)
    if now < begins:
        remedy = "set the clock, or wait"
        return Checked("tls-expiry", subject, False, said, "it is not valid yet", remedy)
    if ends - now < timedelta(days=DAYS_LEFT_MIN):
        cause = f"it expires within {DAYS_LEFT_MIN} days"
        return Checked("tls-expiry", subject, False, said, cause, RENEW)
    return Checked("tls-expiry", subject, True, said)


def certificate_findings(settings: TlsSettings, now: datetime) -> Iterator[Checked]:
    """Read the files of one set of keys and yield what is found."""
    if not settings.files:
        return
    subject = ", ".join(settings.files)
    try:
        load(settings)
    except ConfigurationError as error:
        remedy = "correct the file, or the key that names it"
        yield Checked("tls-files", subject, False, "they cannot be used", str(error), remedy)
        return
    yield Checked("tls-files", subject, True, "certificate, key and CAs fit")
    from cryptography import x509

    for path in filter(None, (settings.certificate, settings.authorities)):
        with Path(path).open("rb") as file:
            content = file.read(TLS_FILE_BYTES_MAX)
        for number, each in enumerate(x509.load_pem_x509_certificates(content), 1):
            named = f"{path} ({number}: {each.subject.rfc4514_string()})"
            yield validity_finding(named, each.not_valid_before_utc, each.not_valid_after_utc, now)


def utc_now() -> datetime:
    return datetime.now(UTC)
