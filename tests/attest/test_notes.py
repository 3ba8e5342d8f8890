"""Notes and keys: known texts, and every damaged one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attest.trees import known_key
from waltz.attest.notes import (
    NOTE_BYTES_MAX,
    SIGNATURES_MAX,
    KeyKind,
    Note,
    PublicKey,
    SecretKey,
    cosigned_text,
    parse_note,
)
from waltz.errors import AttestationError, ConfigurationError

# Key, text and signature of the examples of Go's package note.
GO_SECRET = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_PUBLIC = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
GO_NOTE = (
    GO_TEXT + "\n— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg"
    "KvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

LOG = known_key("waltz/test", KeyKind.LOG)
WITNESS = known_key("witness.example/w1", KeyKind.WITNESS)


def test_a_known_key_signs_as_another_implementation_does() -> None:
    secret = SecretKey.parse(GO_SECRET)
    assert secret.secret_text() == GO_SECRET
    assert str(secret.public_key) == GO_PUBLIC
    assert PublicKey.parse(GO_PUBLIC) == secret.public_key
    note = Note(GO_TEXT, (secret.sign(GO_TEXT),))
    assert str(note) == GO_NOTE
    assert parse_note(GO_NOTE.encode()) == note
    assert secret.public_key.verified_time(note) == 0


def test_a_cosignature_is_of_the_text_and_of_a_time() -> None:
    text = "example.com/log\n5\nroot\n"
    assert cosigned_text(text, 1679315147) == f"cosignature/v1\ntime 1679315147\n{text}"
    note = Note(text, (LOG.sign(text), WITNESS.sign(text, 1679315147)))
    found = parse_note(str(note).encode())
    assert WITNESS.public_key.verified_time(found) == 1679315147
    assert LOG.public_key.verified_time(found) == 0


def test_an_unknown_key_is_ignored_and_a_known_one_that_has_not_signed_is_refused() -> None:
    text = "a text\n"
    note = Note(text, (LOG.sign(text),))
    assert WITNESS.public_key.verified_time(note) is None
    other = SecretKey.generate("waltz/test", KeyKind.LOG)
    assert other.public_key.verified_time(note) is None
    forged = other.sign(text)._replace(key_id=LOG.public_key.key_id)
    with pytest.raises(AttestationError, match="in the name of waltz/test is not of its key"):
        LOG.public_key.verified_time(Note(text, (forged,)))
    with pytest.raises(AttestationError, match="is not of its key"):
        LOG.public_key.verified_time(Note("another text\n", (LOG.sign(text),)))


@given(st.data())
def test_no_changed_byte_of_a_note_is_accepted(data: st.DataObject) -> None:
    text = "waltz/test\n17\nhash\n"
    content = bytearray(str(Note(text, (LOG.sign(text), WITNESS.sign(text, 99)))).encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        note = parse_note(bytes(content))
        times = [LOG.public_key.verified_time(note), WITNESS.public_key.verified_time(note)]
    except AttestationError:
        return
    assert None in times, "one of the two lines is of another key now"
    assert note.text == text or times == [None, None]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"text\n",
        b"text\n\n",
        b"text\n\n- name AAAAAAAA\n",
        "text\n\n— name\n".encode(),
        "text\n\n— name AAAA\n".encode(),
        "text\n\n— name !!!!!!!!\n".encode(),
        "text\n\n— na+me AAAAAAAA\n".encode(),
        "text\n\n— name AAAAAAAA".encode(),
        "a\ttext\n\n— name AAAAAAAA\n".encode(),
        "a\rtext\n\n— name AAAAAAAA\n".encode(),
        b"text\xff\n\n\xe2\x80\x94 name AAAAAAAA\n",
        ("text\n\n" + "— name AAAAAAAA\n" * (SIGNATURES_MAX + 1)).encode(),
        b"x" * (NOTE_BYTES_MAX + 1),
    ],
)
def test_what_is_not_a_note_is_refused(content: bytes) -> None:
    with pytest.raises(AttestationError):
        parse_note(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_note_or_refused(content: bytes) -> None:
    try:
        note = parse_note(content)
    except AttestationError:
        return
    assert parse_note(str(note).encode()) == note


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a public key"),
        ("name", "not a public key"),
        (GO_PUBLIC.replace("c74f20a3", "c74f20a4"), "does not fit"),
        (GO_PUBLIC.replace("+AR", "+BR"), "type 0x05"),
        (GO_PUBLIC[:-4], "not a public key"),
        (GO_SECRET, "not a public key"),
    ],
)
def test_what_is_not_a_public_key_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        PublicKey.parse(text)


@pytest.mark.parametrize(
    "text", ["", GO_PUBLIC, GO_SECRET[:-4], GO_SECRET.replace("c74f20a3", "c74f20a4")]
)
def test_what_is_not_a_secret_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a secret key") as caught:
        SecretKey.parse(text)
    assert "AYEKFALVFGyN" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "x" * 256])
def test_a_name_that_no_note_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a name for a key"):
        SecretKey.generate(name, KeyKind.LOG)
