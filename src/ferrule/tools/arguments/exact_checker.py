"""The checker of arguments that fit as they are. Most calls of most tools need no other."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ferrule.values.calls.call import CheckedArguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.tools.arguments.checker import Checker
    from ferrule.tools.definition.inspect_function import FunctionSpec
    from ferrule.tools.definition.parameters import Parameters


class ExactChecker:
    """Accepts arguments that are exactly of the parameters' plain types, as they are; leaves all others to the tool's `Checker`."""

    def __init__(self, tool: str, found: FunctionSpec, parameters: Parameters) -> None:
        self.parameters = parameters
        self._tool = tool
        self._found = found
        plain = () if found.positional_only or found.caller else parameters.plain
        # Bare tuples: each call unpacks them, in half the time of a named tuple.
        self._exactly = tuple([(each.name, each.kind, each.items, each.may_be_none) for each in plain])
        self._defaults = {each.name: each.default for each in plain}

    @cached_property
    def prepare(self) -> Callable[[Any], CheckedArguments]:
        """Returns the arguments that fit, with defaults, in the function's order. Raises `ToolArgumentsError`."""
        return self._accept if self._exactly else self._checker.prepare

    def _accept(self, args: Any) -> CheckedArguments:
        if type(args) is not dict:
            return self._checker.prepare(args)
        given: dict[str, Any] = args  # pyright: ignore[reportUnknownVariableType]
        # In the function's order. An unknown name makes it longer; for a missing one it has `PydanticUndefined`, which is of no plain type.
        shown = taken = {**self._defaults, **given}
        if len(taken) != len(self._defaults):
            return self._checker.prepare(given)
        for name, kind, items, may_be_none in self._exactly:
            value = taken[name]
            if type(value) is not kind:
                if value is not None or not may_be_none:
                    return self._checker.prepare(given)
            elif kind is list:
                for each in value:
                    if type(each) is not items or (items is float and each - each != 0.0):  # `fits`, without a call
                        return self._checker.prepare(given)
                if shown is taken:  # a tool may change a list among its arguments: the record gets copies
                    shown = taken.copy()
                taken[name], shown[name] = [*value], [*value]
            elif kind is float and value - value != 0.0:
                return self._checker.prepare(given)
        return CheckedArguments((), taken, shown)

    @cached_property
    def _checker(self) -> Checker:
        from ferrule.tools.arguments.checker import Checker  # late: it imports all repairs and explanations

        return Checker(self._tool, self._found, self.parameters)
