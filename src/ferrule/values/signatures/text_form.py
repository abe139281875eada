"""The string form of a signature: `"question, k: int = 3 -> answer: list[str]"`.

Types are looked up among `custom_types`, Python's own, the names in the calling module, `typing`'s,
and ferrule's.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import decimal
import keyword
import sys
import typing
import uuid
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn, Union

from msgspec.structs import replace

from ferrule.errors import SignatureError, shown
from ferrule.values.content.type import Type
from ferrule.values.signatures.fields import SignatureField, copy_field, declare

if typing.TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TYPES_OF_PYTHON = (
    "str",
    "int",
    "float",
    "bool",
    "bytes",
    "list",
    "dict",
    "tuple",
    "set",
    "frozenset",
    "object",
    "complex",
    "None",
)
_OF_PYTHON = {name: getattr(builtins, name) for name in _TYPES_OF_PYTHON if hasattr(builtins, name)}
_KNOWN: dict[str, Any] = {
    **{name: getattr(typing, name) for name in vars(typing) if name[0].isupper()},
    **{
        kind.__name__: kind
        for kind in (dt.date, dt.datetime, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)
    },
}
_MODULES = {"typing": typing, "datetime": dt}
_PACKAGE = sys.modules[__name__.partition(".")[0]]
"""Its public names can be used as types, such as `ferrule.Image`, whether or not the caller imports the package."""
_OF_TYPES = frozenset({"typing", "types", "typing_extensions"})
"""The modules of generics, unions, aliases and new types, which are not classes."""
_OPENERS, _CLOSERS = "([{", ")]}"


def read_fields(
    text: str,
    custom_types: Mapping[str, Any] | None = None,
) -> dict[str, SignatureField]:
    """The fields by name, inputs first. Raises a `SignatureError` that names the field and the problem."""
    sides = list(_split(text, "->"))
    if len(sides) != 2:
        found = "no `->`" if len(sides) < 2 else f"{len(sides) - 1} of them"
        raise SignatureError(
            f"Write a signature as `inputs -> outputs` with one `->`; found {found} in {shown(text)}.",
        )
    read = [
        _field(piece, role, text, custom_types or {})
        for side, role in zip(sides, ("input", "output"), strict=True)
        if side.strip()
        for piece in _split(side.strip().removesuffix(","), ",")
    ]
    fields: dict[str, SignatureField] = {}
    for name, field in read:
        if name in fields:
            where = (
                f"twice among the {field.role}s"
                if fields[name].role == field.role
                else "as an input and as an output"
            )
            raise SignatureError(
                f"Field `{name}` appears {where} of the signature {shown(text)}. Give each field its own name.",
            )
        fields[name] = field
    return fields


def _split(text: str, separator: str) -> Iterator[str]:
    """The pieces between separators outside brackets and quotes."""
    depth, quote, start, at = 0, "", 0, 0
    while at < len(text):
        mark = text[at]
        if quote:
            if mark == "\\":
                at += 1
            elif mark == quote:
                quote = ""
        elif mark in "\"'":
            quote = mark
        elif mark in _OPENERS:
            depth += 1
        elif mark in _CLOSERS:
            depth -= 1
        elif depth == 0 and text.startswith(separator, at):
            yield text[start:at]
            at += len(separator)
            start = at
            continue
        at += 1
    yield text[start:]


def _field(
    piece: str,
    role: typing.Literal["input", "output"],
    text: str,
    custom_types: Mapping[str, Any],
) -> tuple[str, SignatureField]:
    declared, *defaults = _split(piece, "=")
    name, colon, annotation = declared.partition(":")
    name = name.strip()
    if not name.isidentifier() or keyword.iskeyword(name):
        msg = f"{shown(name)} is not a valid name for an {role} of the signature {shown(text)}: it must be a Python identifier."
        raise SignatureError(msg)
    if colon and not annotation.strip():
        raise SignatureError(
            f"Field `{name}` of the signature {shown(text)} has a `:` without a type.",
        )
    default = _default(name, "=".join(defaults), text) if defaults else None
    kind = _Resolver(name, custom_types).read(annotation.strip()) if colon else str
    field = copy_field(declare(role), annotation=_as_class(kind), untyped=not colon)
    return name, replace(field, default=default) if defaults else field


def _default(name: str, written: str, text: str) -> Any:
    try:
        return ast.literal_eval(written.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        msg = f"The default of field `{name}` in the signature {shown(text)} is not a Python literal: {shown(written.strip())}."
        raise SignatureError(msg) from None


class _Resolver:
    """Turns the text of a type into the type, without evaluating the text."""

    def __init__(self, field: str, custom_types: Mapping[str, Any]) -> None:
        self.field = field
        self.custom_types = custom_types

    def read(self, written: str) -> Any:
        try:
            found = self.of(ast.parse(written, mode="eval").body)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            if isinstance(error, SignatureError):
                raise
            self.refuse(f"{shown(written)} is not a type")
        except TypeError as error:
            self.refuse(f"{shown(written)} is not a type: {error}")
        if isinstance(found, list):
            self.refuse(f"{shown(written)} is not a type; write `list{written}`")
        return found

    def refuse(self, why: str) -> NoReturn:
        raise SignatureError(f"Field `{self.field}`: {why}.")

    def of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=str(written)):
                return self.read(written)
            case ast.Name(id=name):
                return self.named(name)
            case ast.Attribute():
                return self.dotted(ast.unparse(node))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return Union[_as_class(self.of(left)), _as_class(self.of(right))]  # noqa: UP007  a union made at runtime
            case ast.Subscript(value=generic, slice=inside):
                return self.parametrised(self.of(generic), inside)
            case ast.List(elts=parts):
                return [self.of(part) for part in parts]  # the arguments of a `Callable`
            case _:
                self.refuse(f"`{ast.unparse(node)}` is not a type")
        return None

    def parametrised(self, generic: Any, inside: ast.expr) -> Any:
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if generic is typing.Literal:
            return typing.Literal[tuple(self.literal(part) for part in parts)]  # pyright: ignore[reportInvalidTypeArguments]
        arguments = tuple(
            ... if isinstance(part, ast.Constant) and part.value is ... else self.of(part)
            for part in parts
        )
        return generic[arguments if isinstance(inside, ast.Tuple) else arguments[0]]

    def literal(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            self.refuse(
                f"`{ast.unparse(node)}` is not a literal; put quotes around text: Literal['{ast.unparse(node)}']",
            )

    def named(self, name: str) -> Any:
        if name in self.custom_types:
            return self.custom_types[name]
        if name in _OF_PYTHON:
            return _OF_PYTHON[name]
        for found in (_in_caller(name), _KNOWN.get(name), _ferrule_types().get(name)):
            if _is_type(found):
                return found
        self.unknown(name)
        return None

    def dotted(self, name: str) -> Any:
        if name in self.custom_types:
            return self.custom_types[name]
        first, *rest = name.split(".")
        for holder in (
            self.custom_types.get(first),
            _in_caller(first),
            _MODULES.get(first),
            _PACKAGE if first == "ferrule" else None,
        ):
            found = holder
            for part in rest:
                found = None if part.startswith("_") else getattr(found, part, None)
            if _is_type(found):
                return found
        self.unknown(name)
        return None

    def unknown(self, name: str) -> NoReturn:
        given = f"custom_types={{{name!r}: {name}}}"
        self.refuse(
            f"unknown type `{name}`: the calling module does not define or import it. Import it there, or pass it by name: {given}",
        )


def _in_caller(name: str) -> Any:
    """Look up a name in the code that makes the signature: the first module outside ferrule, and its functions on the call stack."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    scope: dict[str, Any] | None = None
    while frame is not None:
        # `Predict[S](...)` passes through `typing`.
        if scope is None and frame.f_globals.get("__name__", "").partition(".")[0] not in {
            _PACKAGE.__name__,
            "typing",
        }:
            scope = frame.f_globals
        if scope is not None and frame.f_globals is scope and name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return (scope or {}).get(name)


def _is_type(found: Any) -> bool:
    return found is not None and (
        isinstance(found, type)
        or (type(found).__module__ in _OF_TYPES and not isinstance(found, ModuleType))
    )


def _as_class(kind: Any) -> Any:
    return type(None) if kind is None else kind


def _ferrule_types() -> dict[str, Any]:
    """Ferrule's own types in the loaded modules. Code that passes a `Tool` has loaded its module."""
    # These are always available.
    for always in ("calls.tool_calls", "conversation.history", "content.parts"):
        import_module(f"ferrule.values.{always}")

    found: dict[str, Any] = {}
    waiting: list[type[Any]] = [Type]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("ferrule.") and not kind.__name__.startswith("_"):
            found.setdefault(kind.__name__, kind)
    return found
