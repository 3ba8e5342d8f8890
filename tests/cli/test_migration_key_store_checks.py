"""Stores that a file names: which they are, and what the PEM files are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.original_site import NOW, Site
from waltz.cli.migration.key_store_checks import named_stores, store_findings
from waltz.cli.migration.original_files import Role
from waltz.configuration.settings import Given


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Given]:
    return {name: Given(value, "f") for name, value in Site(tmp_path).server.items()}


def test_a_key_store_and_a_trust_store_are_named_and_become_files_of_their_own(
    given: dict[str, Given],
) -> None:
    assert [each.pem_name for each in named_stores(Role.SERVER, given)] == [
        "server-keyStore.pem", "server-trustStore.pem",
    ]  # fmt: skip
    assert list(named_stores(Role.TOOLS, given)) == []


def test_files_in_pem_are_left_to_others(tmp_path: Path, given: dict[str, Given]) -> None:
    for store in named_stores(Role.SERVER, given):
        (tmp_path / store.pem_name).write_bytes(store.pem())
        given[store.key] = Given(str(tmp_path / store.pem_name), "f")
    assert list(store_findings(Role.SERVER, given, NOW)) == []
