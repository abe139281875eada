"""References inside a JSON schema, by pointer, `$id` and anchor, and the work that they cause.

A few hundred bytes of schema can cause any amount of work: n definitions that each refer twice to
the next cause 2^n checks. Such a schema is refused before a validator sees it, or its checks are
counted.

`count_work` finds out without doing the work. It visits each schema once, and keeps its cost: how
many schemas apply to the value itself, and how many to each place inside the value. A schema in an
`allOf` adds to the same value, one under `properties` to a place, and a reference adds the cost of
its target, which is known. For a definition that refers to itself there is no such number, because
it depends on how deep the value is: the validator then counts the steps of each check.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urldefrag, urljoin

from ferrule.schema.nodes import Schema, escape_step, find_pointer, is_object, subschemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST = 100_000
"""The most schemas that may apply to one place in a value.

Unions of unions in public tools reach a few thousand.
"""
_MOST_IN_PLACE = 5_000
"""The same limit, without the schemas that other parts of the schema apply to the place."""
_MOST_CIRCLES = 5
"""The most schemas that apply themselves to the same value again, which has no effect."""
_DEEPEST = 300
"""The most references and subschemas on one path through a schema.

A validator recurses in native code: a full stack ends the process.
"""
_DEEPEST_IN_PLACE = 50
"""The same limit, for a path that stays at one value."""
_PATTERN, _PATTERN_IN_PLACE = 2_000, 100
"""How many schemas a costly pattern counts as, for all values at a place and for one.

50 of them take about 50 ms at most.
"""
_LARGEST = 2_000_000
"""The most steps of the count itself."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
"""The keywords that refer to other schemas."""
_IN_PLACE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
_DEFINITIONS = frozenset({"$defs", "definitions"})
_OBJECT = frozenset({"properties", "required"})
_SAME_VALUE = _OBJECT | {"$ref", "allOf", "anyOf", "oneOf"}
"""Keywords whose schemas, or whose own rules, must fit the same value."""
_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"})
_Place = tuple[str, Any]
"""The JSON pointer of a schema, and the schema."""


def parts(schema: Schema) -> Iterator[tuple[str, str | int | None, Any]]:
    """The direct subschemas, as `subschemas` yields them, and those of `dependencies`.

    That keyword was there before 2019-09.
    """
    yield from subschemas(schema)
    old: Any = schema.get("dependencies")
    if is_object(old):
        for name, part in old.items():
            if not isinstance(part, list):
                yield "dependencies", name, part


class TooMuchWorkError(ValueError):
    """A schema causes more work than a validator may do."""


class StepBudget:
    """The steps that the searches in one schema may take together."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def take_step(self) -> bool:
        """Take a step; returns False if there are no more."""
        self._left -= 1
        return self._left >= 0


class SchemaReferences:
    """Resolves the references of a schema. Reads nothing outside it."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._resources: dict[str, _Place] = {"": ("", root)}
        """The schemas with an `$id`, by their absolute address."""
        self._anchors: dict[str, _Place] = {}
        """The schemas with an anchor, by the address of their resource and `#` with the name."""
        self._dynamic: dict[str, list[_Place]] = {}
        """The schemas with a `$dynamicAnchor`, by its name alone."""
        self._bases: dict[int, str] = {}
        """The address of the resource around a schema, by the schema's `id()`, if it has one."""
        waiting: list[tuple[str, Any, str]] = [("", root, "")]
        while waiting:
            pointer, node, base = waiting.pop()
            if not is_object(node):
                continue
            name: Any = node.get("$id", node.get("id"))  # `id` before 2019-09
            if isinstance(name, str):
                base = self._register(name, base, (pointer, node))
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(key), str):
                    self._anchors.setdefault(f"{base}#{node[key]}", (pointer, node))
                    if key == "$dynamicAnchor":
                        self._dynamic.setdefault(node[key], []).append((pointer, node))
            if base:
                self._bases[id(node)] = base
            waiting.extend(
                (join_pointer(pointer, key, step), part, base) for key, step, part in parts(node)
            )

    def _register(self, name: str, base: str, place: _Place) -> str:
        """Note a schema with an `$id`; returns the address of the resource inside it."""
        if name.startswith("#"):  # an anchor, as it was written before 2019-09
            self._anchors.setdefault(base + name, place)
            return base
        try:
            address = urldefrag(urljoin(base, name))[0]
        except ValueError:
            return base
        self._resources.setdefault(address, place)
        return address

    def targets(self, node: Schema) -> list[_Place] | None:
        """The schemas that the references in a schema may lead to.

        None if a reference leads out of the root schema or to nothing.
        """
        targets: list[_Place] = []
        base = self._bases.get(id(node), self._bases.get(id(self.root), ""))
        for key in REFERENCES:
            if key in node:
                candidates = self._targets(node[key], base, key)
                if not candidates:
                    return None
                targets += candidates
        return targets

    def _targets(self, reference: Any, base: str, key: str) -> list[_Place]:
        if not isinstance(reference, str):
            return []
        try:
            uri, fragment = urldefrag(reference)
            target = base
            if uri:
                target = urldefrag(urljoin(base, uri))[0]
        except ValueError:
            return []
        resource = self._resources.get(target)
        if resource is None:
            return []
        if not fragment or fragment.startswith("/"):
            node = find_pointer(f"#{fragment}", resource[1])
            if node is None:
                return []
            return [(resource[0] + unquote(fragment), node)]
        places: list[_Place] = []
        named = self._anchors.get(f"{target}#{fragment}")
        if named is not None:
            places.append(named)
        # Which anchor of this name applies depends on the path to here: it may be any of them.
        if key == "$dynamicRef":
            places += [place for place in self._dynamic.get(fragment, []) if place != named]
        return places


