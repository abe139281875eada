"""Check values against JSON schemas that others wrote, in any draft.

Their authors are MCP servers, and tools that ask the user for input through a form. Values are
checked against the unchanged schema, and nothing is fetched. Keywords that ferrule does not know
are ignored.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import jsonable
from ferrule.encoding.written import without_digits
from ferrule.schema.nodes import Schema, is_object
from ferrule.schema.words import shorten_json
from ferrule.tools.arguments.checker import Checker
from ferrule.tools.arguments.given_schema import build_validator
from ferrule.tools.arguments.nested import fit_numbers
from ferrule.tools.definition.inspect_function import FunctionSpec
from ferrule.tools.definition.parameters import Parameters
from ferrule.tools.mcp.safety import scrub_schema
from ferrule.values.calls.call import CheckedArguments

if TYPE_CHECKING:
    from ferrule.schema.explain import Problem
    from ferrule.schema.validator import Validator


class MCPChecker(Checker):
    """Checks the arguments of one MCP tool against its schema.

    Errors show the schema's texts scrubbed, because they are shown to the model.
    """

    def __init__(self, tool: str, schema: Schema, *, lenient: bool) -> None:
        super().__init__(
            tool,
            FunctionSpec(tool, "", (), extra=Any),
            Parameters(
                scrub_schema(schema), None, None, checks_schema=True, names={}, is_open=True
            ),
        )
        self._original = schema
        self._lenient = lenient

    def prepare(self, args: Any) -> CheckedArguments:
        """Return the checked arguments, repaired if `lenient`.

        Raises `ToolArgumentsError` with every problem.
        """
        if is_object(args):
            self._refuse_surplus(args)
        plain = args
        # Arguments with digits are JSON that a model wrote.
        if args is not None and not isinstance(args, str) and without_digits(args) is args:
            plain = jsonable(args)
        outcome = self._check(plain)
        if isinstance(outcome, CheckedArguments):
            return outcome
        if self._lenient:
            return self._prepare_with_repairs(plain)
        raise self._error(outcome)

    def _check(self, plain: Any) -> CheckedArguments | list[Problem]:
        if plain is None:  # a call without arguments
            return self._attempt({}, [])
        if is_object(plain):
            return self._attempt(plain, [])
        return [("", f"expected an object of arguments, got {shorten_json(plain)}")]

    def _attempt(self, args: dict[str, Any], notes: list[str]) -> CheckedArguments | list[Problem]:
        # JSON Schema takes `7.0` for an integer, but a server may reject it: send `7`.
        args, _ = fit_numbers(without_digits(args), self.parameters.schema)
        problems = self._schema_problems(args)
        return problems or CheckedArguments((), args, args, tuple(dict.fromkeys(notes)))

    @cached_property
    def _validator(self) -> Validator:
        return build_validator(self.tool, self._original, lenient=True)
