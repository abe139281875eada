"""Reads programs of DSPy and udspy, and says what becomes of the names that they use.

Files are parsed, never imported or executed. A name is followed from its import to its uses in the
same file: `dspy.Predict`, `from dspy.teleprompt import MIPROv2 as Optimizer`, attributes of these,
and methods of classes that derive from them. What a variable holds is not followed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from ferrule.cli.migrate.names import LIBRARIES, Library, Name, names_of
from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_BYTES = 5_000_000
"""Of one file. Larger ones are data."""
_SUFFIXES = frozenset({".py", ".pyi", ".ipynb"})
_NOT_SOURCE = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})
_ADAPTERS = frozenset({"Adapter", "ChatAdapter", "JSONAdapter", "XMLAdapter"})
_MAGIC = re.compile(r"^([ \t]*)[%!?].*", re.MULTILINE)


class Use(Struct, frozen=True):
    """A name of a library, where a program uses it."""

    library: Library
    name: Name
    file: str
    line: int


class Checked(Struct):
    """What a repository uses of the libraries."""

    uses: list[Use] = field(default_factory=list[Use])
    files: int = 0
    """The number of files that use one of the libraries."""
    unread: dict[str, str] = field(default_factory=dict[str, str])
    """By file, why it could not be read."""


def check_repository(path: str | os.PathLike[str]) -> Checked:
    """Read a file, or all Python files and notebooks in a folder.

    Raises `ConfigurationError` if there is nothing at the path.
    """
    root = Path(path)
    if not root.exists():
        raise ConfigurationError(f"There is no file or folder {str(root)!r}.")
    checked = Checked()
    for file in sorted(_files(root)):
        shown_path = str(file.relative_to(root)) if root.is_dir() else str(file)
        try:
            uses = list(_uses_in(file, shown_path))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            checked.unread[shown_path] = _problem(error)
            continue
        checked.uses += uses
        checked.files += bool(uses)
    return checked


def _problem(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {error.msg}"
    return str(error) or type(error).__name__


def _files(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    # Links to folders are not followed: they may lead out, or in a circle.
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_SOURCE and name[0] != "."]
        for name in names:
            if Path(name).suffix in _SUFFIXES:
                yield Path(folder, name)


def _uses_in(file: Path, shown_path: str) -> Iterator[Use]:
    found = file.stat()  # of a link, what it leads to
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
        raise OSError("it is not a regular file")
    if found.st_size > _MOST_BYTES:
        raise OSError(f"it is larger than {_MOST_BYTES:,} bytes")
    source = file.read_bytes()
    if b"dspy" not in source:  # in both names
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the program: `"\d"`
        tree = ast.parse(_program(file, source))
    for library in LIBRARIES:
        yield from _Reader(library, shown_path).read(tree)


def _program(file: Path, source: bytes) -> bytes | str:
    """The program in a file; in a notebook, that of all its cells."""
    if file.suffix != ".ipynb":
        return source
    notebook: Any = json.loads(source)
    cells: Any = None
    if isinstance(notebook, dict):
        cells = cast("dict[str, Any]", notebook).get("cells")
    if not isinstance(cells, list):
        raise ValueError("it is not a notebook of version 4")
    # One program, because names that one cell imports are used in the others.
    programs: list[str] = []
    for cell in cast("list[Any]", cells):
        is_code = isinstance(cell, dict) and cast("Any", cell).get("cell_type") == "code"
        if is_code:
            text: Any = cast("dict[str, Any]", cell).get("source", "")
            if isinstance(text, list):
                text = "".join(map(str, cast("list[Any]", text)))
            programs.append(_without_magic(str(text)))
    return "\n".join(programs)


def _without_magic(cell: str) -> str:
    """The Python of a cell, with `pass` for each line that is for IPython."""
    if cell.lstrip().startswith("%%"):  # the whole cell is: perhaps in another language
        return "pass\n" * cell.count("\n")
    return _MAGIC.sub(r"\1pass", cell)


class _Reader:
    """The uses of one library in one program."""

    def __init__(self, library: Library, file: str) -> None:
        self._library: Library = library
        self._file = file
        self._names = names_of(library)
        self._modules: dict[str, tuple[str, ...]] = {}
        """By local name, the path of the module below the library."""
        self._imported: dict[str, str] = {}
        """By local name, the name of the library that it stands for."""

    def read(self, tree: ast.AST) -> Iterator[Use]:
        nodes = list(ast.walk(tree))
        for node in nodes:
            yield from self._imports(node)
        if not self._modules and not self._imported:
            return
        inner = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
        }
        for node in nodes:
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                yield from self._attribute(node)
            elif isinstance(node, ast.ClassDef):
                yield from self._methods(node)

    def _imports(self, node: ast.AST) -> Iterator[Use]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *path = alias.name.split(".")
                if first == self._library:
                    # `import dspy.teleprompt` binds `dspy`, with `as` the submodule.
                    self._modules[alias.asname or first] = tuple(path) if alias.asname else ()
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            first, *path = node.module.split(".")
            if first != self._library:
                return
            for alias in node.names:
                if alias.name == "*":
                    continue
                local = alias.asname or alias.name
                if self._is_module(alias.name):
                    self._modules[local] = (*path, alias.name)
                    continue
                self._imported[local] = alias.name
                yield self._use(alias.name, node.lineno)

    def _is_module(self, name: str) -> bool:
        return name not in self._names.by_name and name.islower() and name[0] != "_"

    def _attribute(self, node: ast.Attribute) -> Iterator[Use]:
        parts: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            parts.insert(0, value.attr)
            value = value.value
        if not isinstance(value, ast.Name):
            return
        if value.id in self._modules:
            while len(parts) > 1 and self._is_module(parts[0]):
                parts = parts[1:]
            yield self._use(".".join(parts), node.lineno)
        elif value.id in self._imported:
            dotted = f"{self._imported[value.id]}.{parts[0]}"
            if dotted in self._names.by_name:
                yield self._use(dotted, node.lineno)

    def _methods(self, node: ast.ClassDef) -> Iterator[Use]:
        bases = {name for base in node.bases if (name := self._name_of(base))}
        for method in node.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for base in bases:
                dotted = f"{base}.{method.name}"
                instead = self._names.not_called.get(method.name)
                if dotted in self._names.by_name:
                    yield self._use(dotted, method.lineno)
                elif base in _ADAPTERS and instead is not None:
                    note = f"a subclass that overrides it raises: {instead}"
                    name = Name(dotted, "missing", base, note)
                    yield Use(self._library, name, self._file, method.lineno)

    def _name_of(self, base: ast.expr) -> str:
        match base:
            case ast.Name(id=local):
                return self._imported.get(local, "")
            case ast.Attribute(value=ast.Name(id=local), attr=name) if local in self._modules:
                return name
            case _:
                return ""

    def _use(self, dotted: str, line: int) -> Use:
        """The use of a name: of `Predict.signature.fields`, the longest beginning in the table."""
        return Use(self._library, self._known(dotted), self._file, line)

    def _known(self, dotted: str) -> Name:
        parts = dotted.split(".")
        for end in range(len(parts), 0, -1):
            name = self._names.by_name.get(".".join(parts[:end]))
            if name is not None:
                return name
        note = f"it is not on our page about {self._library}: private, or of another version"
        return Name(parts[0], "missing", "", note)


def used_names(uses: Iterable[Use]) -> dict[tuple[Library, str], list[Use]]:
    """The uses by library and name, in the order of names."""
    grouped: dict[tuple[Library, str], list[Use]] = {}
    for use in uses:
        grouped.setdefault((use.library, use.name.name), []).append(use)
    return dict(sorted(grouped.items(), key=lambda item: (item[0][0], item[0][1].lower())))
