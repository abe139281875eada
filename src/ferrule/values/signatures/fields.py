"""Fields of a signature: how they are declared, and what checks the values that are given for inputs.

In: annotations and what `InputField` or `OutputField` says beside them. Out: one function a field that takes a value and returns the typed
value, or raises `ValueError` with a text that says what is wrong. What checks outputs stands in `output_checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError

from ferrule.errors import SignatureError, shown
from ferrule.values.encoding.plain import fits, is_plain

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Check = Callable[[Any], Any]
"""Takes a value, returns the typed value, raises `ValueError`."""

_ROLE, _UNTYPED = "ferrule_role", "ferrule_untyped"
_NO_DEFAULT: Any = ...
_MOST_PROBLEMS = 8


def InputField(default: Any = _NO_DEFAULT, *, desc: str | None = None, description: str | None = None, **more: Any) -> Any:  # noqa: N802  DSPy's name
    """Declare an input of a signature. `desc` and `description` are one thing; `more` is what `pydantic.Field` takes (`ge`, ...)."""
    return _declared("input", default, desc, description, more)


def OutputField(default: Any = _NO_DEFAULT, *, desc: str | None = None, description: str | None = None, **more: Any) -> Any:  # noqa: N802
    """Declare an output of a signature. Constraints in `more` are told to the model and enforced; a default makes it optional."""
    return _declared("output", default, desc, description, more)


def _declared(role: str, default: Any, desc: str | None, description: str | None, more: dict[str, Any]) -> Any:
    if desc is not None and description is not None and desc != description:
        msg = f"A field takes one of `desc` and `description`, found both: {shown(desc)} and {shown(description)}."
        raise SignatureError(msg)
    said = desc if desc is not None else description
    if said is not None and not isinstance(said, str):
        msg = f"`desc` of a field is a text, found {shown(said)}."
        raise SignatureError(msg)
    extra: dict[str, Any] = {**(more.pop("json_schema_extra", None) or {})}
    extra.update({name: more.pop(name) for name in ("prefix", "format", "parser") if name in more})
    extra.update({_ROLE: role, "desc": said or ""})
    # Pydantic's `Field` is a set of overloads over literal keywords; what it is handed here it checks itself.
    make = cast("Callable[..., Any]", Field)
    return make(default, description=said, json_schema_extra=extra, **more)


def role_of(field: FieldInfo) -> str | None:
    """`input`, `output`, or None for a field that was declared as neither."""
    return _extra(field).get(_ROLE)


def is_untyped(field: FieldInfo) -> bool:
    """Whether the field's type was left open in a string form: text for a model, anything for a caller."""
    return bool(_extra(field).get(_UNTYPED))


def description_of(field: FieldInfo) -> str:
    """What the field's declaration says of it; empty for nothing."""
    return field.description or _extra(field).get("desc") or ""


def _extra(field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    return cast("dict[str, Any]", extra) if isinstance(extra, dict) else {}


def annotation_of(field: FieldInfo) -> Any:
    """The field's type with its constraints."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation  # pyright: ignore[reportReturnType]


def renewed(
    field: FieldInfo,
    *,
    annotation: Any = None,
    keep_bounds: bool = True,
    untyped: bool | None = None,
    **changes: Any,
) -> tuple[Any, Any]:
    """Annotation and declaration of a field like this one, ready for a new class. `changes` are what `InputField` takes."""
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
    """Whether the type names None as a value (`Any` does not)."""
    if annotation is None or annotation is NoneType:
        return True
    origin = get_origin(annotation)
    if origin is Annotated:
        return allows_none(get_args(annotation)[0])
    if origin is Literal:
        return None in get_args(annotation)
    return origin in {Union, UnionType} and any(allows_none(part) for part in get_args(annotation))


def adapter_of(field: FieldInfo) -> TypeAdapter[Any]:
    """What validates values of the field's type."""
    annotation = annotation_of(field)
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(annotation)  # models, dataclasses and TypedDicts bring their own configuration


def input_check(field: FieldInfo) -> Check | None:
    """Checks what a caller passes for an input; None where anything goes."""
    if is_untyped(field) or (field.annotation is Any and not field.metadata):
        return None
    return _quick(field) if is_plain(field.annotation) and not field.metadata else _check_given(field)


def _check_given(field: FieldInfo) -> Check:
    validate = adapter_of(field).validate_python

    def check(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            raise ValueError(explained(error)) from None

    return check


def _quick(field: FieldInfo) -> Check:
    """Takes values of the field's very type as they are; the first of another makes the check of all others."""
    kind: Any = field.annotation
    made: list[Check] = []

    def check(value: Any) -> Any:
        if fits(kind, value):
            return value
        if not made:
            made.append(_check_given(field))
        return made[0](value)

    return check


def explained(error: ValidationError) -> str:
    """Every problem of a value in one line for a model: where, what is expected, what was found."""
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
