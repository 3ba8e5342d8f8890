"""A cluster whose processes demand a policy: the real tool over TLS, before a policy is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.operated_cluster import operated_cluster
from tests.cli.test_policy_stored import POLICY
from tests.clusters import Said, run_tool, wait_until
from tests.tls_files import TlsFiles
from tests.zookeepers import RunningZooKeeper
from waltz.cli.trial_directory import choose_ports

pytestmark = pytest.mark.processes


def test_nothing_is_served_to_anybody_until_a_policy_is_stored(
    operators_zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    files = TlsFiles(tmp_path)
    assert files.authorities is not None
    authorities = files.authorities

    def options(name: str) -> list[str]:
        certificate = files.issue(name, "127.0.0.1", "localhost")
        return ["--tls-ca", authorities, "--tls-cert", certificate]

    configuration, policy = tmp_path / "demands.yml", tmp_path / "policy.yaml"
    configuration.write_text("access.policy: coordinator\naccess.policyDemanded: true\n")
    policy.write_text(POLICY.replace("mode: observe", "mode: deny"))
    with operated_cluster(tmp_path / "demanded", operators_zookeeper) as cluster:
        cluster.done("cluster", "create", "--name", "demanded", "--partitions", "1")
        place = cluster.add_storage("s1", 0)
        cluster.done("cluster", "auto-assign", "-g", "0")
        cluster.run(
            "s1",
            *("storage", str(configuration), "--directory", str(place.directory)),
            *("--coordinator", cluster.coordinator, "--address", place.address),
            *("--admin-address", place.admin, "--disk-free-min", "1MiB"),
            *options("node"),
        )
        (port,) = choose_ports("127.0.0.1", 0, 1)
        cluster.run(
            "v1",
            *("server", str(configuration), "--coordinator", cluster.coordinator),
            *("--address", f"127.0.0.1:{port}", *options("server")),
        )

        def append(name: str) -> Said:
            where = ("--cluster", f"waltz://127.0.0.1:{port}", "--partition", "0")
            return run_tool("append", *where, "x", *options(name))

        def prepared() -> Said:
            return cluster.tool("admin storage", "sync-partitions", *options("ann"))

        refused = append("orders")
        assert refused.code != 0
        assert "no policy is stored yet, and access.policyDemanded is set" in refused.err
        assert prepared().code != 0
        assert [*place.directory.glob("*/*.seg")] == []
        where = ("--cluster", cluster.coordinator, *options("ann"))
        stored = run_tool("policy", "apply", str(policy), *where, "--yes-deny", "--yes-unknown")
        assert stored.code == 0, stored.err
        wait_until(lambda: prepared().code == 0, "the storage node does not take the policy")
        wait_until(lambda: append("orders").code == 0, "nothing is served with the policy")
        assert append("nobody").code != 0
        for name in ("s1", "v1"):
            assert "policy_missing" in (cluster.directory / f"{name}.log").read_text()
