"""Programs to JSON and back: signatures, demos, settings, tool definitions and MCP servers; never functions, models or keys.

Tools of MCP servers are saved with the address or command of their server, without secrets. A
loaded program has the same tools without a connection: a server is connected at the first call, and
its tools are compared with the state by the rule that `pins=` names.
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
    program: _HasPredictors,
    state: Mapping[str, Any],
    *,
    tools: Iterable[Any] = (),
) -> None:
    """Load a dumped state: completely, or not at all if it raises."""
    saved = _check(state)["predictors"]
    predictors = dict(program.named_predictors())
    if predictors.keys() != saved.keys():
        msg = f"The state belongs to another program: it has predictors {sorted(saved)}, this program has {sorted(predictors)}."
        raise ConfigurationError(msg)
    given = {tool.name: tool for tool in map(Tool.of, tools)}
    with reading("The state of a program", ConfigurationError):
        toolboxes = {
            name: _load_tools(name, saved[name], predictor, given)
            for name, predictor in predictors.items()
        }
        signatures = {
            name: predictor.signature.load_state(saved[name]["signature"])
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
    Path(path).write_bytes(
        f"{text}\n".encode(errors="backslashreplace"),
    )  # half a surrogate pair, as JSON escapes it


def read_program(program: _HasPredictors, path: str | Path, *, tools: Iterable[Any] = ()) -> None:
    """Load the state from a file."""
    try:
        state = parse_json(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{Path(path).name} is not a saved program: {error}.") from error
    load_state(program, state, tools=tools)


_SEARCH_TOOL = "search_tools"
"""The tool that `Shelf.search_tools` makes."""


class _Saved(TypedDict):
    signature: dict[str, Any]
    demos: list[dict[str, Any]]
    config: dict[str, Any]
    tools: list[dict[str, Any]]
    servers: NotRequired[list[dict[str, Any]]]


class _State(TypedDict):
    ferrule: int
    predictors: dict[str, _Saved]


def _check(state: Any) -> _State:
    try:
        found = TypeAdapter(_State).validate_python(state)
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'the whole'}: {each['msg']}"
            for each in error.errors()[:3]
        )
        raise ConfigurationError(
            f"This is not the state of a program ({where}): found {shown(state)}.",
        ) from error
    if found["ferrule"] != _VERSION:
        msg = f"This state has version {found['ferrule']!r}; this ferrule reads version {_VERSION}. Save the program again."
        raise ConfigurationError(msg)
    return found


def _dump(predictor: Predictor) -> dict[str, Any]:
    check_saved(predictor.config)  # the config may have changed since the constructor checked it
    return {
        "signature": predictor.signature.dump_state(),
        "demos": jsonable(marked_parts([dict(demo) for demo in predictor.demos])),
        "config": jsonable(predictor.config),
        "tools": [tool.dump_state() for tool in predictor.tools.values()],
        **({"servers": servers} if (servers := _dump_servers(predictor.toolbox)) else {}),
    }


def _dump_servers(toolbox: Toolbox) -> list[dict[str, Any]]:
    """The servers of the tools, except those in this process, which no other process can reach."""
    callers = (tool.func.caller for tool in toolbox if isinstance(tool.func, RemoteCall))
    found = {
        id(each): each
        for each in (*toolbox.servers, *filter(is_server, callers))
        if each.spec.transport != "memory"
    }
    whole = {id(each) for each in toolbox.servers}
    return [{**each.dump_state(), "whole": id(each) in whole} for each in found.values()]


def _load_tools(
    where: str,
    saved: _Saved,
    predictor: Predictor,
    given: Mapping[str, Tool],
) -> Toolbox:
    servers = _load_servers(saved.get("servers", ()), predictor.toolbox)
    remote = _load_remote_tools(saved["tools"], servers)
    if servers and isinstance(predictor.toolbox, LiveToolbox) and predictor.toolbox.has_shelf:
        return (
            predictor.toolbox
        )  # only some of the tools are saved: the servers list the others when they are needed
    own = (
        predictor.toolbox.local()
        if isinstance(predictor.toolbox, LiveToolbox) and servers
        else predictor.tools
    )
    at_hand = {**own, **remote, **given}
    found: list[Tool] = []
    missing: list[Mapping[str, Any]] = []
    for state in saved["tools"]:
        name = str(state.get("name"))
        tool = at_hand.get(name)
        if tool is None:
            missing.append(state)
            continue
        now = tool.dump_state()
        keys = {*now, *state} - (
            {"require_confirmation"} if name in remote else set()
        )  # for a server's tool, the server's rules decide
        changed = sorted(
            key for key in keys if json_text(now.get(key)) != json_text(state.get(key))
        )
        if changed:
            warnings.warn(
                f"tool `{name}` of `{where}` changed since the program was saved: {', '.join(changed)}",
                UserWarning,
                stacklevel=4,
            )
        found.append(tool)
    if missing:
        raise ToolDefinitionError(
            f"`{where}` was saved with tools that are missing now. {' '.join(_what_is_missing(missing))}",
        )
    if servers:
        return _live_toolbox(found, servers, predictor.toolbox)
    before = predictor.toolbox
    return Toolbox(
        found,
        shelf=before.shelf or (),
        keep_turns=before.keep_turns,
        concurrent=before.concurrent,
    )


def _what_is_missing(states: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Advice for missing tools: a tool search, and the tools of a server, cannot be passed one by one."""
    by_server: dict[str, list[str]] = {}
    for state in states:
        by_server.setdefault(str(state.get("mcp_server") or ""), []).append(str(state.get("name")))
    own = by_server.pop("", [])
    if _SEARCH_TOOL in own:
        own.remove(_SEARCH_TOOL)
        yield 'It had a tool search: make it with a toolbox that searches, `Toolbox(tools, search="bm25")`, and load it then.'
    for server, names in by_server.items():
        yield f"The tools {', '.join(names)} are of the MCP server `{server}`: make the program with this server, and load it then."
    if own:
        yield f"Pass them: load(path, tools=[{', '.join(own)}])."


