"""YAML of files that people write: plain values, no key twice, no alias.

Owns the loader that all such files are read with. Knows no key, and opens no file.
"""

from __future__ import annotations

from typing import Any

import yaml


class PlainLoader(yaml.SafeLoader):
    """A safe loader that allows no key twice and no alias.

    YAML's safe loader lets the last of two equal keys win silently, and expands aliases, of which a
    few nested lines stand for more values than any memory holds.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="an alias (*name) is not allowed; write the value out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError):
            # Python has an error of its own for the 45th of a month and for 5,000 digits.
            raise yaml.MarkedYAMLError(
                problem="a value is not of the form that it seems to have, such as a date or a"
                " number; put text in quotes",
                problem_mark=node.start_mark,
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem=f"key {key_node.value!r} occurs twice; keep one",
                    problem_mark=key_node.start_mark,
                )
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)
