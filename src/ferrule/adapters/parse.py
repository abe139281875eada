"""From the raw text of each field to typed outputs, or to an error that names every problem.

What fills the output for tool calls is decided here: native calls if there are any, else what the text says in the field's place. An answer
with a good call is an answer, whatever other outputs it lacks: they are None (E47). No call is ever run (E55).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.adapters.render import calls_output, calls_type, without_none
from ferrule.errors import AdapterParseError, ToolCallError
from ferrule.values.calls.call import ToolCalls
from ferrule.values.calls.from_answer import read_calls
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.conversation.exchange import Response
    from ferrule.values.signatures.output_checks import OutputCheck
    from ferrule.values.signatures.signature import Signature


_FIXED = frozenset({type(None), bool, int, float, str})
_NOTHING = (None, "", "null")
"""What models write for an output that they leave out."""
_MARK = re.compile(r"\[\[[ \t]*##[ \t]*\w+[ \t]*##[ \t]*\]\]")


class Reading(Record):
    """What is needed to read answers to one signature."""

    checks: tuple[tuple[str, OutputCheck], ...]
    """Outputs in order, each with what checks it."""
    calls: str | None
    """The output that receives tool calls."""
    calls_type: type[ToolCalls]
    text: str | None
    """The one output of plain text, where there is exactly one beside the calls."""
    optional: frozenset[str]
    left_out: dict[str, Any]
    """What an output is that an answer leaves out: of optional ones, as far as it is one and the same each time."""

    def is_complete(self, raw: Mapping[str, Any]) -> bool:
        """Nothing is wanting, and calls need not be made."""
        fields = raw.keys() - {self.calls}
        return bool(fields) and all(name in raw or name in self.optional for name, _ in self.checks)

    def is_bare(self, raw: Mapping[str, Any], text: str) -> bool:
        """The text has no form at all, neither this adapter's nor another's: it may be the one text output itself."""
        is_empty = not raw or (len(raw) == 1 and not isinstance(raw.get(self.calls or "", ""), str))  # calls that were found in it
        return is_empty and bool(text) and not text.isspace() and _MARK.search(text) is None


def reading_of(signature: type[Signature]) -> Reading:
    """The reading of a signature, kept with it."""
    return signature.kept(Reading, lambda: _made(signature))


def _made(signature: type[Signature]) -> Reading:
    calls = calls_output(signature)
    kind = calls_type(signature.output_fields[calls]) if calls else None
    others = [(name, field) for name, field in signature.output_fields.items() if name != calls]
    text = others[0][0] if len(others) == 1 and without_none(others[0][1].annotation) is str else None
    optional = frozenset(signature.plan.optional)
    left_out = {name: value for name in optional & signature.output_fields.keys() if type(value := _left_out(signature, name)) in _FIXED}
    return Reading(tuple(signature.output_checks.items()), calls, kind or ToolCalls, text, optional, left_out)


def typed(adapter: str, signature: type[Signature], raw: Mapping[str, Any], response: Response, *, is_value: bool) -> dict[str, Any]:
    """All outputs of an answer from their raw values; with `is_value` these come out of JSON, else they are texts.

    Raises `AdapterParseError` with every problem and with what could be read.
    """
    reading = reading_of(signature)
    own = reading.calls
    if raw and (own is None or (own in reading.optional and not response.tool_calls and raw.get(own) in _NOTHING)):
        values: dict[str, Any] = {}
        try:
            for name, check in reading.checks:
                if name in raw and name != own:
                    values[name] = check(raw[name], is_value=is_value)
                else:
                    values[name] = reading.left_out[name]
        except (KeyError, ValueError):
            pass
        else:
            return values
    return _slowly(adapter, signature, raw, response, is_value=is_value)


def _slowly(adapter: str, signature: type[Signature], raw: Mapping[str, Any], response: Response, *, is_value: bool) -> dict[str, Any]:
    reading = reading_of(signature)
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    absent: list[str] = []
    calls, fault = _calls(reading, raw, response)
    for name, check in reading.checks:
        if name == reading.calls and (calls or fault):
            if fault is not None:
                problems.append((name, str(fault)))
            else:
                values[name] = calls
        elif name in raw and name != reading.calls and not (calls and raw[name] in _NOTHING):
            try:
                values[name] = check(raw[name], is_value=is_value)
            except ValueError as error:
                problems.append((name, str(error)))
        elif name in reading.optional and (raw or calls or (name == reading.calls and response.text)):
            values[name] = _left_out(signature, name)
        elif calls:
            values[name] = None
        elif fault is None:
            absent.append(name)
            problems.append((name, "is missing"))
    if not problems:
        return values
    text = response.text or ""
    code = fault.code if fault is not None else "missing_required_outputs" if len(absent) == len(problems) else "invalid_outputs"
    if not text.strip() and not response.tool_calls:
        problems = [("", "the answer is empty"), *problems]
    if response.finish_reason == "length":
        problems = [("", "the answer was cut off at its greatest length: write less, or raise `max_tokens`"), *problems]
    raw_part = fault.raw if fault is not None else None
    raise AdapterParseError(adapter, text, problems, parsed=values, absent=absent, code=code, raw=raw_part) from fault


def _calls(reading: Reading, raw: Mapping[str, Any], response: Response) -> tuple[ToolCalls | None, ToolCallError | None]:
    """The calls of an answer, if there are any, or why there is no good one among them."""
    if reading.calls is None:
        return None, None
    try:
        found = read_calls(response.tool_calls or raw.get(reading.calls), reading.calls_type)
    except ToolCallError as error:
        return None, error
    return found or None, None


def _left_out(signature: type[Signature], name: str) -> Any:
    field = signature.output_fields[name]
    return None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
