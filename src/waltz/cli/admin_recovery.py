"""`waltz admin storage recover-partition`: fill a storage node's partition from another's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import click
from rich.progress import TaskProgressColumn

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import ADDRESS
from waltz.cli.offline_recovery import Copied, CopyJob, Destination, Doors, copy_partition
from waltz.cli.output import json_option, print_json, progress_bar
from waltz.cli.storage_target import data_address, find_target, read_surroundings
from waltz.cli.tls_options import secured_by_file
from waltz.host import Host
from waltz.limits import RECORD_LIST_RECORDS_MAX
from waltz.types import Address, PartitionId

BATCH_RECORDS_DEFAULT = 1_000


@click.command("recover-partition")
@cluster_options
@click.option(
    *("-s", "--source-storage", "source"),
    type=ADDRESS,
    required=True,
    help="Storage node to copy from.",
)
@click.option(
    *("-d", "--destination-storage", "destination"),
    type=ADDRESS,
    required=True,
    help="Storage node to copy to.",
)
@click.option(
    *("-dp", "--destination-storage-port", "destination_port"),
    type=click.IntRange(1, 65535),
    help="Data port of the destination; only for a node that the cluster does not know.",
)
@click.option("-p", "--partition", "partition_id", type=click.IntRange(min=0), required=True)
@click.option(
    *("-b", "--batch-size"),
    type=click.IntRange(1, RECORD_LIST_RECORDS_MAX),
    default=BATCH_RECORDS_DEFAULT,
    show_default=True,
    help="Number of records copied at a time.",
)
@click.option(
    *("-sssl", "--source-ssl-config-path", "source_tls"),
    type=click.Path(),
    help="YAML with the server.ssl.* keys that are right for the source.",
)
@click.option(
    *("-dssl", "--destination-ssl-config-path", "destination_tls"),
    type=click.Path(),
    help="YAML with the server.ssl.* keys that are right for the destination.",
)
@json_option
def recover_partition(
    place: ClusterPlace,
    source: Address,
    destination: Address,
    destination_port: int | None,
    partition_id: int,
    batch_size: int,
    source_tls: str | None,
    destination_tls: str | None,
    as_json: bool,
) -> None:
    """Copy a partition from another node to one that servers may not use (availability -o false).

    What the source held when its store session began is copied; servers copy the rest once they may
    use the node. The command may be stopped, and resumes when called again.
    """
    number = PartitionId(partition_id)
    secured = secured_by_file(source_tls), secured_by_file(destination_tls)

    async def work(host: Host, root: str) -> Copied:
        around = await read_surroundings(host, root, (number,))
        ports = around.placement.admin_ports
        source_target = find_target(source, ports)
        target = find_target(destination, ports, destination_port)
        if source_target.admin == target.admin:
            raise click.UsageError(f"{source} and {destination} are the same storage node")
        job = CopyJob(
            number,
            source_target.admin,
            Destination(target.replica_id, data_address(target), target.admin),
            batch_size,
        )
        with ExitStack() as stack:

            def on_total(total: int) -> Callable[[int], None]:
                bar = progress_bar(f"partition {number}", total, TaskProgressColumn())
                return stack.enter_context(bar)

            doors = Doors(*(each(host) for each in secured))
            return await copy_partition(
                doors, around.params, job, around.sessions.get(number), on_total
            )

    copied = place.run(work)
    if as_json:
        print_json(
            {
                "partition_id": partition_id,
                "copied": copied.count,
                "cut": copied.cut,
                "last_transaction_id": copied.last,
            }
        )
    elif copied.count:
        click.echo(
            f"partition {partition_id}: copied {copied.count} transactions,"
            f" {copied.first + 1} to {copied.last}"
        )
    else:
        click.echo(
            f"partition {partition_id}: nothing to copy: the destination holds everything up to"
            f" {copied.last}, and the source's store session began with no more than that"
        )
    command = f"availability -s {destination} -p {partition_id} -o true"
    click.echo(f"next: waltz admin storage {command}", err=True)
