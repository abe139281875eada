"""Load tools from Python files: `weather.py` has one tool, the function or `@tool` named `weather`.

Loading runs the file. Each file becomes a module of its own under a private name, in no package, so
relative imports in it fail. Names cannot leave the folder: no `..`, no absolute path, no link to a
place outside.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import DuplicateToolError, ToolLoadError, shown
from ferrule.tools.execution.run import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

T = TypeVar("T")

DEFAULT_FOLDER = "tools"
"""Where `Tool.load()` looks, relative to the current directory."""


def load_file(path: str | Path, make: Callable[[str, Any], T], *, strict: bool = False) -> T | None:
    """Load the tool in one file. `make` makes it from a name and a function.

    If there is none, returns None and, for a Python file, warns; `strict` raises `ToolLoadError`
    instead. A script that calls `sys.exit` always raises, as it was not written to be loaded.
    """
    file = Path(path)
    name = file.stem
    if not file.is_file() or file.suffix != ".py" or name.startswith("__"):
        if strict:
            raise ToolLoadError(f"`{file.name}` is not a Python file of a tool.")
        return None
    key = sha256(str(file.resolve()).encode()).hexdigest()[:12]
    module, error = attempt(partial(load_module, file, f"_ferrule_tool_{key}_{name}"))
    if module is None:
        reason = f"`{file.name}` could not be loaded: {type(error).__name__}: {error}"
        return _warn_or_raise(reason, strict=strict or isinstance(error, SystemExit), cause=error)
    function = getattr(module, name, None)
    if function is None or isinstance(function, type) or not callable(function):
        reason = f"`{file.name}` has no function `{name}`; the tool is named like its file."
        return _warn_or_raise(reason, strict=strict)
    tool, error = attempt(partial(make, name, function))
    if error is not None:
        return _warn_or_raise(f"`{file.name}` holds no tool: {error}", strict=strict, cause=error)
    return tool


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
    if path is not None:
        folder = Path(path)
    else:
        folder = Path(DEFAULT_FOLDER)
    loaded: list[T | None] = []
    if not folder.is_dir():
        if names is not None:
            raise ToolLoadError(f"There is no folder `{folder}` to load tools from.")
        loaded.append(load_file(_single_file(folder), make, strict=True))
    elif names is not None:
        requested = [names]
        if isinstance(names, (list, tuple)):
            requested = names
        for file in _named_files(folder, requested):
            loaded.append(load_file(file, make, strict=True))
    else:
        for file in _files_in(folder):
            if _is_inside(file, folder):
                loaded.append(load_file(file, make, strict=strict))
            else:
                reason = f"`{file.name}` is a link to a place outside its folder"
                _warn_or_raise(f"{reason} and was not loaded.", strict=strict)
    tools = [tool for tool in loaded if tool is not None]
    tool_names = [name_of(tool) for tool in tools]
    duplicates = sorted({name for name in tool_names if tool_names.count(name) > 1})
    if duplicates:
        raise DuplicateToolError(f"Several files hold a tool named {_quoted(duplicates)}.")
    return tools


def load_module(path: str | Path, name: str) -> ModuleType:
    """Run a Python file as the module `name`, and return it.

    The module stays registered in `sys.modules`, where dataclasses and pickles look for it, unless
    the file raises. Raises what the file raises, and `ToolLoadError` for a file that is not Python.
    """
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ToolLoadError(f"`{file.name}` is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        if previous is not None:
            sys.modules[name] = previous
        raise
    return module


def _single_file(path: Path) -> Path:
    """The one file that a path without a folder stands for: `tools` may be `tools.py`."""
    file = path
    if path.name and path.suffix != ".py":
        file = path.with_name(f"{path.name}.py")
    if not file.is_file():
        raise ToolLoadError(
            f"There is neither a folder `{path}` nor a file `{file}` to load tools from."
        )
    return file


def _files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))


def _named_files(folder: Path, names: Sequence[Any]) -> list[Path]:
    files: list[Path] = []
    for name in names:
        if not isinstance(name, str) or not _is_bare(name):
            raise ToolLoadError(
                f"{shown(name)} is not a name of a tool's file: give the bare name, "
                "without a folder."
            )
        files.append(folder / f"{name.removesuffix('.py')}.py")
    missing = [file.stem for file in files if not file.is_file()]
    if missing:
        available = ", ".join(file.stem for file in _files_in(folder)) or "none"
        raise ToolLoadError(
            f"There is no tool {_quoted(missing)} in `{folder}`. There are: {available}."
        )
    outside = [file.stem for file in files if not _is_inside(file, folder)]
    if outside:
        raise ToolLoadError(
            f"{_quoted(outside)} in `{folder}` is a link to a place outside; load it from there."
        )
    return files


def _is_bare(name: str) -> bool:
    return bool(name) and Path(name).name == name and "\\" not in name


def _is_inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _warn_or_raise(reason: str, *, strict: bool, cause: BaseException | None = None) -> None:
    if strict:
        raise ToolLoadError(reason) from cause
    warnings.warn(reason, UserWarning, stacklevel=4)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
