"""The offered tools by the names that a text may use.

A tool is found by its name, by that name with other dots, underscores or hyphens, and after the
prefixes that chat templates write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from ferrule.errors import ToolCallError, shown

_PREFIX = re.compile(
    r"(?:functions?|api|default_api|tools?|tool_use|tool_code|tool_api|multi_tool_use)[./:]"
)
_ESCAPED = re.compile(r"_(?:dot|x[0-9a-f]{2,6})_")
_ODD = re.compile(r"[\W_]+")
_COUNTED = re.compile(r":\d+$")
_MOST_LOOKED_UP = 512


class Offer(NamedTuple):
    """The parts of a tool's declaration that reading a call needs."""

    name: str
    properties: dict[str, Any]
    """Parameter name to its schema, in the order of the declaration."""
    required: frozenset[str]
    closed: bool
    """Whether it accepts no arguments other than `properties`."""

    def fits(self, args: Mapping[str, Any]) -> bool:
        """Whether the names of the arguments fit. The tool checks their values later."""
        if not self.required <= args.keys():
            return False
        return not self.closed or args.keys() <= self.properties.keys()


class OfferedTools:
    """Tools by the names that a text may use."""

    __slots__ = ("_exact", "_folded", "_looked_up", "spaced")

    def __init__(self, tools: Iterable[Any]) -> None:
        self._exact: dict[str, Offer] = {}
        self._folded: dict[str, Offer | None] = {}
        """None for a name that means several tools."""
        self._looked_up: dict[str, Offer | None] = {}
        self.spaced = False
        """Whether a name contains a space."""
        for tool in tools:
            declared, offer = _offer(tool)
            self.spaced = self.spaced or " " in declared
            for name in {declared, offer.name}:
                self._exact.setdefault(name, offer)
                folded = _folded(name)
                other = self._folded.setdefault(folded, offer)
                if other is None or other.name != offer.name:
                    self._folded[folded] = None

    def __bool__(self) -> bool:
        return bool(self._exact)

    def get(self, written: str) -> Offer | None:
        """The tool that a name in a text stands for; None if there is none, or more than one."""
        offer = self._exact.get(written)
        if offer is not None:
            return offer
        if written not in self._looked_up:
            if len(self._looked_up) >= _MOST_LOOKED_UP:
                self._looked_up.clear()
            self._looked_up[written] = self._look_up(written)
        return self._looked_up[written]

    def mentioned(self, text: str) -> Offer | None:
        """The first tool whose name is in a text, in any spelling; None if there is none."""
        words = _folded(text)
        for name, offer in self._exact.items():
            if _folded(name) in words:
                return offer
        return None

    def _look_up(self, written: str) -> Offer | None:
        name = written.replace("\\", "").strip("\"'`* \t\r\n")
        for _ in range(3):
            offer = self._exact.get(name) or self._folded.get(_folded(name))
            if offer is not None:
                return offer
            prefix = _PREFIX.match(name)
            half = len(name) // 2
            if prefix is not None:
                name = name[prefix.end() :]
            elif name.endswith(".call"):
                name = name.removesuffix(".call")
            elif name[:half] == name[half + 1 :]:  # `f.f`
                name = name[:half]
            else:
                name = _COUNTED.sub("", name)
        return None


def offers_of(tools: Any) -> OfferedTools:
    """The offers of a list of tools, cached for `Declarations`.

    Raises `ToolCallError` for anything that is not a tool or a declaration.
    """
    cached_value = getattr(tools, "cached_value", None)  # `values.calls` imports this module
    if cached_value is not None:
        return cached_value(OfferedTools, lambda: OfferedTools(tools))
    is_one = isinstance(tools, Mapping) or hasattr(tools, "declaration")
    if is_one or not isinstance(tools, Iterable):
        tools = [tools]
    return OfferedTools(cast("Iterable[Any]", tools))


def _offer(tool: Any) -> tuple[str, Offer]:
    """The declared name of a tool, and the offer under its own name."""
    own_name: Any = getattr(tool, "name", "")
    declaration = getattr(tool, "declaration", None) if own_name else tool
    function = _mapping(declaration)
    function = _mapping(function.get("function", function))
    declared: Any = function.get("name") or own_name
    name = own_name or declared
    if not isinstance(declared, str) or not isinstance(name, str) or not declared:
        msg = (
            "Pass tools or their declarations to find calls; "
            f"found {shown(tool)}. Make a function a `Tool(...)`."
        )
        raise ToolCallError("invalid_tool_spec", msg, raw=tool)
    schema = function.get("parameters") or function.get("input_schema")
    if not isinstance(schema, Mapping):
        return declared, Offer(name, {}, frozenset(), closed=False)
    parameters = _mapping(schema)
    required = parameters.get("required")
    names: list[Any] = []
    if isinstance(required, (list, tuple)):
        names = [name for name in cast("list[Any]", required) if isinstance(name, str)]
    is_closed = not parameters.get("additionalProperties")
    properties = dict(_mapping(parameters.get("properties")))
    return declared, Offer(name, properties, frozenset(names), closed=is_closed)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _folded(name: str) -> str:
    return _ODD.sub("_", _ESCAPED.sub("_", name)).strip("_").casefold()
