"""A policy file is read again when it changes; content with a fault changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.test_policy import EXAMPLE
from waltz.access.policy_reading import Looks, read_content, read_policy
from waltz.access.policy_text import POLICY_BYTES_MAX
from waltz.errors import ConfigurationError
from waltz.system.real_disk import RealDisk


@pytest.mark.parametrize(
    ("found", "news"),
    [
        (["a", "a", "a"], []),
        (["b", "b", "b"], [1]),
        (["b", "c", "d", "d"], [3]),
        (["b", "a", "a"], []),
        (["b", "b", "a", "a"], [1, 3]),
        (["b", "a", "b", "b"], [3]),
    ],
)
def test_content_counts_once_two_looks_in_a_row_have_found_it(
    found: list[str], news: list[int]
) -> None:
    looks = Looks(b"a")
    told = [looks.is_news(each.encode()) for each in found]
    assert [place for place, is_news in enumerate(told) if is_news] == news


def test_a_file_that_cannot_be_read_is_news_as_its_content_is() -> None:
    looks = Looks(b"a")
    said = [looks.is_news(each) for each in ("gone", "gone", "gone", b"a", b"a")]
    assert said == [False, True, False, False, True]


def test_what_is_read_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(EXAMPLE)
    assert read_policy(RealDisk(), str(path)).version == 7


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / "policy.yaml")
    with pytest.raises(ConfigurationError, match=f"^cannot read {path}: No such file"):
        read_content(RealDisk(), path)
    with pytest.raises(ConfigurationError, match=r"^cannot read .*: Is a directory"):
        read_content(RealDisk(), str(tmp_path))


def test_of_a_file_that_is_too_large_no_more_is_read_than_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"#" * 3 * POLICY_BYTES_MAX)
    assert len(read_content(RealDisk(), str(path))) == POLICY_BYTES_MAX + 1
    with pytest.raises(ConfigurationError, match="is larger than"):
        read_policy(RealDisk(), str(path))
