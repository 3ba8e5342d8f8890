"""A TLS conversation by value: two sides, no socket."""

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tls_files import TlsFiles
from waltz.system.tls import load
from waltz.system.tls_session import RECORD_BYTES, TlsSession, names_in
from waltz.types import CertificateNames, TlsSettings

CONTEXTS = load(TlsSettings())


def pair(tls_files: TlsFiles) -> tuple[TlsSession, TlsSession]:
    contexts = load(tls_files.peer())
    return (
        TlsSession(contexts.connecting, server_name="localhost"),
        TlsSession(contexts.accepting, server_name=None),
    )


def established(tls_files: TlsFiles) -> tuple[TlsSession, TlsSession]:
    client, server = pair(tls_files)
    client.start()
    while records := client.outgoing():
        assert server.receive(records) == b""
        assert client.receive(server.outgoing()) == b""
    return client, server


def test_both_sides_are_established_with_the_newest_version(tls_files: TlsFiles) -> None:
    client, server = established(tls_files)
    assert client.is_established
    assert server.is_established
    assert client.version == server.version == "TLSv1.3"


def test_each_side_knows_whom_the_others_certificate_names(tls_files: TlsFiles) -> None:
    """LC-51: once it was verified, and not before."""
    client, server = pair(tls_files)
    assert client.certificate is server.certificate is None
    client, server = established(tls_files)
    assert client.certificate == server.certificate
    assert server.certificate is not None
    assert server.certificate.distinguished_name == f"CN={server.certificate.common_names[0]}"


def test_it_begins_with_the_byte_by_which_it_is_told_apart(tls_files: TlsFiles) -> None:
    client, _ = pair(tls_files)
    client.start()
    assert client.outgoing()[0] == 0x16


def test_bytes_may_arrive_one_by_one(tls_files: TlsFiles) -> None:
    client, server = established(tls_files)
    client.send(b"word")
    heard = [server.receive(bytes([byte])) for byte in client.outgoing()]
    assert b"".join(heard) == b"word"


def test_data_of_many_records_arrives_whole(tls_files: TlsFiles) -> None:
    client, server = established(tls_files)
    data = bytes(range(256)) * (5 * RECORD_BYTES // 256) + b"end"
    client.send(data)
    assert server.receive(client.outgoing()) == data
    assert not server.has_ended


def test_an_end_comes_after_the_data_before_it(tls_files: TlsFiles) -> None:
    client, server = established(tls_files)
    client.send(b"last")
    client.finish()
    assert server.receive(client.outgoing()) == b"last"
    assert server.has_ended


def test_a_forged_record_is_noticed(tls_files: TlsFiles) -> None:
    client, server = established(tls_files)
    client.send(b"word")
    records = bytearray(client.outgoing())
    records[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        server.receive(bytes(records))
    assert server.outgoing()


def test_a_name_that_can_be_none_is_refused(tls_files: TlsFiles) -> None:
    with pytest.raises(ValueError, match="label empty or too long"):
        TlsSession(load(tls_files.peer()).connecting, server_name=".leading.dot")


@given(st.binary(max_size=400), st.integers(0, 3), st.booleans())
def test_nothing_that_arrives_does_more_than_fail(data: bytes, minor: int, framed: bool) -> None:
    """Whoever reaches the port may send anything."""
    record = struct.pack(">BBBH", 0x16, 3, minor, len(data)) + data if framed else b"\x16" + data
    server = TlsSession(CONTEXTS.accepting, server_name=None)
    try:
        assert server.receive(record) == b""
    except ssl.SSLError:
        pass
    assert not server.is_established


def test_names_of_all_kinds_are_told_apart() -> None:
    """As the standard library shows a certificate; in the subject what separates is escaped."""
    shown = {
        "subject": (
            (("countryName", "US"),),
            (("organizationName", "Bank, Inc."), ("commonName", "a=b+c\\d")),
            (("serialNumber", "7"),),
        ),
        "subjectAltName": (
            ("DNS", "a.example"), ("URI", "spiffe://prod/a"), ("DNS", "b"), ("IP Address", "::1"),
        ),
    }  # fmt: skip
    assert names_in(shown) == CertificateNames(
        ("spiffe://prod/a",),
        ("a.example", "b"),
        ("a=b+c\\d",),
        "C=US,O=Bank\\, Inc.+CN=a\\=b\\+c\\\\d,serialNumber=7",
    )
