"""Signed notes and their keys: C2SP signed-note, with Ed25519 only.

A note is a text and signatures of it. Two kinds of keys sign: that of a log, the note's text; that
of a witness, the text and a time (C2SP tlog-cosignature). Nothing of a note is believed before a
signature of a known key has been verified.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from waltz.errors import AttestationError, ConfigurationError

NOTE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a note; one that is longer is refused unread."""

SIGNATURES_MAX: Final = 64
"""Signatures of one note: "MUST accept at least up to 16 signatures"."""

KEY_NAME_CHARACTERS_MAX: Final = 255

_KEY_ID_BYTES: Final = 4
_TIME_BYTES: Final = 8
_ED25519_BYTES: Final = 64
_PUBLIC_BYTES: Final = 32
_SECRET_PREFIX: Final = "PRIVATE+KEY+"  # noqa: S105 -- a word, no secret
_DASH: Final = "\N{EM DASH}"
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f]")
_KEY_NAME: Final = re.compile(r"[^\s+]+")
_KEY_TEXT: Final = re.compile(r"([^\s+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)")
_SIGNATURE: Final = re.compile(rf"{_DASH} ([^\s+]+) ([A-Za-z0-9+/=]+)")


class KeyKind(IntEnum):
    """The signature types that keys are made for."""

    LOG = 0x01
    WITNESS = 0x04


class Signature(NamedTuple):
    """A line of a note: the key that is said to have signed, and what it has signed with."""

    name: str
    key_id: bytes
    signature: bytes

    def line(self) -> str:
        """Return the line of a note, with its newline."""
        text = base64.b64encode(self.key_id + self.signature).decode()
        return f"{_DASH} {self.name} {text}\n"


