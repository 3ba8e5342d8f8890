"""A second, slower answer to what a policy allows: every right is listed, and looked up in a set.

Reads the file's values with YAML's own types, and shares nothing with the product.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import yaml

NONE = None
Question = tuple[str, str, int | None, int | None]


class Universe(NamedTuple):
    principals: Sequence[str]
    verbs: Sequence[str]
    partitions: Sequence[int | None]
    headers: Sequence[int | None]


def rights(text: str, universe: Universe) -> set[Question]:
    """Return all questions of the universe that the policy answers with yes."""
    file = yaml.safe_load(text)
    everything = set(product(*universe))
    return {each for name in universe.principals for each in _of(name, file, everything)}


def _of(name: str, file: dict[str, Any], everything: set[Question]) -> set[Question]:
    own = {each for each in everything if each[0] == name}
    if any(_is_like(pattern, name) for pattern in file.get("break_glass", [])):
        return own
    given = [roles for pattern, roles in file["grants"].items() if _is_like(pattern, name)]
    if not given:
        return own if file["default"] == "allow" else set()
    listed = {role for roles in given for role in roles}
    return {q for role in listed for q in own if _covers(file["roles"][role], q)}


def _covers(role: dict[str, Any], question: Question) -> bool:
    _, verb, partition, header = question
    places = {NONE, *_numbers(role.get("partitions", "all"), range(100))}
    headers = {NONE, *_numbers(role.get("headers", "all"), range(-100, 101))}
    in_place = verb in role["verbs"] and partition in places
    return verb == "connect" or (in_place and (verb != "append" or header in headers))


def _numbers(given: Any, all_of_them: range) -> Iterator[int]:
    for part in given if isinstance(given, list) else [given]:
        low, *high = re.findall(r"(?<![0-9])-?[0-9]+", str(part)) or ["all"]
        yield from all_of_them if low == "all" else range(int(low), int((high or [low])[0]) + 1)


def _is_like(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None
