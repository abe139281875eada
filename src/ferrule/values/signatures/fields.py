"""Fields of a signature: their declaration, their names, and the checks of inputs.

`output_checks` has the checks of outputs. A field is a `SignatureField`, which is immutable and can
be compared; pydantic's `FieldInfo` is made from it only where pydantic needs one.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Collection, Iterable, Mapping
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
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ferrule.encoding.encode import fits, is_plain
from ferrule.errors import SignatureError, nearest, shown
from ferrule.schema.iterables import eager_type, eager_validators
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.conversation.history import History

if TYPE_CHECKING:
    from types import FunctionType


InputCheck = Callable[[Any], Any]
"""Takes a value and returns it with the field's type, or raises `ValueError`."""

_ROLE_KEY = "ferrule_role"
_UNTYPED_KEY = "ferrule_untyped"
_NO_DEFAULT: Any = ...
_DSPY_KEYWORDS = ("prefix", "format", "parser")
"""DSPy's keywords of fields, which pydantic does not have. They are kept in `json_schema_extra`."""
_SIMILARITY = 0.8
"""Keywords more similar to a known one than this are taken for a mistake."""
_PYDANTIC_ARGUMENTS = ("default_factory", "title", "examples", "alias")
"""The arguments of `pydantic.Field` that a `SignatureField` keeps in `more`."""
_MAX_PROBLEMS = 8
"""The most problems of one value that are explained: a model mends a few at a time."""
_MODEL_NAMES = frozenset(name for name in dir(BaseModel) if not name.startswith("_"))
OUTDATED = frozenset(name for name in _MODEL_NAMES if not name.startswith("model_"))
"""Pydantic's deprecated names (`json`, `copy`, `schema`, ...).

A signature hides them, because they are common names of fields.
"""


# -- declaring a field


def InputField(  # noqa: N802
    default: Any = _NO_DEFAULT,
    *,
    desc: str | None = None,
    description: str | None = None,
    **more: Any,
) -> Any:
    """Declare an input of a signature.

    `description` is an alias of `desc`; `more` are arguments of `pydantic.Field` (`ge`, ...).
    """
    return _declare_in_class("input", default, desc, description, more)


def OutputField(  # noqa: N802
    default: Any = _NO_DEFAULT,
    *,
    desc: str | None = None,
    description: str | None = None,
    init: Literal[False] = False,
    **more: Any,
) -> Any:
    """Declare an output of a signature.

    The constraints in `more` are shown to the model and enforced. An output with a default is
    optional. `init` is for type checkers: outputs are not passed to a call.
    """
    del init
    return _declare_in_class("output", default, desc, description, more)


def _declare_in_class(
    role: str, default: Any, desc: str | None, description: str | None, more: dict[str, Any]
) -> Any:
    if desc is not None and description is not None and desc != description:
        raise SignatureError(
            "Pass one of `desc` and `description`; "
            f"found both: {shown(desc)} and {shown(description)}."
        )
    text = desc
    if text is None:
        text = description
    if text is not None and not isinstance(text, str):
        raise SignatureError(f"`desc` of a field must be a string, found {shown(text)}.")
    _refuse_misspelled(role, more)
    extra: dict[str, Any] = dict(more.pop("json_schema_extra", None) or {})
    for name in _DSPY_KEYWORDS:
        if name in more:
            extra[name] = more.pop(name)
    extra[_ROLE_KEY] = role
    extra["desc"] = text or ""
    # Pydantic's `Field` has overloads with literal keywords only; it checks the arguments itself.
    make = cast("Callable[..., Any]", Field)
    return make(default, description=text, json_schema_extra=extra, **more)


def _refuse_misspelled(role: str, keywords: Collection[str]) -> None:
    """Raise `SignatureError` for an unknown keyword that looks like a known one.

    Pydantic would ignore a misspelled constraint. Other unknown keywords pass, as in DSPy.
    """
    if not keywords:
        return
    pydantic_keywords = cast("FunctionType", Field).__kwdefaults__ or {}
    known = {*_DSPY_KEYWORDS, "desc", *pydantic_keywords, "default"}
    for name in keywords:
        if name in known:
            continue
        similar = nearest(name, known, cutoff=_SIMILARITY)
        if similar is not None:
            raise SignatureError(
                f"`{role.title()}Field` has no keyword `{name}`: did you mean `{similar}`?"
            )


