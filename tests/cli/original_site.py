"""A site of the Java original for tests of `waltz migrate`: its files, key stores, a storage
directory, and its cluster as the golden trees have it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from tests.cluster.golden import golden_tree
from tests.wire.golden import DIRECTORY
from waltz.cli.cluster_list import ClusterMetadata, read_metadata
from waltz.cli.cluster_verification import Facts
from waltz.cli.migration.cluster_checks import Peers
from waltz.cli.migration.original_files import Role
from waltz.cli.migration.site_check import Checkup, checkup
from waltz.cli.server_answers import ServerAnswers
from waltz.cli.storage_questions import StorageReport
from waltz.errors import NoNodeError
from waltz.host import Node
from waltz.system.certificates import Authority, Identity
from waltz.system.real_host import real_host
from waltz.types import Address, PartitionId

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

ROOT: Final = "/waltz_cluster"
PASSWORD: Final = "changeit"
JAVA_VERSION: Final = 4
TREE: Final = "7-two-servers"
AFTER_CLIENTS: Final = DIRECTORY / "storage-after-clients"
NOW: Final = datetime.now(UTC)


class GoldenDoor:
    """The reading half of `host.Coordinator`, on a tree of the original."""

    def __init__(self, tree: str) -> None:
        self._nodes = golden_tree(tree)

    async def read(self, path: str) -> Node:
        if path not in self._nodes:
            raise NoNodeError(path)
        return self._nodes[path]

    async def children(self, path: str) -> Sequence[str]:
        depth = path.count("/") + 1
        below = (each for each in self._nodes if each.startswith(f"{path}/"))
        return sorted(each.rpartition("/")[2] for each in below if each.count("/") == depth)


def metadata_of(tree: str) -> ClusterMetadata:
    host = replace(real_host(Address("127.0.0.1", 1)), coordinator=GoldenDoor(tree))  # type: ignore[arg-type]
    return asyncio.run(read_metadata(host, ROOT))


def peers_of(metadata: ClusterMetadata) -> Peers:
    """What servers and storage nodes of the original answer if all is well."""
    nodes = metadata.replicas()
    storages = {
        node: StorageReport(
            None,
            None,
            dict.fromkeys(metadata.placement.partitions[node], True),
            metrics_json='{"version": "4.0.0", "gauges": {}}',
        )
        for node in nodes
    }
    servers = {
        server_id: ServerAnswers(
            None,
            frozenset(metadata.membership.assignment.servers.get(server_id, {})),
            dict.fromkeys(map(PartitionId, range(metadata.partition_count)), True),
            dict.fromkeys(nodes, True),
            silence="its version has no reports",
        )
        for server_id in metadata.membership.descriptors
    }
    addresses = [each.address for each in metadata.membership.descriptors.values()]
    return Peers(Facts(metadata, servers, storages), dict.fromkeys(addresses, JAVA_VERSION))


class Stores:
    """A CA, and key stores of what it signs, as PKCS12."""

    def __init__(self, *, days_ago: int = 0) -> None:
        self._made_at = NOW - timedelta(days=days_ago)
        self._authority = Authority.create("golden", "golden", now=self._made_at, days=3650)
        self.authority = load_pem_x509_certificate(self._authority.pair.certificate)

    def key_store(self, *, days: int = 365, password: str = PASSWORD) -> bytes:
        identity = Identity("vm", ("vm",), "spiffe://golden/vm", accepts=True)
        pair = self._authority.issue(identity, now=self._made_at, days=days)
        return pkcs12.serialize_key_and_certificates(
            b"vm",
            load_pem_private_key(pair.key, None),  # type: ignore[arg-type]
            load_pem_x509_certificate(pair.certificate),
            [self.authority],
            BestAvailableEncryption(password.encode()),
        )

    def trust_store(self, *certificates: Certificate) -> bytes:
        return pkcs12.serialize_java_truststore(
            [
                pkcs12.PKCS12Certificate(each, f"ca{number}".encode())
                for number, each in enumerate(certificates or (self.authority,))
            ],
            BestAvailableEncryption(PASSWORD.encode()),
        )


class Site:
    """Files as an operator of the original has them; a test changes what it wants to plant."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        stores = Stores()
        (directory / "key.p12").write_bytes(stores.key_store())
        (directory / "trust.jks").write_bytes(stores.trust_store())
        self.data = directory / "storage"
        shutil.copytree(AFTER_CLIENTS, self.data)
        place = {"zookeeper.connectString": "zk:2181", "cluster.root": ROOT}
        self.tools: dict[str, object] = place | {"zookeeper.sessionTimeout": 30000}
        self.server: dict[str, object] = place | {
            "zookeeper.sessionTimeout": 30000,
            "server.port": 47210,
            "server.jetty.port": 47212,
            **self._tls("server.ssl"),
        }
        self.storage: dict[str, object] = place | {
            "storage.port": 47310,
            "storage.admin.port": 47311,
            "storage.jetty.port": 47312,
            "storage.directory": str(self.data),
            "storage.diskFreeMin": "1MiB",
            **self._tls("storage.ssl"),
        }
        self.metadata = metadata_of(TREE)
        self.peers = peers_of(self.metadata)
        self.texts: dict[str, str] = {}
        """Texts of files that are not made of keys."""

    def _tls(self, prefix: str) -> dict[str, object]:
        return {
            f"{prefix}.keyStore.location": str(self.directory / "key.p12"),
            f"{prefix}.keyStore.password": PASSWORD,
            f"{prefix}.keyStore.type": "PKCS12",
            f"{prefix}.trustStore.location": str(self.directory / "trust.jks"),
            f"{prefix}.trustStore.password": PASSWORD,
            f"{prefix}.keyManager.algorithm": "SunX509",
        }

    def write(self) -> list[tuple[Path, Role]]:
        """Write the files."""
        named = []
        for role, keys in (
            (Role.TOOLS, self.tools),
            (Role.SERVER, self.server),
            (Role.STORAGE, self.storage),
        ):
            path = self.directory / f"waltz-{role}.yml"
            lines = (f"{name}: {value}\n" for name, value in keys.items())
            path.write_text(self.texts.get(role, "".join(lines)))
            named.append((path, role))
        return named

    def check(self, *, with_records: bool = True) -> Checkup:
        def ask(_: object) -> tuple[ClusterMetadata, Peers]:
            return self.metadata, self.peers

        return checkup(self.write(), [], ask, with_records=with_records)