def join_pointer(pointer: str, keyword: str, step: object = None) -> str:
    """The JSON pointer of a part of a schema."""
    joined = f"{pointer}/{escape_step(keyword)}"
    if step is not None:
        joined += f"/{escape_step(step)}"
    return joined


class _Cost:
    """The work that a schema causes for one value."""

    __slots__ = ("depth", "depth_in_place", "inside", "own", "patterns")

    def __init__(self) -> None:
        self.own = 1.0
        """How many schemas apply to the value itself."""
        self.inside: dict[str | int, float] = {}
        """How many apply to each place inside the value."""
        self.depth = 0
        """How many schemas and references are nested in it."""
        self.depth_in_place = 0
        """How many of them, one in another, apply to the value itself."""
        self.patterns = 0
        """How many costly patterns apply to the value itself."""

    @property
    def most(self) -> float:
        """The most schemas that apply to one place."""
        anywhere = self.inside.get(_ANY, 0.0)
        return max(self.own, anywhere + max(self.inside.values(), default=0.0))


_ANY, _ITEM, _NAME = 0, 1, 2
"""Places inside a value, besides named properties: any property, any item, a name."""


def _place_inside(key: str, step: str | int | None) -> str | int:
    """The place inside a value to which a subschema under a keyword applies."""
    if key == "properties":
        return str(step)
    if key in _ITEMS:
        return _ITEM
    if key == "propertyNames":
        return _NAME
    return _ANY


def requires_itself(reference: str, root: Schema, budget: StepBudget) -> bool:
    """Whether a definition contains itself outside optional properties.

    If several parts must fit one value, each of their properties counts as required: another part
    may require it. Each schema takes a step of the budget; True if there are no more.
    """
    seen = set[tuple[str, bool]]()
    waiting: list[tuple[Any, bool]] = [(find_pointer(reference, root), False)]
    while waiting:
        schema, in_part = waiting.pop()
        if not is_object(schema):
            continue
        if not budget.take_step():
            return True
        keywords = schema.keys() & _SAME_VALUE
        if len(keywords) > 1 and not keywords <= _OBJECT:
            in_part = True
        if len(schema.get("allOf") or ()) > 1:
            in_part = True
        target: Any = schema.get("$ref")
        if target == reference:
            return True
        if isinstance(target, str) and (target, in_part) not in seen:
            seen.add((target, in_part))
            waiting.append((find_pointer(target, root), in_part))
        required = schema.get("required") or ()
        for key, name, part in subschemas(schema):
            if key in _DEFINITIONS:
                continue
            if key != "properties":
                waiting.append((part, in_part and key in _SAME_VALUE))
            elif in_part or name in required:
                waiting.append((part, False))
    return False


