"""Lines of an audit log by value."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from waltz.audit.audit_entry import (
    LINE_BYTES_MAX,
    NOTHING_YET,
    TEXT_CHARACTERS_MAX,
    AuditDecision,
    AuditEntry,
    Position,
    line_of,
    position_of,
)

ENTRY = AuditEntry(
    1_700_000_000_123, AuditDecision.DENIED, "append", "CN=a", "10.0.0.1:5", 3, "no role", 12,
    "7:1:3:5", 9,
)  # fmt: skip

SAID = (
    '{"number":1,"time":"2023-11-14T22:13:20.123+00:00","process":"server b:1","decision":"denied",'
    '"verb":"append","principal":"CN=a","peer":"10.0.0.1:5","partition":3,"reason":"no role",'
    '"connection":12,"request":"7:1:3:5","policy":9,"count":1'
)


def test_a_line_is_one_object_whose_chain_covers_it_and_the_chain_before() -> None:
    line, position = line_of(ENTRY, "server b:1", NOTHING_YET)
    chain = sha256(b"0" * 64 + SAID.encode()).hexdigest()
    assert line.decode() == f'{SAID},"chain":"{chain}"}}\n'
    assert position == position_of(line) == Position(1, chain)
    again, after = line_of(ENTRY, "server b:1", position)
    assert json.loads(again)["number"] == 2
    assert after.chain != chain


HOSTILE = 'CN=a\n{"number":2,"chain":"' + "0" * 64 + '"}\r\n\x00\x1b[2J\u2028\u202e"\\é𝄞'


def test_no_character_of_a_name_or_reason_ends_a_line_or_reaches_a_terminal() -> None:
    entry = replace(ENTRY, principal=HOSTILE, peer=HOSTILE, reason=HOSTILE, request=HOSTILE)
    line, _ = line_of(entry, HOSTILE, NOTHING_YET)
    assert line.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in line[:-1])
    fields = json.loads(line)
    assert [fields[each] for each in ("principal", "peer", "reason", "process")] == [HOSTILE] * 4


def test_a_line_is_bounded_whatever_it_says() -> None:
    text = "𝄞" * (10 * TEXT_CHARACTERS_MAX)
    entry = replace(ENTRY, principal=text, peer=text, reason=text, request=text)
    line, position = line_of(entry, "p", NOTHING_YET)
    assert len(line) <= LINE_BYTES_MAX
    assert position_of(line) == position


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}\n",
        b"[1]\n",
        b'{"number":0,"chain":"%s"}\n' % (b"0" * 64),
        b'{"number":true,"chain":"%s"}\n' % (b"0" * 64),
        b'{"number":1,"chain":"0"}\n',
        b'{"number":1,"chain":"%s"}' % (b"0" * 64),
        b"\xff\n",
    ],
)
def test_what_is_no_line_has_no_position(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        position_of(line)
