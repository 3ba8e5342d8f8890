"""The label of a client: its bytes, and what is none."""

from __future__ import annotations

import importlib.metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.wire.client_label import (
    CLIENT_LABEL_EXTENSION,
    LABEL_CHARACTERS_MAX,
    RELEASE,
    ClientLabel,
    check_label,
    client_label,
    label_extension,
    trouble_of,
)

ORDERS = ClientLabel("orders", "orders-7", "shop.py", "0.1.0", is_consumer=True)
HOSTILE = (
    "", " orders", "orders ", ".", "..", "a/b", "a\nb", "a\x1b[31mb", "a\x00b", "a\u202eb",
    "a\x7fb", "a\u2028b", "x" * (LABEL_CHARACTERS_MAX + 1),
)  # fmt: skip


def test_the_bytes_are_those_that_were_pinned() -> None:
    assert label_extension(ORDERS) == (
        "waltz.client",
        bytes.fromhex(
            "00 00 00 06 6f 72 64 65 72 73"
            "00 00 00 08 6f 72 64 65 72 73 2d 37"
            "00 00 00 07 73 68 6f 70 2e 70 79"
            "00 00 00 05 30 2e 31 2e 30"
            "01"
        ),
    )


@given(st.builds(ClientLabel, *[st.text(max_size=120)] * 4, st.booleans()))
def test_a_label_comes_back_as_it_was_and_nothing_else_comes_at_all(label: ClientLabel) -> None:
    extension = label_extension(label)
    if trouble_of(label) is None:
        assert client_label([extension]) == label
    else:
        with pytest.raises(RemoteProtocolError, match="client label"):
            client_label([extension])


def test_without_the_extension_there_is_no_label() -> None:
    assert client_label([("client-token", b"x" * 16)]) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_name_is_refused_by_both_sides_in_printable_words(name: str) -> None:
    label = ClientLabel(name)
    with pytest.raises(ConfigurationError) as ours:
        check_label(label)
    with pytest.raises(RemoteProtocolError) as theirs:
        client_label([label_extension(label)])
    for error in (ours, theirs):
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 1_000


@pytest.mark.parametrize("place", ["instance", "program", "version"])
def test_the_other_texts_may_be_empty_and_not_unprintable(place: str) -> None:
    def with_text(text: str) -> ClientLabel:
        return ClientLabel._make({**ORDERS._asdict(), place: text}.values())

    assert trouble_of(with_text("")) is None
    assert trouble_of(with_text("a\tb")) is not None
    assert trouble_of(with_text("x" * 101)) is not None


@pytest.mark.parametrize("cut", range(41))
def test_bytes_that_are_cut_are_refused(cut: int) -> None:
    _, data = label_extension(ORDERS)
    with pytest.raises(RemoteProtocolError):
        client_label([(CLIENT_LABEL_EXTENSION, data[:cut])])


def test_bytes_after_the_label_and_lengths_that_lie_are_refused() -> None:
    _, data = label_extension(ORDERS)
    for lying in (data + b"x", b"\x7f\xff\xff\xff" + data[4:], b"\xff\xff\xff\xff" + data[4:]):
        with pytest.raises(RemoteProtocolError):
            client_label([(CLIENT_LABEL_EXTENSION, lying)])


def test_the_release_in_a_label_is_that_of_the_package() -> None:
    assert importlib.metadata.version("waltz-log") == RELEASE
