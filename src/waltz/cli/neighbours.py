"""Decides whether other nodes of the cluster would miss a process that listens on loopback by
default."""

from __future__ import annotations

import contextlib
import logging

from waltz.cluster.cluster_shell import read_membership, read_replica_assignments
from waltz.cluster.paths import ClusterPaths
from waltz.configuration.keys import Key
from waltz.configuration.listening import unreached
from waltz.configuration.tls_settings import TlsKeys
from waltz.errors import ConfigurationError, NoNodeError
from waltz.host import Coordinator
from waltz.types import Address, is_local

log = logging.getLogger(__name__)

SHOWN_MAX = 3
"""Addresses of other machines that the error names."""


async def refuse_to_be_missed(
    coordinator: Coordinator, root: str, bind: Key[str], tls: TlsKeys, bound: Address
) -> None:
    """Log that only this machine reaches the process at `bound`.

    Raises ConfigurationError: the cluster knows a storage node or a server by an address that is
    not a loopback address, so that others may be on other machines. CoordinatorLostError.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(NoNodeError):  # the next step reports a missing cluster
        for storage in await read_replica_assignments(coordinator, root):
            found[storage] = storage.rpartition(":")[0].strip("[]")
        _, membership = await read_membership(coordinator, ClusterPaths(root).server_descriptors)
        found |= {str(each.address): each.address.host for each in membership.descriptors.values()}
    elsewhere = sorted(address for address, host in found.items() if not is_local(host))
    if elsewhere:
        shown = ", ".join(elsewhere[:SHOWN_MAX])
        more = f" and {len(elsewhere) - SHOWN_MAX} more" if len(elsewhere) > SHOWN_MAX else ""
        raise ConfigurationError(
            unreached(
                bind,
                tls,
                f"the cluster knows {shown}{more} by addresses that are not loopback, so those"
                " processes may be on other machines",
            )
        )
    log.info(
        "listens_on_loopback address=%s: no other machine reaches this address; %s is not set and"
        " peers are not authenticated",
        bound, bind.name,
    )  # fmt: skip
