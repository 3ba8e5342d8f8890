"""The audit log of a storage node on real sockets: denials, its admin port, a full disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.audit.full_disk import FullDisk
from tests.audit.logs import verified
from tests.client.fake_cluster import until
from tests.storage.support import SESSION
from tests.storage.talkers import P0, P1, append
from tests.storage.test_gate_shell import (
    ADMIN_OPENING,
    OPENING,
    Setting,
    hear_the_end,
    play,
    write_three,
)
from waltz.audit.audit_file import AuditSettings
from waltz.types import SessionId
from waltz.wire.admin_protocol import AdminSuccessResponse, PartitionAccessRequest
from waltz.wire.storage_protocol import LastSessionInfoRequest, SuccessResponse

CLOSE = PartitionAccessRequest(1, (P1,), readable=True, writable=False)
FORGERY = LastSessionInfoRequest(SessionId(SESSION + 1), 1, P0, False)


def entries(directory: Path) -> list[dict[str, Any]]:
    """Return the entries of the log; no line has a fault."""
    check, lines = verified([(directory / "audit").read_bytes()])
    assert check.findings == []
    return [each.fields for each in lines if each.fields["decision"] != "opened"]


async def close_a_partition(setting: Setting, name: str) -> bool:
    """Return whether the node has done it."""
    tool = await setting.tool(name)
    tool.send(ADMIN_OPENING, CLOSE)
    found = await hear_the_end(tool) if name != "ann" else await tool.receive(2)
    return AdminSuccessResponse(CLOSE.sequence_number) in found


def test_denials_and_what_operators_do_at_the_admin_port_are_written(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        await write_three(setting)
        reader = await setting.server("reader")
        reader.send(FORGERY)
        await hear_the_end(reader)
        assert not await close_a_partition(setting, "waltz")
        assert await close_a_partition(setting, "ann")

    play(tmp_path, scene, audit=AuditSettings(str(tmp_path / "audit")))
    taken, reader, server, allowed = entries(tmp_path)
    assert (taken["decision"], taken["policy"]) == ("taken", 7)
    assert taken["process"].startswith("storage 127.0.0.1:")
    assert (reader["decision"], reader["verb"]) == ("denied", "server")
    assert reader["principal"] == "spiffe://tests/reader"
    assert reader["reason"] == "no role of spiffe://tests/reader has server at partition 0"
    assert (server["decision"], server["verb"]) == ("denied", "admin")
    assert (allowed["decision"], allowed["verb"]) == ("allowed", "admin")
    assert allowed["principal"] == "spiffe://tests/ann"
    assert (allowed["reason"], allowed["partition"]) == ("PartitionAccessRequest", P1)


def test_without_a_policy_the_admin_port_is_written_all_the_same(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        assert await close_a_partition(setting, "ann")

    play(tmp_path, scene, None, audit=AuditSettings(str(tmp_path / "audit")))
    found = [(each["verb"], each["principal"], each["policy"]) for each in entries(tmp_path)]
    assert found == [("admin", "spiffe://tests/ann", None)]


@pytest.mark.parametrize("is_strict", [False, True])
def test_while_the_log_takes_nothing_operators_are_refused_and_servers_go_on(
    tmp_path: Path, is_strict: bool
) -> None:
    disk = FullDisk("audit")

    def is_failing(setting: Setting) -> bool:
        audit = setting.node.state().audit
        assert audit is not None
        return audit.is_failing

    async def scene(setting: Setting) -> None:
        disk.is_full = True
        reader = await setting.server("reader")
        reader.send(FORGERY)
        await hear_the_end(reader)
        await until(lambda: is_failing(setting))
        tool = await setting.tool("ann")
        tool.send(ADMIN_OPENING, CLOSE)
        assert AdminSuccessResponse(CLOSE.sequence_number) not in await hear_the_end(tool)
        server = await setting.server("waltz")
        assert isinstance(await server.ask(OPENING), SuccessResponse)
        assert isinstance(await server.ask(append(1, 0, 3)), SuccessResponse)
        disk.is_full = False
        await until(lambda: not is_failing(setting))
        assert await close_a_partition(setting, "ann")

    audit = AuditSettings(str(tmp_path / "audit"), is_strict)
    play(tmp_path, scene, audit=audit, disk=disk)
    refused = [each for each in entries(tmp_path) if each["decision"] == "denied"]
    assert [each["principal"].rpartition("/")[2] for each in refused] == ["reader", "ann"]
    assert refused[1]["reason"].startswith("the audit log takes no entries")
    assert json.dumps(refused[1]["connection"]) == "null"
