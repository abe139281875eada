"""A JSON Schema and values as fields of an HTML form, and a sent form as values again.

Fields are text, numbers, choices, lists of scalars and nested objects. Anything else is one field
of JSON text.
"""

from __future__ import annotations

import json
import re
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, field

from ferrule.encoding.safe_text import conceal, reveal
from ferrule.encoding.stored import parse_json
from ferrule.schema.nodes import Schema, resolve_reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


FieldKind = Literal[
    "text",
    "long",
    "secret",
    "date",
    "email",
    "url",
    "number",
    "boolean",
    "choice",
    "list",
    "object",
    "json",
    "fixed",
]
"""`fixed`: too long for a field, so it cannot be changed."""
_FORMATS: dict[Any, FieldKind] = {
    "date": "date",
    "email": "email",
    "uri": "url",
    "password": "secret",
}
_LONG = 80
"""Text of more characters has a larger field."""
_LONGEST = 20_000
_DEEPEST = 4
_MOST_WORDS = 60
_EXACT = 2**53
"""Below it, each whole number is one float."""
_SCALARS = ("string", "number", "integer", "boolean")  # no set: a `type` may be a list
_EMAIL = re.compile(r"[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9]+(?:[.-][a-zA-Z0-9]+)*")
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,4})?(?:[/?#][!-~]*)?")
_MISSING: Any = object()


class Field(Struct, kw_only=True):
    """One field of a form."""

    path: tuple[str, ...]
    kind: FieldKind
    schema: Schema
    value: Any = _MISSING
    text: str = ""
    """The value as text, as the field shows it."""
    is_null: bool = False
    nullable: bool = False
    required: bool = False
    options: tuple[str, ...] = ()
    """The choices, as JSON."""
    attributes: dict[str, Any] = field(default_factory=dict)
    fields: list[Field] = field(default_factory=list)
    """Those of an object."""
    note: str = ""
    """Where the value differs from what the model wrote."""
    problem: str = ""

    @property
    def name(self) -> str:
        """What it is called in the sent form.

        A page shows an invisible character as its escape, so that a backslash is doubled.
        """
        return reveal(
            "v:"
            + "/".join(
                each.replace("~", "~0").replace("/", "~1").replace("\\", "\\\\")
                for each in self.path
            )
        )

    @property
    def label(self) -> str:
        """The name of the argument."""
        return self.path[-1]

    @property
    def hint(self) -> str:
        """The description of the argument."""
        return str(self.schema.get("description", ""))

    def is_default(self, value: Any) -> bool:
        """Whether a value is the default of an argument that was left out."""
        return (
            self.value is _MISSING
            and "default" in self.schema
            and _same(self.schema["default"], value)
        )

    def leaves(self) -> Iterator[Field]:
        """The fields that hold a value of their own."""
        if self.kind != "object":
            yield self
        for each in self.fields:
            yield from each.leaves()


class HTMLForm:
    """The fields of one object, such as the arguments of a call."""

    def __init__(self, schema: Schema, values: Mapping[str, Any]) -> None:
        self._schema = schema
        self._values = dict(values)
        top = _object(schema, self._values, schema, (), 0)
        self.fields = top.fields if top is not None else []
        self.rest: Field | None = None
        """All values as JSON, if the schema names no fields."""
        if top is None:
            self.rest = Field(
                path=("arguments",),
                kind="json",
                schema={},
                value=self._values,
                text=_json(self._values),
                required=True,
            )
        self.problems: list[str] = []
        """Problems that belong to no single field."""

    @property
    def all(self) -> list[Field]:
        """The fields, or the one with all values."""
        return self.fields if self.rest is None else [self.rest]

    def read(self, sent: Mapping[str, str]) -> Any:
        """The values of a sent form; None if one does not fit.

        Then the fields hold what was typed, and the problems.
        """
        found = {
            each.path[0]: value for each in self.all if (value := _read(each, sent)) is not _MISSING
        }
        values: Any = (
            found["arguments"]
            if self.rest is not None and "arguments" in found
            else {**self._hidden(), **found}
        )
        if not any(each.problem for top in self.all for each in top.leaves()):
            if isinstance(values, dict):
                self._check(cast("dict[str, Any]", values))
            else:
                self.problems.append("Expected a JSON object.")
        has_problem = self.problems or any(
            each.problem for top in self.all for each in top.leaves()
        )
        return None if has_problem else cast("Any", values)

    def edits(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that differ from those that were shown."""
        defaults = {
            each.label: each.schema["default"]
            for each in self.all
            if each.is_default(values.get(each.label))
        }
        shown = {**defaults, **self._values}
        return {
            name: each
            for name, each in values.items()
            if name not in shown or not _same(shown[name], each)
        }

    def changed(self, args: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        """Changed values in a few words: name, new, old.

        Both are empty for a secret; a list or an object has no short form.
        """
        return [
            (name, "", "")
            if name in self._secrets
            else (name, _few_words(value), _few_words(self._values.get(name, _MISSING)))
            for name, value in args.items()
        ]

    def shown(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """All values for a reader, with these in place of the ones shown before.

        A secret becomes stars.
        """
        found = {
            **self._values,
            **{
                name: "**********" if name in self._secrets else value
                for name, value in args.items()
            },
        }
        return {
            name: _few_words(value) if value is None or isinstance(value, bool) else value
            for name, value in found.items()
        }

    @property
    def _secrets(self) -> set[str]:
        """The names of values that are a secret, or hold one."""
        return {
            top.label for top in self.all if any(each.kind == "secret" for each in top.leaves())
        }

    def _hidden(self) -> dict[str, Any]:
        """Values that the schema does not name."""
        names = {each.label for each in self.fields}
        return {name: value for name, value in self._values.items() if name not in names}

    def _check(self, values: dict[str, Any]) -> None:
        from ferrule.schema.explain import SchemaCheck  # late: only a form that is sent needs it

        leaves = sorted(
            (each for top in self.all for each in top.leaves()), key=lambda each: -len(each.path)
        )
        for problem in SchemaCheck(self._schema)(values):
            path, _, text = problem.partition(": ")
            at = next(
                (each for each in leaves if f"{path}.".startswith(".".join(each.path) + ".")), None
            )
            if at is not None and not at.problem:
                at.problem = text or problem
            else:
                self.problems.append(problem)


def _object(
    node: Schema, value: Any, root: Schema, path: tuple[str, ...], depth: int
) -> Field | None:
    properties: Any = node.get("properties")
    if not isinstance(properties, dict) or not properties or depth > _DEEPEST:
        return None
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    # A property that the schema does not name has no field; only the JSON can show it.
    if path and given.keys() - cast("dict[str, Any]", properties).keys():
        return None
    required: Any = node.get("required")
    fields = [
        _field(
            each,
            given.get(name, _MISSING),
            root,
            (*path, name),
            depth + 1,
            required=isinstance(required, list) and name in required,
        )
        for name, each in cast("dict[str, Any]", properties).items()
    ]
    return Field(path=path, kind="object", schema=node, value=value, fields=fields)


def _field(
    schema: Any, value: Any, root: Schema, path: tuple[str, ...], depth: int, *, required: bool
) -> Field:
    node, nullable = _node(schema, root)
    shown = node.get("default", _MISSING) if value is _MISSING else value
    kind, choices = node.get("type"), _choices(node)
    nullable = nullable or None in choices
    made = Field(
        path=path,
        kind="json",
        schema=node,
        value=value,
        nullable=nullable,
        required=required,
        is_null=nullable and shown is None,
    )
    chosen = (
        choices
        if shown is _MISSING or shown is None
        else [each for each in choices if _same(each, shown)]
    )
    if chosen:
        made.kind, made.options = (
            "choice",
            tuple(_json(each) for each in choices if each is not None),
        )
        made.text = "" if shown is _MISSING or shown is None else _json(chosen[0])
        return made
    if kind == "object" and shown is not None:
        inside = _object(node, shown if shown is not _MISSING else {}, root, path, depth)
        if inside is not None and (required or isinstance(value, dict)):
            made.kind, made.fields = "object", inside.fields
            return made
    fits = shown is _MISSING or shown is None
    if kind == "string" and (fits or isinstance(shown, str)):
        text = shown if isinstance(shown, str) else ""
        made.kind = _text_kind(node, text)
        made.text = "" if made.kind == "secret" else text
    elif kind in ("number", "integer") and (
        fits or (isinstance(shown, (int, float)) and not isinstance(shown, bool))
    ):
        made.kind, made.text = "number", "" if fits else _json(whole_number(shown))
        bounds = {"min": node.get("minimum"), "max": node.get("maximum")}
        made.attributes = {
            name: bound for name, bound in bounds.items() if isinstance(bound, (int, float))
        }
        made.attributes["step"] = "1" if kind == "integer" else "any"
    elif kind == "boolean" and (fits or isinstance(shown, bool)):
        made.kind, made.options, made.text = (
            "boolean",
            ("true", "false"),
            "" if fits else _json(shown),
        )
    elif kind == "array" and (items := _line_schema(node, shown, root)) is not None:
        made.kind, made.schema = "list", {**node, "items": items}
        lines: Any = [] if fits else shown
        made.text = "\n".join(each if isinstance(each, str) else _json(each) for each in lines)
    else:
        made.text = "" if shown is _MISSING else _json(shown)
    if len(made.text) > _LONGEST:
        made.kind = "fixed"
    return made


def _choices(node: Schema) -> list[Any]:
    """The values of which a schema admits no others; empty if there are too many to name."""
    found: Any = node.get("enum", [node["const"]] if "const" in node else None)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _text_kind(node: Schema, text: str) -> FieldKind:
    """The kind of a field for a text.

    A browser refuses, or empties, a field of a format that its text does not have.
    """
    kind = _FORMATS.get(str(node.get("format")))
    if kind is not None and (not text or kind not in _TESTS or _TESTS[kind](text)):
        return kind
    return "long" if len(text) > _LONG or "\n" in text else "text"


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_TESTS: dict[FieldKind, Any] = {"date": _is_date, "email": _EMAIL.fullmatch, "url": _URL.fullmatch}


def _node(schema: Any, root: Schema, depth: int = 0) -> tuple[dict[str, Any], bool]:
    """A schema without its reference, and without null as an alternative.

    Also returns whether null was one.
    """
    node: Any = resolve_reference(schema, root)
    if not isinstance(node, dict) or depth > _DEEPEST:  # one that leads to itself
        return {}, False
    found = cast("dict[str, Any]", node)
    options: Any = found.get("anyOf", found.get("oneOf"))
    if isinstance(options, list):
        every = cast("list[Any]", options)
        some = [each for each in every if each != {"type": "null"}]
        if len(some) == 1:
            inner, _ = _node(some[0], root, depth + 1)
            return {
                **inner,
                **{key: found[key] for key in ("description", "default") if key in found},
            }, len(some) < len(every)
    kinds: Any = found.get("type")
    if isinstance(kinds, list):
        rest = [each for each in cast("list[Any]", kinds) if each != "null"]
        if len(rest) == 1:
            return {**found, "type": rest[0]}, "null" in kinds
    return found, False


def _line_schema(node: Schema, value: Any, root: Schema) -> Schema | None:
    """The schema of the items, if each can stand on a line of its own."""
    items, nullable = _node(node.get("items"), root)
    if items.get("type") not in _SCALARS or nullable or value is None:
        return None
    given = cast("list[Any]", value) if isinstance(value, list) else []
    return (
        items
        if not any("\n" in each or not each.strip() for each in given if isinstance(each, str))
        else None
    )


def _read(shown: Field, sent: Mapping[str, str]) -> Any:
    """The value of a field in a sent form; `_MISSING` for one that is left out."""
    if shown.kind == "object":
        given = cast("dict[str, Any]", shown.value) if isinstance(shown.value, dict) else {}
        read = ((each, _read(each, sent)) for each in shown.fields)
        found = {
            each.label: value
            for each, value in read
            if value is not _MISSING and not each.is_default(value)
        }
        return {**{name: each for name, each in given.items() if name in found}, **found}
    text = sent.get(shown.name)
    if text is None:
        return shown.value
    before, was_null, is_text = shown.text, shown.is_null, shown.kind in {"text", "long"}
    text = text.replace("\r\n", "\n")
    shown.is_null = shown.nullable and (
        f"null:{shown.name}" in sent or (text == "" and not is_text)
    )
    is_same = text == reveal(before) and (shown.is_null == was_null or not is_text)
    text = shown.text = conceal(text, before)
    if shown.kind == "secret" and not text:
        return shown.value
    if is_same and (
        shown.value is not _MISSING or not (shown.required or "default" in shown.schema)
    ):
        return shown.value  # exactly as it was, also where JSON has another text for it
    if shown.is_null:
        return None
    if (
        text == ""
        and (shown.value is _MISSING or shown.kind not in {"text", "long", "list"})
        and not shown.required
    ):
        return _MISSING
    try:
        return _value(shown, text)
    except ValueError as error:
        shown.problem = str(error)
        return _MISSING


def _value(shown: Field, text: str) -> Any:
    match shown.kind:
        case "number" | "boolean" | "choice":
            return _parsed(text, "Expected a number." if shown.kind == "number" else "Choose one.")
        case "list":
            kind, lines = (
                shown.schema["items"]["type"],
                [each for each in text.split("\n") if each.strip()],
            )
            return (
                lines
                if kind == "string"
                else [_parsed(each, f"{each!r} is no {kind}.") for each in lines]
            )
        case "json":
            return _parsed(text, "This is not JSON.")
        case _:
            return str(text)


def _parsed(text: str, problem: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(problem) from error


def _json(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, indent=2 if value.__class__ in {dict, list} else None
    )


def _few_words(value: Any) -> str:
    if value is None or value is _MISSING:
        return "no value"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return ""
    text = " ".join(
        (
            value if isinstance(value, str) else json.dumps(whole_number(value), ensure_ascii=False)
        ).split()
    )
    if not text:
        return "empty text"
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}…"


def whole_number(value: Any) -> Any:
    """A number without `.0`; any other value unchanged."""
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
        else value
    )


def means(text: Any, value: Any) -> bool:
    """Whether what a model wrote means this value.

    They differ in form at most, as `"29.90"` and `29.9` do.
    """
    if not isinstance(text, str) or isinstance(value, str):
        return _same(text, value)
    try:
        return _same(
            parse_json(text.strip().lower() if isinstance(value, bool) else text.strip()), value
        )
    except (ValueError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: `1` is not `true`."""
    return json.dumps(whole_number(one), sort_keys=True) == json.dumps(
        whole_number(other), sort_keys=True
    )
