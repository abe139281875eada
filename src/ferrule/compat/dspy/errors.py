"""DSPy's errors that have other constructors than the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

from contextlib import contextmanager
from operator import attrgetter
from traceback import format_exception
from typing import Any

import ferrule


class AdapterParseError(ferrule.AdapterParseError):
    adapter_name = property(attrgetter("adapter"))
    lm_response = property(attrgetter("text"))
    parsed_result = property(attrgetter("parsed"))

    def __init__(
        self,
        adapter_name: str,
        signature: Any,
        lm_response: str,
        message: str | None = None,
        parsed_result: Any = None,
    ) -> None:
        problems = [("", message or "does not fit")]
        super().__init__(
            adapter_name,
            lm_response,
            problems,
            parsed=parsed_result,
            signature=signature,
            code="adapter_parse_error",
        )
        self.args = (_dspys_text(self, message),)


def _dspys_text(error: ferrule.AdapterParseError, message: str | None) -> str:
    expected = ""
    if error.signature is not None:
        expected = ", ".join(error.signature.output_fields)
    text = (
        f"Adapter {error.adapter} failed to parse the LM response. \n\n"
        f"LM Response: {error.text} \n\n"
        f"Expected to find output fields in the LM response: [{expected}] \n\n"
    )
    if message:
        text = f"{message}\n\n{text}"
    if error.parsed:
        text += (
            f"Actual output fields parsed from the LM response: [{', '.join(error.parsed)}] \n\n"
        )
    return text


def _problems_as_text(error: ferrule.AdapterParseError) -> str:
    lines: list[str] = []
    for name, problem in error.problems:
        if not name:
            lines.append(problem)
        elif name in error.absent:
            lines.append(f"Field `{name}` {problem}.")
        else:
            lines.append(f"Failed to parse field `{name}`: {problem}.")
    return "\n".join(lines)


class ContextWindowExceededError(
    ferrule.errors.ContextOverflowError, ferrule.errors.BadRequestError
):
    """Also DSPy's `LMInvalidRequestError`, under which DSPy has it."""

    code = "context_window_exceeded"
    model: str | None = None
    """The model that the constructor named. The core's errors name a `provider` instead."""

    def __init__(
        self, *, model: str | None = None, message: str = "Context window exceeded", **details: Any
    ) -> None:
        self.model = model
        if model:
            message = f"[{model}] {message}"
        super().__init__(message, **details)


_DSPYS = {
    ferrule.AdapterParseError: AdapterParseError,
    ferrule.errors.ContextOverflowError: ContextWindowExceededError,
}


@contextmanager
def under_dspys_names():
    """A block that raises these errors as DSPy's.

    They stay the same objects, with their data and tracebacks: only their class and their text
    change, because DSPy's constructors take other arguments.
    """
    try:
        yield
    except ferrule.FerruleError as error:
        if type(error) is ferrule.AdapterParseError:
            error.args = (_dspys_text(error, _problems_as_text(error)),)
        error.__class__ = _DSPYS.get(type(error), type(error))
        raise


def format_error_for_lm(error: BaseException, *, traceback_frames: int = 0) -> str:
    if not traceback_frames:
        return str(error)
    return "\n" + "".join(format_exception(error, limit=traceback_frames)).strip()
