"""The parameters of a tool: one validator and one JSON schema.

The validator is pydantic's, for a `TypedDict`, because that allows any parameter name (`_x`,
`model_config`, `schema`).

Options of the tool may change the schema. Descriptions alone (`arg_desc`, `args={"a": "text"}`)
change no rule, so the validator still checks all of it. A whole `schema`, or a part of one in
`args`, may hold rules that no type expresses: then values are checked against the schema as well
(`checks_schema`).
"""

from __future__ import annotations

import copy
import math
import types
import typing
from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast, get_args, get_origin

from msgspec import Struct
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from pydantic.errors import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUserError,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, PydanticUndefined, SchemaError
from typing_extensions import TypedDict

from ferrule.encoding.encode import escape_surrogates, json_text
from ferrule.errors import ToolDefinitionError
from ferrule.schema.drafts import as_part
from ferrule.schema.inline import SchemaGenerator, inline_definitions, strip_titles
from ferrule.schema.iterables import eager_type, validator_kinds
from ferrule.schema.nodes import Schema, is_object, names_elsewhere
from ferrule.schema.python_types import InputArguments
from ferrule.schema.references import join_pointer
from ferrule.tools.definition.inspect_function import (
    FunctionSpec,
    Parameter,
    description_in,
    field_of,
    parameter_docs,
)
from ferrule.values.calls.secrets import EVERY_OTHER

if TYPE_CHECKING:
    from ferrule.tools.definition.constructor import ToolDefinition

SHOWN_AS_STARS = '"writeOnly":true'
"""Part of the JSON schema of pydantic's `SecretStr` and its like."""
ArgumentsValidator = TypeAdapter[dict[str, Any]]
"""A validator of arguments by name."""
_NO_VALIDATOR = (
    PydanticUserError,
    PydanticSchemaGenerationError,
    SchemaError,
    TypeError,
    ValueError,
    NameError,
)
"""The errors that pydantic raises for a type without a validator."""
_NO_SCHEMA = (PydanticInvalidForJsonSchema, PydanticUserError, PydanticSerializationError)
"""The errors that pydantic raises for a type without a JSON schema."""


class Reread(list[Any]):
    """The items of an iterator that was read. The function receives a new iterator over them."""


_REREAD = AfterValidator(Reread)


class Parameters(Struct, frozen=True):
    """The parameters of a tool."""

    schema: Schema
    """The object schema that the model sees."""
    adapter: ArgumentsValidator | None
    """The validator of the arguments that the function names; None if there are none."""
    extra: ArgumentsValidator | None
    """The validator of further arguments, for a typed `**kwargs`."""
    checks_schema: bool
    """Whether the schema has rules that the adapter does not check: it then checks values, too."""
    names: Mapping[str, str]
    """The parameter for every name that an argument may have, including aliases."""
    is_open: bool
    """Whether further names are allowed."""
    validator_kinds: frozenset[str] = frozenset()
    """The kinds of validators in the adapter and in `extra`, by pydantic's names."""
    secrets: tuple[str, ...] = ()
    """The arguments whose Python type is, or holds, a secret: people see stars in their place."""


