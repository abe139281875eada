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
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

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

if TYPE_CHECKING:
    from collections.abc import Callable

TransportKind = Literal["stdio", "http", "sse", "memory"]


class ServerSpec(Struct, frozen=True, kw_only=True):
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
    """Whether `${VAR}`, `${VAR:-default}` and `${env:VAR}` in all texts but the name are read from
    the environment on connecting. `${input:id}` is read from the inputs. `$${` stands for `${`."""

    def __repr__(self) -> str:
        if self.transport == "stdio":
            where = " ".join(public_words((self.command, *self.args)))
        else:
            where = public_url(self.url)
        text = self.transport
        if where:
            text += f": {where}"
        hidden = [*(f"env {name}" for name in self.env), *(f"header {key}" for key in self.headers)]
        if hidden:
            text += f"; {', '.join(hidden)}"
        return f"{self.name} ({text})"

    def expanded(
        self, environ: Mapping[str, str] | None = None, inputs: Mapping[str, str] | None = None
    ) -> ServerSpec:
        """The spec with its variables read.

        Raises `ConfigurationError` that names every variable and input that is not set.
        """
        if not self.expands:
            return self
        missing: list[str] = []
        read = _reader(os.environ if environ is None else environ, inputs or {}, missing)
        expanded = replace(
            self,
            command=read(self.command),
            args=tuple(read(arg) for arg in self.args),
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
        return expanded

    def environment(self) -> dict[str, str]:
        """The variables for the child process: those of `env_file`, and `env`."""
        if self.env_file is None:
            return self.env
        return {**_read_env_file(self.name, self.env_file), **self.env}

    def dump_state(self) -> dict[str, Any]:
        """Plain JSON. Each secret becomes `${NAME}`, a variable to set before loading."""
        if self.transport == "memory":
            raise ConfigurationError(
                f"MCP server `{self.name}` lives in this process and cannot be saved. "
                "Save a server with a command or an address."
            )
        state: dict[str, Any] = {"type": self.transport, "name": self.name}
        # The order matters: of two equal names of variables, the second gets a number.
        to = References(self.name, expands=self.expands)
        if self.transport == "stdio":
            env = {name: to.as_variable(value, name) for name, value in self.env.items()}
            state["command"], *state["args"] = hidden_words(
                (self.command, *self.args), to.hide, to.keep
            )
            if env:
                state["env"] = env
            if self.env_file:
                state["envFile"] = to.keep(self.env_file)
            if self.cwd:
                state["cwd"] = to.keep(self.cwd)
        else:
            headers = {key: to.hide(value, key) for key, value in self.headers.items()}
            if self.oauth is not None:
                oauth = self.oauth.dump_state(to)
            else:
                oauth = None
            state["url"] = hidden_url(self.url, to.hide, to.keep)
            if headers:
                state["headers"] = headers
            if oauth is not None:
                state["oauth"] = oauth or True
        return state


def command_spec(command: Any, args: Any, env: Any, cwd: Any, name: str | None) -> ServerSpec:
    """The spec of a server that a command starts. Raises `ConfigurationError` for other types."""
    server = name_given(name) or "?"
    command, words = _text(server, "command", command), _texts(server, "args", args)
    return ServerSpec(
        name=name or name_of_command(command, words),
        transport="stdio",
        command=command,
        args=words,
        env=_pairs(server, "env", env),
        cwd=None if cwd is None else _text(server, "cwd", cwd),
    )


def remote_spec(
    kind: TransportKind, url: Any, headers: Any, auth: Any, name: str | None
) -> tuple[ServerSpec, Any]:
    """The spec of a server at an address; and its `auth`, if that is an `httpx2.Auth`.

    Raises `ConfigurationError` for other types.
    """
    server = name_given(name) or "?"
    url = _text(server, "url", url)
    oauth, other_auth = split_auth(auth)
    spec = ServerSpec(
        name=name or name_of_url(url),
        transport=kind,
        url=url,
        headers=_pairs(server, "headers", headers),
        oauth=oauth,
    )
    return spec, other_auth


def spec_from_state(state: Mapping[str, Any], name: str = "") -> ServerSpec:
    """A spec from one entry of `mcpServers`, or from `dump_state`.

    Raises `ConfigurationError` for anything else.
    """
    name = str(state.get("name") or name)
    kind = _transport_of(state)
    command: Any = state.get("command")
    url: Any = state.get("url") or state.get("httpUrl") or state.get("serverUrl")
    if kind == "stdio" and isinstance(command, str):
        args = _texts(name, "args", state.get("args"))
        return ServerSpec(
            name=name or name_of_command(command, args),
            transport="stdio",
            command=command,
            args=args,
            env=_pairs(name, "env", state.get("env")),
            env_file=state.get("envFile"),
            cwd=state.get("cwd"),
            expands=True,
        )
    if kind in {"http", "sse"} and isinstance(url, str):
        return ServerSpec(
            name=name or name_of_url(url),
            transport=cast("TransportKind", kind),
            url=url,
            headers=_pairs(name, "headers", state.get("headers")),
            oauth=oauth_from_state(name, state),
            expands=True,
        )
    raise ConfigurationError(
        f"MCP server `{name or '?'}` needs a `command` or a `url`, and a `type` of stdio, http or "
        f"sse; found the keys {shown(sorted(map(str, state)))}."
    )


def _transport_of(state: Mapping[str, Any]) -> str:
    kind = state.get("type") or state.get("transport")
    if not kind:
        return "stdio" if "command" in state else "http"
    kind = str(kind).lower()
    if kind in {"streamable-http", "streamablehttp", "streamable_http"}:
        return "http"
    return kind


def name_given(name: Any) -> str:
    """The name that a user gave a server, or an empty text if none."""
    if name is None or isinstance(name, str):
        return name or ""
    raise ConfigurationError(f"The name of an MCP server is a text, found {shown(name)}.")


def _text(server: str, key: str, value: object) -> str:
    if isinstance(value, str | PurePath) and str(value):
        return str(value)
    raise ConfigurationError(
        f"`{key}` of MCP server `{server}` must be a text that is not empty, found {shown(value)}."
    )


def _texts(server: str, key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(str(text) for text in cast("Iterable[Any]", value))
    raise ConfigurationError(
        f"`{key}` of MCP server `{server}` must be a list of texts, found "
        f"{type(cast('object', value)).__name__}."
    )


def _pairs(server: str, key: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return {str(name): str(text) for name, text in pairs.items()}
    raise ConfigurationError(
        f"`{key}` of MCP server `{server}` must map names to texts, found {type(value).__name__}."
    )


# -- variables


def _reader(
    environ: Mapping[str, str], inputs: Mapping[str, str], missing: list[str]
) -> Callable[[str], str]:
    """A function that expands a text. References without a value are added to `missing`."""

    def read(reference: re.Match[str]) -> str:
        value = _value_of(reference, environ, inputs)
        if value is None:
            missing.append(reference[0])
            return ""
        return value

    return lambda text: expand(text, read)


def _value_of(
    reference: re.Match[str], environ: Mapping[str, str], inputs: Mapping[str, str]
) -> str | None:
    name: str | None = reference["name"]
    if name is None:
        kind, _, rest = reference["other"].partition(":")
        if kind == "env":
            return environ.get(rest)
        if kind == "input":
            return inputs.get(rest)
        return None
    default: str | None = reference["default"]
    value = environ.get(name) or default  # as in shells, an empty variable gets the default
    if value is None:
        return environ.get(name)
    # A reference inside another one is not read, and never sent unread.
    is_nested = value == default and "${" in value
    return None if is_nested else value


def _missing(server: str, references: list[str]) -> str:
    """The message about references without a value.

    They are never sent unread, as a credential for instance.
    """
    variables: list[str] = []
    inputs: list[str] = []
    others: list[str] = []
    for reference in references:
        name = reference.removeprefix("${").removesuffix("}").removeprefix("env:")
        if name.startswith("input:"):
            inputs.append(name.removeprefix("input:"))
        elif name.isidentifier():
            variables.append(name)
        else:
            others.append(reference)
    sentences: list[str] = []
    if variables:
        sentences.append(
            f"needs the environment variable {_listed(variables)}. "
            "Set it, or write a default: ${NAME:-...}."
        )
    if inputs:
        sentences.append(
            f"needs the input {_listed(inputs)}. "
            f"Pass it: `MCPServer.load(..., inputs={{{inputs[0]!r}: ...}})`."
        )
    if others:
        sentences.append(
            f"has {_listed(others)}, which ferrule does not know. "
            "Write the value, or `$${` for a plain `${`."
        )
    return " ".join(f"MCP server `{server}` {sentence}" for sentence in sentences)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*?)\s*")


def _read_env_file(server: str, path: str) -> dict[str, str]:
    """The variables of a file with lines `NAME=value`.

    Values may be in quotes, and `#` begins a comment.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The `envFile` of MCP server `{server}` cannot be read: {error}."
        ) from error
    variables: dict[str, str] = {}
    for line in lines:
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is not None and not line.lstrip().startswith("#"):
            variables[assignment[1]] = _unquoted(assignment[2])
    return variables


def _unquoted(value: str) -> str:
    quote = value[:1]
    if quote in {"'", '"'}:
        end = value.find(quote, 1)
        if end > 0:
            inside = value[1:end]
            if quote == "'":
                return inside
            return inside.replace("\\n", "\n")
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()


def split_words(text: str) -> list[str]:
    """A command line as words. On Windows a backslash belongs to a path, and escapes nothing."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    if sys.platform == "win32":
        lexer.escape = ""
    return list(lexer)


# -- names

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
    """A name from a command: the package or script that a runner runs, or the command itself.

    Never a word that may be secret.
    """
    runner = ""
    before = ""
    for word in (command, *args):
        is_value = takes_next(before)
        before = word
        if is_value or "=" in word or has_secret(word):
            continue
        if not runner:
            runner = PurePath(word).stem
            is_python = re.fullmatch(r"python3?\.\d+", PurePath(word).name)
            if runner not in _RUNNERS and not is_python:
                break
        elif not word.startswith("-") and word not in _WORDS_OF_RUNNERS:
            if word.startswith("@"):
                package = word
            else:
                package = PurePath(word).stem
            return _safe_name(package.rsplit("/", 1)[-1].split("@")[0] or runner)
    return _safe_name(runner)


def name_of_url(url: str) -> str:
    """A name from an address: the host, and the port unless it is the usual one."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as half of an IPv6 address, which is refused later
        return "server"
    host = parts.hostname or "server"
    # Not `parts.port`, which raises for a port that is not a number.
    _, _, port = parts.netloc.rpartition("@")[2].rpartition("]")[2].partition(":")
    if port and port != _USUAL_PORTS.get(parts.scheme):
        host += f"-{port}"
    return _safe_name(host)


def _safe_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "server"
