"""Turn the arguments of a command line into tools, servers, a model, an adapter and inputs. Wrong arguments raise one of `USAGE_ERRORS`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from getpass import getpass
from importlib import import_module
from inspect import isawaitable, isfunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ferrule.cli.logins import login_options
from ferrule.cli.prompt import json_or_text
from ferrule.cli.sample_tools import TOOLS
from ferrule.cli.screen import say
from ferrule.encoding.safe_text import one_line
from ferrule.errors import (
    ConfigurationError,
    InputError,
    SignatureError,
    ToolDefinitionError,
    ToolLoadError,
    shown,
)
from ferrule.programs.module import Module
from ferrule.tools.execution.run import attempt
from ferrule.tools.files import load_module
from ferrule.tools.tool import Tool
from ferrule.values.calls.direct import discard

if TYPE_CHECKING:
    from types import ModuleType

    from ferrule.models.model import Model
    from ferrule.values.signatures.signature import Signature

USAGE_ERRORS = (ConfigurationError, InputError, SignatureError, ToolDefinitionError)

ADAPTERS = ("chat", "json", "xml", "native")
OFFLINE_NOTE = "Without --lm, ferrule's rule-based OfflineLM answers, over HTTP on this machine. It is not a language model."


def model_setting(name: str | None) -> dict[str, Any]:
    """The setting `lm` for `--lm`. Without a name there is none: the model is the program's own."""
    if name is None:
        return {}
    from ferrule.models.hosted import LM

    return {"lm": LM(name)}


@contextmanager
def open_model(name: str | None, base_url: str | None) -> Generator[Model]:
    """The model with this name; without a name, `OfflineLM` behind a server on loopback that runs until the block ends."""
    from ferrule.models.hosted import LM

    if name is not None:
        yield LM(name, base_url=base_url)
        return
    if base_url is not None:
        raise ConfigurationError("`--base-url` needs the name of the model: add `--lm`.")
    from ferrule.testing import serve
    from ferrule.testing.offline.model import OfflineLM

    with serve(OfflineLM()) as server:
        yield server.lm()


@contextmanager
def open_servers(places: Sequence[str], *, trusted: bool, alone: bool) -> Generator[list[Any]]:
    """The MCP servers of command lines, URLs and editors' files; closed after the block.

    One that cannot be connected is left out, unless it is the only source of tools (`alone`).
    """
    opened: list[Any] = []
    log, notes = logging.getLogger("ferrule.mcp"), _Notes(logging.WARNING)
    log.addHandler(notes)
    try:
        if places:
            from ferrule.mcp_bridge.client.mcp_server import MCPServer, mcp

            options: dict[str, Any] = {
                **login_options(),
                **({"trust": True, "confirm": False} if trusted else {}),
            }
            on_error = (
                "raise"
                if alone and len(places) == 1 and not _is_servers_file(places[0])
                else "skip"
            )
            for place in places:
                if _is_servers_file(place):
                    opened += MCPServer.load(
                        place,
                        inputs=_ask_input,
                        on_error=on_error,
                        auth="oauth",
                        **options,
                    ).values()
                else:
                    auth: dict[str, Any] = (
                        {"auth": "oauth"} if place.startswith(("http://", "https://")) else {}
                    )
                    opened.append(mcp(place, on_error=on_error, **auth, **options))
        yield opened
    finally:
        log.removeHandler(notes)
        for each in opened:
            each.close()


class _Notes(logging.Handler):
    """Shows warnings about servers as lines of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"Note: {one_line(record.getMessage(), 2_000)}")


def _is_servers_file(place: str) -> bool:
    """Whether this is a file of servers, and not a command line that ends in one."""
    return place.endswith((".json", ".jsonc")) and (" " not in place or Path(place).is_file())


def _ask_input(about: Mapping[str, Any]) -> str | None:
    """The value of an `${input:id}` of a servers file, asked at the terminal on standard error; None where there is none."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    default = about.get("default")
    text = f"{one_line(about.get('description') or about['id'])}{f' [{one_line(default)}]' if default else ''}: "
    if about.get("password"):
        try:
            return getpass(text) or None
        except EOFError:  # as a line that is not there, below
            sys.stderr.write("\n")
            return None
    sys.stderr.write(text)
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n") or None


