"""A JSON Schema and values as fields of an HTML form, and a sent form as values again.

Fields are text, numbers, choices, lists of scalars and nested objects. Anything else is one field
of JSON text. An argument whose field is emptied is removed, so no field is of a type that a browser
empties by itself, as it does with a date, or a number of many digits, that it cannot show.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote

from msgspec import Struct, field

from ferrule.approval.call_view import is_same, whole_number
from ferrule.encoding.encode import is_masked
from ferrule.encoding.safe_text import conceal, reveal
from ferrule.encoding.stored import parse_json
from ferrule.schema.nodes import Schema, is_list, is_object, members, resolve_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


FieldKind = Literal[
    "text", "secret", "number", "boolean", "choice", "list", "object", "json", "fixed"
]
"""`fixed`: too long for a field, so it cannot be changed."""
_LONGEST = 20_000
_DEEPEST = 4
_MOST_WORDS = 60
_SCALARS = ("string", "number", "integer", "boolean")  # no set: a `type` may be a list
_EMPTY_IS_A_VALUE = frozenset({"text", "list"})
_MISSING: Any = object()
_STARS = "**********"


class Field(Struct, kw_only=True):
    """One field of a form."""

    path: tuple[str, ...]
    kind: FieldKind = "json"
    schema: Schema
    value: Any = _MISSING
    text: str = ""
    """The value as text, as the field shows it."""
    is_null: bool = False
    nullable: bool = False
    required: bool = False
    is_left_out: bool = False
    """Whether a person left the argument out."""
    is_edited: bool = False
    """Whether a person typed another value, or left the argument out."""
    options: tuple[tuple[str, str], ...] = ()
    """The choices: as JSON, and in words."""
    fields: list[Field] = field(default_factory=list["Field"])
    """Those of an object."""
    problem: str = ""

    @property
    def name(self) -> str:
        """Its name in the sent form: browsers change line breaks in a name, so it has none."""
        parts = [quote(part, safe="", errors="surrogatepass") for part in self.path]
        return "v:" + "/".join(parts)

    @property
    def label(self) -> str:
        """The name of the argument."""
        return self.path[-1]

    @property
    def hint(self) -> str:
        """The description of the argument."""
        return str(self.schema.get("description", ""))

    @property
    def can_be_left_out(self) -> bool:
        """Whether it needs a way to leave the argument out, because its empty text is a value."""
        is_there = self.value is not _MISSING
        return is_there and not self.required and self.kind in _EMPTY_IS_A_VALUE

    @property
    def hides_value(self) -> bool:
        """Whether there is a secret that the field does not show."""
        return self.kind == "secret" and self.value is not _MISSING and self.value is not None

    def is_default(self, value: Any) -> bool:
        """Whether a value is the default of an argument that was left out."""
        if self.value is not _MISSING or "default" not in self.schema:
            return False
        return is_same(self.schema["default"], value)

    def leaves(self) -> Iterator[Field]:
        """The fields that hold a value of their own."""
        if self.kind != "object":
            yield self
        for inner in self.fields:
            yield from inner.leaves()


class HTMLForm:
    """The fields of one object, such as the arguments of a call: its values first, in order.

    Only the schema of a Python type marks a secret (`masks`): a server's could hide any value.
    """

    def __init__(self, schema: Schema, values: Mapping[str, Any], *, masks: bool = True) -> None:
        self._schema = schema
        self._values = dict(values)
        self.masks = masks
        properties = members(schema, "properties")
        required = _list(schema.get("required"))
        reader = _FieldMaker(schema, masks=masks)
        self.fields = [
            reader.make(
                properties.get(name, {}),
                self._values.get(name, _MISSING),
                (name,),
                is_required=name in required,
            )
            for name in {**self._values, **properties}
        ]
        self.problems: list[str] = []
        """Problems that belong to no single field."""

    def read(self, sent: Mapping[str, str]) -> dict[str, Any] | None:
        """The values of a sent form; None if one does not fit.

        Then the fields hold what was typed, and the problems.
        """
        values = _read_all(self.fields, sent)
        if not self._has_problem():
            self._check(values)
        if self._has_problem():
            return None
        return values

    @property
    def is_edited(self) -> bool:
        """Whether a sent form, which was read, differs from what was shown."""
        return any(leaf.is_edited for leaf in self._leaves())

    def edits(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that differ from those that were shown."""
        shown = dict(self._values)
        for top in self.fields:
            if top.is_default(values.get(top.label)):
                shown[top.label] = top.schema["default"]
        return {
            name: value
            for name, value in values.items()
            if name not in shown or not is_same(shown[name], value)
        }

    def removed(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """The arguments that were shown and that the values leave out."""
        return tuple(name for name in self._values if name not in values)

    def changed(
        self, args: Mapping[str, Any], removed: Iterable[str] = ()
    ) -> list[tuple[str, str, str]]:
        """Changed values in a few words: name, new, old.

        Both are empty for a secret; a list or an object has no short form.
        """
        secrets = self._secrets
        changes: list[tuple[str, str, str]] = []
        for name, value in args.items():
            if name in secrets:
                changes.append((name, "", ""))
            else:
                before = _few_words(self._values.get(name, _MISSING))
                changes.append((name, _few_words(value), before))
        changes += [(name, "left out", _few_words(self._values.get(name))) for name in removed]
        return changes

    def shown(self, args: Mapping[str, Any], removed: Iterable[str] = ()) -> dict[str, Any]:
        """All values for a reader, with these in place of the ones shown before.

        A secret becomes stars.
        """
        secrets = self._secrets
        values = dict(self._values)
        for name, value in args.items():
            values[name] = _STARS if name in secrets else value
        for name in removed:
            values.pop(name, None)
        for name, value in values.items():
            if value is None or isinstance(value, bool):
                values[name] = _few_words(value)
        return values

    @property
    def _secrets(self) -> set[str]:
        """The names of values that are a secret, or hold one."""
        return {
            top.label for top in self.fields if any(leaf.kind == "secret" for leaf in top.leaves())
        }

    def _leaves(self) -> Iterator[Field]:
        for top in self.fields:
            yield from top.leaves()

    def _has_problem(self) -> bool:
        return bool(self.problems) or any(leaf.problem for leaf in self._leaves())

    def _check(self, values: dict[str, Any]) -> None:
        from ferrule.schema.explain import SchemaCheck  # late: only a form that is sent needs it

        leaves = sorted(self._leaves(), key=lambda leaf: -len(leaf.path))
        for problem in SchemaCheck(self._schema)(values):
            path, _, text = problem.partition(": ")
            for leaf in leaves:
                if f"{path}.".startswith(".".join(leaf.path) + ".") and not leaf.problem:
                    leaf.problem = text or problem
                    break
            else:
                self.problems.append(problem)


class _FieldMaker:
    """Makes the fields of one schema."""

    def __init__(self, root: Schema, *, masks: bool) -> None:
        self._root = root
        self._masks = masks

    def make(self, schema: Any, value: Any, path: tuple[str, ...], *, is_required: bool) -> Field:
        """The field of one value, which may be missing."""
        node, nullable = self._node(schema)
        choices = _choices(node)
        shown = value
        if value is _MISSING:
            shown = node.get("default", _MISSING)
        made = Field(
            path=path,
            schema=node,
            value=value,
            nullable=nullable or None in choices,
            required=is_required,
        )
        made.is_null = made.nullable and shown is None
        self._shape(made, shown, choices)
        if len(made.text) > _LONGEST:
            made.kind = "fixed"
        return made

    def _shape(self, made: Field, shown: Any, choices: list[Any]) -> None:
        """Give a field its kind and its text."""
        node, kind = made.schema, made.schema.get("type")
        is_empty = shown is _MISSING or shown is None
        if choices and (is_empty or any(is_same(choice, shown) for choice in choices)):
            made.kind = "choice"
            made.options = tuple(
                (json.dumps(choice), _choice_words(choice))
                for choice in choices
                if choice is not None
            )
            if not is_empty:
                made.text = next(json.dumps(choice) for choice in choices if is_same(choice, shown))
            return
        if kind == "array" and self._make_list(made, shown):
            return
        if kind == "object" and self._make_object(made, shown):
            return
        is_secret = self._masks and node.get("format") == "password"
        is_text = kind == "string" or (kind is None and isinstance(shown, str))
        is_number = isinstance(shown, int | float) and not isinstance(shown, bool)
        if is_secret and (is_empty or isinstance(shown, str)):
            made.kind = "secret"
        elif is_text and (is_empty or isinstance(shown, str)):
            made.kind = "text"
            made.text = "" if is_empty else str(shown)
        elif kind in ("number", "integer") and (is_empty or is_number):
            made.kind = "number"
            made.text = "" if is_empty else _json(whole_number(shown))
        elif kind == "boolean" and (is_empty or isinstance(shown, bool)):
            made.kind = "boolean"
            made.options = (("true", "yes"), ("false", "no"))
            made.text = "" if is_empty else _json(shown)
        elif shown is not _MISSING:
            made.text = _json(shown)

    def _make_list(self, made: Field, shown: Any) -> bool:
        """Make a field with an item on each line, if each item can have a line of its own."""
        items, nullable = self._node(made.schema.get("items"))
        if items.get("type") not in _SCALARS or nullable or shown is None:
            return False
        values = _list(shown)
        for value in values:
            if isinstance(value, str) and ("\n" in value or not value.strip()):
                return False
        made.kind = "list"
        made.schema = {**made.schema, "items": items}
        lines = [value if isinstance(value, str) else _json(value) for value in values]
        made.text = "\n".join(lines)
        return True

    def _make_object(self, made: Field, shown: Any) -> bool:
        """Make a field for each property, if the schema names all that the value has."""
        properties = members(made.schema, "properties")
        if not properties or len(made.path) > _DEEPEST or shown is None:
            return False
        if not made.required and not is_object(made.value):
            return False
        values: dict[str, Any] = shown if is_object(shown) else {}
        if values.keys() - properties.keys():
            return False
        required = _list(made.schema.get("required"))
        made.kind = "object"
        made.fields = [
            self.make(
                schema,
                values.get(name, _MISSING),
                (*made.path, name),
                is_required=name in required,
            )
            for name, schema in properties.items()
        ]
        return True

    def _node(self, schema: Any, depth: int = 0) -> tuple[dict[str, Any], bool]:
        """A schema without its reference, and without null as an alternative.

        Also returns whether null was one.
        """
        node: Any = resolve_reference(schema, self._root)
        if not is_object(node) or depth > _DEEPEST:  # one that leads to itself
            return {}, False
        options = node.get("anyOf", node.get("oneOf"))
        if is_list(options):
            others = [option for option in options if option != {"type": "null"}]
            if len(others) == 1:
                inner, _ = self._node(others[0], depth + 1)
                own = {key: node[key] for key in ("description", "default") if key in node}
                return {**inner, **own}, len(others) < len(options)
        types = node.get("type")
        if is_list(types):
            others = [kind for kind in types if kind != "null"]
            if len(others) == 1:
                return {**node, "type": others[0]}, "null" in types
        return node, False


def _read_all(fields: Iterable[Field], sent: Mapping[str, str]) -> dict[str, Any]:
    """The values of fields in a sent form, by name, without those that are left out."""
    values: dict[str, Any] = {}
    for item in fields:
        value = _read(item, sent)
        if value is not _MISSING:
            values[item.label] = value
    return values


def _read(item: Field, sent: Mapping[str, str]) -> Any:
    """The value of a field in a sent form; `_MISSING` for one that is left out."""
    if item.kind == "object":
        return _read_object(item, sent)
    text = sent.get(item.name)
    if text is None or item.kind == "fixed":
        return item.value
    before, was_null = item.text, item.is_null
    text = text.replace("\r\n", "\n")
    is_nulled = f"null:{item.name}" in sent or (text == "" and item.kind != "text")
    item.is_null = item.nullable and is_nulled
    item.is_left_out = f"out:{item.name}" in sent
    is_unchanged = text == reveal(before) and (item.is_null == was_null or item.kind != "text")
    item.is_edited = item.is_left_out or not is_unchanged
    is_typed = text not in {"", reveal(before)}
    text = item.text = conceal(text, before)
    if is_typed and (item.is_null or item.is_left_out):
        # Neither is dropped for the other: without the page's script, typing clears no box.
        item.problem = "There is a text, and a box that says there is none. Clear one of them."
        return _MISSING
    if item.is_left_out and not item.required:
        return _MISSING
    if item.kind == "secret" and not text:
        return item.value
    is_filled_in = item.value is _MISSING and (item.required or "default" in item.schema)
    if is_unchanged and not is_filled_in:
        return item.value  # exactly as it was, also where JSON has another text for it
    if item.is_null:
        return None
    is_empty_value = item.value is not _MISSING and item.kind in _EMPTY_IS_A_VALUE
    if text == "" and not is_empty_value and not item.required:
        return _MISSING
    try:
        return _value(item, text)
    except ValueError as error:
        item.problem = str(error)
        return _MISSING


def _read_object(item: Field, sent: Mapping[str, str]) -> dict[str, Any]:
    values = {
        inner.label: value
        for inner in item.fields
        if (value := _read(inner, sent)) is not _MISSING and not inner.is_default(value)
    }
    before: dict[str, Any] = item.value if is_object(item.value) else {}
    in_order = [name for name in before if name in values]
    return {name: values[name] for name in [*in_order, *values]}


def _value(item: Field, text: str) -> Any:
    match item.kind:
        case "number":
            return _parsed(text, "Expected a number.")
        case "boolean" | "choice":
            return _parsed(text, "Choose one.")
        case "list":
            kind = item.schema["items"]["type"]
            lines = [line for line in text.split("\n") if line.strip()]
            if kind == "string":
                return lines
            return [_parsed(line, f"{line!r} is no {kind}.") for line in lines]
        case "json":
            return _parsed(text, "This is not JSON.")
        case _:
            return str(text)


def _parsed(text: str, problem: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(problem) from error


def _list(value: Any) -> list[Any]:
    return value if is_list(value) else []


def _choices(node: Schema) -> list[Any]:
    """The values of which a schema admits no others; empty if it admits others."""
    if "const" in node:
        return _list(node.get("enum", [node["const"]]))
    return _list(node.get("enum"))


def _choice_words(choice: Any) -> str:
    if isinstance(choice, str):
        return choice
    return _json(choice)


def _json(value: Any) -> str:
    indent = None
    if isinstance(value, dict | list):
        indent = 2
    return json.dumps(cast("Any", value), ensure_ascii=False, indent=indent)


def _few_words(value: Any) -> str:
    if value is None or value is _MISSING:
        return "no value"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return ""
    if is_masked(value):
        return _STARS
    text = value if isinstance(value, str) else _json(whole_number(value))
    text = " ".join(text.split())
    if not text:
        return "empty text"
    if len(text) > _MOST_WORDS:
        return f"{text[:_MOST_WORDS]}…"
    return text
