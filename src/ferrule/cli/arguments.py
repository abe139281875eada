"""Turn the arguments of a command line into tools, servers, a model, an adapter and inputs.

Wrong arguments raise one of `USAGE_ERRORS`.
"""

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
    nearest,
    shown,
)
from ferrule.execute_calls import discard
from ferrule.programs.module import Module
from ferrule.tools.execution.run import attempt
from ferrule.tools.files import load_module
from ferrule.tools.tool import Tool
from ferrule.values.signatures.fields import history_input

if TYPE_CHECKING:
    from types import ModuleType

    from ferrule.models.model import Model
    from ferrule.values.signatures.signature import Signature

USAGE_ERRORS = (ConfigurationError, InputError, SignatureError, ToolDefinitionError)

ADAPTERS = ("chat", "json", "xml", "native")
EMBEDDED_NOTE = (
    "Without --lm, the embedded model answers, on this machine: a small network that calls tools, "
    "does not chat, and errs."
)


def model_setting(name: str | None) -> dict[str, Any]:
    """The setting `lm` for `--lm`. Without a name there is none: the model is the program's own."""
    if name is None:
        return {}
    from ferrule.models.hosted import LM

    return {"lm": LM(name)}


def choose_model(name: str | None, base_url: str | None, text_calls: str | None = None) -> Model:
    """The model with this name; without a name, the embedded one."""
    from ferrule.models.hosted import LM
    from ferrule.models.model import check_text_calls

    if name is not None:
        return LM(name, base_url=base_url, text_calls=check_text_calls(text_calls))
    for option, value in (("--base-url", base_url), ("--text-calls", text_calls)):
        if value is not None:
            raise ConfigurationError(f"`{option}` needs the name of the model: add `--lm`.")
    try:
        return LM("needle")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"No model is named, and the embedded one cannot be used. {error} "
            "Or name a model: `--lm provider/model`."
        ) from error


@contextmanager
def open_servers(places: Sequence[str], *, trusted: bool, alone: bool) -> Generator[list[Any]]:
    """The MCP servers of command lines, URLs and editors' files; closed after the block.

    One that cannot be connected is left out, unless it is the only source of tools: one place, and
    `alone`.
    """
    servers: list[Any] = []
    log = logging.getLogger("ferrule.mcp")
    handler = _WarningLines(logging.WARNING)
    log.addHandler(handler)
    try:
        is_only_source = alone and len(places) == 1
        for place in places:
            servers += _servers_at(place, trusted=trusted, is_only_source=is_only_source)
        yield servers
    finally:
        log.removeHandler(handler)
        for server in servers:
            server.close()


def _servers_at(place: str, *, trusted: bool, is_only_source: bool) -> list[Any]:
    # Imported here: a command without servers needs no SDK of MCP.
    from ferrule.mcp_bridge.client.mcp_server import MCPServer, mcp

    options = login_options()
    if trusted:
        options |= {"trust": True, "confirm": False}
    if _is_servers_file(place):
        servers = MCPServer.load(place, inputs=_ask_input, on_error="skip", auth="oauth", **options)
        return list(servers.values())
    if place.startswith(("http://", "https://")):
        options["auth"] = "oauth"
    on_error = "raise" if is_only_source else "skip"
    return [mcp(place, on_error=on_error, **options)]


class _WarningLines(logging.Handler):
    """Shows warnings about servers as lines of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"Note: {one_line(record.getMessage(), 2_000)}")


def _is_servers_file(place: str) -> bool:
    """Whether this is a file of servers, and not a command line that ends in one."""
    return place.endswith((".json", ".jsonc")) and (" " not in place or Path(place).is_file())


def _ask_input(declaration: Mapping[str, Any]) -> str | None:
    """The value of an `${input:id}` of a servers file, asked at the terminal.

    None if there is no terminal, or no answer.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    prompt = one_line(declaration.get("description") or declaration["id"])
    default = declaration.get("default")
    if default:
        prompt += f" [{one_line(default)}]"
    prompt += ": "
    if declaration.get("password"):
        try:
            return getpass(prompt) or None
        except EOFError:  # no line, as below
            sys.stderr.write("\n")
            return None
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n") or None


def choose_adapter(name: str | None) -> tuple[Any, bool | None]:
    """The adapter with this name, and whether calls are native.

    The adapter is None for the default one; `native` is None if the model decides.
    """
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
                f"There is no adapter {name!r}; there are: {', '.join(ADAPTERS)}."
            )


