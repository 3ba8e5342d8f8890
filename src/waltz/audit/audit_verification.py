"""Reads an audit log and says whether lines of it were changed, taken out or put in.

Shares nothing with what writes one: the form of lines is read from docs/operating/audit.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

SHOWN_MAX: Final = 1_000
"""Findings that are kept of one log; further ones are counted."""

_END: Final = re.compile(r',"chain":"([0-9a-f]{64})"\}\n\Z')
_TAIL_BYTES: Final = 77
"""Bytes of the chain with its name, at the end of each line."""


class AuditLine(NamedTuple):
    """A line: the place where it stands, its members, and its own chain."""

    file: str
    line: int
    fields: dict[str, Any]
    chain: str


class Finding(NamedTuple):
    """`is_fault` False: worth knowing, as a process that is killed leaves it."""

    file: str
    line: int
    text: str
    is_fault: bool


class Verification:
    """One pass over a log: the lines of its files, the oldest file first."""

    def __init__(self) -> None:
        self.line_count = 0
        self.fault_count = 0
        self.stray_count = 0
        """Lines that are none, and that no process has left when it was killed."""
        self.findings: list[Finding] = []
        self.number: int | None = None
        """The number of the last line; None: there was none."""
        self.chain: str | None = None
        """Its chain."""
        self.chains: set[str] = set()
        """The chains of `wanted` that some line has."""
        self._torn: tuple[str, int] | None = None
        """A line that is none, if it was the last one."""

    def read(
        self, file: str, lines: Iterable[bytes], wanted: Iterable[str] = ()
    ) -> Iterator[AuditLine]:
        """Check the lines of one file as they are yielded; `wanted` are chains to look for."""
        sought = frozenset(wanted)
        for place, line in enumerate(lines, 1):
            self._find_torn_before(line)
            found = _parsed(line)
            if found is None:
                self._torn = (file, place)
                continue
            fields, said, chain = found
            self.line_count += 1
            self._check(file, place, fields, said, chain)
            self.chain, self.number = chain, fields["number"]
            if chain in sought:
                self.chains.add(chain)
            yield AuditLine(file, place, fields, chain)

    def end(self) -> None:
        """All files were read."""
        if self._torn is not None:
            self._note(*self._torn, "the last line was not finished", is_fault=False)
            self._torn = None

    def _find_torn_before(self, line: bytes) -> None:
        """Judge the line before, which is none: the next process to write has to follow on the last
        line that is one."""
        if self._torn is None:
            return
        found = _parsed(line)
        follows = (
            found is not None
            and found[0].get("decision") == "opened"
            and self.chain in (None, found[0].get("previous"))
        )
        if follows:
            self._note(*self._torn, "a line was not finished: a process was ended", is_fault=False)
        else:
            self.stray_count += 1
            self._note(*self._torn, "no line of an audit log", is_fault=True)
        self._torn = None

    def _check(
        self, file: str, place: int, fields: dict[str, Any], said: bytes, chain: str
    ) -> None:
        before, number = self.chain, fields["number"]
        if before is None:
            if fields.get("decision") != "opened":
                self._note(file, place, "does not begin as a file does", is_fault=True)
                return
            before = str(fields.get("previous"))
            if number > 1:
                text = f"begins with line number {number}: older files are not here"
                self._note(file, place, text, is_fault=False)
        if hashlib.sha256(before.encode() + said).hexdigest() != chain:
            missing = "" if self.number is None else self._jump(number)
            self._note(file, place, f"does not follow on the line before{missing}", is_fault=True)
        elif self.number is not None and number != self.number + 1:
            self._note(file, place, f"has the number {number}{self._jump(number)}", is_fault=True)

    def _jump(self, number: int) -> str:
        assert self.number is not None
        return "" if number == self.number + 1 else f", after {self.number} comes {number}"

    def _note(self, file: str, place: int, text: str, *, is_fault: bool) -> None:
        self.fault_count += is_fault
        if len(self.findings) < SHOWN_MAX:
            self.findings.append(Finding(file, place, text, is_fault))


def _parsed(line: bytes) -> tuple[dict[str, Any], bytes, str] | None:
    """Return the members of a line, its bytes before the chain, and the chain; None: it is none."""
    end = _END.search(line[-_TAIL_BYTES:].decode("latin-1"))
    if end is None:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or type(fields.get("number")) is not int:
        return None
    return fields, line[: -len(end.group())], end[1]
