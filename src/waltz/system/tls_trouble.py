"""Texts for failed TLS handshakes that name the cause and the remedy.

Owns the texts. The codes are OpenSSL's.
"""

from __future__ import annotations

import ssl
from typing import Final

from waltz.types import TlsSettings

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_UNKNOWN_AUTHORITY: Final = {7, 18, 19, 20, 21}
"""Code 7: a trusted CA has this name, but it is another CA."""

_OTHER_NAME: Final = {62, 64}

_NOT_TLS: Final = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNEXPECTED_MESSAGE",
}
_NOTHING_IN_COMMON: Final = {
    "NO_SHARED_CIPHER",
    "NO_PROTOCOLS_AVAILABLE",
    "UNSUPPORTED_PROTOCOL",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY",
}
_WANTS_CERTIFICATE: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "SSLV3_ALERT_NO_CERTIFICATE",
}
_REFUSES_CERTIFICATE: Final = {
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV1_ALERT_DECRYPT_ERROR",
    "TLSV1_ALERT_ACCESS_DENIED",
}

EXPECTS_TLS: Final = (
    "it takes TLS only, and this side speaks plain with its address; name the CAs it is signed by"
    " (ssl.trustStore.location, --tls-ca), or set ssl.plain to never"
)
CLOSED_ON_PLAIN: Final = (
    "it ended the connection without a word when this side spoke plain, as ssl.plain allows with"
    " its address; if it takes TLS only, as Java processes do, set ssl.plain to never; a"
    " ZooKeeper does this, too, to all but its own clients: check host and port"
)
EXPECTED_TLS: Final = (
    "it speaks plain, and this side takes only TLS from its address; give it TLS, or let"
    " ssl.plain allow it"
)
ENDED: Final = (
    "it ended the connection during the TLS handshake; it does not speak TLS, or refused this"
    " side's certificate: its log says which; a ZooKeeper does this, too: check host and port"
)
SLOW: Final = "it did not finish the handshake in {seconds:.2g} s; it does not speak TLS, or hangs"


def explain(error: ssl.SSLError, settings: TlsSettings) -> str:
    """Return what `error` means to the operator of this side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _judgement(error, settings)
    reason = error.reason or ""
    own = settings.certificate or "none: give one with ssl.keyStore.location or --tls-cert"
    if reason in _NOT_TLS:
        return f"it does not speak TLS ({reason}); check host and port, or its ssl settings"
    if reason in _NOTHING_IN_COMMON:
        return f"no version or cipher of TLS in common ({reason}); it has to offer TLS 1.2 or 1.3"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            "it showed no certificate, and this side demands one; give it one that a CA in"
            f" {settings.authorities} has signed"
        )
    if reason == "SSLV3_ALERT_CERTIFICATE_EXPIRED":
        return f"it says that this side's certificate has expired ({own}); renew it"
    if reason in _WANTS_CERTIFICATE:
        return (
            f"it refused this side ({reason}): it probably demands a certificate; this side's is"
            f" {own}"
        )
    if reason in _REFUSES_CERTIFICATE:
        return (
            f"it does not trust this side's certificate ({reason}), which is {own}; it has to"
            " trust the CA that signed this certificate"
        )
    return f"TLS failed: {reason or error}"


def _judgement(error: ssl.SSLCertVerificationError, settings: TlsSettings) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired; renew it there, or check this machine's clock"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; check the clocks of both machines"
    if code in _UNKNOWN_AUTHORITY:
        return (
            f"its certificate is signed by none of the CAs in {settings.authorities}"
            f" ({error.verify_message}); add its CA there, or give it a certificate of one of them"
        )
    if code in _OTHER_NAME:
        return (
            f"its certificate is for another host: {error.verify_message}; connect by a name in"
            " it, give it one with this name, or set ssl.verifyHostName to false"
        )
    return f"its certificate is not accepted: {error.verify_message}"
