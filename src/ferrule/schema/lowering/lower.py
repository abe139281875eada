"""Lower a tool's schema into the dialect of a provider's strict mode, and convert arguments that follow it back.

A lowered schema is a copy, with a `SchemaLoss` for each rule that it does not express. A model's
arguments go through `restored` before they are checked against the tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct

from ferrule.errors import ConfigurationError, ToolCallError, shown
from ferrule.schema.lowering.grammar import GrammarPass
from ferrule.schema.lowering.limits import beyond_limits, nodes, within_request
from ferrule.schema.lowering.rules import RULES, ProviderTarget, SchemaLoss, Target
from ferrule.schema.lowering.walk import LoweringPass
from ferrule.schema.nodes import (
    Schema,
    declared_types,
    escape_step,
    find_pointer,
    is_list,
    is_object,
    json_type,
    members,
    resolve_reference,
)
from ferrule.schema.references import TooMuchWorkError
from ferrule.schema.validator import Validator, schema_problem

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "TARGETS",
    "LoweredSchema",
    "LoweredTools",
    "SchemaLoss",
    "Target",
    "lower_schema",
    "lower_tools",
]

TARGETS: tuple[ProviderTarget, ...] = get_args(ProviderTarget)


class LoweredSchema(Struct, frozen=True, dict=True):
    """A schema in the form that one target accepts."""

    schema: Schema
    """Shared; do not change it."""
    losses: tuple[SchemaLoss, ...]
    target: Target
    stand_ins: frozenset[str] = frozenset()
    """JSON pointers into `schema` to the properties in which null means "left out"."""
    pairs: frozenset[str] = frozenset()
    """JSON pointers into `schema` to the lists of `{"key": ..., "value": ...}` that stand for dictionaries."""

    @property
    def is_strict(self) -> bool:
        """Whether the target's strict mode accepts the schema; False for a target without a strict mode."""
        return RULES[self.target].strict and not any(loss.breaking for loss in self.losses)

    @property
    def level(self) -> Literal["exact", "rewritten", "partial"]:
        """`exact`; `rewritten` if `schema` admits less than the original; `partial` if it admits more, so that values must be checked."""
        return (
            "exact"
            if not self.losses
            else "partial"
            if any(loss.breaking for loss in self.losses)
            else "rewritten"
        )

    @cached_property
    def _validator(self) -> Validator:
        return Validator(self.schema, lenient=True)

    def restored(self, arguments: Any) -> Any:
        """Convert arguments written under `schema` to the original schema.

        A null that means "left out" is removed, so that the default applies. A list that stands for
        a dictionary becomes one. Raises `ToolCallError` if it has a key twice; anything else that
        does not fit `schema` stays unchanged.
        """
        try:
            return (
                self._restored(arguments, self.schema, "")
                if self.stand_ins or self.pairs
                else arguments
            )
        except RecursionError:
            return arguments  # too deep for the check as well, which reports it

    def _restored(self, value: Any, schema: Any, at: str, likely: int = 0) -> Any:
        if not is_object(schema):
            return value
        if isinstance(schema.get("$ref"), str):
            reference: str = schema["$ref"]
            return self._restored(value, find_pointer(reference, self.schema), reference[1:])
        if "anyOf" in schema:
            branch = self._branch(value, schema["anyOf"], at, likely)
            return (
                value
                if branch is None
                else self._restored(value, schema["anyOf"][branch], f"{at}/anyOf/{branch}")
            )
        if is_list(value):
            # `prefixItems` may have become a union of items, in their order.
            items = [
                self._restored(each, schema.get("items"), f"{at}/items", i)
                for i, each in enumerate(value)
            ]
            return _dictionary(items) if at in self.pairs else items
        if not is_object(value):
            return value
        made: dict[str, Any] = {}
        for name, each in value.items():
            place = f"{at}/properties/{escape_step(name)}"
            if each is not None or place not in self.stand_ins:
                made[name] = self._restored(each, members(schema, "properties").get(name), place)
        return made

    def _branch(self, value: Any, branches: list[Any], at: str, likely: int) -> int | None:
        """The branch of a union that the model wrote: the only one with the value's type, or else the likely one or the first that fits."""
        kind = json_type(value)
        admitted = [declared_types(resolve_reference(each, self.schema)) for each in branches]
        possible = [i for i, kinds in enumerate(admitted) if not kinds or kind in kinds]
        if len(possible) < 2:
            return possible[0] if possible else None
        try:
            plain = self._validator.plain(value)
            possible.sort(key=likely.__ne__)
            return next(
                (i for i in possible if self._validator.accepts(f"{at}/anyOf/{i}", plain)),
                None,
            )
        except ValueError:  # too large to be checked
            return None


def _dictionary(items: list[Any]) -> Any:
    """The dictionary made from these pairs; the items themselves if they are not pairs."""
    if not all(
        is_object(each) and each.keys() == _PAIR and isinstance(each["key"], str) for each in items
    ):
        return items
    made: dict[str, Any] = {}
    for each in items:
        if each["key"] in made:
            msg = f"a list of keys and values has the key {shown(each['key'])} twice. Write each key once."
            raise ToolCallError("invalid_tool_call_arguments", msg, raw=items)
        made[each["key"]] = each["value"]
    return made