class SignatureField(Struct, frozen=True):
    """A field of a signature. `info` makes pydantic's `FieldInfo` from it."""

    annotation: Any
    """Its type, without constraints."""
    extra: dict[str, Any]
    """Its `json_schema_extra`: the role, the description, and additions of its declaration.

    Do not change it.
    """
    default: Any = PydanticUndefined
    metadata: tuple[Any, ...] = ()
    """Its constraints, and the discriminator of a union."""
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `pydantic.Field`: `default_factory`, `title`, `examples`, `alias`."""

    @classmethod
    def of(cls, info: FieldInfo) -> SignatureField:
        """The field declared by an `InputField()` or `OutputField()`."""
        extra: dict[str, Any] = {}
        if isinstance(info.json_schema_extra, dict):  # pydantic also takes a function
            extra.update(cast("dict[str, Any]", info.json_schema_extra))
        extra["desc"] = info.description or extra.get("desc") or ""
        more: dict[str, Any] = {}
        for name in _PYDANTIC_ARGUMENTS:
            argument = getattr(info, name)
            if argument is not None:
                more[name] = argument
        metadata = list(info.metadata)
        discriminator = info.discriminator
        if isinstance(discriminator, str):
            from pydantic import Discriminator

            discriminator = Discriminator(discriminator)
        if discriminator is not None:
            metadata.append(discriminator)
        return cls(info.annotation, extra, info.default, tuple(metadata), more)

    @property
    def role(self) -> str | None:
        """`input`, `output`, or None for a field declared as neither."""
        return self.extra.get(_ROLE_KEY)

    @property
    def is_untyped(self) -> bool:
        """Whether the field was declared without a type.

        A model writes text for it, and a caller may pass anything.
        """
        return bool(self.extra.get(_UNTYPED_KEY))

    @property
    def description(self) -> str:
        """Its description, or an empty string."""
        return self.extra.get("desc") or ""

    @property
    def annotated(self) -> Any:
        """Its type, with its constraints as `Annotated` metadata."""
        if not self.metadata:
            return self.annotation
        return Annotated[(self.annotation, *self.metadata)]

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
        arguments: dict[str, Any] = {}
        if self.default is not PydanticUndefined:
            arguments["default"] = self.default
        arguments |= self.more | changes
        make = cast("Callable[..., Any]", Field)
        return make(
            description=self.extra.get("desc") or None,
            json_schema_extra=dict(self.extra),
            **arguments,
        )


def declare(
    role: Literal["input", "output"], desc: str = "", *, is_untyped: bool = False
) -> SignatureField:
    """A text field without further settings.

    For ferrule's own code; `InputField` and `OutputField` declare the fields of a class body.
    """
    return SignatureField(str, {_UNTYPED_KEY: is_untyped, _ROLE_KEY: role, "desc": desc})


def as_field(declaration: Any) -> SignatureField | None:
    """A `SignatureField`, `InputField()` or `OutputField()` as a `SignatureField`.

    None for anything else.
    """
    if isinstance(declaration, SignatureField):
        return declaration
    if not isinstance(declaration, FieldInfo):
        return None
    signature_field = SignatureField.of(declaration)
    if signature_field.role is None:
        return None
    return signature_field


def declared_fields(declarations: Mapping[str, Any]) -> dict[str, SignatureField]:
    """The fields of a signature that is given as a mapping.

    Each value is an `InputField()` or `OutputField()`, or a pair of a type and one.
    """
    fields: dict[str, SignatureField] = {}
    for name, declaration in declarations.items():
        annotation: Any = None
        field_declaration = declaration
        if isinstance(declaration, tuple):
            pair = cast("tuple[Any, ...]", declaration)
            annotation, field_declaration = pair if len(pair) == 2 else (None, None)
        signature_field = as_field(field_declaration)
        if signature_field is None:
            raise SignatureError(
                f"Field `{name}` must be an `InputField()` or `OutputField()`, "
                f"or a pair (type, field); found {shown(cast('object', declaration))}."
            )
        fields[name] = copy_field(
            signature_field,
            annotation=str if annotation is None else annotation,
            untyped=annotation is None,
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
    """A copy of a field for another class. `changes` are arguments of `InputField`.

    `keep_bounds` says whether the constraints stay with another type.
    """
    extra = dict(field.extra)
    if untyped is not None or annotation is not None:
        extra[_UNTYPED_KEY] = bool(untyped)
    for alias in ("desc", "description"):
        if alias in changes:
            extra["desc"] = changes.pop(alias) or ""
    for name in _DSPY_KEYWORDS:
        if name in changes:
            extra[name] = changes.pop(name)
    copied = replace(field, extra=extra)
    if annotation is not None:
        bounds = field.metadata if keep_bounds else ()
        copied = replace(copied, annotation=annotation, metadata=bounds)
    if "default" in changes:
        # A default replaces a factory. Pydantic refuses a field that has both.
        more = {name: value for name, value in copied.more.items() if name != "default_factory"}
        copied = replace(copied, default=changes.pop("default"), more=more)
    if not changes and get_origin(copied.annotation) is not Annotated:
        return copied
    # Pydantic merges further constraints with those in an `Annotated` type.
    merged = FieldInfo.from_annotated_attribute(copied.annotated, copied.info(**changes))
    return SignatureField.of(merged)


# -- questions about types


def allows_none(annotation: Any) -> bool:
    """Whether the type includes None (`Any` does not count)."""
    if annotation in (None, NoneType):
        return True
    origin = get_origin(annotation)
    if origin is Annotated:
        return allows_none(get_args(annotation)[0])
    if origin is Literal:
        return None in get_args(annotation)
    if origin in {Union, UnionType}:
        return any(allows_none(member) for member in get_args(annotation))
    return False


def without_none(annotation: Any) -> Any:
    """`T` for `T | None`, and any other type unchanged."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    members = [member for member in get_args(annotation) if member is not NoneType]
    if len(members) == 1:
        return members[0]
    return annotation


