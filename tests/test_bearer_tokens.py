"""Bearer tokens and the file by which they are known."""

from __future__ import annotations

import hashlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from waltz.bearer_tokens import (
    TOKEN_CHARACTERS,
    TOKEN_FILE_BYTES_MAX,
    TOKENS_MAX,
    TOKENS_PER_NAME_MAX,
    is_token,
    is_token_name,
    line_of,
    parse_tokens,
    token_of,
)
from waltz.errors import ConfigurationError

SECRET = bytes(range(32))
TOKEN = "waltz_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


def file_of(*pairs: tuple[str, str]) -> bytes:
    return "".join(f"{line_of(name, token)}\n" for name, token in pairs).encode()


def test_the_text_of_a_token_and_its_line_are_written_out() -> None:
    assert token_of(SECRET) == TOKEN
    assert len(TOKEN) == TOKEN_CHARACTERS
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    assert line_of("prometheus", TOKEN) == f'"prometheus": "sha256:{digest}"'


@given(
    st.dictionaries(NAMES, st.binary(min_size=32, max_size=32), min_size=1, max_size=8).filter(
        lambda each: len(set(each.values())) == len(each)
    ),
    st.binary(min_size=32, max_size=32),
)
def test_each_token_has_its_name_and_no_other_text_has_one(
    secrets: dict[str, bytes], other: bytes
) -> None:
    tokens = parse_tokens(file_of(*((name, token_of(s)) for name, s in secrets.items())), "file")
    assert tokens.names == tuple(secrets)
    for name, secret in secrets.items():
        token = token_of(secret)
        assert is_token(token)
        assert tokens.name_of(token) == name
        assert tokens.name_of(token[:-1]) is None
        assert tokens.name_of(token + "A") is None
        assert tokens.name_of(token.swapcase()) is None
    if other not in secrets.values():
        assert tokens.name_of(token_of(other)) is None


@pytest.mark.parametrize("text", ["", "waltz_", "x" * TOKEN_CHARACTERS, "\udcff" * 49, "é" * 49])
def test_what_is_no_token_has_no_name(text: str) -> None:
    assert not is_token(text)
    assert parse_tokens(file_of(("a", TOKEN)), "file").name_of(text) is None


def test_a_name_may_have_several_tokens_while_its_users_change_over() -> None:
    made = [token_of(bytes([each]) * 32) for each in range(TOKENS_PER_NAME_MAX)]
    hashes = [f"sha256:{hashlib.sha256(each.encode()).hexdigest()}" for each in made]
    tokens = parse_tokens(yaml.dump({"spark": hashes}).encode(), "file")
    assert [tokens.name_of(each) for each in made] == ["spark"] * len(made)
    with pytest.raises(ConfigurationError, match=f"more than {TOKENS_PER_NAME_MAX}"):
        parse_tokens(yaml.dump({"spark": [*hashes, hashes[0]]}).encode(), "file")


@pytest.mark.parametrize("name", ["", "a b", ".a", "a" * 65, "é", "a\n", "a:b"])
def test_a_name_is_short_and_plain(name: str) -> None:
    assert not is_token_name(name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no token"),
        (b"[]", "has no token"),
        (b"a: b: c", "line 1 cannot be read"),
        (b"a: sha256:00\n", "a has no hash"),
        (f"a: {TOKEN}\n".encode(), "a has no hash"),
        (f"{TOKEN}\n".encode(), "has no token"),
        (file_of(("a", TOKEN), ("a", TOKEN)), "line 2 cannot be read"),
        (file_of(("a", TOKEN), ("b", TOKEN)), "one token twice"),
        (b"'a b': sha256:" + b"0" * 64, "name 1 is not one to 64"),
        (f"{TOKEN} x: 1\n".encode(), "name 1 is not one to 64"),
        (b"1: sha256:" + b"0" * 64, "name 1 is not one to 64"),
        (b"a: []", "a has no hash"),
        (b"a: &x [*x]", "line 1 cannot be read"),
        (b"\xff", "the file cannot be read"),
        (b"[" * 20_000, "the file cannot be read"),
        (b"#" * (TOKEN_FILE_BYTES_MAX + 1), f"more than {TOKEN_FILE_BYTES_MAX} bytes"),
    ],
)
def test_a_fault_of_the_file_is_named_and_no_token_is_shown(content: bytes, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        parse_tokens(content, "/etc/waltz/tokens")
    assert str(raised.value).startswith("/etc/waltz/tokens")
    assert TOKEN not in str(raised.value)
    assert raised.value.__cause__ is None, "whose text may have the token"


def test_there_are_no_more_tokens_than_a_request_may_be_compared_with() -> None:
    pairs = [(f"n{each}", token_of(each.to_bytes(32))) for each in range(TOKENS_MAX + 1)]
    assert len(parse_tokens(file_of(*pairs[:-1]), "file").hashes) == TOKENS_MAX
    with pytest.raises(ConfigurationError, match=f"at most {TOKENS_MAX}"):
        parse_tokens(file_of(*pairs), "file")


def test_what_is_shown_of_tokens_has_no_hash() -> None:
    assert "sha256" not in repr(parse_tokens(file_of(("a", TOKEN)), "file"))
