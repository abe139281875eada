"""Output validators: functions that check a model's answer (`@program.output_validator`).

Those of the signature, which are pydantic's, come first. Any of them may look at more than the
answer (a setting, a table, the time) and decide otherwise the next time. So the verdict is
recorded, and a replay takes it from the journal: it goes the way that the run went.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.acts import Act, Once
from ferrule.encoding.encode import json_text, jsonable
from ferrule.errors import ConfigurationError, ToolRetry, refuse_awaitable, shown
from ferrule.tools.definition.deps import ContextParameter, bind_arguments, context_parameter
from ferrule.tools.definition.inspect_function import name_of
from ferrule.values.signatures.compiled import InvalidOutputsError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from ferrule.values.signatures.signature import Signature


class OutputValidator(Struct, frozen=True):
    """A function that checks one answer."""

    function: Callable[..., Any]
    context: ContextParameter | None
    is_async: bool

    @property
    def looks_elsewhere(self) -> bool:
        """Whether it may ask others: it is async, or takes a `Context`."""
        return self.is_async or self.context is not None

    @property
    def what(self) -> str:
        """Its name in errors."""
        return f"The output validator `{name_of(self.function) or shown(self.function)}`"

    async def judge(
        self,
        signature: type[Signature],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        call: Callable[..., Any],
    ) -> str | None:
        """The objection to an answer, or None.

        `call` comes from a `Once` with `runs_code`. It calls an async validator, and one that takes
        a `Context`; any other one is called right here.
        """
        answer = signature.model_construct(**inputs, **outputs)
        before = json_text(jsonable(dict(outputs)))
        try:
            if not self.looks_elsewhere:
                returned = self.function(answer)
            else:
                returned = await call(
                    self.function,
                    answer,
                    context=self.context,
                    is_async=self.is_async,
                    what=self.what,
                )
        except ToolRetry as error:
            return str(error) or "not accepted, change it and try again"
        refuse_awaitable(returned, self.what)
        has_changes = any(getattr(answer, name) is not value for name, value in outputs.items())
        # A replay takes the verdict from the journal, and would not make a change again.
        has_changes = has_changes or json_text(jsonable(dict(outputs))) != before
        if has_changes or (returned is not None and returned is not answer):
            raise ConfigurationError(
                "An output validator only checks: it raises `ToolRetry`, or returns None. "
                "Pydantic's validators may change outputs."
            )
        return None


def as_validator(function: Callable[..., Any]) -> OutputValidator:
    """Make a validator from a function; raises `ConfigurationError` if it takes other arguments."""
    try:
        bind_arguments(function, [None], {})
    except ValueError:  # a function in C may have no signature
        pass
    except TypeError:
        raise ConfigurationError(
            "An output validator takes one argument, which has the inputs and outputs as "
            f"attributes, and a `Context` if it needs one; found {shown(function)}."
        ) from None
    call: Any = getattr(type(function), "__call__", None)  # noqa: B004  of an object
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return OutputValidator(function, context_parameter(function), is_async)


Judged = tuple[dict[str, Any] | None, list[tuple[str, str]]]
"""The outputs of an answer, as pydantic's validators leave them; or None and the objections.

Of each objection, the field (or `""`) and a text for the model."""


def judge_answers(
    validators: Sequence[OutputValidator],
    signature: type[Signature],
    inputs: Mapping[str, Any],
    answers: Sequence[dict[str, Any]],
) -> Generator[Act, Any, list[Judged]]:
    """The recorded verdict on each answer: its outputs, or the first objections."""
    accepted: dict[int, dict[str, Any]] = {}

    async def judge_all(call: Callable[..., Any]) -> list[list[list[str]] | None]:
        verdicts: list[list[list[str]] | None] = []
        for number, outputs in enumerate(answers):
            problems = await judge(number, outputs, call)
            verdicts.append([[name, problem] for name, problem in problems] or None)
        return verdicts if any(verdicts) else []

    async def judge(
        number: int, outputs: dict[str, Any], call: Callable[..., Any]
    ) -> Sequence[tuple[str, str]]:
        try:
            outputs = signature.validate_outputs(inputs, outputs)
        except InvalidOutputsError as error:
            return error.problems
        # First those that cost nothing.
        for validator in sorted(validators, key=attrgetter("looks_elsewhere")):
            objection = await validator.judge(signature, inputs, outputs, call)
            if objection is not None:
                return [("", objection)]
        accepted[number] = outputs
        return []

    verdicts = yield Once(judge_all, "output_validators", runs_code=True)
    judged: list[Judged] = []
    for number, outputs in enumerate(answers):
        problems = None
        if verdicts:
            problems = verdicts[number]
        if problems:
            judged.append((None, [(name, problem) for name, problem in problems]))
        elif number in accepted:
            judged.append((accepted[number], []))
        else:
            judged.append((_validated_again(signature, inputs, outputs), []))
    return judged


def _validated_again(
    signature: type[Signature], inputs: Mapping[str, Any], outputs: dict[str, Any]
) -> dict[str, Any]:
    """The outputs that were accepted, in a replay: pydantic's validators may change them."""
    try:
        return signature.validate_outputs(inputs, outputs)
    except InvalidOutputsError:  # they object now, but did not then
        return outputs
