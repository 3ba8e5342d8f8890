"""The text of consistency tokens, which comes back from anybody."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.client.consistency_token import (
    LOOK_SECONDS_MAX,
    TOKEN_CHARACTERS_MAX,
    TOKEN_PARTITIONS_MAX,
    ConsistencyToken,
    pauses,
)
from waltz.errors import LocalProtocolError

HISTORY, OTHER = UUID(int=0xABC), UUID(int=2)
HEX = "00000000000000000000000000000abc"

histories = st.uuids()
some_marks = st.dictionaries(
    st.integers(0, (1 << 31) - 1),
    st.integers(-1, (1 << 63) - 1),
    max_size=TOKEN_PARTITIONS_MAX,
)


def test_the_text_of_a_token_is_written_out() -> None:
    assert str(ConsistencyToken.of(HISTORY, {3: 77, 0: 1041})) == f"1.{HEX}.0=1041.3=77"
    assert str(ConsistencyToken.of(HISTORY, {})) == f"1.{HEX}"
    assert str(ConsistencyToken.of(HISTORY, {1: -1})) == f"1.{HEX}.1=-1"


@given(histories, some_marks)
def test_a_token_is_read_as_it_was_written(history: UUID, marks: dict[int, int]) -> None:
    token = ConsistencyToken.of(history, marks)
    text = str(token)
    assert text.isascii()
    assert len(text) <= TOKEN_CHARACTERS_MAX
    assert ConsistencyToken.parse(text) == token
    assert token.marks == marks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.",
        f"2.{HEX}",
        f"1.{HEX}.",
        f"1.{HEX}.0",
        f"1.{HEX}.0=",
        f"1.{HEX}.0=1,",
        f"1.{HEX}.0=1\n",
        f"1.{HEX}.-1=1",
        f"1.{HEX}.0=-2",
        f"1.{HEX}.00=1",
        f"1.{HEX}.0=01",
        f"1.{HEX}.0=1.0=2",
        f"1.{HEX}.2147483648=1",
        f"1.{HEX}.0=9223372036854775808",
        f"1.{HEX}.0=99999999999999999999",
        f"1.{HEX}.0=\N{ARABIC-INDIC DIGIT ONE}",
        f"1.{HEX.upper()}.0=1",
        f"1.{HEX}" + "".join(f".{number}=1" for number in range(TOKEN_PARTITIONS_MAX + 1)),
        "1." * 1_000_000,
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        ConsistencyToken.parse(text)


@given(st.text(alphabet="01.=-,abcf", max_size=80))
def test_whatever_is_read_is_written_as_it_was(text: str) -> None:
    try:
        token = ConsistencyToken.parse(f"1.{HEX}{text}")
    except LocalProtocolError:
        return
    assert set(str(token).split(".")) == {*f"1.{HEX}{text}".split(".")}


@given(some_marks, some_marks)
def test_two_tokens_together_require_what_either_requires(
    one: dict[int, int], other: dict[int, int]
) -> None:
    expected = {
        partition: max(one.get(partition, -1), other.get(partition, -1))
        for partition in one.keys() | other.keys()
    }
    first, second = ConsistencyToken.of(HISTORY, one), ConsistencyToken.of(HISTORY, other)
    if len(expected) > TOKEN_PARTITIONS_MAX:
        with pytest.raises(LocalProtocolError, match="at most"):
            first | second
    else:
        assert (first | second).marks == expected


def test_tokens_of_two_histories_have_nothing_in_common() -> None:
    with pytest.raises(LocalProtocolError, match="no common log"):
        ConsistencyToken.of(HISTORY, {}) | ConsistencyToken.of(OTHER, {})


@pytest.mark.parametrize("marks", [{-1: 0}, {1 << 31: 0}, {0: -2}, {0: 1 << 63}])
def test_numbers_that_no_log_has_are_refused(marks: dict[int, int]) -> None:
    with pytest.raises(LocalProtocolError):
        ConsistencyToken.of(HISTORY, marks)


def test_looks_come_later_and_later_and_never_end() -> None:
    seconds = [pause for pause, _ in zip(pauses(), range(20), strict=False)]
    assert seconds == sorted(seconds)
    assert seconds[-1] == LOOK_SECONDS_MAX
