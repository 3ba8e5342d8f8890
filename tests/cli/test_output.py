"""What commands print."""

from __future__ import annotations

import pytest

from waltz.cli.output import new_table, print_table, progress_bar


def test_a_table_is_as_wide_as_it_has_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    """A number that is cut short is another number."""
    table = new_table(*(f"heading {number}" for number in range(20)))
    table.add_row(*(str(10**15 + number) for number in range(20)))
    print_table(table)
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == [str(10**15 + number) for number in range(20)]


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("verify", 100) as progress:
        progress(100)
    assert capsys.readouterr() == ("", "")


def test_text_in_a_table_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Addresses of IPv6 look like styles and pictures, and a path in brackets like an end."""
    cells = ("[fd00::1]:7201", "fd00:a:b::1", "cannot read [/data/x]", "[red]")
    table = new_table("a", "b", "c", "d")
    table.add_row(*cells)
    print_table(table)
    assert capsys.readouterr().out.splitlines()[1].split("  ") == [*cells]
