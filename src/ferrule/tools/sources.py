"""Turn other kinds of tools into arguments of `Tool(...)`: LangChain's tools, MCP list entries, declarations; and load Python files.

LangChain (`BaseTool` of langchain-core 1.x) is never imported here: a LangChain tool has imported
it already.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import DuplicateToolError, ToolDefinitionError, ToolLoadError, shown
from ferrule.schema.inline import Generator, inline_definitions, strip_titles
from ferrule.schema.nodes import is_object
from ferrule.tools.execution.run import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

T = TypeVar("T")

DEFAULT_FOLDER = "tools"
"""Where `Tool.load()` looks, relative to the current directory."""


def is_langchain_tool(thing: Any) -> bool:
    """Whether an object is a LangChain tool. Does not import LangChain."""
    return any(
        each.__name__ == "BaseTool" and each.__module__.startswith("langchain_core.")
        for each in type(thing).__mro__
    )


def is_mcp_entry(thing: Any) -> bool:
    """Whether an object is an entry of `tools/list`, as a dict or as the SDK's object."""
    if is_object(thing):
        return "inputSchema" in thing
    return type(thing).__module__.startswith(("mcp.", "mcp_types")) and hasattr(thing, "name")


def tool_options(thing: Any) -> dict[str, Any]:
    """The arguments of `Tool(...)` for a callable, a LangChain tool, an MCP list entry, or a declaration (canonical or flat)."""
    if is_langchain_tool(thing):
        return langchain_options(thing)
    if is_mcp_entry(thing):
        from ferrule.tools.mcp.tool import mcp_tool_options

        return mcp_tool_options(thing)
    if is_object(thing):
        body: Any = thing.get("function", thing)
        if is_object(body) and isinstance(body.get("name"), str):
            said = body.get("description") or ""
            return {
                "name": body["name"],
                "description": said,
                "callable": None,
                "schema": body.get("parameters") or body.get("input_schema") or {},
            }
    if callable(thing):
        return {"func": thing}
    msg = f"A tool is a function, a `Tool`, or a declaration with `name`, `description` and `parameters`; found {shown(thing)}."
    if hasattr(thing, "name"):
        msg += " Of another library's tool, pass the function that it was made of, or a function that calls it."
    raise ToolDefinitionError(msg)


def langchain_options(tool: Any) -> dict[str, Any]:
    """The arguments of `Tool(...)` for a LangChain tool. The schema leaves out injected arguments, which LangChain itself fills in."""
    if not is_langchain_tool(tool):
        raise ToolDefinitionError(
            f"`Tool.from_langchain` takes a LangChain `BaseTool`, found {shown(tool)}.",
        )
    model = tool.tool_call_schema
    known: dict[str, Any] = getattr(tool.args_schema, "model_fields", {})
    declared = getattr(model, "model_fields", known)
    if injected := [
        f"`{name}`" for name, field in known.items() if field.is_required() and name not in declared
    ]:
        msg = (
            f"`{tool.name}` needs {', '.join(injected)}, which LangGraph or your own code passes to LangChain's tools, and ferrule "
            "does not. Write a function that calls it; it can take `ctx: Context`, with the values in `ctx.deps`."
        )
        raise ToolDefinitionError(msg)
    return {
        "func": _runner(tool),
        "name": tool.name,
        "description": tool.description or "",
        "schema": _schema(model),
    }


def _schema(model: Any) -> dict[str, Any]:
    if is_object(model):
        found = dict(model)
    elif hasattr(model, "model_json_schema"):
        found = strip_titles(model.model_json_schema(schema_generator=Generator))
    else:  # a pydantic 1 model, which LangChain still accepts
        found = strip_titles(model.schema())
    schema = inline_definitions(found)
    for generated in ("title", "description"):
        schema.pop(generated, None)
    # LangChain silently drops unknown arguments, but a model should see its mistake.
    return {**schema, "additionalProperties": schema.get("additionalProperties", False)}


def _runner(tool: Any) -> Any:
    """Wrap the tool in a function. Async if the tool has only an async form, so that a sync call raises a clear error."""
    if getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None:

        async def arun(**arguments: Any) -> Any:
            return await tool.ainvoke(arguments)

        return arun

    def run(**arguments: Any) -> Any:
        return tool.invoke(arguments)

    return run


# -- files: `weather.py` contains one tool, the function or `@tool` named `weather`
# --------------------------------------
#
# Loading runs the file. Each file becomes a module of its own under a private name, in no package,
# so relative imports in it fail. Names cannot leave the folder: no `..`, no absolute path, no link
# to a place outside.


