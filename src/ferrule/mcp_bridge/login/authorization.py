"""The OAuth flow of the SDK, driven request by request.

The SDK's provider is a generator: it yields each request of discovery, registration, log-in and
refresh, and is sent the response. It is driven here, and not inside the request that was refused: a
person may take minutes, and no clock of a connection runs meanwhile. What servers answer is shown
only in the fields that RFC 6749 means for people: any other text may hold a token.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from ferrule.mcp_bridge.login.credentials import Credentials
from ferrule.mcp_bridge.login.device import DEVICE_GRANT, tokens_by_device_code
from ferrule.mcp_bridge.login.errors import LoginError, error_of, json_of, public_text
from ferrule.net.loopback import is_loopback
from ferrule.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from ferrule.mcp_bridge.login.oauth import OAuth

_CLIENT_ERROR, _SERVER_ERROR, _FORBIDDEN = 400, 500, 403
_TIMEOUT_S = 30.0
_EARLY_S = 10.0
"""A token is refreshed this long before it expires."""
_STEP_UP = "insufficient_scope"
_DEVICE_ENDPOINT = "device_authorization_endpoint"
_NO_ADDRESS = "http://localhost/callback"
_POST, _BASIC = "client_secret_post", "client_secret_basic"


class LoginTarget(Record, kw_only=True):
    """What is logged in to, and how."""

    url: str
    oauth: OAuth
    allow_http: bool = False


class Person(Record, kw_only=True):
    """How a person takes part in a log-in: in a browser on this machine, or with a code on any device."""

    redirect_uri: str
    show: Callable[[str], Awaitable[None]]
    """Gets the address that the person opens."""
    answer: Callable[[], Awaitable[dict[str, str]]]
    """The query that the browser comes back with."""
    enter_code: Callable[[str, str], Awaitable[None]] | None = None
    """Gets the address and the code, if the person has no browser here."""


class _DeviceCodeWantedError(Exception):
    """Ends the SDK's flow where the person's part begins."""


class Authorization:
    """One flow of the SDK: a refresh, or a log-in."""

    def __init__(
        self,
        target: LoginTarget,
        found: Credentials,
        person: Person | None = None,
    ) -> None:
        self._target = target
        self._found = found
        self._person = person
        self._device_endpoint: str | None = None
        self._is_step_up = False

    # -- the two flows
    # ------------------------------------------------------------------------------------------

    async def refresh(self) -> Credentials:
        """New tokens for the refresh token; credentials without tokens if the server does not take it any more."""
        provider = self._provider(expires_at=1.0)  # long ago; 0 stands for never
        client = _http_client()
        flow = provider.async_auth_flow(self._request(None))
        try:
            async with client:
                response = await self._send(client, await anext(flow))
                if response.status_code >= _SERVER_ERROR or response.status_code == 429:
                    raise LoginError(
                        f"the log-in was not renewed: {_host(response)} answered with HTTP {response.status_code}",
                    )
                if response.status_code >= _CLIENT_ERROR:
                    return Credentials()
                await flow.asend(response)
        except _flow_errors() as error:
            why = _reason(error)
        else:
            return self._credentials(provider)
        finally:
            await flow.aclose()
        raise LoginError(f"the log-in was not renewed: {why}")

    async def log_in(self, challenge: Any) -> Credentials:
        """Credentials after a log-in. `challenge` is the response (401, or 403 for more scopes) that asks for it."""
        provider = self._provider(expires_at=None)
        self._is_step_up = challenge.status_code == _FORBIDDEN
        request = self._request(challenge)
        flow = provider.async_auth_flow(request)
        try:
            async with _http_client() as client:
                try:
                    await self._drive(flow, request, challenge, client, provider.context)
                except _DeviceCodeWantedError:
                    await self._log_in_by_code(client, provider.context)
        except _flow_errors() as error:
            why = _reason(error)
        else:
            return self._credentials(provider)
        finally:
            await flow.aclose()
        raise LoginError(f"the log-in failed: {why}")

    async def _drive(
        self,
        flow: AsyncGenerator[Any, Any],
        request: Any,
        challenge: Any,
        client: Any,
        context: Any,
    ) -> None:
        outgoing = await anext(flow)
        while outgoing is not request:
            outgoing = await flow.asend(await self._send(client, outgoing))
        outgoing = await flow.asend(challenge)
        while outgoing is not request:
            response = await self._send(client, outgoing)
            if response.status_code >= _CLIENT_ERROR and outgoing.method == "POST":
                raise LoginError(self._refusal(response, outgoing, context))
            if response.is_success and outgoing.method == "GET":
                self._read_metadata(json_of(response), context)
            outgoing = await flow.asend(response)

    def _refusal(self, response: Any, sent: Any, context: Any) -> str:
        """Why the authorization server did not register the client, or gave no tokens."""
        if b"redirect_uris" not in sent.content:
            return f"{_host(response)} gave no token: {error_of(response)}"
        if context.oauth_metadata is None and context.protected_resource_metadata is None:
            return "it requires credentials, and no log-in was found"
        how = "Register one there, and pass auth=OAuth(client_id=...)"
        return f"{_host(response)} does not let clients register themselves ({error_of(response)}). {how}"

    def _read_metadata(self, found: dict[str, Any], context: Any) -> None:
        """What the SDK does not read of the metadata of an authorization server."""
        endpoint, methods = (
            found.get(_DEVICE_ENDPOINT),
            found.get("token_endpoint_auth_methods_supported"),
        )
        if (
            isinstance(endpoint, str)
            and self._person is not None
            and self._person.enter_code is not None
        ):
            self._device_endpoint = endpoint
            context.client_metadata.grant_types.append(DEVICE_GRANT)
        client = context.client_info
        if client is not None and client.client_secret and isinstance(methods, list):
            client.token_endpoint_auth_method = _POST if _BASIC not in methods else _BASIC

    async def _log_in_by_code(self, client: Any, context: Any) -> None:
        assert self._person is not None  # noqa: S101  it wanted a code
        assert self._person.enter_code is not None  # noqa: S101  the same
        if self._device_endpoint is None:
            raise LoginError(
                "no browser can be opened here, and the server offers no device codes for a log-in with another device",
            )
        scope = self._scope(context.client_metadata.scope)
        send = partial(self._send, client)
        tokens = await tokens_by_device_code(
            self._device_endpoint,
            context,
            scope,
            send,
            self._person.enter_code,
        )
        tokens.scope = tokens.scope or scope
        context.current_tokens = tokens

    # -- its parts
    # ----------------------------------------------------------------------------------------------

    def _request(self, challenge: Any) -> Any:
        """Stands for the refused request. It is never sent."""
        import httpx2

        name = "mcp-protocol-version"
        version = challenge.request.headers.get(name) if challenge is not None else None
        return httpx2.Request("POST", self._target.url, headers={name: version} if version else {})

    def _provider(self, expires_at: float | None) -> Any:
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, ProtectedResourceMetadata

        oauth, found = self._target.oauth, self._found
        redirect_uri = self._person.redirect_uri if self._person is not None else _NO_ADDRESS
        about = OAuthClientMetadata.model_validate(
            {
                "client_name": "ferrule", "redirect_uris": [redirect_uri], "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"], "scope": " ".join(oauth.scopes) or None,
            },
        )  # fmt: skip
        kept, document = _Kept(found, oauth, redirect_uri), oauth.client_metadata_url or None
        provider = OAuthClientProvider(
            self._target.url,
            about,
            kept,
            self._shown,
            self._answered,
            client_metadata_url=document,
        )
        context = provider.context
        context.token_expiry_time = expires_at
        with contextlib.suppress(
            ValueError,
        ):  # stored by another version: found out again at the next log-in
            if found.server is not None:
                context.oauth_metadata = OAuthMetadata.model_validate(found.server)
            if found.resource is not None:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(
                    found.resource,
                )
        return provider

    async def _shown(self, address: str) -> None:
        assert self._person is not None  # noqa: S101  a refresh never gets here
        if self._person.enter_code is not None:
            raise _DeviceCodeWantedError
        self._refuse_plain_http(address)
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
        scope = self._scope(query.get("scope"))
        await self._person.show(
            parts._replace(
                query=urlencode({**query, **({"scope": scope} if scope else {})}),
            ).geturl(),
        )

    def _scope(self, wanted: str | None) -> str | None:
        """The scopes to ask for: the user's choice, unless the server asks for more during the use."""
        return (
            wanted
            if self._is_step_up or not self._target.oauth.scopes
            else " ".join(self._target.oauth.scopes)
        )

    async def _answered(self) -> Any:
        from mcp.client.auth import AuthorizationCodeResult

        assert self._person is not None  # noqa: S101  the same
        found = await self._person.answer()
        return AuthorizationCodeResult(
            code=found["code"],
            state=found.get("state"),
            iss=found.get("iss"),
        )

    async def _send(self, client: Any, request: Any) -> Any:
        self._refuse_plain_http(str(request.url))
        return await client.send(request, follow_redirects=False)

    def _refuse_plain_http(self, url: str) -> None:
        """Log in by https alone, unless the server itself is on this machine."""
        here, there = urlsplit(self._target.url), urlsplit(url)
        is_allowed = self._target.allow_http or (
            here.scheme == "http" and is_loopback(there.hostname or "")
        )
        if there.scheme != "https" and not is_allowed:
            raise LoginError(
                f"the log-in would go over plain http to {there.hostname}, where others can read it",
            )

    def _credentials(self, provider: Any) -> Credentials:
        context = provider.context
        tokens = _json(context.current_tokens)
        lasts = (tokens or {}).get("expires_in")
        return Credentials(
            tokens=tokens,
            expires_at=time.time() + max(0.0, lasts - _EARLY_S) if lasts is not None else None,
            client=_json(context.client_info),
            server=_json(context.oauth_metadata),
            resource=_json(context.protected_resource_metadata),
        )


