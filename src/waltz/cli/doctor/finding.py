"""The result of a check: well, wrong or unknown; unless it is well, with cause and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one check of one subject."""

    check: str
    """The kind of check, a word that scripts may look for."""
    subject: str
    """The file, address, directory or library; empty: the machine."""
    is_well: bool | None
    """None: it could not be found out."""
    found: str
    """The value that was measured or read."""
    cause: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.is_well is True or (self.cause and self.remedy), self

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> Iterable[str]:
        """Yield the finding for people: what was found, then cause and remedy."""
        state = {True: "well", False: "WRONG", None: "unknown"}[self.is_well]
        subject = f" {self.subject}" if self.subject else ""
        yield f"{state:8}{self.check}{subject}: {self.found}"
        if self.cause:
            yield f"        cause: {self.cause}"
            yield f"        remedy: {self.remedy}"


def verdict(findings: Iterable[Checked]) -> bool | None:
    """Return False if anything is wrong, else None if anything is unknown, else True."""
    states = {each.is_well for each in findings}
    return False if False in states else None if None in states else True
