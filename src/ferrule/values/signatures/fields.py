"""Fields of a signature: their declaration and names, and the checks of inputs. `output_checks` has the checks of outputs."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from importlib import import_module
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ForwardRef,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
)

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ferrule.encoding.encode import fits, is_plain
from ferrule.errors import SignatureError, shown
from ferrule.schema.iterables import eager_type, eager_validators
from ferrule.values.content.type import Type
from ferrule.values.signatures.keywords import OWN, check_keywords

if TYPE_CHECKING:
    from ferrule.values.calls.tool_calls import ToolCalls

InputCheck = Callable[[Any], Any]
"""Takes a value and returns it with the field's type, or raises `ValueError`."""

_ROLE, _UNTYPED = "ferrule_role", "ferrule_untyped"
_NO_DEFAULT: Any = ...
_MORE = ("default_factory", "title", "examples", "alias")
_MOST_PROBLEMS = 8
_OF_MODELS = frozenset(name for name in dir(BaseModel) if not name.startswith("_"))
OUTDATED = frozenset(name for name in _OF_MODELS if not name.startswith("model_"))
"""Pydantic's deprecated names (`json`, `copy`, `schema`, ...), which a signature hides because they are common field names."""


def InputField(  # noqa: N802
    default: Any = _NO_DEFAULT,
    *,
    desc: str | None = None,
    description: str | None = None,
    **more: Any,
) -> Any:
    """Declare an input of a signature. `description` is an alias of `desc`; `more` are arguments of `pydantic.Field` (`ge`, ...)."""
    return _declared("input", default, desc, description, more)


def OutputField(  # noqa: N802
    default: Any = _NO_DEFAULT,
    *,
    desc: str | None = None,
    description: str | None = None,
    init: Literal[False] = False,
    **more: Any,
) -> Any:
    """Declare an output of a signature. The constraints in `more` are shown to the model and enforced; a default makes it optional.

    `init` is for type checkers: outputs are not passed to a call.
    """
    del init
    return _declared("output", default, desc, description, more)


def _declared(
    role: str,
    default: Any,
    desc: str | None,
    description: str | None,
    more: dict[str, Any],
) -> Any:
    if desc is not None and description is not None and desc != description:
        raise SignatureError(
            f"Pass one of `desc` and `description`; found both: {shown(desc)} and {shown(description)}.",
        )
    said = desc if desc is not None else description
    if said is not None and not isinstance(said, str):
        raise SignatureError(f"`desc` of a field must be a string, found {shown(said)}.")
    check_keywords(role, more)
    extra: dict[str, Any] = {**(more.pop("json_schema_extra", None) or {})}
    extra.update(
        {**{name: more.pop(name) for name in OWN if name in more}, _ROLE: role, "desc": said or ""},
    )
    from pydantic import Field

    # Pydantic's `Field` has overloads with literal keywords only; it checks the arguments itself.
    return cast("Callable[..., Any]", Field)(
        default,
        description=said,
        json_schema_extra=extra,
        **more,
    )


