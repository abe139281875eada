"""Programs to JSON and back: signatures, demos, settings and what tools say of themselves; never functions, models or keys."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, Protocol

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ferrule.errors import ConfigurationError, ToolDefinitionError, shown
from ferrule.models.providers import check_saved
from ferrule.programs.lifecycle.saved_servers import bound_servers, bound_tools, dumped_servers, live_again
from ferrule.tools.toolbox import LiveToolbox, Toolbox, to_tool
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.encoding.encode import json_text, jsonable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.tools.tool import Tool
    from ferrule.values.signatures.signature import Signature

VERSION = 1


class Predictor(Protocol):
    """What is saved: all of `Predict` that is its own."""

    signature: type[Signature]
    demos: list[Any]
    config: dict[str, Any]
    lm: Any
    toolbox: Toolbox

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        ...


class Program(Protocol):
    """What has predictors inside."""

    def named_predictors(self) -> list[tuple[str, Predictor]]:
        """Every predictor, with its path."""
        ...


def dump_state(module: Program) -> dict[str, Any]:
    """`{"ferrule": version, "predictors": {path: state}}`."""
    return {"ferrule": VERSION, "predictors": {name: _dumped(predictor) for name, predictor in module.named_predictors()}}


def load_state(module: Program, state: Mapping[str, Any], *, tools: Iterable[Any] = ()) -> None:
    """Take a dumped state over, all or nothing."""
    saved = _checked(state)["predictors"]
    predictors = dict(module.named_predictors())
    if predictors.keys() != saved.keys():
        msg = f"The state is of another program: it has predictors {sorted(saved)}, this program has {sorted(predictors)}."
        raise ConfigurationError(msg)
    given = {tool.name: tool for tool in map(to_tool, tools)}
    bound = {name: _bound(name, saved[name], predictor, given) for name, predictor in predictors.items()}
    signatures = {name: predictor.signature.load_state(saved[name]["signature"]) for name, predictor in predictors.items()}
    for name, predictor in predictors.items():
        predictor.signature = signatures[name]
        predictor.demos = read_marked(saved[name]["demos"])
        predictor.config = dict(saved[name]["config"])
        if saved[name]["tools"]:
            predictor.toolbox = bound[name]


def save(module: Program, path: str | Path) -> None:
    """Write the state, as JSON that people can read."""
    Path(path).write_text(json.dumps(dump_state(module), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(module: Program, path: str | Path, *, tools: Iterable[Any] = ()) -> None:
    """Read a state from a file."""
    try:
        state = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{Path(path).name} is no saved program: {error}."
        raise ConfigurationError(msg) from error
    load_state(module, state, tools=tools)


class _Saved(TypedDict):
    signature: dict[str, Any]
    demos: list[dict[str, Any]]
    config: dict[str, Any]
    tools: list[dict[str, Any]]
    servers: NotRequired[list[dict[str, Any]]]


class _State(TypedDict):
    ferrule: int
    predictors: dict[str, _Saved]


def _checked(state: Any) -> _State:
    """A state of the right form and version, or `ConfigurationError`."""
    try:
        found = TypeAdapter(_State).validate_python(state)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'the whole'}: {each['msg']}" for each in error.errors()[:3])
        msg = f"This is no state of a program ({where}): found {shown(state)}."
        raise ConfigurationError(msg) from error
    if found["ferrule"] != VERSION:
        msg = f"This state has version {found['ferrule']!r}; this ferrule reads version {VERSION}. Save the program again."
        raise ConfigurationError(msg)
    return found


def _dumped(predictor: Predictor) -> dict[str, Any]:
    check_saved(predictor.config)  # it can be changed after it was given
    return {
        "signature": predictor.signature.dump_state(),
        "demos": jsonable(marked_parts([dict(demo) for demo in predictor.demos])),
        "config": jsonable(predictor.config),
        "tools": [tool.dump_state() for tool in predictor.tools.values()],
        **({"servers": servers} if (servers := dumped_servers(predictor.toolbox)) else {}),
    }


def _bound(where: str, state_of: _Saved, predictor: Predictor, given: Mapping[str, Tool]) -> Toolbox:
    servers = bound_servers(state_of.get("servers", ()), predictor.toolbox)
    remote = bound_tools(state_of["tools"], servers)
    if servers and isinstance(predictor.toolbox, LiveToolbox) and predictor.toolbox.puts_tools_away:
        return predictor.toolbox  # what is offered is not all there is: the servers are asked when it is needed
    own = predictor.toolbox.local() if isinstance(predictor.toolbox, LiveToolbox) and servers else predictor.tools
    at_hand = {**own, **remote, **given}
    found: list[Tool] = []
    missing: list[str] = []
    for state in state_of["tools"]:
        name = str(state.get("name"))
        tool = at_hand.get(name)
        if tool is None:
            missing.append(name)
            continue
        now = tool.dump_state()
        changed = sorted(key for key in {*now, *state} if json_text(now.get(key)) != json_text(state.get(key)))
        if changed:
            warnings.warn(
                f"tool `{name}` of `{where}` changed since the program was saved: {', '.join(changed)}", UserWarning, stacklevel=4
            )
        found.append(tool)
    if missing:
        msg = f"`{where}` was saved with tools that are not at hand: {', '.join(missing)}. Pass them: load(path, tools=[...])."
        raise ToolDefinitionError(msg)
    if servers:
        return live_again(found, servers, predictor.toolbox)
    return Toolbox(found, shelf=predictor.toolbox.shelf or ())
