"""What is in the certificates that are made here; that they work is shown in test_connection.py."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509

from waltz.system.certificates import ThrowAwayAuthority, self_signed_pair


def test_a_pair_that_is_made_signs_itself_and_is_new_each_time() -> None:
    """TS-03."""
    one, other = self_signed_pair(), self_signed_pair()
    assert one != other
    certificate = x509.load_pem_x509_certificate(one.certificate)
    certificate.verify_directly_issued_by(certificate)
    assert one.key.startswith(b"-----BEGIN PRIVATE KEY-----")


def test_an_authority_issues_for_names_and_addresses() -> None:
    authority = ThrowAwayAuthority()
    pair = authority.issue("node", ["node.example", "127.0.0.1", "::1"])
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node.example"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]


def test_a_certificate_is_valid_for_peers_whose_clock_is_behind() -> None:
    certificate = x509.load_pem_x509_certificate(ThrowAwayAuthority().issue("node").certificate)
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=364)


def test_two_authorities_have_two_names() -> None:
    """Peers look a CA up by its name: the one of an earlier start must not be taken for this."""
    one, other = (
        x509.load_pem_x509_certificate(ThrowAwayAuthority().certificate) for _ in range(2)
    )
    assert one.subject != other.subject