def load_file(path: str | Path, make: Callable[[str, Any], T], *, strict: bool = False) -> T | None:
    """Load the tool in one file. If there is none, returns None and, for a Python file, warns; `strict` raises instead.

    A script that calls `sys.exit` always raises, as it was not written to be loaded.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != ".py" or file.stem.startswith("__"):
        return _failed(f"`{file.name}` is not a Python file of a tool.", strict=strict, quiet=True)
    key = sha256(str(file.resolve()).encode()).hexdigest()[:12]
    module, error = attempt(partial(load_module, file, f"_ferrule_tool_{key}_{file.stem}"))
    if module is None:
        return _failed(
            f"`{file.name}` could not be loaded: {type(error).__name__}: {error}",
            strict=strict or isinstance(error, SystemExit),
            cause=error,
        )
    found = getattr(module, file.stem, None)
    if found is None or isinstance(found, type) or not callable(found):
        return _failed(
            f"`{file.name}` has no function `{file.stem}`; the tool is named like its file.",
            strict=strict,
        )
    made, error = attempt(partial(make, file.stem, found))
    if error is not None:
        return _failed(f"`{file.name}` holds no tool: {error}", strict=strict, cause=error)
    return made


def load_folder(
    path: str | Path | None,
    names: str | Sequence[str] | None,
    make: Callable[[str, Any], T],
    name_of: Callable[[T], str],
    *,
    strict: bool,
) -> list[T]:
    """Load the tools in a folder, or in one file, sorted by file name or in the order of `names`.

    A missing folder or name raises `ToolLoadError`. A broken file is skipped with a warning, unless
    it was asked for by name or `strict`.
    """
    place = Path(path) if path is not None else Path(DEFAULT_FOLDER)
    if names is None and not place.is_dir():
        file = (
            place
            if place.suffix == ".py"
            else place.with_name(f"{place.name}.py")
            if place.name
            else place
        )
        if not file.is_file():
            raise ToolLoadError(
                f"There is neither a folder `{place}` nor a file `{file}` to load tools from.",
            )
        found = [load_file(file, make, strict=True)]
    elif not place.is_dir():
        raise ToolLoadError(f"There is no folder `{place}` to load tools from.")
    elif names is not None:
        found = [
            load_file(each, make, strict=True)
            for each in _named(place, [names] if not isinstance(names, (list, tuple)) else names)
        ]
    else:
        files = sorted(each for each in place.glob("*.py") if not each.name.startswith("_"))
        found = [
            load_file(each, make, strict=strict)
            if _is_inside(each, place)
            else _linked(each, strict=strict)
            for each in files
        ]
    tools = [each for each in found if each is not None]
    own_names = [name_of(each) for each in tools]
    if twice := sorted({each for each in own_names if own_names.count(each) > 1}):
        raise DuplicateToolError(
            f"Several files hold a tool named {', '.join(f'`{each}`' for each in twice)}.",
        )
    return tools


def load_module(path: str | Path, name: str) -> ModuleType:
    """Run a Python file as the module `name`, and return it.

    The module stays registered in `sys.modules`, where dataclasses and pickles look for it, unless
    the file raises. Raises what the file raises, and `ToolLoadError` for a file that is not Python.
    """
    place = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise ToolLoadError(f"`{place.name}` is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _named(folder: Path, names: Sequence[Any]) -> list[Path]:
    files: list[Path] = []
    for name in names:
        if not isinstance(name, str) or not name or Path(name).name != name or "\\" in name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolLoadError(
                f"{shown(name)} is no name of a tool's file: give the bare name, without a folder.",
            )
        files.append(folder / (name if name.endswith(".py") else f"{name}.py"))
    absent = [each.stem for each in files if not each.is_file()]
    if absent:
        there = (
            ", ".join(
                sorted(each.stem for each in folder.glob("*.py") if not each.name.startswith("_")),
            )
            or "none"
        )
        raise ToolLoadError(
            f"There is no tool {', '.join(f'`{each}`' for each in absent)} in `{folder}`. There are: {there}.",
        )
    outside = [each.stem for each in files if not _is_inside(each, folder)]
    if outside:
        raise ToolLoadError(
            f"{', '.join(f'`{each}`' for each in outside)} in `{folder}` is a link to a place outside; load it from there.",
        )
    return files


def _is_inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _linked(file: Path, *, strict: bool) -> None:
    return _failed(
        f"`{file.name}` is a link to a place outside its folder and was not loaded.",
        strict=strict,
    )


def _failed(
    reason: str,
    *,
    strict: bool,
    quiet: bool = False,
    cause: BaseException | None = None,
) -> None:
    if strict:
        raise ToolLoadError(reason) from cause
    if not quiet:
        warnings.warn(reason, UserWarning, stacklevel=4)
