"""The parameters of a tool: one validator and one JSON schema.

The validator is pydantic's, for a `TypedDict`, because that allows any parameter name (`_x`,
`model_config`, `schema`).
"""

from __future__ import annotations

import copy
import math
import types
import typing
from functools import cache, partial
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, TypeAdapter
from pydantic.errors import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUserError,
)
from pydantic_core import PydanticSerializationError, PydanticUndefined, SchemaError
from typing_extensions import TypedDict

from ferrule.encoding.encode import escape_surrogates
from ferrule.errors import ToolDefinitionError
from ferrule.record import Record
from ferrule.schema.iterables import eager_type, validator_kinds
from ferrule.schema.nodes import Schema, is_object, names_elsewhere
from ferrule.tools.definition.inspect_function import (
    FunctionSpec,
    Parameter,
    description_in,
    field_of,
    parameter_docs,
)
from ferrule.tools.definition.plain import Plain, plain_parameters, plain_schema
from ferrule.values.content.late_model import is_field_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ferrule.tools.definition.constructor import ToolDefinition


# The errors that pydantic raises for a type without a validator, and for one without a JSON schema.
_NO_VALIDATOR = (
    PydanticUserError,
    PydanticSchemaGenerationError,
    SchemaError,
    TypeError,
    ValueError,
    NameError,
)
_NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticUserError, PydanticSerializationError)


class Reread(list[Any]):
    """The items of an iterator that was read. The function receives a new iterator over them."""


_REREAD = AfterValidator(Reread)


class Parameters(Record):
    """The parameters of a tool."""

    schema: Schema
    """The object schema that the model sees."""
    adapter: Callable[[], TypeAdapter[dict[str, Any]]] | None
    """Returns the validator of the arguments that the function names; None if there are none."""
    extra: TypeAdapter[dict[str, Any]] | None
    """The validator of further arguments, for a typed `**kwargs`."""
    by_hand: bool
    """Whether the schema has rules that the adapter does not check."""
    names: Mapping[str, str]
    """The parameter for every name that an argument may have, including aliases."""
    open: bool
    """Whether further names are allowed."""
    plain: tuple[Plain, ...] = ()
    """All parameters, if all are plain and no schema was given."""
    inside: frozenset[str] = frozenset()
    """The kinds of validators in the adapter and in `extra`, by pydantic's names; empty if all are plain."""


def build_parameters(tool: str, found: FunctionSpec, given: ToolDefinition) -> Parameters:
    """Build the validator and the schema of a tool. Raises `ToolDefinitionError` for a type without a JSON form."""
    docs = {**parameter_docs(found.doc), **given.arg_desc}
    plain = plain_parameters(found)
    annotate = partial(_annotations, found, docs, given.arg_desc)
    annotations = {} if plain else annotate()
    made = _adapter(tool, annotations) if annotations else None
    adapter = (
        cache(lambda: _adapter(tool, annotate()))
        if plain
        else (lambda: made)
        if made is not None
        else None
    )
    extra = _adapter_of_extra(tool, annotations, found.extra)
    inside = validator_kinds([each.core_schema for each in (made, extra) if each is not None])
    names = {each.name: each.name for each in found.parameters}
    for each in () if plain else found.parameters:
        alias = field_of(each).validation_alias
        for choice in getattr(alias, "choices", (alias,)):  # of pydantic's `AliasChoices`
            if isinstance(choice, str):
                names[choice] = each.name
    if given.schema is not None:
        # A schema of all arguments is shown and checked unchanged. The wire adds what its provider
        # requires beyond it.
        schema = copy.deepcopy(dict(given.schema))
        properties: Schema = schema.get("properties", {})
        _describe(
            properties,
            {name: text for name, text in given.arg_desc.items() if name in properties},
        )
        offered = {names.get(name, name) for name in properties}
        names = {
            name: own
            for name, own in names.items()
            if own in offered or name in offered or names_elsewhere(schema)
        }
        names |= {name: names.get(name, name) for name in properties}
        is_open = found.extra is not None and (
            schema.get("additionalProperties", True) is not False or names_elsewhere(schema)
        )
        return Parameters(
            schema,
            adapter,
            extra,
            by_hand=True,
            names=names,
            open=is_open,
            inside=inside,
        )
    schema = (
        plain_schema(plain, docs) if plain else _schema(tool, annotations, made, found.extra, extra)
    )
    by_hand = _override(schema, given, names)
    names |= {name: name for name in schema["properties"] if name not in names}
    is_open = found.extra is not None
    plain = () if by_hand else plain
    return Parameters(
        schema,
        adapter,
        extra,
        by_hand=by_hand,
        names=names,
        open=is_open,
        plain=plain,
        inside=inside,
    )


