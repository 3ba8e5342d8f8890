"""The commands of `waltz`: the place of each, and one line about it."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "up": CommandPlace(
        "waltz.cli.up", "up", "Start a whole cluster on this machine, or start it again."
    ),
    "status": CommandPlace(
        "waltz.cli.status", "status", "Show servers, storage nodes, partitions and their marks."
    ),
    "top": CommandPlace(
        "waltz.console.top_shell", "top", "Show a cluster on the terminal, and follow it."
    ),
    "console": CommandPlace(
        "waltz.console.serving_shell", "console", "Serve pages that show a cluster."
    ),
    "append": CommandPlace(
        "waltz.cli.append", "append", "Append transactions, and print their IDs."
    ),
    "outcome": CommandPlace(
        "waltz.cli.outcome", "outcome", "Print the outcome of an append, by its request ID."
    ),
    "explain": CommandPlace(
        "waltz.cli.explain", "explain", "Tell the life of a transaction: author, times, copies."
    ),
    "locks": CommandPlace(
        "waltz.cli.locks_group", "locks", "Show which locks refuse appends, and which were refused."
    ),
    "tail": CommandPlace("waltz.cli.tail", "tail", "Print the transactions of partitions."),
    "bisect": CommandPlace(
        "waltz.cli.bisect",
        "bisect",
        "Find the first transaction after which a test of yours fails.",
    ),
    "consumers": CommandPlace(
        "waltz.cli.consumers", "consumers", "Show named consumers and how far they are."
    ),
    "server": CommandPlace("waltz.cli.server_node", "server", "Run one server, or several."),
    "storage": CommandPlace("waltz.cli.storage_node", "storage", "Run one storage node."),
    "cluster": CommandPlace(
        "waltz.cli.cluster_group",
        "cluster",
        "Make clusters, place replicas, and check that all is well.",
    ),
    "admin": CommandPlace(
        "waltz.cli.admin", "admin", "Tell a running storage node or server what to do, or ask it."
    ),
    "disk": CommandPlace(
        "waltz.cli.disk_group", "disk", "Look at a storage node's files, changing nothing."
    ),
    "restore": CommandPlace(
        "waltz.cli.restore_group",
        "restore",
        "Make a cluster, or a storage directory, from an archive of the log.",
    ),
    "clone": CommandPlace(
        "waltz.cli.clone", "clone", "Restore an archive as a cluster of its own, and start it."
    ),
    "archive": CommandPlace(
        "waltz.cli.archive_group", "archive", "Keep the log in a directory or a bucket."
    ),
    "outbox": CommandPlace(
        "waltz.cli.outbox_group", "outbox", "Relay rows of an application's database to the log."
    ),
    "bridge": CommandPlace(
        "waltz.cli.bridge_group", "bridge", "Post the transactions of a cluster to a webhook."
    ),
    "pipeline": CommandPlace(
        "waltz.cli.pipeline", "pipeline", "Derive data from the log with Spark, and prove it."
    ),
    "attest": CommandPlace(
        "waltz.cli.attest_group",
        "attest",
        "Sign what is archived, so that others can check the log.",
    ),
    "prove": CommandPlace(
        "waltz.cli.prove", "prove", "Write the proof that a transaction is in the log."
    ),
    "verify-proof": CommandPlace(
        "waltz.cli.prove", "verify_proof", "Check a proof that a transaction is in the log."
    ),
    "witness": CommandPlace(
        "waltz.cli.witness", "witness", "Cosign the checkpoints of logs that rewrite nothing."
    ),
    "policy": CommandPlace(
        "waltz.cli.policy_group", "policy", "Check who may do what, by a policy file."
    ),
    "audit": CommandPlace(
        "waltz.cli.audit_group", "audit", "Check and show the audit log of a process."
    ),
    "certs": CommandPlace(
        "waltz.cli.certs_group", "certs", "Keep a small CA: issue, renew and show certificates."
    ),
    "parked": CommandPlace(
        "waltz.cli.parked", "parked", "Show transactions that could not be applied, and skip them."
    ),
    "doctor": CommandPlace(
        "waltz.cli.doctor.checkup",
        "doctor",
        "Check a machine and an installation: causes and remedies.",
    ),
    "migrate": CommandPlace(
        "waltz.cli.migrate_group",
        "migrate",
        "Take a cluster over from Java Waltz: check, convert files and key stores.",
    ),
    "completion": CommandPlace(
        "waltz.cli.completion", "completion", "Print what makes a shell complete commands."
    ),
    "bench": CommandPlace("waltz.cli.bench", "bench", "Measure workloads."),
}


@click.group(
    cls=LazyGroup,
    places=PLACES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="waltz-log", prog_name="waltz")
def waltz() -> None:
    """Waltz: a replicated write-ahead log for transactions."""
