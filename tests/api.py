"""The reference of what applications use, printed from the docstrings of the public names.

Owns the order of the page; every name of `waltz` and `waltz.testing` has one place on it.
python -m tests.api > docs/api.md
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Final, get_args, get_origin

import waltz
import waltz.testing
from waltz import errors
from waltz.client.client_options import ClientOptions

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Opening": (
        *("open_client", "open_async_client", "open_reader", "open_async_reader", "open_attested"),
    ),
    "Clients": ("WaltzClient", "AsyncWaltzClient"),
    "What an application writes": (
        *("TransactionContext", "TransactionBuilder", "PlainAppend", "PartitionLocalLock"),
        *("RowColumns", "lock_hashes"),
        *("WaltzClientCallbacks", "SqlCallbacks", "NoCallbacks"),
        *("Serializer", "BytesSerializer", "StringSerializer"),
        *("JsonSerializer", "MsgpackSerializer"),
    ),
    "What it gets": (
        *(
            "Transaction",
            "Transactions",
            "ClientRun",
            "client_runs",
            "RequestId",
            "TransactionId",
            "PartitionId",
            "ClientId",
            "NOTHING",
        ),
        *("BlockedPartition", "OnApplyFailure", "ServerReport"),
        *("ClientMetrics", "ClientPartitionMetrics", "Durations"),
    ),
    "Reading what was written": (
        *("ConsistencyToken", "DatabaseMarks", "TokenMiddleware", "give_token"),
        *("IdempotencyKeys", "KeyedContext", "KeyedTransaction", "NotedKeys"),
    ),
    "Readers": (
        *("LogReader", "AsyncLogReader", "TransactionColumns", "BlockData", "WantsData"),
        *("AttestedLog", "Histories"),
    ),
    "Times": ("open_times", "LogTimes", "TransactionTime", "TimeColumns", "TransactionAt"),
    "Notes": ("open_notes", "ClusterNotes"),
    "Replicas": ("open_replicas", "ReplicaReader", "Replica", "ReplicaMarks"),
    "Events": (
        *("LifecycleEvent", "ServerConnected", "ServerDisconnected", "ConnectionRestored"),
        *("ClusterChanged", "PartitionMounted", "PartitionUnmounted"),
    ),
    "Retries of reads": ("RetryPolicy", "NoRetries", "RetryReads", "RetryAll", "Operation"),
    "Connecting": (
        *("Address", "TlsSettings", "ZooKeeperAddress", "ZooKeeperAccess", "ZooKeeperAcl"),
    ),
    "Errors": (
        *("WaltzError", "LocalProtocolError", "RemoteProtocolError", "ConfigurationError"),
        "AlreadyClosedError",
        *("UnavailableError", "ConnectionFailedError", "ConnectionLostError"),
        *("CoordinatorLostError", "PartitionNotReadyError", "OperationTimeoutError"),
        *("PostponedError", "PartitionBlockedError", "CorruptionError", "NotFoundError"),
        *("PermissionDeniedError", "PermissionLostError", "IdempotencyKeyReusedError"),
        "PartitionInactiveError",
        *("HistoryChangedError", "ClientAheadError", "ClusterChangedError", "ClientClosedError"),
        *("SubmitCancelledError", "AttestationError"),
    ),
}
"""Names of `waltz`."""

FRAMEWORKS: Final[Mapping[str, Sequence[str]]] = {
    "waltz.ext.fastapi": ("WorkerClient",),
    "waltz.ext.django": ("client", "close", "give_token"),
    "waltz.ext.django.django_callbacks": ("DjangoCallbacks", "DjangoMarks"),
    "waltz.ext.django.django_idempotency_keys": ("DjangoIdempotencyKeys",),
    "waltz.ext.django.middleware": ("TokenMiddleware",),
    "waltz.ext.sqlalchemy": ("SessionCallbacks",),
}
"""Names of modules for frameworks."""

PLAIN: Final = {
    "TransactionId": "A transaction's number in its partition's log: dense, from 0. An `int`.",
    "PartitionId": "A partition's number: from 0. An `int`.",
    "ClientId": "A client's number; never given twice in a cluster. An `int`.",
    "NOTHING": "-1: before the first transaction.",
    "LifecycleEvent": "Any of the following.",
    "WantsData": "A function of headers, an array, that says for which of them data is wanted.",
}
"""Names that can have no docstring of their own."""


def page() -> str:
    """The page, in Markdown."""
    lines = [
        "# Reference",
        "",
        "Printed from the docstrings by `python -m tests.api`; nobody types in it.",
        "What the words mean: [guarantees](guarantees.md); how it goes together:",
        "[tutorial](tutorial.md).",
        "",
        "`import waltz` has all that is not said to be elsewhere.",
    ]
    for title, names in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", *described(name, getattr(waltz, name))]
        if title == "Opening":
            lines += ["", *options()]
    lines += ["", "## waltz.testing", "", paragraph(inspect.getdoc(waltz.testing) or "")]
    for name in waltz.testing.__all__:
        lines += ["", *described(name, getattr(waltz.testing, name))]
    for module, names in FRAMEWORKS.items():
        found = in_a_project(module)
        lines += ["", f"## {module}"]
        for name in names:
            lines += ["", *described(name, getattr(found, name))]
    return "\n".join(lines) + "\n"


def in_a_project(module: str) -> Any:
    """Return a module; Django's need a project with settings."""
    import tests.ext.django_project  # noqa: F401

    return importlib.import_module(module)


