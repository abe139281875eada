"""Which MCP server is meant, as a plain value without a connection.

A `ServerSpec` comes from a command, an address, a saved mapping or an entry of an `mcpServers`
file. It compares by value and is saved as JSON. Secrets are never shown or saved: instead of a
secret, the saved form names the variable to read it from.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from ferrule.errors import ConfigurationError, shown
from ferrule.mcp_bridge.login.oauth import OAuth, oauth_from_state, split_auth
from ferrule.mcp_bridge.redact import (
    References,
    expand,
    has_secret,
    hidden_url,
    hidden_words,
    public_url,
    public_words,
    takes_next,
)
from ferrule.record import Record, field, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TransportKind = Literal["stdio", "http", "sse", "memory"]


class ServerSpec(Record, kw_only=True):
    """How to reach one server. Compares by every field; its `repr` shows no secrets."""

    name: str
    transport: TransportKind
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    env_file: str | None = None
    """A file of lines `NAME=value`, read on connecting; `env` overrides it."""
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    oauth: OAuth | None = None
    """How a person logs in, if the server wants it."""
    expands: bool = False
    """Whether `${VAR}`, `${VAR:-default}` and `${env:VAR}` in all texts but the name are read from the environment on connecting.

    `${input:id}` is read from the inputs. `$${` stands for `${`.
    """

    def __repr__(self) -> str:
        what = (
            " ".join(public_words((self.command, *self.args)))
            if self.transport == "stdio"
            else public_url(self.url)
        )
        hidden = [*(f"env {key}" for key in self.env), *(f"header {key}" for key in self.headers)]
        return f"{self.name} ({self.transport}{f': {what}' if what else ''}{'; ' + ', '.join(hidden) if hidden else ''})"

    def expanded(
        self,
        environ: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> ServerSpec:
        """The spec with its variables read. Raises `ConfigurationError` naming every variable and input that is not set."""
        if not self.expands:
            return self
        missing: list[str] = []
        read = _reader(os.environ if environ is None else environ, inputs or {}, missing)
        found = replace(
            self,
            command=read(self.command),
            args=tuple(read(each) for each in self.args),
            env={key: read(value) for key, value in self.env.items()},
            env_file=None if self.env_file is None else read(self.env_file),
            cwd=None if self.cwd is None else read(self.cwd),
            url=read(self.url),
            headers={key: read(value) for key, value in self.headers.items()},
            oauth=None if self.oauth is None else self.oauth.map(read),
            expands=False,
        )
        if missing:
            raise ConfigurationError(_missing(self.name, list(dict.fromkeys(missing))))
        return found

    def environment(self) -> dict[str, str]:
        """The variables for the child process: those of `env_file`, and `env`."""
        return (
            self.env
            if self.env_file is None
            else {**_read_env_file(self.name, self.env_file), **self.env}
        )

    def dump_state(self) -> dict[str, Any]:
        """Plain JSON. Each secret becomes `${NAME}`, a variable to set before loading."""
        if self.transport == "memory":
            msg = f"MCP server `{self.name}` lives in this process and cannot be saved. Save a server with a command or an address."
            raise ConfigurationError(msg)
        to = References(self.name, expands=self.expands)
        head: dict[str, Any] = {"type": self.transport, "name": self.name}
        if self.transport != "stdio":
            headers = {key: to.hide(value, key) for key, value in self.headers.items()}
            oauth = {"oauth": self.oauth.dump_state(to) or True} if self.oauth is not None else {}
            return {
                **head,
                "url": hidden_url(self.url, to.hide, to.keep),
                **({"headers": headers} if headers else {}),
                **oauth,
            }
        env = {key: to.as_variable(value, key) for key, value in self.env.items()}
        command, *args = hidden_words((self.command, *self.args), to.hide, to.keep)
        return {
            **head,
            "command": command,
            "args": args,
            **({"env": env} if env else {}),
            **({"envFile": to.keep(self.env_file)} if self.env_file else {}),
            **({"cwd": to.keep(self.cwd)} if self.cwd else {}),
        }


def remote_spec(
    kind: TransportKind,
    url: str,
    headers: Mapping[str, str] | None,
    auth: Any,
    name: str | None,
) -> tuple[ServerSpec, Any]:
    """The spec of a server at an address; and its `auth`, if that is an `httpx2.Auth`."""
    oauth, other = split_auth(auth)
    return ServerSpec(
        name=name or name_of_url(url),
        transport=kind,
        url=url,
        headers=dict(headers or {}),
        oauth=oauth,
    ), other


def spec_from_state(state: Mapping[str, Any], name: str = "") -> ServerSpec:
    """A spec from one entry of `mcpServers`, or from `dump_state`. Raises `ConfigurationError` for anything else."""
    own = str(state.get("name") or name)
    kind = str(
        state.get("type") or state.get("transport") or ("stdio" if "command" in state else "http"),
    ).lower()
    kind = "http" if kind in {"streamable-http", "streamablehttp", "streamable_http"} else kind
    if kind == "stdio" and isinstance(state.get("command"), str):
        command, args = state["command"], tuple(_texts(own, "args", state.get("args")))
        return ServerSpec(
            name=own or name_of_command(command, args),
            transport="stdio",
            command=command,
            args=args,
            env=_pairs(own, "env", state.get("env")),
            env_file=state.get("envFile"),
            cwd=state.get("cwd"),
            expands=True,
        )
    if kind in {"http", "sse"} and isinstance(
        url := state.get("url") or state.get("httpUrl") or state.get("serverUrl"),
        str,
    ):
        return ServerSpec(
            name=own or name_of_url(url),
            transport=cast("TransportKind", kind),
            url=url,
            headers=_pairs(own, "headers", state.get("headers")),
            oauth=oauth_from_state(own, state),
            expands=True,
        )
    keys = shown(sorted(map(str, state)))
    msg = f"MCP server `{own or '?'}` needs a `command` or a `url`, and a `type` of stdio, http or sse; found the keys {keys}."
    raise ConfigurationError(msg)


def _texts(name: str, what: str, given: Any) -> list[str]:
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return [str(each) for each in cast("Iterable[Any]", given)]
    raise ConfigurationError(
        f"`{what}` of MCP server `{name}` must be a list of texts, found {type(given).__name__}.",
    )


def _pairs(name: str, what: str, given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, dict):
        return {str(key): str(value) for key, value in cast("dict[Any, Any]", given).items()}
    raise ConfigurationError(
        f"`{what}` of MCP server `{name}` must map names to texts, found {type(given).__name__}.",
    )


def _reader(
    environ: Mapping[str, str],
    inputs: Mapping[str, str],
    missing: list[str],
) -> Callable[[str], str]:
    def one(found: re.Match[str]) -> str:
        name: str | None = found["name"]
        if name is None:
            kind, _, rest = found["other"].partition(":")
            value = (
                environ.get(rest)
                if kind == "env"
                else inputs.get(rest)
                if kind == "input"
                else None
            )
        else:
            value = environ.get(name) or found["default"]
            value = "" if value is None and name in environ else value
        if value is None or (
            name is not None and "${" in value and value == found["default"]
        ):  # one reference inside another
            missing.append(found[0])
        return value or ""

    return lambda text: expand(text, one)


def _missing(server: str, references: list[str]) -> str:
    """The message about references that stand for nothing: never are they sent unread, as a credential for instance."""
    parts: list[str] = []
    names = [each[2:-1].removeprefix("env:") for each in references]
    variables = [each for each in names if each.isidentifier()]
    inputs = [each.removeprefix("input:") for each in names if each.startswith("input:")]
    others = [
        each
        for each, name in zip(references, names, strict=True)
        if name not in variables and not name.startswith("input:")
    ]
    if variables:
        listed = ", ".join(f"`{each}`" for each in variables)
        parts.append(
            f"needs the environment variable {listed}. Set it, or write a default: ${{NAME:-...}}.",
        )
    if inputs:
        listed = ", ".join(f"`{each}`" for each in inputs)
        parts.append(
            f"needs the input {listed}. Pass it: `MCPServer.load(..., inputs={{{inputs[0]!r}: ...}})`.",
        )
    if others:
        listed = ", ".join(f"`{each}`" for each in others)
        parts.append(
            f"has {listed}, which ferrule does not know. Write the value, or `$${{` for a plain `${{`.",
        )
    return " ".join(f"MCP server `{server}` {each}" for each in parts)


_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*?)\s*")


def _read_env_file(server: str, place: str) -> dict[str, str]:
    """The variables of a file with lines `NAME=value`; values may be in quotes, and `#` begins a comment."""
    try:
        lines = Path(place).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The `envFile` of MCP server `{server}` cannot be read: {error}.",
        ) from error
    found = [
        match
        for line in lines
        if not line.lstrip().startswith("#") and (match := _ASSIGNMENT.fullmatch(line)) is not None
    ]
    return {match[1]: _unquoted(match[2]) for match in found}


def _unquoted(value: str) -> str:
    if value[:1] in {"'", '"'} and (end := value.find(value[0], 1)) > 0:
        inside = value[1:end]
        return inside if value[0] == "'" else inside.replace("\\n", "\n")
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()


def split_words(text: str) -> list[str]:
    """A command line as words. On Windows a backslash belongs to a path, and escapes nothing."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    if sys.platform == "win32":
        lexer.escape = ""
    return list(lexer)


