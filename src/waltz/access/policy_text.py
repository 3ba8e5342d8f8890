"""Reads the text of a policy file, strictly.

Owns the layout of the file and the texts of its faults, each with the line and the remedy. Opens no
file. YAML's own types are not used: what stands in the file is text, so that `on`, `no` and `0x10`
are names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NoReturn

import yaml

from waltz.access.policy import (
    PLACED_VERBS,
    SUMMED_VERBS,
    VERBS,
    Case,
    Grant,
    Mode,
    NumberRange,
    Policy,
    Role,
    Verb,
)
from waltz.access.principals import PATTERN_EXPECTED, Pattern, is_principal, parse_pattern
from waltz.access.quota import (
    BYTE_RATES,
    BYTE_UNITS,
    NO_QUOTA,
    QUOTA_CONNECTIONS_MAX,
    RATE_APPENDS_MAX,
    RATE_BYTES_MAX,
    RATE_BYTES_MIN,
    Quota,
    shown_limit,
)
from waltz.errors import ConfigurationError
from waltz.limits import PARTITIONS_MAX
from waltz.plain_yaml import PlainLoader
from waltz.types import PartitionId

POLICY_BYTES_MAX: Final = 512 * 1024
"""Bytes of a policy file; a larger one is not read."""

STAR_GRANTS_MAX: Final = 1_000
"""Grants and break-glass patterns with a `*`: each connection tries all of them."""

POLICY_VERSION_MAX: Final = (1 << 63) - 1
"""The largest version of a policy."""

HEADER_MIN: Final = -(1 << 31)
HEADER_MAX: Final = (1 << 31) - 1
"""Headers of transactions are numbers of 32 bits."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")
_RANGE: Final = re.compile(r"(-?[0-9]{1,20})(?:(?:-|\.\.)(-?[0-9]{1,20}))?")
_RATE: Final = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB|TiB)?/s")
_REQUIRED: Final = ("version", "mode", "default", "roles", "grants")
_KEYS: Final = (*_REQUIRED, "break_glass", "cases")
_ROLE_KEYS: Final = ("verbs", "partitions", "headers", "quota", "audit")
_WORDS: Final = {"allow": True, "deny": False}
_ALL: Final = "all"

Fields = Mapping[str, tuple[yaml.Node, yaml.Node]]
"""The keys of a mapping, each with its own node and that of its value."""


def parse_policy(content: bytes, path: str) -> Policy:
    """Return the policy in the file at `path`. Raises ConfigurationError: anything in it is not as
    it has to be."""
    if len(content) > POLICY_BYTES_MAX:
        raise ConfigurationError(
            f"{path} is larger than {POLICY_BYTES_MAX} bytes; merge grants with a * in the name"
        )
    return _PolicyText(path).policy(_root(content, path))


def _root(content: bytes, path: str) -> yaml.Node | None:
    try:
        text = content.decode()
        return yaml.compose(text, Loader=PlainLoader)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            f"{path}, line {line}: not UTF-8; save the file as UTF-8"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigurationError(
            f"{path}{where}: {error.problem or 'not YAML'}; correct this line"
        ) from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigurationError(
            f"{path} is not YAML: characters that YAML does not allow, or too many levels;"
            " write a policy as docs/operating/policy.md shows"
        ) from None