def described(name: str, thing: Any) -> Iterator[str]:
    """What the page says of one public name."""
    yield f"### {name}"
    yield ""
    if name in PLAIN:
        yield PLAIN[name]
        if get_origin(thing) is UnionType or isinstance(thing, UnionType):
            yield ""
            yield ", ".join(f"`{each.__name__}`" for each in get_args(thing))
    elif inspect.isclass(thing) and issubclass(thing, errors.WaltzError):
        yield from _error(thing)
    elif inspect.isclass(thing):
        yield from _class(thing)
    elif inspect.isfunction(thing):
        yield code(f"{_signature(name, thing)}")
        yield ""
        yield paragraph(inspect.getdoc(thing) or "")
    else:
        yield f"`{thing!r}`"


def undocumented() -> list[str]:
    """Public verbs that say nothing."""
    found = []
    for module, names in (
        (waltz, waltz.__all__),
        (waltz.testing, waltz.testing.__all__),
        *((in_a_project(module), names) for module, names in FRAMEWORKS.items()),
    ):
        for name in names:
            thing = getattr(module, name)
            if name in PLAIN or not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            if not _doc(thing) and not (inspect.isclass(thing) and thing.__name__ in _tree()):
                found.append(name)
            if inspect.isclass(thing):
                found += [
                    f"{name}.{member}"
                    for member, what in _members(thing)
                    if not isinstance(what, property) and not _inherited_doc(thing, member)
                ]
    return found


def options() -> Iterator[str]:
    """What `open_client` and `open_async_client` take besides."""
    yield "### Options"
    yield ""
    yield "Of `open_client` and `open_async_client`, by keyword; times in seconds."
    yield ""
    yield "| Option | Default | Meaning |"
    yield "|---|---|---|"
    docs = _attribute_docs(ClientOptions)
    for field in fields(ClientOptions):
        default = field.default
        if field.default_factory is not None and callable(field.default_factory):
            default = field.default_factory()
        yield f"| `{field.name}` | `{default!r}` | {flat(docs[field.name])} |"


def _class(thing: type) -> Iterator[str]:
    if doc := _doc(thing):
        yield paragraph(doc)
        yield ""
    if issubclass(thing, enum.Enum):
        for member in thing:
            yield f"- `{thing.__name__}.{member.name}`: {member.value}"
        return
    if is_dataclass(thing) or issubclass(thing, tuple):
        names = [f.name for f in fields(thing)] if is_dataclass(thing) else thing._fields  # type: ignore[attr-defined]
        docs = _attribute_docs(thing)
        kinds = inspect.get_annotations(thing)
        for name in names:
            text = f": {flat(docs[name])}" if name in docs else ""
            yield f"- `{name}: {kinds.get(name, 'Any')}`{text}"
        if names:
            yield ""
    elif "__init__" in vars(thing) and not _is_made_by_us(thing):
        yield code(_signature(thing.__name__, thing.__init__, bound=True))
        yield ""
        if init_doc := _doc(thing.__init__):
            yield paragraph(init_doc)
            yield ""
    if not is_dataclass(thing):
        for name, doc in _attribute_docs(thing).items():
            if not name.startswith("_"):
                yield f"- `{name}`: {flat(doc)}"
    for name, what in _members(thing):
        if isinstance(what, property):
            kind = inspect.get_annotations(what.fget).get("return", "") if what.fget else ""
            doc = flat(_inherited_doc(thing, name))
            yield f"- `{name} -> {kind}`" + (f": {doc}" if doc else "")
        else:
            shown = _signature(name, what, bound=not isinstance(what, classmethod))
            yield f"- `{shown}`"
            yield ""
            yield textwrap.indent(paragraph(_inherited_doc(thing, name) or ""), " " * 4)
            yield ""