def count_work(references: SchemaReferences, is_costly: Callable[[Any], bool]) -> float:
    """The most schemas that apply to one place in a value.

    Infinite if a definition refers to itself, so that it depends on the value. A pattern that
    `is_costly` counts as 2,000 schemas. Raises `TooMuchWorkError` above the limit, and for a schema
    that is nested too deeply.
    """
    counter = _WorkCounter(references, is_costly)
    cost = counter.cost(references.root, 0)
    multiplies = counter.most_in_place > _MOST_IN_PLACE or counter.circles > _MOST_CIRCLES
    if multiplies or (cost.most > _MOST and not counter.is_recursive):
        raise TooMuchWorkError(
            f"a value would take more than {_MOST_IN_PLACE:,} checks, as its references multiply"
        )
    if counter.is_recursive:
        return math.inf
    return cost.most


class _WorkCounter:
    """Counts the work of each schema once."""

    def __init__(self, references: SchemaReferences, is_costly: Callable[[Any], bool]) -> None:
        self.is_recursive = False
        """Whether a definition refers to itself."""
        self.most_in_place = 0.0
        """The most schemas that apply to one value, without those of the schemas around."""
        self.circles = 0
        """How many references lead back to a schema at the same value."""
        self._references = references
        self._is_costly = is_costly
        self._costs: dict[int, _Cost] = {}
        """By the `id()` of a schema, like the two sets below."""
        self._unfinished: set[int] = set()
        """The schemas whose cost is being counted."""
        self._same_value: set[int] = set()
        """Those of them that apply to the current value."""
        self._steps = 0

    def cost(self, node: Any, depth: int) -> _Cost:
        """The cost of a schema, `depth` levels below the root."""
        known = self._costs.get(id(node))
        if known is not None:
            if id(node) in self._same_value:
                self.circles += 1
            if id(node) in self._unfinished:
                self.is_recursive = True
            return known
        cost = _Cost()
        if not is_object(node):
            return cost
        if depth > _DEEPEST:
            raise TooMuchWorkError("it is nested too deeply")
        # A reference back to it counts as one, because the validator remembers its answers there.
        self._costs[id(node)] = _Cost()
        self._unfinished.add(id(node))
        self._same_value.add(id(node))
        self._add_parts(cost, node, depth)
        self._same_value.discard(id(node))
        self._steps += len(node) + 1
        if self._steps > _LARGEST:
            raise TooMuchWorkError("it is too large")
        if cost.depth_in_place > _DEEPEST_IN_PLACE or cost.depth > _DEEPEST:
            raise TooMuchWorkError("it is nested too deeply")
        in_place = cost.own - (_PATTERN - _PATTERN_IN_PLACE) * cost.patterns
        self.most_in_place = max(self.most_in_place, in_place)
        self._unfinished.discard(id(node))
        self._costs[id(node)] = cost
        return cost

    def _add_parts(self, cost: _Cost, node: Schema, depth: int) -> None:
        named: Any = node.get("patternProperties")
        if "pattern" in node or named:
            patterns: list[Any] = [node.get("pattern")]
            if is_object(named):
                patterns.extend(named)
            costly = sum(map(self._is_costly, patterns))
            cost.own += _PATTERN * costly
            cost.patterns += costly
        for key, step, part in parts(node):
            if key in _DEFINITIONS:
                continue
            if key in _IN_PLACE:
                self._add_in_place(cost, self.cost(part, depth + 1))
            else:
                # A part of the value: a circle through it ends where the value does.
                at_this_value, self._same_value = self._same_value, set()
                part_cost = self.cost(part, depth + 1)
                self._same_value = at_this_value
                place = _place_inside(key, step)
                cost.inside[place] = cost.inside.get(place, 0.0) + part_cost.most
                cost.depth = max(cost.depth, part_cost.depth + 1)
        for _, target in self._references.targets(node) or ():
            self._add_in_place(cost, self.cost(target, depth + 1))

    def _add_in_place(self, cost: _Cost, part: _Cost) -> None:
        self._steps += len(part.inside)
        cost.own += part.own
        cost.patterns += part.patterns
        cost.depth_in_place = max(cost.depth_in_place, part.depth_in_place + 1)
        cost.depth = max(cost.depth, part.depth + 1)
        for place, count in part.inside.items():
            cost.inside[place] = cost.inside.get(place, 0.0) + count
