"""`GuidedLM`: a model on a server that takes a grammar or a schema with a request, constrained to calls of the declared tools.

Servers differ in the field that they read, and many ignore unknown fields. So before the first
constrained request, a probe tries each form in turn: its answer must be one fixed text. The first
form that the server obeys is used, and every answer is validated.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule.concurrency.offload import run_blocking
from ferrule.errors import BadRequestError, ConstraintError, ToolCallError, UnavailableError
from ferrule.models.local.constraint import Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.models.local.task import chosen_tools, wants_call
from ferrule.models.local.template import text_message, tools_as_text
from ferrule.models.local.vocabulary import BYTES
from ferrule.models.model import BaseLM, as_stream
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from ferrule.values.conversation.exchange import Delta

    _Ask = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("ferrule.models")
_WORD = "ferrule-probe-7f3a"
"""No model writes this by chance."""
_PROBE_TOKENS = 64
_FAILED = 500
"""The status with which llama.cpp answers a grammar that it cannot read."""


class _Guide(Struct, frozen=True):
    """One way to send a constraint."""

    name: str
    fields: Callable[[str, Any], dict[str, Any]]
    """Makes the fields of the request's body, from a grammar and a schema."""
    has_prose: bool = False
    """Whether text may come before the call."""


GUIDES = (
    _Guide(
        "llguidance grammar",
        lambda lark, _: {"grammar": lark},
        has_prose=True,
    ),  # llama.cpp, built with llguidance
    _Guide(
        "structured_outputs",
        lambda _, schema: {"structured_outputs": {"json": schema}},
    ),  # vLLM
    _Guide(
        "guided_json",
        lambda _, schema: {"guided_json": schema},
    ),  # vLLM before 0.12, and others
    _Guide(
        "response_format",
        lambda _, schema: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "call", "schema": schema, "strict": True},
            },
        },
    ),
)
"""All forms, in the order in which they are tried."""
_OBEYED = f'{{"word":"{_WORD}"}}'
_PROBES = (
    f"%llguidance {{}}\nstart: {json.dumps(_OBEYED)}\n",
    {
        "type": "object",
        "properties": {"word": {"type": "string", "enum": [_WORD]}},
        "required": ["word"],
        "additionalProperties": False,
    },
)


class GuidedLM(BaseLM):
    """A model behind a server that constrains its calls. Made by `LM(...).constrained()`.

    Raises `ConstraintError` if the server ignores every form of constraint, or if an answer
    violates its own.
    """

    def __init__(self, lm: Any, *, thought_chars: int, partial: bool) -> None:
        self._lm = lm
        self._form = CallForm(thought_chars=thought_chars, intention=False)
        self._partial = partial
        self._known: list[_Guide] = []
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
        yield from (
            as_stream(self.complete(request)) if wants_call(request) else self._lm.stream(request)
        )

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
            guide = await self._probe(request, ask)
            self._known[:] = [guide]
            _log.info("%s constrains calls by its %s", self.name, guide.name)
        [guide] = self._known
        choice = request.tool_choice
        form = replace(self._form, thought_chars=self._form.thought_chars if guide.has_prose else 0)
        if guide.has_prose and choice is None:
            form = replace(form, call=False)
        tools = chosen_tools(request)
        constraint = Constraint.of_calls(
            BYTES,
            tools,
            form=form,
            partial=self._partial,
        )  # raises for a bad schema before anything is sent
        fields = guide.fields(constraint.lark, constraint.grammar.schema)
        sent = _sent(
            request,
            [Message("system", tools_as_text(tools)), *map(_as_text, request.messages)],
            fields,
        )
        return self._read(constraint, guide, await ask(sent))

    async def _probe(self, request: Request, ask: _Ask) -> _Guide:
        refusals: list[str] = []
        for guide in GUIDES:
            fields = guide.fields(*_PROBES)
            asked = _sent(request, [Message("user", "Say hello.")], fields)
            asked.settings = {**asked.settings, "max_tokens": _PROBE_TOKENS}
            try:
                response = await ask(asked)
            except (BadRequestError, UnavailableError) as error:
                if isinstance(error, UnavailableError) and error.status != _FAILED:
                    raise  # unreachable or busy: that says nothing about constraints
                refusals.append(f"{guide.name}: {str(error).partition(chr(10))[0][:200]}")
                continue
            if "".join((response.text or "").split()) == _OBEYED:
                return guide
            refusals.append(f"{guide.name}: ignored")
        tried = "\n".join(f"- {each}" for each in refusals)
        raise ConstraintError(
            f"The server of `{self.name}` ignores constraints, so its calls cannot be valid by construction. Tried:\n{tried}",
        )

    def _read(self, constraint: Constraint, guide: _Guide, response: Response) -> Response:
        if response.finish_reason == "length":
            return replace(response, text=None)
        try:
            answer = constraint.read(response.text or "")
        except ToolCallError as error:
            raise ConstraintError(
                f"The server of `{self.name}` did not follow its {guide.name}: {error}",
            ) from error
        if not answer.calls:
            return response
        return replace(
            response,
            text=answer.thought.strip() or None,
            tool_calls=answer.calls,
            finish_reason="tool_calls",
        )


def _sent(request: Request, messages: list[Message], fields: Mapping[str, Any]) -> Request:
    """The request with these fields and without tools: a server takes either declarations or a constraint."""
    extra: Mapping[str, Any] = request.settings.get("extra") or {}
    return Request(Messages(messages), settings={**request.settings, "extra": {**extra, **fields}})


def _as_text(message: Message) -> Message:
    shape = text_message(message)
    return (
        message
        if not message.tool_calls and message.role != "tool"
        else Message(shape["role"], shape["content"])
    )
