"""What a model wrote as people see it: answers and steps with stars for secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ferrule.values.calls.secrets import masked_call, secret_values, without_secrets
from ferrule.values.conversation.message import Messages

if TYPE_CHECKING:
    from ferrule.values.calls.secrets import Secrets
    from ferrule.values.conversation.exchange import Request, Response
    from ferrule.values.outcome import Step


def masked_response(response: Response, secrets: Secrets) -> Response:
    """An answer as people see it: with stars for secrets, also in its text and its thoughts."""
    if not secrets:
        return response
    values = set(secret_values(response.tool_calls, secrets))
    return replace(
        response,
        text=without_secrets(response.text, values, secrets),
        reasoning=without_secrets(response.reasoning, values, secrets),
        tool_calls=tuple([masked_call(call, secrets) for call in response.tool_calls]),
        others=tuple([masked_response(other, secrets) for other in response.others]),
        extra=None,  # the provider's own form repeats the calls
        tokens=(),  # so do the tokens
    )


def masked_request(request: Request) -> Request:
    """A request as people see it: its conversation repeats what the model wrote."""
    secrets = request.secrets
    if not secrets:
        return request
    calls = [call for message in request.messages for call in message.tool_calls]
    values = set(secret_values(calls, secrets))
    messages = Messages()
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            content = without_secrets(content, values, secrets) or ""
        masked = replace(
            message,
            content=content,
            reasoning=without_secrets(message.reasoning, values, secrets) or "",
            tool_calls=tuple([masked_call(call, secrets) for call in message.tool_calls]),
            extra=None,  # the provider's own form repeats the calls
        )
        messages = messages.then(masked)
    return request.following(messages)


def masked_step(step: Step, secrets: Secrets) -> Step:
    """A step of an agent as people see it."""
    if not secrets:
        return step
    values = set(secret_values(step.calls, secrets))
    return replace(
        step,
        thought=without_secrets(step.thought, values, secrets) or "",
        calls=tuple([masked_call(call, secrets) for call in step.calls]),
    )