class _Kept:
    """The SDK's storage, in memory. A client that the user configured is known before the first log-in."""

    def __init__(self, found: Credentials, oauth: OAuth, redirect_uri: str) -> None:
        self.tokens = found.tokens
        self.client = found.client
        if oauth.client_id:
            secret = {"client_secret": oauth.client_secret} if oauth.client_secret else {}
            usual = {
                "redirect_uris": [redirect_uri],
                "token_endpoint_auth_method": _BASIC if secret else "none",
            }
            self.client = {**usual, **(found.client or {}), "client_id": oauth.client_id, **secret}

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        return OAuthToken.model_validate(self.tokens) if self.tokens is not None else None

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = _json(tokens)

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        return (
            OAuthClientInformationFull.model_validate(self.client)
            if self.client is not None
            else None
        )

    async def set_client_info(self, client_info: Any) -> None:
        self.client = _json(client_info)


def _json(model: Any) -> dict[str, Any] | None:
    return model.model_dump(mode="json", exclude_none=True) if model is not None else None


def _http_client() -> Any:
    import httpx2

    return httpx2.AsyncClient(timeout=_TIMEOUT_S)


def _host(response: Any) -> str:
    return str(response.request.url.host)


def is_challenge(response: Any) -> bool:
    """Whether a response asks for a log-in, or for a token with more scopes."""
    if response.status_code == _FORBIDDEN:
        from mcp.client.auth.utils import extract_field_from_www_auth

        return extract_field_from_www_auth(response, "error") == _STEP_UP
    return response.status_code == 401


def _flow_errors() -> tuple[type[Exception], ...]:
    import httpx2
    from mcp.client.auth import OAuthFlowError

    return OAuthFlowError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError


def _reason(error: Exception) -> str:
    """What went wrong in the SDK's flow. Its errors about tokens and clients quote the response, and so are not shown."""
    name = type(error).__name__
    if name == "OAuthFlowError":
        return public_text(str(error))
    if name.startswith("OAuth"):
        return "the authorization server's answer cannot be used"
    return f"the authorization server could not be reached or read ({name})"
