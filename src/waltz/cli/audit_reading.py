"""`waltz audit verify` and `show`: the files of an audit log, without the process that writes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click

from waltz.audit.audit_verification import AuditLine, Verification
from waltz.cli.output import json_option, print_json
from waltz.errors import ConfigurationError

READ_LINE_BYTES_MAX: Final = 1 << 20
"""Bytes of a line that are read at once; a longer one is no line of an audit log."""

_OLDER: Final = re.compile(r"[1-9][0-9]{0,8}")
"""The end of the name of a file that was replaced."""


def files_of(path: str) -> list[Path]:
    """Return the files of the log at `path`, the oldest first: `PATH.N` with the highest number,
    and at last the path itself. Raises ConfigurationError: there is none."""
    place = Path(path)
    try:
        names = {each.name for each in place.parent.iterdir()}
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    start = f"{place.name}."
    ends = [each[len(start) :] for each in names if each.startswith(start)]
    numbers = sorted((int(each) for each in ends if _OLDER.fullmatch(each)), reverse=True)
    files = [place.with_name(f"{start}{number}") for number in numbers]
    if place.name in names:
        files.append(place)
    if not files:
        raise ConfigurationError(f"{path}: no such file; access.audit.file names it")
    return files


@contextmanager
def _opened(path: str) -> Iterator[list[tuple[Path, BinaryIO]]]:
    """Yield the files of the log at `path`, the oldest first, as they are now.

    All are opened before one is read, for the process that writes may replace its file meanwhile.
    It then renames the oldest file first. They are opened from the newest on, so that a file may be
    met twice, and none is missed.
    """
    found: dict[tuple[int, int], tuple[Path, BinaryIO]] = {}
    files = files_of(path)
    with ExitStack() as stack:

        def open_new(place: Path) -> bool:
            """Open the file unless it was met before. False: there is none of that name."""
            try:
                if _identity(place.stat()) not in found:
                    file = stack.enter_context(place.open("rb"))
                    found.setdefault(_identity(os.fstat(file.fileno())), (place, file))
            except FileNotFoundError:
                return False
            except OSError as error:
                raise ConfigurationError(f"cannot read {place}: {error.strerror}") from error
            return True

        for each in reversed(files):
            open_new(each)
        number = int(files[0].name.rpartition(".")[2]) if files[0] != Path(path) else 0
        while open_new(Path(path).with_name(f"{Path(path).name}.{number + 1}")):
            number += 1
        yield [*reversed(found.values())]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        while line := file.readline(READ_LINE_BYTES_MAX):
            yield line
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


@click.command()
@click.argument("file")
@click.option("--contains", metavar="CHAIN", help="The chain of a line that has to be there.")
@json_option
def verify(file: str, contains: str | None, as_json: bool) -> None:
    """Find lines of an audit log that were changed, and where lines were cut out or put in.

    Reads FILE, and those that were replaced by it: FILE.1 and so on. Ends with 1 if there are such
    lines. What was cut off at the end is found by the chain of a line that was there, which an
    earlier run has printed.
    """
    check = Verification()
    wanted = () if contains is None else (contains,)
    with _opened(file) as files:
        for path, content in files:
            for _ in check.read(str(path), _lines(path, content), wanted):
                pass
    check.end()
    is_missing = contains is not None and contains not in check.chains
    is_well = not check.fault_count and not is_missing
    if as_json:
        print_json(
            {
                "lines": check.line_count,
                "faults": check.fault_count,
                "findings": [each._asdict() for each in check.findings],
                "contained": None if contains is None else not is_missing,
                "number": check.number,
                "chain": check.chain,
            }
        )
        sys.exit(not is_well)
    for each in check.findings:
        word = "fault" if each.is_fault else "note"
        click.echo(f"{each.file}, line {each.line}: {word}: {each.text}")
    if is_missing:
        click.echo(f"{file}: fault: no line has the chain {contains!r:.100}")
    click.echo(f"{check.line_count} lines, {check.fault_count} faults")
    if check.chain is not None:
        click.echo(f"the last line has the number {check.number} and the chain {check.chain}")
    sys.exit(not is_well)


@click.command()
@click.argument("file")
@click.option("--principal", help="Only entries of this principal.")
@click.option("--verb", help="Only entries of this verb.")
@json_option
def show(file: str, principal: str | None, verb: str | None, as_json: bool) -> None:
    """Print the entries of an audit log, the oldest first, a line each.

    Reads FILE, and those that were replaced by it. No chain is judged: `waltz audit verify` does
    that. Ends with 1 if something in the files is no line.
    """
    check = Verification()
    with _opened(file) as files:
        for path, content in files:
            for line in check.read(str(path), _lines(path, content)):
                if principal not in (None, line.fields.get("principal")):
                    continue
                if verb not in (None, line.fields.get("verb")):
                    continue
                click.echo(json.dumps(line.fields) if as_json else _shown(line))
    check.end()
    if check.stray_count:
        click.echo("something in the files is no line; ask waltz audit verify", err=True)
        sys.exit(1)


def _shown(line: AuditLine) -> str:
    """Return the entry as text without a character that acts on a terminal."""
    fields = line.fields
    words = [str(fields.get(each)) for each in ("time", "process", "decision", "verb")]
    for name in ("principal", "peer", "partition", "connection", "request", "policy"):
        if fields.get(name) is not None:
            words.append(f"{name}={fields[name]}")
    if fields.get("count") != 1:
        words.append(f"count={fields.get('count')}")
    if fields.get("reason"):
        words.append(f"reason={fields['reason']}")
    text = " ".join(words)
    return text if text.isprintable() else ascii(text)[1:-1]
