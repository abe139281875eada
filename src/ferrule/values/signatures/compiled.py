"""Everything that is derived from a signature's fields, made once and kept with the signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from msgspec.structs import replace

from ferrule.encoding.encode import TYPE_NAMES, is_plain, is_read_once, jsonable, without_modules
from ferrule.errors import InputError, SignatureError, nearest
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
    import inspect
    from collections.abc import Sequence

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from pydantic.json_schema import JsonSchemaMode
    from pydantic_core import ErrorDetails


_ELSEWHERE = {
    "limits": "for a program that is no `ReAct`, set it with `context(limits=...)`",  # an option of a call of `ReAct` alone
    **dict.fromkeys(("store", "run_id"), "`program.start(...)` takes it"),
    "thread_id": "`program.start(run_id=...)` names a run",
    **dict.fromkeys(("policy", "callbacks", "adapter", "prices"), "set it with `context({}=...)`"),
    **dict.fromkeys(
        ("temperature", "max_tokens", "reasoning_effort"),
        "a setting of the model: `config={{'{}': ...}}`",
    ),
    **dict.fromkeys(
        ("history", "message_history", "session"),
        "a conversation is an input of the type `History`",
    ),
}
"""Options of ferrule or of other libraries that users pass as inputs by mistake, with advice for each."""


T = TypeVar("T")
MADE_LATER = object()
"""Stands for the default of an input that has a default factory."""


class CompiledSignature:
    """The fields of one signature by role. Checks and schema are made on first use."""

    __slots__ = (
        *("_input_checks", "_output_checks", "_schema"),
        *(
            "content",
            "factories",
            "hash",
            "inputs",
            "instructions",
            "kept",
            "optional",
            "outputs",
            "own_instructions",
        ),
    )

    def __init__(self, fields: Mapping[str, SignatureField], instructions: str | None) -> None:
        self.inputs = {
            name: _may_be_omitted(field) for name, field in fields.items() if field.role == "input"
        }
        self.outputs = {name: field for name, field in fields.items() if field.role == "output"}
        self.factories = [
            name for name, field in self.inputs.items() if "default_factory" in field.more
        ]
        """The inputs whose defaults are made anew for each run."""
        self.own_instructions = instructions
        """The instructions that the author wrote, or None."""
        self.instructions = (
            instructions
            if instructions is not None
            else default_instructions(self.inputs, self.outputs)
        )
        self.content = (
            self.instructions,
            *(_content(name, field) for name, field in {**self.inputs, **self.outputs}.items()),
        )
        """Signatures with equal content are equal. A missing type counts as text, because that is what a model sees."""
        self.hash = hash((self.instructions, *self.inputs, *self.outputs))
        self.optional = {
            name: field
            for name, field in self.outputs.items()
            if not field.is_required or allows_none(field.annotation)
        }
        """Outputs that an answer may omit."""
        self.kept: dict[Any, Any] = {}
        """A cache, by key, of values that other modules derive from this signature."""
        self._input_checks: dict[str, InputCheck | None] | None = None
        self._output_checks: dict[str, OutputCheck] | None = None
        self._schema: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, SignatureField]:
        """All fields by name, inputs first."""
        return {**self.inputs, **self.outputs}

    def defaults(self) -> dict[str, Any]:
        """The defaults of inputs by name. Mutable defaults are new at each call."""
        fields = ((name, field) for name, field in self.inputs.items() if not field.is_required)
        return {name: field.get_default() for name, field in fields}

    def output_default(self, name: str) -> Any:
        """The value of an optional output that an answer leaves out. A mutable default is new at each call."""
        field = self.outputs[name]
        return None if field.is_required else field.get_default()

    @property
    def output_checks(self) -> dict[str, OutputCheck]:
        """The function that checks each output, by name."""
        if self._output_checks is None:
            self._output_checks = {
                name: _make_check(name, field, output_check) for name, field in self.outputs.items()
            }
        return self._output_checks

    def check_inputs(self, signature: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Coerce inputs and fill in defaults. Raises an `InputError` that names every problem."""
        checks = self._input_checks or self._checks_of_inputs()
        kind: type[Any] = type(given)
        if kind is not dict and not isinstance(
            given,
            Mapping,
        ):  # for an abstract class, this takes ten times as long
            raise InputError(
                f"Pass the inputs of `{self._shown(signature)}` as a mapping by name; found {type(given).__name__}.",
            )
        problems = [(name, self._unknown(name)) for name in given if name not in checks]
        checked: dict[str, Any] = {}
        for name, check in checks.items():
            if name not in given:
                field = self.inputs[name]
                if field.is_required:
                    problems.append((name, "is missing"))
                else:
                    checked[name] = field.get_default()
                continue
            try:
                value = given[name]
                if check is not None:
                    value = check(value)
                checked[name] = (
                    list(value) if is_read_once(value) else value
                )  # a request may be rendered more than once
            except ValueError as error:
                problems.append((name, str(error)))
        if problems:
            takes = ", ".join(f"`{name}`" for name in checks) or "none"
            raise InputError(
                f"Wrong inputs for `{self._shown(signature)}`: {_listed(problems)}. Its inputs are: {takes}.",
                problems,
            )
        return checked

    def made_inputs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that factories make for the inputs not given, as JSON. Defaults that JSON cannot hold are left out."""
        made = {
            name: jsonable(marked_parts(self.inputs[name].get_default()))
            for name in self.factories
            if name not in given
        }
        return {name: made[name] for name in self.read_made(made)}

    def read_made(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """The values of `made_inputs`. Those that no longer fit are left out: another version may have made them."""
        checks = self._input_checks or self._checks_of_inputs()
        found: dict[str, Any] = {}
        for name in self.factories:
            if name in made:
                value, check = read_marked(made[name]), checks[name]
                with suppress(ValueError):
                    if check is not None:
                        check(value)
                    found[name] = value
        return found

    def _checks_of_inputs(self) -> dict[str, InputCheck | None]:
        self._input_checks = {
            name: _make_check(name, field, input_check) for name, field in self.inputs.items()
        }
        return self._input_checks

    def _shown(self, signature: str) -> str:
        """The name of a signature's class. A signature written as text has no name, and is shown by its fields."""
        return (
            f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
            if signature == "StringSignature"
            else signature
        )

    def _unknown(self, name: Any) -> str:
        close = nearest(str(name), self.inputs)
        if close:
            return f"is unknown (did you mean `{close}`?)"
        if name in self.outputs:
            return "is an output, not an input"
        return (
            f"is unknown ({_ELSEWHERE[name].format(name)})" if name in _ELSEWHERE else "is unknown"
        )

    def call_signature(self) -> inspect.Signature:
        """The inputs as keyword-only parameters of a function, with their constraints and defaults.

        The default of an input with a factory is `MADE_LATER`, which `given_inputs` leaves out: the
        program makes it in each run.
        """
        import inspect  # late: few signatures become a tool

        keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        made: list[inspect.Parameter] = []
        for name, field in self.inputs.items():
            default = (
                empty
                if field.is_required
                else MADE_LATER
                if name in self.factories
                else field.get_default()
            )
            made.append(
                inspect.Parameter(name, keyword, default=default, annotation=field.annotated),
            )
        return inspect.Signature(made)

    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of an object with the outputs. Shared: do not change it."""
        if self._schema is None:
            self._schema = _schema_of(
                self.outputs,
                [name for name in self.outputs if name not in self.optional],
            )
        return self._schema

    def written_schema(self) -> dict[str, Any]:
        """The JSON Schema of an object with any of the outputs, as serialized: a model may write other names than it reads."""
        return _schema_of(self.outputs, [], "serialization")


def derived(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Decorate a function of a signature that is called for every answer: its value is computed once, and kept with the signature.

    `signature.kept` does the same, but takes six times as long: pydantic's metaclass is slow to
    find a method or an attribute of a class. A loop asks for one signature again and again, so the
    latest is remembered, by a weak reference that does not keep it alive.
    """
    latest: tuple[Callable[[], Any], Any] = (lambda: None, None)

    @wraps(make)
    def find(signature: Any) -> T:
        nonlocal latest
        known, value = latest
        if known() is not signature:
            kept = (signature.__plan__ or signature.plan).kept
            value = kept[make] if make in kept else kept.setdefault(make, make(signature))
            latest = ref(signature), value
        return value

    return find


