"""From the words of a command line to tools, a model, an adapter and inputs.

Everything here raises one of `WRONG`, with a message for the person who typed the words.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.cli.sample_tools import TOOLS
from ferrule.errors import ConfigurationError, InputError, SignatureError, ToolDefinitionError, ToolLoadError, shown
from ferrule.programs.module import Module
from ferrule.tools.execution.run import attempt
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from types import ModuleType

    from ferrule.models.model import Model
    from ferrule.values.signatures.signature import Signature

R = TypeVar("R")

WRONG = (ConfigurationError, InputError, SignatureError, ToolDefinitionError)

ADAPTERS = ("chat", "json", "xml", "native")
OFFLINE = "No model was named (--lm), so ferrule's rule-based OfflineLM answers, over HTTP on this machine. It is no neural network."


@contextmanager
def model(name: str | None, base_url: str | None) -> Generator[Model]:
    """The model of that name; without one, `OfflineLM` behind a server on loopback, for as long as the block lasts."""
    from ferrule.models.hosted import LM

    if name is not None:
        yield LM(name, base_url=base_url)
        return
    if base_url is not None:
        msg = "`--base-url` says where, but not which model: name it with `--lm`."
        raise ConfigurationError(msg)
    from ferrule.testing import serve
    from ferrule.testing.offline.model import OfflineLM

    with serve(OfflineLM()) as server:
        yield server.lm()


@contextmanager
def servers(places: Sequence[str], *, trusted: bool) -> Generator[list[Any]]:
    """The MCP servers of command lines, addresses and files of `mcpServers`; closed again after the block."""
    found: list[Any] = []
    if places:
        from ferrule.bridges.mcp.client.mcp_server import MCPServer, mcp

        options: dict[str, Any] = {"trust": True, "confirm": False} if trusted else {}
        for place in places:
            found += MCPServer.load(place, **options).values() if place.endswith(".json") else [mcp(place, **options)]
    try:
        yield found
    finally:
        for each in found:
            each.close()


def adapter(name: str | None) -> tuple[Any, bool | None]:
    """The adapter of that name (None for the default one), and whether calls go natively (None: by what the model can)."""
    match name:
        case None:
            return None, None
        case "native":
            return None, True
        case "chat":
            from ferrule.adapters.chat import ChatAdapter

            return ChatAdapter(), False
        case "json":
            from ferrule.adapters.json_object import JSONAdapter

            return JSONAdapter(), False
        case "xml":
            from ferrule.adapters.xml_tags import XMLAdapter

            return XMLAdapter(), False
        case _:
            msg = f"There is no adapter {name!r}; there are: {', '.join(ADAPTERS)}."
            raise ConfigurationError(msg)


def inputs(signature: type[Signature], question: str, pairs: Sequence[str]) -> dict[str, Any]:
    """The question as the first input, and `name=value` pairs as the others, checked against the signature."""
    names = list(signature.input_fields)
    if not names:
        raise InputError("The signature has no input, and so no place for the question. Write `question -> answer`, say.")
    values: dict[str, Any] = {names[0]: question}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            msg = f"`--input` takes name=value, found {pair!r}."
            raise InputError(msg)
        if name in values:
            why = "is the question" if name == names[0] else "was given twice"
            msg = f"The input `{name}` {why}; give it once."
            raise InputError(msg)
        field = signature.input_fields.get(name)
        values[name] = value if field is None else _typed(field.annotation, value)
    signature.check_inputs(values)
    return values


def _typed(annotation: Any, value: str) -> Any:
    """Text for a text field; for any other what the text says as JSON, if it is JSON."""
    if annotation in {str, Any, None}:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def tools(places: Sequence[str]) -> list[Tool]:
    """The tools of files, folders and modules (`module`, `module:name`), in order; without any, the demo's."""
    if not places:
        return [Tool(function) for function in TOOLS]
    return [tool for place in places for tool in _tools_of(place)]


def _tools_of(place: str) -> list[Tool]:
    if place.endswith(".py") or "/" in place or "\\" in place or (place and Path(place).is_dir()):
        return _loaded(place)
    module_name, _, name = place.partition(":")
    module = _imported(module_name, place)
    if name:
        return _named(module, name, place)
    found = _held_by(module)
    if not found:
        msg = f"The module `{module_name}` holds no tools: neither a `@tool` nor a public function of its own."
        raise ToolLoadError(msg)
    return found


