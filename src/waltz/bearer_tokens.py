"""Bearer tokens: the form of a token, and the file of names and hashes by which one is known.

A token is 32 random bytes that `waltz policy token` has drawn, so nobody finds one from its SHA-256
by trying: a slow hash, which is there for passwords, would add nothing but work that a peer can
cause with each guess. Owns the format of the file and the comparison. Opens no file, and shows no
token and no hash in an error or a log.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from waltz.errors import ConfigurationError

TOKEN_BYTES: Final = 32
"""Random bytes of a token."""

TOKEN_PREFIX: Final = "waltz_"  # noqa: S105 -- it makes a token known for one
"""Start of every token, by which scanners for secrets find one that was published."""

TOKEN_CHARACTERS: Final = len(TOKEN_PREFIX) + 43
"""Length of a token: the prefix, and 32 bytes as base64url."""

TOKENS_MAX: Final = 256
"""Tokens of one file: a token that somebody shows is compared with all of them."""

TOKENS_PER_NAME_MAX: Final = 4
"""Tokens of one name: the old one and the new one, while users change over, and some to spare."""

TOKEN_FILE_BYTES_MAX: Final = 64 * 1024
"""Size of a file of tokens; a longer one is refused unread."""

NAME_CHARACTERS_MAX: Final = 64
HASH_START: Final = "sha256:"

_TOKEN: Final = re.compile(rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}")
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_HASH: Final = re.compile(rf"{HASH_START}[0-9a-f]{{64}}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a port accepts, as pairs of a name and a SHA-256."""

    hashes: tuple[tuple[str, bytes], ...] = field(repr=False)

    def name_of(self, token: str) -> str | None:
        """Return the name of a token; None: it is none of these. The time that this takes depends
        on nothing but the number of tokens."""
        if len(token) != TOKEN_CHARACTERS:
            return None
        shown = _hash(token)
        found = None
        for name, known in self.hashes:
            if hmac.compare_digest(known, shown):
                found = name
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once, in the order of the file."""
        return tuple(dict.fromkeys(name for name, _ in self.hashes))


def token_of(secret: bytes) -> str:
    """Return the token that `secret`, 32 random bytes, is written as."""
    import base64

    assert len(secret) == TOKEN_BYTES
    return TOKEN_PREFIX + base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


def is_token(text: str) -> bool:
    """Whether `text` has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def is_token_name(text: str) -> bool:
    """Whether a token can have this name."""
    return _NAME.fullmatch(text) is not None


def line_of(name: str, token: str) -> str:
    """Return the line of the file that makes `token` known as `name`."""
    return f'"{name}": "{HASH_START}{_hash(token).hex()}"'


def parse_tokens(content: bytes, path: str) -> Tokens:
    """Return the tokens of a file, YAML: names, each with a hash or a list of hashes.

    Raises ConfigurationError: it has a fault. The text has the line or the name, never what stands
    there: a user may have written a token in place of its hash.
    """
    import yaml

    from waltz.plain_yaml import PlainLoader

    if len(content) > TOKEN_FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {TOKEN_FILE_BYTES_MAX} bytes")
    try:
        found = yaml.load(content.decode(), PlainLoader)  # noqa: S506 -- a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "the file"
        raise ConfigurationError(
            f"{path} is no file of tokens: {where} cannot be read; each line is what"
            " `waltz policy token NAME` printed for it, and no name stands twice"
        ) from None
    if not isinstance(found, dict) or not found:
        raise ConfigurationError(
            f"{path} has no token; each line is what `waltz policy token NAME` printed for it"
        )
    pairs: list[tuple[str, bytes]] = []
    for place, (name, given) in enumerate(found.items(), start=1):
        if not isinstance(name, str) or not is_token_name(name):
            raise ConfigurationError(
                f"{path}: name {place} is not one to {NAME_CHARACTERS_MAX} letters, digits, dots,"
                " dashes and underscores that begin with a letter or digit"
            )
        pairs += [(name, each) for each in _hashes(name, given, path)]
    if len(pairs) > TOKENS_MAX:
        raise ConfigurationError(f"{path} has {len(pairs)} tokens; at most {TOKENS_MAX} may be")
    if len({digest for _, digest in pairs}) < len(pairs):
        raise ConfigurationError(f"{path} has one token twice; make one for each name")
    return Tokens(tuple(pairs))


def _hashes(name: str, given: object, path: str) -> Sequence[bytes]:
    texts = given if isinstance(given, list) else [given]
    hashes = [each for each in texts if isinstance(each, str) and _HASH.fullmatch(each)]
    if not 0 < len(texts) <= TOKENS_PER_NAME_MAX or len(hashes) < len(texts):
        raise ConfigurationError(
            f"{path}: {name} has no hash, or more than {TOKENS_PER_NAME_MAX}; expected {HASH_START}"
            " and 64 hexadecimal digits, as `waltz policy token` prints them, or a list of these"
        )
    return [bytes.fromhex(each.removeprefix(HASH_START)) for each in hashes]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
