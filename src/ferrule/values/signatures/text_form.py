"""The string form of a signature: `"question, k: int = 3 -> answer: list[str]"`.

Types are looked up among `custom_types`, Python's own, the names in the calling module, `typing`'s,
and ferrule's.
"""

from __future__ import annotations

import ast
import datetime as dt
import keyword
import sys
import typing
from decimal import Decimal
from importlib import import_module
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Literal, Union
from uuid import UUID

from msgspec.structs import replace

from ferrule.errors import SignatureError, shown
from ferrule.values.content.type import Type
from ferrule.values.signatures.fields import SignatureField, copy_field, declare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PYTHON_TYPES: dict[str, Any] = {
    "None": None,
    "bool": bool,
    "bytes": bytes,
    "complex": complex,
    "dict": dict,
    "float": float,
    "frozenset": frozenset,
    "int": int,
    "list": list,
    "object": object,
    "set": set,
    "str": str,
    "tuple": tuple,
}
_STANDARD_TYPES: dict[str, Any] = {
    **{name: getattr(typing, name) for name in vars(typing) if name[0].isupper()},
    **{
        standard_type.__name__: standard_type
        for standard_type in (dt.date, dt.datetime, dt.time, dt.timedelta, Decimal, UUID)
    },
}
_MODULES = {"typing": typing, "datetime": dt}
_PACKAGE = sys.modules[__name__.partition(".")[0]]
"""Its public names can be used as types, such as `ferrule.Image`.

The caller need not import the package.
"""
_TYPING_MODULES = frozenset({"typing", "types", "typing_extensions"})
"""The modules of generics, unions, aliases and new types, which are not classes."""
_OPENING_BRACKETS = "([{"
_CLOSING_BRACKETS = ")]}"


def read_fields(
    text: str, custom_types: Mapping[str, Any] | None = None
) -> dict[str, SignatureField]:
    """The fields by name, inputs first.

    Raises a `SignatureError` that names the field and the problem.
    """
    sides = list(_split(text, "->"))
    if len(sides) != 2:
        if len(sides) < 2:
            arrows = "no `->`"
        else:
            arrows = f"{len(sides) - 1} of them"
        raise SignatureError(
            "Write a signature as `inputs -> outputs` with one `->`; "
            f"found {arrows} in {shown(text)}."
        )
    inputs, outputs = sides
    fields: dict[str, SignatureField] = {}
    _read_side(fields, inputs, "input", text, custom_types or {})
    _read_side(fields, outputs, "output", text, custom_types or {})
    return fields


def _read_side(
    fields: dict[str, SignatureField],
    side: str,
    role: Literal["input", "output"],
    text: str,
    custom_types: Mapping[str, Any],
) -> None:
    """Add the fields on one side of the arrow to `fields`."""
    if not side.strip():
        return
    for piece in _split(side.strip().removesuffix(","), ","):
        name, field = _read_field(piece, role, text, custom_types)
        if name in fields:
            if fields[name].role == role:
                where = f"twice among the {role}s"
            else:
                where = "as an input and as an output"
            raise SignatureError(
                f"Field `{name}` appears {where} of the signature {shown(text)}. "
                "Give each field its own name."
            )
        fields[name] = field


def _split(text: str, separator: str) -> Iterator[str]:
    """The pieces between separators outside brackets and quotes."""
    depth = 0
    quote = ""
    piece_start = 0
    position = 0
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1  # the escaped character
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in _OPENING_BRACKETS:
            depth += 1
        elif character in _CLOSING_BRACKETS:
            depth -= 1
        elif depth == 0 and text.startswith(separator, position):
            yield text[piece_start:position]
            position += len(separator)
            piece_start = position
            continue
        position += 1
    yield text[piece_start:]


def _read_field(
    piece: str, role: Literal["input", "output"], text: str, custom_types: Mapping[str, Any]
) -> tuple[str, SignatureField]:
    declaration, *after_equals = _split(piece, "=")
    name, colon, type_text = declaration.partition(":")
    name = name.strip()
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SignatureError(
            f"{shown(name)} is not a valid name for an {role} of the signature {shown(text)}: "
            "it must be a Python identifier."
        )
    if colon and not type_text.strip():
        raise SignatureError(
            f"Field `{name}` of the signature {shown(text)} has a `:` without a type."
        )
    # The default first: a mistake in it is reported even if the type is unknown.
    default: Any = None
    if after_equals:
        default = _read_default(name, "=".join(after_equals), text)
    annotation: Any = str
    if colon:
        annotation = _as_class(_TypeReader(name, custom_types).read(type_text.strip()))
    field = copy_field(declare(role), annotation=annotation, untyped=not colon)
    if after_equals:
        field = replace(field, default=default)
    return name, field


