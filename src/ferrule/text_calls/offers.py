"""The offered tools by the names that a text may use, and drafts of calls.

A tool is found by its name, by that name with other dots, underscores or hyphens, and after the
prefixes that chat templates write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from ferrule.errors import ToolCallError, shown
from ferrule.text_calls.shapes import CallFault

_PREFIX = re.compile(
    r"(?:functions?|api|default_api|tools?|tool_use|tool_code|tool_api|multi_tool_use)[./:]"
)
_ESCAPED = re.compile(r"_(?:dot|x[0-9a-f]{2,6})_")
_ODD = re.compile(r"[\W_]+")
_MOST_LOOKED_UP = 512
COST_OF_CALL = 200
"""What a call costs of the budget: an answer has tens, not ten thousands."""
_COUNTED = re.compile(r":\d+$")


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
        return self.required <= args.keys() and (
            not self.closed or args.keys() <= self.properties.keys()
        )


class Draft(NamedTuple):
    """A call in a text, not yet a `ToolCall`."""

    offer: Offer
    args: dict[str, Any]
    repairs: tuple[str, ...] = ()
    call_id: str | None = None
    intention: str | None = None
    fault: CallFault | None = None


class Effort:
    """A budget, in characters, for reading positions that turn out not to be calls.

    It bounds the time for hostile texts.
    """

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = 200_000 + size

    def spend(self, characters: int) -> bool:
        """Spend some; returns False if nothing is left."""
        self.left -= characters + 16
        return self.left > 0


class OfferedTools:
    """Tools by the names that a text may use."""

    __slots__ = ("_exact", "_folded", "_looked_up", "spaced")

    def __init__(self, tools: Iterable[Any]) -> None:
        self._exact: dict[str, Offer] = {}
        self._folded: dict[str, Offer | None] = {}
        self._looked_up: dict[str, Offer | None] = {}
        self.spaced = False
        """Whether a name contains a space."""
        for tool in tools:
            name, offer = _offer(tool)
            self.spaced = self.spaced or " " in name
            for each in {name, offer.name}:
                self._exact.setdefault(each, offer)
                folded = _folded(each)
                other = self._folded.get(folded, offer)
                self._folded[folded] = (
                    offer if other is not None and other.name == offer.name else None
                )  # ambiguous: neither

    def __bool__(self) -> bool:
        return bool(self._exact)

    def get(self, written: str) -> Offer | None:
        """The tool that a name in a text stands for; None if there is none, or more than one."""
        found = self._exact.get(written)
        if found is not None:
            return found
        if written not in self._looked_up:
            if len(self._looked_up) >= _MOST_LOOKED_UP:
                self._looked_up.clear()
            self._looked_up[written] = self._look_up(written)
        return self._looked_up[written]

    def _look_up(self, written: str) -> Offer | None:
        plain = written.replace("\\", "").strip("\"'`* \t\r\n")
        for _ in range(3):
            found = self._exact.get(plain) or self._folded.get(_folded(plain))
            if found is not None:
                return found
            prefix = _PREFIX.match(plain)
            if prefix is not None:
                plain = plain[prefix.end() :]
            elif plain.endswith(".call"):
                plain = plain[:-5]
            elif plain[: len(plain) // 2] == plain[len(plain) // 2 + 1 :]:  # `f.f`
                plain = plain[: len(plain) // 2]
            else:
                plain = _COUNTED.sub("", plain)
        return None


def offers_of(tools: Any) -> OfferedTools:
    """The offers of a list of tools, cached for `Declarations`.

    Raises `ToolCallError` for anything that is not a tool or a declaration.
    """
    cached_value = getattr(tools, "cached_value", None)  # `values.calls` imports this module
    if cached_value is not None:
        return cached_value(OfferedTools, lambda: OfferedTools(tools))
    is_one = (
        isinstance(tools, Mapping)
        or hasattr(tools, "declaration")
        or not isinstance(tools, Iterable)
    )
    return OfferedTools(cast("Iterable[Any]", (tools,) if is_one else tools))


def _offer(tool: Any) -> tuple[str, Offer]:
    """The declared name of a tool, and the offer under its own name."""
    own = "" if isinstance(tool, Mapping) else getattr(tool, "name", "")
    declaration: Any = (
        cast("Any", tool) if not own else getattr(cast("Any", tool), "declaration", None)
    )
    body: Any = (
        cast("Mapping[str, Any]", declaration).get("function", declaration)
        if isinstance(declaration, Mapping)
        else {}
    )
    found = cast("Mapping[str, Any]", body if isinstance(body, Mapping) else {})
    declared = found.get("name") or own
    schema: Any = found.get("parameters") or found.get("input_schema")
    name = own if isinstance(own, str) and own else declared
    if not isinstance(declared, str) or not isinstance(name, str) or not declared:
        msg = (
            "Pass tools or their declarations to find calls; "
            f"found {shown(cast('Any', tool))}. Make a function a `Tool(...)`."
        )
        raise ToolCallError("invalid_tool_spec", msg, raw=cast("Any", tool))
    if not isinstance(schema, Mapping):
        return declared, Offer(name, {}, frozenset(), closed=False)
    parameters = cast("Mapping[str, Any]", schema)
    properties: Any = parameters.get("properties")
    required: Any = parameters.get("required")
    names = (
        [each for each in cast("list[Any]", required) if isinstance(each, str)]
        if isinstance(required, (list, tuple))
        else []
    )
    known = dict(cast("Mapping[str, Any]", properties)) if isinstance(properties, Mapping) else {}
    return declared, Offer(
        name, known, frozenset(names), closed=not parameters.get("additionalProperties")
    )


def _folded(name: str) -> str:
    return _ODD.sub("_", _ESCAPED.sub("_", name)).strip("_").casefold()


def add_repairs(draft: Draft, repairs: tuple[str, ...]) -> Draft:
    """The draft with the repairs of the surrounding text, which come first."""
    return draft._replace(repairs=(*repairs, *draft.repairs)) if repairs else draft


def faulty(offer: Offer, reason: str, raw: str) -> Draft:
    """A call that cannot run, with the reason for the model and the text that it wrote."""
    return Draft(offer, {}, fault=CallFault("invalid_tool_call_arguments", reason, raw))
