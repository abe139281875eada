"""Lower a tool's schema into the dialect of a provider's strict mode, and convert arguments back.

A lowered schema is a copy, with a `SchemaLoss` for each rule that it does not express. A model's
arguments go through `restored` before they are checked against the tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct

from ferrule.errors import ConfigurationError, ToolCallError, shown
from ferrule.record import CheckedStruct
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


class LoweredSchema(Struct, metaclass=CheckedStruct, frozen=True, dict=True):
    """A schema in the form that one target accepts."""

    schema: Schema
    """Shared; do not change it."""
    losses: tuple[SchemaLoss, ...]
    target: Target
    stand_ins: frozenset[str] = frozenset()
    """JSON pointers into `schema` to the properties in which null means "left out"."""
    pairs: frozenset[str] = frozenset()
    """JSON pointers into `schema` to the lists of keys and values that replace dictionaries.

    Their items are `{"key": ..., "value": ...}`.
    """

    @property
    def is_strict(self) -> bool:
        """Whether the target's strict mode accepts the schema.

        False for a target without a strict mode.
        """
        return RULES[self.target].strict and not self._admits_more

    @property
    def level(self) -> Literal["exact", "rewritten", "partial"]:
        """How well `schema` expresses the original: `exact`, `rewritten` or `partial`.

        `rewritten` if it admits less than the original; `partial` if it admits more, so that values
        must be checked.
        """
        if not self.losses:
            return "exact"
        return "partial" if self._admits_more else "rewritten"

    @property
    def _admits_more(self) -> bool:
        return any(loss.breaking for loss in self.losses)

    @cached_property
    def validator(self) -> Validator:
        """Checks values against `schema`. Made on first use: only an ambiguous union needs it."""
        return Validator(self.schema, lenient=True)

    def restored(self, arguments: Any) -> Any:
        """Convert arguments written under `schema` to the original schema.

        A null that means "left out" is removed, so that the default applies. A list that replaces a
        dictionary becomes one. Raises `ToolCallError` if it has a key twice; anything else that
        does not fit `schema` stays unchanged.
        """
        if not self.stand_ins and not self.pairs:
            return arguments
        try:
            return _Restoration(self).value(arguments, self.schema, "")
        except RecursionError:
            return arguments  # too deep for the check as well, which reports it


class _Restoration:
    """Converts one value back to the original schema."""

    def __init__(self, lowered: LoweredSchema) -> None:
        self._lowered = lowered

    def value(self, value: Any, schema: Any, pointer: str, *, likely_branch: int = 0) -> Any:
        """The value, which was written under the schema at this JSON pointer, in its old form."""
        if not is_object(schema):
            return value
        if isinstance(schema.get("$ref"), str):
            reference: str = schema["$ref"]
            target = find_pointer(reference, self._lowered.schema)
            return self.value(value, target, reference[1:])
        if "anyOf" in schema:
            branch = self._branch(value, schema["anyOf"], pointer, likely_branch)
            if branch is None:
                return value
            return self.value(value, schema["anyOf"][branch], f"{pointer}/anyOf/{branch}")
        if is_list(value):
            return self._list(value, schema, pointer)
        if is_object(value):
            return self._object(value, schema, pointer)
        return value

    def _list(self, value: list[Any], schema: Schema, pointer: str) -> Any:
        items: list[Any] = []
        for i, item in enumerate(value):
            # `prefixItems` may have become a union of items, in their order.
            restored = self.value(item, schema.get("items"), f"{pointer}/items", likely_branch=i)
            items.append(restored)
        if pointer in self._lowered.pairs:
            return _dictionary(items)
        return items

    def _object(self, value: dict[str, Any], schema: Schema, pointer: str) -> dict[str, Any]:
        properties = members(schema, "properties")
        restored: dict[str, Any] = {}
        for name, part in value.items():
            part_pointer = f"{pointer}/properties/{escape_step(name)}"
            if part is None and part_pointer in self._lowered.stand_ins:
                continue  # left out
            restored[name] = self.value(part, properties.get(name), part_pointer)
        return restored

    def _branch(
        self, value: Any, branches: list[Any], pointer: str, likely_branch: int
    ) -> int | None:
        """The branch of a union that the model wrote; None if there is none.

        It is the only one with the value's type, or else the likely one or the first that fits.
        """
        kind = json_type(value)
        possible: list[int] = []
        for i, branch in enumerate(branches):
            kinds = declared_types(resolve_reference(branch, self._lowered.schema))
            if not kinds or kind in kinds:
                possible.append(i)
        if len(possible) < 2:
            return possible[0] if possible else None
        if likely_branch in possible:
            possible.remove(likely_branch)
            possible.insert(0, likely_branch)
        try:
            validator = self._lowered.validator
            plain = validator.plain(value)
            for i in possible:
                if validator.accepts(f"{pointer}/anyOf/{i}", plain):
                    return i
        except ValueError:  # too large to be checked
            return None
        return None


def _dictionary(items: list[Any]) -> Any:
    """The dictionary made from these pairs; the items themselves if they are not pairs."""
    dictionary: dict[str, Any] = {}
    for item in items:
        is_pair = is_object(item) and item.keys() == {"key", "value"}
        if not is_pair or not isinstance(item["key"], str):
            return items
    for pair in items:
        if pair["key"] in dictionary:
            raise ToolCallError(
                "invalid_tool_call_arguments",
                f"a list of keys and values has the key {shown(pair['key'])} twice. "
                f"Write each key once.",
                raw=items,
            )
        dictionary[pair["key"]] = pair["value"]
    return dictionary


class LoweredTools(Struct, metaclass=CheckedStruct, frozen=True):
    """Declarations in the form that one target accepts."""

    tools: tuple[dict[str, Any], ...]
    """Canonical declarations, in order.

    Each that uses strict mode has `"strict": True` in its `function`. Others are unchanged.
    """
    losses: Mapping[str, tuple[SchemaLoss, ...]]
    """The losses of each tool that has any, by name."""
    lowered: Mapping[str, LoweredSchema]
    """The lowered schema of each tool that is lowered, by name."""

    def restored(self, name: str, arguments: Any) -> Any:
        """Convert a model's arguments to the tool's own schema, as `LoweredSchema.restored` does.

        Those of an unknown name stay unchanged.
        """
        lowered = self.lowered.get(name)
        if lowered is None:
            return arguments
        return lowered.restored(arguments)


def lower_schema(schema: Mapping[str, Any], target: Target) -> LoweredSchema:
    """Lower the schema of a tool's arguments for one target.

    Walks the schema, so callers keep the result. `target` is `"openai-strict"`, `"anthropic"`,
    `"gemini"`, or `"grammar"` for models in this process. Raises `ConfigurationError` for any other
    target, and for a schema that is not a dict, such as `true`.
    """
    if not isinstance(schema, Mapping):
        raise ConfigurationError(f"A schema is lowered from a dict, found {shown(schema)}.")
    _check_target(target)
    try:
        return _lowered(schema, target)
    except RecursionError:
        reason = "this is nested too deeply to be lowered"
    except TooMuchWorkError as error:
        reason = f"this cannot be lowered: {error}"
    except (TypeError, ValueError, AttributeError, KeyError):
        # Whatever a schema of wrong form breaks on the way; an error of ours is not hidden.
        problem = schema_problem(dict(schema))
        if not problem:
            raise
        reason = f"this is not a JSON schema, and cannot be lowered: {problem}"
    is_breaking = RULES[target].strict or target == "grammar"
    loss = SchemaLoss("", "$schema", reason, breaking=is_breaking)
    return LoweredSchema(dict(schema), (loss,), target)


def lower_tools(declarations: Iterable[Mapping[str, Any]], target: Target) -> LoweredTools:
    """Lower canonical declarations for one target.

    Walks every schema, so callers keep the result.
    """
    _check_target(target)
    originals = [dict(declaration) for declaration in declarations]
    schemas: list[LoweredSchema] = []
    for declaration in originals:
        parameters: Schema = declaration["function"].get("parameters") or {}
        schemas.append(lower_schema(parameters, target))
    chosen = _chosen(schemas, target)
    tools: list[dict[str, Any]] = []
    losses: dict[str, tuple[SchemaLoss, ...]] = {}
    lowered: dict[str, LoweredSchema] = {}
    for i, (declaration, schema) in enumerate(zip(originals, schemas, strict=True)):
        name: str = declaration["function"]["name"]
        if i not in chosen:
            tools.append(declaration)
            losses[name] = _losses_of_unchanged(schema)
            continue
        tools.append(_with_parameters(declaration, schema))
        lowered[name] = schema
        if schema.losses:
            losses[name] = schema.losses
    return LoweredTools(tuple(tools), losses, lowered)


def _chosen(schemas: list[LoweredSchema], target: Target) -> set[int]:
    """The numbers of the schemas that are sent in their lowered form."""
    if not RULES[target].strict:
        return set(range(len(schemas)))
    strict = {i: lowered.schema for i, lowered in enumerate(schemas) if lowered.is_strict}
    if target == "anthropic":
        return within_request(strict)
    return set(strict)


def _losses_of_unchanged(lowered: LoweredSchema) -> tuple[SchemaLoss, ...]:
    """The losses of a tool that is sent unchanged, without strict mode."""
    if lowered.is_strict:
        return (_CROWDED,)
    # An unchanged tool keeps the rules that strict mode merely does not check.
    return (*(loss for loss in lowered.losses if loss.breaking), _UNSTRICT)


def _with_parameters(declaration: dict[str, Any], lowered: LoweredSchema) -> dict[str, Any]:
    function = {**declaration["function"], "parameters": lowered.schema}
    if lowered.is_strict:
        function["strict"] = True
    return {**declaration, "function": function}


def _check_target(target: object) -> None:
    if target not in RULES:
        raise ConfigurationError(
            f"A schema is lowered for one of {', '.join(map(repr, RULES))}, found {shown(target)}."
        )


def _lowered(schema: Mapping[str, Any], target: Target) -> LoweredSchema:
    if target == "grammar":
        kind = GrammarPass
    else:
        kind = LoweringPass
    walk = kind(dict(schema), RULES[target])
    lowered = walk.lowered()
    losses = dict.fromkeys([*walk.losses, *beyond_limits(lowered, target)])
    stand_ins, pairs = set[str](), set[str]()
    if walk.stand_ins or walk.pairs:
        # The pass knows the objects; only the finished schema knows where they are.
        stand_in_ids = {id(part) for part in walk.stand_ins}
        pair_ids = {id(item) for item in walk.pairs}
        for pointer, node in nodes(lowered, ""):
            if id(node) in stand_in_ids:
                stand_ins.add(pointer)
            if id(node.get("items")) in pair_ids:
                pairs.add(pointer)
    return LoweredSchema(lowered, tuple(losses), target, frozenset(stand_ins), frozenset(pairs))


_UNSTRICT = SchemaLoss(
    "",
    "strict",
    "strict mode does not support this schema: the tool is sent unchanged, without strict mode",
    breaking=True,
)
_CROWDED = SchemaLoss(
    "",
    "strict",
    "other tools use up the limits of strict mode for one request: the tool is sent unchanged, "
    "without strict mode",
    breaking=True,
)
