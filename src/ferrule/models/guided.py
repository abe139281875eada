"""`GuidedLM`: a model on a server that takes a grammar or a schema with a request.

It is constrained to calls of the declared tools. Servers differ in the field that they read, and
many ignore unknown fields. So before the first constrained request, a probe tries each form in
turn: its answer must be one fixed text. The first form that the server obeys is used, and every
answer is validated.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.concurrency.offload import run_blocking
from ferrule.errors import BadRequestError, ConstraintError, ToolCallError, UnavailableError
from ferrule.models.local.constraint import Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.models.local.task import chosen_tools, wants_call
from ferrule.models.local.template import text_message, tools_as_text
from ferrule.models.local.vocabulary import BYTES
from ferrule.models.model import BaseLM, as_stream
from ferrule.values.calls.confidence import with_confidence
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from ferrule.schema.nodes import Schema
    from ferrule.values.conversation.exchange import Delta

    _Ask = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("ferrule.models")
_WORD = "ferrule-probe-7f3a"
"""No model writes this by chance."""
_OBEYED = json.dumps({"word": _WORD}, separators=(",", ":"))
"""The answer of a server that obeys the constraint of the probe."""
_PROBE_LARK = f"%llguidance {{}}\nstart: {json.dumps(_OBEYED)}\n"
_PROBE_SCHEMA: Schema = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_PROBE_TOKENS = 64
_FAILED = 500
"""The status with which llama.cpp answers a grammar that it cannot read."""
_LARK = "llguidance grammar"
_GUIDES = (_LARK, "structured_outputs", "guided_json", "response_format")
"""All forms of a constraint, in the order in which they are tried."""


def _fields_of(guide: str, lark: str, schema: Schema) -> dict[str, Any]:
    """The fields of a request's body that carry a constraint in this form."""
    match guide:
        case "structured_outputs":  # vLLM
            return {"structured_outputs": {"json": schema}}
        case "guided_json":  # vLLM before 0.12, and others
            return {"guided_json": schema}
        case "response_format":
            json_schema = {"name": "call", "schema": schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": json_schema}}
        case _:  # llama.cpp, built with llguidance
            return {"grammar": lark}


class GuidedLM(BaseLM):
    """A model behind a server that constrains its calls. Made by `LM(...).constrained()`.

    Raises `ConstraintError` if the server ignores every form of constraint, or if an answer
    violates its own.
    """

    def __init__(self, lm: Any, *, thought_chars: int, partial: bool) -> None:
        self._lm = lm
        self._thought_chars = thought_chars
        self._partial = partial
        self._known: list[str] = []
        """The form that the server obeys, once known; copies share this list."""
        self.name = lm.name
        self.capabilities = replace(lm.capabilities, constrained_calls=True)
        self.settings = lm.settings

    def copy(self, **settings: Any) -> GuidedLM:
        """The same server with other settings."""
        other = super().copy(**settings)
        other._lm = self._lm.copy(**settings)  # noqa: SLF001  its own class
        return other

    def context_tokens(self) -> int | None:
        """See `LM`."""
        return self._lm.context_tokens()

    def complete(self, request: Request) -> Response:
        """One answer."""

        async def ask(sent: Request) -> Response:
            return self._lm.complete(sent)

        return run_blocking(self._answer(request, ask))

    async def acomplete(self, request: Request) -> Response:
        """One answer, without blocking the loop."""
        return await self._answer(request, self._lm.acomplete)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer piece by piece; a constrained one at once."""
        if wants_call(request):
            yield from as_stream(self.complete(request))
        else:
            yield from self._lm.stream(request)

    async def astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The answer piece by piece, without blocking the loop; a constrained one at once."""
        if wants_call(request):
            for item in as_stream(await self.acomplete(request)):
                yield item
            return
        async for item in self._lm.astream(request):
            yield item

    async def _answer(self, request: Request, ask: _Ask) -> Response:
        """Ask for the answer; before the first constrained one, probe the server."""
        if not wants_call(request):
            return await ask(request)
        if not self._known:
            self._known[:] = [await self._probe(request, ask)]
            _log.info("%s constrains calls by its %s", self.name, self._known[0])
        [guide] = self._known
        tools = chosen_tools(request)
        # Raises for a bad schema before anything is sent.
        constraint = Constraint.of_calls(
            BYTES, tools, form=self._form(request, guide), partial=self._partial
        )
        messages = [Message("system", tools_as_text(tools)), *map(_as_text, request.messages)]
        fields = _fields_of(guide, constraint.lark, constraint.grammar.schema)
        return self._read(constraint, guide, await ask(_guided(request, messages, fields)))

    def _form(self, request: Request, guide: str) -> CallForm:
        if guide != _LARK:
            return CallForm(intention=False)  # a schema has no place for text around the call
        must_call = request.tool_choice is not None
        return CallForm(call=must_call, thought_chars=self._thought_chars, intention=False)

    async def _probe(self, request: Request, ask: _Ask) -> str:
        """The first form of a constraint that the server obeys."""
        question = [Message("user", "Say hello.")]
        refusals: list[str] = []
        for guide in _GUIDES:
            fields = _fields_of(guide, _PROBE_LARK, _PROBE_SCHEMA)
            probe = _guided(request, question, fields, max_tokens=_PROBE_TOKENS)
            try:
                response = await ask(probe)
            except (BadRequestError, UnavailableError) as error:
                if isinstance(error, UnavailableError) and error.status != _FAILED:
                    raise  # unreachable or busy: that says nothing about constraints
                first_line = str(error).partition("\n")[0]
                refusals.append(f"- {guide}: {first_line[:200]}")
                continue
            without_blanks = "".join((response.text or "").split())
            if without_blanks == _OBEYED:
                return guide
            refusals.append(f"- {guide}: ignored")
        tried = "\n".join(refusals)
        raise ConstraintError(
            f"The server of `{self.name}` ignores constraints, so its calls cannot be valid by "
            f"construction. Tried:\n{tried}"
        )

    def _read(self, constraint: Constraint, guide: str, response: Response) -> Response:
        if response.finish_reason == "length":
            return replace(response, text=None)  # a call that was cut must not run
        try:
            answer = constraint.read(response.text or "")
        except ToolCallError as error:
            raise ConstraintError(
                f"The server of `{self.name}` did not follow its {guide}: {error}"
            ) from error
        if not answer.calls:
            return response
        return replace(
            response,
            text=answer.thought.strip() or None,
            tool_calls=with_confidence(answer.calls, response.tokens),
            finish_reason="tool_calls",
        )


def _guided(
    request: Request, messages: list[Message], fields: Mapping[str, Any], **settings: Any
) -> Request:
    """The request with the fields of a constraint, and without tools.

    A server takes either declarations or a constraint.
    """
    extra: Mapping[str, Any] = request.settings.get("extra") or {}
    settings = {**request.settings, **settings, "extra": {**extra, **fields}}
    return Request(Messages(messages), settings=settings)


def _as_text(message: Message) -> Message:
    if not message.tool_calls and message.role != "tool":
        return message
    fields = text_message(message)
    return Message(fields["role"], fields["content"])