def _may_be_omitted(field: SignatureField) -> SignatureField:
    """The input, with None as its default if it accepts None and has no default."""
    return (
        replace(field, default=None)
        if field.is_required and allows_none(field.annotation)
        else field
    )


def infos_of(
    fields: Mapping[str, SignatureField],
    of_model: Mapping[str, FieldInfo],
) -> dict[str, FieldInfo]:
    """Pydantic's `FieldInfo` of these fields of a signature."""
    found = {name: of_model[name] for name in fields}
    for name, info in found.items():
        if info.is_required() and not fields[name].is_required:  # an input that may be omitted
            found[name] = copy(info)
            found[name].default = None
    return found


def given_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A program's inputs from the arguments of a function that has the `call_signature`."""
    return {name: value for name, value in inputs.items() if value is not MADE_LATER}


class InvalidOutputsError(ValueError):
    """Outputs fit their types, but a validator rejects them. `problems` are pairs of a field (`""` for none) and a text for the model."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = list(problems)
        super().__init__(
            "; ".join(f"{name}: {problem}" if name else problem for name, problem in self.problems),
        )


def run_validators(
    cls: type[BaseModel],
    inputs: Mapping[str, Any],
    outputs: dict[str, Any],
) -> dict[str, Any]:
    """See `SignatureType.validate_outputs`."""
    from pydantic import ValidationError

    known = {**inputs, **outputs}
    try:
        made = cls.model_validate({name: known[name] for name in cls.model_fields if name in known})
    except ValidationError as error:
        problems = [
            (str(each["loc"][0]) if each["loc"] else "", _said(each))
            for each in error.errors(include_url=False)
        ]
        if unfit := [each for each in problems if each[0] in inputs]:
            raise InputError(
                f"Wrong inputs for `{cls.__name__}`: {_listed(unfit)}.",
                unfit,
            ) from None
        raise InvalidOutputsError(problems) from None
    return {
        name: read_iterators(getattr(made, name)) if name in cls.model_fields else value
        for name, value in outputs.items()
    }


def _listed(problems: Iterable[tuple[str, str]]) -> str:
    return "; ".join([f"`{name}` {text}" for name, text in problems])


def _said(problem: ErrorDetails) -> str:
    """A validator's message, without pydantic's words around it."""
    raised = problem.get("ctx", {}).get("error")
    return str(raised) if isinstance(raised, Exception) and str(raised) else problem["msg"]


def default_instructions(inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """The instructions of a signature whose author wrote none."""
    given, wanted = (", ".join(f"`{name}`" for name in fields) for fields in (inputs, outputs))
    if not wanted:
        return f"You are given the fields {given}." if given else ""
    return (
        f"Given the fields {given}, produce the fields {wanted}."
        if given
        else f"Produce the fields {wanted}."
    )


def class_fields(cls: Any) -> dict[str, SignatureField]:
    """The fields in a signature's class body; raises `SignatureError` for invalid ones."""
    if not cls.__pydantic_fields_complete__ and not cls.model_rebuild(raise_errors=False):
        unknown = [name for name, field in cls.__pydantic_fields__.items() if not field._complete]  # noqa: SLF001
        raise SignatureError(
            f"`{cls.__name__}`: the type of {', '.join(f'`{name}`' for name in unknown)} contains an undefined name.",
        )
    fields = {name: SignatureField.of(info) for name, info in cls.__pydantic_fields__.items()}
    for name, field in fields.items():
        if field.role is None:
            msg = f"`{cls.__name__}.{name}` is neither input nor output. Write `{name}: ... = InputField()` or `OutputField()`."
            raise SignatureError(msg)
    return fields


