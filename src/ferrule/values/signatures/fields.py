"""Fields of a signature: how they are declared and named, and the checks of inputs. `output_checks` has those of outputs."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ferrule.errors import SignatureError, shown
from ferrule.values.content.type import Type
from ferrule.values.encoding.encode import fits, is_plain

if TYPE_CHECKING:
    from ferrule.values.calls.tool_calls import ToolCalls

InputCheck = Callable[[Any], Any]
"""Takes a value, returns the typed value, raises `ValueError`."""

_ROLE, _UNTYPED = "ferrule_role", "ferrule_untyped"
NO_TYPE = {_UNTYPED: True}
"""The `json_schema_extra` of a field that takes values of any type, as one of a string form without a type."""
_NO_DEFAULT: Any = ...
_MOST_PROBLEMS = 8
_OF_MODELS = frozenset(name for name in dir(BaseModel) if not name.startswith("_"))
OUTDATED = frozenset(name for name in _OF_MODELS if not name.startswith("model_"))
"""Pydantic's deprecated names (`json`, `copy`, `schema`, ...), which a signature hides: they are common names of fields."""


def InputField(default: Any = _NO_DEFAULT, *, desc: str | None = None, description: str | None = None, **more: Any) -> Any:  # noqa: N802  DSPy's name
    """Declare an input of a signature. `description` is an alias of `desc`; `more` are arguments of `pydantic.Field` (`ge`, ...)."""
    return _declared("input", default, desc, description, more)


def OutputField(  # noqa: N802
    default: Any = _NO_DEFAULT, *, desc: str | None = None, description: str | None = None, init: Literal[False] = False, **more: Any
) -> Any:
    """Declare an output of a signature. The model sees the constraints in `more`, and they are enforced; a default makes it optional.

    `init` is for type checkers: a call passes no outputs.
    """
    del init
    return _declared("output", default, desc, description, more)


def _declared(role: str, default: Any, desc: str | None, description: str | None, more: dict[str, Any]) -> Any:
    if desc is not None and description is not None and desc != description:
        raise SignatureError(f"Pass one of `desc` and `description`; found both: {shown(desc)} and {shown(description)}.")
    said = desc if desc is not None else description
    if said is not None and not isinstance(said, str):
        raise SignatureError(f"`desc` of a field must be a string, found {shown(said)}.")
    extra: dict[str, Any] = {**(more.pop("json_schema_extra", None) or {})}
    extra.update({name: more.pop(name) for name in ("prefix", "format", "parser") if name in more})
    extra.update({_ROLE: role, "desc": said or ""})
    # Pydantic's `Field` has overloads with literal keywords only; it checks the arguments itself.
    make = cast("Callable[..., Any]", Field)
    return make(default, description=said, json_schema_extra=extra, **more)


def role_of(field: FieldInfo) -> str | None:
    """`input`, `output`, or None for a field declared as neither."""
    return _extra(field).get(_ROLE)


def may_be_omitted(field: FieldInfo) -> FieldInfo:
    """The input, with the default None if it takes None and has no default."""
    if not field.is_required() or not allows_none(field.annotation):
        return field
    found = copy(field)
    found.default = None
    return found


def is_untyped(field: FieldInfo) -> bool:
    """Whether the field was written without a type: text for a model, anything for a caller."""
    return bool(_extra(field).get(_UNTYPED))


def description_of(field: FieldInfo) -> str:
    """The field's description, or an empty string."""
    return field.description or _extra(field).get("desc") or ""