def _held_by(module: ModuleType) -> list[Tool]:
    """The tools a module holds; where it marks none, its own public functions."""
    found = [thing for thing in vars(module).values() if isinstance(thing, Tool)]
    return found or [Tool(thing) for key, thing in vars(module).items() if _is_own_function(module, key, thing)]


def _loaded(place: str) -> list[Tool]:
    """The one tool of a file that is named like it (seed 004), else all that the file holds; or those of a folder."""
    if Path(place).is_file():
        return _held_by_file(place)
    found, error = _run(partial(Tool.load, place))
    if isinstance(error, SystemExit):
        msg = f"A file in {place} ended the process while it was loaded: {_said(error)}."
        raise ToolLoadError(msg) from error
    if error is not None:
        raise error
    if not found:
        msg = f"The folder {place} holds no tools: each is a function in a file of its own name."
        raise ToolLoadError(msg)
    return found


def _held_by_file(place: str) -> list[Tool]:
    path = Path(place)
    module, error = _executed(place)
    if module is None:
        msg = f"`{path.name}` could not be loaded: {_said(error)}." if error is not None else f"`{path.name}` is no Python file."
        raise ToolLoadError(msg) from error
    named: object = getattr(module, path.stem, None)
    if callable(named) and not isinstance(named, type):
        return [named if isinstance(named, Tool) else Tool(path.stem, None, named)]
    found = _held_by(module)
    if not found:
        msg = f"`{path.name}` holds no tool: neither a function `{path.stem}`, nor a `@tool`, nor a public function of its own."
        raise ToolLoadError(msg)
    return found


def _executed(place: str) -> tuple[ModuleType | None, BaseException | None]:
    """A file as a module, or why it is none."""
    path = Path(place)
    spec = spec_from_file_location(f"ferrule_tools_{path.stem}", path)
    if spec is None or spec.loader is None:
        return None, None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up; the name is one that no other module has
    _, error = _run(partial(spec.loader.exec_module, module))
    if error is None:
        return module, None
    del sys.modules[spec.name]
    return None, error


def _run(code: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    """Run code of a file: its value, or what it raised. That it ends the process is an error like others."""
    try:
        return attempt(code)
    except SystemExit as error:
        return None, error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def program_of(place: str) -> Module:
    """The program at `module:attribute` or `file.py:attribute`."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        msg = f"A program is named as module:attribute or file.py:attribute, found {place!r}."
        raise ConfigurationError(msg)
    if where.endswith(".py"):
        module, error = _executed(where)
        if module is None:
            msg = f"The file {where!r} cannot be loaded: {_said(error) if error is not None else 'it is no Python file'}"
            raise ConfigurationError(msg) from error
    else:
        module = _imported(where, where)
    found: object = getattr(module, name, None)
    if not isinstance(found, Module):
        msg = f"{place!r} names no program: found {shown(found)}."
        raise ConfigurationError(msg)
    return found


def _imported(name: str, place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # as for `python -m`: the `ferrule` command alone would not see the modules that lie here
        sys.path.insert(0, here)
    module, error = _run(partial(import_module, name))
    if error is not None or module is None:
        why = _said(error) if error is not None else "it is none"
        msg = f"{place!r} is neither a file, nor a folder, nor a module that can be imported: {why}"
        raise ToolLoadError(msg) from error
    return module


def _named(module: ModuleType, name: str, place: str) -> list[Tool]:
    named: object = getattr(module, name, None)
    found = list(cast("Mapping[Any, Any]", named).values()) if isinstance(named, Mapping) else named
    things: list[Any] = list(cast("Sequence[Any]", found)) if isinstance(found, (list, tuple)) else [found]
    if not things or not all(callable(thing) for thing in things):
        msg = f"{place!r} names no tool: `{name}` must be a function, a `Tool`, or a list of these; found {shown(cast('object', named))}."
        raise ToolLoadError(msg)
    return [thing if isinstance(thing, Tool) else Tool(thing) for thing in things]


def _is_own_function(module: ModuleType, name: str, thing: Any) -> bool:
    return isfunction(thing) and not name.startswith("_") and thing.__module__ == module.__name__