def history_input(fields: Mapping[str, SignatureField]) -> str:
    """The name of the input that takes the earlier turns; empty if there is none."""
    for name, input_field in fields.items():
        if without_none(input_field.annotation) is History:
            return name
    return ""


def has_text(annotation: Any) -> bool:
    """Whether a type is written as text, or contains such text (`list["Node"]`)."""
    if isinstance(annotation, (str, ForwardRef)):
        return True
    # The texts in `Literal["a"]` and `Annotated[int, "page"]` are not types.
    is_data = get_origin(annotation) is Literal or hasattr(annotation, "__metadata__")
    return any(
        has_text(argument)
        for argument in get_args(annotation)
        if not (is_data and isinstance(argument, str))
    )


def calls_type(annotation: Any) -> type[ToolCalls] | None:
    """`ToolCalls`, or its subclass, in an annotation; None if there is none."""
    return next(iter(ToolCalls.extract_custom_type_from_annotation(annotation)), None)


# -- checking values


def adapter_of(field: SignatureField) -> TypeAdapter[Any]:
    """The validator of the field's type."""
    annotation = eager_type(field.annotated)
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        # Models, dataclasses and TypedDicts bring their own configuration, and refuse another.
        return TypeAdapter(annotation)


def input_check(field: SignatureField) -> InputCheck | None:
    """The check of an input's values; None if any value is accepted."""
    accepts_any = field.is_untyped or (field.annotation is Any and not field.metadata)
    if accepts_any:
        return None
    return quick_field_check(field, _validated_input_check)


