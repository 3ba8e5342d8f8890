"""What is in the certificates that are made here; that they work is shown in test_tls.py."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.tls_files import TlsFiles
from waltz.errors import ConfigurationError
from waltz.system.certificates import (
    Authority,
    CertificatePair,
    Identity,
    describe,
    is_issued_by,
    names_in_file,
    self_signed_pair,
)

NOW = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)
NODE = Identity("node", ("node.example", "127.0.0.1", "::1"), "spiffe://here/node", accepts=True)
CLIENT = Identity("client", (), "spiffe://here/client", accepts=False)


def new_authority(days: int = 3650) -> Authority:
    return Authority.create("CA", "here", now=NOW, days=days)


def loaded(pair: CertificatePair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def issued(identity: Identity = NODE, days: int = 365) -> x509.Certificate:
    return loaded(new_authority().issue(identity, now=NOW, days=days))


def uses(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return [*certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value]


def test_a_pair_that_is_made_signs_itself_and_is_new_each_time() -> None:
    """TS-03."""
    one, other = self_signed_pair(), self_signed_pair()
    assert one != other
    certificate = loaded(one)
    certificate.verify_directly_issued_by(certificate)
    assert one.key.startswith(b"-----BEGIN PRIVATE KEY-----")


def test_an_authority_issues_for_names_addresses_and_a_uri() -> None:
    authority = new_authority()
    certificate = loaded(authority.issue(NODE, now=NOW, days=365))
    certificate.verify_directly_issued_by(loaded(authority.pair))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node.example"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://here/node"]


def test_a_client_s_certificate_cannot_be_a_server_s() -> None:
    assert uses(issued(CLIENT)) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert uses(issued(NODE)) == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def test_what_was_issued_can_sign_connections_and_no_certificates() -> None:
    for certificate in (issued(NODE), issued(CLIENT)):
        limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert (limits.critical, limits.value.ca) == (True, False)
        assert (usage.critical, usage.value.digital_signature) == (True, True)
        assert usage.value.key_cert_sign is False


def test_an_authority_signs_certificates_and_no_authorities() -> None:
    certificate = loaded(new_authority().pair)
    limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (limits.ca, limits.path_length) == (True, 0)
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)


def test_a_certificate_is_valid_for_peers_whose_clock_is_behind() -> None:
    certificate = issued(days=30)
    assert certificate.not_valid_before_utc == NOW - datetime.timedelta(days=1)
    assert certificate.not_valid_after_utc == NOW + datetime.timedelta(days=30)


def test_serial_numbers_are_random() -> None:
    authority = new_authority()
    found = {loaded(authority.issue(CLIENT, now=NOW, days=1)).serial_number for _ in range(20)}
    assert len(found) == 20
    assert max(found).bit_length() > 120


def test_two_authorities_have_two_names() -> None:
    """Peers look a CA up by its name: one must not be taken for the other."""
    assert loaded(new_authority().pair).subject != loaded(new_authority().pair).subject


def test_a_long_name_of_an_authority_is_cut_to_what_a_certificate_may_have() -> None:
    authority = Authority.create("x" * 200, "here", now=NOW, days=1)
    assert len(describe(authority.pair.certificate).name) == 64


def test_nothing_is_issued_that_outlasts_its_authority() -> None:
    authority = new_authority(days=30)
    authority.issue(NODE, now=NOW, days=30)
    with pytest.raises(ConfigurationError, match="would outlast it: renew the CA first"):
        authority.issue(NODE, now=NOW, days=31)


def test_renewing_keeps_key_and_content_and_changes_serial_number_and_dates() -> None:
    authority = new_authority()
    old = authority.issue(NODE, now=NOW, days=365)
    later = NOW + datetime.timedelta(days=300)
    fresh = authority.renew(old, now=later, days=365)
    before, after = describe(old.certificate), describe(fresh.certificate)
    assert fresh.key == old.key
    assert before.serial != after.serial
    assert (before.name, before.hosts, before.uris, before.uses) == (
        (after.name, after.hosts, after.uris, after.uses)
    )
    assert after.not_after == later + datetime.timedelta(days=365)
    extensions = {each.oid: each for each in loaded(old).extensions}
    assert {each.oid: each for each in loaded(fresh).extensions} == extensions
    assert authority.renew(old, now=later, days=365, new_key=True).key != old.key


def test_an_authority_renews_only_what_it_has_issued() -> None:
    other = new_authority().issue(NODE, now=NOW, days=365)
    with pytest.raises(ConfigurationError, match="of another CA"):
        new_authority().renew(other, now=NOW, days=365)


def test_a_renewed_authority_is_that_of_what_was_issued_before() -> None:
    old = new_authority()
    issued_before = old.issue(NODE, now=NOW, days=365)
    fresh = old.renewed(now=NOW + datetime.timedelta(days=3000), days=3650)
    assert is_issued_by(issued_before.certificate, fresh.pair.certificate)
    assert loaded(fresh.pair).serial_number != loaded(old.pair).serial_number
    assert fresh.domain == "here"
    assert not is_issued_by(issued_before.certificate, new_authority().pair.certificate)


def test_what_is_no_authority_is_refused() -> None:
    authority = new_authority()
    node = authority.issue(NODE, now=NOW, days=365)
    for pair, said in (
        (node, "not a CA's"),
        (CertificatePair(authority.pair.certificate, node.key), "key is not that of"),
        (CertificatePair(b"none", node.key), "no certificate in it"),
        (CertificatePair(authority.pair.certificate, b"none"), "no private key in it"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Authority.load(pair)
    assert Authority.load(authority.pair).pair == authority.pair


def test_a_self_signed_pair_has_no_uses_that_restrict_it() -> None:
    found = describe(self_signed_pair().certificate)
    assert (found.uses, found.hosts, found.uris) == (("any",), (), ())


def test_the_names_in_a_file_are_those_that_a_peer_is_shown(tls_files: TlsFiles) -> None:
    path = Path(tls_files.issue("orders", "localhost", "127.0.0.1"))
    found = names_in_file(path.read_bytes())
    assert found.uris == ("spiffe://tests/orders",)
    assert found.dns_names == ("localhost",)
    assert found.common_names == ("orders",)
    with pytest.raises(ConfigurationError, match="no certificate in it"):
        names_in_file(b"")
