"""The page of log events, printed from the calls that log them.

Owns what each event means, in a sentence; names, levels, loggers and fields are the source's.
python -m tests.events > docs/operating/events.md
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from waltz.cli.log_format import LIBRARY_EVENT, Template, parsed

PACKAGE: Final = Path(__file__).parent.parent / "src" / "waltz"

LOGGERS: Final = {"log", "logger", "_log", "_peer_log"}
LEVELS: Final = {"debug", "info", "warning", "error", "exception", "critical"}

NAME: Final = re.compile(r"[a-z]+(?:_[a-z]+)+")

REPLICA: Final = ("partition", "session", "replica", "attempt")

MORE_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "apply_failed": (
        *("partition", "transaction", "header", "bytes", "transactions", "attempt"),
        *("on_apply_failure", "error"),
    ),
    "damage_found": REPLICA,
    "damage_not_repairable": REPLICA,
    "damage_repaired": REPLICA,
    "replica_dropped": REPLICA,
    "stop_unfinished": (
        *("partition", "pending_requests", "pending_bytes", "queue_requests", "disk_call_seconds"),
    ),
    "transaction_parked": ("header", "bytes"),
}
"""Fields that several calls write alike (`log_fields.Fields`), of which a line has those that are
known."""

MEANINGS: Final[dict[str, str]] = {
    "advertised_is_loopback": "The address that clients are told is one of this machine alone.",
    "announcements_held": "A tool takes a cut: the partitions of this server announce no further"
    " commits for at most 50 ms, but for those that refuse.",
    "after_commit_failed": "What an application of Django has given to `on_commit` while it applied"
    " transactions has raised; the changes and the mark are committed.",
    "apply_denied": "What was fed cannot be applied, for the server's policy denies its data, or a"
    " callback was denied something; it is tried again after a minute.",
    "apply_failed": "An application could not apply a transaction, or several that it was given"
    " together; it is tried again.",
    "apply_postponed": "An application has put off applying what comes next.",
    "archive_committed": "A manifest was written: its objects belong to the archive from now on.",
    "archive_opened": "The archiver has opened an archive, or made one.",
    "archiving_failed": "A step of the archiver has failed; it is tried again after a pause.",
    "assignment_unreadable": "The replicas of a partition could not be read from the coordinator;"
    " they are read again.",
    "bridge_begins_anew": "After an error a bridge to Kafka has a new producer, and resumes from"
    " the progress that Kafka has committed.",
    "bridge_crashed": "A partition of a bridge has met an error that nobody foresaw: the"
    " bridge ends.",
    "bridge_failed": "A bridge ends: no attempt of this process can help.",
    "bridge_refused": "A post, or a Kafka transaction, was not accepted or had no answer, or the"
    " log could not be read; it is tried again after a pause, and the partition waits.",
    "bridge_resumed": "A partition that waited goes on.",
    "bridge_started": "A bridge has found its cluster and its progress, and posts from now on.",
    "bridge_stopped": "A bridge has ended its posts; `posted` counts the transactions since its"
    " start.",
    "bridge_waits": "A bridge has not begun: the cluster, or the progress, does not answer.",
    "bad_server_descriptor": "A server's entry in the coordinator cannot be read; it is left out.",
    "audit_failed": "The audit log could not be written: requests of operators are refused until it"
    " can. What waits is written then.",
    "audit_lost": "There was no room for an entry of the audit log.",
    "audit_started": "The audit log is written to this file.",
    "audit_writes_again": "The audit log is written again, with what has waited.",
    "callback_failed": "A callback of the application has raised; what it was told stays true.",
    "checkpoint_cosigned": "A witness has cosigned a checkpoint that extends what it had seen.",
    "checkpoint_refused": "A witness has not cosigned a checkpoint; the status is that of its"
    " answer: 409 and 422 may be a log that was rewritten.",
    "console_reached_by_all": "The console serves at an address of other machines, as it was told.",
    "console_started": "The console serves its pages.",
    "consumer_marks_left": "A server stops before it has kept the last marks of consumers; those"
    " kept before stay.",
    "consumer_marks_not_kept": "The marks of a consumer could not be written to the coordinator;"
    " they are written again with the next ones.",
    "journal_failed": "The journal next to a segment could not be written; its records are fine,"
    " and their times and authors are not recorded.",
    "question_failed": "The console could not ask a part of the cluster, by a mistake of its own;"
    " the pages show that part as unknown.",
    "client_ahead": "A server's log ends before what the application has applied.",
    "client_broken": "A client's connection has broken; it is kept for a while.",
    "client_cut_off": "The server has ended a client's connection.",
    "client_faulted": "A client has broken the protocol; its connection ends.",
    "client_id_not_allocated": "The coordinator gave no client ID for a client that asked.",
    "client_id_renewed": "The client has another client ID: the numbers of the last one end, or the"
    " coordinator was set back.",
    "client_id_wanted": "The client needs another client ID and got none yet.",
    "client_idle": "A client has sent nothing for its idle time, not even a heartbeat.",
    "client_left": "A client has said farewell.",
    "client_not_let_in": "A client's handshake was refused.",
    "client_not_opened": "A web application could not reach the cluster; it tries again.",
    "client_refused": "A web application could not open its client; trying again would not help.",
    "client_released": "What was kept for a client that is away is kept no longer.",
    "client_replaced": "The client of a Django process had ended by itself, with this error; the"
    " process opens another one.",
    "client_restored": "A client has resumed a connection that had broken.",
    "client_silent": "A connection has not greeted in time.",
    "client_unidentified": "A connection was refused: its bearer token is not taken, or it showed"
    " neither a token nor a certificate.",
    "client_unknown": "A client wanted to resume a connection that is not kept here.",
    "close_failed": "A file could not be closed at the end.",
    "close_incomplete": "The client was closed with contexts that had not ended.",
    "cluster_changed": "Another cluster answers at the addresses of this one; the client ends.",
    "column_not_added": "A column is missing in the application's table and could not be added.",
    "copies_differ": "Two storage nodes hold different records; nothing of the partition is"
    " archived from there on.",
    "mark_unknown": "No server told a partition's high-water mark; nothing of it is archived now.",
    "object_swept": "An object of the archive was removed that no manifest names.",
    "object_written": "Records were written into the archive; no manifest names them yet.",
    "objects_joined": "Small objects of the archive were joined into a larger one.",
    "outbox_failed": "A step of an outbox's relay has failed. After a pause everything is read"
    " again, unless no attempt can help: then the relay ends.",
    "outbox_released": "A relay has given its outbox up: it was stopped.",
    "outbox_row_parked": "A row of an outbox was parked: it cannot get into the log as it is. Later"
    " rows of its key wait.",
    "outbox_taken_over": "A relay holds an outbox from now on.",
    "partition_not_archived": "A partition could not be archived in this round.",
    "race_lost": "Another archiver has committed first; this one goes on from there.",
    "configuration_doubtful": "The configuration has something that has no effect, or another one"
    " than it seems.",
    "connection_broken_off": "The client has ended a connection itself.",
    "connection_ended": "A connection to a server has ended.",
    "connection_failed": "A connection to a server could not be made, or broke.",
    "connection_given_up": "A connection was ended because its peer takes nothing, or too much is"
    " kept for it.",
    "connection_overflowed": "More was kept for a broken connection than is allowed; it is mounted"
    " anew.",
    "connection_refused": "A connection was refused before it said anything of use.",
    "connection_restored": "A connection that broke was resumed where it broke.",
    "connections_refused": "A host has as many connections as it may have.",
    "coordinator_answers_again": "The coordinator answers again.",
    "coordinator_bad_request": "A peer has sent the embedded coordinator what it cannot read.",
    "coordinator_does_not_answer": "The coordinator did not answer the server's question.",
    "coordinator_file_failed": "The embedded coordinator could not write its file.",
    "coordinator_left_unclosed": "The session with ZooKeeper could not be closed at the end.",
    "coordinator_lost": "The connection to the embedded coordinator is lost; it is made again.",
    "coordinator_session_begun": "A session with ZooKeeper has begun.",
    "coordinator_session_lost": "The session with the coordinator is over; its nodes are gone.",
    "coordinator_session_refused": "ZooKeeper takes new sessions but not this one, as after it was"
    " rebuilt; the process begins a new one.",
    "coordinator_silent": "The embedded coordinator says nothing; the connection is made again.",
    "coordinator_suspended": "The connection to ZooKeeper is interrupted.",
    "coordinator_trouble": "Something of the cluster could not be read from the coordinator; it is"
    " read again.",
    "coordinator_set_back": "Replicas know sessions that the coordinator does not: an older state"
    " of it was put back. IDs and generations that it may have given since were passed over.",
    "damage_found": "A replica has damaged records, which other replicas are asked for.",
    "damage_not_repairable": "No replica can give the damaged records.",
    "damage_repaired": "The damaged records of a replica were put back.",
    "database_failed": "The application's database could not be written to; it is tried again.",
    "deactivated_with_pending": "Partitions were left with contexts that had no verdict.",
    "directory_grown": "The storage directory has files for more partitions.",
    "feed_broken": "A reader's feed has broken; it is opened again.",
    "feed_not_opened": "A reader's feed could not be opened; it is tried again.",
    "files_open_to_others": "Other users of the machine may read the files of the directory.",
    "guide_faulted": "A server that was asked for the cluster has broken the protocol.",
    "http_request_refused": "An HTTP request showed no token of the file of tokens.",
    "http_started": "The process answers HTTP at this address.",
    LIBRARY_EVENT: "A line of another library, which has no events.",
    "lineage_not_told": "A pipeline could not tell OpenLineage of everything, or not in time; the"
    " run and its target are not affected. Said once, until an event was sent again.",
    "lines_left_out": "More lines of one event came from peers than are written in a period.",
    "local_socket": "The process listens on a socket of this machine, too.",
    "local_socket_left": "The file of a socket could not be removed at a stop.",
    "local_sockets_open_to_users": "Every user who can search the directory of sockets may do"
    " everything: there is no policy.",
    "listener_failed": "The application's listener has raised.",
    "listener_too_slow": "An event was dropped, for the application's listener is too slow.",
    "listens_on_loopback": "The process listens for this machine alone.",
    "mark_failed": "The application could not say its mark; it is asked again.",
    "mark_postponed": "The application has put off saying its mark.",
    "mark_resolved": "A recovery has found the high-water mark.",
    "metadata_not_written": "A partition's metadata could not be written; it is read anew.",
    "metadata_unreadable": "A partition's metadata could not be read; it is read again.",
    "mount_changed": "A partition was mounted by the client, or is mounted no longer.",
    "no_client_id": "A server gave no client ID; another one is asked.",
    "numbers_not_passed_over": "A server could not pass over the numbers of a coordinator that was"
    " set back; the partition stays closed, and the server tries again.",
    "not_a_storage_node_of_the_cluster": "The coordinator does not know this storage node.",
    "not_resolved": "The name of a storage node could not be resolved.",
    "open_refused": "A server was refused: another cluster, or another number of partitions.",
    "ownership_lost": "A later server owns the partition; this one ends its part in it.",
    "parked_applied": "A parked transaction was applied.",
    "parked_not_applied": "A parked transaction could not be applied; it stays parked.",
    "partition_access": "An administrator has closed or opened a partition.",
    "partition_closing": "The server closes a partition that is another server's now.",
    "partition_damaged": "A partition's files are damaged so that it serves nobody.",
    "partition_denied": "A server's policy denies a partition to this client; the error names"
    " principal, verb and reason. The client asks again once per minute and on each new"
    " connection.",
    "partition_failed": "A bug has ended a partition in this process.",
    "partition_given_up": "A partition was given up: by the client, which applies nothing of it any"
    " more, or by a storage node, as an administrator wanted.",
    "partition_granted": "A partition that was denied is mounted.",
    "partition_open": "A storage node has opened a partition's files.",
    "partition_open_damaged": "A partition's files were opened with damaged records.",
    "partition_opened": "The server has opened a partition.",
    "partitions_half_added": "Partitions were added by halves.",
    "policy_absent": "The process has no policy: no request is refused for who asks. A warning if"
    " it follows the coordinator, which keeps none.",
    "policy_missing": "A policy is demanded, and the coordinator keeps none: all are refused that"
    " access.breakGlass does not name.",
    "policy_not_taken": "The policy file or the coordinator's node has changed and cannot be used;"
    " the policy read before, if any, stays in force.",
    "policy_read": "This is the policy from now on.",
    "policy_unconfirmed": "The coordinator does not say which policy it keeps; the one read before"
    " stays in force.",
    "ports_open_to_anyone": "Every peer that reaches the ports may do everything.",
    "preferred_partitions": "The server prefers these partitions now.",
    "preferred_partitions_unchanged": "A server's preferences could not be changed.",
    "process_failed": "The process ends with an error.",
    "read_broken": "A reader's connection has broken; the range is read again.",
    "read_failed": "A range could not be read; it is read again.",
    "records_damaged": "Damaged records were found.",
    "records_lost": "A replica has lost records that it had synced.",
    "replica_dropped": "A replica is in the store session no longer.",
    "replicas_unknown": "The storage nodes could not be read from the coordinator.",
    "request_denied": "The policy does not allow a request; it was refused, or its connection"
    " was ended.",
    "request_unfinished": "A request of a web application was answered with 503: it was not"
    " finished in time, and may have taken effect.",
    "request_would_be_denied": "The policy only observes: a request that it does not"
    " allow was served.",
    "requests_dropped": "Requests of stale connections or generations were dropped.",
    "reserve_failed": "The space in reserve could not be given back or taken.",
    "reserve_not_taken": "No space could be reserved.",
    "scrub_failed": "The scrubber could not read a partition.",
    "server_address_ignored": "An address of the cluster's servers cannot be used.",
    "server_addresses": "The addresses where the server listens, and that clients are told.",
    "server_found": "A server has described its cluster.",
    "server_not_found": "A server did not answer.",
    "server_registered": "The server has its ID and its place in the cluster.",
    "server_silent": "A server answers no heartbeats; the connection is made again.",
    "server_started": "The server has joined the cluster.",
    "server_stopped": "The server has left the cluster.",
    "session_refused": "A server's store session is an old one, and was refused.",
    "sink_notes_left": "The notes of a write without `writeId` that has ended could not all be"
    " deleted; nothing needs them.",
    "space_low": "Free space is below twice the minimum.",
    "space_ok": "There is enough free space again.",
    "space_short": "Appends are refused for want of space.",
    "space_unknown": "The free space could not be read.",
    "stop_took_too_long": "The stop took longer than it may, and the process ends.",
    "stop_unfinished": "Work that the stop still waits for, a line per partition.",
    "storage_connected": "The server has a connection to a storage node.",
    "storage_directory": "A note on the storage directory, made while it was opened.",
    "storage_directory_new": "A storage node has shown its directory for the first time.",
    "storage_directory_replaced": "A storage node has another directory than before.",
    "storage_disconnected": "The connection to a storage node has ended.",
    "storage_started": "The storage node serves.",
    "store_closed": "A store session is over.",
    "store_opened": "A store session has opened: the partition takes appends.",
    "store_waits": "A store session cannot be opened, and why.",
    "task_failed": "A bug has ended a task of the client.",
    "timestamp_uncertain": "A read of Spark that is given by a time takes up transactions of which"
    " nobody knows whether they are of it.",
    "tls_believes_anyone": "TLS without CAs: no peer is authenticated.",
    "tls_files_not_taken": "Changed certificates cannot be used; the ones before stay in force.",
    "tls_files_read_again": "Changed certificates are in force.",
    "tls_spoken": "A peer speaks TLS where a plain connection was made.",
    "told_to_stop": "A signal has told the process to stop.",
    "token_not_compared": "Nobody could tell whether a request's consistency token was applied; the"
    " request was answered with 503.",
    "tokens_not_taken": "A changed file of tokens cannot be used; the tokens before stay in force.",
    "tokens_read_again": "A changed file of tokens is in force.",
    "torn_tail_cut": "What looks like a write torn by a power cut was cut off.",
    "transaction_parked": "An application has parked a transaction that it cannot apply.",
    "transaction_unreadable": "No replica could give a record that a client waits for.",
    "transport_failed": "A storage node could not be reached.",
    "upkeep_ended": "A bug has ended the upkeep of the storage node.",
    "worker_started": "A server of several has started.",
    "worker_trouble": "A server of several has ended, or does not stop.",
    "writer_closed": "A write or a sync has failed; the partition takes no more writes.",
    "writer_not_reopened": "A partition could not be made to take writes again.",
    "zookeeper_ended": "The ZooKeeper of `waltz up` has ended; it is started again.",
    "zookeeper_not_started": "The ZooKeeper of `waltz up` could not be started again.",
    "witness_memory_failed": "A witness cannot read or write its memory; it cosigns nothing.",
    "witness_started": "A witness takes checkpoints.",
    "witness_without_tls": "A witness serves at an address of other machines, without TLS.",
}


class Call(NamedTuple):
    """One call that logs."""

    place: str
    logger: str
    level: str
    template: str | None
    """None: it is no literal."""

    @property
    def parts(self) -> Template:
        assert self.template is not None
        return parsed(self.template)


def calls() -> Iterator[Call]:
    """Yield all calls of the package that log, but for those of the simulator."""
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative.parts[0] == "sim":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner, method = ast.unparse(node.func.value).rpartition(".")[2], node.func.attr
            if owner not in LOGGERS or method not in LEVELS:
                continue
            level = "error" if method == "exception" else method
            text = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            logger = "waltz." + ".".join(relative.with_suffix("").parts)
            yield Call(f"{relative}:{node.lineno}", logger, level, str(text) if text else None)


def page() -> str:
    """Return the whole text of `docs/operating/events.md`."""
    found: dict[str, list[Call]] = {}
    for call in calls():
        found.setdefault(call.parts.event, []).append(call)
    lines = [INTRODUCTION]
    for event in sorted(MEANINGS):
        own = found.get(event, [])
        keys = [key for call in own for key, _ in call.parts.fields if key is not None]
        fields = dict.fromkeys([*MORE_FIELDS.get(event, ()), *keys])
        levels = ", ".join(sorted({call.level for call in own})) or "any"
        loggers = ", ".join(f"`{each}`" for each in sorted({call.logger for call in own})) or "any"
        shown = ", ".join(f"`{each}`" for each in fields) or "none"
        lines.append(f"| `{event}` | {levels} | {shown} | {MEANINGS[event]} | {loggers} |")
    return "\n".join(lines) + "\n"


INTRODUCTION: Final = """\
# Log events

