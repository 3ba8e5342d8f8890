"""`waltz policy apply` and `show`: the policy that a cluster's coordinator keeps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.output import json_option, print_json
from waltz.errors import ConfigurationError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from waltz.access.lock_outs import Known, Reason
    from waltz.access.policy import Policy
    from waltz.host import Host, Node
    from waltz.types import Address, TlsSettings

PLACE: Final = "the stored policy"


@click.command()
@click.argument("file")
@cluster_options
@click.option("--as", "name", help="Your principal at storage nodes; default: that of --tls-cert.")
@click.option(
    "--node-principal",
    "node_principals",
    multiple=True,
    help="Principal of the servers, per name once; default: that of the certificate of each.",
)
@click.option("--yes-deny", is_flag=True, help="Store it though clients would be denied.")
@click.option("--yes-unknown", is_flag=True, help="Store it though not everything is known.")
@json_option
def apply(
    file: str,
    place: ClusterPlace,
    name: str | None,
    node_principals: Sequence[str],
    yes_deny: bool,
    yes_unknown: bool,
    as_json: bool,
) -> None:
    """Store a policy in the coordinator, after a check of FILE and a look at what it changes.

    Ends with 1, and stores nothing, if the file has a fault, its version is not above the stored
    one, or somebody who is there would be locked out.
    """
    from waltz.access.lock_outs import Override, reasons_against
    from waltz.access.policy_reading import parsed, read_content
    from waltz.access.principals import is_principal
    from waltz.cluster.policy_node_shell import read_policy_node, write_policy_node
    from waltz.system.real_disk import RealDisk

    content = read_content(RealDisk(), file)
    policy = parsed(content, file)
    for each in (*node_principals, *([] if name is None else [name])):
        if not is_principal(each):
            raise ConfigurationError(f"{each!r} is no principal; write CN=..., or as shown in logs")
    applier = name if name is not None else _own_principal(place.tls)

    async def read(host: Host, root: str) -> tuple[Node | None, Known]:
        node = await read_policy_node(host.coordinator, root)
        return node, await _known(host, root, applier, node_principals)

    node, known = place.run(read)
    stored, trouble = _stored(node)
    found = reasons_against(stored, policy, known)
    given = {Override.DENY: yes_deny, Override.UNKNOWN: yes_unknown}
    refused = [each for each in found if not given.get(each.override, False)]
    if not as_json:
        _show_difference(stored, trouble, policy)
    if not refused:

        async def write(host: Host, root: str) -> bool:
            return await write_policy_node(host.coordinator, root, content, over=node)

        if not place.run(write):
            raise ConfigurationError(
                "another policy was stored in the meantime, and nothing was written; run the"
                " command again"
            )
    if as_json:
        _print_result(stored, trouble, policy, found, refused)
    else:
        _tell(policy, found, refused)
    if refused:
        sys.exit(1)


def _print_result(
    stored: Policy | None,
    trouble: str | None,
    policy: Policy,
    found: Sequence[Reason],
    refused: Sequence[Reason],
) -> None:
    """Print the result as JSON; `changes` is null if no policy to compare with is stored."""
    from waltz.cli.policy_file import changes_document

    reasons = [
        {
            "reason": each.text,
            "override": each.override.value or None,
            "refused": each in refused,
        }
        for each in found
    ]
    document = {
        "version": policy.version,
        "stored": not refused,
        "reasons": reasons,
        "fault": trouble,
        "changes": None if stored is None else changes_document(stored, policy),
    }
    print_json(document)


def _tell(policy: Policy, found: Sequence[Reason], refused: Sequence[Reason]) -> None:
    for each in found:
        hint = f" ({each.override.value} stores it)" if each.override.value else ""
        word, hint = ("refused", hint) if each in refused else ("in spite of", "")
        click.echo(f"{word}: {each.text}{hint}", err=True)
    if not refused:
        click.echo(f"stored: version {policy.version}, mode {policy.mode.value}")


def _show_difference(stored: Policy | None, trouble: str | None, policy: Policy) -> None:
    from waltz.cli.policy_file import show_changes

    if trouble is not None:
        click.echo(f"what is stored has a fault: {trouble}", err=True)
    elif stored is None:
        click.echo("no policy is stored yet")
    else:
        show_changes(stored, policy)


def _stored(node: Node | None) -> tuple[Policy | None, str | None]:
    """Return the stored policy, or why it is none; both None: nothing is stored."""
    from waltz.access.policy_reading import parsed

    if node is None:
        return None, None
    try:
        return parsed(node.data or b"", PLACE), None
    except ConfigurationError as error:
        return None, str(error)


def _own_principal(tls: TlsSettings) -> str:
    """Return the principal that this command has at servers and storage nodes: that of its
    certificate, or that of its user where it has none and uses sockets of this machine. Raises
    ConfigurationError."""
    from waltz.access.principals import user_principal
    from waltz.system.local_users import own_user

    if tls.certificate is None and tls.local_sockets is not None:
        return user_principal(own_user())
    return _principal_in(tls.certificate)


def _principal_in(path: str | None) -> str:
    """Return the principal of the certificate in the file; without a file nobody's. Raises
    ConfigurationError."""
    from waltz.access.principals import ANONYMOUS_PRINCIPAL, principal_of

    if path is None:
        return ANONYMOUS_PRINCIPAL
    from waltz.system.certificates import names_in_file

    try:
        found = principal_of(names_in_file(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if found == ANONYMOUS_PRINCIPAL:
        raise ConfigurationError(
            f"{path} has no URI, DNS name or common name that can be a principal; say by --as who"
            " you are"
        )
    return found


async def _known(host: Host, root: str, applier: str, node_principals: Sequence[str]) -> Known:
    from waltz.access.lock_outs import Known, SeenClient
    from waltz.cluster.cluster_shell import read_cluster_params, read_membership
    from waltz.cluster.paths import ClusterPaths
    from waltz.operators.client_questions_shell import ask_all_clients

    params = await read_cluster_params(host.coordinator, root)
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    addresses = sorted({each.address for each in membership.descriptors.values()})
    if node_principals:
        servers: dict[str, str | None] = {f"named {each}": each for each in node_principals}
    else:
        names = await asyncio.gather(*(_principal_at(host, each) for each in addresses))
        servers = dict(zip(map(str, addresses), names, strict=True))
    clients = []
    unasked = {}
    for address, answer in (await ask_all_clients(host, addresses)).items():
        if isinstance(answer, UnavailableError):
            unasked[str(address)] = str(answer)
            continue
        if not answer.is_complete:
            unasked[str(address)] = "it has told some of them only"
        clients += [
            SeenClient(
                each.principal or None,
                each.address,
                {mount.partition_id: mount.writes for mount in each.mounts},
                not each.mounts_left_out,
            )
            for each in answer.clients
        ]
    return Known(applier, params.partition_count, servers, clients, unasked)


async def _principal_at(host: Host, address: Address) -> str | None:
    """Return the principal of the certificate that a server shows to clients; None: it shows none
    that can be verified, or does not answer."""
    from waltz.access.principals import principal_of

    try:
        connection = await host.network.connect(address)
    except UnavailableError:
        return None
    names = connection.certificate
    connection.close()
    return None if names is None else principal_of(names)


@click.command()
@cluster_options
@json_option
def show(place: ClusterPlace, as_json: bool) -> None:
    """Print the policy that the coordinator keeps, as its text was stored.

    Ends with 1 if there is none.
    """
    from waltz.cluster.policy_node_shell import read_policy_node

    async def read(host: Host, root: str) -> Node | None:
        return await read_policy_node(host.coordinator, root)

    node = place.run(read)
    if node is None:
        raise NotFoundError("no policy is stored; store one with waltz policy apply FILE")
    text = (node.data or b"").decode(errors="replace")
    if not as_json:
        click.echo(text, nl=not text.endswith("\n"))
        return
    stored, trouble = _stored(node)
    print_json(
        {
            "generation": node.version,
            "version": None if stored is None else stored.version,
            "mode": None if stored is None else stored.mode.value,
            "fault": trouble,
            "text": text,
        }
    )
