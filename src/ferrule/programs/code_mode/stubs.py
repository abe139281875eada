"""Tools as typed Python functions: what a model reads, and what its code is checked against.

Each tool becomes the stub of an `async` function, with its description as the docstring and types
made from its JSON schema. Objects with known properties become `TypedDict`s. What Python's types
cannot say (patterns, bounds, `oneOf`) is left out: the tool's own check says it when it is called.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from msgspec import Struct
from pydantic import PydanticUserError

from ferrule.encoding.encode import is_plain
from ferrule.programs.call_tool import type_of_result
from ferrule.schema.inline import INEXPRESSIBLE, json_schema_of
from ferrule.tools.tool import Tool
from ferrule.values.signatures.fields import SignatureField, adapter_of

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_LONGEST_DOCSTRING = 2_000
MODULES = (
    "asyncio", "base64", "bisect", "collections", "copy", "csv", "dataclasses", "datetime",
    "decimal", "functools", "hashlib", "itertools", "json", "math", "random", "re", "time",
    "typing", "unicodedata",
)  # fmt: skip
"""What code can import: the modules of the interpreter that a program needs without files."""
HEADER = """\
from typing import Any, Literal, NotRequired, TypedDict
"""
"""The names that stubs use."""
ERRORS = """\
ToolDeniedError = PermissionError
ToolArgumentsError = ValueError
ToolError = RuntimeError
"""
"""The exceptions that a call raises in a snippet, by the names of ferrule."""
_ERRORS_AS_CLASSES = """\
class ToolDeniedError(Exception): ...
class ToolArgumentsError(Exception): ...
class ToolError(Exception): ...
"""
"""The same for the checker, which does not know all exceptions of Python."""
_BUILTINS = """\
def filter(function: Any, items: Any, /) -> Any: ...
def map(function: Any, items: Any, /, *more: Any) -> Any: ...
def format(value: Any, spec: str = "", /) -> str: ...
class PermissionError(Exception): ...
class ImportError(Exception): ...
class FileNotFoundError(Exception): ...
class UnicodeDecodeError(ValueError): ...
"""
"""What the interpreter has and its checker does not know.

