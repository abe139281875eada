"""Writes calls in the dialects of the table, from the templates of its rows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ferrule.text_calls.dialects import DIALECTS, UNMARKED

if TYPE_CHECKING:
    from ferrule.text_calls.dialects import TextForm

ROWS = {row.name: row for row in (*DIALECTS, *UNMARKED)}


def declared(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
TOOLS = [
    declared("find_book", {"title": TEXT, "year": {"type": "integer"}}, ["title"]),
    declared("write_note", {"path": TEXT, "text": TEXT}, ["path", "text"]),
    declared("run_shell", {"command": TEXT}, ["command"]),
    declared("remove_all", {}, []),
]


def write(row: TextForm, name: str, args: dict[str, Any]) -> str:
    """One call, as a model of the dialect writes it."""
    arguments = "".join(
        row.argument.replace("{key}", key)
        .replace("{value}", value if isinstance(value, str) else json.dumps(value))
        .replace("{type}", "string" if isinstance(value, str) else "integer")
        for key, value in args.items()
    )
    slots = {
        "calls": json.dumps({"name": name, "arguments": args}, ensure_ascii=False),
        "name": name,
        "json": json.dumps(args, ensure_ascii=False),
        "id": "abc123",
        "arguments": arguments,
        "python": f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})",
        "strings": f"{{{','.join(f'{key}:{_string(value)}' for key, value in args.items())}}}",
        "line": next(iter(args.values()), ""),
    }
    return re.sub(r"\{(\w+)\}", lambda slot: str(slots[slot[1]]), row.call)


def _string(value: Any) -> str:
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)