def choose_adapter(name: str | None) -> tuple[Any, bool | None]:
    """The adapter with this name (None: the default), and whether calls are native (None: if the model supports them)."""
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
            raise ConfigurationError(
                f"There is no adapter {name!r}; there are: {', '.join(ADAPTERS)}.",
            )


def text_or_stdin(text: str) -> str:
    """The text of an argument; for `-`, what standard input holds. Raises `ConfigurationError` if it holds no text, or was read before."""
    if text != "-":
        return text
    if sys.stdin is None or not (found := _read_all(sys.stdin).rstrip("\n")):
        raise ConfigurationError(
            "`-` reads standard input, and nothing was there. Only one argument of a command can be `-`.",
        )
    return found


def _read_all(stream: TextIO) -> str:
    """The text of a stream, in UTF-8 if its bytes are; Windows would read a code page."""
    raw = getattr(stream, "buffer", None)
    if raw is None:
        return stream.read()
    found: bytes = raw.read()
    try:
        text = found.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = found.decode(stream.encoding, "replace")
    return text.replace("\r\n", "\n")


def parse_inputs(signature: type[Signature], question: str, pairs: Sequence[str]) -> dict[str, Any]:
    """The question as the first input and `name=value` pairs as the others, checked against the signature. `-` is standard input."""
    names = list(signature.plan.inputs)
    if not names:
        raise InputError(
            "The signature has no input for the question. Example: `question -> answer`.",
        )
    values: dict[str, Any] = {names[0]: text_or_stdin(question)}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise InputError(f"`--input` takes name=value, found {pair!r}.")
        if name in values:
            why = "is the question" if name == names[0] else "is repeated"
            raise InputError(f"The input `{name}` {why}: pass it once.")
        field = signature.plan.inputs.get(name)
        values[name] = (
            value if field is None else _parse_value(field.annotation, text_or_stdin(value))
        )
    signature.check_inputs(values)
    return values


def _parse_value(annotation: Any, value: str) -> Any:
    """The text for a text field; for any other field its JSON value, if it is JSON."""
    return value if annotation in {str, Any, None} else json_or_text(value)


def load_tools(places: Sequence[str]) -> list[Tool]:
    """The tools of files, folders and modules (`module`, `module:name`), in order; without places the demo's tools."""
    if not places:
        return [Tool(function) for function in TOOLS]
    return [tool for place in places for tool in _tools_of(place)]


def _tools_of(place: str) -> list[Tool]:
    if place.endswith(".py") or "/" in place or "\\" in place or (place and Path(place).is_dir()):
        return _tools_of_path(place)
    module_name, _, name = place.partition(":")
    module = _import(module_name, place)
    if name:
        return _named(module, name, place)
    found = _tools_in(module, f"The module `{module_name}`")
    if not found:
        raise ToolLoadError(
            f"The module `{module_name}` has no tools: neither a `@tool` nor a public function of its own.",
        )
    return found


def _tools_in(module: ModuleType, what: str, also: str = "") -> list[Tool]:
    """The module's `Tool`s; without any, its own public functions. A note names functions beside `Tool`s but `also`, a tool too."""
    found = list(
        {id(thing): thing for thing in vars(module).values() if isinstance(thing, Tool)}.values(),
    )
    own = {
        key: thing for key, thing in vars(module).items() if _is_own_function(module, key, thing)
    }
    if not found:
        return [Tool(thing) for thing in own.values()]
    used = [tool.func for tool in found]
    if plain := ", ".join(
        f"`{key}`" for key, thing in own.items() if key != also and thing not in used
    ):
        say(
            f"{what} has a `@tool`, so a function without it is not loaded: {plain}. Decorate those that are tools.",
        )
    return found


def _tools_of_path(place: str) -> list[Tool]:
    """The tools of a file or a folder."""
    if Path(place).is_file():
        return _tools_of_file(place)
    found = Tool.load(place)
    if not found:
        raise ToolLoadError(
            f"The folder {place} has no tools: a tool is a function in a file of the same name.",
        )
    return found


