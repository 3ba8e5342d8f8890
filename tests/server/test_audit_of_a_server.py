"""The audit log of a server on real sockets: denials, what operators do, sums, a full disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.audit.full_disk import FullDisk
from tests.audit.logs import verified
from tests.client.fake_cluster import until
from tests.server.builders import PARTITION, append, flush
from tests.server.real_server import running_server
from tests.server.test_enforcement_shell import VERSIONS, Peer, Setting, mark, with_header
from tests.tls_files import TlsFiles
from waltz.access.policy_watch_shell import AccessConfig
from waltz.audit.audit_file import AuditSettings
from waltz.errors import ConfigurationError
from waltz.host import Disk
from waltz.wire.client_protocol import AddPreferredPartitionRequest, AddPreferredPartitionResponse
from waltz.wire.cut_protocol import HoldAnswer, HoldRequest

POLICY = """
version: 7
mode: deny
default: deny
roles:
  orders: {verbs: [append, read], partitions: 3, headers: 0, audit: [append]}
  asker: {verbs: [prefer, cut]}
grants:
  "spiffe://tests/orders": [orders]
  "spiffe://tests/ann": [asker]
"""


def play(
    directory: Path,
    scene: Callable[[Setting], Awaitable[None]],
    policy: str = POLICY,
    *,
    is_strict: bool = False,
    disk: Disk | None = None,
) -> list[dict[str, Any]]:
    """Return what the audit log has after the scene."""
    files, path = TlsFiles(directory), directory / "policy.yaml"
    path.write_text(policy)
    audit = AuditSettings(str(directory / "audit"), is_strict)

    async def main() -> None:
        async with running_server(
            directory,
            tls=files.peer(),
            access=AccessConfig(policy_path=str(path), audit=audit),
            disk=disk,
            partition_count=PARTITION + 1,
        ) as (host, server):
            await until(lambda: sum(p.is_open for p in server.state().partitions) > PARTITION)
            await scene(Setting(host, server, files, path))

    asyncio.run(asyncio.wait_for(main(), 240.0))
    check, lines = verified([(directory / "audit").read_bytes()])
    assert check.findings == []
    return [each.fields for each in lines]


def is_marked(setting: Setting, last: int) -> bool:
    return mark(setting.server) == last


def of(lines: list[dict[str, Any]], decision: str) -> list[dict[str, Any]]:
    return [each for each in lines if each["decision"] == decision]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_denial_is_written_with_who_what_where_and_why(tmp_path: Path, version: int) -> None:
    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", version)
        await orders.mount()
        orders.say(with_header(1, 5))
        await until(lambda: bool(setting.denials()))

    (line,) = of(play(tmp_path, scene), "denied")
    reason = "no role of spiffe://tests/orders has append at partition 3 with header 5"
    assert line["reason"] == reason
    known = ("verb", "principal", "partition", "policy", "count")
    assert [line[each] for each in known] == ["append", "spiffe://tests/orders", 3, 7, 1]
    assert line["peer"].startswith("127.0.0.1:")
    assert line["process"].startswith("server 127.0.0.1:")
    assert line["connection"] >= 1
    assert line["time"] > "2020"


@pytest.mark.parametrize("version", [4, 5])
def test_what_an_operator_does_is_written_and_policies_that_are_taken(
    tmp_path: Path, version: int
) -> None:
    async def scene(setting: Setting) -> None:
        ann = await setting.peer("ann", version)
        ann.say(AddPreferredPartitionRequest(flush().request_id, (PARTITION,)))
        await ann.hear(AddPreferredPartitionResponse)
        if version == 5:
            ann.say(HoldRequest(1, 5))
            await ann.hear(HoldAnswer)
        setting.policy.write_text(POLICY.replace("version: 7", "version: x"))
        await until(lambda: setting.server.state().policy.is_faulty)  # type: ignore[union-attr]
        setting.policy.write_text(POLICY.replace("version: 7", "version: 8"))
        await until(lambda: setting.server.state().policy.version == 8)  # type: ignore[union-attr]

    lines = play(tmp_path, scene)
    done = of(lines, "allowed")
    assert [each["verb"] for each in done] == ["prefer", "cut"][: 1 + (version == 5)]
    assert {each["principal"] for each in done} == {"spiffe://tests/ann"}
    assert done[0]["reason"] == "AddPreferredPartitionRequest"
    assert done[0]["partition"] == PARTITION
    assert [each["policy"] for each in of(lines, "taken")] == [7, 8]
    (fault,) = of(lines, "not taken")
    assert "line 2: version is 'x'" in fault["reason"]


def test_appends_and_reads_are_counted_if_a_role_says_so(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", 5)
        await orders.mount()
        for number in range(30):
            orders.say(with_header(number, 0))
        await until(lambda: mark(setting.server) == 29)

    found = of(play(tmp_path, scene), "allowed")
    assert {(each["verb"], each["principal"], each["partition"]) for each in found} == {
        ("append", "spiffe://tests/orders", 3)
    }
    assert sum(each["count"] for each in found) == 30


def test_what_would_be_denied_is_written_once_and_counted(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        nobody = await setting.peer("nobody", 5)
        await nobody.mount()
        for number in range(5):
            nobody.say(append(number))
            await until(partial(is_marked, setting, number))

    lines = play(tmp_path, scene, POLICY.replace("mode: deny", "mode: observe"))
    appends = [each for each in of(lines, "observed") if each["verb"] == "append"]
    assert len(appends) == 2, "the first, and the sum of the others"
    assert [each["connection"] is None for each in appends] == [False, True]
    assert [each["count"] for each in appends] == [1, 4]


@pytest.mark.parametrize("is_strict", [False, True])
def test_while_the_disk_is_full_operators_are_refused_and_data_only_by_a_strict_log(
    tmp_path: Path, is_strict: bool
) -> None:
    disk = FullDisk("audit")

    def is_failing(setting: Setting) -> bool:
        audit = setting.server.state().audit
        assert audit is not None
        return audit.is_failing

    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", 4)
        await orders.mount()
        disk.is_full = True
        nobody = await setting.peer("nobody", 4)
        nobody.say(append(1))
        await nobody.is_ended()
        await until(lambda: is_failing(setting))
        before = setting.server.state().preferred_partitions
        ann = await setting.peer("ann", 4)
        ann.say(AddPreferredPartitionRequest(flush().request_id, (PARTITION,)))
        await ann.is_ended()
        assert setting.server.state().preferred_partitions == before
        orders.say(with_header(1, 0))
        if is_strict:
            await orders.is_ended()
            assert mark(setting.server) == -1
        else:
            await until(lambda: mark(setting.server) == 0)
        disk.is_full = False
        await until(lambda: not is_failing(setting))
        ann = await setting.peer("ann", 4)
        ann.say(AddPreferredPartitionRequest(flush().request_id, (PARTITION,)))
        await ann.hear(AddPreferredPartitionResponse)

    lines = play(tmp_path, scene, is_strict=is_strict, disk=disk)
    reasons = [(each["verb"], each["principal"].rpartition("/")[2]) for each in of(lines, "denied")]
    refused = [("prefer", "ann"), *([("append", "orders")] if is_strict else [])]
    assert reasons == [("append", "nobody"), *refused]


def test_a_server_does_not_start_if_its_audit_log_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a letter\n")
    with pytest.raises(ConfigurationError, match="is no audit log"):
        play(tmp_path, lambda _: asyncio.sleep(0))


def test_without_a_policy_operators_are_written_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        audit = AuditSettings(str(tmp_path / "audit"))
        async with running_server(tmp_path, access=AccessConfig(audit=audit)) as (host, server):
            connection = await host.network.connect(server.address)
            peer = Peer(connection, 4)
            await peer.open()
            peer.say(AddPreferredPartitionRequest(flush().request_id, (PARTITION,)))
            await peer.hear(AddPreferredPartitionResponse)

    asyncio.run(main())
    (line,) = of([json.loads(each) for each in (tmp_path / "audit").open()], "allowed")
    assert (line["verb"], line["principal"], line["policy"]) == ("prefer", "anonymous", None)
