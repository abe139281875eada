"""The grammar of an answer: one call of several tools, or one value of a schema.

A thought may come before the call, or free text instead of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.record import CheckedStruct
from ferrule.schema.nodes import Schema, escape_step, is_object, map_children
from ferrule.values.calls.call import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.schema.lowering.lower import LoweredSchema

OPENER = "<tool_call>"
"""The text that announces a call in prompts and answers, unless a `CallForm` names another."""
_LONGEST_INTENTION = 400
_COMPACT = {"whitespace_flexible": False}
"""No whitespace between JSON tokens: a model that may write spaces could write nothing else."""


class CallForm(Struct, metaclass=CheckedStruct, frozen=True, kw_only=True):
    """The form of a constrained answer: a thought, the call and the text around it.

    Lengths are in characters.
    """

    call: bool = True
    """Whether the answer must be a call; otherwise it may be free text."""
    thought_chars: int = 0
    """The most characters of a thought before the call.

    With 0 there is none, and the answer is only the JSON of the call.
    """
    opener: str = OPENER
    """Comes before the call, after the thought.

    A special token if the vocabulary has it, else text. Thought and free text cannot contain it.
    """
    closer: str = ""
    """Comes after the call."""
    text_chars: int = 4_000
    """The most characters of free text, if the answer need not be a call."""
    intention: bool = True
    """Whether a call begins with the model's reason for it."""

    @property
    def prose_chars(self) -> int:
        """The most characters before the opener; 0 if the answer is only the call."""
        if self.call:
            return self.thought_chars
        return max(self.thought_chars, self.text_chars)

    @property
    def most_bytes(self) -> int:
        """The most bytes around the call."""
        return 4 * self.prose_chars + len(self.opener.encode()) + len(self.closer.encode())


class Grammar(Struct, frozen=True):
    """The grammar that the engine compiles, and the schema and form that it is made from."""

    lark: str
    """The grammar in llguidance's notation, which servers with llguidance also read."""
    schema: Schema
    """The schema of a call, or of the value. Shared; do not change it."""
    form: CallForm
    opener_id: int | None = None
    """The id of the special token that is the opener.

    None if the opener is text, or there is none.
    """


class Answer(Struct, frozen=True):
    """A parsed and validated answer."""

    thought: str = ""
    """The text before a call."""
    text: str = ""
    """Free text instead of a call."""
    calls: tuple[ToolCall, ...] = ()
    value: Any = None
    """The value, for a constraint of one schema."""


def call_union(lowered: Mapping[str, LoweredSchema], *, intention: bool) -> Schema:
    """One schema for a call of any of these tools."""
    calls: list[Schema] = []
    definitions: Schema = {}
    for index, (name, tool) in enumerate(lowered.items()):
        arguments, definitions_of_tool = numbered(tool.schema, f"{index}.")
        definitions |= definitions_of_tool
        properties: Schema = {}
        if intention:
            properties["intention"] = {
                "type": "string",
                "minLength": 1,
                "maxLength": _LONGEST_INTENTION,
            }
        properties["name"] = {"enum": [name]}
        properties["arguments"] = arguments
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls, "$defs": definitions}


def numbered(schema: Schema, prefix: str = "") -> tuple[Schema, Schema]:
    """The schema without its definitions, and the definitions with numbers as names.

    The engine reads the names of definitions as parts of a URI, and a union has those of several
    schemas. A schema that refers to itself as a whole (`#`) becomes a definition, too.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    new_names = {"#": f"{prefix}root"}
    for index, name in enumerate(definitions):
        new_names[f"#/$defs/{escape_step(name)}"] = f"{prefix}{index}"
    refers_to_root = False

    def renamed(node: Any) -> Any:
        nonlocal refers_to_root
        copy = map_children(node, renamed)
        if is_object(copy) and isinstance(copy.get("$ref"), str):
            refers_to_root = refers_to_root or copy["$ref"] == "#"
            copy["$ref"] = f"#/$defs/{new_names[copy['$ref']]}"
        return copy

    root = renamed({key: value for key, value in schema.items() if key != "$defs"})
    new_definitions: Schema = {}
    for name, definition in definitions.items():
        new_definitions[new_names[f"#/$defs/{escape_step(name)}"]] = renamed(definition)
    if not refers_to_root:
        return root, new_definitions
    new_definitions[new_names["#"]] = root
    return {"$ref": f"#/$defs/{new_names['#']}"}, new_definitions


def grammar_of(schema: Schema, form: CallForm, opener_id: int | None = None) -> Grammar:
    """The grammar of an answer, from the schema of a call or of a value."""
    body, definitions = numbered(schema)
    body = {**body, "$defs": definitions, "x-guidance": _COMPACT}
    lines = ["%llguidance {}", *_start_rules(form, opener_id), f"call: %json {json_text(body)}", ""]
    return Grammar("\n".join(lines), schema, form, opener_id)


def _start_rules(form: CallForm, opener_id: int | None) -> list[str]:
    """The rules of the call's surroundings: thought or free text, opener, closer."""
    if form.closer:
        closer = f" {json_text(form.closer)}"
    else:
        closer = ""
    if not form.prose_chars:
        return [f"start: call{closer}"]
    prose = f"/(?s:.{{0,{form.prose_chars}}})/"
    if opener_id is not None:
        # The opener is one token, but its characters could also be spelled out.
        escaped = re.escape(form.opener).replace("/", r"\/")
        call = f"PROSE <[{opener_id}]> call{closer}"
        rules = [f"PROSE: {prose} & ~/(?s:.*){escaped}(?s:.*)/"]
    else:
        # Lazy (`suffix`): a greedy match would run past the opener, which the text must not
        # contain.
        call = f"before call{closer}"
        rules = [f"before[suffix={json_text(form.opener)}]: PROSE", f"PROSE: {prose}"]
    if form.call:
        return [f"start: {call}", *rules]
    return [f"start: {call} | PROSE", *rules]
