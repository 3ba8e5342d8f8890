"""The bills of materials: valid, whole, and the same bytes each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from supply.bill import bill, bills
from supply.pins import PINS, needs, pins_of

COMMIT_TIME = 1_700_000_000


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return dict(bills(COMMIT_TIME))


def content(text: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read


def faults_of(bills: dict[str, str]) -> dict[str, Any]:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    found = {name: validator.validate_str(text) for name, text in bills.items()}
    return {name: fault for name, fault in found.items() if fault is not None}


def test_the_bill_of_most_packages_is_valid_by_the_schema_of_cyclonedx(
    made: dict[str, str],
) -> None:
    largest = max(made, key=lambda name: len(made[name]))
    assert faults_of({largest: made[largest]}) == {}


@pytest.mark.long
def test_every_bill_is_valid_by_the_schema_of_cyclonedx(made: dict[str, str]) -> None:
    assert faults_of(made) == {}


def test_the_schema_refuses_a_bill_with_an_unknown_field(made: dict[str, str]) -> None:
    broken = content(made["waltz-log-1.0.0.cdx.json"]) | {"surprise": 1}
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(broken)) is not None


def test_the_base_package_and_every_extra_have_a_bill(made: dict[str, str]) -> None:
    assert next(iter(made)) == "waltz-log-1.0.0.cdx.json"
    assert {"waltz-log-1.0.0-archive.cdx.json", "waltz-log-1.0.0-spark.cdx.json"} < set(made)
    assert len(made) == 22


def test_a_bill_has_every_needed_package_with_its_version_and_hashes() -> None:
    pins = pins_of(PINS.read_text())
    read = content(bill("archive", COMMIT_TIME))
    found = {each["name"]: each for each in read["components"]}
    assert found.keys() | {"waltz-log"} == needs("waltz-log", ["archive"]).keys()
    for name, part in found.items():
        (place,) = part["externalReferences"]
        pin = next(pin for each, pin in pins.items() if each == name)
        assert part["version"] == pin.version
        assert {each["content"] for each in place["hashes"]} == set(pin.hashes)
        assert part["licenses"], name


def test_a_bill_says_which_package_needs_which() -> None:
    read = content(bill("archive", COMMIT_TIME))
    asked = {each["ref"]: each.get("dependsOn", []) for each in read["dependencies"]}
    of_the_package = {each.partition("==")[0] for each in asked["waltz-log==1.0.0"]}
    assert {"numpy", "obstore", "uvicorn", "zstandard"} <= of_the_package
    assert "h11" not in of_the_package
    (uvicorn,) = [each for each in asked if each.startswith("uvicorn==")]
    assert {each.partition("==")[0] for each in asked[uvicorn]} == {"click", "h11"}


def test_a_commit_gives_the_same_bills_in_another_process(
    made: dict[str, str], tmp_path: Path
) -> None:
    environment = {"SOURCE_DATE_EPOCH": str(COMMIT_TIME), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run(
        [sys.executable, "-m", "supply", str(tmp_path)], env=os.environ | environment, check=True
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == made


def test_the_number_of_a_bill_changes_with_its_content() -> None:
    first, later = (content(bill("", COMMIT_TIME + each)) for each in (0, 1))
    assert first["serialNumber"] != later["serialNumber"]
    assert first["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
