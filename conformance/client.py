"""The client that the conformance suite starts: `python conformance/client.py URL`. An ordinary use of `MCPServer`.

It connects, lists all there is, reads and calls it with arguments made of the schemas, and answers
questions with their defaults. Which scenario it is in only decides what the suite itself says of it
in `MCP_CONFORMANCE_CONTEXT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import httpx2
from mcp.client.auth import TokenStorage
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

from ferrule import MCPServer
from ferrule.errors import MCPError
from ferrule.mcp_bridge import OAuth

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

DOCUMENT = "https://conformance-test.local/client-metadata.json"
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
NUMBERS = {"a": 5, "b": 3}
BROWSING: list[asyncio.Future[None]] = []


class Kept(TokenStorage):
    """Tokens of a client without a person, for as long as the process lives."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """What there is."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep them."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The provider knows the client."""
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """The provider knows it."""


async def browse(address: str) -> None:
    """Stands in for the person and the browser: the suite's log-in page sends it back at once."""

    async def follow() -> None:
        async with httpx2.AsyncClient(follow_redirects=True) as client:
            await client.get(address)

    BROWSING.append(asyncio.ensure_future(follow()))


async def auth(url: str) -> Any:
    """How we prove who we are: nothing is asked before the server wants it."""
    client_id, secret = CONTEXT.get("client_id", ""), CONTEXT.get("client_secret", "")
    issuer = ""
    if secret and "client-credentials" not in SCENARIO:  # a secret goes to its issuer only
        issuer = (await fetched(urljoin(url, "/.well-known/oauth-protected-resource/mcp")))[
            "authorization_servers"
        ][0]
    if SCENARIO.endswith("enterprise-managed-authorization"):
        method = "client_secret_basic"
        return IdentityAssertionOAuthProvider(
            url,
            Kept(),
            client_id,
            secret,
            issuer,
            id_jag,
            token_endpoint_auth_method=method,
        )
    if "private_key_pem" in CONTEXT and "client-credentials" in SCENARIO:
        algorithm = CONTEXT.get("signing_algorithm", "ES256")
        signed = SignedJWTParameters(
            issuer=client_id,
            subject=client_id,
            signing_algorithm=algorithm,
            signing_key=CONTEXT["private_key_pem"],
        )
        return PrivateKeyJWTOAuthProvider(
            url,
            Kept(),
            client_id,
            signed.create_assertion_provider(),
        )
    if "client-credentials" in SCENARIO:
        return ClientCredentialsOAuthProvider(url, Kept(), client_id, secret)
    return OAuth(
        client_id=client_id,
        client_secret=secret,
        issuer=issuer,
        client_metadata_url=DOCUMENT,
    )


async def id_jag(audience: str, resource: str) -> str:
    """The grant that the enterprise's identity provider gives for a person's id token (RFC 8693)."""
    kind = "urn:ietf:params:oauth:token-type"
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": f"{kind}:id-jag",
        "subject_token": CONTEXT["idp_id_token"],
        "subject_token_type": f"{kind}:id_token",
        "client_id": CONTEXT["idp_client_id"],
        "audience": audience,
        "resource": resource,
    }
    return (await fetched(CONTEXT["idp_token_endpoint"], form))["access_token"]


async def fetched(url: str, form: dict[str, str] | None = None) -> Any:
    """The JSON at an address."""
    async with httpx2.AsyncClient() as client:
        return (await (client.get(url) if form is None else client.post(url, data=form))).json()


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
    own = await auth(url) if SCENARIO.startswith("auth/") else None
    options: dict[str, Any] = {
        "elicit": elicit,
        "sample": sampled,
        "roots": roots,
        "open_browser": browse,
        "trust": True,
    }
    server = MCPServer.http(url, auth=own, **options)
    async with server:
        tools = {tool.mcp.name: tool.mcp for tool in await server.atools()}
        planned = [(each["name"], each["arguments"]) for each in CONTEXT.get("toolCalls", [])]
        calls = planned or [(name, sample(tool.input_schema)) for name, tool in tools.items()]
        if "json_schema_2020_12_tool" in tools:
            calls = [
                (name, {"schema": tools["json_schema_2020_12_tool"].input_schema})
                for name in tools
                if name != "json_schema_2020_12_tool"
            ]
        results = await asyncio.gather(
            *(server.acall(name, arguments) for name, arguments in calls),
            return_exceptions=True,
        )
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
        await server.aget_prompt(
            prompt["name"],
            {each["name"]: "text" for each in prompt.get("arguments") or []},
        )


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as home:
            os.environ["XDG_DATA_HOME"] = home  # each scenario logs in anew
            asyncio.run(main(sys.argv[-1]))
    except MCPError as fault:
        sys.stderr.write(f"{type(fault).__name__}: {fault}\n")
        sys.exit(1)