_PAIR = {"key", "value"}


class LoweredTools(Struct, frozen=True):
    """Declarations in the form that one target accepts."""

    tools: tuple[dict[str, Any], ...]
    """Canonical declarations, in order, with `"strict": True` in the `function` of each that uses strict mode. Others are unchanged."""
    losses: Mapping[str, tuple[SchemaLoss, ...]]
    """The losses of each tool that has any, by name."""
    lowered: Mapping[str, LoweredSchema]
    """The lowered schema of each tool that is lowered, by name."""

    def restored(self, name: str, arguments: Any) -> Any:
        """Convert a model's arguments to the tool's own schema, as `LoweredSchema.restored` does; unchanged for an unknown name."""
        lowered = self.lowered.get(name)
        return arguments if lowered is None else lowered.restored(arguments)


def lower_schema(schema: Mapping[str, Any], target: Target) -> LoweredSchema:
    """Lower the schema of a tool's arguments for one target. Walks the schema, so callers keep the result (once a `Declarations`).

    `target` is `"openai-strict"`, `"anthropic"`, `"gemini"`, or `"grammar"` for models in this
    process. Raises `ConfigurationError` for any other target, and for a schema that is not a dict,
    such as `true`.
    """
    if not isinstance(schema, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  of a programmer without types
        raise ConfigurationError(f"A schema is lowered from a dict, found {shown(schema)}.")
    _check_target(target)
    try:
        return _lowered(schema, target)
    except RecursionError:
        why = "this is nested too deeply to be lowered"
    except TooMuchWorkError as error:
        why = f"this cannot be lowered: {error}"
    except (TypeError, ValueError, AttributeError, KeyError):
        problem = schema_problem(dict(schema))
        if not problem:
            raise
        why = f"this is not a JSON schema, and cannot be lowered: {problem}"
    return LoweredSchema(
        dict(schema),
        (SchemaLoss("", "$schema", why, breaking=RULES[target].strict or target == "grammar"),),
        target,
    )


def lower_tools(declarations: Iterable[Mapping[str, Any]], target: Target) -> LoweredTools:
    """Lower canonical declarations for one target. Walks every schema, so callers keep the result (once a `Declarations`)."""
    tools: list[dict[str, Any]] = []
    losses: dict[str, tuple[SchemaLoss, ...]] = {}
    lowered: dict[str, LoweredSchema] = {}
    _check_target(target)
    given = list(declarations)
    made = [lower_schema(each["function"].get("parameters") or {}, target) for each in given]
    strict = {i: each.schema for i, each in enumerate(made) if each.is_strict}
    chosen = (
        within_request(strict)
        if target == "anthropic"
        else strict.keys()
        if RULES[target].strict
        else range(len(made))
    )
    for i, (declaration, each) in enumerate(zip(given, made, strict=True)):
        function: dict[str, Any] = declaration["function"]
        name: str = function["name"]
        if i not in chosen:
            # An unchanged tool keeps the rules that strict mode merely does not check: only
            # breaking losses remain.
            losses[name] = (
                (_CROWDED,)
                if i in strict
                else (*(loss for loss in each.losses if loss.breaking), _UNSTRICT)
            )
            tools.append(dict(declaration))
            continue
        if each.losses:
            losses[name] = each.losses
        tools.append(
            {
                **declaration,
                "function": {
                    **function,
                    "parameters": each.schema,
                    **({"strict": True} if i in strict else {}),
                },
            },
        )
        lowered[name] = each
    return LoweredTools(tuple(tools), losses, lowered)


def _check_target(target: object) -> None:
    if target not in RULES:
        raise ConfigurationError(
            f"A schema is lowered for one of {', '.join(map(repr, RULES))}, found {shown(target)}.",
        )


def _lowered(schema: Mapping[str, Any], target: Target) -> LoweredSchema:
    walk = (GrammarPass if target == "grammar" else LoweringPass)(dict(schema), RULES[target])
    made = walk.lowered()
    losses = dict.fromkeys([*walk.losses, *beyond_limits(made, target)])
    stand_ins, pairs = {id(each) for each in walk.stand_ins}, {id(each) for each in walk.pairs}
    found = list(nodes(made, "")) if stand_ins or pairs else []
    nulls = frozenset(place for place, each in found if id(each) in stand_ins)
    return LoweredSchema(
        made,
        tuple(losses),
        target,
        nulls,
        frozenset(place for place, each in found if id(each.get("items")) in pairs),
    )


_UNSTRICT = SchemaLoss(
    "",
    "strict",
    "strict mode does not support this schema: the tool is sent unchanged, without strict mode",
    breaking=True,
)
_CROWDED = SchemaLoss(
    "",
    "strict",
    "other tools use up the limits of strict mode for one request: the tool is sent unchanged, without strict mode",
    breaking=True,
)
