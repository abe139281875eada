"""Turn the raw text of each field into typed outputs, or raise an error that names every problem.

The output for tool calls takes the native calls if there are any, and otherwise the calls in its
text. With a valid call, other outputs may be missing, and are None. A valid call is kept whatever
else the answer holds, and an invalid one with its fault. Without calls, the output for them is
empty if the answer says so or has other outputs. No call runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct

from ferrule.adapters.fields import calls_output
from ferrule.encoding.pattern import pattern
from ferrule.encoding.repair import read_json
from ferrule.errors import AdapterParseError, ToolCallError, shown
from ferrule.values.calls.call import ToolCall, call_at
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.signatures.compiled import derived
from ferrule.values.signatures.fields import calls_type, without_none
from ferrule.values.signatures.output_checks import OutputCheck

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.signatures.signature import Signature

_IMMUTABLE = frozenset({type(None), bool, int, float, str})
_NOTHING = (None, "", "null")
"""Values that models write for an output that they omit."""
CUT_OFF = "the answer was cut off at its maximum length: write less, or raise `max_tokens`"
_MARK = pattern(r"\[\[[ \t]*##[ \t]*\w+[ \t]*##[ \t]*\]\]")


class OutputSpec(Struct, frozen=True):
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
    """Defaults of optional outputs, if they can be shared between answers."""

    def is_complete(self, raw: Mapping[str, Any]) -> bool:
        """Whether the answer has every required output, and the one for calls is not required."""
        fields = raw.keys() - {self.calls}
        return bool(fields) and all(name in raw or name in self.optional for name, _ in self.checks)

    def is_bare(self, raw: Mapping[str, Any], text: str) -> bool:
        """Whether the answer has no fields or markers: its text may be the text output itself."""
        if not text or text.isspace() or _MARK.search(text) is not None:
            return False
        # Calls that were found in the text are a list; a field that the answer holds is a string.
        has_only_found_calls = len(raw) == 1 and not isinstance(raw.get(self.calls or "", ""), str)
        return not raw or has_only_found_calls


@derived
def output_spec(signature: type[Signature]) -> OutputSpec:
    """Return the `OutputSpec` of a signature, built once."""
    outputs = signature.plan.outputs
    calls = calls_output(signature)
    kind = None
    if calls:
        kind = calls_type(outputs[calls].annotation)
    others = [name for name in outputs if name != calls]
    text = None
    if len(others) == 1 and without_none(outputs[others[0]].annotation) is str:
        text = others[0]
    optional = frozenset(signature.plan.optional)
    defaults = {name: signature.output_default(name) for name in optional & outputs.keys()}
    shared = {name: value for name, value in defaults.items() if type(value) in _IMMUTABLE}
    return OutputSpec(tuple(signature.output_checks.items()), calls, kind, text, optional, shared)


def parse_outputs(
    adapter: str,
    signature: type[Signature],
    raw: Mapping[str, Any],
    response: Response,
    *,
    is_value: bool,
    cut: str = "",
    flaw: str = "",
) -> dict[str, Any]:
    """Check the raw values of an answer: decoded JSON if `is_value`, otherwise text.

    `cut` names a field whose value was cut off; `flaw` says why fields could not be found, if that
    is known. Raises `AdapterParseError` with every problem and with the outputs that could be read.
    """
    spec = output_spec(signature)
    calls, fault = _read_calls_output(spec, raw, response, flaw)
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    missing: list[str] = []
    for name, check in spec.checks:
        is_calls = name == spec.calls
        is_given = name in raw and not is_calls
        if calls and is_given and raw[name] in _NOTHING:
            is_given = False
        # An answer of which nothing could be read does not leave out an optional output on purpose.
        says_something = bool(raw or calls) or (is_calls and bool(response.text))
        if is_given:
            try:
                value = check(raw[name], is_value=is_value)
            except ValueError as error:
                problems.append((name, str(error)))
                continue
            if name == cut:
                problems.append((name, "has no end"))
            else:
                values[name] = value
        elif is_calls and fault is not None:
            problems.append((name, str(fault)))
        elif is_calls and calls is not None:
            values[name] = calls
        elif name in spec.optional and says_something:
            if name in spec.defaults:
                values[name] = spec.defaults[name]
            else:
                values[name] = signature.output_default(name)
        elif calls:  # the model calls tools first, and answers when it has their results
            values[name] = None
        elif fault is None:
            missing.append(name)
    if flaw and missing and not values:
        problems.insert(0, ("", flaw))
    else:
        problems += [(name, "is missing") for name in missing]
    if not problems:
        return values
    raise AdapterParseError(
        adapter,
        response.text or "",
        [*_problems_of_whole(spec, response), *problems],
        parsed=values,
        absent=missing,
        code=_code(fault, is_only_missing=len(missing) == len(problems)),
        raw=fault.raw if fault is not None else None,
        signature=signature,
    ) from fault


def _problems_of_whole(spec: OutputSpec, response: Response) -> list[tuple[str, str]]:
    """The problems of an answer as a whole, which come before those of its fields."""
    problems: list[tuple[str, str]] = []
    if response.finish_reason == "length":
        problems.append(("", CUT_OFF))
    if not (response.text or "").strip():
        if not response.tool_calls:
            problems.append(("", "the answer is empty"))
        elif spec.calls is None:
            names = ", ".join(f"`{call.name}`" for call in response.tool_calls)
            problem = f"the answer only calls {names}, and this request has no tools"
            problems.append(("", problem))
    return problems


def _code(fault: ToolCallError | None, *, is_only_missing: bool) -> str:
    if fault is not None:
        return fault.code
    if is_only_missing:
        return "missing_required_outputs"
    return "invalid_outputs"


def _read_calls_output(
    spec: OutputSpec, raw: Mapping[str, Any], response: Response, flaw: str
) -> tuple[ToolCalls | None, ToolCallError | None]:
    """The calls of an answer, or the error if none of them is valid.

    Both are None if the answer does not say whether it makes calls.
    """
    if spec.calls is None or spec.calls_type is None:
        return None, None
    value = raw.get(spec.calls)
    try:
        calls = read_calls(response.tool_calls or value, spec.calls_type)
    except ToolCallError as error:
        return None, error
    if calls:
        return calls, None
    # An optional output is empty only if the answer has an empty list.
    is_said = _is_list(value) or spec.calls not in spec.optional
    if is_said and _makes_no_calls(raw, response, flaw):
        return calls, None
    return None, None


def _is_list(raw: Any) -> bool:
    """Whether the value of the output for calls is a list, and not null or left out."""
    value = raw
    if isinstance(raw, str):
        value = _decoded(raw)
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("tool_calls")
    return isinstance(value, (list, tuple))


def _makes_no_calls(raw: Mapping[str, Any], response: Response, flaw: str) -> bool:
    """Whether an answer without calls is meant: an empty list, or other outputs.

    A native answer has no way to say that it makes no calls: it has its outputs, and no calls. An
    answer that was cut off, or whose form is broken, may have lost its calls: it is asked again.
    """
    return bool(raw) and not flaw and response.finish_reason != "length"


Calls = TypeVar("Calls", bound="ToolCalls")
_NO_CALLS = frozenset(
    {"", "none", "null", "nil", "n/a", "na", "nothing", "no calls", "no tool calls", "empty"}
)
"""Texts that models write when they make no calls."""


def read_calls(value: Any, kind: type[Calls]) -> Calls:
    """Read the calls of an answer, in any of the usual shapes or as JSON text.

    Raises `ToolCallError` if there are calls but none is valid (with the code, raw text, index and
    tool of the first), and with the code `invalid_tool_calls` for anything but calls.
    """
    calls = with_ids([_read_call(entry, index) for index, entry in enumerate(_entries(value))])
    faulty = [(call, call.fault) for call in calls if call.fault is not None]
    if faulty and len(faulty) == len(calls):
        call, first = faulty[0]
        problems = "; ".join(fault.reason for _, fault in faulty)
        raise ToolCallError(
            first.code, problems, raw=first.raw, index=first.index, tool=call.name or None
        )
    return kind(tool_calls=calls)


def _read_call(entry: Any, index: int) -> ToolCall:
    """Read one call; its fault, if any, names its position."""
    call = call_at(entry, index)
    if call.fault is None or call.fault.index is not None:
        return call
    reason = call.fault.reason
    if not reason.startswith(f"call {index}: "):
        reason = f"call {index}: {reason}"
    return call.changed(fault=replace(call.fault, index=index, reason=reason))


def with_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls, each with a unique id. A call keeps its own id unless an earlier one has it."""
    used: set[str] = set()
    identified: list[ToolCall] = []
    for index, call in enumerate(calls):
        call_id = call.id or f"call_{index}"
        while call_id in used:
            call_id = f"{call_id}_{index}"
        used.add(call_id)
        identified.append(call if call_id == call.id else call.with_id(call_id))
    return identified


def _entries(raw: Any) -> list[Any]:
    """The entries of a list of calls, in any of the shapes that models and callers write."""
    value: Any = raw
    if isinstance(raw, str):
        value = _decoded(raw)
    if isinstance(value, ToolCalls):
        value = list(value.tool_calls)
    if isinstance(value, Mapping) and "tool_calls" in value:
        value = cast("Mapping[str, Any]", value)["tool_calls"]
    elif isinstance(value, (Mapping, ToolCall)):
        value = [value]
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        msg = f"the calls must be a list of calls, found {shown(cast('object', value))}"
        raise ToolCallError("invalid_tool_calls", msg, raw=raw)
    return list(cast("list[Any]", value))


def _decoded(text: str) -> Any:
    if text.strip(" \t\r\n.*`()\"'").casefold() in _NO_CALLS:
        return None
    try:
        return read_json(text)[0]
    except ValueError as error:
        msg = f"the calls are not valid JSON: {error}"
        raise ToolCallError("invalid_tool_calls", msg, raw=text) from None
