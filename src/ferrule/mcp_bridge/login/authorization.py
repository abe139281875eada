"""The OAuth flow of the SDK, driven request by request.

The SDK's provider is a generator: it yields each request of discovery, registration, log-in and
refresh, and is sent the response. It is driven here, and not inside the request that was refused: a
person may take minutes, and no clock of a connection runs meanwhile.

What servers answer is shown only in the fields that RFC 6749 means for people (`error_of`): any
other text may hold a token.

The MCP server, which may be hostile, names the authorization server. So a user can pin the issuer;
and a secret that the user configured goes only to endpoints that the issuer itself names, or to the
MCP server's own origin.

The SDK knows no log-in by a device code (RFC 8628), in which the person types a code into a page on
any device. It is done here, with the SDK's own context, where the SDK would open the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from ferrule.mcp_bridge.login.credentials import Credentials
from ferrule.mcp_bridge.login.oauth import OAuth
from ferrule.net.connections import new_client
from ferrule.net.loopback import is_loopback
from ferrule.net.reading import aread_whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 401, 403, 429
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_TIMEOUT_S = 30.0
"""For one request, whole."""
_LARGEST = 1 << 20
"""The most bytes of an answer, decompressed. Metadata and tokens take a few kilobytes."""
_EARLY_S = 10.0
"""A token is refreshed this long before it expires."""
_STEP_UP = "insufficient_scope"
_UNUSED_ADDRESS = "http://localhost/callback"
"""Where no browser comes back to: the SDK wants a redirect address for a refresh, too."""
_POST, _BASIC = "client_secret_post", "client_secret_basic"
_DEVICE_ENDPOINT = "device_authorization_endpoint"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_USUAL_WAIT_S, _SHORTEST_WAIT_S, _SLOWER_S = 5.0, 0.2, 5.0
_LONGEST_TEXT = 200
_PORTS = {"http": 80, "https": 443}


class LoginError(Exception):
    """Why there is no log-in; the message has no subject."""


class LoginTarget(Struct, frozen=True, kw_only=True):
    """The server to log in to, and how."""

    url: str
    oauth: OAuth
    allow_http: bool = False


class Person(Struct, frozen=True, kw_only=True):
    """How a person takes part in a log-in: in a browser here, or with a code on any device."""

    redirect_uri: str
    show: Callable[[str], Awaitable[None]]
    """Gets the address that the person opens."""
    answer: Callable[[], Awaitable[dict[str, str]]]
    """The query that the browser comes back with."""
    enter_code: Callable[[str, str], Awaitable[None]] | None = None
    """Gets the address and the code, if the person has no browser here."""


class _DeviceCodeWantedError(Exception):
    """Ends the SDK's flow where the person's part begins."""


class _Issuer(Struct, frozen=True):
    """An authorization server, as its metadata describe it."""

    name: str = ""
    origin: str = ""
    """Where the metadata came from; empty without metadata."""
    endpoints: frozenset[str] = frozenset()

    @classmethod
    def of(cls, metadata: dict[str, Any], origin: str) -> _Issuer:
        addresses = {
            _endpoint(str(value))
            for name, value in metadata.items()
            if name.endswith("_endpoint") and value
        }
        return cls(str(metadata.get("issuer", "")), origin, frozenset(addresses))


class Authorization:
    """One flow of the SDK: a refresh, or a log-in."""

    def __init__(
        self, target: LoginTarget, credentials: Credentials, person: Person | None = None
    ) -> None:
        self._target = target
        self._before = credentials
        self._person = person
        self._device_endpoint: str | None = None
        self._is_step_up = False
        self._issuer = _Issuer()
        if credentials.server is not None:  # checked when they came
            origin = _origin(str(credentials.server.get("issuer", "")))
            self._issuer = _Issuer.of(credentials.server, origin)

    # -- the two flows

    async def refresh(self) -> Credentials:
        """New tokens for the refresh token.

        Returns credentials without tokens if the server does not take it any more.
        """
        provider = self._provider(expires_at=1.0)  # long ago; 0 stands for never
        flow = provider.async_auth_flow(self._request(None))
        try:
            async with _http_client() as client:
                response = await self._send(client, await anext(flow))
                status = response.status_code
                if status >= _SERVER_ERROR or status == _TOO_MANY:
                    raise LoginError(
                        f"the log-in was not renewed: {_host(response)} answered with HTTP {status}"
                    )
                if status >= _CLIENT_ERROR:
                    return Credentials()
                await flow.asend(response)
        except _flow_errors() as error:
            why = _reason(error)
        else:
            return self._credentials(provider)
        finally:
            await flow.aclose()
        # Outside the handler: the SDK's error may quote a response, and must not be its context.
        raise LoginError(f"the log-in was not renewed: {why}")

    async def log_in(self, challenge: Any) -> Credentials:
        """Credentials after a log-in.

        `challenge` is the response (401, or 403 for more scopes) that asks for it.
        """
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
        """Send what the flow yields, until it yields `request` after it got the challenge."""
        outgoing = await anext(flow)
        while outgoing is not request:
            outgoing = await flow.asend(await self._send(client, outgoing))
        outgoing = await flow.asend(challenge)
        while outgoing is not request:
            response = await self._send(client, outgoing)
            if response.status_code >= _CLIENT_ERROR and outgoing.method == "POST":
                raise LoginError(self._refusal(response, outgoing, context))
            if response.is_success and outgoing.method == "GET":
                response = self._at_issuer(response)
                self._read_metadata(json_of(response), _origin(str(outgoing.url)), context)
            outgoing = await flow.asend(response)

    def _refusal(self, response: Any, sent: Any, context: Any) -> str:
        """Why the authorization server did not register the client, or gave no tokens."""
        host, error = _host(response), error_of(response)
        if b"redirect_uris" not in sent.content:
            return f"{host} gave no token: {error}"
        if context.oauth_metadata is None and context.protected_resource_metadata is None:
            return "it requires credentials, and no log-in was found"
        return (
            f"{host} does not let clients register themselves ({error}). "
            "Register one there, and pass auth=OAuth(client_id=...)"
        )

    def _at_issuer(self, response: Any) -> Any:
        """Metadata of the MCP server, with the pinned issuer as the only authorization server.

        Raises `LoginError` if the MCP server does not name it.
        """
        import httpx2

        metadata, issuer = json_of(response), self._target.oauth.issuer
        named: Any = metadata.get("authorization_servers")
        if not issuer or not isinstance(named, list):
            return response
        servers = [str(server) for server in cast("list[Any]", named)]
        same = [server for server in servers if _is_same_issuer(server, issuer)]
        if not same:
            others = ", ".join(map(public_text, servers)) or "none"
            raise LoginError(
                f"{_host(response)} names the authorization server {others}, and the issuer is "
                f"pinned to {issuer}"
            )
        metadata["authorization_servers"] = same[:1]
        content = json.dumps(metadata).encode()
        return httpx2.Response(response.status_code, content=content, request=response.request)

    def _check_receiver(self, url: str) -> None:
        """Refuse to send a log-in, or a configured secret, to another server than the user's.

        Only metadata that come from the issuer's own origin tell where its endpoints are. Without
        metadata, the endpoints are guessed at that origin.
        """
        oauth = self._target.oauth
        has_secret = bool(oauth.client_id and oauth.client_secret)
        if not oauth.issuer and not has_secret:
            return
        wanted, issuer = _origin(oauth.issuer or self._target.url), self._issuer
        is_named = not oauth.issuer or _is_same_issuer(issuer.name, oauth.issuer)
        if issuer.origin == wanted and is_named and _endpoint(url) in issuer.endpoints:
            return
        if not issuer.origin and _origin(url) == wanted:
            return
        there = urlsplit(url).hostname
        if oauth.issuer:
            raise LoginError(f"the log-in would go to {there}; the issuer is {oauth.issuer}")
        right = public_text(issuer.name) or "the authorization server"
        raise LoginError(
            f"the client secret would go to {there}, which the server names. If that is right, "
            f"pass auth=OAuth(issuer={right!r}, ...)"
        )

    def _read_metadata(self, metadata: dict[str, Any], origin: str, context: Any) -> None:
        """What the SDK does not read of the metadata of an authorization server."""
        if "token_endpoint" in metadata:
            self._issuer = _Issuer.of(metadata, origin)
        endpoint = metadata.get(_DEVICE_ENDPOINT)
        enters_code = self._person is not None and self._person.enter_code is not None
        if isinstance(endpoint, str) and enters_code:
            self._device_endpoint = endpoint
            context.client_metadata.grant_types.append(_DEVICE_GRANT)
        methods = metadata.get("token_endpoint_auth_methods_supported")
        client = context.client_info
        if client is not None and client.client_secret and isinstance(methods, list):
            client.token_endpoint_auth_method = _BASIC if _BASIC in methods else _POST

    # -- the SDK's provider, and what it calls

    def _request(self, challenge: Any) -> Any:
        """A request in the place of the refused one. It is never sent."""
        import httpx2

        headers: dict[str, str] = {}
        if challenge is not None:
            version = challenge.request.headers.get("mcp-protocol-version")
            if version:
                headers["mcp-protocol-version"] = version
        return httpx2.Request("POST", self._target.url, headers=headers)

    def _provider(self, expires_at: float | None) -> Any:
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, ProtectedResourceMetadata

        oauth, before = self._target.oauth, self._before
        if self._person is not None:
            redirect_uri = self._person.redirect_uri
        else:
            redirect_uri = _UNUSED_ADDRESS
        metadata = OAuthClientMetadata.model_validate(
            {
                "client_name": "ferrule",
                "redirect_uris": [redirect_uri],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "scope": " ".join(oauth.scopes) or None,
            }
        )
        provider = OAuthClientProvider(
            self._target.url,
            metadata,
            _Storage(before, oauth, redirect_uri),
            self._show,
            self._await_code,
            client_metadata_url=oauth.client_metadata_url or None,
        )
        context = provider.context
        context.token_expiry_time = expires_at
        # What another version of the SDK stored is found out again at the next log-in.
        with contextlib.suppress(ValueError):
            if before.server is not None:
                context.oauth_metadata = OAuthMetadata.model_validate(before.server)
            if before.resource is not None:
                resource = ProtectedResourceMetadata.model_validate(before.resource)
                context.protected_resource_metadata = resource
        return provider

    async def _show(self, address: str) -> None:
        assert self._person is not None  # noqa: S101  a refresh never gets here
        if self._person.enter_code is not None:
            raise _DeviceCodeWantedError
        self._refuse_plain_http(address)
        self._check_receiver(address)
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
        scope = self._scope(query.get("scope"))
        if scope:
            query["scope"] = scope
        await self._person.show(parts._replace(query=urlencode(query)).geturl())

    def _scope(self, wanted: str | None) -> str | None:
        """The scopes to ask for.

        They are the user's choice, unless the server asks for more during the use.
        """
        if self._is_step_up or not self._target.oauth.scopes:
            return wanted
        return " ".join(self._target.oauth.scopes)

    async def _await_code(self) -> Any:
        from mcp.client.auth import AuthorizationCodeResult

        assert self._person is not None  # noqa: S101  the same
        answer = await self._person.answer()
        return AuthorizationCodeResult(
            code=answer["code"], state=answer.get("state"), iss=answer.get("iss")
        )

    async def _send(self, client: Any, request: Any) -> Any:
        self._refuse_plain_http(str(request.url))
        if request.method == "POST":
            self._check_receiver(str(request.url))
        return await _bounded(client, request)

    def _refuse_plain_http(self, url: str) -> None:
        """Log in by https alone, unless the server itself is on this machine."""
        here, there = urlsplit(self._target.url), urlsplit(url)
        if there.scheme == "https" or self._target.allow_http:
            return
        if here.scheme == "http" and is_loopback(there.hostname or ""):
            return
        raise LoginError(
            f"the log-in would go over plain http to {there.hostname}, where others can read it"
        )

    def _credentials(self, provider: Any) -> Credentials:
        context = provider.context
        tokens = _json(context.current_tokens)
        expires_at: float | None = None
        lasts_s = None
        if tokens:
            lasts_s = tokens.get("expires_in")
        if lasts_s is not None:
            expires_at = time.time() + max(0.0, lasts_s - _EARLY_S)
        return Credentials(
            tokens=tokens,
            expires_at=expires_at,
            client=_json(context.client_info),
            server=_json(context.oauth_metadata),
            resource=_json(context.protected_resource_metadata),
        )

    # -- with a device code

    async def _log_in_by_code(self, client: Any, context: Any) -> None:
        assert self._person is not None  # noqa: S101  it wanted a code
        assert self._person.enter_code is not None  # noqa: S101  the same
        if self._device_endpoint is None:
            raise LoginError(
                "no browser can be opened here, and the server offers no device codes for a "
                "log-in with another device"
            )
        scope = self._scope(context.client_metadata.scope)
        tokens = await _tokens_by_device_code(
            self._device_endpoint,
            context,
            scope,
            partial(self._send, client),
            self._person.enter_code,
        )
        tokens.scope = tokens.scope or scope
        context.current_tokens = tokens


async def _tokens_by_device_code(
    endpoint: str,
    context: Any,
    scope: str | None,
    send: Callable[[Any], Awaitable[Any]],
    enter_code: Callable[[str, str], Awaitable[None]],
) -> Any:
    """The SDK's `OAuthToken`, once the person has entered the code that `enter_code` shows."""
    from mcp.shared.auth import OAuthToken

    client_id = context.client_info.client_id
    resource: str | None = None
    if context.should_include_resource_param(context.protocol_version):
        resource = context.get_resource_url()
    wish = {"client_id": client_id, "scope": scope, "resource": resource}
    response = await send(_form(context, endpoint, wish))
    host, grant = _host(response), json_of(response)
    device_code: Any = grant.get("device_code")
    address: Any = grant.get("verification_uri")
    user_code: Any = grant.get("user_code")
    if not all(isinstance(text, str) for text in (address, user_code, device_code)):
        raise LoginError(f"{host} gave no device code: {error_of(response)}")
    if urlsplit(str(address)).scheme not in {"http", "https"}:
        raise LoginError(f"{host} gave no address of a page for the device code")
    await enter_code(public_text(address), public_text(user_code))

    wait_s = _USUAL_WAIT_S
    interval_s: Any = grant.get("interval")
    if isinstance(interval_s, int | float):
        wait_s = max(_SHORTEST_WAIT_S, float(interval_s))
    token_endpoint = str(context.oauth_metadata.token_endpoint)
    question = {
        "grant_type": _DEVICE_GRANT,
        "device_code": device_code,
        "client_id": client_id,
        "resource": resource,
    }
    while True:
        await asyncio.sleep(wait_s)
        response = await send(_form(context, token_endpoint, question))
        if response.is_success:
            return OAuthToken.model_validate(json_of(response))
        match json_of(response).get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                wait_s += _SLOWER_S
            case "access_denied":
                raise LoginError(f"the log-in was denied ({error_of(response)})")
            case "expired_token":
                raise LoginError("the device code expired before a person entered it")
            case _:
                raise LoginError(f"{_host(response)} gave no token: {error_of(response)}")