def type_of(parameter: Parameter) -> Any:
    """The bare type of a parameter, without metadata."""
    annotation = parameter.annotation
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


# -- one parameter
# ------------------------------------------------------------------------------------------------


def _annotations(
    found: FunctionSpec,
    docs: Mapping[str, str],
    insisted: Collection[str],
) -> dict[str, Any]:
    """The keys of the `TypedDict` of all arguments."""
    return {
        each.name: _annotation(each, docs.get(each.name), each.name in insisted)
        for each in found.parameters
    }


def _annotation(parameter: Parameter, documented_as: str | None, insisted: bool) -> Any:
    """A parameter as the annotation of a `TypedDict` key: its type, its metadata, its description, its default."""
    from pydantic import Field  # late: a tool of plain types needs none

    field = field_of(parameter)
    default: Any = parameter.default
    annotation: Any = parameter.annotation
    plain_default = default.default if is_field_info(default) else default
    if plain_default is PydanticUndefined and not is_field_info(default):
        plain_default = field.default
    if plain_default is None and not _admits_none(annotation):
        # The default may be in the metadata, which must stay outermost.
        inside: tuple[Any, ...] = (
            get_args(annotation) if default is PydanticUndefined else (annotation,)
        )
        optional: Any = typing.Optional[inside[0]]  # noqa: UP045  works for what has no `|`
        annotation = Annotated[(optional, *inside[1:])] if inside[1:] else optional
    metadata: list[Any] = []
    if is_field_info(default):
        metadata.append(default)
    elif default is not PydanticUndefined:
        metadata.append(Field(default=default))
    if (
        annotation is float
        and isinstance(plain_default, float)
        and not math.isfinite(plain_default)
    ):
        metadata.append(Field(allow_inf_nan=True))  # the default may be passed
    own = description_in(field)
    description = documented_as if insisted or own is None else own
    if description and description != field.description:
        metadata.append(Field(description=escape_surrogates(description)))
    for each in metadata:
        annotation = Annotated[annotation, each]
    annotation = eager_type(annotation, of_iterator=_REREAD)
    return NotRequired[annotation] if parameter.may_be_missing else annotation


