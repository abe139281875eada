"""`OAuth`: how a client logs in to a server, as a plain value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.errors import ConfigurationError
from ferrule.record import CheckedStruct, PartlyCompared

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.mcp_bridge.redact import References

_HIGHEST_PORT = 65_535


class OAuth(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True, kw_only=True):
    """A log-in by OAuth: `mcp("https://...", auth=OAuth(client_id="..."))`.

    `auth="oauth"` is `OAuth()`. Without `client_id`, the client registers itself with the
    authorization server when a person logs in.
    """

    _not_shown = frozenset({"client_secret"})

    client_id: str = ""
    """The id of a client that is registered already, with the redirect address
    `http://localhost:PORT/callback`."""
    client_secret: str = ""
    """Its secret, if it has one.

    It is sent only to endpoints that the `issuer` names; without one, to those that the MCP
    server's own origin names."""
    issuer: str = ""
    """The authorization server to log in at, such as `https://login.example.com`.

    Empty: the one that the MCP server names."""
    client_metadata_url: str = ""
    """The https address of a document about the client, for authorization servers that take it
    instead of a registration."""
    scopes: tuple[str, ...] = ()
    """What to ask for. Empty: what the server asks for."""
    callback_port: int = 0
    """The port for the browser's answer. 0: any free port."""

    def map(self, change: Callable[[str], str]) -> OAuth:
        """The same settings with their texts changed."""
        return replace(
            self,
            client_id=change(self.client_id),
            client_secret=change(self.client_secret),
            issuer=change(self.issuer),
            scopes=tuple(change(scope) for scope in self.scopes),
        )

    def dump_state(self, to: References) -> dict[str, Any]:
        """Plain JSON, with a variable instead of the secret."""
        if self.client_secret:
            secret = to.hide(self.client_secret, "client_secret")
        else:
            secret = ""
        state = {
            "clientId": to.keep(self.client_id),
            "clientSecret": secret,
            "issuer": to.keep(self.issuer),
            "clientMetadataUrl": to.keep(self.client_metadata_url),
            "scopes": [to.keep(scope) for scope in self.scopes],
            "callbackPort": self.callback_port,
        }
        return {key: value for key, value in state.items() if value}


def oauth_from_state(server: str, state: Mapping[str, Any]) -> OAuth | None:
    """The settings of a saved server, or of an entry of an editor's file; None if it has none.

    Claude Code, VS Code and Gemini CLI write `oauth`, Cursor `auth`, each with names of its own.
    """
    entry: Any = state.get("oauth", state.get("auth"))
    if entry is None or entry is False:
        return None
    if entry is True or entry == "oauth":
        return OAuth()
    if not isinstance(entry, Mapping):
        raise ConfigurationError(
            f"`oauth` of MCP server `{server}` must be an object, found {type(entry).__name__}."
        )
    settings = cast("Mapping[str, Any]", entry)
    if settings.get("enabled") is False:
        return None
    scopes: Any = settings.get("scopes") or ()
    if isinstance(scopes, str):
        scopes = scopes.split()
    port = _first(settings, "callbackPort", "callback_port") or 0
    if type(port) is not int or not 0 <= port <= _HIGHEST_PORT:
        raise ConfigurationError(
            f"`callbackPort` of MCP server `{server}` must be a port, found {port!r}."
        )
    client_id = _first(settings, "clientId", "client_id", "CLIENT_ID")
    client_secret = _first(settings, "clientSecret", "client_secret", "CLIENT_SECRET")
    metadata_url = _first(settings, "clientMetadataUrl", "client_metadata_url")
    return OAuth(
        client_id=str(client_id or ""),
        client_secret=str(client_secret or ""),
        issuer=str(settings.get("issuer") or ""),
        client_metadata_url=str(metadata_url or ""),
        scopes=tuple(str(scope) for scope in cast("Iterable[Any]", scopes)),
        callback_port=port,
    )


def _first(settings: Mapping[str, Any], *names: str) -> Any:
    return next((settings[name] for name in names if name in settings), None)


def split_auth(auth: Any) -> tuple[OAuth | None, Any]:
    """`auth=` of a server as settings of a log-in, or as an `httpx2.Auth`."""
    if auth == "oauth":
        return OAuth(), None
    if isinstance(auth, OAuth):
        return auth, None
    # httpx2 takes a user with a password, and a function of the request, too.
    is_for_httpx = isinstance(auth, tuple) or callable(auth) or hasattr(auth, "auth_flow")
    if auth is not None and not is_for_httpx:
        raise ConfigurationError(
            '`auth` of an MCP server is "oauth", an `OAuth(...)` or an `httpx2.Auth`. '
            'A token goes into `headers`: {"Authorization": "Bearer ..."}.'
        )
    return None, cast("Any", auth)