def compile_signature(cls: Any, fields: Mapping[str, SignatureField]) -> CompiledSignature:
    """Compile the fields of a signature. Raises `SignatureError` if more than one output, or a part of one, would receive tool calls."""
    plan = CompiledSignature(fields, cls.__instructions__)
    receiving = [name for name, field in plan.outputs.items() if calls_type(field.annotation)]
    if len(receiving) > 1:
        msg = f"`{cls.__name__}` has {len(receiving)} outputs for tool calls ({', '.join(receiving)}); an answer's calls go to one."
        raise SignatureError(msg)
    for name in receiving:
        if not isinstance(without_none(plan.outputs[name].annotation), type):
            msg = f"`{cls.__name__}.{name}` receives an answer's tool calls, all of them: its type is `ToolCalls` or `ToolCalls | None`."
            raise SignatureError(msg)
    return plan


def compiled(signature: Any) -> CompiledSignature:
    """`signature.plan` for code that every run executes: reading a property of a metaclass takes seven times as long."""
    return signature.__plan__ or signature.plan


def _make_check(name: str, field: SignatureField, make: Callable[[SignatureField], Any]) -> Any:
    from pydantic import PydanticUserError
    from pydantic_core import SchemaError

    try:
        return make(field)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        msg = f"Field `{name}`: values of the type {field.annotation!r} cannot be checked: {str(error).splitlines()[0]}"
        raise SignatureError(msg) from error


def _content(name: str, field: SignatureField) -> tuple[Any, ...]:
    default = field.more.get("default_factory", field.default)
    return (name, field.role, field.annotation, field.metadata, field.description, default)


def _schema_of(
    fields: Mapping[str, SignatureField],
    required: list[str],
    mode: JsonSchemaMode = "validation",
) -> dict[str, Any]:
    others = {
        name: field
        for name, field in fields.items()
        if field.metadata or not is_plain(field.annotation)
    }
    found, definitions = _schemas_of(others, mode) if others else ({}, {})
    properties: dict[str, Any] = {}
    for name, field in fields.items():
        properties[name] = found[name] if name in others else {"type": TYPE_NAMES[field.annotation]}
        if field.description:
            properties[name]["description"] = field.description
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema


def _schemas_of(
    fields: Mapping[str, SignatureField],
    mode: JsonSchemaMode,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The schema of each field, and the shared definitions."""
    from pydantic import TypeAdapter

    from ferrule.schema.inline import INEXPRESSIBLE, Generator, json_schema_of

    class OwnNames(Generator):
        """Names definitions. Two classes with one name get their modules' names; those of ferrule's own modules must not show."""

        def normalize_name(self, name: str) -> str:
            """The name of a definition."""
            return super().normalize_name(without_modules(name))

    adapters = {name: _make_check(name, field, adapter_of) for name, field in fields.items()}
    try:
        found, shared = TypeAdapter.json_schemas(
            [(name, mode, each) for name, each in adapters.items()],
            schema_generator=OwnNames,
        )
    except INEXPRESSIBLE:  # each by itself: values of a type with an empty schema are still checked
        return {name: json_schema_of(each, OwnNames) for name, each in adapters.items()}, {}
    return {name: dict(found[(name, mode)]) for name in fields}, shared.get("$defs") or {}
