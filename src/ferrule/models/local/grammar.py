"""The grammar of an answer: one call of several tools, after a thought or instead of free text, or one value of a schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.schema.nodes import Schema, escape_step, is_object, map_children

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.schema.lowering.lower import LoweredSchema
    from ferrule.values.calls.call import ToolCall

OPENER = "<tool_call>"
"""The text that announces a call in prompts and answers, unless a `CallForm` names another."""
_LONGEST_INTENTION = 400
_COMPACT = {"whitespace_flexible": False}
"""No whitespace between JSON tokens: a model that may write spaces could write nothing else."""


class CallForm(Struct, frozen=True, kw_only=True):
    """The form of a constrained answer: a thought, the call and the text around it. Lengths are in characters."""

    call: bool = True
    """Whether the answer must be a call; otherwise it may be free text."""
    thought_chars: int = 0
    """The most characters of a thought before the call; with 0 there is none, and the answer is only the JSON of the call."""
    opener: str = OPENER
    """Comes before the call, after the thought: a special token if the vocabulary has it, else text. Thought and free text exclude it."""
    closer: str = ""
    """Comes after the call."""
    text_chars: int = 4_000
    """The most characters of free text, if the answer need not be a call."""
    intention: bool = True
    """Whether a call begins with the model's reason for it."""

    @property
    def prose_chars(self) -> int:
        """The most characters before the opener; 0 if the answer is only the call."""
        return self.thought_chars if self.call else max(self.thought_chars, self.text_chars)

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
    """The id of the special token that is the opener; None if the opener is text, or there is none."""


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
    for i, (name, each) in enumerate(lowered.items()):
        arguments, own = numbered(each.schema, f"{i}.")
        definitions |= own
        properties: Schema = (
            {"intention": {"type": "string", "minLength": 1, "maxLength": _LONGEST_INTENTION}}
            if intention
            else {}
        )
        properties |= {"name": {"enum": [name]}, "arguments": arguments}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": [*properties],
                "additionalProperties": False,
            },
        )
    return {"anyOf": calls, "$defs": definitions}


def numbered(schema: Schema, prefix: str = "") -> tuple[Schema, Schema]:
    """The schema without its definitions, and the definitions with numbers as names, because the engine reads names as parts of a URI."""
    own: dict[str, Any] = schema.get("$defs", {})
    numbers = {
        "": f"{prefix}root",
        **{escape_step(name): f"{prefix}{i}" for i, name in enumerate(own)},
    }
    to_root: list[Schema] = []

    def put(each: Any) -> Any:
        made = map_children(each, put)
        if is_object(made) and isinstance(made.get("$ref"), str):
            if made["$ref"] == "#":
                to_root.append(made)
            made["$ref"] = (
                f"#/$defs/{numbers[made['$ref'].removeprefix('#').removeprefix('/$defs/')]}"
            )
        return made

    made = put({key: value for key, value in schema.items() if key != "$defs"})
    definitions = {numbers[escape_step(name)]: put(each) for name, each in own.items()}
    return (
        ({"$ref": f"#/$defs/{numbers['']}"}, {**definitions, numbers[""]: made})
        if to_root
        else (made, definitions)
    )


def grammar_of(schema: Schema, form: CallForm, opener_id: int | None = None) -> Grammar:
    """The grammar of an answer, from the schema of a call or of a value."""
    body, definitions = numbered(schema)
    lines = ["%llguidance {}"]
    opener = f"<[{opener_id}]>" if opener_id is not None else json_text(form.opener)
    closer = f" {json_text(form.closer)}" if form.closer else ""
    if not form.prose_chars:
        lines.append(f"start: call{closer}")
    else:
        prose = f"/(?s:.{{0,{form.prose_chars}}})/"
        if opener_id is not None:
            spelled = f"~/(?s:.*){re.escape(form.opener).replace('/', chr(92) + '/')}(?s:.*)/"
            called, before = f"PROSE {opener} call{closer}", f"PROSE: {prose} & {spelled}"
        else:
            # Lazy (`suffix`): a greedy match would run past the opener, which the text must not
            # contain.
            called, before = (
                f"before call{closer}",
                f"before[suffix={opener}]: PROSE\nPROSE: {prose}",
            )
        lines += [f"start: {called}" if form.call else f"start: {called} | PROSE", before]
    lines.append(f"call: %json {json_text({**body, '$defs': definitions, 'x-guidance': _COMPACT})}")
    return Grammar("\n".join([*lines, ""]), schema, form, opener_id)