@dataclass(frozen=True, slots=True)
class Note:
    """A text, whose last character is a newline, and signatures that nobody has verified yet."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return self.text + "\n" + "".join(each.line() for each in self.signatures)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies signatures: the name of its owner, its kind, and 32 bytes of Ed25519."""

    name: str
    kind: KeyKind
    public: bytes

    @property
    def key_id(self) -> bytes:
        """The first 4 bytes of SHA-256 of name, newline, signature type and public key."""
        return sha256(self._identity()).digest()[:_KEY_ID_BYTES]

    def __str__(self) -> str:
        text = base64.b64encode(bytes([self.kind]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{text}"

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Return the key that `text` names, as `str` of one.

        Raises ConfigurationError: not a key, another kind of signature, or a damaged text.
        """
        name, content = _key_parts(text.strip(), "a public key")
        key = cls(name, _kind_of(content, text), content[1:])
        if text.strip() != str(key):
            raise ConfigurationError(f"not a public key: {text[:80]!r}: its key ID does not fit it")
        return key

    def verified_time(self, note: Note) -> int | None:
        """Return the time of this key's cosignature, in seconds since 1970; 0 for the key of a log,
        whose signatures have no time; None: this key has not signed the note.

        Raises AttestationError: a signature says that it is this key's, and is not. "If a signature
        from a known key fails to verify, clients SHOULD reject the whole note."
        """
        found = None
        for each in note.signatures:
            if (each.name, each.key_id) == (self.name, self.key_id):
                found = self._time_of(each.signature, note.text)
        return found

    def _time_of(self, signature: bytes, text: str) -> int:
        time = 0
        message = text
        if self.kind is KeyKind.WITNESS:
            time = int.from_bytes(signature[:_TIME_BYTES], "big")
            signature = signature[_TIME_BYTES:]
            message = cosigned_text(text, time)
        try:
            if len(signature) != _ED25519_BYTES:
                raise InvalidSignature
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message.encode())
        except InvalidSignature:
            raise AttestationError(
                f"a signature in the name of {self.name} is not of its key"
            ) from None
        return time

    def _identity(self) -> bytes:
        return self.name.encode() + b"\n" + bytes([self.kind]) + self.public


class SecretKey:
    """A key that signs."""

    def __init__(self, name: str, kind: KeyKind, secret: Ed25519PrivateKey) -> None:
        self._secret = secret
        self.public_key = PublicKey(name, kind, secret.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, name: str, kind: KeyKind) -> SecretKey:
        """Make a new key. Raises ConfigurationError: no name for a key."""
        if not _KEY_NAME.fullmatch(name) or len(name) > KEY_NAME_CHARACTERS_MAX:
            raise ConfigurationError(
                f"not a name for a key: {name[:80]!r}; expected 1 to {KEY_NAME_CHARACTERS_MAX}"
                " characters without spaces and without '+'"
            )
        return cls(name, kind, Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """Return the key that `text` holds, as `secret_text` gives it. Raises ConfigurationError;
        its message has nothing of the key."""
        stripped = text.strip()
        if not stripped.startswith(_SECRET_PREFIX):
            raise ConfigurationError(f"not a secret key: it does not begin with {_SECRET_PREFIX}")
        name, content = _key_parts(stripped.removeprefix(_SECRET_PREFIX), "a secret key")
        key = cls(name, _kind_of(content, name), Ed25519PrivateKey.from_private_bytes(content[1:]))
        if stripped != key.secret_text():
            raise ConfigurationError(f"not a secret key: the key ID of {name} does not fit it")
        return key

    def secret_text(self) -> str:
        """Return the key as text. A reader of this text can sign."""
        public = self.public_key
        content = base64.b64encode(bytes([public.kind]) + self._secret.private_bytes_raw()).decode()
        return f"{_SECRET_PREFIX}{public.name}+{public.key_id.hex()}+{content}"

    def sign(self, text: str, time: int = 0) -> Signature:
        """Return this key's signature of a note's text; `time`: seconds since 1970, for a
        witness."""
        public = self.public_key
        if public.kind is KeyKind.LOG:
            return Signature(public.name, public.key_id, self._secret.sign(text.encode()))
        signed = self._secret.sign(cosigned_text(text, time).encode())
        return Signature(public.name, public.key_id, time.to_bytes(_TIME_BYTES, "big") + signed)


def cosigned_text(text: str, time: int) -> str:
    """Return what a witness signs: two lines, then the whole body of the checkpoint."""
    return f"cosignature/v1\ntime {time}\n{text}"


def parse_note(data: bytes) -> Note:
    """Return the note that `data` holds; nothing of it is verified.

    Raises AttestationError: not a note, or longer than `NOTE_BYTES_MAX`.
    """
    if len(data) > NOTE_BYTES_MAX:
        raise AttestationError(f"a note of {len(data)} bytes; at most {NOTE_BYTES_MAX} are read")
    try:
        content = data.decode()
    except UnicodeDecodeError:
        raise AttestationError("not a note: it is not UTF-8") from None
    if _CONTROL.search(content):
        raise AttestationError("not a note: it contains control characters")
    text, blank, lines = content.rpartition("\n\n")
    if not blank or not text or not lines.endswith("\n"):
        raise AttestationError("not a note: a text, an empty line and signatures are expected")
    return Note(text + "\n", tuple(parse_signatures(lines)))


def parse_signatures(lines: str) -> Sequence[Signature]:
    """Return the signatures of lines that each begin with a dash. Raises AttestationError."""
    found = lines.splitlines()
    if not 0 < len(found) <= SIGNATURES_MAX:
        raise AttestationError(
            f"a note with {len(found)} signatures; 1 to {SIGNATURES_MAX} expected"
        )
    return [_signature_of(each) for each in found]


def _signature_of(line: str) -> Signature:
    matched = _SIGNATURE.fullmatch(line)
    content = from_base64(matched[2]) if matched else None
    if matched is None or content is None or len(content) <= _KEY_ID_BYTES:
        raise AttestationError(f"not a signature of a note: {line[:80]!r}")
    return Signature(matched[1], content[:_KEY_ID_BYTES], content[_KEY_ID_BYTES:])


def _key_parts(text: str, expected: str) -> tuple[str, bytes]:
    matched = _KEY_TEXT.fullmatch(text)
    content = from_base64(matched[3]) if matched else None
    if matched is None or content is None or len(content) != 1 + _PUBLIC_BYTES:
        raise ConfigurationError(f"not {expected}: a name, a key ID and a key, joined by '+'")
    return matched[1], content


def _kind_of(content: bytes, what: str) -> KeyKind:
    try:
        return KeyKind(content[0])
    except ValueError:
        raise ConfigurationError(
            f"{what[:80]} is a key for signatures of type {content[0]:#04x}; known are 0x01 (a log)"
            " and 0x04 (a witness), both Ed25519"
        ) from None


def from_base64(text: str) -> bytes | None:
    """Return the bytes of a text in base64; None: it is none, or not the text of these bytes. Other
    readers leave bits at the end of a text unread, which anybody could change."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if base64.b64encode(found).decode() == text else None