class SignatureField(Struct, frozen=True):
    """A field of a signature. `info` makes pydantic's `FieldInfo` from it; pydantic's module is slow to load."""

    annotation: Any
    """Its type, without constraints."""
    extra: dict[str, Any]
    """Its `json_schema_extra`: the role, the description, and additions of its declaration. Do not change it."""
    default: Any = PydanticUndefined
    metadata: tuple[Any, ...] = ()
    """Its constraints, and the discriminator of a union."""
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `pydantic.Field`: `default_factory`, `title`, `examples`, `alias`."""

    @classmethod
    def of(cls, info: FieldInfo) -> SignatureField:
        """The field declared by an `InputField()` or `OutputField()`."""
        extra = (
            cast("dict[str, Any]", info.json_schema_extra)
            if isinstance(info.json_schema_extra, dict)
            else {}
        )
        extra = {**extra, "desc": info.description or extra.get("desc") or ""}
        more = {name: value for name in _MORE if (value := getattr(info, name)) is not None}
        tag = info.discriminator
        if isinstance(tag, str):
            from pydantic import Discriminator

            tag = Discriminator(tag)
        return cls(
            info.annotation,
            extra,
            info.default,
            (*info.metadata, *([tag] if tag is not None else [])),
            more,
        )

    @property
    def role(self) -> str | None:
        """`input`, `output`, or None for a field declared as neither."""
        return self.extra.get(_ROLE)

    @property
    def is_untyped(self) -> bool:
        """Whether the field was declared without a type: a model writes text, and a caller may pass anything."""
        return bool(self.extra.get(_UNTYPED))

    @property
    def description(self) -> str:
        """Its description, or an empty string."""
        return self.extra.get("desc") or ""

    @property
    def annotated(self) -> Any:
        """Its type, with its constraints as `Annotated` metadata."""
        return Annotated[(self.annotation, *self.metadata)] if self.metadata else self.annotation  # pyright: ignore[reportReturnType]

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is PydanticUndefined and "default_factory" not in self.more

    def get_default(self) -> Any:
        """The default. A mutable default is new at each call."""
        if "default_factory" in self.more:
            return self.info().get_default(call_default_factory=True, validated_data={})
        return deepcopy(self.default)

    def info(self, **changes: Any) -> FieldInfo:
        """Pydantic's `FieldInfo` of this field. `changes` are arguments of `pydantic.Field`."""
        from pydantic import Field

        default = {} if self.default is PydanticUndefined else {"default": self.default}
        make = cast("Callable[..., Any]", Field)
        return make(
            description=self.extra.get("desc") or None,
            json_schema_extra={**self.extra},
            **{**default, **self.more, **changes},
        )


def declare(
    role: Literal["input", "output"],
    desc: str = "",
    *,
    is_untyped: bool = False,
) -> SignatureField:
    """A text field without further settings. `InputField` and `OutputField` declare fields of a class body."""
    return SignatureField(str, {_UNTYPED: is_untyped, _ROLE: role, "desc": desc})


def as_field(declared: Any) -> SignatureField | None:
    """A `SignatureField`, `InputField()` or `OutputField()` as a `SignatureField`; None for anything else."""
    if isinstance(declared, SignatureField):
        return declared
    found = SignatureField.of(declared) if isinstance(declared, FieldInfo) else None
    return found if found is not None and found.role is not None else None


def declared_fields(mapping: Mapping[str, Any]) -> dict[str, SignatureField]:
    """The fields of a signature given as a mapping: each value is an `InputField()` or `OutputField()`, or a pair of a type and one."""
    fields: dict[str, SignatureField] = {}
    for name, given in mapping.items():
        pair = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (None, given)
        kind, declared = pair if len(pair) == 2 else (None, None)
        if (field := as_field(declared)) is None:
            found = shown(pair if isinstance(given, tuple) else given)
            msg = f"Field `{name}` must be an `InputField()` or `OutputField()`, or a pair (type, field); found {found}."
            raise SignatureError(msg)
        fields[name] = copy_field(
            field,
            annotation=kind if kind is not None else str,
            untyped=kind is None,
        )
    return fields


def copy_field(
    field: SignatureField,
    *,
    annotation: Any = None,
    keep_bounds: bool = True,
    untyped: bool | None = None,
    **changes: Any,
) -> SignatureField:
    """A copy of a field for another class. `changes` are arguments of `InputField`."""
    extra = dict(field.extra)
    if untyped is not None or annotation is not None:
        extra[_UNTYPED] = bool(untyped)
    for alias in ("desc", "description"):
        if alias in changes:
            extra["desc"] = changes.pop(alias) or ""
    extra.update({name: changes.pop(name) for name in OWN if name in changes})
    bounds = field.metadata if annotation is None or keep_bounds else ()
    made = replace(
        field,
        annotation=field.annotation if annotation is None else annotation,
        extra=extra,
        metadata=bounds,
    )
    if "default" in changes:
        more = {name: value for name, value in made.more.items() if name != "default_factory"}
        made = replace(made, default=changes.pop("default"), more=more)
    if not changes and get_origin(made.annotation) is not Annotated:
        return made

    return SignatureField.of(
        FieldInfo.from_annotated_attribute(made.annotated, made.info(**changes)),
    )