Not `getattr` and `hasattr`, which find no methods there.
"""
_IMPORTED = ("Any", "Literal", "NotRequired", "TypedDict")
_ERROR_NAMES = ("ToolDeniedError", "ToolArgumentsError", "ToolError")
_RESERVED = frozenset(
    {*dir(builtins), *keyword.kwlist, *MODULES, *_IMPORTED, *_ERROR_NAMES, "os", "sys", "pathlib"}
)
"""Names that code needs for something else: a tool called `list` is the function `list_`."""
_NAMED_RESULT = re.compile(r"result_\d+")


class CodeFunction(Struct, frozen=True):
    """A tool as a function that a snippet can call."""

    name: str
    """The function's name: the tool's, with `_` for what an identifier cannot have."""
    tool: Tool
    parameters: tuple[str, ...]
    """The names of the arguments, in the order of the stub."""
    stub: str


def functions_of(tools: Iterable[Tool], names: dict[str, str]) -> dict[str, CodeFunction]:
    """The tools as functions, by their names in code.

    `names` has the names that tools got earlier in the run, which they keep, and takes those of new
    ones.
    """
    listed = list(tools)
    for tool in listed:
        if tool.name not in names:
            names[tool.name] = _free_name(tool.name, set(names.values()))
    taken = set(names.values())  # records get other names than functions and one another
    return {names[tool.name]: _function_of(tool, names[tool.name], taken) for tool in listed}


def stubs_of(functions: Iterable[CodeFunction]) -> str:
    """The stubs of all functions, as the text of a Python file."""
    return "\n\n".join(function.stub for function in functions)


def checked_stubs(functions: Iterable[CodeFunction]) -> str:
    """The stubs of all functions, and what a checker of snippets needs beside them."""
    return f"{HEADER}{_BUILTINS}{_ERRORS_AS_CLASSES}\n{stubs_of(functions)}"


def _free_name(tool_name: str, taken: Collection[str]) -> str:
    name = _identifier(tool_name)
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    return free


def _identifier(text: str) -> str:
    """The text as an identifier: `get-weather` becomes `get_weather`, and `list` `list_`.

    No name begins with `_`: the checker imports the stubs with `import *`, which leaves such names
    out.
    """
    # Python reads identifiers in this form, so code would not find a name in another one.
    normalized = unicodedata.normalize("NFKC", text)
    name = "".join(sign if f"_{sign}".isidentifier() else "_" for sign in normalized)
    name = name.lstrip("_") or "tool"
    if not name.isidentifier():  # a digit comes first
        name = f"tool_{name}"
    if name in _RESERVED or _NAMED_RESULT.fullmatch(name):
        name = f"{name}_"
    return name


def _function_of(tool: Tool, name: str, taken: set[str]) -> CodeFunction:
    types = _Types(_class_prefix(name), taken)
    schema = tool.declaration["function"]["parameters"]
    types.definitions = schema
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required: set[str] = set(schema.get("required") or ())
    # Python wants parameters without a default first.
    ordered = [argument for argument in properties if argument in required]
    ordered += [argument for argument in properties if argument not in required]
    named = [argument for argument in ordered if _is_identifier(argument)]
    # Others can still be passed, as `**{"user-id": 1}`.
    has_others = len(named) < len(ordered) or bool(schema.get("additionalProperties"))
    parameters: list[str] = []
    for argument in named:
        parameter = f"{argument}: {types.annotation(properties[argument], argument)}"
        if argument not in required:
            parameter += f" = {_default(properties[argument])}"
        parameters.append(parameter)
    if has_others:
        parameters.append(f"**{_free_name('others', named)}: Any")
    returns = _return_annotation(tool, types)
    header = f"async def {name}({', '.join(parameters)}) -> {returns}:"
    body = [f"    {line}".rstrip() for line in _docstring(tool, properties)]
    function = "\n".join([header, *body, "    ..."])
    stub = "\n\n".join([*types.classes, function])
    return CodeFunction(name, tool, tuple(named), stub)


def _is_identifier(text: str) -> bool:
    is_as_read = unicodedata.normalize("NFKC", text) == text
    return text.isidentifier() and is_as_read and not keyword.iskeyword(text)


def _class_prefix(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _default(schema: Any) -> str:
    """The default of a parameter as Python; `...` where it is not a plain value."""
    if isinstance(schema, Mapping) and "default" in schema:
        default = cast("Mapping[str, Any]", schema)["default"]
        is_finite = not isinstance(default, float) or math.isfinite(default)
        if default is None or (isinstance(default, (bool, int, float, str)) and is_finite):
            return repr(default)
    return "..."


def _docstring(tool: Tool, properties: Mapping[str, Any]) -> list[str]:
    """The description of the tool and of its arguments, as the lines of a docstring."""
    text = tool.desc.strip()[:_LONGEST_DOCSTRING]
    arguments: list[str] = []
    for name, schema in properties.items():
        if isinstance(schema, Mapping):
            description = cast("Mapping[str, Any]", schema).get("description")
            # Python's docstrings often describe the arguments already.
            if isinstance(description, str) and description.strip() not in text:
                arguments.append(f"    {name}: {' '.join(description.split())}")
    if arguments:
        text = "\n".join([text, "", "Args:", *arguments]).strip()
    if not text:
        return []
    # Half of a surrogate pair has no form in UTF-8, which the interpreter reads.
    text = text.encode("utf-8", "replace").decode().replace("\x00", "?")
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if escaped.endswith('"'):
        escaped += " "
    return f'"""{escaped}"""'.splitlines()


def _return_annotation(tool: Tool, types: _Types) -> str:
    if tool.mcp is not None:
        schema = getattr(tool.mcp, "output_schema", None)
        if not isinstance(schema, Mapping):
            return "Any"
        return types.annotation_in(cast("Mapping[str, Any]", schema), "result")
    kind = type_of_result(tool)
    if kind is inspect.Parameter.empty or isinstance(kind, str):
        return "Any"
    if kind is None or kind is type(None):
        return "None"
    if kind is str or is_plain(kind):
        return getattr(kind, "__name__", "Any")
    try:
        schema = json_schema_of(adapter_of(SignatureField(kind, {})))
    except (*INEXPRESSIBLE, PydanticUserError):
        return "Any"
    return types.annotation_in(schema, "result")


class _Types:
    """Writes schemas as annotations, and collects the `TypedDict`s that they need."""

    def __init__(self, prefix: str, taken: set[str]) -> None:
        self.prefix = prefix
        self.taken = taken
        """The names of functions and classes so far. It takes the new ones."""
        self.classes: list[str] = []
        self.definitions: Mapping[str, Any] = {}
        """The schema whose `$defs` the references name."""
        self._names: dict[str, str] = {}
        """The names of the classes made so far, by reference or by place."""

    def annotation_in(self, schema: Mapping[str, Any], place: str) -> str:
        """The annotation of a schema with definitions of its own."""
        outer, self.definitions = self.definitions, schema
        self._names = {}
        try:
            return self.annotation(schema, place)
        finally:
            self.definitions = outer

    def annotation(self, schema: Any, place: str, reference: str = "") -> str:
        """The annotation of a schema; `place` names a class that it may need.

        `reference` is the one that led to the schema, if any.
        """
        if not isinstance(schema, Mapping):
            return "Any"
        schema = cast("Mapping[str, Any]", schema)
        if isinstance(schema.get("$ref"), str):
            return self._of_reference(schema["$ref"])
        if "const" in schema:
            return _literal([schema["const"]])
        if isinstance(schema.get("enum"), list):
            return _literal(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return self._union(schema[key], place)
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = cast("list[Any]", kind)
            return self._union([{**schema, "type": single} for single in kinds], place)
        if kind == "array":
            if "items" not in schema:
                return "list[Any]"
            return f"list[{self.annotation(schema['items'], place)}]"
        if kind == "object":
            return self._of_object(schema, place, reference)
        return _TYPES.get(str(kind), "Any")

    def _union(self, schemas: list[Any], place: str) -> str:
        members = [self.annotation(schema, place) for schema in schemas]
        if "Any" in members or not members:
            return "Any"
        return " | ".join(dict.fromkeys(members))

    def _of_reference(self, reference: str) -> str:
        if reference in self._names:
            return self._names[reference]
        target: Any = self.definitions
        for step in reference.removeprefix("#/").split("/"):
            if not isinstance(target, Mapping) or step not in target:
                return "Any"
            target = cast("Mapping[str, Any]", target)[step]
        # A definition may refer to itself: as `Any`, until its class has a name.
        self._names[reference] = "Any"
        annotation = self.annotation(target, reference.rsplit("/", 1)[-1], reference)
        self._names[reference] = annotation
        return annotation

    def _of_object(self, schema: Mapping[str, Any], place: str, reference: str) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            others = schema.get("additionalProperties")
            if isinstance(others, Mapping):
                return f"dict[str, {self.annotation(others, place)}]"
            return "dict[str, Any]"
        fields = cast("Mapping[str, Any]", properties)
        # The checker takes a field named `NotRequired` for that word in the field's own annotation.
        if not all(_is_identifier(field) and field not in _IMPORTED for field in fields):
            return "dict[str, Any]"
        name = self._class_name(place)
        # Taken before the fields are written, which may have classes of the same name.
        position = len(self.classes)
        self.taken.add(name)
        if reference:
            self._names[reference] = name
        self.classes.append(f"class {name}(TypedDict): ...")
        required: set[str] = set(schema.get("required") or ())
        lines = [f"class {name}(TypedDict):"]
        for field, field_schema in fields.items():
            annotation = self.annotation(field_schema, field)
            if field not in required:
                annotation = f"NotRequired[{annotation}]"
            lines.append(f"    {field}: {annotation}")
        self.classes[position] = "\n".join(lines)
        return name

    def _class_name(self, place: str) -> str:
        # The parts together need a check of their own: the tool `key` with a field `error` would
        # make a class `KeyError`.
        name = _identifier(f"{self.prefix}{_class_prefix(_identifier(place))}")
        free, number = name, 2
        while free in self.taken:
            free = f"{name}{number}"
            number += 1
        return free


def _literal(values: list[Any]) -> str:
    if not values or not all(value is None or isinstance(value, (str, int)) for value in values):
        return "Any"
    return f"Literal[{', '.join(map(repr, values))}]"
