"""The keys of who may do what, as a process takes them."""

from __future__ import annotations

from typing import Any

import pytest

from waltz.access.policy_watch_shell import AccessConfig
from waltz.audit.audit_file import AuditSettings
from waltz.cli.access_keys import access_config, policy_file
from waltz.cli.server_workers import ServerWorkers
from waltz.configuration.server_settings import server_settings
from waltz.configuration.settings import Given, Settings
from waltz.errors import ConfigurationError


def with_policy(policy: str) -> Settings:
    given = {"coordinator.address": "127.0.0.1:1", "server.port": 7000, "access.policy": policy}
    return server_settings({name: Given(value, "test") for name, value in given.items()})


def test_a_policy_is_a_file_unless_it_is_that_of_the_coordinator() -> None:
    assert access_config(with_policy("./coordinator")) == AccessConfig(policy_path="./coordinator")
    assert access_config(with_policy("coordinator")) == AccessConfig(follows_coordinator=True)
    assert policy_file(with_policy("coordinator")) is None


def test_a_policy_can_be_demanded_of_the_coordinator_only() -> None:
    demanded = {"access.policyDemanded": Given(True, "test")}

    def config(**given: str) -> AccessConfig:
        texts = {"coordinator.address": "127.0.0.1:1", "server.port": 7000} | given
        others = {name: Given(value, "test") for name, value in texts.items()}
        return access_config(server_settings(others | demanded))

    found = config(**{"access.policy": "coordinator"})
    assert found == AccessConfig(follows_coordinator=True, demands_policy=True)
    for given in ({}, {"access.policy": "policy.yaml"}):
        with pytest.raises(ConfigurationError, match="policyDemanded is for a process with"):
            config(**given)


def settings(**values: Any) -> Settings:
    given = {"coordinator.address": "127.0.0.1:1", "server.port": 7000} | {
        f"access.audit.{name}": value for name, value in values.items()
    }
    return server_settings({name: Given(value, "test") for name, value in given.items()})


def test_without_a_file_there_is_no_audit_log() -> None:
    assert access_config(settings(strict=True)).audit is None


def test_sizes_are_in_mebibytes_and_the_defaults_are_bounded() -> None:
    assert access_config(settings(file="/a")).audit == AuditSettings("/a", False, 64 << 20, 10)
    given = settings(file="/a", strict=True, fileSize=2, files=3)
    assert access_config(given).audit == AuditSettings("/a", True, 2 << 20, 3)


def test_a_key_that_is_misspelled_keeps_a_process_from_starting() -> None:
    with pytest.raises(ConfigurationError, match=r"access\.audit\.fil"):
        settings(fil="/a")


def test_workers_that_would_write_to_one_file_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="an audit log is written by one process"):
        ServerWorkers(settings(file="/a"), [], 2)
