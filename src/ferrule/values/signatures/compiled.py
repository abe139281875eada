"""Everything that is derived from a signature's fields, computed once and kept with the signature.

A signature is a class of pydantic with a metaclass (`signature.py`). This module has what that
class would otherwise compute again and again: `Signature.plan` is its `CompiledSignature`, and most
methods of a signature are a line that calls one here. Three moments matter:

- When the class is made, `class_fields` and `compile_signature` check the fields, because that is
  when a mistake should be reported.
- On first use, validators and schemas are built. Pydantic needs milliseconds for each, and many
  signatures (those that a program derives to compose a prompt) never check a value.
- In each run, default factories are called. A run records what they make, so that its replay gets
  the same values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from ferrule.encoding.encode import TYPE_NAMES, is_plain, is_read_once, jsonable, without_modules
from ferrule.errors import InputError, SignatureError, nearest
from ferrule.schema.inline import INEXPRESSIBLE, SchemaGenerator, json_schema_of
from ferrule.schema.iterables import read_iterators
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.signatures.fields import (
    InputCheck,
    SignatureField,
    adapter_of,
    allows_none,
    calls_type,
    input_check,
    without_none,
)
from ferrule.values.signatures.output_checks import OutputCheck, output_check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from pydantic.json_schema import JsonSchemaMode
    from pydantic_core import ErrorDetails

T = TypeVar("T")

_OPTION_ADVICE = {
    # `limits` is an option of a call of `ReAct` alone.
    "limits": "for a program that is not a `ReAct`, set it with `context(limits=...)`",
    "store": "`program.start(...)` takes it",
    "run_id": "`program.start(...)` takes it",
    "thread_id": "`program.start(run_id=...)` names a run",
    "policy": "set it with `context(policy=...)`",
    "callbacks": "set it with `context(callbacks=...)`",
    "adapter": "set it with `context(adapter=...)`",
    "prices": "set it with `context(prices=...)`",
    "temperature": "a setting of the model: `config={'temperature': ...}`",
    "max_tokens": "a setting of the model: `config={'max_tokens': ...}`",
    "reasoning_effort": "a setting of the model: `config={'reasoning_effort': ...}`",
    "history": "a conversation is an input of the type `History`",
    "message_history": "a conversation is an input of the type `History`",
    "session": "a conversation is an input of the type `History`",
}
"""Options of ferrule or of other libraries that users pass as inputs by mistake, with advice."""

GENERATED = object()
"""The default of a function's parameter for an input that has a default factory: the factory must
be called in each run, and a function's default exists once (`CompiledSignature.call_signature`)."""


