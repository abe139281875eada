"""The client that the conformance suite starts: `python conformance/client.py URL`. An ordinary use of `MCPServer`.

It connects, lists all there is, reads and calls it with arguments made of the schemas, and answers questions with their defaults. Which
scenario it is in only decides what the suite itself says of it in `MCP_CONFORMANCE_CONTEXT`.
"""
# ruff: noqa: INP001  a script

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from ferrule import MCPError, MCPServer

CALLBACK = "http://localhost:3000/callback"
DOCUMENT = "https://conformance-test.local/client-metadata.json"
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
NUMBERS = {"a": 5, "b": 3}


class Kept(TokenStorage):
    """Tokens, for as long as the process lives."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.client = client
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """What there is."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep them."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Who we are there."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep it."""
        self.client = client_info


class Browser:
    """Stands in for the person: goes to the address, and is sent back with a code."""

    def __init__(self) -> None:
        self.query: dict[str, list[str]] = {}

    async def go(self, address: str) -> None:
        """Follow one redirection."""
        async with httpx2.AsyncClient() as client:
            answer = await client.get(address, follow_redirects=False)
        self.query = parse_qs(urlparse(answer.headers["location"]).query)

    async def back(self) -> AuthorizationCodeResult:
        """What stood in the address that we were sent back to."""
        found = {key: self.query[key][0] for key in ("code", "state", "iss") if key in self.query}
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))


def auth(url: str) -> Any:
    """How we prove who we are: nothing is asked before the server wants it."""
    client_id, secret = CONTEXT.get("client_id"), CONTEXT.get("client_secret")
    if "private_key_pem" in CONTEXT and "client-credentials" in SCENARIO:
        algorithm = CONTEXT.get("signing_algorithm", "ES256")
        signed = SignedJWTParameters(
            issuer=client_id, subject=client_id, signing_algorithm=algorithm, signing_key=CONTEXT["private_key_pem"]
        )
        return PrivateKeyJWTOAuthProvider(url, Kept(None), client_id, signed.create_assertion_provider())
    if "client-credentials" in SCENARIO:
        return ClientCredentialsOAuthProvider(url, Kept(None), client_id, secret)
    known = None
    if client_id:
        method = "client_secret_basic" if secret else "none"
        known = OAuthClientInformationFull(
            client_id=client_id, client_secret=secret, redirect_uris=[AnyUrl(CALLBACK)], token_endpoint_auth_method=method
        )
    grants = ["authorization_code", "refresh_token"]
    about = OAuthClientMetadata(client_name="ferrule", redirect_uris=[AnyUrl(CALLBACK)], grant_types=grants, response_types=["code"])
    browser = Browser()
    return OAuthClientProvider(url, about, Kept(known), browser.go, browser.back, client_metadata_url=DOCUMENT)


async def elicit(params: dict[str, Any]) -> dict[str, Any]:
    """Accept, with the defaults of the form; with something that fits where there is none."""
    schema = params.get("requestedSchema") or {}
    return {"action": "accept", "content": sample(schema)}


async def sampled(params: dict[str, Any]) -> dict[str, Any]:
    """Stands in for a model."""
    del params
    return {"role": "assistant", "content": {"type": "text", "text": "an answer"}, "model": "none"}


async def roots() -> list[dict[str, Any]]:
    """One folder."""
    return [{"uri": "file:///tmp"}]


def sample(schema: Any) -> Any:
    """Some value that fits a schema, as far as the suite has them."""
    if not isinstance(schema, dict):
        return None
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            of = schema.get("properties", {})
            return {
                name: NUMBERS.get(name, sample(each))
                for name, each in of.items()
                if name in schema.get("required", of) or "default" in each
            }
        case "array":
            return []
        case kind:
            return {"integer": 1, "number": 1, "boolean": True, "null": None}.get(str(kind), "text")


async def main(url: str) -> None:
    """Use all there is."""
    server = MCPServer.http(
        url, auth=auth(url) if SCENARIO.startswith("auth/") else None, elicit=elicit, sample=sampled, roots=roots, trust=True
    )
    async with server:
        tools = {tool.mcp.name: tool.mcp for tool in await server.atools()}
        planned = [(each["name"], each["arguments"]) for each in CONTEXT.get("toolCalls", [])]
        calls = planned or [(name, sample(tool.input_schema)) for name, tool in tools.items()]
        if "json_schema_2020_12_tool" in tools:
            calls = [
                (name, {"schema": tools["json_schema_2020_12_tool"].input_schema}) for name in tools if name != "json_schema_2020_12_tool"
            ]
        results = await asyncio.gather(*(server.acall(name, arguments) for name, arguments in calls), return_exceptions=True)
        await read_all(server)
    for (name, _), result in zip(calls, results, strict=True):
        sys.stderr.write(f"{name}: {result!r}\n")
    faults = [each for each in results if isinstance(each, BaseException)]
    if faults:
        raise faults[0]


async def read_all(server: MCPServer) -> None:
    """Every resource and every prompt."""
    for resource in await server.aresources():
        await server.aread_resource(resource["uri"])
    for prompt in await server.aprompts():
        await server.aget_prompt(prompt["name"], {each["name"]: "text" for each in prompt.get("arguments") or []})


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[-1]))
    except MCPError as fault:
        sys.stderr.write(f"{type(fault).__name__}: {fault}\n")
        sys.exit(1)
