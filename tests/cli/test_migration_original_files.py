"""Files of the original as files of ours: a key stays with its value, or is named as dropped."""

from __future__ import annotations

import uuid

import pytest
import yaml
from hypothesis import given as drawn
from hypothesis import strategies as st

from waltz.cli.migration.original_files import ROLES, Role, convert, lines, role_of
from waltz.configuration.settings import Given
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError

SHIPPED = {
    Role.SERVER: "server.port: 55180\nserver.jetty.port: 55182\nzookeeper.connectString: zk:2181\n"
    "zookeeper.sessionTimeout: 1000\ncluster.root: /waltz_cluster\n",
    Role.STORAGE: "storage.port: 55280\nstorage.admin.port: 55281\nstorage.jetty.port: 55282\n"
    f"storage.directory: /waltz_storage/\ncluster.numPartitions: 1\n"
    f"cluster.key: {uuid.UUID(int=1)}\n",
    Role.TOOLS: "zookeeper.connectString: localhost:42181\nzookeeper.sessionTimeout: 1000\n"
    "zookeeper.connectTimeout: 5000\ncluster.root: /waltz_cluster\n",
}
"""The files with which the original's own containers are started."""


@pytest.mark.parametrize("role", Role)
def test_the_role_of_a_shipped_file_is_known_by_its_keys(role: Role) -> None:
    assert role_of(read_yaml(SHIPPED[role], "f")) is role


def test_a_file_of_nobody_has_no_role() -> None:
    with pytest.raises(ConfigurationError, match="name its role"):
        role_of({"client.ssl.keyStore.location": Given("x", "f")})


@pytest.mark.parametrize("role", Role)
def test_a_shipped_file_becomes_one_that_is_accepted(role: Role) -> None:
    place = read_yaml(SHIPPED[Role.TOOLS], "tools")
    found = convert(role, read_yaml(SHIPPED[role], "f"), pem_files={}, place=place)
    assert found.faults == ()
    text = "\n".join(lines(found, "f"))
    assert ROLES[role].judged(read_yaml(text, "new")).warnings == ()


def test_a_storage_file_of_an_older_release_takes_the_place_of_the_tools_file() -> None:
    given = read_yaml(SHIPPED[Role.STORAGE], "f")
    alone = convert(Role.STORAGE, given, pem_files={}, place={})
    assert any("coordinator.address is missing" in fault for fault in alone.faults)
    place = read_yaml(SHIPPED[Role.TOOLS], "tools")
    found = convert(Role.STORAGE, given, pem_files={}, place=place)
    assert found.kept["zookeeper.connectString"] == "localhost:42181"
    assert "zookeeper.connectString" in found.added
    assert [each.name for each in found.dropped] == ["cluster.numPartitions", "cluster.key"]


def test_a_server_that_listened_everywhere_still_does_and_one_with_cas_needs_no_key() -> None:
    given = read_yaml(SHIPPED[Role.SERVER], "f")
    assert (
        convert(Role.SERVER, given, pem_files={}, place={}).kept["server.bindAddress"] == "0.0.0.0"
    )
    for last in ("keyStore", "trustStore"):
        given[f"server.ssl.{last}.location"] = Given(f"/{last}.pem", "f")
    found = convert(Role.SERVER, given, pem_files={}, place={})
    assert ("server.bindAddress" in found.kept, found.faults) == (False, ())


def test_a_store_is_replaced_and_what_only_java_needs_is_dropped() -> None:
    given = read_yaml(SHIPPED[Role.SERVER], "f") | {
        f"server.ssl.keyStore.{last}": Given(value, "f")
        for last, value in (("location", "/a.jks"), ("password", "secret"), ("type", "JKS"))
    }
    found = convert(
        Role.SERVER, given, pem_files={"server.ssl.keyStore.location": "/a.pem"}, place={}
    )
    assert found.kept["server.ssl.keyStore.location"] == "/a.pem"
    assert {each.name for each in found.dropped} == {
        "server.ssl.keyStore.password", "server.ssl.keyStore.type",
    }  # fmt: skip
    assert "secret" not in "\n".join(lines(found, "f"))


def test_a_key_of_nobody_is_named_with_the_nearest_one() -> None:
    given = {"server.prot": Given(1, "f"), "storage.port": Given(2, "f")}
    found = convert(Role.SERVER, given, pem_files={}, place={})
    misspelt, of_another = found.dropped
    assert (misspelt.is_known, "server.port is one" in misspelt.reason) == (False, True)
    assert (of_another.is_known, "a key for storage" in of_another.reason) == (True, True)


NAMES = st.one_of(
    st.sampled_from([key.name for role in ROLES.values() for key in role.keys]),
    st.text(max_size=20),
)
VALUES = st.one_of(st.integers(), st.booleans(), st.text(max_size=20), st.lists(st.integers()))


@drawn(role=st.sampled_from(Role), values=st.dictionaries(NAMES, VALUES, max_size=12))
def test_every_key_stays_with_its_value_or_stands_in_a_comment(
    role: Role, values: dict[str, object]
) -> None:
    """Whatever the names are, a comment stays a comment."""
    given = {name: Given(value, "f") for name, value in values.items()}
    found = convert(role, given, pem_files={}, place={})
    text = "".join(f"{line}\n" for line in lines(found, "a file\nserver.port: 1"))
    read = yaml.safe_load(text) or {}
    assert read == {**found.kept}
    assert {*found.kept} - {*found.added} | {each.name for each in found.dropped} == {*given}
    assert all(read[name] == values[name] for name in read if name in values)
    assert text.count("# Dropped: ") >= len(found.dropped)


@pytest.mark.parametrize(
    "text", ["2026-01-01", "2026-01-01T10:00:00Z", ".inf", "1.5", "!!binary aGk="]
)
def test_a_value_that_only_yaml_has_is_kept_as_it_is(text: str) -> None:
    """It may be refused, with its reason: it must not keep the others from being told."""
    given = read_yaml(f"storage.directory: {text}\nstorage.port: 1\n", "node.yml")
    found = convert(Role.STORAGE, given, pem_files={}, place={})
    written = yaml.safe_load("\n".join(lines(found, "node.yml")))
    assert written["storage.directory"] == given["storage.directory"].value
    assert any(each.startswith("storage.directory") for each in found.faults)
