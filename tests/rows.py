"""The rows of what is asked for, and the tests that cite them.

Owns the rows of the programming model, the client and the demo: each has a test or a reason;
`rows.tsv` has the titles of all others, of which the page shows those that code or a test cites.
`docs/rows.md` is printed from the tests' docstrings and the titles of the stories:
python -m tests.rows > docs/rows.md
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
SHOWN_MAX: Final = 3
"""Tests named per row; of more, how many there are."""

KINDS: Final = "CF|CI|CM|CS|CX|DK|DM|DT|JT|LC|MT|PM|PS|SD|SN|ST|SV|TL|TS|UA"
ROW: Final = re.compile(rf"\b((?:{KINDS})-)(\d+)(?: to (?:{KINDS})-(\d+))?")

ROWS: Final[Mapping[str, str]] = {
    "PM-01": "Log is the source of truth",
    "PM-02": "Stream-oriented, not request/response",
    "PM-03": "Client high-water mark (HWM)",
    "PM-04": "Transaction IDs are dense and increasing",
    "PM-05": "submit(context)",
    "PM-06": "TransactionContext.partition_id(num_partitions)",
    "PM-07": "TransactionContext.execute(builder)",
    "PM-08": "execute returns False",
    "PM-09": "execute raises",
    "PM-10": "on_completion(bool)",
    "PM-11": "on_completion(True) fires before the record is applied",
    "PM-12": "on_application()",
    "PM-13": "on_lock_failure()",
    "PM-14": "on_expiration()",
    "PM-15": "on_exception(ex)",
    "PM-16": "creation_time",
    "PM-17": "TransactionBuilder.set_header(int32)",
    "PM-18": "TransactionBuilder.set_transaction_data(obj, serializer)",
    "PM-19": "Building without data fails clearly",
    "PM-20": "Write locks",
    "PM-21": "Read locks",
    "PM-22": "Append locks",
    "PM-23": "Multiple locks per transaction",
    "PM-24": "PartitionLocalLock(name, id)",
    "PM-25": "Lock hash must be reproducible by every client",
    "PM-26": "Serializer interface",
    "PM-27": "WaltzClientCallbacks.get_client_high_water_mark(partition)",
    "PM-28": "WaltzClientCallbacks.apply_transaction(txn)",
    "PM-29": "WaltzClientCallbacks.uncaught_exception(partition, txn_id, ex)",
    "PM-30": "All instances of a service receive all transactions",
    "PM-31": "Lazy body loading",
    "PM-32": "get_transaction_data retries",
    "PM-33": "Transaction object",
    "PM-34": "Client information calls",
    "PM-35": "Active partitions",
    "PM-36": "get_high_water_mark(partition)",
    "PM-37": "flush_transactions()",
    "PM-38": "An exception from apply_transaction blocks that partition, not the oth",
    "PM-39": "has_pending_transactions()",
    "PM-40": "Automatic retry",
    "PM-41": "Zero retry threads",
    "PM-42": "Back pressure",
    "PM-43": "Long-wait nudge",
    "PM-44": "close()",
    "PM-45": "Header-only consumer",
    "PM-46": "Separate writer and reader roles",
    "PM-50": "Ready-made callbacks for SQL databases",
    "PM-51": "HWM table",
    "PM-52": "Guarded update first",
    "PM-53": "Serializable isolation, autocommit off",
    "PM-54": "Database errors roll back and retry forever",
    "PM-55": "Database down while reading the HWM",
    "PM-56": "Guarded connection",
    "PM-57": "HWM cache is monotonic",
    "PM-60": "Cluster in memory for tests",
    "PM-61": "Several clients share it",
    "PM-62": "Fault injection",
    "PM-63": "All three lock types in memory",
    "PM-64": "Refused outside tests",
    "LC-01": "An address, or a name that leads to some",
    "LC-02": "TCP or TLS",
    "LC-03": "Node connection: after a handshake or a restore only",
    "LC-04": "Logical connection: outlives what carries it",
    "LC-05": "Cluster connection: at least one logical connection",
    "LC-06": "Connection ID and node ID",
    "LC-10": "A list of addresses, at least one of them valid",
    "LC-11": "Nodes are tried one after the other",
    "LC-12": "A handshake error ends the procedure",
    "LC-13": "A transport error does not",
    "LC-14": "Overall time-out of opening",
    "LC-15": "The first success completes it",
    "LC-20": "A node connection takes exactly one address",
    "LC-21": "Transport first, then handshake",
    "LC-22": "Names are resolved to all addresses",
    "LC-23": "Random order over these",
    "LC-24": "None connectable: one failure",
    "LC-25": "A handshake failure tries no other address of the name",
    "LC-26": "Resolved again at every use",
    "LC-30": "Magic bytes first",
    "LC-31": "Version major.minor.revision",
    "LC-32": "Feature bitset",
    "LC-33": "Cluster tag",
    "LC-34": "Connection ID in the answer",
    "LC-35": "Extensions map",
    "LC-36": "First request: latest version, all features",
    "LC-37": "No answer in time",
    "LC-38": "A version that is not supported",
    "LC-39": "A version that is supported: handshake again",
    "LC-40": "Non-zero error code",
    "LC-41": "Version and features are kept",
    "LC-42": "Bytes of request and answer",
    "LC-43": "Next to the original's Hello",
    "LC-44": "No connection ID: ordinary handshake",
    "LC-45": "Server makes context and ID, which cannot be guessed",
    "LC-46": "Client keeps the ID by node",
    "LC-47": "Break: restore timer, results are kept",
    "LC-48": "Restore in time",
    "LC-49": "Expiry",
    "LC-50": "Connection unknown",
    "LC-51": "Nobody else takes it over",
    "LC-52": "What is kept is bounded",
    "LC-53": "One unrelated logical connection per node",
    "LC-54": "Restore and mounts",
    "LC-60": "More node connections after the first",
    "LC-61": "List of active nodes",
    "LC-62": "Synchronous approach permitted",
    "LC-63": "Asynchronous approach preferred",
    "LC-64": "No storm of reconnects",
    "LC-70": "Server releases all at a logical break",
    "LC-71": "Break without operations is silent",
    "LC-72": "Break with operations is told",
    "LC-73": "Cluster connection lost, nobody there",
    "LC-74": "Operation while not connected",
    "LC-75": "Another cluster answers",
    "LC-76": "Then it is up to the user",
    "LC-80": "Retry policy",
    "LC-81": "Ready-made policies",
    "LC-82": "Heartbeats",
    "LC-83": "Dead peers are noticed",
    "LC-84": "Server's idle time-out",
    "LC-85": "The original's keep-alive",
    "LC-86": "Straight to the partition's owner",
    "LC-87": "A time-out for every call",
    "LC-88": "Names and nodes looked at now and then",
    "LC-89": "Lifecycle events",
    "CI-01": "Two connections per server",
    "CI-02": "Base client",
    "CI-03": "Mount hand-over",
    "CI-04": "Stream client mounts",
    "CI-05": "RPC client never receives feed",
    "CI-06": "Recovery by replacement",
    "CI-07": "Reconnect pace",
    "CI-08": "Endpoint changes come from cluster management",
    "CI-09": "Growth of partitions",
    "CI-10": "Partition states",
    "CI-11": "Mount wait is bounded",
    "CI-12": "Client ahead of the store",
    "CI-13": "Only the next ID is applied",
    "CI-14": "Transaction monitor",
    "CI-15": "A commit settles older appends",
    "CI-16": "Feed of other clients",
    "CI-17": "Reconnect procedure",
    "CI-18": "Abort one, flush up to one, clear",
    "CI-19": "Register blocks at capacity",
    "CI-20": "Lock failures are held back",
    "CI-21": "Flush responses are held back",
    "CI-22": "Concurrent body fetches of one ID share one request",
    "CI-23": "Body checksum failure",
    "CI-24": "Consumer pool",
    "CI-25": "NOT_READY mount",
    "CI-26": "READY mount",
    "CI-27": "FEED_SUSPENDED",
    "CI-28": "Set-partitions to inactive flushes first",
    "CI-29": "Two separate client instances in one process",
    "CI-30": "on_application after an apply retry",
    "CI-31": "Admin requests of a client",
    "DM-01": "Demo bank",
    "DM-02": "Locks in the demo",
    "DM-03": "Interactive and automatic modes",
    "DM-04": "Demo server launcher",
    "DM-05": "Smoke test ",
    "DM-06": "Live progress glyphs",
    "DM-07": "Sanity check variant",
    "PS-01": "Batch reader",
    "PS-02": "Stream reader",
    "PS-03": "Admission control",
    "PS-04": "Range splitting",
    "PS-05": "Reader runs in executors",
    "PS-06": "Header filter push-down",
    "PS-07": "Writer",
    "PS-08": "Unavailable range",
    "PS-09": "Python client works in threads, asyncio, after fork, and under signal handlers",
    "PS-10": "Type hints and docs for the whole public API",
}
"""What each row asks for."""

OTHER_ROWS: Final[Mapping[str, str]] = dict(
    line.split("\t") for line in (TESTS / "rows.tsv").read_text().splitlines()
)
"""Title by row, for the rows of servers, storage nodes, tools, tests and users' wishes."""