def allows_none(annotation: Any) -> bool:
    """Whether the type includes None (`Any` does not count)."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return allows_none(get_args(annotation)[0])
    if origin is Literal:
        return None in get_args(annotation)
    return annotation in (None, NoneType) or (
        origin in {Union, UnionType} and any(map(allows_none, get_args(annotation)))
    )


def without_none(annotation: Any) -> Any:
    """`T` for `T | None`, and any other type unchanged."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    others = [each for each in get_args(annotation) if each is not NoneType]
    return others[0] if len(others) == 1 else annotation


def has_text(annotation: Any) -> bool:
    """Whether a type is written as text, or contains such text (`list["Node"]`)."""
    if isinstance(annotation, (str, ForwardRef)):
        return True
    # The texts in `Literal["a"]` and `Annotated[int, "page"]` are not types.
    is_data = get_origin(annotation) is Literal or hasattr(annotation, "__metadata__")
    return any(
        has_text(each) for each in get_args(annotation) if not (is_data and isinstance(each, str))
    )


def calls_type(annotation: Any) -> type[ToolCalls] | None:
    """`ToolCalls`, or its subclass, in an annotation; None if there is none. The class is imported for an annotation with a `Type`."""
    if not Type.extract_custom_type_from_annotation(annotation):
        return None
    from ferrule.values.calls.tool_calls import ToolCalls

    return next(iter(ToolCalls.extract_custom_type_from_annotation(annotation)), None)


def adapter_of(field: SignatureField) -> TypeAdapter[Any]:
    """The validator of the field's type."""
    annotation = eager_type(field.annotated)
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(
            annotation,
        )  # models, dataclasses and TypedDicts bring their own configuration


def input_check(field: SignatureField) -> InputCheck | None:
    """The check of an input's values; None if any value is accepted."""
    takes_any = field.is_untyped or (field.annotation is Any and not field.metadata)
    return None if takes_any else quick_field_check(field, _check_given)


def _check_given(field: SignatureField) -> InputCheck:
    validate, _ = eager_validators(adapter_of(field))

    def check(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            raise ValueError(explained(error)) from None

    return check


def quick_field_check(
    field: SignatureField,
    make: Callable[[SignatureField], Callable[..., Any]],
) -> Callable[..., Any]:
    """The check made by `make`. For a plain type, it is made only for the first value of another type, as it costs a process 20 ms."""
    kind: Any = field.annotation
    if field.metadata or not is_plain(kind):
        return make(field)
    made: list[Callable[..., Any]] = []

    def check(value: Any, **how: bool) -> Any:
        if fits(kind, value):
            return value
        if not made:
            made.append(make(field))
        return made[0](value, **how)

    return check


def explained(error: ValidationError) -> str:
    """Every problem of a value, in one line for a model: the place, what was expected, what was found."""
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


# -- the body of a signature's class
# ------------------------------------------------------------------------------


class Absent:
    """Hides an inherited attribute of a class."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        raise AttributeError


def prepare_class_body(
    signature: str,
    namespace: dict[str, Any],
    *,
    reserved: frozenset[str],
) -> None:
    """Check the field names in a class body, and annotate fields without a type as text, at their place, as in the string form.

    `reserved` are the names that `Signature` uses.
    """
    annotations = _annotations(namespace)
    fields = [name for name, value in namespace.items() if isinstance(value, FieldInfo)]
    annotated = [
        name for name in annotations if not name.startswith("_") and name != "model_config"
    ]
    for name in dict.fromkeys([*fields, *annotated]):
        check_name(signature, name, reserved)
    bare: dict[str, Any] = {}
    for name in fields:
        if name not in annotations:
            field = copy_field(SignatureField.of(namespace[name]), annotation=str, untyped=True)
            bare[name], namespace[name] = field.annotated, field.info()
    if bare:
        namespace["__annotations__"] = _in_written_order(annotations, bare, fields)


def _in_written_order(
    annotations: Mapping[str, Any],
    bare: Mapping[str, Any],
    fields: Iterable[str],
) -> dict[str, Any]:
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
    annotationlib: Any = import_module(
        "annotationlib",
    )  # from Python 3.14 on, a function makes the annotations
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
    if isinstance(docstring := namespace.get("__doc__"), str):
        return inspect.cleandoc(docstring)
    return next(
        (said for base in bases if (said := getattr(base, "__instructions__", None)) is not None),
        None,
    )
