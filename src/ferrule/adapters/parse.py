"""Turn the raw text of each field into typed outputs, or raise an error that names every problem.

The output for tool calls takes the native calls if there are any, and otherwise the calls in its
text. With a valid call, other outputs may be missing, and are None. A valid call is kept whatever
else the answer holds, and an invalid one with its fault. No call runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.adapters.render import calls_output
from ferrule.encoding.pattern import pattern
from ferrule.encoding.repair import read_json
from ferrule.errors import AdapterParseError, ToolCallError, shown
from ferrule.record import Record
from ferrule.values.calls.call import ToolCall, call_at
from ferrule.values.content.type import Type
from ferrule.values.signatures.compiled import derived
from ferrule.values.signatures.fields import calls_type, without_none

if TYPE_CHECKING:
    from ferrule.values.calls.tool_calls import ToolCalls
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.signatures.output_checks import OutputCheck
    from ferrule.values.signatures.signature import Signature

_IMMUTABLE = frozenset({type(None), bool, int, float, str})
_NOTHING = (None, "", "null")
"""Values that models write for an output that they omit."""
CUT_OFF = "the answer was cut off at its maximum length: write less, or raise `max_tokens`"
_MARK = pattern(r"\[\[[ \t]*##[ \t]*\w+[ \t]*##[ \t]*\]\]")


class OutputSpec(Record):
    """The facts about a signature's outputs that the parser needs."""

    checks: tuple[tuple[str, OutputCheck], ...]
    """Each output's check, in order."""
    calls: str | None
    """The output for tool calls."""
    calls_type: type[ToolCalls] | None
    text: str | None
    """The one text output, if there is exactly one output besides the calls."""
    optional: frozenset[str]
    defaults: dict[str, Any]
    """Defaults of optional outputs, if they can be shared between answers. Asking pydantic each time makes a text step 4 % slower."""

    def is_complete(self, raw: Mapping[str, Any]) -> bool:
        """Whether the answer has every required output, and the output for calls is not required."""
        fields = raw.keys() - {self.calls}
        return bool(fields) and all(name in raw or name in self.optional for name, _ in self.checks)

    def is_bare(self, raw: Mapping[str, Any], text: str) -> bool:
        """Whether the answer has no fields or markers, so that its text may be the text output itself."""
        is_empty = not raw or (
            len(raw) == 1 and not isinstance(raw.get(self.calls or "", ""), str)
        )  # calls found in the text
        return is_empty and bool(text) and not text.isspace() and _MARK.search(text) is None


@derived
def output_spec(signature: type[Signature]) -> OutputSpec:
    """Return the `OutputSpec` of a signature, built once."""
    calls = calls_output(signature)
    kind = calls_type(signature.plan.outputs[calls].annotation) if calls else None
    others = [(name, field) for name, field in signature.plan.outputs.items() if name != calls]
    text = (
        others[0][0] if len(others) == 1 and without_none(others[0][1].annotation) is str else None
    )
    optional = frozenset(signature.plan.optional)
    defaults = {
        name: signature.output_default(name) for name in optional & signature.plan.outputs.keys()
    }
    shared = {name: value for name, value in defaults.items() if type(value) in _IMMUTABLE}
    return OutputSpec(tuple(signature.output_checks.items()), calls, kind, text, optional, shared)


