"""Output validators: functions that check a model's answer (`@program.output_validator`).

A validator that takes only the answer is called again in a replay. One that takes a `Context`, or
is async, may look at more than the answer and decide otherwise the next time, so its verdict is
recorded, and a replay takes it from the journal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.acts import Act, Once
from ferrule.errors import ConfigurationError, ToolRetry, refuse_awaitable, shown
from ferrule.tools.definition.deps import ContextParameter, bind_arguments, context_parameter
from ferrule.tools.definition.inspect_function import name_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from ferrule.values.signatures.signature import Signature


class OutputValidator(Struct, frozen=True):
    """A function that checks one answer."""

    function: Callable[..., Any]
    context: ContextParameter | None
    is_async: bool

    @property
    def is_recorded(self) -> bool:
        """Whether its verdict is recorded."""
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
        call: Callable[..., Any] | None = None,
    ) -> str | None:
        """The objection to an answer, or None.

        `call` comes from a `Once` with `runs_code`, for a validator whose verdict is recorded.
        """
        answer = signature.model_construct(**inputs, **outputs)
        try:
            if call is None:
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


def judge_answers(
    validators: Sequence[OutputValidator],
    signature: type[Signature],
    inputs: Mapping[str, Any],
    answers: Sequence[Mapping[str, Any]],
) -> Generator[Act, Any, Sequence[str | None]]:
    """The recorded verdict on each answer: the first objection, or None."""

    async def judge_all(call: Callable[..., Any]) -> list[str | None]:
        return [await first_objection(outputs, call) for outputs in answers]

    async def first_objection(outputs: Mapping[str, Any], call: Callable[..., Any]) -> str | None:
        for validator in validators:
            objection = await validator.judge(signature, inputs, outputs, call)
            if objection is not None:
                return objection
        return None

    objections = yield Once(judge_all, "output_validators", runs_code=True)
    return objections or [None] * len(answers)
