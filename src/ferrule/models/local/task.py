"""`task_of`: the constraint that holds an answer to a call of the tools, or to the outputs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.models.local.constraint import Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.values.conversation.exchange import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.models.local.vocabulary import Vocabulary
    from ferrule.values.conversation.exchange import Request

LOOSE: Mapping[str, Any] = {"type": "object"}


class Options(Struct, frozen=True):
    """How a model in this process constrains its answers."""

    thought_chars: int = 1_000
    """The most characters of the thought before a call; 0 for none."""
    partial: bool = False
    """Whether keywords that a grammar cannot enforce are only validated in the answer."""


class ConstrainedTask:
    """One answer under a constraint."""

    def __init__(self, request: Request, constraint: Constraint, *, is_call: bool) -> None:
        self.is_call = is_call
        self.matcher = constraint.matcher()
        self._request = request
        self._constraint = constraint

    def response(self, text: str) -> Response:
        """The answer from the generated text.

        An answer that was cut off has no call and no outputs.
        """
        if not self.matcher.is_finished:
            return self._cut_off(text)
        answer = self._constraint.read(text)
        if answer.calls:
            thought = answer.thought.strip() or None
            return Response(thought, answer.calls, finish_reason="tool_calls")
        if self.is_call:
            return Response(answer.text or None, finish_reason="stop")
        form = self._request.form
        if form is not None:
            return Response(form.write(answer.value), finish_reason="stop")
        return Response(json_text(answer.value), finish_reason="stop")

    def _cut_off(self, text: str) -> Response:
        # The beginning of a call must not be taken for an answer in text, so it is dropped.
        if self.is_call or not text:
            return Response(finish_reason="length")
        return Response(text, finish_reason="length")


def task_of(request: Request, vocabulary: Vocabulary, options: Options) -> ConstrainedTask | None:
    """The constrained task of a request, or None.

    None if any text is a valid answer, or if the model calls tools in its own form. Raises
    `ConstraintError` for a tool whose schema a grammar cannot enforce.
    """
    if wants_call(request):
        must_call = request.tool_choice == "required" or _named_tool(request) is not None
        form = CallForm(call=must_call, thought_chars=options.thought_chars, intention=False)
        tools = chosen_tools(request)
        constraint = Constraint.of_calls(vocabulary, tools, form=form, partial=options.partial)
        return ConstrainedTask(request, constraint, is_call=True)
    if request.tools and request.tool_choice != "none":
        return None
    if request.form is not None:
        schema = request.form.schema
    elif request.shape is not None:
        schema = request.shape.schema or LOOSE
    else:
        return None
    constraint = Constraint.of_schema(vocabulary, dict(schema), partial=True)
    return ConstrainedTask(request, constraint, is_call=False)


def wants_call(request: Request) -> bool:
    """Whether the request asks for a call that fits the schema of its tool."""
    if request.shape is None or request.shape.kind != "call":
        return False
    return len(request.tools) > 0 and request.tool_choice != "none"


def chosen_tools(request: Request) -> list[dict[str, Any]]:
    """The declarations that `tool_choice` allows: all, or only that of the tool it names."""
    name = _named_tool(request)
    if name is None:
        return list(request.tools)
    return [tool for tool in request.tools if tool["function"]["name"] == name]


def _named_tool(request: Request) -> str | None:
    """The tool that `tool_choice` names in OpenAI's form, `{"function": {"name": ...}}`."""
    choice: Any = request.tool_choice
    if choice is None or isinstance(choice, str):
        return None
    return choice.get("function", {}).get("name")


def can_constrain() -> bool:
    """Whether the engine for constraints is installed (the extra `ferrule[local]`)."""
    return find_spec("llguidance") is not None