UNTESTED: Final[Mapping[str, str]] = {
    "PS-10": "mypy, strict, looks at the package and at the sample applications in `make test`",
    "DM-04": "the launcher is `waltz up`, which `tests/cli/test_up.py` covers by its own rows",
}
"""Why a row has no test."""

SHORT_OF: Final[Mapping[str, str]] = {
    "PM-16": "stamped when a client is given the context, not when it is built",
    "LC-46": "kept by the address that the server advertises: only another process of it would have"
    " another, and that one knows no connection; a name's addresses are one node",
    "LC-80": "reads are repeated by default, up to 16 times: callbacks could not do without, and"
    " users asked for it (decision 0016); `NoRetries` is the default of the system referred to",
    "LC-81": "flush is put to no policy: contexts find their own way through lost connections",
    "CI-23": "fetched again without a bound, on a new connection each time: a frame that does not"
    " decode does not say which transaction it was for",
    "CI-31": "servers that serve no partition are not asked",
    "DM-05": "faults are drawn from a seed instead of a schedule, for four clients; how many"
    " transactions is an option",
    "DM-06": "progress is told in lines of text, and the end has throughput but no latency",
}
"""What of a row is done otherwise than it asks."""


def cited(text: str) -> Iterator[str]:
    """The rows that a text names; `PM-50 to PM-52` are three."""
    for kind, first, last in ROW.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{kind}{number:02}"


