"""What OpenSSL says, in words that name cause and remedy; the usual ones are met for real in
test_connection.py."""

from __future__ import annotations

import ssl

import pytest

from waltz.system.tls_trouble import explain
from waltz.types import TlsSettings

SETTINGS = TlsSettings("own.pem", authorities="ca.pem")


def failure(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def judgement(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    error.verify_message = "as OpenSSL says"
    return error


@pytest.mark.parametrize(
    ("reason", "cause", "remedy"),
    [
        ("WRONG_VERSION_NUMBER", "does not speak TLS", "check host and port"),
        ("NO_SHARED_CIPHER", "in common", "TLS 1.2 or 1.3"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate", "a CA in ca.pem has signed"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "has expired (own.pem)", "renew it"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "demands a certificate", "own.pem"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not trust", "has to trust the CA"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "does not trust", "has to trust the CA"),
        ("SOMETHING_NEW", "TLS failed: SOMETHING_NEW", ""),
    ],
)
def test_a_failure_names_cause_and_remedy(reason: str, cause: str, remedy: str) -> None:
    said = explain(failure(reason), SETTINGS)
    assert cause in said
    assert remedy in said


@pytest.mark.parametrize(
    ("code", "cause", "remedy"),
    [
        (10, "has expired", "renew it there"),
        (9, "not valid yet", "clocks of both"),
        (18, "none of the CAs in ca.pem", "add its CA there"),
        (20, "none of the CAs in ca.pem", "add its CA there"),
        (62, "for another host", "ssl.verifyHostName"),
        (64, "for another host", "ssl.verifyHostName"),
        (79, "not accepted: as OpenSSL says", ""),
    ],
)
def test_a_judgement_names_cause_and_remedy(code: int, cause: str, remedy: str) -> None:
    said = explain(judgement(code), SETTINGS)
    assert cause in said
    assert remedy in said


def test_a_missing_certificate_is_said_to_be_missing() -> None:
    said = explain(failure("SSLV3_ALERT_HANDSHAKE_FAILURE"), TlsSettings())
    assert "none: give one with ssl.keyStore.location or --tls-cert" in said
