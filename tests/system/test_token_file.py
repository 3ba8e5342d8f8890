"""A file of tokens that changes while a process runs."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from waltz.bearer_tokens import TOKEN_FILE_BYTES_MAX, line_of, token_of
from waltz.errors import ConfigurationError
from waltz.system import token_file as token_module
from waltz.system.token_file import TokenFile, read_tokens

TOKEN, OTHER = (token_of(bytes([each]) * 32) for each in (1, 2))


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_the_file_is_read_again_and_a_fault_leaves_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_module, "TOKENS_LOOK_SECONDS", 0.0)
    caplog.set_level("INFO", "waltz.system.token_file")
    path = tmp_path / "tokens.yaml"
    write(path, line_of("old", TOKEN))
    file = TokenFile(str(path))

    def names() -> list[str | None]:
        return [file.name_of(each) for each in (TOKEN, OTHER)]

    assert names() == ["old", None]
    write(path, f"{OTHER}\n")
    assert names() == names() == ["old", None]
    assert caplog.text.count("tokens_not_taken") == 1
    path.unlink()
    assert names() == ["old", None]
    assert caplog.text.count("tokens_not_taken") == 2
    write(path, line_of("new", OTHER))
    assert names() == [None, "new"]
    assert f"tokens_read_again path={path} names=new" in caplog.text
    assert OTHER not in caplog.text


def test_a_file_that_could_not_be_opened_is_tried_again_though_it_looks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`chmod` changes neither the time nor the size of a file."""
    monkeypatch.setattr(token_module, "TOKENS_LOOK_SECONDS", 0.0)
    path = tmp_path / "tokens.yaml"
    write(path, line_of("old", TOKEN))
    file = TokenFile(str(path))
    write(path, line_of("new", OTHER))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert [file.name_of(TOKEN), file.name_of(TOKEN)] == ["old", "old"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caplog.text.count("tokens_not_taken") == 1
    assert [file.name_of(TOKEN), file.name_of(OTHER)] == [None, "new"]


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*none: No such file"):
        TokenFile(str(tmp_path / "none"))
    long = tmp_path / "long"
    long.write_bytes(b"#" * 3 * TOKEN_FILE_BYTES_MAX)
    with pytest.raises(ConfigurationError, match="more than"):
        read_tokens(str(long))