class CompiledSignature:
    """The fields of one signature by role, and what is derived from them."""

    __slots__ = (
        "_input_checks",
        "_output_checks",
        "_schema",
        "author_instructions",
        "cache",
        "content",
        "factories",
        "hash",
        "inputs",
        "instructions",
        "optional",
        "outputs",
    )

    def __init__(self, fields: Mapping[str, SignatureField], instructions: str | None) -> None:
        self.inputs = {
            name: _with_none_as_default(field)
            for name, field in fields.items()
            if field.role == "input"
        }
        self.outputs = {name: field for name, field in fields.items() if field.role == "output"}
        self.factories = [
            name for name, field in self.inputs.items() if "default_factory" in field.more
        ]
        """The inputs whose defaults a factory makes in each run."""
        self.author_instructions = instructions
        """The instructions that the author wrote, or None."""
        if instructions is None:
            self.instructions = default_instructions(self.inputs, self.outputs)
        else:
            self.instructions = instructions
        self.content = (
            self.instructions,
            *(_content(name, field) for name, field in self.fields.items()),
        )
        """Signatures with equal content are equal.

        A missing type counts as text, because a model sees the same.
        """
        # Only names: types and defaults are part of `content`, but need not be hashable.
        self.hash = hash((self.instructions, *self.inputs, *self.outputs))
        self.optional = {
            name: field
            for name, field in self.outputs.items()
            if not field.is_required or allows_none(field.annotation)
        }
        """Outputs that an answer may omit."""
        self.cache: dict[Any, Any] = {}
        """Values that other modules derive from this signature, by key (`derived`,
        `Signature.cached_value`)."""
        self._input_checks: dict[str, InputCheck | None] | None = None
        self._output_checks: dict[str, OutputCheck] | None = None
        self._schema: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, SignatureField]:
        """All fields by name, inputs first."""
        return {**self.inputs, **self.outputs}

    def defaults(self) -> dict[str, Any]:
        """The defaults of inputs by name. Mutable defaults are new at each call."""
        return {
            name: field.get_default()
            for name, field in self.inputs.items()
            if not field.is_required
        }

    def output_default(self, name: str) -> Any:
        """The value of an optional output that an answer omits; a mutable default is a new copy."""
        field = self.outputs[name]
        if field.is_required:
            return None
        return field.get_default()

    @property
    def input_checks(self) -> dict[str, InputCheck | None]:
        """The function that checks each input, by name; None for an input that takes any value."""
        if self._input_checks is None:
            self._input_checks = {
                name: _build(input_check, name, field) for name, field in self.inputs.items()
            }
        return self._input_checks

    @property
    def output_checks(self) -> dict[str, OutputCheck]:
        """The function that checks each output, by name."""
        if self._output_checks is None:
            self._output_checks = {
                name: _build(output_check, name, field) for name, field in self.outputs.items()
            }
        return self._output_checks

    def check_inputs(self, class_name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Coerce inputs and fill in defaults; `class_name` is for errors.

        Raises an `InputError` that names every problem, so that a caller corrects all of them at
        once.
        """
        checked, problems = self._check_passed(class_name, values)
        self._refuse(class_name, problems)
        return {
            name: checked[name] if name in checked else self.inputs[name].get_default()
            for name in self.input_checks
        }

    def refuse_inputs(self, class_name: str, values: Mapping[str, Any]) -> None:
        """Raise the `InputError` of `check_inputs`, and leave the inputs as they are.

        No default is made, and no iterator is read: the run does that, once.
        """
        iterators = {name for name, value in values.items() if is_read_once(value)}
        readable = {name: value for name, value in values.items() if name not in iterators}
        _, problems = self._check_passed(class_name, readable)
        self._refuse(class_name, [problem for problem in problems if problem[0] not in iterators])

    def _check_passed(
        self, class_name: str, values: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """The inputs that were passed, coerced, and the problems of all inputs by name."""
        if not isinstance(values, Mapping):
            raise InputError(
                f"Pass the inputs of `{self._display_name(class_name)}` as a mapping by name; "
                f"found {type(values).__name__}."
            )
        checks = self.input_checks
        problems = [(name, self._why_unknown(name)) for name in values if name not in checks]
        checked: dict[str, Any] = {}
        for name, check in checks.items():
            if name not in values:
                if self.inputs[name].is_required:
                    problems.append((name, "is missing"))
                continue
            value = values[name]
            try:
                if check is not None:
                    value = check(value)
            except ValueError as error:
                problems.append((name, str(error)))
                continue
            if is_read_once(value):  # an iterator; a request may be rendered more than once
                value = list(value)
            checked[name] = value
        return checked, problems

    def _refuse(self, class_name: str, problems: list[tuple[str, str]]) -> None:
        if not problems:
            return
        input_names = ", ".join(f"`{name}`" for name in self.input_checks) or "none"
        raise InputError(
            f"Wrong inputs for `{self._display_name(class_name)}`: {_join(problems)}. "
            f"Its inputs are: {input_names}.",
            problems,
        )

    def generate_defaults(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Call the factories of the inputs that `values` lacks; the defaults as JSON data.

        A run records them, so that a replay reads the same values. Defaults that do not survive
        JSON are left out: their factories are called again in a replay.
        """
        defaults = {
            name: jsonable(marked_parts(self.inputs[name].get_default()))
            for name in self.factories
            if name not in values
        }
        readable = self.read_generated(defaults)
        return {name: form for name, form in defaults.items() if name in readable}

    def read_generated(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The values of recorded `generate_defaults`.

        Leaves out values that do not fit the input's type: another version of the program may have
        recorded them.
        """
        values: dict[str, Any] = {}
        for name in self.factories:
            if name not in recorded:
                continue
            value = read_marked(recorded[name])
            check = self.input_checks[name]
            with suppress(ValueError):
                if check is not None:
                    check(value)  # whether it fits; `check_inputs` coerces it later
                values[name] = value
        return values

    def _display_name(self, class_name: str) -> str:
        """The name of a signature's class, or the fields of one that was written as text."""
        if class_name == "StringSignature":
            return f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        return class_name

    def _why_unknown(self, name: Any) -> str:
        """The problem of an input that the signature does not have, with advice."""
        similar = nearest(str(name), self.inputs)
        if similar:
            return f"is unknown (did you mean `{similar}`?)"
        if name in self.outputs:
            return "is an output, not an input"
        if name in _OPTION_ADVICE:
            return f"is unknown ({_OPTION_ADVICE[name]})"
        return "is unknown"

    def call_signature(self) -> inspect.Signature:
        """The inputs as keyword-only parameters of a function, for a program that becomes a tool.

        With constraints and defaults. The default of an input with a factory is `GENERATED`. Pass
        the arguments through `without_generated`, so that the program calls the factory.
        """
        parameters: list[inspect.Parameter] = []
        for name, field in self.inputs.items():
            if field.is_required:
                default: Any = inspect.Parameter.empty
            elif name in self.factories:
                default = GENERATED
            else:
                default = field.get_default()
            parameter = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.annotated
            )
            parameters.append(parameter)
        return inspect.Signature(parameters)

    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of an object with the outputs. Shared: do not change it."""
        if self._schema is None:
            required = [name for name in self.outputs if name not in self.optional]
            self._schema = _object_schema(self.outputs, required)
        return self._schema

    def written_schema(self) -> dict[str, Any]:
        """The JSON Schema of an object with any of the outputs, as serialized.

        It may differ from `output_schema`: pydantic models may write other names than they read.
        """
        return _object_schema(self.outputs, [], "serialization")


def class_fields(cls: Any) -> dict[str, SignatureField]:
    """The fields in a signature's class body; raises `SignatureError` for invalid ones."""
    if not cls.__pydantic_fields_complete__ and not cls.model_rebuild(raise_errors=False):
        unknown = [
            f"`{name}`"
            for name, field in cls.__pydantic_fields__.items()
            if not field._complete  # noqa: SLF001  pydantic has no public name for it
        ]
        raise SignatureError(
            f"`{cls.__name__}`: the type of {', '.join(unknown)} contains an undefined name."
        )
    fields = {name: SignatureField.of(info) for name, info in cls.__pydantic_fields__.items()}
    for name, field in fields.items():
        if field.role is None:
            raise SignatureError(
                f"`{cls.__name__}.{name}` is neither input nor output. "
                f"Write `{name}: ... = InputField()` or `OutputField()`."
            )
    return fields


def compile_signature(cls: Any, fields: Mapping[str, SignatureField]) -> CompiledSignature:
    """Compile the fields of a signature.

    An answer's tool calls go to the output of the type `ToolCalls`. Raises `SignatureError` if
    there is more than one, or if it is only a part of an output (`list[ToolCalls]`).
    """
    plan = CompiledSignature(fields, cls.__instructions__)
    receivers = [name for name, field in plan.outputs.items() if calls_type(field.annotation)]
    if len(receivers) > 1:
        raise SignatureError(
            f"`{cls.__name__}` has {len(receivers)} outputs for tool calls "
            f"({', '.join(receivers)}); an answer's calls go to one."
        )
    for name in receivers:
        if not isinstance(without_none(plan.outputs[name].annotation), type):
            raise SignatureError(
                f"`{cls.__name__}.{name}` receives an answer's tool calls, all of them: "
                "its type is `ToolCalls` or `ToolCalls | None`."
            )
    return plan


def compiled(signature: Any) -> CompiledSignature:
    """`signature.plan`, for code that every run executes.

    Pydantic's metaclass finds a property of a class slowly; an attribute is found at once.
    """
    return signature.__plan__ or signature.plan


def derived(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Decorate a function of a signature: its value is computed once, and kept with the signature.

    For functions that are called for every answer. For a function with more arguments, use
    `signature.cached_value`.
    """

    @wraps(make)
    def read(signature: Any) -> T:
        cache = compiled(signature).cache
        if make not in cache:
            # Two threads may both compute the value. `setdefault` gives both the same one.
            return cache.setdefault(make, make(signature))
        return cache[make]

    return read


def default_instructions(inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """The instructions of a signature whose author wrote none."""
    input_names = ", ".join(f"`{name}`" for name in inputs)
    output_names = ", ".join(f"`{name}`" for name in outputs)
    if input_names and output_names:
        return f"Given the fields {input_names}, produce the fields {output_names}."
    if output_names:
        return f"Produce the fields {output_names}."
    if input_names:
        return f"You are given the fields {input_names}."
    return ""


def infos_of(
    fields: Mapping[str, SignatureField], model_fields: Mapping[str, FieldInfo]
) -> dict[str, FieldInfo]:
    """Pydantic's `FieldInfo` of these fields of a signature."""
    infos: dict[str, FieldInfo] = {}
    for name, field in fields.items():
        info = model_fields[name]
        # An input that accepts None may be omitted, which pydantic does not know.
        if info.is_required() and not field.is_required:
            info = copy(info)
            info.default = None
        infos[name] = info
    return infos


def without_generated(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A program's inputs from the arguments of a function that has the `call_signature`."""
    return {name: value for name, value in arguments.items() if value is not GENERATED}


class InvalidOutputsError(ValueError):
    """Outputs fit their types, but a validator rejects them.

    `problems` are pairs of a field (`""` for none) and a text for the model.
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = list(problems)
        texts: list[str] = []
        for name, problem in self.problems:
            if name:
                texts.append(f"{name}: {problem}")
            else:
                texts.append(problem)
        super().__init__("; ".join(texts))


def run_validators(
    cls: type[BaseModel], inputs: Mapping[str, Any], outputs: dict[str, Any]
) -> dict[str, Any]:
    """The outputs after the pydantic validators of `cls`, which may change them.

    Pydantic can only run them by making an instance of the class, and that needs the inputs too.
    Raises `InvalidOutputsError` for rejected outputs, and `InputError` for rejected inputs.
    """
    values = {**inputs, **outputs}
    try:
        instance = cls.model_validate(
            {name: values[name] for name in cls.model_fields if name in values}
        )
    except ValidationError as error:
        problems = [_problem_of(detail) for detail in error.errors(include_url=False)]
        # A validator may reject an input. The model cannot change that; the caller can.
        input_problems = [problem for problem in problems if problem[0] in inputs]
        if input_problems:
            raise InputError(
                f"Wrong inputs for `{cls.__name__}`: {_join(input_problems)}.", input_problems
            ) from None
        raise InvalidOutputsError(problems) from None
    validated = dict(outputs)
    for name in outputs:
        if name in cls.model_fields:
            validated[name] = read_iterators(getattr(instance, name))
    return validated


def _join(problems: Iterable[tuple[str, str]]) -> str:
    return "; ".join([f"`{name}` {text}" for name, text in problems])


def _problem_of(detail: ErrorDetails) -> tuple[str, str]:
    """The field, and a validator's message without pydantic's words around it."""
    field_name = ""  # a validator of the whole model
    if detail["loc"]:
        field_name = str(detail["loc"][0])
    raised = detail.get("ctx", {}).get("error")
    if isinstance(raised, Exception) and str(raised):
        return field_name, str(raised)
    return field_name, detail["msg"]


def _with_none_as_default(field: SignatureField) -> SignatureField:
    """The input, with None as its default if it accepts None and has no default."""
    if field.is_required and allows_none(field.annotation):
        return replace(field, default=None)
    return field


def _build(build: Callable[[SignatureField], T], name: str, field: SignatureField) -> T:
    """`build(field)`; raises `SignatureError` if pydantic cannot build it for the field's type."""
    try:
        return build(field)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        # Pydantic's further lines are advice about its own classes.
        reason = str(error).splitlines()[0]
        raise SignatureError(
            f"Field `{name}`: values of the type {field.annotation!r} cannot be checked: {reason}"
        ) from error


def _content(name: str, field: SignatureField) -> tuple[Any, ...]:
    """What makes two fields equal."""
    default = field.more.get("default_factory", field.default)
    return (name, field.role, field.annotation, field.metadata, field.description, default)


def _object_schema(
    fields: Mapping[str, SignatureField], required: list[str], mode: JsonSchemaMode = "validation"
) -> dict[str, Any]:
    # Most fields are plain (`str`, `int`, ...), and their schema is their type's name. Pydantic is
    # asked only for the others, because it builds a validator before it gives a schema.
    complex_fields = {
        name: field
        for name, field in fields.items()
        if field.metadata or not is_plain(field.annotation)
    }
    schemas: dict[str, dict[str, Any]] = {}
    definitions: dict[str, Any] = {}
    if complex_fields:
        schemas, definitions = _field_schemas(complex_fields, mode)
    properties: dict[str, Any] = {}
    for name, field in fields.items():
        if name in schemas:
            properties[name] = schemas[name]
        else:
            properties[name] = {"type": TYPE_NAMES[field.annotation]}
        if field.description:
            properties[name]["description"] = field.description
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return schema


class _NamesWithoutModules(SchemaGenerator):
    """Names definitions without the names of ferrule's modules, which a model must not see.

    Pydantic puts the module's name before the class's if two classes have one name.
    """

    def normalize_name(self, name: str) -> str:
        """The name of a definition."""
        return super().normalize_name(without_modules(name))


def _field_schemas(
    fields: Mapping[str, SignatureField], mode: JsonSchemaMode
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The schema of each field, and the shared definitions."""
    adapters = {name: _build(adapter_of, name, field) for name, field in fields.items()}
    try:
        schemas, shared = TypeAdapter.json_schemas(
            [(name, mode, adapter) for name, adapter in adapters.items()],
            schema_generator=_NamesWithoutModules,
        )
    except INEXPRESSIBLE:
        # One of the types has no JSON Schema. Ask for each field by itself, so that only the field
        # with that type gets an empty schema. Its values are still checked.
        separate = {
            name: json_schema_of(adapter, _NamesWithoutModules)
            for name, adapter in adapters.items()
        }
        return separate, {}
    return {name: dict(schemas[(name, mode)]) for name in fields}, shared.get("$defs") or {}