def _extra(field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    return cast("dict[str, Any]", extra) if isinstance(extra, dict) else {}


def annotation_of(field: FieldInfo) -> Any:
    """The field's type with its constraints."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation  # pyright: ignore[reportReturnType]


def copy_field(
    field: FieldInfo, *, annotation: Any = None, keep_bounds: bool = True, untyped: bool | None = None, **changes: Any
) -> tuple[Any, Any]:
    """Annotation and declaration of a copy of a field, for a new class. `changes` are arguments of `InputField`."""
    extra = dict(_extra(field))
    if untyped is not None or annotation is not None:
        extra[_UNTYPED] = bool(untyped)
    for alias in ("desc", "description"):
        if alias in changes:
            extra["desc"] = changes.pop(alias) or ""
    extra.update({name: changes.pop(name) for name in ("prefix", "format", "parser") if name in changes})
    kept: dict[str, Any] = {}
    if field.default_factory is not None:
        kept["default_factory"] = field.default_factory
    elif not field.is_required():
        kept["default"] = field.default
    kept.update({name: getattr(field, name) for name in ("title", "examples", "alias") if getattr(field, name) is not None})
    kept.update(changes)
    if "default" in changes:
        kept.pop("default_factory", None)
    make = cast("Callable[..., Any]", Field)
    declared = make(description=extra.get("desc") or None, json_schema_extra=extra, **kept)
    if annotation is None:
        return annotation_of(field), declared
    bounds = field.metadata if keep_bounds else ()
    return (Annotated[(annotation, *bounds)] if bounds else annotation), declared  # pyright: ignore[reportReturnType]


def allows_none(annotation: Any) -> bool:
    """Whether the type includes None (`Any` does not count)."""
    if annotation is None or annotation is NoneType:
        return True
    origin = get_origin(annotation)
    if origin is Annotated:
        return allows_none(get_args(annotation)[0])
    if origin is Literal:
        return None in get_args(annotation)
    return origin in {Union, UnionType} and any(allows_none(part) for part in get_args(annotation))


def calls_type(annotation: Any) -> type[ToolCalls] | None:
    """`ToolCalls`, or its subclass, in an annotation; None if there is none. The class is imported for an annotation with a `Type`."""
    if not Type.extract_custom_type_from_annotation(annotation):
        return None
    from ferrule.values.calls.tool_calls import ToolCalls

    return next(iter(ToolCalls.extract_custom_type_from_annotation(annotation)), None)


def adapter_of(field: FieldInfo) -> TypeAdapter[Any]:
    """The validator of the field's type."""
    annotation = annotation_of(field)
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(annotation)  # models, dataclasses and TypedDicts bring their own configuration


def input_check(field: FieldInfo) -> InputCheck | None:
    """The check of an input's values; None if any value is accepted."""
    if is_untyped(field) or (field.annotation is Any and not field.metadata):
        return None
    return quick_field_check(field, _check_given) if is_plain(field.annotation) and not field.metadata else _check_given(field)


def _check_given(field: FieldInfo) -> InputCheck:
    validate = adapter_of(field).validate_python

    def check(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            raise ValueError(explained(error)) from None

    return check


def quick_field_check(field: FieldInfo, make: Callable[[FieldInfo], Callable[..., Any]]) -> Callable[..., Any]:
    """Accepts values of exactly the field's type. The first other value makes the full check, which costs a process 20 ms."""
    kind: Any = field.annotation
    made: list[Callable[..., Any]] = []

    def check(value: Any, **how: bool) -> Any:
        if fits(kind, value):
            return value
        if not made:
            made.append(make(field))
        return made[0](value, **how)

    return check


def explained(error: ValidationError) -> str:
    """Every problem of a value in one line for a model: where, what was expected, what was found."""
    problems = error.errors(include_url=False)
    said: list[str] = []
    for problem in problems[:_MOST_PROBLEMS]:
        where = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
        found = "" if problem["type"] == "missing" else f", got {shown(problem['input'], 80)}"
        said.append(f"{where}: {what}{found}" if where else f"{what}{found}")
    if len(problems) > _MOST_PROBLEMS:
        said.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "; ".join(said)


# -- the body of a signature's class ------------------------------------------------------------------------------


class Absent:
    """Hides an inherited attribute of a class."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        raise AttributeError


def prepare_class_body(signature: str, namespace: dict[str, Any], *, reserved: frozenset[str]) -> None:
    """Check the names of the fields in a class body, and annotate the bare ones where they stand, as a string form does.

    `reserved` are names of `Signature`.
    """
    annotations = _annotations(namespace)
    fields = [name for name, value in namespace.items() if isinstance(value, FieldInfo)]
    annotated = [name for name in annotations if not name.startswith("_") and name != "model_config"]
    for name in dict.fromkeys([*fields, *annotated]):
        check_name(signature, name, reserved)
    bare: dict[str, Any] = {}
    for name in fields:
        if name not in annotations:
            bare[name], namespace[name] = copy_field(namespace[name], annotation=str, untyped=True)
    if bare:
        namespace["__annotations__"] = _in_written_order(annotations, bare, fields)


def _in_written_order(annotations: Mapping[str, Any], bare: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The annotations of a class body, with those of its bare fields before the next annotated field."""
    ordered: dict[str, Any] = {}
    waiting = [*annotations][::-1]
    for name in fields:
        while name in annotations and name not in ordered:
            annotated = waiting.pop()
            ordered[annotated] = annotations[annotated]
        ordered.setdefault(name, bare.get(name))
    return {**ordered, **annotations}


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    annotate = namespace.get("__annotate_func__") or namespace.get("__annotate__")
    if "__annotations__" in namespace or annotate is None:
        return namespace.get("__annotations__") or {}
    annotationlib: Any = import_module("annotationlib")  # from Python 3.14 on, a function makes the annotations
    return dict(annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF))


def check_name(signature: str, name: str, reserved: frozenset[str]) -> None:
    """Raise `SignatureError` for a name that a field cannot have."""
    if not name.isidentifier() or keyword.iskeyword(name):
        why = "it must be a Python identifier"
    elif name.startswith("_"):
        why = "it must not begin with an underscore"
    elif name in _OF_MODELS - OUTDATED:
        why = "pydantic's models use the name"
    elif name in reserved:
        why = "`Signature` uses the name"
    else:
        return
    raise SignatureError(f"`{signature}` cannot have a field {name!r}: {why}.")


def inherited_instructions(bases: tuple[type, ...], namespace: Mapping[str, Any]) -> str | None:
    """The instructions of a class body: its docstring, or a base's."""
    docstring = namespace.get("__doc__")
    if isinstance(docstring, str):
        return inspect.cleandoc(docstring)
    return next((said for base in bases if (said := getattr(base, "__instructions__", None)) is not None), None)
