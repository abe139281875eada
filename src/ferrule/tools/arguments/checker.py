"""The checker of a tool's arguments: repairs, coerces, validates and explains.

Arguments come from a model or from Python code; the result is `CheckedArguments`, or one
`ToolArgumentsError` with every problem. Coercion comes before the check: "7" is accepted as an
integer, "x" is not. A boolean is never a number. A number becomes text where only text fits; this
repair is noted as `number_to_string`.

Nearly all arguments are plain and fit as they are, so they are validated once, as given
(`_accept_plain`). Everything else is tried unchanged, then repaired, then without a wrapping key.
If nothing fits, the model hears the problems that repairs leave: what was repaired needs no second
call.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, ValidationError

from ferrule.encoding.encode import has_json_form, json_text
from ferrule.encoding.written import without_digits
from ferrule.errors import ToolArgumentsError
from ferrule.schema.explain import Problem, explain_failures, unknown_arguments
from ferrule.schema.failures import find_failures
from ferrule.schema.finite import MODELS, find_non_finite
from ferrule.schema.iterables import read_iterators
from ferrule.schema.nodes import admitted_types, is_object, mentions_type, other_properties
from ferrule.schema.words import describe_schema, shorten_json
from ferrule.tools.arguments.given_schema import build_validator, check_by_schema, json_view
from ferrule.tools.arguments.nested import (
    copy_arguments,
    fit_numbers,
    iterate_again,
)
from ferrule.tools.arguments.problems import explain_pydantic
from ferrule.tools.arguments.repairs import coercions, decode_object, repair, unwrap
from ferrule.tools.definition.inspect_function import field_of
from ferrule.tools.definition.parameters import Reread
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.edit import Coerced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.schema.validator import Validator
    from ferrule.tools.definition.inspect_function import FunctionSpec
    from ferrule.tools.definition.parameters import ArgumentsValidator, Parameters

_EXACT = frozenset({int, str, bool, type(None)})
_NUMBERS = frozenset({int, float})
_SCALARS = _EXACT | {float}
_PLAIN = frozenset({*_SCALARS, list, dict, tuple, set, frozenset})
_NUMERIC = frozenset({"integer", "number"})
_BOOLEAN = frozenset({"boolean"})
_MOST_ARGUMENTS = 1_000
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
"""What pydantic or a user's validator raises. It becomes a problem for the model, which wrote the
value."""


class Checker:
    """Checks the calls of one tool. Validators are built once."""

    def __init__(self, tool: str, function_spec: FunctionSpec, parameters: Parameters) -> None:
        self.tool = tool
        self.parameters = parameters
        self._function_spec = function_spec
        self._positional = function_spec.positional_only
        self._names = parameters.names
        self._has_aliases = any(name != target for name, target in parameters.names.items())
        # Whether plain scalars need no more checks after pydantic's.
        self._is_plain = not (
            parameters.adapter is None
            or parameters.checks_schema
            or self._positional
            or self._has_aliases
            or function_spec.caller
            or parameters.extra
            or parameters.is_open
            or "generator" in parameters.validator_kinds
        )

    @cached_property
    def expected(self) -> str:
        """The form of the arguments, in one line."""
        return describe_schema(self.parameters.schema)

    def prepare(self, args: Any) -> CheckedArguments:
        """Return the checked and coerced arguments.

        Raises `ToolArgumentsError` with every problem.
        """
        if not is_object(args):
            return self._prepare_with_repairs(args)
        self._refuse_surplus(args)
        args = copy_arguments(args, self._takes_items)
        if self._is_plain:
            accepted = self._accept_plain(args)
            if accepted is not None:
                return accepted
        return self._prepare_with_repairs(args)

    def _accept_plain(self, args: dict[str, Any]) -> CheckedArguments | None:
        """The arguments if they are plain and fit as given; None if they need a closer look.

        Only scalars whose type the validator left unchanged are judged here: then nothing was
        coerced, there is nothing to note, and the values are their own JSON form.
        """
        adapter = self.parameters.adapter
        if adapter is None:
            return None
        try:
            values = adapter.validator.validate_python(args)
        except _REFUSALS:
            return None
        if all(_is_unchanged(value, args.get(name, value)) for name, value in values.items()):
            return Coerced((), values, values, (), args, values)
        if without_digits(args) is not args:
            return None
        # Booleans in the place of numbers are coerced by pydantic, and refused here.
        misplaced: list[Problem] = []
        if self._wants_numbers:
            _, misplaced = fit_numbers(args, self.parameters.schema)
        accepted = self._accept(args, values, [], misplaced)
        if not isinstance(accepted, CheckedArguments):
            return None
        return accepted

    def _takes_items(self, name: str) -> bool:
        """Whether an argument is a list, so that an iterator passed for it is read."""
        schema = self.parameters.schema
        types = admitted_types(self._properties.get(name, other_properties(schema)), schema)
        return types is not None and "array" in types

    @property
    def _properties(self) -> dict[str, Any]:
        return self.parameters.schema.get("properties", {})

    # -- with repairs

    def _prepare_with_repairs(self, args: Any) -> CheckedArguments:
        """Try the arguments unchanged, then repaired, then without a wrapping key."""
        notes: list[str] = []
        decoded = decode_object(args, notes)
        if not is_object(decoded):
            problem = f"expected an object of arguments, got {shorten_json(decoded)}"
            raise self._error([("", problem)])
        self._refuse_surplus(decoded)
        outcome = self._attempt(decoded, notes)
        if isinstance(outcome, CheckedArguments):
            return outcome
        repair_notes = [*notes]
        repaired = repair(decoded, self.parameters.schema, repair_notes)
        if repair_notes != notes:
            outcome = self._attempt(repaired, repair_notes)
            if isinstance(outcome, CheckedArguments):
                return outcome
        unwrapped = unwrap(decoded, self.tool, notes)
        if unwrapped is not None:
            repaired = repair(unwrapped, self.parameters.schema, notes)
            outcome_inside = self._attempt(repaired, notes)
            if isinstance(outcome_inside, CheckedArguments):
                return outcome_inside
        raise self._error(outcome)

    def _refuse_surplus(self, args: dict[str, Any]) -> None:
        """Raise for very many unknown arguments before each of them is checked.

        No repair removes them, and checking them one by one would take long.
        """
        if len(args) <= _MOST_ARGUMENTS:
            return
        schema = self.parameters.schema
        refuses_others = schema.get("additionalProperties") is False
        if self.parameters.is_open and (not refuses_others or "patternProperties" in schema):
            return
        known = self._names.keys() | self._properties.keys()
        unknown = [name for name in args if name not in known]
        if len(unknown) > _MOST_ARGUMENTS:
            raise self._error(unknown_arguments(unknown, known))

    def _error(self, problems: list[Problem]) -> ToolArgumentsError:
        return ToolArgumentsError(self.tool, problems, self.expected)

    def _attempt(self, args: dict[str, Any], notes: list[str]) -> CheckedArguments | list[Problem]:
        """Check arguments as they are: returns them, or their problems."""
        misplaced: list[Problem] = []
        args = without_digits(args)
        if self._wants_numbers:
            args, misplaced = fit_numbers(args, self.parameters.schema)
        known = {name: value for name, value in args.items() if name in self._names}
        others = {name: value for name, value in args.items() if name not in self._names}
        unknown = [name for name in others if not self._is_open_to(name)]
        problems = unknown_arguments(unknown, self._names)
        problems += self._duplicates(known)
        values: dict[str, Any] = {}
        try:
            if self.parameters.adapter is not None:
                values = _validate(self.parameters.adapter, self._arguments_of_function(known))
            if others and not problems:
                if self.parameters.extra is not None:
                    others = _validate(self.parameters.extra, others)
                values |= others
            if "generator" in self.parameters.validator_kinds:
                values = read_iterators(values)
        except ValidationError as error:
            problems += explain_pydantic(error, args, self.parameters.schema, self._names)
        except RecursionError:
            problems.append(("", "the arguments are nested too deeply"))
        except _REFUSALS as error:
            reason = f"{type(error).__name__}: {error}"
            problems.append(("", f"the arguments could not be checked: {reason}"))
        if problems:
            return problems + self._further_problems(problems, known, misplaced)
        return self._accept(args, values, notes, misplaced)

    def _is_open_to(self, name: object) -> bool:
        """Whether `**kwargs` takes an argument of this name. The run alone fills the `Context`."""
        if not self.parameters.is_open or not isinstance(name, str):
            return False
        return not name or name != self._function_spec.context

    def _further_problems(
        self, problems: list[Problem], known: dict[str, Any], misplaced: list[Problem]
    ) -> list[Problem]:
        """Problems that only the schema shows, of arguments that have no other problem."""
        by_schema: list[Problem] = []
        if self.parameters.checks_schema:
            payload = {name: value for name, value in known.items() if value is not None}
            by_schema = self._schema_problems(payload)
        reported = {path.partition(".")[0] for path, _ in problems}
        return [
            (path, text)
            for path, text in (*misplaced, *by_schema)
            if path.partition(".")[0] not in reported
        ]

    def _arguments_of_function(self, known: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function names; the others go to its `**kwargs`."""
        if self._function_names is None:
            return known
        return {
            name: value
            for name, value in known.items()
            if self._names[name] in self._function_names
        }

    @cached_property
    def _function_names(self) -> frozenset[str] | None:
        """The parameters of the function, if a given schema names others too; else None."""
        parameters = frozenset(parameter.name for parameter in self._function_spec.parameters)
        has_others = any(name not in parameters for name in self._names.values())
        if not has_others:
            return None
        return parameters

    def _duplicates(self, known: dict[str, Any]) -> list[Problem]:
        """A problem for each argument that is given under two of its names."""
        if not self._has_aliases:
            return []
        seen: dict[str, str] = {}
        problems: list[Problem] = []
        for name in known:
            parameter = self._names[name]
            if parameter in seen:
                text = f"means the same argument as `{seen[parameter]}`: give one"
                problems.append((name, text))
            seen[parameter] = name
        return problems

    @cached_property
    def _wants_numbers(self) -> bool:
        return mentions_type(self.parameters.schema, _NUMERIC)

    @cached_property
    def _wants_booleans(self) -> bool:
        return mentions_type(self.parameters.schema, _BOOLEAN)

    @cached_property
    def _holds_models(self) -> bool:
        kinds = self.parameters.validator_kinds
        return bool(kinds & MODELS) and "float" in kinds

    # -- accepted values

    def _accept(
        self,
        args: dict[str, Any],
        values: dict[str, Any],
        notes: list[str],
        problems: list[Problem],
    ) -> CheckedArguments | list[Problem]:
        """Make the checks that pydantic does not make, and sort the values for the call.

        `values` are pydantic's, `args` those that were given.
        """
        if self._function_names is not None:  # a schema names arguments for `**kwargs`
            values = {**self._arguments_of_extra(args, values), **values}
        shown = self._as_shown(values)
        if problems and self._are_booleans_accepted(args, shown):
            problems = []
        if self._holds_models:
            passed = {self._names.get(name, name) for name in args}
            passed_values = {name: value for name, value in values.items() if name in passed}
            problems = problems + find_non_finite(passed_values)
        if not problems and self.parameters.checks_schema:
            problems = self._check_schema(args, shown)
        if problems:
            return problems
        for name, value in args.items():
            coerced = shown.get(self._names.get(name, name))
            if self._wants_booleans or not _are_equal(value, coerced):  # `0 == False`
                notes.extend(coercions(value, coerced))
        for name, value in values.items():
            if type(value) is Reread:
                values[name] = iterate_again(value)
        named, positional = dict(values), ()
        if self._positional:
            positional = tuple([named.pop(name) for name in self._positional if name in named])
        if self._function_spec.caller:  # `Tool.call` puts the caller into the first place
            positional = (None, *positional)
        aliases: Mapping[str, str] | None = None
        if self._has_aliases:
            aliases = self._names
        return Coerced(
            positional,
            named,
            shown,
            tuple(dict.fromkeys(notes)),
            {self._names.get(name, name): value for name, value in args.items()},
            values,
            aliases,
        )

    def _arguments_of_extra(self, args: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in args.items()
            if name not in values and self._names.get(name) == name
        }

    def _as_shown(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values as JSON, for people and the journal.

        A default without a JSON form is left out, so that the shown arguments can be passed again.
        """
        shown: dict[str, Any] = {}
        for name, value in values.items():
            if type(value) in _PLAIN or not self._is_default_without_form(name, value):
                shown[name] = json_view(value)
        return shown

    def _is_default_without_form(self, name: str, value: Any) -> bool:
        default = self._defaults.get(name, PydanticUndefined)
        if default is PydanticUndefined or default is not value:
            return False
        return not has_json_form(value)

    @cached_property
    def _defaults(self) -> Mapping[str, Any]:
        defaults: dict[str, Any] = {}
        for parameter in self._function_spec.parameters:
            default: Any = parameter.default
            if default is PydanticUndefined or isinstance(default, FieldInfo):
                default = field_of(parameter).default
            defaults[parameter.name] = default
        return defaults

    def _check_schema(self, args: dict[str, Any], shown: dict[str, Any]) -> list[Problem]:
        """The problems found by a schema that the user gave.

        Defaults that the caller did not pass are not checked: they are the author's business.
        """
        schema = self.parameters.schema
        required: Any = schema.get("required") or ()
        coerced: dict[str, Any] = {}
        originals: dict[str, Any] = {}
        for name, value in args.items():
            parameter = self._names.get(name, name)
            key = name
            if name not in self._properties:
                key = self._schema_names.get(parameter, name)
            shown_value = shown.get(parameter, shown.get(name))
            if key in required or not self._is_default(parameter, shown_value):
                coerced[key], originals[key] = shown_value, value
        return check_by_schema(coerced, originals, schema, self._schema_problems)

    def _are_booleans_accepted(self, args: dict[str, Any], shown: dict[str, Any]) -> bool:
        """Whether the user's schema accepts booleans that stand where some form wants a number.

        Only the schema knows which form of a union a value has. The booleans must have stayed what
        they are: pydantic makes `1.0` of `True`.
        """
        if not self.parameters.checks_schema:
            return False
        for name, value in args.items():
            coerced = shown.get(self._names.get(name, name))
            if json_text(json_view(value)) != json_text(coerced):
                return False
        return not self._check_schema(args, shown)

    def _is_default(self, parameter: str, shown_value: Any) -> bool:
        default = self._defaults.get(parameter, PydanticUndefined)
        return default is not PydanticUndefined and shown_value == json_view(default)

    @cached_property
    def _schema_names(self) -> dict[str, str]:
        """Maps each parameter to its name in the schema, which may be an alias."""
        properties = self._properties
        return {parameter: name for name, parameter in self._names.items() if name in properties}

    def _schema_problems(self, payload: dict[str, Any]) -> list[Problem]:
        return explain_failures(find_failures(self._validator, payload), self.parameters.schema)

    @cached_property
    def _validator(self) -> Validator:
        return build_validator(self.tool, self.parameters.schema)


def _is_unchanged(value: Any, original: Any) -> bool:
    """Whether a validated value is a scalar that nothing coerced, and that JSON has."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is float:
        return type(original) in _NUMBERS and value - value == 0.0  # neither NaN nor infinite
    return kind in _EXACT and type(original) is kind


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # an array of comparisons, as numpy's
        return False


def _validate(adapter: ArgumentsValidator, args: dict[str, Any]) -> dict[str, Any]:
    """Validate the arguments as Python values, else as JSON.

    A strict model reads dates, tuples and enums only from JSON.
    """
    try:
        return adapter.validator.validate_python(args)
    except ValidationError as refusal:
        try:
            return adapter.validator.validate_json(json.dumps(args))
        except _REFUSALS:  # also if Python code passed a value without a JSON form
            raise refusal from None
