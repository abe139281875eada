"""Lowering: a tool's schema in the dialect of a provider's strict mode, and arguments written under it converted back.

A lowered schema is a copy, with a `SchemaLoss` for each thing that it does not say. A model's arguments go through `restored` before they
are checked against the tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from ferrule.values.record import Record, field
from ferrule.values.schema.lowering.grammar import GrammarPass
from ferrule.values.schema.lowering.rules import RULES, ProviderTarget, SchemaLoss, Target
from ferrule.values.schema.lowering.walk import LoweringPass
from ferrule.values.schema.nodes import Schema, declared_types, escape_step, find_pointer, is_list, is_object, json_type, members
from ferrule.values.schema.references import TooMuchWorkError
from ferrule.values.schema.validator import Validator, schema_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["TARGETS", "LoweredSchema", "LoweredTools", "SchemaLoss", "Target", "lower_schema", "lower_tools"]

TARGETS: tuple[ProviderTarget, ...] = get_args(ProviderTarget)

_PROPERTIES, _LEVELS, _ENUM_VALUES, _CHARACTERS, _LONG_ENUM = 5_000, 10, 1_000, 120_000, (250, 15_000)
"""OpenAI's limits of one strict schema ("Structured model outputs", section "Supported schemas", 2026-08)."""
_STRICT_TOOLS, _OPTIONAL, _UNIONS = 20, 24, 16
"""Anthropic's limits of all strict tools of one request together ("Structured outputs", section "Schema complexity limits", 2026-10)."""


class LoweredSchema(Record):
    """A schema in the form that one target accepts."""

    schema: Schema
    """Shared; do not change it."""
    losses: tuple[SchemaLoss, ...]
    target: Target
    stand_ins: frozenset[str] = frozenset()
    """JSON pointers into `schema`: properties in which null means "left out"."""
    _validators: list[Validator] = field(default_factory=list, init=False, compare=False, repr=False)
    """The validator of `schema`, once it was needed."""

    @property
    def is_strict(self) -> bool:
        """Whether the target's strict mode accepts the schema; never for a target without one."""
        return RULES[self.target].strict and not any(loss.breaking for loss in self.losses)

    @property
    def level(self) -> Literal["exact", "rewritten", "partial"]:
        """`exact`; `rewritten` if `schema` admits less than the original; `partial` if it admits more, so that values must be checked."""
        return "exact" if not self.losses else "partial" if any(loss.breaking for loss in self.losses) else "rewritten"

    def restored(self, arguments: Any) -> Any:
        """Convert arguments written under `schema` to the original schema: a null that means "left out" is removed."""
        try:
            return self._restored(arguments, self.schema, "") if self.stand_ins else arguments
        except RecursionError:
            return arguments  # too deep for the check, too, which reports it

    def _restored(self, value: Any, schema: Any, at: str, likely: int = 0) -> Any:
        if not is_object(schema):
            return value
        if isinstance(schema.get("$ref"), str):
            reference: str = schema["$ref"]
            return self._restored(value, find_pointer(reference, self.schema), reference[1:])
        if "anyOf" in schema:
            branch = self._branch(value, schema["anyOf"], at, likely)
            return value if branch is None else self._restored(value, schema["anyOf"][branch], f"{at}/anyOf/{branch}")
        if is_list(value):
            # `prefixItems` may have become a union of items, in their order.
            return [self._restored(each, schema.get("items"), f"{at}/items", i) for i, each in enumerate(value)]
        if not is_object(value):
            return value
        made: dict[str, Any] = {}
        for name, each in value.items():
            place = f"{at}/properties/{escape_step(name)}"
            if each is not None or place not in self.stand_ins:
                made[name] = self._restored(each, members(schema, "properties").get(name), place)
        return made

    def _branch(self, value: Any, branches: list[Any], at: str, likely: int) -> int | None:
        """The branch of a union that the model wrote: the only one of the value's type, or else the likely one or the first that fits."""
        kind = json_type(value)
        possible = [i for i, each in enumerate(branches) if not (kinds := declared_types(self._followed(each))) or kind in kinds]
        if len(possible) < 2:  # noqa: PLR2004  one or none: there is nothing to choose
            return possible[0] if possible else None
        try:
            if not self._validators:
                self._validators.append(Validator(self.schema, lenient=True))
            plain = self._validators[0].plain(value)
            possible.sort(key=likely.__ne__)
            return next((i for i in possible if self._validators[0].accepts(f"{at}/anyOf/{i}", plain)), None)
        except ValueError:  # too large to be checked
            return None

    def _followed(self, schema: Schema) -> Schema:
        seen: set[str] = set()
        while "$ref" in schema and schema["$ref"] not in seen:
            seen.add(schema["$ref"])
            schema = find_pointer(schema["$ref"], self.schema) or {}
        return schema


class LoweredTools(Record):
    """Declarations in the form that one target accepts."""

    tools: tuple[dict[str, Any], ...]
    """Canonical declarations, in order, with `"strict": True` in the `function` of each that uses strict mode. Others are unchanged."""
    losses: Mapping[str, tuple[SchemaLoss, ...]]
    """By name, for the tools that lose something."""
    lowered: Mapping[str, LoweredSchema]
    """By name, for the tools that are lowered."""

    def restored(self, name: str, arguments: Any) -> Any:
        """Convert a model's arguments to the tool's own schema; unchanged for an unknown name."""
        lowered = self.lowered.get(name)
        return arguments if lowered is None else lowered.restored(arguments)


