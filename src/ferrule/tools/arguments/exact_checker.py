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
        self._exactly = () if found.positional_only or found.caller else parameters.plain

    @cached_property
    def prepare(self) -> Callable[[Any], CheckedArguments]:
        """Returns the arguments that fit, with defaults, in the function's order. Raises `ToolArgumentsError`."""
        return self._accept if self._exactly else self._checker.prepare

    def _accept(self, args: Any) -> CheckedArguments:
        if type(args) is not dict:
            return self._checker.prepare(args)
        given: dict[str, Any] = args  # pyright: ignore[reportUnknownVariableType]
        taken: dict[str, Any] = {}
        for name, kind, default in self._exactly:
            value = given.get(name, default)
            if type(value) is not kind or (kind is float and value - value != 0.0):  # `plain.fits`, without a call
                return self._checker.prepare(given)
            taken[name] = value
        return CheckedArguments((), taken, taken) if given.keys() <= taken.keys() else self._checker.prepare(given)

    @cached_property
    def _checker(self) -> Checker:
        from ferrule.tools.arguments.checker import Checker  # late: it imports all repairs and explanations

        return Checker(self._tool, self._found, self.parameters)