def proofs() -> dict[str, list[str]]:
    """By row, the tests that cite it: `path::test`, and stories by their path."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for row in dict.fromkeys(cited(ast.get_docstring(node) or "")):
                    found.setdefault(row, []).append(f"{path.relative_to(TESTS)}::{node.name}")
    for path in sorted((TESTS / "scenarios").glob("*.txt")):
        for row in dict.fromkeys(cited(path.read_text().splitlines()[0])):
            found.setdefault(row, []).append(str(path.relative_to(TESTS)))
    return found


def cited_by_code() -> set[str]:
    """Return the rows that the source code cites."""
    return {row for path in (TESTS.parent / "src").rglob("*.py") for row in cited(path.read_text())}


def cell_of(tests: Sequence[str]) -> str:
    """Return the tests of a row as one cell of a table."""
    cell = "<br>".join(f"`{each}`" for each in tests[:SHOWN_MAX])
    if len(tests) > SHOWN_MAX:
        cell += f"<br>and {len(tests) - SHOWN_MAX} more"
    return cell


def page() -> str:
    """The page, in Markdown."""
    found = proofs()
    lines = [
        "# What is asked for, and the tests that prove it",
        "",
        "Printed by `python -m tests.rows`; nobody types in it. Paths are below `tests`.",
        "",
        "| Row | What | Tests |",
        "|---|---|---|",
    ]
    for row, title in ROWS.items():
        tests = found.get(row, [])
        cell = cell_of(tests)
        if not tests:
            cell = f"none: {UNTESTED.get(row, 'nobody has said why')}"
        if row in SHORT_OF:
            cell += f"<br>Otherwise: {SHORT_OF[row]}"
        lines.append(f"| {row} | {title} | {cell} |")
    lines += [
        "",
        "## Rows of the other parts",
        "",
        "Those that code or a test cites. UA are wishes of users of other systems.",
        "",
        "| Row | What | Tests |",
        "|---|---|---|",
    ]
    shown = found.keys() | cited_by_code()
    for row, title in OTHER_ROWS.items():
        if row in shown:
            lines.append(f"| {row} | {title} | {cell_of(found.get(row, []))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