def build_parameters(
    tool: str, function_spec: FunctionSpec, definition: ToolDefinition
) -> Parameters:
    """Build the validator and the schema of a tool.

    Raises `ToolDefinitionError` for a type without a JSON form.
    """
    annotations = _annotations(function_spec, definition.arg_desc)
    adapter = None
    if annotations:
        adapter = _make_adapter(tool, annotations)
    extra = _make_extra_adapter(tool, annotations, function_spec.extra)
    validators = [validator for validator in (adapter, extra) if validator is not None]
    kinds = validator_kinds([validator.core_schema for validator in validators])
    names = _names_of(function_spec)
    has_keywords = function_spec.extra is not None  # `**kwargs`
    if definition.schema is not None:
        # A schema of all arguments is shown and checked unchanged. The wire adds what its provider
        # requires beyond it.
        schema = copy.deepcopy(dict(definition.schema))
        properties: Schema = schema.get("properties", {})
        _describe(
            properties,
            {name: text for name, text in definition.arg_desc.items() if name in properties},
        )
        is_closed = schema.get("additionalProperties", True) is False
        return Parameters(
            schema,
            adapter,
            extra,
            checks_schema=True,
            names=_names_in_schema(schema, names),
            is_open=has_keywords and (not is_closed or names_elsewhere(schema)),
            validator_kinds=kinds,
            secrets=_secrets_of_types(annotations, function_spec, adapter, extra),
        )
    schema = _make_schema(tool, annotations, function_spec, adapter, extra)
    secrets = _secrets_in(schema)  # before `args=` may hide what the types say
    checks_schema = _apply_options(
        schema, definition, names, is_open=function_spec.extra is not None
    )
    # `args=` may declare arguments that the function takes by `**kwargs`.
    names |= {name: name for name in schema["properties"] if name not in names}
    return Parameters(
        schema,
        adapter,
        extra,
        checks_schema=checks_schema,
        names=names,
        is_open=has_keywords,
        validator_kinds=kinds,
        secrets=secrets,
    )


def type_of(parameter: Parameter) -> Any:
    """The bare type of a parameter, without metadata."""
    annotation = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return annotation
    return get_args(annotation)[0]


# -- names


def _names_of(function_spec: FunctionSpec) -> dict[str, str]:
    """The parameter for each of its names: its own, and its aliases."""
    names = {parameter.name: parameter.name for parameter in function_spec.parameters}
    for parameter in function_spec.parameters:
        alias = field_of(parameter).validation_alias
        for choice in getattr(alias, "choices", (alias,)):  # of pydantic's `AliasChoices`
            if isinstance(choice, str):
                names[choice] = parameter.name
    return names


def _names_in_schema(schema: Schema, names: dict[str, str]) -> dict[str, str]:
    """The names that a given schema offers, with all aliases of the parameters among them.

    A parameter that the schema does not offer is not for the model: an argument of its name is
    unknown.
    """
    properties: Schema = schema.get("properties", {})
    if not names_elsewhere(schema):
        offered = {names.get(name, name) for name in properties}
        names = {
            name: parameter
            for name, parameter in names.items()
            if parameter in offered or name in offered
        }
    return {**names, **{name: names.get(name, name) for name in properties}}


# -- one parameter


def _annotations(function_spec: FunctionSpec, descriptions: Mapping[str, str]) -> dict[str, Any]:
    """The keys of the `TypedDict` of all arguments; `descriptions` is the option `arg_desc`."""
    docs = parameter_docs(function_spec.doc)
    annotations: dict[str, Any] = {}
    for parameter in function_spec.parameters:
        name = parameter.name
        # The option wins over the annotation, which wins over the docstring.
        description = descriptions.get(name)
        if description is None:
            description = description_in(field_of(parameter))
        if description is None:
            description = docs.get(name)
        annotations[name] = _annotation(parameter, description)
    return annotations


def _annotation(parameter: Parameter, description: str | None) -> Any:
    """A parameter as the annotation of a `TypedDict` key.

    It has the parameter's type, its metadata, its default and this description.
    """
    field = field_of(parameter)
    annotation: Any = parameter.annotation
    default: Any = parameter.default
    default_value = _default_value(parameter)
    if default_value is None and not _admits_none(annotation):
        annotation = _optional(annotation, in_metadata=default is PydanticUndefined)
    metadata: list[Any] = []
    if isinstance(default, FieldInfo):
        metadata.append(default)
    elif default is not PydanticUndefined:
        metadata.append(Field(default=default))
    if annotation is float and _is_infinite_or_nan(default_value):
        metadata.append(Field(allow_inf_nan=True))  # the default may be passed
    if description and description != field.description:
        metadata.append(Field(description=escape_surrogates(description)))
    for item in metadata:
        annotation = Annotated[annotation, item]
    annotation = eager_type(annotation, of_iterator=_REREAD)
    if parameter.may_be_missing:
        return NotRequired[annotation]
    return annotation