def _load_servers(states: Iterable[Mapping[str, Any]], toolbox: Toolbox) -> _Servers:
    """The program's own servers if it has them, otherwise new ones. Raises `ConfigurationError` for a missing environment variable."""
    own = {each.name: each for each in toolbox.servers}
    found: _Servers = {}
    for state in states:
        if state["name"] in own:
            found[state["name"]] = (own[state["name"]], True)
        else:
            from ferrule.mcp_bridge.client.mcp_server import (
                MCPServer,
            )  # late: few programs have servers

            found[state["name"]] = (MCPServer.from_state(state), bool(state.get("whole")))
    return found


def _load_remote_tools(states: Iterable[Mapping[str, Any]], servers: _Servers) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for state in states:
        if state.get("mcp") is not None and state.get("mcp_server") in servers:
            server, _ = servers[state["mcp_server"]]
            name = state["name"]
            found[name] = Tool(
                **mcp_tool_options(
                    state["mcp"],
                    caller=server,
                    server=server.name,
                    name=name,
                    rules=server.options.rules,
                ),
            )
    return found


def _live_toolbox(tools: Sequence[Tool], servers: _Servers, before: Toolbox) -> Toolbox:
    """The saved tools, in a toolbox that follows the changes of servers given whole."""
    toolbox = Toolbox(tools, concurrent=before.concurrent)
    if isinstance(before, LiveToolbox):
        return before.fill(toolbox)
    whole = [server for server, is_whole in servers.values() if is_whole]
    own = [
        tool
        for tool in tools
        if not (
            isinstance(tool.func, RemoteCall) and any(tool.func.caller is each for each in whole)
        )
    ]
    return (
        LiveToolbox([*whole, *own], concurrent=before.concurrent).fill(toolbox)
        if whole
        else toolbox
    )
