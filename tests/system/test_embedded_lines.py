"""Lines between the embedded coordinator and its clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import RemoteProtocolError
from waltz.limits import COORDINATOR_LINE_BYTES_MAX
from waltz.system.embedded_lines import Lines, data_from_json, data_to_json, line

OBJECTS = st.dictionaries(st.text("abc", min_size=1), st.none() | st.text() | st.integers())


@given(st.lists(OBJECTS), st.integers(1, 20))
def test_objects_arrive_whole_however_they_are_cut(
    objects: list[dict[str, object]], n: int
) -> None:
    stream = b"".join(line(**content) for content in objects)
    lines = Lines()
    found: list[dict[str, Any]] = []
    for start in range(0, len(stream), n):
        found += lines.receive(stream[start : start + n])
    assert found == objects


@pytest.mark.parametrize(
    "data", [b"\n", b"{\n", b"[]\n", b"\xff\n", b"1\n", b"[" * 100_000 + b"\n"]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not"):
        list(Lines().receive(data))


def test_an_endless_line_is_refused() -> None:
    lines = Lines()
    assert list(lines.receive(bytes(COORDINATOR_LINE_BYTES_MAX))) == []
    with pytest.raises(RemoteProtocolError, match="expected at most"):
        list(lines.receive(b"x"))


def test_what_came_before_a_bad_line_counts() -> None:
    found = Lines().receive(b'{"a":1}\n[]\n')
    assert next(found) == {"a": 1}
    with pytest.raises(RemoteProtocolError):
        next(found)


@given(st.none() | st.binary())
def test_data_survives(data: bytes | None) -> None:
    assert data_from_json(data_to_json(data)) == data


@pytest.mark.parametrize("text", ["?", "YQ", 1, [], "ü"])
def test_what_is_not_base64_is_refused(text: object) -> None:
    with pytest.raises(RemoteProtocolError, match="base64"):
        data_from_json(text)
