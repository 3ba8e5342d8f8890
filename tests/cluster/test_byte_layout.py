"""The field kinds of metadata, at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.cluster.byte_layout import (
    JAVA_TEXT,
    VERSION_1,
    Parts,
    decode_modified_utf8,
    encode_modified_utf8,
    entries,
)
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import METADATA_ENTRIES_MAX
from waltz.wire.fields import INT

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("localhost", b"localhost"),
        ("", b""),
        ("\0", b"\xc0\x80"),
        ("ü€", b"\xc3\xbc\xe2\x82\xac"),
        ("\U0001f600", b"\xed\xa0\xbd\xed\xb8\x80"),
    ],
)
def test_modified_utf8_is_that_of_java(text: str, data: bytes) -> None:
    assert encode_modified_utf8(text) == data
    assert decode_modified_utf8(data) == text


@given(TEXTS)
def test_every_text_survives(text: str) -> None:
    layout = Parts(("text", JAVA_TEXT))
    assert layout.decode(layout.encode(text)) == (text,)


@given(TEXTS)
def test_an_unsplit_text_differs_from_utf8_only_where_java_does(text: str) -> None:
    plain = all(0 < ord(character) < 0x10000 for character in text)
    assert (encode_modified_utf8(text) == text.encode()) == plain


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\xbd", b"\xf0\x9f\x98\x80", b"\x80"])
def test_what_is_not_modified_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="modified UTF-8"):
        decode_modified_utf8(data)


def test_a_text_too_long_for_its_length_is_not_written() -> None:
    layout = Parts(("text", JAVA_TEXT))
    with pytest.raises(LocalProtocolError):
        layout.encode("x" * 65536)
    assert len(layout.encode("x" * 65535)) == 65537


def test_a_number_too_large_for_its_field_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="cannot be encoded as metadata"):
        Parts(("number", INT)).encode(2**31)


def test_a_wrong_version_is_refused() -> None:
    layout = Parts(("version", VERSION_1), ("number", INT))
    assert layout.encode(5) == b"\x01\x00\x00\x00\x05"
    with pytest.raises(RemoteProtocolError, match="expected 1"):
        layout.decode(b"\x02\x00\x00\x00\x05")


def test_a_count_that_cannot_follow_is_refused_before_it_is_believed() -> None:
    layout = Parts(("numbers", entries(("number", INT))))
    assert layout.decode(b"\0\0\0\x01\0\0\0\x07") == (((7,),),)
    for count in (b"\0\0\0\x02", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"):
        with pytest.raises(RemoteProtocolError):
            layout.decode(count + b"\0\0\0\x07")
    too_many = (METADATA_ENTRIES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match="expected 0 to"):
        layout.decode(too_many + bytes(4 * METADATA_ENTRIES_MAX + 4))


def test_bytes_after_a_value_are_ignored() -> None:
    assert Parts(("number", INT)).decode(b"\0\0\0\x07trailing") == (7,)
