"""Checks of the machine: Python, libraries, open files, the clock.

The functions that judge are given what was read; those that read are called `read_...`.
"""

from __future__ import annotations

import ctypes
import platform
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from waltz.cli.doctor.finding import Checked

DISTRIBUTION: Final = "waltz-log"

OPEN_FILES_WANTED: Final = 65_536
"""Descriptors that the unit files of docs/operating give a process; a node with fewer accepts
fewer connections and keeps fewer segments open."""

CLOCK_UNSYNCHRONIZED: Final = 0x40
"""The bit of `timex.status` that the kernel sets until a program has set the clock by a source, and
again if none has for hours (adjtimex(2), STA_UNSYNC)."""

TIMEX_BYTES: Final = 208
"""Size of `struct timex` on 64-bit Linux; the kernel writes all of it."""


@dataclass(frozen=True, slots=True)
class ClockState:
    """The state of the clock, as the kernel knows it."""

    is_synchronized: bool
    error_seconds_max: float


def python_finding(implementation: str, found: tuple[int, int, int], wanted: str) -> Checked:
    """Judge the interpreter; `wanted` is a specifier such as `>=3.11`."""
    said = f"{implementation} {'.'.join(map(str, found))}"
    if ".".join(map(str, found)) not in SpecifierSet(wanted):
        cause = f"Waltz needs Python {wanted}"
        return Checked("python", "", False, said, cause, "install Waltz with a newer Python")
    if implementation != "CPython":
        cause = "Waltz is tested with CPython only"
        return Checked("python", "", None, said, cause, "use CPython")
    return Checked("python", "", True, said)


def library_findings(
    wanted: Iterable[str], installed: Mapping[str, str | None]
) -> Iterator[Checked]:
    """Judge the libraries of the base package. `wanted` are requirements as the package's metadata
    has them, `installed` the versions by name, None for a library that is missing."""
    for each in map(Requirement, wanted):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        found = installed[each.name]
        remedy = f"pip install '{each.name}{each.specifier}'"
        if found is None:
            yield Checked("library", each.name, False, "not installed", "Waltz needs it", remedy)
        elif not each.specifier.contains(found, prereleases=True):
            cause = f"Waltz needs {each.specifier}"
            yield Checked("library", each.name, False, found, cause, remedy)
        else:
            yield Checked("library", each.name, True, found)


def open_files_finding(soft: int, hard: int) -> Checked:
    """Judge the limits of open files of this process, soft and hard."""
    shown = {resource.RLIM_INFINITY: "unlimited"}
    said = f"{shown.get(soft, soft)}, at most {shown.get(hard, hard)}"
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_WANTED:
        cause = (
            f"a node that is started from here has fewer than {OPEN_FILES_WANTED} and accepts fewer"
            " connections; a service has a limit of its own, which is not seen from here"
        )
        remedy = f"LimitNOFILE={OPEN_FILES_WANTED} in the service, or `ulimit -n` before the start"
        return Checked("open-files", "", None, said, cause, remedy)
    return Checked("open-files", "", True, said)


def clock_finding(state: ClockState | None) -> Checked:
    """Judge the clock; None: the kernel could not be asked."""
    remedy = "run a time service, such as chrony or systemd-timesyncd, on this machine or its host"
    if state is None:
        cause = "the kernel does not say who sets the clock"
        return Checked("clock", "", None, "could not be asked", cause, remedy)
    if not state.is_synchronized:
        cause = (
            "no program has told the kernel lately that it sets the clock by a source; the clock"
            " may still be right"
        )
        return Checked("clock", "", None, "not synchronized, says the kernel", cause, remedy)
    said = f"synchronized, says the kernel, to {state.error_seconds_max * 1000:.0f} ms or better"
    return Checked("clock", "", True, said)


# Reading


def read_clock() -> ClockState | None:
    """Ask the kernel about the clock, changing nothing; None: it gives no answer."""
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or sys.maxsize < 2**32 or not hasattr(library, "adjtimex"):
        return None
    answer = ctypes.create_string_buffer(TIMEX_BYTES)  # modes 0: a question
    if library.adjtimex(answer) < 0:
        return None
    error_microseconds = ctypes.c_long.from_buffer(answer, 24).value
    status = ctypes.c_int.from_buffer(answer, 40).value
    return ClockState(not status & CLOCK_UNSYNCHRONIZED, error_microseconds / 1e6)


def read_versions(wanted: Iterable[str]) -> Mapping[str, str | None]:
    """Return the installed version of each library that is wanted."""

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: installed(name) for name in (Requirement(each).name for each in wanted)}


def machine_findings() -> Iterator[Checked]:
    """Read this machine and yield what is found."""
    try:
        package = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        cause = "Waltz runs from files that no package manager has installed"
        yield Checked("library", DISTRIBUTION, None, "no metadata", cause, "pip install waltz-log")
    else:
        wanted = package.requires or []
        python = package.metadata["Requires-Python"]
        yield python_finding(platform.python_implementation(), sys.version_info[:3], python)
        yield from library_findings(wanted, read_versions(wanted))
    yield open_files_finding(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield clock_finding(read_clock())
