"""DSPy's errors that have other constructors than the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

from contextlib import contextmanager
from traceback import format_exception
from typing import Any

import ferrule


class AdapterParseError(ferrule.AdapterParseError):
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
        text = (
            f"Adapter {adapter_name} failed to parse the LM response. \n\n"
            f"LM Response: {lm_response} \n\n"
            f"Expected to find output fields in the LM response: [{_names(signature)}] \n\n"
        )
        if message:
            text = f"{message}\n\n{text}"
        if parsed_result is not None:
            parsed_names = ", ".join(parsed_result)
            text += f"Actual output fields parsed from the LM response: [{parsed_names}] \n\n"
        self.args = (text,)

    @property
    def adapter_name(self):
        return self.adapter

    @property
    def lm_response(self):
        return self.text

    @property
    def parsed_result(self):
        return self.parsed


def _names(signature: Any) -> str:
    if signature is None:
        return ""
    return ", ".join(signature.output_fields)


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

    They stay the same objects, with their data and tracebacks: only their class changes, because
    DSPy's constructors take other arguments.
    """
    try:
        yield
    except ferrule.FerruleError as error:
        error.__class__ = _DSPYS.get(type(error), type(error))
        raise


def format_error_for_lm(error: BaseException, *, traceback_frames: int = 0) -> str:
    if not traceback_frames:
        return str(error)
    return "\n" + "".join(format_exception(error, limit=traceback_frames)).strip()
