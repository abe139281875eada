"""`OAuth`: how a client logs in to a server, as a plain value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError
from ferrule.record import Record, field, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.mcp_bridge.transport.redact import References

_CLIENT_ID, _CLIENT_SECRET = (
    ("clientId", "client_id", "CLIENT_ID"),
    ("clientSecret", "client_secret", "CLIENT_SECRET"),
)
_ABOUT = ("clientMetadataUrl", "client_metadata_url")
_PORT = ("callbackPort", "callback_port")
_HIGHEST_PORT = 65_535


class OAuth(Record, kw_only=True):
    """A log-in by OAuth: `mcp("https://...", auth=OAuth(client_id="..."))`. `auth="oauth"` is `OAuth()`.

    Without `client_id`, the client registers itself with the authorization server when a person
    logs in.
    """

    client_id: str = ""
    """The id of a client that is registered already, with the redirect address `http://localhost:PORT/callback`."""
    client_secret: str = field(default="", repr=False)
    """Its secret, if it has one."""
    client_metadata_url: str = ""
    """The https address of a document about the client, for authorization servers that take it instead of a registration."""
    scopes: tuple[str, ...] = ()
    """What to ask for. Empty: what the server asks for."""
    callback_port: int = 0
    """The port for the browser's answer. 0: any free port."""

    def map(self, change: Callable[[str], str]) -> OAuth:
        """The same settings with their texts changed."""
        scopes = tuple(change(each) for each in self.scopes)
        return replace(
            self,
            client_id=change(self.client_id),
            client_secret=change(self.client_secret),
            scopes=scopes,
        )

    def dump_state(self, to: References) -> dict[str, Any]:
        """Plain JSON, with a variable instead of the secret."""
        found = {
            "clientId": to.keep(self.client_id),
            "clientSecret": to.hide(self.client_secret, "client_secret")
            if self.client_secret
            else "",
            "clientMetadataUrl": to.keep(self.client_metadata_url),
            "scopes": [to.keep(each) for each in self.scopes],
            "callbackPort": self.callback_port,
        }
        return {key: value for key, value in found.items() if value}


def oauth_from_state(server: str, state: Mapping[str, Any]) -> OAuth | None:
    """The settings of a saved server, or of an entry of an editor's file; None if it has none.

    Claude Code, VS Code and Gemini CLI write `oauth`, Cursor `auth`, each with names of its own.
    """
    given: Any = state.get("oauth", state.get("auth"))
    if given is None or given is False:
        return None
    if given is True or given == "oauth":
        return OAuth()
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"`oauth` of MCP server `{server}` must be an object, found {type(given).__name__}.",
        )
    found = cast("Mapping[str, Any]", given)
    if found.get("enabled") is False:
        return None
    scopes = found.get("scopes") or ()
    listed = (
        scopes.split()
        if isinstance(scopes, str)
        else [str(each) for each in cast("Iterable[Any]", scopes)]
    )
    port = _first(found, _PORT) or 0
    if type(port) is not int or not 0 <= port <= _HIGHEST_PORT:
        raise ConfigurationError(
            f"`callbackPort` of MCP server `{server}` must be a port, found {port!r}.",
        )
    client_id, secret, about = (
        str(_first(found, names) or "") for names in (_CLIENT_ID, _CLIENT_SECRET, _ABOUT)
    )
    return OAuth(
        client_id=client_id,
        client_secret=secret,
        client_metadata_url=about,
        scopes=tuple(listed),
        callback_port=port,
    )


def _first(found: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((found[each] for each in names if each in found), None)


def split_auth(auth: Any) -> tuple[OAuth | None, Any]:
    """`auth=` of a server as settings of a log-in, or as an `httpx2.Auth`."""
    if auth == "oauth":
        return OAuth(), None
    if isinstance(auth, OAuth):
        return auth, None
    if isinstance(auth, str | Mapping):
        msg = '`auth` of an MCP server is "oauth", an `OAuth(...)` or an `httpx2.Auth`. A token goes into `headers`: '
        raise ConfigurationError(msg + '{"Authorization": "Bearer ..."}.')
    return None, auth
