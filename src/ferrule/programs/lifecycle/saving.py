"""Programs to JSON and back.

A state has signatures, demos, settings, tool definitions and MCP servers; never functions, models
or keys. Tools of MCP servers are saved with the address or command of their server, without
secrets. A loaded program has the same tools without a connection: a server is connected at the
first call, and its tools are compared with the state by the rule that `pins=` names.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, Protocol

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.stored import parse_json, reading
from ferrule.errors import ConfigurationError, ToolDefinitionError, shown
from ferrule.models.setting_names import check_saved
from ferrule.tools.mcp.tool import RemoteCall, mcp_tool_options
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import LiveToolbox, Toolbox, is_server
from ferrule.values.content.convert import marked_parts, read_marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ferrule.values.signatures.signature import Signature

_VERSION = 1
_Servers = dict[str, tuple[Any, bool]]
"""MCP servers by name, each with whether the whole server was given, not single tools of it."""


class Predictor(Protocol):
    """The attributes of `Predict` that are saved."""

    signature: type[Signature]
    demos: list[Any]
    config: dict[str, Any]
    lm: Any
    toolbox: Toolbox

    @property
    def program_signature(self) -> type[Signature]:
        """The signature that is saved."""
        ...

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name."""
        ...


class _HasPredictors(Protocol):
    def named_predictors(self) -> list[tuple[str, Predictor]]: ...


def dump_state(program: _HasPredictors) -> dict[str, Any]:
    """The state of a program: `{"ferrule": version, "predictors": {path: state}}`."""
    return {
        "ferrule": _VERSION,
        "predictors": {name: _dump(predictor) for name, predictor in program.named_predictors()},
    }


def load_state(
    program: _HasPredictors, state: Mapping[str, Any], *, tools: Iterable[Any] = ()
) -> None:
    """Load a dumped state: completely, or not at all if it raises."""
    saved = _check(state)["predictors"]
    predictors = dict(program.named_predictors())
    if predictors.keys() != saved.keys():
        raise ConfigurationError(
            f"The state belongs to another program: it has predictors {sorted(saved)}, "
            f"this program has {sorted(predictors)}."
        )
    passed = {tool.name: tool for tool in map(Tool.of, tools)}
    with reading("The state of a program", ConfigurationError):
        toolboxes = {
            name: _load_tools(name, saved[name], predictor, passed)
            for name, predictor in predictors.items()
        }
        signatures = {
            name: predictor.program_signature.load_state(saved[name]["signature"])
            for name, predictor in predictors.items()
        }
        demos = {name: read_marked(saved[name]["demos"]) for name in predictors}
    for name, predictor in predictors.items():
        predictor.signature = signatures[name]
        predictor.demos = demos[name]
        predictor.config = dict(saved[name]["config"])
        if saved[name]["tools"]:
            predictor.toolbox = toolboxes[name]


def write_program(program: _HasPredictors, path: str | Path) -> None:
    """Write the state to a file, as indented JSON."""
    text = json.dumps(dump_state(program), indent=1, ensure_ascii=False)
    # Half a surrogate pair is written as JSON escapes it.
    Path(path).write_bytes(f"{text}\n".encode(errors="backslashreplace"))


def read_program(program: _HasPredictors, path: str | Path, *, tools: Iterable[Any] = ()) -> None:
    """Load the state from a file."""
    load_state(program, read_file(path), tools=tools)


def read_file(path: str | Path) -> Any:
    """The JSON data of a saved program. Raises `ConfigurationError` for another file."""
    try:
        return parse_json(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{Path(path).name} is not a saved program: {error}.") from error


_SEARCH_TOOL = "search_tools"
"""The tool that `Shelf.search_tools` makes."""


class _Saved(TypedDict):
    signature: dict[str, Any]
    demos: list[dict[str, Any]]
    config: dict[str, Any]
    tools: list[dict[str, Any]]
    servers: NotRequired[list[dict[str, Any]]]
    provider_tools: NotRequired[list[dict[str, Any]]]


class _State(TypedDict):
    ferrule: int
    predictors: dict[str, _Saved]


def _check(state: Any) -> _State:
    try:
        checked = TypeAdapter(_State).validate_python(state)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {problem['msg']}"
            for problem in error.errors()[:3]
        ]
        raise ConfigurationError(
            f"This is not the state of a program ({'; '.join(problems)}): found {shown(state)}."
        ) from error
    if checked["ferrule"] != _VERSION:
        raise ConfigurationError(
            f"This state has version {checked['ferrule']!r}; this ferrule reads version "
            f"{_VERSION}. Save the program again."
        )
    return checked


def _dump(predictor: Predictor) -> dict[str, Any]:
    check_saved(predictor.config)  # the config may have changed since the constructor checked it
    state: dict[str, Any] = {
        "signature": predictor.program_signature.dump_state(),
        "demos": jsonable(marked_parts([dict(demo) for demo in predictor.demos])),
        "config": jsonable(predictor.config),
        "tools": [tool.dump_state() for tool in predictor.tools.values()],
    }
    provider_tools = [tool.declaration() for tool in predictor.toolbox.provider_tools]
    if provider_tools:
        state["provider_tools"] = jsonable(provider_tools)
    servers = _dump_servers(predictor.toolbox)
    if servers:
        state["servers"] = servers
    return state


def _dump_servers(toolbox: Toolbox) -> list[dict[str, Any]]:
    """The servers of the tools, except those in this process, which no other process can reach."""
    callers = [tool.func.caller for tool in toolbox if isinstance(tool.func, RemoteCall)]
    servers: dict[int, Any] = {}
    for server in (*toolbox.servers, *filter(is_server, callers)):
        if server.spec.transport != "memory":
            servers[id(server)] = server
    whole = {id(server) for server in toolbox.servers}
    return [{**server.dump_state(), "whole": id(server) in whole} for server in servers.values()]


