"""The worst inputs for every regular expression and every parser written by hand.

python -m tests.fuzz.costly_inputs          runs all; prints a JSON object, name to what is wrong
python -m tests.fuzz.costly_inputs --quick  the worst YAML for one of its readers only
python -m tests.fuzz.costly_inputs --proof  the same with parsers that are known to be bad

Each runs in a process of its own, which may use so many seconds of processor per input and so much
memory: an exponential or a badly quadratic one is killed. No time is measured.
"""

from __future__ import annotations

import ast
import importlib
import json
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from waltz.errors import WaltzError

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("src", "demo", "examples")
INPUT_CHARACTERS: Final = 100_000
PROCESSOR_SECONDS_MAX: Final = 6
MEMORY_BYTES_MAX: Final = 1 << 30
FUNCTIONS: Final = frozenset(
    {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
)

# Inputs


def repeated(text: str, end: str = "") -> str:
    """Return `text` again and again, then `end`."""
    return text * (INPUT_CHARACTERS // len(text)) + end


def framed(begin: str, text: str, end: str = "") -> str:
    return begin + repeated(text, end)


PIECES: Final = (
    *" \n\t,:;.-/*([{<\"'\\=?&#%@\0ae019é٣",
    "\r\n", " \n", "--\n", "/*", "/**/", "/* */", "*/", "//", "1,", "0-9,", "a:", "a: ", "- ",
    "/a", "a.b.", "(a,", "{a: ", '{"a":', "[1,", "''", "a a ", "1.", "..", "1..2,", "&a *a ",
)  # fmt: skip
ENDS: Final = ("", "x", "!")
GENERAL: Final = tuple(repeated(piece, end) for piece in PIECES for end in ENDS)
NESTED: Final = tuple(
    begin * (INPUT_CHARACTERS // len(begin + end) // depth) + end
    for begin, end in (("[", "]"), ('{"a":', "}"), ("{a: ", "}"), ("(", ")"), ("- ", ""))
    for depth in (1, 100)
)


# Regular expressions


@dataclass(frozen=True)
class Site:
    """A regular expression in the product: the file, and the constant or the function it is in."""

    path: str
    name: str
    pattern: Callable[[], re.Pattern[str]]

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


def sites() -> Iterator[Site]:
    """Find every regular expression of the product, the demo and the examples."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            # To parse all files would take longer than all that is done with the expressions.
            if re.search(r"\b(?:re|regex)\b", source):
                yield from sites_in(source, str(path.relative_to(ROOT)))


def sites_in(source: str, path: str) -> Iterator[Site]:
    tree = ast.parse(source)
    names = {alias.asname or alias.name for alias in _imports_of_re(tree)}
    for node in tree.body:
        name = _name_of(node)
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and _is_regular(call.func, names):
                yield Site(path, name, partial(_compiled, path, name, call))


def _imports_of_re(tree: ast.Module) -> Iterator[ast.alias]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "re":
            yield from node.names


def _is_regular(function: ast.expr, imported: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in imported
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("re", "regex")
        and function.attr in FUNCTIONS
    )


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", f"line {node.lineno}")


def _compiled(path: str, name: str, call: ast.Call) -> re.Pattern[str]:
    parts = Path(path).with_suffix("").parts
    module = importlib.import_module(".".join(parts[1:] if parts[0] == "src" else parts))
    found = getattr(module, name, None)
    if isinstance(found, re.Pattern):
        return found
    return re.compile(ast.literal_eval(call.args[0]), re.MULTILINE)


def used_as(site: Site) -> Callable[[str], object]:
    """Return a call of what the product calls of the expression."""
    pattern, source = site.pattern(), (ROOT / site.path).read_text()
    names = [each for each in FUNCTIONS if re.search(rf"\b(?:{site.name}|re)\.{each}\(", source)]
    calls = [getattr(pattern, each) for each in names if each not in ("compile", "sub", "subn")]

    def call_all(text: str) -> None:
        for call in calls or [pattern.match]:
            call(text)

    return call_all


OF_EXPRESSIONS: Final[dict[str, tuple[str, ...]]] = {
    "src/waltz/access/policy_text.py:_NAME": (repeated("a"),),
    "src/waltz/access/policy_text.py:_NUMBER": (repeated("1"),),
    "src/waltz/access/policy_text.py:_RANGE": (repeated("1"), framed("1..", "1"), repeated("1-")),
    "src/waltz/access/policy_text.py:_RATE": (repeated("1"), framed("1", "B"), repeated("1/s")),
    "src/waltz/access/principals.py:_URI_START": (repeated("a"), repeated("a://")),
    "src/waltz/archive/archive_document.py:_ELEMENT": (),
    "src/waltz/audit/audit_file.py:_NUMBER": (repeated("1"),),
    "src/waltz/audit/audit_verification.py:_END": (
        repeated(',"chain":"'), framed(',"chain":"', "0"), framed(',"chain":"', "0", '"}\n'),
    ),
    "src/waltz/cli/audit_reading.py:_OLDER": (repeated("1"),),
    "src/waltz/cli/doctor/disk_checks.py:OCTAL": (repeated("\\"), repeated("\\04")),
    "src/waltz/archive/archive_target.py:_UNUSABLE": (repeated("a"),),
    "src/waltz/archive/archive_target.py:_without_secret": (repeated("?"), repeated("a")),
    "src/waltz/archive/manifest.py:_CUT_NAME": (repeated("a"), framed("a", ".")),
    "src/waltz/archive/manifest.py:_DIGEST": (repeated("a"),),
    "src/waltz/archive/manifest.py:_PATH": (framed("log/", "1"), framed("log/1/", "1")),
    "src/waltz/attest/checkpoints.py:_NUMBER": (repeated("1"), repeated("0")),
    "src/waltz/attest/notes.py:_CONTROL": (repeated("a"),),
    "src/waltz/attest/notes.py:_KEY_NAME": (repeated("a", "+"),),
    "src/waltz/attest/notes.py:_KEY_TEXT": (
        repeated("a"), repeated("+"), framed("a+00000000+", "A"), repeated("a+00000000+"),
    ),
    "src/waltz/attest/notes.py:_SIGNATURE": (
        framed("\u2014 ", "a"), framed("\u2014 a ", "A"), repeated("\u2014 "),
    ),
    "src/waltz/bearer_tokens.py:_HASH": (framed("sha256:", "0"), repeated("sha256:")),
    "src/waltz/bearer_tokens.py:_NAME": (repeated("a"), framed("a", "."), repeated("-")),
    "src/waltz/bearer_tokens.py:_TOKEN": (framed("waltz_", "a"), repeated("waltz_")),
    "src/waltz/cli/archive_checks.py:_PERCENT": (repeated("1"), framed("1.", "1")),
    "src/waltz/cli/prove.py:PlaceType": (repeated("1"), framed("1:", "1")),
    "src/waltz/client/consistency_token.py:_TEXT": (
        repeated("1."), framed(f"1.{'0' * 32}", ".0=1"), framed(f"1.{'0' * 32}.", "1"),
    ),
    "src/waltz/client/databases/sql_statements.py:_PIECE": (
        framed(" ", " "), framed("--", "-"), framed("'", "''"), framed('"', '""'), framed("a", "$"),
    ),
    "src/waltz/client/databases/sql_statements.py:_POSTGRESQL_PIECE": (
        framed("e'", "\\"), framed("e'", "''"), framed("$a", "a"), framed("'", "'"),
    ),
    "src/waltz/client/databases/sql_statements.py:_MYSQL_PIECE": (
        framed("#", "#"), framed("'", "\\"), framed("'", "\\'"), framed("`", "a"),
    ),
    "src/waltz/client/databases/sql_statements.py:_COMMENT_ENDS": (repeated("/"), repeated("/*")),
    "src/waltz/client/databases/sql_statements.py:_ENDS_OR_CHANGES": (
        framed("ROLLBACK", " "), framed("START", " "), framed("SET", " "), framed("SET a", " "),
        framed("SET ", "a"), framed("SET @@", "a"), framed("ROLLBACK WORK", " ", "T"),
    ),
    "src/waltz/client/databases/sql_statements.py:_COMMITS_IN_MYSQL": (
        framed("CREATE", " "), framed("DROP", " ", "TEMPORAR"), framed("CREATE OR", " "),
    ),
    "src/waltz/client/databases/sql_statements.py:_RUN_BY_MYSQL": (repeated("/*M"),),
    "src/waltz/cli/certificate_directory.py:NAME": (repeated("a"), repeated(".")),
    "src/waltz/cli/certs.py:DOMAIN": (repeated("a"),),
    "src/waltz/cli/certs.py:HOST": (
        repeated("a"), repeated("a."), repeated("a" * 63 + "."), framed("a", "-"),
    ),
    "src/waltz/cli/certs.py:HostType": (repeated("1"), repeated(".")),
    "src/waltz/cli/certs.py:URI": (repeated("a"), framed("a://", "a"), repeated("a://")),
    "src/waltz/cli/explain_context.py:REQUEST_ID_WITH_NAMES": (
        repeated("client_id"), framed("client_id=", "1"), repeated("client_id=1, "),
    ),
    "src/waltz/cli/explain_context.py:REQUEST_ID_WITH_COLONS": (
        repeated("1:"), repeated("1"), framed("1:1:1:", "1"), repeated("-1:"),
    ),
    "src/waltz/cli/explain_context.py:REQUEST_ID_WITH_SLASHES": (
        repeated("1/"), repeated("1"), framed("1/1/1/", "1"), repeated("-1/"),
    ),
    "src/waltz/cli/explain_context.py:PARTITION_FIRST": (
        framed("partition=", " "), repeated("partition= "), framed("partition=1 transaction=", " "),
        framed("partition=", "1"),
    ),
    "src/waltz/cli/explain_context.py:TRANSACTION_FIRST": (
        repeated("transaction "), repeated("transaction 1 of "), framed("transaction ", "1"),
    ),
    "src/waltz/cli/moments.py:AGO": (framed("1.", "1"), framed("1", " "), repeated("1")),
    "src/waltz/cli/tail_start.py:AGE": (repeated("1"), framed("1", "s")),
    "src/waltz/cli/log_format.py:CONVERSION": (
        framed("%", "0"), framed("%", "-"), framed("%-", "0"), framed("%.", "0"), repeated("%"),
    ),
    "src/waltz/cli/log_format.py:_KEY": (repeated(" "), repeated(" a"), framed(" ", "a")),
    "src/waltz/cli/log_format.py:_SENTENCE": (repeated(":"), repeated("; ")),
    "src/waltz/configuration/kafka_bridge_settings.py:_SERVER": (
        repeated("a"), framed("[", "1", "]"), framed("a:", "1"), repeated("a:"),
    ),
    "src/waltz/configuration/kafka_bridge_settings.py:_WORD": (repeated("a"),),
    "src/waltz/console/pages.py:VALUE": (
        repeated("\ufdd0"), framed("\ufdd0", "a"), framed("\ufdd0", "\ufdd1"),
    ),
    "src/waltz/system/local_socket.py:_HOST": (repeated("a"), repeated("a", "!")),
    "src/waltz/spark/archive_location.py:OBJECT_STORE_URL": (
        repeated("a"), framed("s3://", "a"), framed("s3://a/", "a"), framed("s3://a", "/"),
    ),
    "src/waltz/spark/delta_archive.py:DESCRIBED": (
        framed("Waltz archive, format ", "1"),
        framed("Waltz archive, format 1 of cluster ", "0"),
    ),
    "src/waltz/spark/delta_archive_files.py:NAME": (
        repeated("partition=1"),
        framed("partition=", "1", "/"),
    ),
    "src/waltz/spark/java.py:inspect_java": (repeated("java.base@\n"), framed("java.base@", "1")),
    "src/waltz/spark/offsets.py:BEFORE_END": (repeated("latest-"), framed("latest-", "1")),
    "src/waltz/spark/pipelines/definition.py:SCHEME": (
        repeated("a"), framed("a:", "\n"), repeated("a:"),
    ),
    "src/waltz/spark/pipelines/draft.py:PLAIN": (repeated("_"), repeated("a", "!")),
    "src/waltz/spark/pipelines/draft.py:TIME": (
        repeated("2026-11-01T10:00:00."),
        framed("2026-11-01T10:00:00.", "9"),
    ),
    "src/waltz/spark/pipelines/expressions.py:CLOCK": (
        framed("date", " "), repeated("date "), repeated("timestamp_ntz' "), framed("date'", " "),
    ),
    "src/waltz/spark/pipelines/tables.py:MEASURE": (
        framed("count(", " "), framed("count(", "("), framed("count(", ")"), framed("sum", " "),
        framed(" " * 1000 + "count_if (", ") "), repeated("count_"),
    ),
    "src/waltz/spark/pipelines/tables.py:NAME": (repeated("_"), repeated("a", "!")),
    "src/waltz/spark/spark_options.py:DURATION": (repeated("1"), framed("1", "ms")),
    "src/waltz/spark/spark_session.py:_properties": (
        framed("a", " "), framed("a", "="), repeated("a:"),
    ),
    "src/waltz/storage/disk_document.py:_ELEMENT": (),
    "src/waltz/storage/inspection/survey.py:JOURNAL_NAME": (repeated("1", ".jnl"),),
    "src/waltz/storage/inspection/survey.py:PARTITION_NAME": (repeated("1"),),
    "src/waltz/storage/inspection/survey.py:SEGMENT_NAME": (repeated("1", ".seg"),),
    "src/waltz/storage/directory/space.py:_SETTING": (
        repeated("1", "."), repeated("1."), framed("1.", "1"),
    ),
    "src/waltz/store/messages.py:FENCED": (
        repeated("session id "), framed("session id has changed to ", "1"),
        repeated("session id has changed to "),
    ),
}  # fmt: skip
"""Of every regular expression, by the place where it stands, what comes near to matching it."""

OF_CODE: Final = frozenset(
    {
        "src/waltz/archive/archive_document.py:_ELEMENT",
        "src/waltz/storage/disk_document.py:_ELEMENT",
    }
)
"""Expressions that see text of the program's own only."""


# Parsers


@dataclass(frozen=True)
class Parser:
    """Something that reads text; `expected` is what it may raise."""

    name: str
    parse: Callable[[str], object]
    worst: Sequence[str] = ()
    expected: tuple[type[BaseException], ...] = (WaltzError,)
    general: bool = True


def _function(place: str) -> Callable[..., Any]:
    """Return what `module:name` names, `name` with dots; imported where it runs."""
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _called(place: str, *arguments: object, **named: object) -> Callable[[str], object]:
    return lambda text: _function(place)(text, *arguments, **named)


def _as_bytes(place: str) -> Callable[[str], object]:
    return lambda text: _function(place)(text.encode())


def _statements(text: str) -> object:
    module = importlib.import_module("waltz.client.databases.sql_statements")
    dialects = ("postgresql", "mysql", "sqlite", "oracle")
    return [list(module.statement_begins(text, each)) for each in dialects]


def _lines(text: str) -> object:
    """Every byte comes by itself."""
    lines = _function("waltz.system.embedded_lines:Lines")()
    data = text.encode()
    return [list(lines.receive(data[at : at + 1])) for at in range(len(data))]


def _bank(text: str) -> object:
    """A line of which nothing is a command; one that is would need a cluster."""
    return list(_function("examples.bank:talk")(None, None, ["no " + text]))


def _key(place: str) -> Callable[[str], object]:
    return lambda text: _function(place)().convert(text)


def _serialized(name: str) -> Callable[[str], object]:
    """What raises here, an application's callback has raised."""
    return lambda text: _function(f"waltz.client.transaction:{name}")().deserialize(text.encode())


NUMBERS: Final = (repeated("1"), framed("a:", "1"), framed("a:", "0"), framed("127.0.0.1:", "9"))
ALIASES: Final = (
    "a: &x0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"b{n}: &x{n + 1} [{', '.join([f'*x{n}'] * 9)}]\n" for n in range(40)),
    "a: &x0 {x: 1}\n"
    + "".join(
        f"b{n}: &x{n + 1} {{{', '.join(f'c{m}: *x{n}' for m in range(9))}}}\n" for n in range(40)
    ),
)
"""Text of a few kB that stands for more values than there are atoms."""
JSON_WORST: Final = (*NESTED, framed('{"a":', "1"), framed('"', "\\u0000"), framed("-", "1", "e"))
YAML_WORST: Final = (*NESTED, *ALIASES, repeated("a: 1\n"), repeated("- a\n"), repeated("? "))


def _audit_lines(text: str) -> object:
    check = _function("waltz.audit.audit_verification:Verification")()
    data = text.encode(errors="replace")
    return sum(1 for _ in check.read("a file", data.splitlines(keepends=True)))


PARSERS: Final = (
    Parser(
        "where statements begin", _statements,
        (repeated("/**/"), repeated("-- \n"), framed(";", "$a$"), framed(";", "';"),
         framed(";", "/*"), framed(";", "/*!"), framed("x", ";/* */"), framed(";", "$")),
    ),
    Parser("address", _called("waltz.types:Address.parse"), NUMBERS),
    Parser(
        "signed note", _as_bytes("waltz.attest.notes:parse_note"),
        (repeated("\n\n"), framed("a\n\n", "\u2014 a AAAAAAAA\n"), repeated("\u2014 ")),
    ),
    Parser("key", _called("waltz.attest.notes:PublicKey.parse"), (repeated("a+"),)),
    Parser(
        "proof", _as_bytes("waltz.attest.inclusion:parse_proof"),
        (framed("c2sp.org/tlog-proof@v1\nextra ", "A"), repeated("c2sp.org/tlog-proof@v1\n"),
         framed("c2sp.org/tlog-proof@v1\nextra A\nindex 0\n", "A\n")),
    ),
    Parser(
        "request to a witness", _as_bytes("waltz.attest.witness_judge:parse_request"),
        (framed("old 0\n", "A\n"), framed("old ", "1"), repeated("\n\n")),
    ),
    Parser(
        "zookeeper address", _called("waltz.types:ZooKeeperAddress.parse"),
        (framed("zookeeper://", "a,"), framed("zookeeper://a/b?sessionTimeout=", "1"),
         framed("zookeeper://", "/"), framed("zookeeper://a:", "1")),
    ),
    Parser(
        "servers address", _called("waltz.types:ServersAddress.parse"),
        (framed("waltz://", "a:1,"), framed("waltz://", ","), framed("waltz://a:", "1")),
    ),
    Parser("cluster address", _called("waltz.types:parse_cluster"), NUMBERS),
    Parser(
        "partition list", _called("waltz.cli.partition_list:parse_partitions"),
        (repeated("0-999999,", "1"), repeated("0-1,", "2"), repeated("1")),
        (ValueError,),
    ),
    Parser(
        "lock", _called("waltz.cli.append:parse_lock"), (framed("a:", "1"), framed("a:", "-")),
        (click.BadParameter, WaltzError),
    ),
    Parser(
        "name of a lock",
        lambda text: _function("waltz:PartitionLocalLock")(text, 1),
        # A hash, which takes equally long whatever the name is.
        (repeated("\ud800"), repeated("a"), repeated("\u20ac")),
        general=False,
    ),
    Parser(
        "configuration", _called("waltz.configuration.yaml_text:read_yaml", "a file"), YAML_WORST,
        general=False,
    ),
    Parser(
        "audit log", _audit_lines,
        (repeated(',"chain":"'), framed("[", "[", ',"chain":"%s"}' % ("0" * 64)),
         repeated('{"number":1,"chain":"%s"}\n' % ("0" * 64))),
    ),
    Parser(
        "policy",
        lambda text: _function("waltz.access.policy_text:parse_policy")(text.encode(), "a file"),
        (*YAML_WORST, framed("grants: {", "CN=a*: [r], ")), general=False,
    ),
    Parser(
        "preferred partitions", _key("waltz.configuration.server_settings:_partition_ids"),
        (repeated("1,", "1"),), (ValueError,),
    ),
    Parser("node path key", _key("waltz.configuration.keys:node_path"), (), (ValueError,)),
    Parser("node path", _called("waltz.cluster.tree:check_path"), (framed("/", "a/"),)),
    Parser(
        "free space", _called("waltz.storage.directory.space:FreeMinimum.parse"),
        (repeated("1", "%"),),
    ),
    Parser("memory of damage", _as_bytes("waltz.storage.log.damage:decode_damage"), JSON_WORST),
    Parser("coordinator line", _as_bytes("waltz.system.embedded_lines:parse_object"), JSON_WORST),
    Parser("coordinator stream", _lines, (repeated("{}\n"),), general=False),
    Parser("node data", _called("waltz.system.embedded_lines:data_from_json"), (repeated("QQ=="),)),
    Parser(
        "loopback", _called("waltz.types:is_loopback"), (repeated("f:"), framed("1%", "%"))
    ),
    Parser(
        "metrics of a storage node", _called("waltz.cli.storage_questions:problems_in"),
        (*JSON_WORST, framed('{"partitions": {"', "1", '": {"problems": ["a"]}}}')),
    ),
    Parser("partitions option", _called("waltz.spark.offsets:parse_partitions"),
           (repeated("0-9999,", "1"), repeated("1"))),
    Parser(
        "offsets option",
        lambda text: _function("waltz.spark.offsets:parse_offsets")("start", text, "earliest"),
        (*JSON_WORST, framed('{"', "1", '": 1}'), "{" + repeated('"1": 1,', '"2": 2}')),
    ),
    Parser("headers option", _called("waltz.spark.row_filter:parse_headers"),
           (repeated("1..2,", "1"), repeated("1,", "1"))),
    Parser(
        "note of a sink", _as_bytes("waltz.spark.sink_progress:TaskProgress.decode"), JSON_WORST
    ),
    Parser(
        "pipeline definition",
        _called("waltz.spark.pipelines.definition:parse_definition", directory=Path()),
        (*YAML_WORST, *(f"pipeline: tables\ncluster: a:1\ntarget: t\ntables: {{t: {{keys: [a], "
                        f"measures: {{m: '{framed('count(', piece)}'}}}}}}" for piece in "( )a")),
        general=False,
    ),
    Parser("share", _called("demo.submit:parse_share"), (framed("1/", "1"),), (ValueError,)),
    Parser("command of the bank", _bank),
    Parser("JSON data", _serialized("JsonSerializer"), JSON_WORST, (ValueError, RecursionError)),
)  # fmt: skip


# Running them


def failures(cases: Sequence[Parser]) -> dict[str, str]:
    """Run each in a process of its own; return what is wrong, by name."""
    wrong = {}
    for case in cases:
        found = run_limited(case)
        if found is not None:
            wrong[case.name] = found
    return wrong


def run_limited(case: Parser) -> str | None:
    """Return what goes wrong with one of the inputs; None if nothing does."""
    reading, writing = os.pipe()
    process_id = os.fork()
    if not process_id:
        os.close(reading)
        _run(case, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        *_, last = ["", *pipe.read().split("\n")[:-1]]
    _, status = os.waitpid(process_id, 0)
    if os.WIFSIGNALED(status):
        reason = signal.Signals(os.WTERMSIG(status)).name
        return f"ended by {reason} with the input {last}"
    return None if os.WEXITSTATUS(status) == 0 else last


def _run(case: Parser, writing: int) -> None:
    """Never returns: the process ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for text in (*case.worst, *(GENERAL if case.general else ())):
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds = math.ceil(used.ru_utime + used.ru_stime) + PROCESSOR_SECONDS_MAX
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            os.write(writing, f"{text[:30]!a} of {len(text)} characters\n".encode())
            try:
                case.parse(text)
            except case.expected:
                pass
            except BaseException as error:
                what = f"{type(error).__name__}: {ascii(str(error))[:200]}"
                os.write(writing, f"{text[:30]!a}: {what}\n".encode())
                os._exit(1)
        os._exit(0)
    finally:
        os._exit(2)


def known_expressions() -> list[Parser]:
    """Every expression, with what comes near to matching it."""
    return [
        Parser(str(site), used_as(site), OF_EXPRESSIONS[str(site)])
        for site in sites()
        if str(site) in OF_EXPRESSIONS and str(site) not in OF_CODE
    ]


def _quadratic(text: str) -> object:
    return [text.count("never", at) for at in range(len(text))]


def _endless(text: str) -> object:
    return [text] * len(text) * len(text)


READ_BY_CONFIGURATION: Final = frozenset({"policy", "pipeline definition"})
"""Parsers of YAML: what reads it is the same as for `configuration`."""


def without_yaml_again(case: Parser) -> Parser:
    """Return the parser without the inputs for YAML if another one has them."""
    if case.name not in READ_BY_CONFIGURATION:
        return case
    return replace(case, worst=[each for each in case.worst if each not in YAML_WORST])


BAD: Final = (
    Parser(
        "exponential",
        re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*COMMIT", re.DOTALL).match,
    ),
    Parser("quadratic", _quadratic),
    Parser("recursive", _called("json:loads"), NESTED, (ValueError,)),
    Parser("memory", _endless),
)
"""What has to be caught: the first is the expression that every SQL statement once went through."""


if __name__ == "__main__":
    chosen = BAD if "--proof" in sys.argv else [*known_expressions(), *PARSERS]
    if "--quick" in sys.argv:
        chosen = list(map(without_yaml_again, chosen))
    print(json.dumps(failures(chosen)))
