"""The checker of a tool's arguments: repairs, coerces, validates and explains.

Arguments come from a model or from Python code; the result is `CheckedArguments`, or one
`ToolArgumentsError` with every problem. Coercion comes before the check: "7" is accepted as an
integer, "x" is not. A boolean is never a number. A number becomes text where only text fits; this
repair is noted as `number_to_string`.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticUndefined, ValidationError

from ferrule.encoding.encode import has_json_form
from ferrule.errors import ToolArgumentsError
from ferrule.schema.explain import Problem, explain_failures, unknown_arguments
from ferrule.schema.failures import find_failures
from ferrule.schema.iterables import read_iterators
from ferrule.schema.nodes import admitted_types, is_object, mentions_type, other_properties
from ferrule.schema.words import describe_schema, shorten_json
from ferrule.tools.arguments.given_schema import (
    build_validator,
    check_by_schema,
    json_view,
)
from ferrule.tools.arguments.nested import (
    MODELS,
    copy_arguments,
    find_non_finite,
    fit_numbers,
    iterate_again,
)
from ferrule.tools.arguments.problems import explain_pydantic
from ferrule.tools.arguments.repairs import coercions, decode_object, repair, unwrap
from ferrule.tools.definition.inspect_function import field_of
from ferrule.tools.definition.parameters import Reread
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.edit import Coerced
from ferrule.values.content.late_model import is_field_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import TypeAdapter

    from ferrule.schema.validator import Validator
    from ferrule.tools.definition.inspect_function import FunctionSpec
    from ferrule.tools.definition.parameters import Parameters

_EXACT = frozenset({int, str, bool, type(None)})
_NO_BOOLEANS = frozenset({int, str, type(None)})
_NUMBERS = frozenset({int, float})
_SCALARS = _EXACT | {float}
_SCALAR_KINDS = frozenset({"string", "integer", "number", "boolean", "null"})
_PLAIN = frozenset({*_EXACT, float, list, dict, tuple, set, frozenset})
_MOST_ARGUMENTS = 1_000
_NUMERIC = frozenset({"integer", "number"})
_BOOLEAN = frozenset({"boolean"})
# Raised by pydantic, or by a user's validator. They become problems for the model, which wrote the
# value.
_REFUSALS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RuntimeError,
    AssertionError,
    OSError,
)


class Checker:
    """Checks the calls of one tool. Validators are built once."""

    def __init__(self, tool: str, found: FunctionSpec, parameters: Parameters) -> None:
        self.tool = tool
        self.parameters = parameters
        self._found = found
        self._positional = found.positional_only
        self._names = parameters.names
        self._aliased = any(name != own for name, own in parameters.names.items())
        # Whether arguments that are plain scalars need no more checks after pydantic's.
        self._is_plain = not (
            parameters.by_hand
            or self._positional
            or self._aliased
            or found.caller
            or parameters.extra
            or parameters.open
            or "generator" in parameters.inside
        )

    @cached_property
    def expected(self) -> str:
        """The form of the arguments, in one line."""
        return describe_schema(self.parameters.schema)

    @cached_property
    def _validate(self) -> Callable[[Any], dict[str, Any]] | None:
        adapter = self.parameters.adapter
        return adapter().validator.validate_python if adapter is not None else None

    def prepare(self, args: Any) -> CheckedArguments:
        """Return the checked and coerced arguments. Raises `ToolArgumentsError` with every problem."""
        form: Any = type(args)  # pyright: ignore[reportUnknownVariableType]
        if form is not dict or len(args) > _MOST_ARGUMENTS:
            self._refuse_surplus(args)
        validate = self._validate
        if validate is None or not self._is_plain:
            return self._prepare_with_repairs(self._copy(args))
        own = args
        if (
            not self._is_scalar
            and form is dict
            and not _SCALARS.issuperset(map(type, args.values()))
        ):
            own = self._copy(args)
        try:
            values: dict[str, Any] = validate(own)
        except _REFUSALS:
            return self._prepare_with_repairs(self._copy(own))
        shown: dict[str, Any] = values
        for name, value in values.items():
            kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
            given = own.get(name, value)
            if kind in _EXACT:
                if type(given) is kind:
                    continue
            elif kind is float:
                if value - value == 0.0 and type(given) in _NUMBERS:
                    continue
            elif kind is list and type(given) is list:
                held: list[Any] = list(map(type, value))  # pyright: ignore[reportUnknownArgumentType]
                if _NO_BOOLEANS.issuperset(held) and held == list(map(type, given)):  # pyright: ignore[reportUnknownArgumentType]
                    if (
                        shown is values
                    ):  # a tool may change a list among its arguments: the record gets copies
                        shown = dict(values)
                    shown[name] = list(value)  # pyright: ignore[reportUnknownArgumentType]
                    continue
            misplaced = fit_numbers(own, self.parameters.schema)[1] if self._wants_numbers else []
            found = self._accept(own, values, [], misplaced)
            return found if isinstance(found, CheckedArguments) else self._prepare_with_repairs(own)
        return Coerced((), values, shown, (), own, values)  # pyright: ignore[reportUnknownArgumentType]

    def _copy(self, args: Any) -> Any:
        return copy_arguments(args, self._takes_items)

    def _takes_items(self, name: str) -> bool:
        schema = self.parameters.schema
        found = admitted_types(self._properties.get(name, other_properties(schema)), schema)
        return found is not None and "array" in found

    @property
    def _properties(self) -> dict[str, Any]:
        return self.parameters.schema.get("properties", {})

    @cached_property
    def _is_scalar(self) -> bool:
        """Whether no argument is a list or an object."""
        schema = self.parameters.schema
        kinds = [admitted_types(each, schema) for each in self._properties.values()]
        return all(found is not None and found <= _SCALAR_KINDS for found in kinds)

    # -- with repairs
    # -----------------------------------------------------------------------------------------

    def _prepare_with_repairs(self, args: Any) -> CheckedArguments:
        """Try the arguments unchanged, then repaired, then without a wrapping key. Reports the problems of the repaired ones."""
        notes: list[str] = []
        given = decode_object(args, notes)
        if not is_object(given):
            raise self._error([("", f"expected an object of arguments, got {shorten_json(given)}")])
        self._refuse_surplus(given)
        found = self._attempt(given, notes)
        if isinstance(found, CheckedArguments):
            return found
        repair_notes = [*notes]
        better = repair(given, self.parameters.schema, repair_notes)
        if repair_notes != notes:
            found = self._attempt(better, repair_notes)
            if isinstance(found, CheckedArguments):
                return found
        inside = unwrap(given, self.tool, notes)
        if inside is not None:
            inner = self._attempt(repair(inside, self.parameters.schema, notes), notes)
            if isinstance(inner, CheckedArguments):
                return inner
        raise self._error(found)

    def _refuse_surplus(self, args: Any) -> None:
        """Raise for very many unknown arguments, which no repair removes, before each of them is checked."""
        if not is_object(args) or len(args) <= _MOST_ARGUMENTS:
            return
        schema = self.parameters.schema
        is_closed = not self.parameters.open or (
            schema.get("additionalProperties") is False and "patternProperties" not in schema
        )
        if is_closed:
            known = self._names.keys() | self._properties.keys()
            unknown = [name for name in args if name not in known]
            if len(unknown) > _MOST_ARGUMENTS:
                raise self._error(unknown_arguments(unknown, known))

    def _error(self, problems: list[Problem]) -> ToolArgumentsError:
        return ToolArgumentsError(self.tool, problems, self.expected)

    def _attempt(self, args: dict[str, Any], notes: list[str]) -> CheckedArguments | list[Problem]:
        args, misplaced = (
            fit_numbers(args, self.parameters.schema) if self._wants_numbers else (args, [])
        )
        known = {name: value for name, value in args.items() if name in self._names}
        others = {name: value for name, value in args.items() if name not in self._names}
        unknown = [
            name
            for name in others
            if not self.parameters.open
            or not _is_name(name)
            or (name and name == self._found.context)
        ]
        problems = unknown_arguments(unknown, self._names)
        problems += self._duplicates(known)
        values: dict[str, Any] = {}
        try:
            if self.parameters.adapter is not None:
                values = _validated(self.parameters.adapter(), self._own_arguments(known))
            if others and not problems:
                values |= (
                    _validated(self.parameters.extra, others)
                    if self.parameters.extra is not None
                    else others
                )
            if "generator" in self.parameters.inside:
                values = read_iterators(values)
        except ValidationError as error:
            problems += explain_pydantic(error, args, self.parameters.schema, self._names)
        except RecursionError:
            problems.append(("", "the arguments are nested too deeply"))
        except _REFUSALS as error:
            problems.append(
                ("", f"the arguments could not be checked: {type(error).__name__}: {error}"),
            )
        if problems:
            by_schema = (
                self._schema_problems(
                    {name: value for name, value in known.items() if value is not None},
                )
                if self.parameters.by_hand
                else []
            )
            places = {path.partition(".")[0] for path, _ in problems}
            return problems + [
                each for each in (*misplaced, *by_schema) if each[0].partition(".")[0] not in places
            ]
        return self._accept(args, values, notes, misplaced)

    def _own_arguments(self, known: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function names; the others go to its `**kwargs`."""
        own = self._own_names
        return (
            known
            if own is None
            else {name: value for name, value in known.items() if self._names[name] in own}
        )

    @cached_property
    def _own_names(self) -> frozenset[str] | None:
        own = frozenset(each.name for each in self._found.parameters)
        return own if any(each not in own for each in self._names.values()) else None

    def _duplicates(self, known: dict[str, Any]) -> list[Problem]:
        if not self._aliased:
            return []
        seen: dict[str, str] = {}
        problems: list[Problem] = []
        for name in known:
            own = self._names[name]
            if own in seen:
                problems.append((name, f"means the same argument as `{seen[own]}`: give one"))
            seen[own] = name
        return problems

    @cached_property
    def _wants_numbers(self) -> bool:
        return mentions_type(self.parameters.schema, _NUMERIC)

    @cached_property
    def _wants_booleans(self) -> bool:
        return mentions_type(self.parameters.schema, _BOOLEAN)

    @cached_property
    def _holds_models(self) -> bool:
        return bool(self.parameters.inside & MODELS) and "float" in self.parameters.inside

    # -- accepted values
    # --------------------------------------------------------------------------------------

    def _accept(
        self,
        args: dict[str, Any],
        values: dict[str, Any],
        notes: list[str],
        problems: list[Problem],
    ) -> CheckedArguments | list[Problem]:
        """Make the checks that pydantic does not make, and split the values into positional and named arguments."""
        if self._own_names is not None:
            values = {
                **values,
                **{
                    name: value
                    for name, value in args.items()
                    if name not in values and self._names.get(name) == name
                },
            }
        if self._holds_models:
            chosen = {self._names.get(name, name) for name in args}
            problems = problems + find_non_finite(
                {name: value for name, value in values.items() if name in chosen},
            )
        shown: dict[str, Any] = {}
        for name, value in values.items():
            plain = value if type(value) in _EXACT else json_view(value)
            # A default that has no JSON form is left out, so that the shown arguments can be passed
            # again.
            if plain is value or type(value) in _PLAIN or not self._is_formless(name, value):
                shown[name] = plain
        if not problems and self.parameters.by_hand:
            problems = self._check_schema(args, shown)
        if problems:
            return problems
        for name, given in args.items():
            taken = shown.get(self._names.get(name, name))
            if self._wants_booleans or not _are_equal(given, taken):  # `0 == False`
                notes.extend(coercions(given, taken))
        if any(type(value) is Reread for value in values.values()):
            values = {
                name: iterate_again(value) if type(value) is Reread else value
                for name, value in values.items()
            }
        named, positional = values, ()
        if self._positional:
            named = dict(values)
            positional = tuple([named.pop(name) for name in self._positional if name in named])
        if self._found.caller:  # `Tool.call` puts the caller into the first place
            positional = (None, *positional)
        given = {self._names.get(name, name): value for name, value in args.items()}
        repairs = tuple(dict.fromkeys(notes)) if notes else ()
        return Coerced(
            positional,
            named,
            shown,
            repairs,
            given,
            values,
            self._names if self._aliased else None,
        )

    def _is_formless(self, name: str, value: Any) -> bool:
        default = self._defaults.get(name, PydanticUndefined)
        return default is not PydanticUndefined and default is value and not has_json_form(value)

    @cached_property
    def _defaults(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for each in self._found.parameters:
            default: Any = each.default
            if default is PydanticUndefined or is_field_info(default):
                default = field_of(each).default
            found[each.name] = default
        return found

    def _check_schema(self, args: dict[str, Any], shown: dict[str, Any]) -> list[Problem]:
        """The problems found by a schema that the user gave. Defaults that the caller did not pass are not checked."""
        schema = self.parameters.schema
        required: Any = schema.get("required") or ()
        payload: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in args.items():
            own = self._names.get(name, name)
            key = name if name in self._properties else self._schema_names.get(own, name)
            taken = shown.get(own, shown.get(name))
            is_default = (
                own in self._defaults
                and self._defaults[own] is not PydanticUndefined
                and taken == json_view(self._defaults[own])
            )
            if not is_default or key in required:
                payload[key], given[key] = taken, value
        return check_by_schema(payload, given, schema, self._schema_problems)

    @cached_property
    def _schema_names(self) -> dict[str, str]:
        """Maps each parameter to its name in the schema, which may be an alias."""
        return {own: name for name, own in self._names.items() if name in self._properties}

    def _schema_problems(self, payload: dict[str, Any]) -> list[Problem]:
        return explain_failures(find_failures(self._validator, payload), self.parameters.schema)

    @cached_property
    def _validator(self) -> Validator:
        return build_validator(self.tool, self.parameters.schema)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # an array of comparisons, as numpy's
        return False


def _validated(adapter: TypeAdapter[dict[str, Any]], args: dict[str, Any]) -> dict[str, Any]:
    """Validate the arguments as Python values, else as JSON: a strict model reads dates, tuples and enums only from JSON."""
    try:
        return adapter.validator.validate_python(args)
    except ValidationError as refusal:
        try:
            return adapter.validator.validate_json(json.dumps(args))
        except _REFUSALS:  # also if Python code passed a value without a JSON form
            raise refusal from None


def _is_name(name: object) -> bool:
    return isinstance(name, str)