def parse_outputs(
    adapter: str,
    signature: type[Signature],
    spec: OutputSpec,
    raw: Mapping[str, Any],
    response: Response,
    *,
    is_value: bool,
    cut: str = "",
) -> dict[str, Any]:
    """Check the raw values of an answer: decoded JSON if `is_value`, otherwise text. `cut` names a field whose value was cut off.

    Raises `AdapterParseError` with every problem and with the outputs that could be read.
    """
    own = (
        spec.calls or ""
    )  # a string, like `cut`: to compare a name with None takes ten times as long
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    missing: list[str] = []
    calls, fault = (
        _calls(spec.calls_type, raw.get(own), response)
        if spec.calls_type is not None
        else (None, None)
    )
    for name, check in spec.checks:
        if name in raw and name != own and not (calls and raw[name] in _NOTHING):
            try:
                values[name] = check(raw[name], is_value=is_value)
            except ValueError as error:
                problems.append((name, str(error)))
            if name == cut and name in values:
                del values[name]
                problems.append((name, "has no end"))
        elif name == own and (calls or fault):
            if fault is not None:
                problems.append((name, str(fault)))
            else:
                values[name] = calls
        elif name in spec.optional and (raw or calls or (name == own and response.text)):
            values[name] = (
                spec.defaults[name] if name in spec.defaults else signature.output_default(name)
            )
        elif calls:
            values[name] = None
        elif fault is None:
            missing.append(name)
            problems.append((name, "is missing"))
    if not problems:
        return values
    text = response.text or ""
    code = (
        fault.code
        if fault is not None
        else "missing_required_outputs"
        if len(missing) == len(problems)
        else "invalid_outputs"
    )
    if not text.strip() and not response.tool_calls:
        problems = [("", "the answer is empty"), *problems]
    elif not text.strip() and not own:
        called = ", ".join(f"`{call.name}`" for call in response.tool_calls)
        problems = [
            ("", f"the answer only calls {called}, and this request has no tools"),
            *problems,
        ]
    if response.finish_reason == "length":
        problems = [("", CUT_OFF), *problems]
    raw_part = fault.raw if fault is not None else None
    raise AdapterParseError(
        adapter,
        text,
        problems,
        parsed=values,
        absent=missing,
        code=code,
        raw=raw_part,
        signature=signature,
    ) from fault


def _calls(
    kind: type[ToolCalls],
    raw: Any,
    response: Response,
) -> tuple[ToolCalls | None, ToolCallError | None]:
    """The calls of an answer, or the error if none of them is valid."""
    try:
        found = read_calls(response.tool_calls or raw, kind)
    except ToolCallError as error:
        return None, error
    return found or None, None


Calls = TypeVar("Calls", bound="ToolCalls")
_NO_CALLS = frozenset(
    {"", "none", "null", "nil", "n/a", "na", "nothing", "no calls", "no tool calls", "empty"},
)
"""Texts that models write when they make no calls."""


def read_calls(found: Any, kind: type[Calls]) -> Calls:
    """Read the calls of an answer, in any of the usual shapes or as JSON text.

    Raises `ToolCallError` if there are calls but none is valid (with the code, raw text, index and
    tool of the first), and with the code `invalid_tool_calls` for anything but calls.
    """
    calls = with_ids([_read_call(entry, index) for index, entry in enumerate(_entries(found))])
    bad = [(call, call.fault) for call in calls if call.fault is not None]
    if bad and len(bad) == len(calls):
        call, first = bad[0]
        problems = "; ".join(fault.reason for _, fault in bad)
        raise ToolCallError(
            first.code,
            problems,
            raw=first.raw,
            index=first.index,
            tool=call.name or None,
        )
    return kind(tool_calls=calls)


def _read_call(entry: Any, index: int) -> ToolCall:
    """Read one call; its fault, if any, names its position."""
    call = call_at(entry, index)
    if call.fault is None or call.fault.index is not None:
        return call
    reason = call.fault.reason
    said = reason if reason.startswith(f"call {index}: ") else f"call {index}: {reason}"
    return call.changed(fault=replace(call.fault, index=index, reason=said))


def with_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls, each with a unique id. A call keeps its own id unless an earlier one has it."""
    seen: set[str] = set()
    made: list[ToolCall] = []
    for place, call in enumerate(calls):
        own = call.id or f"call_{place}"
        while own in seen:
            own = f"{own}_{place}"
        seen.add(own)
        made.append(call if own == call.id else call.with_id(own))
    return made


def _entries(found: Any) -> list[Any]:
    value: Any = found
    if isinstance(found, str):
        try:
            value = (
                read_json(found)[0]
                if found.strip(" \t\r\n.*`()\"'").casefold() not in _NO_CALLS
                else None
            )
        except ValueError as error:
            msg = f"the calls are not valid JSON: {error}"
            raise ToolCallError("invalid_tool_calls", msg, raw=found) from None
    if isinstance(value, Type):
        from ferrule.values.calls.tool_calls import ToolCalls  # late: only a `Type` may be one

        value = list(value.tool_calls) if isinstance(value, ToolCalls) else value
    if isinstance(value, Mapping) and "tool_calls" in value:
        value = cast("Mapping[str, Any]", value)["tool_calls"]
    elif isinstance(value, (Mapping, ToolCall)):
        value = [value]
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        msg = f"the calls must be a list of calls, found {shown(cast('object', value))}"
        raise ToolCallError("invalid_tool_calls", msg, raw=found)
    return list(cast("list[Any]", value))