def _tools_of_file(place: str) -> list[Tool]:
    """All tools of the file: its `Tool`s and the function with its name; without any `Tool`, its own public functions."""
    path = Path(place)
    module, error = _run_file(place)
    if module is None:
        if isinstance(error, ToolLoadError):  # it is no Python file
            raise error
        msg = (
            f"`{path.name}` could not be loaded: {_describe(error)}."
            if error is not None
            else f"`{path.name}` is not a Python file."
        )
        raise ToolLoadError(msg) from error
    found, named = _tools_in(module, f"`{path.name}`", path.stem), getattr(module, path.stem, None)
    if (
        callable(named)
        and not isinstance(named, (type, Tool))
        and path.stem not in [tool.name for tool in found]
    ):
        found = [Tool(path.stem, None, named), *found]
    if not found:
        msg = f"`{path.name}` has no tool: neither a function `{path.stem}`, nor a `@tool`, nor a public function of its own."
        raise ToolLoadError(msg)
    return found


def _run_file(place: str) -> tuple[ModuleType | None, BaseException | None]:
    """The module of a file, or the error of its code."""
    return attempt(partial(load_module, place, _module_name(place)))


def _module_name(place: str) -> str:
    return f"ferrule_tools_{Path(place).stem}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def find_program(place: str) -> Module:
    """The program at `module:attribute` or `file.py:attribute`."""
    found = find_attribute(place, "program")
    if not isinstance(found, Module):
        raise ConfigurationError(f"{place!r} is not a program: found {shown(found)}.")
    return cast("Module", found)


def make_deps(place: str | None) -> Any:
    """The value at `module:attribute` or `file.py:attribute`; of a function or a class, what it returns. None for None."""
    if place is None:
        return None
    found = find_attribute(place, "deps")
    if not callable(found):
        if found is None:
            raise ConfigurationError(f"`--deps {place}`: there is no such name, or it is None.")
        return found
    try:
        signature(found).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"`--deps {place}` is called without arguments, but it needs some: {error}.",
        ) from error
    except ValueError:  # a class of another language has no signature to read
        pass
    made, error = attempt(found)
    if error is not None:
        raise ConfigurationError(f"`--deps {place}` raised {_describe(error)}") from error
    if isawaitable(made):
        discard(made)
        raise ConfigurationError(
            f"`--deps {place}` is async: name a function that returns the value itself.",
        )
    return made


def find_attribute(place: str, what: str) -> Any:
    """What is at `module:attribute` or `file.py:attribute`; None if there is no such name."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise ConfigurationError(
            f"Name the {what} as module:attribute or file.py:attribute; found {place!r}.",
        )
    if where.endswith(".py"):
        loaded = sys.modules.get(_module_name(where))
        # The file of the program is not run again: its classes would be others than those that its
        # tools declare.
        is_same = (
            what == "deps" and loaded is not None and loaded.__file__ == str(Path(where).resolve())
        )
        module, error = (loaded, None) if is_same else _run_file(where)
        if module is None:
            msg = f"The file {where!r} cannot be loaded: {_describe(error) if error is not None else 'it is not a Python file'}"
            raise ConfigurationError(msg) from error
    else:
        module = _import(where, where)
    return getattr(module, name, None)


def _import(name: str, place: str) -> ModuleType:
    here = str(Path.cwd())
    if (
        here not in sys.path
    ):  # like `python -m`, so that the command finds modules in the current folder
        sys.path.insert(0, here)
    module, error = attempt(partial(import_module, name))
    if error is not None or module is None:
        why = f": {_describe(error)}" if error is not None else "."
        raise ToolLoadError(
            f"{place!r} is neither a file, nor a folder, nor a module that can be imported{why}",
        ) from error
    return module


def _named(module: ModuleType, name: str, place: str) -> list[Tool]:
    named: object = getattr(module, name, None)
    found = list(cast("Mapping[Any, Any]", named).values()) if isinstance(named, Mapping) else named
    things: list[Any] = (
        list(cast("Sequence[Any]", found)) if isinstance(found, (list, tuple)) else [found]
    )
    if not things or not all(callable(thing) for thing in things):
        msg = f"{place!r} is not a tool: `{name}` must be a function, a `Tool`, or a list of these; found {shown(cast('object', named))}."
        raise ToolLoadError(msg)
    return [thing if isinstance(thing, Tool) else Tool(thing) for thing in things]


def _is_own_function(module: ModuleType, name: str, thing: Any) -> bool:
    return isfunction(thing) and not name.startswith("_") and thing.__module__ == module.__name__
