"""Output validators: functions that check a model's answer (`@program.output_validator`).

A validator that takes only the answer is called again in a replay. One that takes a `Context`, or
is async, may look at more than the answer and decide otherwise the next time, so its verdict is
recorded, and a replay takes it from the journal.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.acts import Act, Once
from ferrule.errors import ConfigurationError, ToolRetry, refuse_awaitable, shown
from ferrule.tools.definition.deps import ContextParameter, bind_arguments, context_parameter
from ferrule.tools.definition.inspect_function import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

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
        """The objection to an answer, or None. `call` comes from a `Once` with `runs_code`; it is given for a validator whose verdict is recorded."""
        given = signature.model_construct(**inputs, **outputs)
        try:
            if call is None:
                found = self.function(given)
            else:
                found = await call(
                    self.function,
                    given,
                    context=self.context,
                    is_async=self.is_async,
                    what=self.what,
                )
        except ToolRetry as error:
            return str(error) or "not accepted, change it and try again"
        refuse_awaitable(found, self.what)
        if (found is not None and found is not given) or any(
            getattr(given, name) is not value for name, value in outputs.items()
        ):
            msg = "An output validator only checks: it raises `ToolRetry`, or returns None. Pydantic's validators may change outputs."
            raise ConfigurationError(msg)
        return None


def as_validator(function: Callable[..., Any]) -> OutputValidator:
    """Make a validator from a function; raises `ConfigurationError` if it takes other arguments."""
    try:
        bind_arguments(function, [None], {})
    except ValueError:  # a function in C may have no signature
        pass
    except TypeError:
        msg = (
            "An output validator takes one argument, which has the inputs and outputs as attributes, and a `Context` if it needs one; "
            f"found {shown(function)}."
        )
        raise ConfigurationError(msg) from None
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None),  # noqa: B004
    )
    return OutputValidator(function, context_parameter(function), is_async)


def judge_answers(
    validators: Sequence[OutputValidator],
    signature: type[Signature],
    inputs: Mapping[str, Any],
    answers: Sequence[Mapping[str, Any]],
) -> Generator[Act, Any, Sequence[str | None]]:
    """The recorded verdict on each answer: the first objection, or None."""

    async def verdicts(call: Callable[..., Any]) -> list[str | None]:
        return [await verdict(outputs, call) for outputs in answers]

    async def verdict(outputs: Mapping[str, Any], call: Callable[..., Any]) -> str | None:
        for each in validators:
            if (found := await each.judge(signature, inputs, outputs, call)) is not None:
                return found
        return None

    return (yield Once(verdicts, "output_validators", runs_code=True)) or [None] * len(answers)