def _form(context: Any, url: str, values: dict[str, Any]) -> Any:
    import httpx2

    data, headers = context.prepare_token_auth(
        {key: value for key, value in values.items() if value},
        {"content-type": "application/x-www-form-urlencoded"},
    )
    return httpx2.Request("POST", url, data=data, headers=headers)


class _Storage:
    """The SDK's storage, in memory.

    A client that the user configured is known before the first log-in.
    """

    def __init__(self, credentials: Credentials, oauth: OAuth, redirect_uri: str) -> None:
        self.tokens = credentials.tokens
        self.client = credentials.client
        if oauth.client_id:
            self.client = {
                "redirect_uris": [redirect_uri],
                "token_endpoint_auth_method": _BASIC if oauth.client_secret else "none",
                **(credentials.client or {}),
                "client_id": oauth.client_id,
            }
            if oauth.client_secret:
                self.client["client_secret"] = oauth.client_secret

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        if self.tokens is not None:
            return OAuthToken.model_validate(self.tokens)
        return None

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = _json(tokens)

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        if self.client is None:
            return None
        return OAuthClientInformationFull.model_validate(self.client)

    async def set_client_info(self, client_info: Any) -> None:
        self.client = _json(client_info)


def is_challenge(response: Any) -> bool:
    """Whether a response asks for a log-in, or for a token with more scopes."""
    if response.status_code == _FORBIDDEN:
        from mcp.client.auth.utils import extract_field_from_www_auth

        return extract_field_from_www_auth(response, "error") == _STEP_UP
    return response.status_code == _UNAUTHORIZED