# -- names
# --------------------------------------------------------------------------------------------------------

_RUNNERS = {
    "npx",
    "uvx",
    "bunx",
    "pnpm",
    "node",
    "python",
    "python3",
    "uv",
    "deno",
    "docker",
    "env",
}
_USUAL_PORTS = {"http": "80", "https": "443"}
_WORDS_OF_RUNNERS = {"run", "tool", "dlx", "exec", "--"}


def name_of_command(command: str, args: Iterable[str]) -> str:
    """A name from a command: the package or script that a runner runs, or the command itself. Never a word that may be secret."""
    before, own = "", ""
    for each in (command, *args):
        is_value, before = takes_next(before), each
        if (
            is_value
            or "=" in each
            or has_secret(each)
            or (own and (each.startswith("-") or each in _WORDS_OF_RUNNERS))
        ):
            continue
        if own:
            package = each if each.startswith("@") else PurePath(each).stem
            return _safe_name(package.rsplit("/", 1)[-1].split("@")[0] or own)
        own = PurePath(each).stem
        if own not in _RUNNERS and not re.fullmatch(r"python3?\.\d+", PurePath(each).name):
            break
    return _safe_name(own)


def name_of_url(url: str) -> str:
    """A name from an address: the host, and the port unless it is the usual one."""
    parts = urlsplit(url)
    _, _, port = parts.netloc.rpartition("@")[2].rpartition("]")[2].partition(":")
    return _safe_name(
        f"{parts.hostname or 'server'}{f'-{port}' if port and port != _USUAL_PORTS.get(parts.scheme) else ''}",
    )


def _safe_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "server"