class _PolicyText:
    """The nodes of one file, as parts of a policy. Every method may raise ConfigurationError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def policy(self, root: yaml.Node | None) -> Policy:
        if root is None:
            raise ConfigurationError(f"{self._path} is empty; expected {', '.join(_REQUIRED)}")
        fields = self._fields(root, "the policy", _KEYS)
        self._require(root, fields, _REQUIRED, "the policy")
        roles = self._roles(fields["roles"][1])
        grants = self._grants(fields["grants"][1], roles)
        break_glass = self._break_glass(fields)
        stars = sum(
            each.end is not None for each in (*break_glass, *(grant.pattern for grant in grants))
        )
        if stars > STAR_GRANTS_MAX:
            node = fields["grants"][0]
            self._fail(
                node, f"{stars} patterns have a *", f"at most {STAR_GRANTS_MAX} may; merge some"
            )
        return Policy(
            self._number(fields["version"][1], "version", 1, POLICY_VERSION_MAX),
            Mode(self._choice(fields["mode"][1], "mode", [each.value for each in Mode])),
            _WORDS[self._choice(fields["default"][1], "default", _WORDS)],
            break_glass,
            tuple(roles.values()),
            grants,
            tuple(self._cases(fields)),
        )

    # Parts of the policy

    def _roles(self, node: yaml.Node) -> dict[str, Role]:
        found = {}
        for name, (key, value) in self._fields(node, "roles").items():
            if not _NAME.fullmatch(name):
                self._fail(
                    key, f"{name!r:.100} is no name of a role", "use letters, digits and _.-"
                )
            found[name] = self._role(name, key, value)
        return found

    def _role(self, name: str, key: yaml.Node, node: yaml.Node) -> Role:
        what = f"role {name}"
        fields = self._fields(node, what, _ROLE_KEYS)
        self._require(key, fields, ("verbs",), what)
        texts = self._texts(fields["verbs"][1], f"verbs of {what}")
        verbs = frozenset(VERBS[self._choice(each, "verb", VERBS)] for each in texts)
        partitions = headers = None
        if "partitions" in fields:
            partitions = self._ranges(
                fields["partitions"][1], f"partitions of {what}", 0, PARTITIONS_MAX - 1
            )
        elif placed := sorted(each.value for each in verbs & PLACED_VERBS):
            self._fail(
                key,
                f"{what} has {' and '.join(placed)} but no partitions",
                "write partitions: 0-7, or partitions: all",
            )
        if "headers" in fields:
            if Verb.APPEND not in verbs:
                self._fail(
                    fields["headers"][0],
                    f"{what} has headers but not the verb append",
                    "remove headers: only appends are checked for them",
                )
            headers = self._ranges(
                fields["headers"][1], f"headers of {what}", HEADER_MIN, HEADER_MAX
            )
        quota = NO_QUOTA
        if "quota" in fields:
            quota = self._quota(fields["quota"][1], f"quota of {what}")
        audited = frozenset[Verb]()
        if "audit" in fields:
            choices = sorted(each.value for each in SUMMED_VERBS)
            nodes = self._texts(fields["audit"][1], f"audit of {what}")
            audited = frozenset(
                VERBS[self._choice(each, "verb of audit", choices)] for each in nodes
            )
        return Role(name, verbs | {Verb.CONNECT}, partitions, headers, quota, audited)

    def _quota(self, node: yaml.Node, what: str) -> Quota:
        fields = self._fields(node, what, Quota._fields)
        limits = {}
        for name, (_, value) in fields.items():
            if name == "connections":
                limits[name] = self._number(
                    value, f"{name} of the {what}", 1, QUOTA_CONNECTIONS_MAX
                )
            else:
                limits[name] = self._rate(value, f"{name} of the {what}", name)
        return Quota(**limits)

    def _rate(self, node: yaml.Node, what: str, name: str) -> int:
        """Return a number of bytes or appends per second."""
        is_bytes = name in BYTE_RATES
        low, high = (RATE_BYTES_MIN, RATE_BYTES_MAX) if is_bytes else (1, RATE_APPENDS_MAX)
        text = self._text(node, what)
        found = _RATE.fullmatch(text)
        rate = int(found[1]) * BYTE_UNITS.get(found[2], 1) if found else 0
        if found is None or bool(found[2]) is not is_bytes or not low <= rate <= high:
            bounds = f"from {shown_limit(name, low)} to {shown_limit(name, high)}"
            example = "20MiB/s" if is_bytes else "5000/s"
            self._fail(node, f"{what} is {text!r:.100}", f"expected {bounds}, as {example}")
        return rate

    def _grants(self, node: yaml.Node, roles: Mapping[str, Role]) -> tuple[Grant, ...]:
        grants = []
        for text, (key, value) in self._fields(node, "grants").items():
            names = self._texts(value, f"the grant to {text:.300}")
            given = tuple(roles[self._choice(each, "role", roles)] for each in names)
            grants.append(Grant(self._pattern(key, text), given))
        return tuple(grants)

    def _break_glass(self, fields: Fields) -> tuple[Pattern, ...]:
        if "break_glass" not in fields:
            return ()
        nodes = self._texts(fields["break_glass"][1], "break_glass")
        return tuple(self._pattern(each, each.value) for each in nodes)

    def _cases(self, fields: Fields) -> Iterator[Case]:
        if "cases" not in fields:
            return
        keys = ("principal", "verb", "partition", "header", "expect")
        for node in self._items(fields["cases"][1], "cases"):
            case = self._fields(node, "a case", keys)
            self._require(node, case, ("principal", "verb", "expect"), "a case")
            partition = header = None
            if "partition" in case:
                node_of = case["partition"][1]
                partition = self._number(node_of, "partition", 0, PARTITIONS_MAX - 1)
            if "header" in case:
                header = self._number(case["header"][1], "header", HEADER_MIN, HEADER_MAX)
            verb = VERBS[self._choice(case["verb"][1], "verb", VERBS)]
            if header is not None and verb is not Verb.APPEND:
                self._fail(node, f"a header with {verb.value}", "only appends have a header")
            principal = self._text(case["principal"][1], "principal")
            if not is_principal(principal):
                self._fail(node, f"{principal!r:.300} names no principal", PATTERN_EXPECTED)
            yield Case(
                principal,
                verb,
                None if partition is None else PartitionId(partition),
                header,
                _WORDS[self._choice(case["expect"][1], "expect", _WORDS)],
                _line(node),
            )

    # Values

    def _pattern(self, node: yaml.Node, text: str) -> Pattern:
        try:
            return parse_pattern(text)
        except ValueError as error:
            self._fail(node, f"{text!r:.300} names no principal", str(error))

    def _ranges(
        self, node: yaml.Node, what: str, low: int, high: int
    ) -> tuple[NumberRange, ...] | None:
        """Return ranges that ascend and do not overlap; None: all."""
        if isinstance(node, yaml.ScalarNode):
            nodes: Sequence[yaml.Node] = [node]
            if node.value == _ALL:
                return None
        else:
            nodes = self._items(node, what)
        ranges = sorted(self._range(each, what, low, high) for each in nodes)
        for before, after in pairwise(ranges):
            if after.first <= before.last:
                self._fail(node, f"{what}: {before} and {after} overlap", "write each number once")
        return tuple(ranges)

    def _range(self, node: yaml.Node, what: str, low: int, high: int) -> NumberRange:
        found = _RANGE.fullmatch(self._text(node, what))
        expected = f"expected numbers from {low} to {high}, as 3 or 0-7 or -5..5, or {_ALL}"
        if found is None:
            self._fail(node, f"{what}: {node.value!r:.100}", expected)
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if not low <= first <= last <= high:
            self._fail(node, f"{what}: {node.value!r:.100}", expected)
        return NumberRange(first, last)

    def _number(self, node: yaml.Node, what: str, low: int, high: int) -> int:
        text = self._text(node, what)
        if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
            self._fail(
                node, f"{what} is {text!r:.100}", f"expected a whole number from {low} to {high}"
            )
        return int(text)

    def _choice(self, node: yaml.Node, what: str, choices: Collection[str]) -> str:
        text = self._text(node, what)
        if text not in choices:
            near = difflib.get_close_matches(text[:64], choices, 1)
            hint = f"did you mean {near[0]}" if near else f"expected {', '.join(choices):.300}"
            self._fail(node, f"unknown {what} {text!r:.100}", hint)
        return text

    def _text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            self._fail(node, f"{what}: {_kind(node)}", "expected one value")
        value: str = node.value
        return value

    def _texts(self, node: yaml.Node, what: str) -> list[yaml.ScalarNode]:
        """Return the values of a list that is not empty and has none twice."""
        seen: list[yaml.ScalarNode] = []
        values = set()
        for each in self._items(node, what):
            text = self._text(each, what)
            if text in values:
                self._fail(each, f"{what}: {text!r:.100} occurs twice", "keep one")
            assert isinstance(each, yaml.ScalarNode)
            values.add(text)
            seen.append(each)
        return seen

    def _items(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, f"{what}: {_kind(node)}", "expected a list, [a, b]")
        if not node.value:
            self._fail(node, f"{what}: an empty list", "remove it, or say what belongs in it")
        return list(node.value)

    def _fields(self, node: yaml.Node, what: str, known: Sequence[str] | None = None) -> Fields:
        """Return the keys of a mapping; `known` None: any name is one."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{what}: {_kind(node)}", "expected keys and values")
        fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self._text(key, f"a key of {what}")
            if name in fields:
                self._fail(key, f"{what}: key {name!r:.300} occurs twice", "keep one")
            if known is not None:
                self._choice(key, f"key of {what}:", known)
            fields[name] = (key, value)
        if not fields:
            self._fail(node, f"{what}: nothing in it", "say what belongs in it")
        return fields

    def _require(self, node: yaml.Node, fields: Fields, names: Sequence[str], what: str) -> None:
        for name in names:
            if name not in fields:
                self._fail(node, f"{what} has no {name}", f"add {name}: ...")

    def _fail(self, node: yaml.Node, problem: str, remedy: str) -> NoReturn:
        raise ConfigurationError(f"{self._path}, line {_line(node)}: {problem}; {remedy}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "keys and values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "no value" if not node.value else "a single value"