def _load_tools(
    path: str, saved: _Saved, predictor: Predictor, passed: Mapping[str, Tool]
) -> Toolbox:
    """The toolbox of a predictor: the saved tools, found by name among the tools at hand."""
    _check_provider_tools(path, saved.get("provider_tools", ()), predictor.toolbox)
    servers = _load_servers(saved.get("servers", ()), predictor.toolbox)
    remote = _load_remote_tools(saved["tools"], servers)
    own: Mapping[str, Tool]
    if servers and isinstance(predictor.toolbox, LiveToolbox):
        if predictor.toolbox.has_shelf:
            # Only some of the tools are saved: the servers list the others when they are needed.
            return predictor.toolbox
        own = predictor.toolbox.local()
    else:
        own = predictor.tools  # not before: this connects to MCP servers
    at_hand = {**own, **remote, **passed}
    tools: list[Tool] = []
    missing: list[Mapping[str, Any]] = []
    for state in saved["tools"]:
        name = str(state.get("name"))
        tool = at_hand.get(name)
        if tool is None:
            missing.append(state)
            continue
        changed = _changed_keys(tool, state, is_remote=name in remote)
        if changed:
            warnings.warn(
                f"tool `{name}` of `{path}` changed since the program was saved: "
                f"{', '.join(changed)}",
                UserWarning,
                stacklevel=4,
            )
        tools.append(tool)
    if missing:
        raise ToolDefinitionError(
            f"`{path}` was saved with tools that are missing now. "
            f"{' '.join(_what_is_missing(missing))}"
        )
    if servers:
        return _live_toolbox(tools, servers, predictor.toolbox)
    before = predictor.toolbox
    return Toolbox([*tools, *before.provider_tools], shelf=before.shelf or (), **before.options)


def _check_provider_tools(path: str, saved: Iterable[Mapping[str, Any]], toolbox: Toolbox) -> None:
    """Raise if a tool of the model's provider is missing; its options may have changed."""
    missing = {str(state.get("kind")) for state in saved}
    missing -= {tool.kind for tool in toolbox.provider_tools}
    if missing:
        raise ToolDefinitionError(
            f"`{path}` was saved with tools that the model's provider runs and that are missing "
            f"now: {', '.join(sorted(missing))}. Make the program with them, and load it then."
        )


def _changed_keys(tool: Tool, state: Mapping[str, Any], *, is_remote: bool) -> list[str]:
    """The parts of a tool's definition that differ from its saved state."""
    now = tool.dump_state()
    keys = now.keys() | state.keys()
    if is_remote:
        keys -= {"require_confirmation"}  # the server's rules decide
    return sorted(key for key in keys if json_text(now.get(key)) != json_text(state.get(key)))


def _what_is_missing(states: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Advice for missing tools.

    A tool search, and the tools of a server, cannot be passed one by one.
    """
    by_server: dict[str, list[str]] = {}
    for state in states:
        by_server.setdefault(str(state.get("mcp_server") or ""), []).append(str(state.get("name")))
    own = by_server.pop("", [])
    if _SEARCH_TOOL in own:
        own.remove(_SEARCH_TOOL)
        yield (
            "It had a tool search: make it with a toolbox that searches, "
            '`Toolbox(tools, search="bm25")`, and load it then.'
        )
    for server, names in by_server.items():
        yield (
            f"The tools {', '.join(names)} are of the MCP server `{server}`: "
            "make the program with this server, and load it then."
        )
    if own:
        yield f"Pass them: load(path, tools=[{', '.join(own)}])."


def _load_servers(states: Iterable[Mapping[str, Any]], toolbox: Toolbox) -> _Servers:
    """The program's own servers if it has them, otherwise new ones.

    Raises `ConfigurationError` for a missing environment variable.
    """
    own = {server.name: server for server in toolbox.servers}
    servers: _Servers = {}
    for state in states:
        name = state["name"]
        if name in own:
            servers[name] = (own[name], True)
        else:
            # Late: few programs have servers.
            from ferrule.mcp_bridge.client.mcp_server import MCPServer

            servers[name] = (MCPServer.from_state(state), bool(state.get("whole")))
    return servers


def _load_remote_tools(states: Iterable[Mapping[str, Any]], servers: _Servers) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for state in states:
        if state.get("mcp") is None or state.get("mcp_server") not in servers:
            continue
        server, _ = servers[state["mcp_server"]]
        name = state["name"]
        options = mcp_tool_options(
            state["mcp"], caller=server, server=server.name, name=name, rules=server.options.rules
        )
        tools[name] = Tool(**options)
    return tools


def _live_toolbox(tools: Sequence[Tool], servers: _Servers, before: Toolbox) -> Toolbox:
    """The saved tools, in a toolbox that follows the changes of servers given whole."""
    toolbox = Toolbox([*tools, *before.provider_tools], **before.options)
    if isinstance(before, LiveToolbox):
        return before.fill(toolbox)
    whole = [server for server, is_whole in servers.values() if is_whole]
    if not whole:
        return toolbox
    own = [tool for tool in tools if not _is_of(tool, whole)]
    entries = [*whole, *own, *before.provider_tools]
    return LiveToolbox(entries, **before.options).fill(toolbox)


def _is_of(tool: Tool, servers: Sequence[Any]) -> bool:
    if not isinstance(tool.func, RemoteCall):
        return False
    caller = tool.func.caller
    return any(caller is server for server in servers)