def lower_schema(schema: Mapping[str, Any], target: Target) -> LoweredSchema:
    """Lower the schema of a tool's arguments for one target. Walks the schema, so callers keep the result (once a `Declarations`)."""
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
        why = f"this is no JSON schema, and cannot be lowered: {problem}"
    return LoweredSchema(dict(schema), (SchemaLoss("", "$schema", why, breaking=RULES[target].strict or target == "grammar"),), target)


def lower_tools(declarations: Iterable[Mapping[str, Any]], target: Target) -> LoweredTools:
    """Lower canonical declarations for one target. Walks every schema, so callers keep the result (once a `Declarations`)."""
    tools: list[dict[str, Any]] = []
    losses: dict[str, tuple[SchemaLoss, ...]] = {}
    lowered: dict[str, LoweredSchema] = {}
    budget = _Budget()
    for declaration in declarations:
        function: dict[str, Any] = declaration["function"]
        made = lower_schema(function.get("parameters") or {}, target)
        found = made.losses
        if RULES[target].strict:
            # An unchanged tool loses nothing that strict mode only does not check.
            found = found if made.is_strict else (*(loss for loss in found if loss.breaking), _UNSTRICT)
            if made.is_strict and target == "anthropic" and not budget.has_room(made.schema):
                found = (_CROWDED,)
        if found:
            losses[function["name"]] = found
        if _UNSTRICT in found or _CROWDED in found:
            tools.append(dict(declaration))
            continue
        strict = {"strict": True} if RULES[target].strict else {}
        tools.append({**declaration, "function": {**function, "parameters": made.schema, **strict}})
        lowered[function["name"]] = made
    return LoweredTools(tuple(tools), losses, lowered)


def _lowered(schema: Mapping[str, Any], target: Target) -> LoweredSchema:
    walk = (GrammarPass if target == "grammar" else LoweringPass)(dict(schema), RULES[target])
    made = walk.lowered()
    losses = [*walk.losses, *(_beyond_limits(made) if target == "openai-strict" else ())]
    stand_ins = {id(each) for each in walk.stand_ins}
    places = frozenset(place for place, each in _nodes(made, "") if id(each) in stand_ins)
    return LoweredSchema(made, tuple(dict.fromkeys(losses)), target, places)


_UNSTRICT = SchemaLoss("", "strict", "strict mode does not take this schema: the tool is sent as it is, without strict mode", breaking=True)
_CROWDED = SchemaLoss(
    "",
    "strict",
    "the tools before it use up what strict mode takes in one request: the tool is sent as it is, without strict mode",
    breaking=True,
)


class _Budget:
    """The rest of Anthropic's limits for the strict tools of one request."""

    def __init__(self) -> None:
        self._left = (_STRICT_TOOLS, _OPTIONAL, _UNIONS)

    def has_room(self, schema: Schema) -> bool:
        """Whether one more tool fits; if so, count it."""
        nodes = [each for _, each in _nodes(schema, "")]
        optional = sum(len(set(each.get("properties") or ()) - set(each.get("required") or ())) for each in nodes)
        unions = sum("anyOf" in each or is_list(each.get("type")) for each in nodes)
        left = tuple(have - want for have, want in zip(self._left, (1, optional, unions), strict=True))
        if min(left) < 0:
            return False
        self._left = left
        return True


def _nodes(schema: Any, at: str) -> Iterator[tuple[str, Schema]]:
    """Every subschema of a lowered schema, with its JSON pointer."""
    if not is_object(schema):
        return
    yield at, schema
    for key in ("properties", "$defs"):
        for name, each in members(schema, key).items():
            yield from _nodes(each, f"{at}/{key}/{escape_step(name)}")
    for key in ("anyOf", "prefixItems"):
        for i, each in enumerate(schema.get(key) or ()):
            yield from _nodes(each, f"{at}/{key}/{i}")
    for key in ("items", "additionalProperties"):
        yield from _nodes(schema.get(key), f"{at}/{key}")


def _beyond_limits(schema: Schema) -> Iterator[SchemaLoss]:
    nodes = [each for _, each in _nodes(schema, "")]
    names = [name for each in nodes for key in ("properties", "$defs") for name in each.get(key) or ()]
    enums: list[list[Any]] = [each["enum"] for each in nodes if "enum" in each]
    texts = [[value for value in enum if isinstance(value, str)] for enum in enums]
    counted = (
        (sum(len(each.get("properties") or ()) for each in nodes), _PROPERTIES, "properties", "properties in all"),
        (_depth(schema), _LEVELS, "properties", "levels of objects"),
        (sum(map(len, enums)), _ENUM_VALUES, "enum", "values of enumerations in all"),
        (
            sum(map(len, [*names, *(value for each in texts for value in each)])),
            _CHARACTERS,
            "properties",
            "characters of names and values",
        ),
        (
            max((sum(map(len, each)) for each in texts if len(each) > _LONG_ENUM[0]), default=0),
            _LONG_ENUM[1],
            "enum",
            "characters of one enumeration",
        ),
    )
    for found, most, keyword, what in counted:
        if found > most:
            yield SchemaLoss("", keyword, f"strict mode takes {most} {what}, and there are {found}", breaking=True)


def _depth(schema: Any) -> int:
    if not is_object(schema):
        return 0
    inside: list[Any] = [
        *members(schema, "properties").values(),
        *members(schema, "$defs").values(),
        *(schema.get("anyOf") or ()),
        schema.get("items"),
    ]
    return (1 if "properties" in schema else 0) + max(map(_depth, inside), default=0)