Printed by `python -m tests.events` from the calls that log them; a test compares this file with the
code.

Every process logs to standard error, a line per event. A line begins with the time, the level, the
logger and the name of the event; then come fields, `key=value`, and after a colon or a semicolon a
sentence for people. `waltz server`, `waltz storage`, `waltz console` and `waltz up` have
`--log-format json`, which makes each line a JSON object instead:

```json
{"time": "2026-03-01T12:00:00.123+00:00", "level": "INFO",
 "logger": "waltz.server.running_partitions_shell", "event": "partition_opened",
 "fields": {"partition": 3, "generation": 7}, "text": "partition_opened partition=3 generation=7"}
```

(It is one line; here it is broken to be read.)

`time` is UTC; `text` is the line without its beginning; `exception`, where there is one, is a
traceback. Numbers are numbers. Names of events and fields are stable: tools may rely on them. What
a field's text contains, such as the text of an error that a peer has sent, is never taken for
fields. An error that ends the process is logged as `process_failed`. With `waltz up` the logs in
its directory are JSON; what the command itself says stays text. A client logs with the same names
to whatever its application has set up: `waltz.cli.log_format.JsonFormatter` can be its formatter.

| Event | Level | Fields | Meaning | Logger |
|---|---|---|---|---|"""


if __name__ == "__main__":
    print(page(), end="")
