"""The fast checker, for arguments that already have the right types. Most calls need no other."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

from ferrule.values.calls.call import CheckedArguments

if TYPE_CHECKING:
    from ferrule.tools.arguments.checker import Checker
    from ferrule.tools.definition.inspect_function import FunctionSpec
    from ferrule.tools.definition.parameters import Parameters


class ExactChecker:
    """Accepts arguments whose types are exactly the parameters' plain types, unchanged; leaves all others to the tool's `Checker`."""

    __slots__ = (
        "_checker",
        "_defaults",
        "_floats",
        "_found",
        "_kinds",
        "_lists",
        "_may_be_none",
        "_tool",
        "parameters",
    )

    def __init__(self, tool: str, found: FunctionSpec, parameters: Parameters) -> None:
        self.parameters = parameters
        self._tool = tool
        self._found = found
        plain = () if found.positional_only or found.caller else parameters.plain
        self._kinds = [each.kind for each in plain]
        self._may_be_none = [each.may_be_none for each in plain]
        self._floats = [each.name for each in plain if each.kind is float]
        self._lists = [(each.name, each.items) for each in plain if each.kind is list]
        self._defaults = {each.name: each.default for each in plain}
        self._checker: Checker | None = None

    def prepare(self, args: Any) -> CheckedArguments:
        """Return the arguments with defaults, in the function's order. Raises `ToolArgumentsError` if they do not fit."""
        if type(args) is not dict or not self._kinds:
            return self._check(args)
        given: dict[str, Any] = args  # pyright: ignore[reportUnknownVariableType]
        # In the function's order. An unknown name makes the dict longer; a missing argument is
        # `PydanticUndefined`, of no plain type.
        shown = taken = {**self._defaults, **given}
        kinds = [*map(type, taken.values())]
        if kinds != self._kinds and not self._are_none(kinds):
            return self._check(given)
        for name in self._floats:
            value = taken[name]
            if value is not None and value - value != 0.0:
                return self._check(given)
        for name, items in self._lists:
            value = taken[name]
            if value is not None:
                for each in value:
                    if type(each) is not items or (
                        items is float and each - each != 0.0
                    ):  # `fits`, without a call
                        return self._check(given)
                if (
                    shown is taken
                ):  # a tool may change a list among its arguments: the record gets copies
                    shown = taken.copy()
                taken[name], shown[name] = [*value], [*value]
        return CheckedArguments((), taken, shown)

    def _are_none(self, kinds: list[type]) -> bool:
        """Whether every argument of another type is None, for a parameter that may be None."""
        wanted = zip(kinds, self._kinds, self._may_be_none, strict=False)
        return len(kinds) == len(self._kinds) and all(
            kind is own or (kind is NoneType and may) for kind, own, may in wanted
        )

    def _check(self, args: Any) -> CheckedArguments:
        if self._checker is None:
            from ferrule.tools.arguments.checker import (
                Checker,
            )  # late: it imports all repairs and explanations

            self._checker = Checker(self._tool, self._found, self.parameters)
        return self._checker.prepare(args)
