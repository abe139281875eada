"""`task_of`: the constraint that holds the answer to a request to a call of its tools, or to its outputs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.errors import ContextOverflowError
from ferrule.models.local.constraint import Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.record import Record
from ferrule.values.conversation.exchange import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.models.local.matcher import Matcher
    from ferrule.models.local.vocabulary import Vocabulary
    from ferrule.values.conversation.exchange import Request

LOOSE: Mapping[str, Any] = {"type": "object"}


class Options(Record):
    """How a model in this process constrains its answers."""

    thought_chars: int = 1_000
    """The most characters of the thought before a call; 0 for none."""
    partial: bool = False
    """Whether keywords of a tool's schema that a grammar cannot enforce are only validated in the answer."""


class ConstrainedTask:
    """One answer under a constraint."""

    matcher: Matcher

    def __init__(self, request: Request, constraint: Constraint, *, is_call: bool) -> None:
        self.is_call = is_call
        self._request = request
        self._constraint = constraint

    def begin(self, budget: int, *, is_rest: bool) -> None:
        """Make the matcher.

        Raises `ConstraintError` if no answer fits in the budget, or `ContextOverflowError` if the
        budget is the rest of the context window.
        """
        least = self._constraint.shortest_tokens
        if is_rest and least is not None and budget < least:
            raise ContextOverflowError(
                f"the prompt leaves {budget} tokens of the context window, and the answer takes at least {least}",
            )
        self.matcher = self._constraint.matcher(budget)

    def response(self, text: str) -> Response:
        """The answer from the generated text. An answer that was cut off has no call and no outputs."""
        if not self.matcher.is_finished:
            return Response(None if self.is_call else text or None, finish_reason="length")
        answer = self._constraint.read(text)
        if answer.calls:
            return Response(
                answer.thought.strip() or None,
                answer.calls,
                finish_reason="tool_calls",
            )
        if self.is_call:
            return Response(answer.text or None, finish_reason="stop")
        form = self._request.form
        return Response(
            form.write(answer.value) if form is not None else json_text(answer.value),
            finish_reason="stop",
        )


def task_of(request: Request, vocabulary: Vocabulary, options: Options) -> ConstrainedTask | None:
    """The constrained task of a request; None if any text is a valid answer, or if the model calls tools in its own form.

    Raises `ConstraintError` for a tool whose schema a grammar cannot enforce.
    """
    shape, choice = request.shape, request.tool_choice
    if wants_call(request):
        form = CallForm(
            call=choice == "required" or _named_tool(request) is not None,
            thought_chars=options.thought_chars,
            intention=False,
        )
        constraint = Constraint.of_calls(
            vocabulary,
            chosen_tools(request),
            form=form,
            partial=options.partial,
        )
        return ConstrainedTask(request, constraint, is_call=True)
    if len(request.tools) and choice != "none":
        return None
    if request.form is not None:
        schema = request.form.schema
    elif shape is not None:
        schema = shape.schema or LOOSE
    else:
        return None
    return ConstrainedTask(
        request,
        Constraint.of_schema(vocabulary, dict(schema), partial=True),
        is_call=False,
    )


def wants_call(request: Request) -> bool:
    """Whether the request asks for a call that fits the schema of its tool."""
    return (
        request.shape is not None
        and request.shape.kind == "call"
        and len(request.tools) > 0
        and request.tool_choice != "none"
    )


def chosen_tools(request: Request) -> list[dict[str, Any]]:
    """The declarations that `tool_choice` allows: all of them, or only that of the tool it names."""
    named = _named_tool(request)
    return [each for each in request.tools if named in {None, each["function"]["name"]}]


def _named_tool(request: Request) -> str | None:
    choice: Any = request.tool_choice
    return (
        None
        if choice is None or isinstance(choice, str)
        else choice.get("function", {}).get("name")
    )


def can_constrain() -> bool:
    """Whether the engine for constraints is installed (the extra `ferrule[local]`)."""
    return find_spec("llguidance") is not None