def public_text(text: str) -> str:
    """Another server's text on one line, shortened, without control characters."""
    line = re.sub(r"[^\x20-\x7e\u00a0-\u1fff\u3000-\ufaff]+", " ", text)
    return line.strip()[:_LONGEST_TEXT]


def json_of(response: Any) -> dict[str, Any]:
    """The JSON object of a response; empty if it holds none."""
    try:
        content = json.loads(response.content)
    except ValueError:
        return {}
    if isinstance(content, dict):
        return cast("dict[str, Any]", content)
    return {}


def error_of(response: Any) -> str:
    """The error of an authorization server's response, and nothing else from it.

    RFC 6749, section 5.2, defines its two fields.
    """
    content = json_of(response)
    fields = (content.get("error"), content.get("error_description"))
    texts = [public_text(field) for field in fields if isinstance(field, str)]
    return ": ".join(texts) or f"HTTP {response.status_code}"


def _json(model: Any) -> dict[str, Any] | None:
    if model is not None:
        return model.model_dump(mode="json", exclude_none=True)
    return None


def _http_client() -> Any:
    return new_client(timeout=_TIMEOUT_S)


async def _bounded(client: Any, request: Any) -> Any:
    """The whole response to a request: within the deadline, and of a bounded size.

    Raises `LoginError` otherwise.
    """
    import httpx2

    host = request.url.host
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            response = await client.send(request, follow_redirects=False, stream=True)
            return await aread_whole(response, None, _LARGEST)
    except TimeoutError:
        raise LoginError(f"{host} sent no whole answer within {_TIMEOUT_S:g} s") from None
    except httpx2.TransportError:
        raise
    except httpx2.RequestError as error:
        raise LoginError(f"{host} sent an answer that cannot be read: {error}") from None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _endpoint(url: str) -> str:
    """An address without its query, in the form in which endpoints are compared."""
    return _origin(url) + (urlsplit(url).path or "/")


def _is_same_issuer(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _host(response: Any) -> str:
    return str(response.request.url.host)


def _flow_errors() -> tuple[type[Exception], ...]:
    import httpx2
    from mcp.client.auth import OAuthFlowError

    return OAuthFlowError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError


def _reason(error: Exception) -> str:
    """What went wrong in the SDK's flow.

    Its errors about tokens and clients quote the response, and so are not shown.
    """
    name = type(error).__name__
    if name == "OAuthFlowError":
        return public_text(str(error))
    if name.startswith("OAuth"):
        return "the authorization server's answer cannot be used"
    return f"the authorization server could not be reached or read ({name})"
