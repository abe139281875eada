"""Resources, prompts and completions, by the SDK's server that `MCPApp.server` is."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from questions import answers, ask, form

_TEMPLATE = re.compile(r"test://template/([^/]+)/data")
_PROMPTS = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


def register_lists(server: Any, pixel: str) -> None:
    """Add them to the server."""
    watched: set[str] = set()

    async def list_resources(*_: Any) -> Any:
        named = {
            "static-text": "text/plain",
            "static-binary": "image/png",
            "watched-resource": "text/plain",
        }
        found = [
            types.Resource(uri=f"test://{name}", name=name, description=name, mime_type=kind)
            for name, kind in named.items()
        ]
        return types.ListResourcesResult(resources=found)

    async def list_templates(*_: Any) -> Any:
        template = types.ResourceTemplate(
            uri_template="test://template/{id}/data",
            name="template",
            mime_type="application/json",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(_: Any, params: Any) -> Any:
        uri = str(params.uri)
        template = _TEMPLATE.fullmatch(uri)
        if uri == "test://static-binary":
            return types.ReadResourceResult(
                contents=[types.BlobResourceContents(uri=uri, mime_type="image/png", blob=pixel)],
            )
        texts = {
            "test://static-text": "This is the content of the static text resource.",
            "test://watched-resource": "Watched.",
        }
        if template is not None:
            text = json.dumps(
                {"id": template[1], "templateTest": True, "data": f"Data for ID: {template[1]}"},
            )
        elif uri in texts:
            text = texts[uri]
        else:
            raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
        kind = "application/json" if template is not None else "text/plain"
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)],
        )

    async def subscribe(_: Any, params: Any) -> Any:
        watched.add(str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(_: Any, params: Any) -> Any:
        watched.discard(str(params.uri))
        return types.EmptyResult()

    async def list_prompts(*_: Any) -> Any:
        taken = {
            name: [types.PromptArgument(name=each, required=True) for each in names]
            for name, names in _PROMPTS.items()
        }
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(name=name, description=name, arguments=each)
                for name, each in taken.items()
            ],
        )

    async def complete(*_: Any) -> Any:
        return types.CompleteResult(
            completion=types.Completion(values=["paris", "park"], total=2, has_more=False),
        )

    async def prompt(_: Any, params: Any) -> Any:
        return _prompt(params, pixel)

    for method, kind, handler in (
        ("resources/list", types.PaginatedRequestParams, list_resources),
        ("resources/templates/list", types.PaginatedRequestParams, list_templates),
        ("resources/read", types.ReadResourceRequestParams, read),
        ("resources/subscribe", types.SubscribeRequestParams, subscribe),
        ("resources/unsubscribe", types.UnsubscribeRequestParams, unsubscribe),
        ("prompts/list", types.PaginatedRequestParams, list_prompts),
        ("prompts/get", types.GetPromptRequestParams, prompt),
        ("completion/complete", types.CompleteRequestParams, complete),
    ):
        server.add_request_handler(method, kind, handler)


def _prompt(params: Any, pixel: str) -> Any:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            return _messages("This is a simple prompt for testing.")
        case "test_prompt_with_arguments":
            return _messages(
                f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'",
            )
        case "test_prompt_with_embedded_resource":
            text = "Embedded resource content for testing."
            inside = types.TextResourceContents(
                uri=given["resourceUri"],
                mime_type="text/plain",
                text=text,
            )
            return _messages(
                types.EmbeddedResource(resource=inside),
                "Please process the embedded resource above.",
            )
        case "test_prompt_with_image":
            return _messages(
                types.ImageContent(data=pixel, mime_type="image/png"),
                "Please analyze the image above.",
            )
        case "test_input_required_result_prompt":
            requests = {"user_context": form("What context should the prompt use?", "context")}
            found = answers(params, requests)
            return (
                ask(requests)
                if found is None
                else _messages(f"In the context of {found['user_context'].content}.")
            )
        case _:
            raise MCPError(types.INVALID_PARAMS, f"There is no prompt {params.name!r}.")


def _messages(*contents: Any) -> types.GetPromptResult:
    blocks = [types.TextContent(text=each) if isinstance(each, str) else each for each in contents]
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=each) for each in blocks],
    )
