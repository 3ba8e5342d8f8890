"""What a file of the original changes for its operator; faults are planted next to the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.original_site import Site
from waltz.cli.doctor.finding import Checked
from waltz.cli.migration.file_checks import (
    ReadFile,
    file_differences,
    named_place,
    place_findings,
    read_file,
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def read(site: Site) -> list[ReadFile]:
    found = [read_file(path, role, {}) for path, role in site.write()]
    assert not any(isinstance(each, Checked) for each in found)
    return [each for each in found if isinstance(each, ReadFile)]


def test_a_short_session_and_a_missing_http_port_are_differences(site: Site) -> None:
    _, server, _ = read(site)
    assert list(file_differences(server)) == []
    site.server["zookeeper.sessionTimeout"] = 1000
    del site.server["server.jetty.port"]
    _, server, _ = read(site)
    subjects = [each.subject for each in file_differences(server)]
    assert subjects == [
        f"{server.path}: server.jetty.port", f"{server.path}: zookeeper.sessionTimeout",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [("a:1,b:2", "b:2,a:1"), ("a:1,b:2/log", "b:2,a:1/log"), ("a:1,b:2", "b:2, a:1")],
)
def test_the_order_of_zookeeper_s_servers_makes_no_other_cluster(
    site: Site, one: str, other: str
) -> None:
    site.tools["zookeeper.connectString"] = one
    for keys in (site.server, site.storage):
        keys["zookeeper.connectString"] = other
    files = read(site)
    assert list(place_findings(files)) == []
    assert named_place(files) is files[0]


@pytest.mark.parametrize("other", ["a:1,c:2/log", "a:1,b:2/archive", "a:1,b:2"])
def test_other_servers_or_another_path_are_another_cluster(site: Site, other: str) -> None:
    site.tools["zookeeper.connectString"] = "a:1,b:2/log"
    for keys in (site.server, site.storage):
        keys["zookeeper.connectString"] = other
    assert len(list(place_findings(read(site)))) == 2


def test_the_node_of_a_file_is_found_by_its_port(site: Site) -> None:
    _, _, storage = read(site)
    assert storage.nodes(site.metadata) == ["vm:47310"]
    assert storage.held_partitions(site.metadata) == (0, 1)
    assert storage.held_partitions(None) == ()