def _admits_none(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _admits_none(get_args(annotation)[0])
    members = (
        get_args(annotation)
        if get_origin(annotation) in (typing.Union, types.UnionType, typing.Literal)
        else ()
    )
    return annotation in (Any, None, NoneType, object) or any(map(_admits_none, members))


# -- all of them
# --------------------------------------------------------------------------------------------------


def _adapter(tool: str, annotations: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    arguments: Any = TypedDict("Arguments", annotations)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
    arguments.__pydantic_config__ = ConfigDict(
        # Even for a tool with `**kwargs`, whose further arguments are checked separately: nested
        # dataclasses and `TypedDict`s inherit this.
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,  # JSON has neither; `Field(allow_inf_nan=True)` allows them for a parameter
    )
    try:
        return TypeAdapter(arguments)
    except _NO_VALIDATOR as error:
        raise _no_form(tool, annotations, error) from error


def _adapter_of_extra(
    tool: str,
    annotations: dict[str, Any],
    kind: Any,
) -> TypeAdapter[dict[str, Any]] | None:
    if kind is None or kind in (Any, object):
        return None
    try:
        return TypeAdapter(
            dict[str, eager_type(kind, of_iterator=_REREAD)],  # pyright: ignore[reportInvalidTypeForm]
            config=ConfigDict(allow_inf_nan=False),
        )
    except _NO_VALIDATOR as error:
        raise _no_form(tool, {**annotations, "**": kind}, error) from error


def _schema(
    tool: str,
    annotations: dict[str, Any],
    adapter: TypeAdapter[Any] | None,
    extra: Any,
    extra_adapter: TypeAdapter[Any] | None,
) -> Schema:
    from ferrule.schema.inline import Generator, inline_definitions, strip_titles

    try:
        found = adapter.json_schema(schema_generator=Generator) if adapter is not None else {}
        more = (
            extra_adapter.json_schema(schema_generator=Generator)
            if extra_adapter is not None
            else {}
        )
    except _NO_SCHEMA as error:
        raise _no_form(tool, annotations, error) from error
    # `additionalProperties: false` is left out for shorter prompts; unknown names are still
    # refused.
    schema: Schema = {
        "type": "object",
        "properties": found.get("properties", {}),
        "required": found.get("required", []),
    }
    definitions = {**found.get("$defs", {}), **more.get("$defs", {})}
    if extra is not None:
        schema["additionalProperties"] = more.get("additionalProperties", True)
    if definitions:
        schema["$defs"] = definitions
    return inline_definitions(strip_titles(schema))


def _no_form(tool: str, annotations: dict[str, Any], error: Exception) -> ToolDefinitionError:
    culprits = [name for name, annotation in annotations.items() if not _has_form(annotation)]
    which = ", ".join(f"`{name}`" for name in culprits) or "its parameters"
    lines = str(error).splitlines()
    reason = lines[-1 if isinstance(error, SchemaError) else 0].split(". ")[0].strip(" .")
    return ToolDefinitionError(
        f"`{tool}` cannot become a tool: the type of {which} has no JSON form ({reason}). "
        "Give it a type that has one, or say `arg_types={...}`. What a model cannot write, such as a connection, comes from "
        "`ctx: Context[...]`, with `deps=`, or from `functools.partial`.",
    )


def _has_form(annotation: Any) -> bool:
    from ferrule.schema.inline import Generator

    annotation = get_args(annotation)[0] if get_origin(annotation) is NotRequired else annotation
    try:
        TypeAdapter(annotation, config=None).json_schema(schema_generator=Generator)
    except (*_NO_VALIDATOR, *_NO_SCHEMA):
        return False
    return True


def _override(schema: Schema, given: ToolDefinition, names: Mapping[str, str]) -> bool:
    """Apply the options to the properties. Returns whether they change more than descriptions."""
    properties: Schema = schema["properties"]
    key_of = {own: name for name, own in names.items() if name in properties}
    changed = False
    for name, said in given.args.items():
        key = key_of.get(name, name)
        before: Any = properties.get(key)
        if before is None and not (is_object(said) and "default" in said):
            schema["required"] = [
                *schema["required"],
                key,
            ]  # DSPy's rule: an argument listed for `**kwargs` is required
        if is_object(said):
            kept = (
                {"description": before["description"]}
                if is_object(before) and "description" in before
                else {}
            )
            properties[key] = {**kept, **copy.deepcopy(said)}
        else:
            properties[key] = {**(before if is_object(before) else {}), "description": said}
        changed = changed or before is None or is_object(said)
    _describe(properties, {key_of.get(name, name): text for name, text in given.arg_desc.items()})
    return changed


def _describe(properties: Schema, texts: Mapping[str, str]) -> None:
    for key, text in texts.items():
        before: Any = properties.get(key, {})
        properties[key] = {**(before if is_object(before) else {}), "description": text}
