"""Logging in by a device code: the person types a code into a page on any device (RFC 8628)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ferrule.mcp_bridge.login.errors import LoginError, error_of, json_of, public_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_USUAL_WAIT_S, _SHORTEST_WAIT_S, _SLOWER_S = 5.0, 0.2, 5.0


async def tokens_by_device_code(
    endpoint: str,
    context: Any,
    scope: str | None,
    send: Callable[[Any], Awaitable[Any]],
    enter_code: Callable[[str, str], Awaitable[None]],
) -> Any:
    """The SDK's `OAuthToken`, once the person has entered the code that `enter_code(address, code)` shows. Raises `LoginError`."""
    from mcp.shared.auth import OAuthToken

    resource = (
        context.get_resource_url()
        if context.should_include_resource_param(context.protocol_version)
        else None
    )
    about = {"client_id": context.client_info.client_id, "scope": scope, "resource": resource}
    response = await send(_form(context, endpoint, about))
    found = json_of(response)
    address, code, device_code = (
        found.get(key) for key in ("verification_uri", "user_code", "device_code")
    )
    if not (isinstance(address, str) and isinstance(code, str) and isinstance(device_code, str)):
        raise LoginError(f"{response.request.url.host} gave no device code: {error_of(response)}")
    if urlsplit(address).scheme not in {"http", "https"}:
        raise LoginError(
            f"{response.request.url.host} gave no address of a page for the device code",
        )
    await enter_code(public_text(address), public_text(code))
    interval: Any = found.get("interval")
    wait_s = (
        max(_SHORTEST_WAIT_S, float(interval))
        if isinstance(interval, int | float)
        else _USUAL_WAIT_S
    )
    question = {
        "grant_type": DEVICE_GRANT,
        "device_code": device_code,
        "client_id": context.client_info.client_id,
        "resource": resource,
    }
    while True:
        await asyncio.sleep(wait_s)
        response = await send(_form(context, str(context.oauth_metadata.token_endpoint), question))
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
                raise LoginError(f"{response.request.url.host} gave no token: {error_of(response)}")


def _form(context: Any, url: str, values: dict[str, str | None]) -> Any:
    import httpx2

    given = {key: value for key, value in values.items() if value}
    data, headers = context.prepare_token_auth(
        given,
        {"content-type": "application/x-www-form-urlencoded"},
    )
    return httpx2.Request("POST", url, data=data, headers=headers)
