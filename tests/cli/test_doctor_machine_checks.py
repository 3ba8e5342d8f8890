"""Checks of the machine, by value; and what this machine says of itself."""

from __future__ import annotations

import resource

import pytest

from waltz.cli.doctor.machine_checks import (
    OPEN_FILES_WANTED,
    ClockState,
    clock_finding,
    library_findings,
    machine_findings,
    open_files_finding,
    python_finding,
)


@pytest.mark.parametrize(
    ("implementation", "version", "expected"),
    [
        ("CPython", (3, 11, 0), True),
        ("CPython", (3, 10, 9), False),
        ("PyPy", (3, 10, 9), False),
        ("PyPy", (3, 12, 1), None),
    ],
)
def test_python_is_judged_by_version_then_by_kind(
    implementation: str, version: tuple[int, int, int], expected: bool | None
) -> None:
    assert python_finding(implementation, version, ">=3.11").is_well is expected


def test_libraries_are_judged_by_what_the_package_asks_for() -> None:
    wanted = (
        "click>=8.1",
        "numpy>=1.26",
        "kazoo>=2.10",
        "uvloop>=0.19; sys_platform == 'nowhere'",
        "sqlalchemy>=2; extra == 'sql'",
    )
    installed = {"click": "8.0.9", "numpy": "2.0", "kazoo": None, "uvloop": None}
    found = {each.subject: each for each in library_findings(wanted, installed)}
    assert {name: each.is_well for name, each in found.items()} == {
        "click": False,
        "numpy": True,
        "kazoo": False,
    }
    assert found["click"].remedy == "pip install 'click>=8.1'"


@pytest.mark.parametrize(
    ("soft", "expected"),
    [(1024, None), (OPEN_FILES_WANTED, True), (resource.RLIM_INFINITY, True)],
)
def test_few_open_files_say_nothing_of_a_service(soft: int, expected: bool | None) -> None:
    assert open_files_finding(soft, resource.RLIM_INFINITY).is_well is expected


def test_a_clock_is_well_only_if_the_kernel_says_so() -> None:
    assert clock_finding(ClockState(True, 0.0123)).is_well is True
    assert "12 ms" in clock_finding(ClockState(True, 0.0123)).found
    assert clock_finding(ClockState(False, 16.0)).is_well is None
    assert clock_finding(None).is_well is None


def test_this_machine_has_what_the_tests_run_with() -> None:
    found = [*machine_findings()]
    assert {each.check for each in found} == {"python", "library", "open-files", "clock"}
    assert all(each.is_well for each in found if each.check in ("python", "library"))
    assert "numpy" in {each.subject for each in found}