def _validated_input_check(field: SignatureField) -> InputCheck:
    validate, _ = eager_validators(adapter_of(field))

    def check(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            raise ValueError(explained(error)) from None

    return check


def quick_field_check(
    field: SignatureField, make: Callable[[SignatureField], Callable[..., Any]]
) -> Callable[..., Any]:
    """The check made by `make`; for a plain type, made for the first value of another type.

    A process needs 20 ms for its first pydantic validator, and a program whose fields are texts and
    numbers may never need one.
    """
    annotation: Any = field.annotation
    if field.metadata or not is_plain(annotation):
        return make(field)
    full_check: Callable[..., Any] | None = None

    def check(value: Any, **options: bool) -> Any:
        nonlocal full_check
        if fits(annotation, value):
            return value
        if full_check is None:
            full_check = make(field)
        return full_check(value, **options)

    return check


def explained(error: ValidationError) -> str:
    """Every problem of a value, in one line for a model: the path, the expected form, the value."""
    details = error.errors(include_url=False)
    problems: list[str] = []
    for detail in details[:_MAX_PROBLEMS]:
        problem = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if detail["type"] != "missing":
            problem += f", got {shown(detail['input'], 80)}"
        path = ".".join(str(part) for part in detail["loc"])
        if path:
            problem = f"{path}: {problem}"
        problems.append(problem)
    if len(details) > _MAX_PROBLEMS:
        problems.append(f"and {len(details) - _MAX_PROBLEMS} more")
    return "; ".join(problems)


# -- the body of a signature's class


class Absent:
    """Hides an inherited attribute of a class."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        raise AttributeError


def prepare_class_body(
    signature: str, namespace: dict[str, Any], *, reserved: frozenset[str]
) -> None:
    """Check the field names in a class body, and give fields without a type the type text.

    Such a field stays between its neighbours, as in the string form. `reserved` are the names that
    `Signature` uses.
    """
    annotations = _annotations(namespace)
    declared_names = [name for name, value in namespace.items() if isinstance(value, FieldInfo)]
    annotated_names = [
        name for name in annotations if not name.startswith("_") and name != "model_config"
    ]
    for name in dict.fromkeys([*declared_names, *annotated_names]):
        check_name(signature, name, reserved)
    untyped_fields: dict[str, Any] = {}
    for name in declared_names:
        if name not in annotations:
            field = copy_field(SignatureField.of(namespace[name]), annotation=str, untyped=True)
            untyped_fields[name] = field.annotated
            namespace[name] = field.info()
    if untyped_fields:
        namespace["__annotations__"] = _in_written_order(
            annotations, untyped_fields, declared_names
        )


def _in_written_order(
    annotations: Mapping[str, Any], untyped_fields: Mapping[str, Any], declared_names: Iterable[str]
) -> dict[str, Any]:
    """The annotations of a class body, with those of its untyped fields in their order.

    A class body does not tell where an annotation without a value stood among the values. Each
    untyped field comes right before the next field that has both.
    """
    ordered: dict[str, Any] = {}
    remaining = iter(annotations.items())
    for name in declared_names:
        if name in untyped_fields:
            ordered[name] = untyped_fields[name]
        while name not in ordered:
            annotated_name, annotation = next(remaining)
            ordered[annotated_name] = annotation
    return {**ordered, **annotations}


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    # From Python 3.14 on, a class body has a function that makes the annotations.
    annotate = namespace.get("__annotate_func__") or namespace.get("__annotate__")
    if "__annotations__" in namespace or annotate is None:
        return namespace.get("__annotations__") or {}
    annotationlib: Any = import_module("annotationlib")
    return dict(annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF))


def check_name(signature: str, name: str, reserved: frozenset[str]) -> None:
    """Raise `SignatureError` for a name that a field cannot have."""
    if not name.isidentifier() or keyword.iskeyword(name):
        reason = "it must be a Python identifier"
    elif name.startswith("_"):
        reason = "it must not begin with an underscore"
    elif name in _MODEL_NAMES - OUTDATED:
        reason = "pydantic's models use the name"
    elif name in reserved:
        reason = "`Signature` uses the name"
    else:
        return
    raise SignatureError(f"`{signature}` cannot have a field {name!r}: {reason}.")


def inherited_instructions(bases: tuple[type, ...], namespace: Mapping[str, Any]) -> str | None:
    """The instructions of a class body: its docstring, or a base's."""
    docstring = namespace.get("__doc__")
    if isinstance(docstring, str):
        return inspect.cleandoc(docstring)
    for base in bases:
        instructions = getattr(base, "__instructions__", None)
        if instructions is not None:
            return instructions
    return None
