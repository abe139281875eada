"""From the raw text of each field to typed outputs, or to an error that names every problem.  (Floor 3.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.adapters.draw import is_calls
from ferrule.errors import AdapterParseError
from ferrule.values.call import ToolCalls
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.exchange import Response
    from ferrule.values.fields import Check
    from ferrule.values.signature import Signature


class Reading(Record):
    """What is needed to read answers to one signature."""

    checks: tuple[tuple[str, Check], ...]
    """Outputs in order, each with what checks it."""
    calls: str | None
    """The output that receives native tool calls."""
    text: str | None
    """The one output of plain text, where there is exactly one beside the calls."""
    optional: frozenset[str]


def reading_of(signature: type[Signature]) -> Reading:
    """The reading of a signature, kept with it."""
    return signature.kept(Reading, lambda: _made(signature))


def _made(signature: type[Signature]) -> Reading:
    calls = next((name for name, field in signature.output_fields.items() if is_calls(field)), None)
    others = [(name, field) for name, field in signature.output_fields.items() if name != calls]
    text = others[0][0] if len(others) == 1 and others[0][1].annotation is str else None
    return Reading(tuple(signature.output_checks.items()), calls, text, frozenset(signature.plan.optional))


def typed(adapter: str, signature: type[Signature], raw: Mapping[str, Any], response: Response) -> dict[str, Any]:
    """All outputs of an answer from their raw values. Raises `AdapterParseError` with every problem and with what could be read."""
    reading = reading_of(signature)
    values: dict[str, Any] = {}
    try:
        for name, check in reading.checks:
            values[name] = check(raw[name])
    except (KeyError, ValueError):
        return _slowly(adapter, signature, reading, raw, response)
    return values


def _slowly(adapter: str, signature: type[Signature], reading: Reading, raw: Mapping[str, Any], response: Response) -> dict[str, Any]:
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    absent: list[str] = []
    for name, check in reading.checks:
        if name == reading.calls and response.tool_calls:
            values[name] = ToolCalls(tool_calls=list(response.tool_calls))
        elif name in raw:
            try:
                values[name] = check(raw[name])
            except ValueError as error:
                problems.append((name, str(error)))
        elif name in reading.optional and raw:
            values[name] = _left_out(signature, name)
        elif reading.calls is not None and response.tool_calls:
            values[name] = None  # a pure call is an answer as well
        else:
            absent.append(name)
            problems.append((name, "is missing"))
    if not problems:
        return values
    text = response.text or ""
    if not text.strip():
        problems = [("", "the answer is empty"), *problems]
    if response.finish_reason == "length":
        problems = [("", "the answer was cut off at its greatest length: write less, or raise `max_tokens`"), *problems]
    raise AdapterParseError(adapter, text, problems, parsed=values, absent=absent)


def _left_out(signature: type[Signature], name: str) -> Any:
    field = signature.output_fields[name]
    return None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