def _default_value(parameter: Parameter) -> Any:
    """The default, which may be in a `FieldInfo`, or in the metadata of the annotation."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        return default.default
    if default is PydanticUndefined:
        return field_of(parameter).default
    return default


def _is_infinite_or_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _optional(annotation: Any, *, in_metadata: bool) -> Any:
    """The annotation with None admitted: the function's default is None.

    If the default is in the metadata, that must stay outermost.
    """
    if not in_metadata:
        return typing.Optional[annotation]  # noqa: UP045  works for what has no `|`
    inner, *metadata = get_args(annotation)
    optional: Any = typing.Optional[inner]  # noqa: UP045
    return Annotated[(optional, *metadata)]


def _admits_none(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _admits_none(get_args(annotation)[0])
    if annotation in (Any, None, NoneType, object):
        return True
    if origin in (typing.Union, types.UnionType, typing.Literal):
        return any(map(_admits_none, get_args(annotation)))
    return False


# -- all parameters


def _make_adapter(tool: str, annotations: dict[str, Any]) -> ArgumentsValidator:
    arguments = cast("Any", TypedDict)("Arguments", annotations)
    arguments.__pydantic_config__ = ConfigDict(
        # Even for a tool with `**kwargs`, whose further arguments are checked separately: nested
        # dataclasses and `TypedDict`s inherit this.
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        arbitrary_types_allowed=True,
        # JSON has neither; `Field(allow_inf_nan=True)` allows them for a parameter.
        allow_inf_nan=False,
    )
    try:
        return TypeAdapter(arguments)
    except _NO_VALIDATOR as error:
        raise _form_error(tool, annotations, error) from error


def _make_extra_adapter(
    tool: str, annotations: dict[str, Any], kind: Any
) -> ArgumentsValidator | None:
    """The validator of a `**kwargs` of this type; None if there is nothing to validate."""
    if kind is None or kind in (Any, object):
        return None
    try:
        return TypeAdapter(
            cast("Any", dict)[str, eager_type(kind, of_iterator=_REREAD)],
            config=ConfigDict(allow_inf_nan=False),
        )
    except _NO_VALIDATOR as error:
        raise _form_error(tool, {**annotations, "**": kind}, error) from error


def _make_schema(
    tool: str,
    annotations: dict[str, Any],
    function_spec: FunctionSpec,
    adapter: ArgumentsValidator | None,
    extra: ArgumentsValidator | None,
) -> Schema:
    try:
        named = _json_schema(adapter)
        further = _json_schema(extra)
    except _NO_SCHEMA as error:
        raise _form_error(tool, annotations, error) from error
    # `additionalProperties: false` is left out for shorter prompts; unknown names are still
    # refused.
    schema: Schema = {
        "type": "object",
        "properties": named.get("properties", {}),
        "required": named.get("required", []),
    }
    if function_spec.extra is not None:
        schema["additionalProperties"] = further.get("additionalProperties", True)
    definitions = {**named.get("$defs", {}), **further.get("$defs", {})}
    if definitions:
        schema["$defs"] = definitions
    return inline_definitions(strip_titles(schema))


def _secrets_of_types(
    annotations: dict[str, Any],
    function_spec: FunctionSpec,
    adapter: ArgumentsValidator | None,
    extra: ArgumentsValidator | None,
) -> tuple[str, ...]:
    """The secret arguments of a function whose schema a user gave.

    The types of the function tell, not that schema. If one of them has no JSON schema, no argument
    counts as secret: its values are shown as they are.
    """
    try:
        return _secrets_in(_make_schema("", annotations, function_spec, adapter, extra))
    except ToolDefinitionError:
        return ()


def _secrets_in(schema: Schema) -> tuple[str, ...]:
    """The names of the arguments that are secret, or hold a secret."""
    definitions = json_text(schema.get("$defs", {}))

    def holds_secret(node: Any) -> bool:
        text = json_text(node)
        if SHOWN_AS_STARS in text:
            return True
        # The definition of another argument may hold the secret. Stars too many do no harm.
        return '"$ref"' in text and SHOWN_AS_STARS in definitions

    names = [name for name, node in schema["properties"].items() if holds_secret(node)]
    if holds_secret(schema.get("additionalProperties")):
        names.append(EVERY_OTHER)
    return tuple(names)


def _json_schema(adapter: ArgumentsValidator | None) -> Schema:
    if adapter is None:
        return {}
    return adapter.json_schema(schema_generator=SchemaGenerator)


def _form_error(tool: str, annotations: dict[str, Any], error: Exception) -> ToolDefinitionError:
    """The error for a type that pydantic refuses, with the parameters that have such a type."""
    culprits = [name for name, annotation in annotations.items() if not _has_form(annotation)]
    which = ", ".join(f"`{name}`" for name in culprits) or "its parameters"
    lines = str(error).splitlines()
    # A `SchemaError` gives its reason in the last line, other errors in the first.
    if isinstance(error, SchemaError):
        line = lines[-1]
    else:
        line = lines[0]
    reason = line.split(". ")[0].strip(" .")
    return ToolDefinitionError(
        f"`{tool}` cannot become a tool: the type of {which} has no JSON form ({reason}). "
        "Give it a type that has one, or say `arg_types={...}`. What a model cannot write, such as "
        "a connection, comes from `ctx: Context[...]`, with `deps=`, or from `functools.partial`."
    )


def _has_form(annotation: Any) -> bool:
    if get_origin(annotation) is NotRequired:
        annotation = get_args(annotation)[0]
    try:
        TypeAdapter(annotation, config=None).json_schema(schema_generator=SchemaGenerator)
    except (*_NO_VALIDATOR, *_NO_SCHEMA):
        return False
    return True


# -- options that change the schema


def _apply_options(
    schema: Schema, definition: ToolDefinition, names: Mapping[str, str], *, is_open: bool
) -> bool:
    """Apply `args` and `arg_desc` to the properties of a schema that was made from types.

    Returns whether they change rules, not only descriptions. The description of a parameter that
    `args` hides is not used.
    """
    properties: Schema = schema["properties"]
    # The schema shows a parameter under its alias, if it has one.
    key_of = {parameter: name for name, parameter in names.items() if name in properties}
    changes_rules = False
    for name, option in definition.args.items():
        key = key_of.get(name, name)
        before: Any = properties.get(key)
        # DSPy's rule: an argument that is listed for `**kwargs` is required.
        is_required = before is None and not (is_object(option) and "default" in option)
        if isinstance(definition.args, InputArguments):
            is_required = name in definition.args.required
        if is_required and key not in schema["required"]:
            schema["required"] = [*schema["required"], key]
        if isinstance(option, str):
            _describe(properties, {key: option})
        else:
            part = as_part(option, join_pointer("", "properties", key))
            properties[key] = {**_description_of(before), **part}
        if before is None or is_object(option):
            changes_rules = True
    texts = {
        key_of.get(name, name): text
        for name, text in definition.arg_desc.items()
        if name in names or name in properties or is_open
    }
    _describe(properties, texts)
    return changes_rules


def _description_of(schema: Any) -> Schema:
    if is_object(schema) and "description" in schema:
        return {"description": schema["description"]}
    return {}


def _describe(properties: Schema, texts: Mapping[str, str]) -> None:
    for key, text in texts.items():
        before: Any = properties.get(key, {})
        if not is_object(before):
            before = {}
        properties[key] = {**before, "description": text}