def text_or_stdin(text: str) -> str:
    """The text of an argument; for `-`, the text on standard input.

    Raises `ConfigurationError` if there is none there, or if another argument has read it.
    """
    if text != "-":
        return text
    content = ""
    if sys.stdin is not None:
        content = _read_all(sys.stdin).rstrip("\n")
    if not content:
        msg = (
            "`-` reads standard input, and nothing was there. "
            "Only one argument of a command can be `-`."
        )
        raise ConfigurationError(msg)
    return content


def _read_all(stream: TextIO) -> str:
    """The text of a stream, in UTF-8 if its bytes are; Windows would read a code page."""
    raw = getattr(stream, "buffer", None)
    if raw is None:
        return stream.read()
    content: bytes = raw.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode(stream.encoding, "replace")
    return text.replace("\r\n", "\n")


def parse_inputs(signature: type[Signature], question: str, pairs: Sequence[str]) -> dict[str, Any]:
    """The inputs of a program, checked against its signature.

    The question is the first input, the `name=value` pairs are the others. `-` is standard input.
    """
    name = question_input(signature)
    values = {name: text_or_stdin(question), **parse_pairs(signature, pairs, name)}
    signature.check_inputs(values)
    return values


def question_input(signature: type[Signature]) -> str:
    """The name of the input for the question: the first one that is not a conversation."""
    inputs = signature.plan.inputs
    conversation = history_input(inputs)
    names = [name for name in inputs if name != conversation]
    if not names:
        raise InputError(
            "The signature has no input for the question. Example: `question -> answer`."
        )
    return names[0]


def parse_pairs(
    signature: type[Signature], pairs: Sequence[str], question_name: str
) -> dict[str, Any]:
    """The inputs in `name=value` pairs, without that of the question."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise InputError(f"`--input` takes name=value, found {pair!r}.")
        if name == question_name:
            raise InputError(f"The input `{name}` is the question: pass it once.")
        if name in values:
            raise InputError(f"The input `{name}` is repeated: pass it once.")
        field = signature.plan.inputs.get(name)
        if field is not None:
            value = _parse_value(field.annotation, text_or_stdin(value))
        values[name] = value
    return values


def _parse_value(annotation: Any, text: str) -> Any:
    """The text for a text field; for any other field its JSON value, if it is JSON."""
    if annotation in {str, Any, None}:
        return text
    return json_or_text(text)


def load_tools(places: Sequence[str]) -> list[Tool]:
    """The tools of files, folders and modules (`module`, `module:name`), in order.

    Without places, the tools of the demo.
    """
    if not places:
        return [Tool(function) for function in TOOLS]
    return [tool for place in places for tool in _tools_of(place)]


def _tools_of(place: str) -> list[Tool]:
    is_path = place.endswith(".py") or "/" in place or "\\" in place
    if is_path or (place and Path(place).is_dir()):
        return _tools_of_path(place)
    module_name, _, name = place.partition(":")
    module = _import(module_name, place)
    if name:
        return _tools_named(module, name, place)
    tools = _tools_in(module, f"The module `{module_name}`")
    if not tools:
        msg = (
            f"The module `{module_name}` has no tools: "
            "neither a `@tool` nor a public function of its own."
        )
        raise ToolLoadError(msg)
    return tools


def _tools_in(module: ModuleType, where: str, named_tool: str = "") -> list[Tool]:
    """The `Tool`s of a module; if it has none, the public functions that it defines.

    A function next to a `@tool` is not loaded, and a note says so. `named_tool` is the name of a
    function that is a tool anyway.
    """
    # By `id`, because a tool may have two names in its module.
    tools = {id(value): value for value in vars(module).values() if isinstance(value, Tool)}
    functions = {
        name: value
        for name, value in vars(module).items()
        if isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    }
    if not tools:
        return [Tool(function) for function in functions.values()]
    tool_functions = [tool.func for tool in tools.values()]
    not_loaded = [
        f"`{name}`"
        for name, function in functions.items()
        if name != named_tool and function not in tool_functions
    ]
    if not_loaded:
        say(
            f"{where} has a `@tool`, so a function without it is not loaded: "
            f"{', '.join(not_loaded)}. Decorate those that are tools."
        )
    return list(tools.values())


def _tools_of_path(place: str) -> list[Tool]:
    """The tools of a file or a folder."""
    if Path(place).is_file():
        return _tools_of_file(place)
    tools = Tool.load(place)
    if not tools:
        raise ToolLoadError(
            f"The folder {place} has no tools: a tool is a function in a file of the same name."
        )
    return tools


def _tools_of_file(place: str) -> list[Tool]:
    """All tools of the file: its `Tool`s and the function with its name.

    If it has no `Tool`, the public functions that it defines.
    """
    path = Path(place)
    module, error = _run_file(place)
    if isinstance(error, ToolLoadError):  # it is not a Python file
        raise error
    if error is not None:
        raise ToolLoadError(f"`{path.name}` could not be loaded: {_describe(error)}.") from error
    if module is None:
        raise ToolLoadError(f"`{path.name}` is not a Python file.")
    tools = _tools_in(module, f"`{path.name}`", path.stem)
    function = getattr(module, path.stem, None)
    is_function = callable(function) and not isinstance(function, (type, Tool))
    if is_function and path.stem not in [tool.name for tool in tools]:
        tools.insert(0, Tool(path.stem, None, function))
    if not tools:
        msg = (
            f"`{path.name}` has no tool: neither a function `{path.stem}`, nor a `@tool`, "
            "nor a public function of its own."
        )
        raise ToolLoadError(msg)
    return tools


def _run_file(place: str) -> tuple[ModuleType | None, BaseException | None]:
    """The module of a file, or the error of its code."""
    return attempt(partial(load_module, place, _module_name(place)))


def _module_name(place: str) -> str:
    return f"ferrule_tools_{Path(place).stem}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def find_program(place: str) -> Module:
    """The program at `module:attribute` or `file.py:attribute`."""
    program = find_attribute(place, "program")
    if not isinstance(program, Module):
        raise ConfigurationError(f"{place!r} is not a program: found {shown(program)}.")
    return cast("Module", program)


def make_deps(place: str | None) -> Any:
    """The value at `module:attribute` or `file.py:attribute`; None for None.

    A function or a class is called, without arguments.
    """
    if place is None:
        return None
    value = find_attribute(place, "deps")
    if value is None:
        raise ConfigurationError(f"`--deps {place}` is None.")
    if not callable(value):
        return value
    try:
        signature(value).bind()
    except TypeError as error:
        msg = f"`--deps {place}` is called without arguments, but it needs some: {error}."
        raise ConfigurationError(msg) from error
    except ValueError:  # a class of another language has no signature to read
        pass
    deps, error = attempt(value)
    if error is not None:
        raise ConfigurationError(f"`--deps {place}` raised {_describe(error)}") from error
    if isawaitable(deps):
        discard(deps)
        raise ConfigurationError(
            f"`--deps {place}` is async: name a function that returns the value itself."
        )
    return deps


def find_attribute(place: str, what: str) -> Any:
    """What is at `module:attribute` or `file.py:attribute`."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise ConfigurationError(
            f"Name the {what} as module:attribute or file.py:attribute; found {place!r}."
        )
    if where.endswith(".py"):
        module = _module_of_file(where, may_be_loaded=what == "deps")
    else:
        module = _import(where, where)
    try:
        return getattr(module, name)
    except AttributeError:
        near = nearest(name, [known for known in dir(module) if not known.startswith("_")])
        remedy = ""
        if near is not None:
            remedy = f" Did you mean `{near}`?"
        raise ConfigurationError(f"`{where}` has no {what} `{name}`.{remedy}") from None


