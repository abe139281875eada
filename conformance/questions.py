"""Tools that answer with questions, as the revision 2026-07-28 has it, and the forms of the questions."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from ferrule.mcp_bridge import current_mcp_call

_CHOICES = [("one", "First"), ("two", "Second"), ("three", "Third")]
_NAMES = [name for name, _ in _CHOICES]
_TITLED = [{"const": name, "title": title} for name, title in _CHOICES]
forms: dict[str, dict[str, Any]] = {
    "defaults": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
    "choices": {
        "untitledSingle": {"type": "string", "enum": _NAMES},
        "titledSingle": {"type": "string", "oneOf": _TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": _NAMES,
            "enumNames": [title for _, title in _CHOICES],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _NAMES}},
        "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
    },
}


def form(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    """A question for one value."""
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema),
    )


def sampling(text: str, max_tokens: int) -> types.CreateMessageRequest:
    """A question for the client's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens),
    )


def answers(params: Any, requests: dict[str, Any]) -> dict[str, Any] | None:
    """The answers to these questions; None where one is missing, or is of the wrong kind."""
    given = params.input_responses or {}
    kinds = {
        types.ElicitRequest: types.ElicitResult,
        types.CreateMessageRequest: types.CreateMessageResult,
    }
    fits = all(
        isinstance(given.get(key), kinds.get(type(asked), types.ListRootsResult))
        for key, asked in requests.items()
    )
    return {key: given[key] for key in requests} if fits else None


def ask(requests: dict[str, Any], state: str | None = None) -> types.InputRequiredResult:
    """The result that puts these questions."""
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def _params() -> Any:
    call = current_mcp_call()
    if call is None:
        msg = "This runs for an MCP client only."
        raise RuntimeError(msg)
    return call.params


def once(requests: dict[str, Any], state: str | None = None) -> Any:
    """The answers; or the result that asks for them."""
    params = _params()
    found = answers(params, requests)
    return ask(requests, state) if found is None or params.request_state != state else found


def test_input_required_result_elicitation() -> Any:
    """Ask for a name."""
    found = once({"user_name": form("What is your name?", "name")})
    return (
        f"Hello, {(found['user_name'].content or {}).get('name')}!"
        if isinstance(found, dict)
        else found
    )


def test_streaming_elicitation() -> Any:
    """Ask for a name, on a stream."""
    return test_input_required_result_elicitation()


def test_input_required_result_sampling() -> Any:
    """Ask the client's model."""
    found = once({"capital_question": sampling("What is the capital of France?", 100)})
    return f"It said: {found['capital_question'].content}" if isinstance(found, dict) else found


def test_input_required_result_list_roots() -> Any:
    """Ask for the client's roots."""
    found = once({"client_roots": types.ListRootsRequest()})
    return (
        f"Roots: {[str(each.uri) for each in found['client_roots'].roots]}"
        if isinstance(found, dict)
        else found
    )


def test_input_required_result_request_state() -> Any:
    """Ask, and remember by the state."""
    found = once({"confirm": form("Please confirm", "ok", "boolean")}, "asked")
    return "state-ok" if isinstance(found, dict) else found


def test_input_required_result_tampered_state() -> Any:
    """Ask, with a state that nobody can change."""
    return test_input_required_result_request_state()


def test_input_required_result_multiple_inputs() -> Any:
    """Ask three things at once."""
    requests = {
        "user_name": form("What is your name?", "name"),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    found = once(requests, "asked")
    return "all answered" if isinstance(found, dict) else found


def test_input_required_result_multi_round() -> Any:
    """Ask twice."""
    params = _params()
    first = {"step1": form("Step 1: What is your name?", "name")}
    second = {"step2": form("Step 2: What is your favorite color?", "color")}
    match params.request_state:
        case "one" if answers(params, first) is not None:
            return ask(second, "two")
        case "two":
            return ask(second, "two") if answers(params, second) is None else "both answered"
        case _:
            return ask(first, "one")


def test_input_required_result_capabilities() -> Any:
    """Ask only what the client can answer."""
    call = current_mcp_call()
    capabilities = call.request.session.client_capabilities if call is not None else None
    requests: dict[str, Any] = {}
    if capabilities is not None and capabilities.elicitation is not None:
        requests["user_name"] = form("What is your name?", "name")
    if capabilities is not None and capabilities.sampling is not None:
        requests["greeting"] = sampling("Generate a greeting", 50)
    if not requests:
        return "nothing to ask"
    found = once(requests)
    return "answered" if isinstance(found, dict) else found


QUESTIONS = [
    test_input_required_result_elicitation,
    test_streaming_elicitation,
    test_input_required_result_sampling,
    test_input_required_result_list_roots,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
    test_input_required_result_multiple_inputs,
    test_input_required_result_multi_round,
    test_input_required_result_capabilities,
]
