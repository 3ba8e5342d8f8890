"""Files that cannot be used, who may be plain, and when files are read again."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tls_files import TlsFiles
from waltz.errors import ConfigurationError
from waltz.system import tls as tls_module
from waltz.system.tls import Tls, load, tell_of_open_ports
from waltz.types import Address, Plain, TlsSettings, is_loopback


def fault(settings: TlsSettings) -> str:
    with pytest.raises(ConfigurationError) as raised:
        Tls(settings)
    return str(raised.value)


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    settings = TlsSettings(certificate=str(tmp_path / "none.pem"))
    assert fault(settings) == f"cannot read {tmp_path}/none.pem: No such file or directory"


def test_a_java_key_store_is_answered_with_the_way_to_convert_it(tmp_path: Path) -> None:
    """CF-60, CF-61."""
    store = written(tmp_path / "server.jks", b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    for settings in (TlsSettings(certificate=store), TlsSettings(authorities=store)):
        said = fault(settings)
        assert f"{store} is not PEM" in said
        assert "keytool -importkeystore" in said
        assert "openssl pkcs12" in said


def test_a_key_of_another_certificate_is_named(tls_files: TlsFiles) -> None:
    one, other = tls_files.issue("one"), tls_files.issue("other")
    assert "is not that of the certificate" in fault(TlsSettings(one, other))


def test_a_certificate_without_its_key_is_named(tls_files: TlsFiles) -> None:
    assert "no private key" in fault(TlsSettings(tls_files.authorities))


def test_an_authority_that_is_none_is_named(tmp_path: Path) -> None:
    nonsense = written(tmp_path / "ca.pem", b"-----BEGIN NONSENSE-----\n")
    assert f"{nonsense} holds no certificate of a CA" in fault(TlsSettings(authorities=nonsense))


def test_an_encrypted_key_needs_its_password(tls_files: TlsFiles, tmp_path: Path) -> None:
    """Without one OpenSSL would wait for somebody at a terminal."""
    certificate, key = tls_files.issue("encrypted"), str(tmp_path / "encrypted.key")
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", certificate, "-out", key, "-passout", "pass:sesame"],
        check=True,
    )
    settings = TlsSettings(certificate, key)
    assert "a key that is encrypted needs its password" in fault(settings)
    said = fault(replace(settings, password="basil"))
    assert "that its password opens" in said
    assert "basil" not in said + repr(replace(settings, password="basil"))
    Tls(replace(settings, password="sesame"))


def test_an_endless_file_is_refused() -> None:
    assert "/dev/zero has more than" in fault(TlsSettings(certificate="/dev/zero"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_the_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("plain", "loopback", "elsewhere"),
    [
        (None, True, False),
        (Plain.NEVER, False, False),
        (Plain.LOOPBACK, True, False),
        (Plain.ALWAYS, True, True),
    ],
)
def test_plain_is_spoken_with_whom_the_settings_say(
    plain: Plain | None, loopback: bool, elsewhere: bool
) -> None:
    tls = Tls(TlsSettings(plain=plain))
    assert (tls.may_be_plain("127.0.0.1"), tls.may_be_plain("192.0.2.1")) == (loopback, elsewhere)


def test_without_files_the_log_says_that_anyone_is_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TS-03: once, and when it matters."""
    tls = Tls(TlsSettings())
    assert caplog.text == ""
    for _ in range(2):
        tls.accepted()
        tls.connecting_to("localhost")
    assert caplog.text.count("tls_believes_anyone") == 1


def test_files_that_vanish_leave_what_was_read_and_are_taken_when_they_return(
    tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TS-07."""
    monkeypatch.setattr(tls_module, "TLS_LOOK_SECONDS", 0.0)
    caplog.set_level("INFO", "waltz.system.tls")
    settings = tls_files.peer()
    path = Path(str(settings.certificate))
    tls = Tls(settings)
    content = path.read_bytes()
    path.unlink()
    for _ in range(2):
        tls.accepted()
    assert caplog.text.count("tls_files_not_taken") == 1
    path.write_bytes(content)
    os.utime(path, (1, 1))
    tls.accepted()
    assert caplog.text.count("tls_files_read_again") == 1


def test_files_that_could_not_be_opened_are_tried_again_though_they_look_the_same(
    tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`chmod` changes neither the time nor the size of a file."""
    monkeypatch.setattr(tls_module, "TLS_LOOK_SECONDS", 0.0)
    caplog.set_level("INFO", "waltz.system.tls")
    settings = tls_files.peer()
    tls = Tls(settings)
    os.utime(str(settings.certificate), (1, 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for _ in range(2):
            tls.accepted()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caplog.text.count("tls_files_not_taken") == 1
    for _ in range(2):
        tls.accepted()
    assert caplog.text.count("tls_files_read_again") == 1


def test_a_certificate_is_made_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may have a root that is read only."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no/such/directory")
    Tls(TlsSettings()).accepted()


def test_who_only_connects_makes_no_certificate(tls_files: TlsFiles) -> None:
    """The library that makes them is slow to load, and commands are short."""
    script = (
        "import sys; from waltz.system.tls import Tls; from waltz.types import TlsSettings;"
        f"tls = Tls(TlsSettings(authorities={tls_files.authorities!r}));"
        "tls.connecting_to('localhost'); assert 'cryptography' not in sys.modules;"
        "tls.accepted(); assert 'cryptography' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_certificate_without_authorities_is_told_to_believe_anyone(
    tls_files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    Tls(TlsSettings(certificate=tls_files.issue("one")))
    assert "tls_believes_anyone" in caplog.text
    caplog.clear()
    Tls(tls_files.peer())
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("host", "authorities", "is_told"),
    [
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("10.0.0.7", None, True),
        ("node-7", None, True),
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("::1", None, False),
        ("0.0.0.0", "ca.pem", False),
    ],
)
def test_ports_that_believe_whoever_reaches_them_are_told(
    host: str, authorities: str | None, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tell_of_open_ports(TlsSettings(authorities=authorities), Address(host, 7201))
    assert ("ports_open_to_anyone" in caplog.text) == is_told


@pytest.mark.parametrize(
    ("plain", "is_told"), [(Plain.ALWAYS, True), (Plain.LOOPBACK, False), (Plain.NEVER, False)]
)
def test_certificates_that_nobody_has_to_show_close_no_port(
    plain: Plain, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """F-15: with `plain: always` a peer without a certificate just speaks plain."""
    settings = TlsSettings(certificate="a.pem", authorities="ca.pem", plain=plain)
    tell_of_open_ports(settings, Address("0.0.0.0", 7201))
    assert ("set plain to never or loopback" in caplog.text) == is_told


def test_a_stolen_key_does_not_open_what_was_recorded(tls_files: TlsFiles) -> None:
    """Each connection agrees on keys that no certificate has; TLS 1.3 (`kx-any`) knows no other."""
    agreed = set()
    for settings in (TlsSettings(), tls_files.peer()):
        contexts = load(settings)
        for context in (contexts.accepting, contexts.connecting):
            agreed |= {(each["protocol"], each["kea"]) for each in context.get_ciphers()}
    assert agreed == {("TLSv1.3", "kx-any"), ("TLSv1.2", "kx-ecdhe"), ("TLSv1.2", "kx-dhe")}