def _module_of_file(file: str, *, may_be_loaded: bool) -> ModuleType:
    # The file of the program is not run again for its deps: it would define its classes once more,
    # and its tools declare the first ones.
    loaded = sys.modules.get(_module_name(file))
    if may_be_loaded and loaded is not None and loaded.__file__ == str(Path(file).resolve()):
        return loaded
    module, error = _run_file(file)
    if module is None:
        if error is not None:
            reason = _describe(error)
        else:
            reason = "it is not a Python file"
        raise ConfigurationError(f"The file {file!r} cannot be loaded: {reason}") from error
    return module


def _import(name: str, place: str) -> ModuleType:
    # Like `python -m`, so that the command finds modules in the current folder.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module, error = attempt(partial(import_module, name))
    if error is not None or module is None:
        reason = "."
        if error is not None:
            reason = f": {_describe(error)}"
        msg = (
            f"{place!r} is neither a file, nor a folder, nor a module that can be imported{reason}"
        )
        raise ToolLoadError(msg) from error
    return module


def _tools_named(module: ModuleType, name: str, place: str) -> list[Tool]:
    """The tools under a name of a module: one, or all of a list or a dict."""
    value: object = getattr(module, name, None)
    candidates: list[Any]
    if isinstance(value, Mapping):
        candidates = list(cast("Mapping[Any, Any]", value).values())
    elif isinstance(value, (list, tuple)):
        candidates = list(cast("Sequence[Any]", value))
    else:
        candidates = [value]
    if not candidates or not all(callable(candidate) for candidate in candidates):
        msg = (
            f"{place!r} is not a tool: `{name}` must be a function, a `Tool`, or a list of these; "
            f"found {shown(cast('object', value))}."
        )
        raise ToolLoadError(msg)
    return [
        candidate if isinstance(candidate, Tool) else Tool(candidate) for candidate in candidates
    ]