def _is_made_by_us(thing: type) -> bool:
    """Whether applications get it and do not make it."""
    return thing.__name__ in ("WaltzClient", "AsyncWaltzClient", "LogReader", "AsyncLogReader") or (
        thing.__name__ in ("Transaction", "BlockData", "TransactionBuilder")
    )


def _error(thing: type[errors.WaltzError]) -> Iterator[str]:
    bases = " < ".join(each.__name__ for each in thing.__mro__[1:] if issubclass(each, Exception))
    yield paragraph(_doc(thing) or _tree()[thing.__name__])
    yield ""
    yield f"Is a: {bases}."
    yield ""
    yield f"`retryable`: {thing.retryable}. `may_be_written`: {thing.may_be_written}."


def _tree() -> dict[str, str]:
    """What the tree at the top of `errors.py` says of each class."""
    text = errors.__doc__ or ""
    return {
        name: said[0].upper() + said[1:] + "."
        for name, said in re.findall(r"^ +(\w+Error) +(\S.*)$", text, re.MULTILINE)
    }


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class has of itself, and of bases that have no place on the page."""
    public = [getattr(waltz, name) for name in waltz.__all__]
    found = dict(vars(thing))
    for base in thing.__mro__[1:]:
        if base.__module__.startswith("waltz.") and base not in public:
            found |= {name: what for name, what in vars(base).items() if name not in found}
    for name, what in found.items():
        if name.startswith("_") or not (inspect.isfunction(what) or isinstance(what, property)):
            continue
        if _is_internal(thing, name) or _is_of_an_interface(thing, name):
            continue
        yield name, what


def _is_of_an_interface(thing: type, name: str) -> bool:
    """Whether the verb is that of a protocol, which says what it does."""
    interfaces = (waltz.Serializer, waltz.RetryPolicy)
    return thing not in interfaces and any(name in vars(each) for each in interfaces)


def _is_internal(thing: type, name: str) -> bool:
    """What other parts of the package use of a public class."""
    return (thing.__name__, name) in INTERNAL


INTERNAL: Final = {
    *((name, "engine") for name in ("AsyncWaltzClient", "WaltzClient")),
    ("Transaction", "provide_data"),
    ("TransactionColumns", "of"),
    ("SessionCallbacks", "apply"),
    ("TokenMiddleware", "process_exception"),
    *(("Faults", name) for name in ("loses", "refuses", "hold_up")),
}


def _doc(thing: Any) -> str:
    """The docstring, unless Python has made it up from the names of the fields."""
    doc = thing.__doc__ or ""
    made_up = inspect.isclass(thing) and doc.startswith(f"{thing.__name__}(")
    return "" if made_up else inspect.cleandoc(doc)


def _inherited_doc(thing: type, name: str) -> str:
    for each in thing.__mro__:
        what = vars(each).get(name)
        if what is not None and what.__doc__:
            return inspect.cleandoc(what.__doc__)
    return ""


def _attribute_docs(thing: type) -> dict[str, str]:
    """The texts that follow attributes in the source of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[node.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def _signature(name: str, what: Any, *, bound: bool = False) -> str:
    signature = inspect.signature(what)
    parameters = list(signature.parameters.values())[bound:]
    parameters = [each for each in parameters if each.name != "new_engine"]
    text = str(signature.replace(parameters=parameters)).replace("'", "")
    prefix = "async " if inspect.iscoroutinefunction(what) else ""
    return f"{prefix}{name}{text.removesuffix(' -> None') if '__init__' in what.__name__ else text}"


def code(text: str) -> str:
    return f"```text\n{text}\n```"


def paragraph(text: str) -> str:
    """A docstring without the numbers of rows."""
    return re.sub(r" ?\((?:PM|CI|LC|UA|CX)-\d+[^)]*\)", "", text).strip()


def flat(text: str) -> str:
    return " ".join(paragraph(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
