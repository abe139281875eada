"""A protected MCP server and its authorization server, on one port of this machine: for tests of
the log-in.

The authorization server has its endpoints below `/auth`, so that a client which guesses them at the
root does not find them. Attributes of `LoginServer` say what the person does there, and count what
the client did.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import uvicorn
from mcp.server.mcpserver import MCPServer as Remote
from mcp_servers import free_port
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Mount, Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class LoginServer:
    port: int
    person: str = "approves"
    """Or "denies", "leaves", "is_mistaken" (another state)."""
    lives_s: int | None = 3600
    registers: bool = True
    offers_device: bool = False
    offers_login: bool = True
    is_old: bool = False
    """Whether the server speaks HTTP+SSE, at `/sse`."""
    is_ill: bool = False
    """Whether the token endpoint answers with 503."""
    names_issuer: str = ""
    """The authorization server that the MCP server names; empty for its own."""
    posts: list[str] = field(default_factory=list)
    """The bodies of requests for tokens."""
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    access: dict[str, str] = field(default_factory=dict)
    """Valid access tokens, and their scopes."""
    renewals: dict[str, str] = field(default_factory=dict)
    """Valid refresh tokens, and their scopes. Each works once."""
    secrets: list[str] = field(default_factory=list)
    """All tokens, codes and secrets that were ever given out."""
    logins: list[dict[str, str]] = field(default_factory=list)
    """The queries of the log-in page."""
    registrations: int = 0
    refreshes: int = 0
    refused_refreshes: int = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/{'sse' if self.is_old else 'mcp'}"

    def revoke(self, *, renewals: bool = False) -> None:
        self.access.clear()
        if renewals:
            self.renewals.clear()

    # -- authorization server

    async def resource(self, request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "resource": self.url,
                "authorization_servers": [self.names_issuer or f"{self.origin}/auth"],
                "scopes_supported": ["read"],
            },
        )

    async def metadata(self, request: Request) -> JSONResponse:
        own = f"{self.origin}/auth"
        found: dict[str, Any] = {
            "issuer": own,
            "authorization_endpoint": f"{own}/authorize",
            "token_endpoint": f"{own}/token",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "none"],
        }
        if self.registers:
            found["registration_endpoint"] = f"{own}/register"
        if self.offers_device:
            found["device_authorization_endpoint"] = f"{own}/device"
            found["grant_types_supported"].append(DEVICE)
        return JSONResponse(found)

    async def register(self, request: Request) -> JSONResponse:
        if not self.registers:
            return JSONResponse({"error": "access_denied"}, 403)
        self.registrations += 1
        client = {
            **await request.json(),
            "client_id": f"client-{self.registrations}",
            "token_endpoint_auth_method": "none",
        }
        self.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    async def authorize(self, request: Request) -> Any:
        query = dict(request.query_params)
        self.logins.append(query)
        if self.person == "leaves":
            return JSONResponse({"page": "log in"})
        client = self.clients[query["client_id"]]
        if query["redirect_uri"] not in client["redirect_uris"]:
            return JSONResponse({"error": "redirect_uri"}, 400)
        if self.person == "denies":
            answer = {"error": "access_denied", "error_description": "You said\x1b[31m no."}
        else:
            code = self._secret()
            self.codes[code] = query
            answer = {"code": code}
        state = "another" if self.person == "is_mistaken" else query["state"]
        return RedirectResponse(
            f"{query['redirect_uri']}?{urlencode({**answer, 'state': state})}",
            302,
        )

    async def device(self, request: Request) -> JSONResponse:
        form = dict(await request.form())
        code = self._secret()
        self.codes[code] = {"scope": str(form.get("scope", "")), "polls": "0"}
        about = {
            "device_code": code,
            "user_code": "ABCD-EFGH",
            "verification_uri": f"{self.origin}/auth/enter",
            "interval": 0,
        }
        return JSONResponse({**about, "expires_in": 600})

    async def token(self, request: Request) -> JSONResponse:
        self.posts.append((await request.body()).decode())
        if self.is_ill:
            return JSONResponse({"error": "unavailable"}, 503)
        form = {key: str(value) for key, value in (await request.form()).items()}
        client = self.clients.get(form.get("client_id", ""))
        if client is None or client.get("client_secret") != form.get("client_secret"):
            return JSONResponse({"error": "invalid_client"}, 401)
        match form["grant_type"]:
            case "refresh_token":
                scope = self.renewals.pop(form["refresh_token"], None)
                if scope is None:
                    self.refused_refreshes += 1
                    return JSONResponse(
                        {"error": "invalid_grant", "error_description": "revoked"},
                        400,
                    )
                self.refreshes += 1
                return self._tokens(scope)
            case "authorization_code":
                asked = self.codes.pop(form["code"], None)
                digest = (
                    base64.urlsafe_b64encode(
                        hashlib.sha256(form["code_verifier"].encode()).digest(),
                    )
                    .decode()
                    .rstrip("=")
                )
                if (
                    asked is None
                    or asked["code_challenge"] != digest
                    or asked["redirect_uri"] != form["redirect_uri"]
                ):
                    return JSONResponse(
                        {"error": "invalid_grant", "error_description": form["code"]},
                        400,
                    )
                return self._tokens(asked.get("scope", ""))
            case grant if grant == DEVICE and DEVICE in client["grant_types"]:
                asked = self.codes[form["device_code"]]
                asked["polls"] = str(int(asked["polls"]) + 1)
                if self.person == "denies":
                    return JSONResponse({"error": "access_denied"}, 400)
                if asked["polls"] == "1" or self.person == "leaves":
                    return JSONResponse({"error": "authorization_pending"}, 400)
                return self._tokens(asked["scope"])
            case _:
                return JSONResponse({"error": "unsupported_grant_type"}, 400)

    def _secret(self) -> str:
        made = secrets.token_urlsafe(24)
        self.secrets.append(made)
        return made

    def _tokens(self, scope: str) -> JSONResponse:
        access, renewal = self._secret(), self._secret()
        self.access[access] = self.renewals[renewal] = scope
        lives = {} if self.lives_s is None else {"expires_in": self.lives_s}
        return JSONResponse(
            {
                "access_token": access,
                "token_type": "bearer",
                "refresh_token": renewal,
                "scope": scope,
                **lives,
            },
        )

    # -- protected resource

    def guarded(self, app: Any) -> Any:
        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] not in {"/mcp", "/sse", "/messages/"}:
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            kind, _, token = headers.get("authorization", "").partition(" ")
            if kind != "Bearer" or token not in self.access:
                answer = JSONResponse(
                    {"error": "unauthorized"},
                    401,
                    {"www-authenticate": self._challenge()},
                )
                await answer(scope, receive, send)
                return
            if headers.get("mcp-name") == "erase" and "write" not in self.access[token].split():
                answer = JSONResponse(
                    {},
                    403,
                    {
                        "www-authenticate": self._challenge(
                            error="insufficient_scope",
                            scope="write",
                        ),
                    },
                )
                await answer(scope, receive, send)
                return
            await app(scope, receive, send)

        return guard

    def _challenge(self, **fields: str) -> str:
        if self.offers_login:
            fields["resource_metadata"] = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
        return "Bearer " + ", ".join(
            f'{key}="{value}"' for key, value in {"realm": "locked", **fields}.items()
        )

    def app(self) -> Any:
        remote = Remote("locked")

        @remote.tool()
        def greet(name: str) -> str:
            """Greet."""
            return f"Hello, {name}!"

        @remote.tool()
        def erase(name: str) -> str:
            """Needs the scope `write`."""
            return f"{name} is gone"

        app = remote.sse_app() if self.is_old else remote.streamable_http_app()
        oauth = [
            Route("/.well-known/oauth-protected-resource/mcp", self.resource),
            Route("/.well-known/oauth-authorization-server/auth", self.metadata),
            Route("/auth/register", self.register, methods=["POST"]),
            Route("/auth/authorize", self.authorize),
            Route("/auth/device", self.device, methods=["POST"]),
            Route("/auth/token", self.token, methods=["POST"]),
        ]
        return Starlette(
            routes=[*(oauth if self.offers_login else []), Mount("/", self.guarded(app))],
            lifespan=lambda _: app.router.lifespan_context(app),
        )


@contextlib.contextmanager
def login_server(**settings: Any) -> Iterator[LoginServer]:
    """A running server."""
    made = LoginServer(free_port(), **settings)
    server = uvicorn.Server(
        uvicorn.Config(made.app(), port=made.port, log_level="error", timeout_graceful_shutdown=1),
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield made
    finally:
        server.should_exit = True
        thread.join()


def browse(address: str) -> bool:
    """Stands in for a browser: follows the redirect to the client, after the client's hook has
    returned.
    """
    threading.Thread(target=follow, args=(address,), daemon=True).start()
    return True


def follow(address: str) -> None:
    """Go to an address, and where it leads."""
    with contextlib.suppress(OSError), urlopen(address) as answer:
        answer.read()
