"""The pins: the version of each package that is installed, and the hashes of its artefacts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT: Final = Path(__file__).parent.parent
PINS: Final = ROOT / "constraints.txt"
"""Pins of the package with all its extras."""

BUILD_PINS: Final = ROOT / "constraints-build.txt"
"""Pins of what an environment needs before anything is built in it."""

PROJECT: Final = "waltz-log"


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of a file of pins, and the SHA-256 hashes of its artefacts in hexadecimal."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def version(self) -> str:
        """The only version that the pin allows."""
        (only,) = self.requirement.specifier
        assert only.operator == "=="
        return only.version

    def __str__(self) -> str:
        """Return the pin as a line of a file of requirements."""
        return " ".join((str(self.requirement), *(f"--hash=sha256:{each}" for each in self.hashes)))


def pins_of(text: str) -> dict[NormalizedName, Pin]:
    """Return the pins of a file by the names of the packages.

    Raises ValueError: a line is neither a comment nor a package with one version and a hash.
    """
    pins = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        wanted, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
        requirement = Requirement(wanted)
        pin = Pin(requirement, tuple(each.strip() for each in hashes))
        if not re.fullmatch(r"==[^*,]+", str(requirement.specifier)):
            raise ValueError(f"{wanted} is no package with one version")
        if not hashes or not all(re.fullmatch("[0-9a-f]{64}", each) for each in pin.hashes):
            raise ValueError(f"{wanted} has no hash, or one that is no SHA-256")
        pins[canonicalize_name(requirement.name)] = pin
    return pins


def needs(name: str, extras: Iterable[str] = ()) -> Mapping[NormalizedName, Set[NormalizedName]]:
    """Return the names of the packages that each package asks for itself, for the package `name`
    with `extras` and all that it needs, as the installed packages say.

    Raises PackageNotFoundError: one of them is not installed.
    """
    found: dict[NormalizedName, set[NormalizedName]] = {}
    seen: set[tuple[NormalizedName, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), frozenset(extras))]
    while waiting:
        package, wanted = waiting.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        asked = found.setdefault(package, set())
        for line in distribution(package).requires or ():
            requirement = Requirement(line)
            if applies(requirement, wanted):
                needed = canonicalize_name(requirement.name)
                asked |= {needed} - {package}
                waiting.append((needed, frozenset(requirement.extras)))
    return found


def applies(requirement: Requirement, extras: Set[str]) -> bool:
    """Whether a package with `extras` asks for the requirement in this environment."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": each}) for each in extras | {""})


def pinned_needs(extras: Iterable[str] = ()) -> list[Pin]:
    """Return the pins of all that the project with `extras` needs, in the order of the file."""
    names = needs(PROJECT, extras)
    return [pin for name, pin in pins_of(PINS.read_text()).items() if name in names]