def _read_default(name: str, written: str, text: str) -> Any:
    try:
        return ast.literal_eval(written.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise SignatureError(
            f"The default of field `{name}` in the signature {shown(text)} "
            f"is not a Python literal: {shown(written.strip())}."
        ) from None


class _TypeReader:
    """Reads the text of a type, without evaluating the text.

    `eval` would run any expression in a signature, which may come from a file or a service.
    """

    def __init__(self, field: str, custom_types: Mapping[str, Any]) -> None:
        self.field = field
        self.custom_types = custom_types

    def read(self, written: str) -> Any:
        """The type that a text names."""
        try:
            annotation = self.type_of(ast.parse(written, mode="eval").body)
        except SignatureError:  # a `ValueError`, too, and its message is better
            raise
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise self.error(f"{shown(written)} is not a type") from None
        except TypeError as error:
            raise self.error(f"{shown(written)} is not a type: {error}") from None
        if isinstance(annotation, list):
            raise self.error(f"{shown(written)} is not a type; write `list{written}`")
        return annotation

    def error(self, reason: str) -> SignatureError:
        return SignatureError(f"Field `{self.field}`: {reason}.")

    def type_of(self, node: ast.expr) -> Any:
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
                members = (_as_class(self.type_of(left)), _as_class(self.type_of(right)))
                return Union[members]  # noqa: UP007
            case ast.Subscript(value=generic, slice=arguments):
                return self.parametrised(self.type_of(generic), arguments)
            case ast.List(elts=parts):
                # The arguments of a `Callable`.
                return [self.type_of(part) for part in parts]
            case _:
                raise self.error(f"`{ast.unparse(node)}` is not a type")

    def parametrised(self, generic: Any, inside: ast.expr) -> Any:
        if isinstance(inside, ast.Tuple):
            parts = inside.elts
        else:
            parts = [inside]
        if generic is Literal:
            literals = tuple(self.literal(part) for part in parts)
            return Literal[literals]
        arguments = tuple(self.argument(part) for part in parts)
        if isinstance(inside, ast.Tuple):
            return generic[arguments]
        return generic[arguments[0]]

    def argument(self, node: ast.expr) -> Any:
        """An argument of a generic: a type, or the `...` in `tuple[int, ...]`."""
        if isinstance(node, ast.Constant) and node.value is ...:
            return ...
        return self.type_of(node)

    def literal(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            text = ast.unparse(node)
            raise self.error(
                f"`{text}` is not a literal; put quotes around text: Literal['{text}']"
            ) from None

    def named(self, name: str) -> Any:
        if name in self.custom_types:
            return self.custom_types[name]
        if name in _PYTHON_TYPES:
            return _PYTHON_TYPES[name]
        for candidate in (_in_caller(name), _STANDARD_TYPES.get(name), _ferrule_types().get(name)):
            if _is_type(candidate):
                return candidate
        raise self.unknown_type(name)

    def dotted(self, name: str) -> Any:
        if name in self.custom_types:
            return self.custom_types[name]
        first, *rest = name.split(".")
        candidates = [self.custom_types.get(first), _in_caller(first), _MODULES.get(first)]
        if first == "ferrule":
            candidates.append(_PACKAGE)
        for candidate in candidates:
            member = _member(candidate, rest)
            if _is_type(member):
                return member
        raise self.unknown_type(name)

    def unknown_type(self, name: str) -> SignatureError:
        return self.error(
            f"unknown type `{name}`: the calling module does not define or import it. "
            f"Import it there, or pass it by name: custom_types={{{name!r}: {name}}}"
        )


def _in_caller(name: str) -> Any:
    """Look up a name in the code that makes the signature.

    That is the first module outside ferrule on the call stack: the local names of its functions
    that are being called, and then its global names.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    scope: dict[str, Any] | None = None
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        # `Predict[S](...)` passes through `typing`.
        if scope is None and package not in {_PACKAGE.__name__, "typing"}:
            scope = frame.f_globals
        if scope is not None and frame.f_globals is scope and name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return (scope or {}).get(name)


def _member(holder: Any, path: list[str]) -> Any:
    """An attribute of an attribute; None if a part is private or missing."""
    for name in path:
        if name.startswith("_"):
            return None
        holder = getattr(holder, name, None)
    return holder


def _is_type(candidate: Any) -> bool:
    if isinstance(candidate, type):
        return True
    if candidate is None or isinstance(candidate, ModuleType):
        return False
    return type(candidate).__module__ in _TYPING_MODULES


def _as_class(annotation: Any) -> Any:
    return NoneType if annotation is None else annotation


def _ferrule_types() -> dict[str, Any]:
    """Ferrule's own types in the loaded modules.

    Code that passes a `Tool` has loaded its module.
    """
    # These are always available.
    for module in ("calls.tool_calls", "conversation.history", "content.parts"):
        import_module(f"ferrule.values.{module}")

    types: dict[str, Any] = {}
    unvisited: list[type[Any]] = [Type]
    while unvisited:
        ferrule_type = unvisited.pop()
        unvisited += ferrule_type.__subclasses__()
        is_public = not ferrule_type.__name__.startswith("_")
        if is_public and ferrule_type.__module__.startswith("ferrule."):
            types.setdefault(ferrule_type.__name__, ferrule_type)
    return types
