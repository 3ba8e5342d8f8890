"""The exit codes of commands that judge whether all is well."""

from __future__ import annotations

from typing import Final

UNCONFIRMED: Final = 3
"""No fault is known, and not everything could be asked."""


def exit_code(is_well: bool | None) -> int:
    """Return the code for all well (True), something wrong (False) or not known (None)."""
    return {True: 0, False: 1, None: UNCONFIRMED}[is_well]
