"""The plan of the house (docs/architecture.md), proved from the source.

`Source` is one module as text and tree; `arrows` lists whom it imports, wherever in the file that
stands. Each check is a function from sources to complaints (`file:line: what is wrong`), so that
the last tests can feed it bad snippets and see it complain.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ferrule"

FACADES = "ferrule.compat"
FACE = (
    "ferrule"  # the package's own `__init__`: above all rooms, so nobody inside may import from it
)
FLOORS = {
    "errors": 1,
    **dict.fromkeys(["encoding", "schema", "text_calls", "values", "approval"], 2),
    **dict.fromkeys(["acts", "events", "execute_calls", "forms", "observers", "record"], 2),
    **dict.fromkeys(["net", "concurrency", "settings", "embedded"], 2),
    **dict.fromkeys(["tools", "adapters", "models"], 3),
    **dict.fromkeys(["runs", "mcp_bridge", "telemetry", "front_ends", "testing"], 4),
    "programs": 5,
    "web": 6,
    "cli": 7,
    **dict.fromkeys(["__main__", "cases", "local", "schemas"], 8),
    FACE: 8,
    "compat": 9,
}
OPEN_FLOOR = 2  # rooms of data: one may import another, without a circle
LONGEST_TWIN = 20  # lines, signature included

# Pairs of a sync and an async function that may stand twice, and why: leaves that a user calls, or
# that wait by other means.
LEAVES = {
    "models/client.py": "the client's own sync and async streams",
    "net/transport.py": "the HTTP send, by httpx2's sync and async clients",
    "programs/lifecycle/batch.py": "threads, or tasks with a semaphore",
    "programs/lifecycle/batching.py": "called by users: two signatures with their documentation",
    "programs/lifecycle/resume.py": "called by users: the run is resumed here or awaited",
    "programs/lifecycle/advance.py": "called by users: the run is resumed here or awaited",
    "tools/execution/run.py": "the tool is called here, in a worker, or awaited",
    "execute_calls.py": "threads, or tasks",
}
SAY_NOTHING = {"utils", "helpers", "common", "base", "manager", "handler", "data", "info"}

# Heavy or optional packages, and the rooms that may import each: late, except that a door
# (terminal, browser) may open with its library.
HEAVY = {
    **dict.fromkeys(
        ["anthropic", "openai"],
        (),
    ),  # no room: ferrule speaks to providers over HTTP itself
    "dbos": ("runs",),
    "mcp": ("mcp_bridge",),
    "opentelemetry": ("telemetry",),
    **dict.fromkeys(["litellm", "llama_cpp", "llguidance", "torch", "transformers"], ("models",)),
    **dict.fromkeys(["rich", "typer"], ("cli",)),
    **dict.fromkeys(["starlette", "uvicorn"], ("front_ends", "mcp_bridge", "web")),
    "jinja2": ("models", "web"),  # templates of chats, and of pages
    "langchain_core": ("tools",),
}
DOORS = {"cli", "web"}
NOT_AT_IMPORT = {*HEAVY, "docstring_parser", "httpx2", "json_repair", "jsonschema_rs"}

# The walls: files that may stop any exception, and why.
WALLS = {
    "telemetry/otel/content.py": "a user's `redact`: what it cannot redact must not be sent, whatever it raises",
    "web/guard.py": "a page that fails is answered with a number, and its traceback goes to the log",
    "mcp_bridge/connection/callbacks.py": "what a hook raises is for our log: the SDK would send its text to the server",
    "errors.py": "a foreign `__repr__` may raise anything, and the error it belongs to must still be told",
    "concurrency/deadline.py": "what a task raised is handed to whoever waits for it, who raises it again",
    "concurrency/pool.py": "what work raised on another thread is handed to whoever waits for it, who raises it again",
    "tools/execution/run.py": "a tool is somebody else's code: what it raises is told to the model",
    "execute_calls.py": "a function run by hand: what it raises is raised again as an error of ours, or becomes a result",
    "encoding/encode.py": "a foreign `__str__` may raise anything, and a result must still be shown",
    "runs/driver/execution.py": "how a run ended, by whatever error, is recorded on it; reading its prediction raises it again",
    "runs/stream.py": "what a run raised on its own thread is raised again where its events are read",
    "runs/store/sqlite/batch.py": "what a write raised among those of others is raised again by its own caller",
    "runs/store/sqlite/writer_thread.py": "what a write raised on its thread is raised again by the callers that wait for it",
    "programs/lifecycle/batch.py": "what an item raised on its own thread is raised again where the batch waits for it",
    "programs/tool_use/reviewing.py": "whatever a reviewer raises, a person can still decide",
    "programs/lifecycle/evaluate.py": "an item whose metric raises has failed, and the others are scored",
    "compat/dspy/several_answers.py": "an attempt whose module or reward raises has failed, and the others count",
    "observers.py": "an observer is somebody else's code: what it raises must not end the run",
}

AT_MODULE_LEVEL, IN_FUNCTION, FOR_TYPES = "at module level", "in a function", "for types only"


@dataclass(frozen=True)
class Source:
    name: str  # dotted: `ferrule.tools.tool`
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree: several checks look at each of its 700,000 nodes."""
        return tuple(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@dataclass(frozen=True)
class Arrow:
    target: str  # dotted, perhaps with the imported name as its last part
    line: int
    when: str


def read_house() -> list[Source]:
    sources = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources.append(Source(name, path, path.read_text(encoding="utf-8")))
    return sources


@cache
def arrows(source: Source) -> tuple[Arrow, ...]:
    """Every import of a module.

    At its top, in functions, for types only, by `import_module("...")`. Most checks ask for all of
    the house's, which take seconds to find.
    """
    walk = _walk(source.tree, AT_MODULE_LEVEL)
    return tuple(
        Arrow(target, node.lineno, when) for node, when in walk for target in _targets(node, source)
    )


def _walk(tree: ast.AST, when: str) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Every statement and expression, with when it runs; in no particular order."""
    pending = [(tree, when)]
    while pending:
        parent, when = pending.pop()
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.If) and dotted_name(child.test) in {
                "TYPE_CHECKING",
                "typing.TYPE_CHECKING",
            }:
                pending.append((ast.Module(child.body, []), FOR_TYPES))
                pending.append((ast.Module(child.orelse, []), when))
                continue
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            inside = IN_FUNCTION if is_function else when
            if isinstance(child, ast.stmt | ast.expr):
                yield child, inside
            pending.append((child, inside))


def _targets(node: ast.AST, source: Source) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            package = source.name.split(".")
            package = package[: len(package) - level + source.is_package] if level else []
            yield from (
                ".".join([*package, *filter(None, [module]), alias.name]) for alias in names
            )
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            if dotted_name(function) in {"import_module", "importlib.import_module", "__import__"}:
                yield name


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` as text, `?` for what is no name in it; `ast.unparse` would take ten times as
    long for the house's 37,000 calls.
    """
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(names))


def room_of(dotted: str) -> str:
    """`ferrule.tools.tool.Tool` is at home in `tools`; `ferrule` and what it hands out, in the
    face.
    """
    parts = dotted.split(".")
    is_room = len(parts) > 1 and (
        parts[1] in FLOORS
        or (PACKAGE / parts[1]).is_dir()
        or (PACKAGE / f"{parts[1]}.py").is_file()
    )
    return parts[1] if is_room else FACE


def module_of(target: str, known: Collection[str]) -> str | None:
    """The module that holds an imported name: the longest known beginning of it."""
    while target not in known:
        target, _, last = target.rpartition(".")
        if not last:
            return None
    return target


# --- checks: sources in, complaints out


def arrows_not_pointing_down(sources: Iterable[Source]) -> Iterator[str]:
    for source in sources:
        home = room_of(source.name)
        for arrow in arrows(source):
            room = room_of(arrow.target)
            is_ours = arrow.target.split(".")[0] == "ferrule"
            is_open = FLOORS.get(room) == FLOORS.get(home) == OPEN_FLOOR
            is_below = FLOORS.get(room, 0) < FLOORS.get(home, 0)
            if is_ours and room != home and not is_below and not is_open:
                where = f"{room} (floor {FLOORS.get(room)}) from {home} (floor {FLOORS.get(home)})"
                yield f"{source.at(arrow.line)}: imports {arrow.target} {arrow.when}: {where}"


def circles(sources: Iterable[Source]) -> Iterator[str]:
    modules = {source.name: source for source in sources}
    known = modules.keys() - {FACE}
    graph = {
        name: {module_of(arrow.target, known) for arrow in arrows(modules[name])} - {name, None}
        for name in known
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield " imports ".join(reversed(error.args[1]))


def heavy_imports(sources: Iterable[Source]) -> Iterator[str]:
    for source in sources:
        home = room_of(source.name)
        for arrow in arrows(source):
            package = arrow.target.split(".")[0]
            if package not in HEAVY:
                continue
            if home not in HEAVY[package]:
                yield f"{source.at(arrow.line)}: imports {package}, which only {' and '.join(HEAVY[package]) or 'nobody'} may"
            elif arrow.when == AT_MODULE_LEVEL and home not in DOORS:
                yield f"{source.at(arrow.line)}: imports {package} at module level: import it where it is used"


def circles_of_folders(sources: Iterable[Source]) -> Iterator[str]:
    """Folders, or modules and folders, side by side that import each other, by whatever chain of
    siblings.
    """
    modules = {source.name: source for source in sources}
    known = modules.keys() - {FACE}
    siblings: dict[str, dict[str, set[str]]] = {}
    for name in known:
        for arrow in arrows(modules[name]):
            target = module_of(arrow.target, known)
            if target is None:
                continue
            here, there = name.split("."), target.split(".")
            shared = next(
                (i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b),
                None,
            )
            if shared is not None:
                siblings.setdefault(".".join(here[:shared]), {}).setdefault(
                    here[shared],
                    set(),
                ).add(there[shared])
    for folder, graph in siblings.items():
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            yield f"{folder}: " + " imports ".join(reversed(error.args[1]))


def several_homes(sources: Iterable[Source]) -> Iterator[str]:
    """Public names that are defined in more than one module.

    Wires are exempt: each is a module with the same functions. Facades are too: each has the names
    of another library.
    """
    homes: dict[str, set[str]] = {}
    for source in sources:
        if (
            ".wires." not in source.name
            and not source.name.startswith(f"{FACADES}.")
            and not source.name.endswith("__main__")
        ):
            for name in _defined(source.tree):
                homes.setdefault(name, set()).add(source.name)
    for name, modules in sorted(homes.items()):
        if len(modules) > 1 and modules != {
            "ferrule.mcp_bridge.server.app",
            "ferrule.testing.server.server",
        }:  # `ferrule.serve`, `ferrule.testing.serve`
            yield f"`{name}` is defined in {', '.join(sorted(modules))}: one name, one home"


def _defined(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names = [name]
            case ast.Assign(targets=targets, value=value) if not ast.unparse(value).startswith(
                ("TypeVar", "ParamSpec", "logging.getLogger"),
            ):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def facade_of(dotted: str) -> str | None:
    """`ferrule.compat.dspy.manners` is a part of `ferrule.compat.dspy`."""
    parts = dotted.split(".")
    return ".".join(parts[:3]) if dotted.startswith(f"{FACADES}.") else None


def facades_that_are_imported(sources: Iterable[Source]) -> Iterator[str]:
    """A facade is for users: nothing imports one, not even the other facade."""
    for source in sources:
        for arrow in arrows(source):
            facade = facade_of(arrow.target)
            if facade not in {None, facade_of(source.name)}:
                yield f"{source.at(arrow.line)}: imports {arrow.target} {arrow.when}: a facade, which nothing imports"


def facades_that_look_inside(sources: Iterable[Source]) -> Iterator[str]:
    """What a facade needs of the core has a name without an underscore there."""
    for source in sources:
        for arrow in arrows(source) if facade_of(source.name) else ():
            is_future = arrow.target.startswith("__future__")
            if not is_future and any(part.startswith("_") for part in arrow.target.split(".")):
                yield f"{source.at(arrow.line)}: imports {arrow.target}, which is private"


def driver_named_in_programs(sources: Iterable[Source]) -> Iterator[str]:
    """A program yields acts; the journal, the scope and the frame belong to the driver."""
    for source in sources:
        if room_of(source.name) != "programs":
            continue
        for node in source.nodes:
            name = (
                getattr(node, "id", None)
                or getattr(node, "attr", None)
                or getattr(node, "arg", None)
                or getattr(node, "module", None)
            )
            if isinstance(name, str) and {"journal", "scope", "frame"} & set(
                re.split(r"[._]", name),
            ):
                yield f"{source.at(getattr(node, 'lineno', 1))}: names `{name}`, which is the driver's"


def twins(sources: Iterable[Source]) -> Iterator[str]:
    """Functions of one module or class that stand twice, as `f` and `af` (or `_f` and `_af`), both
    longer than a leaf may be.
    """
    for source in sources:
        for place in source.nodes:
            if (
                not isinstance(place, ast.Module | ast.ClassDef)
                or source.path.relative_to(PACKAGE).as_posix() in LEAVES
            ):
                continue
            lines = {
                node.name: (node.end_lineno or node.lineno) - node.lineno + 1
                for node in place.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            for name in (each for each in lines if not each.startswith("__")):
                bare = name.lstrip("_")
                twin = f"{name[: len(name) - len(bare)]}a{bare}"
                if lines[name] > LONGEST_TWIN and lines.get(twin, 0) > LONGEST_TWIN:
                    yield f"{source.at(1)}: `{name}` and `{twin}` say the same twice, in {lines[name]} and {lines[twin]} lines"


def context_variables(sources: Iterable[Source]) -> Iterator[str]:
    for source in sources:
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Subscript):
                called = called.value
            if dotted_name(called) in {"ContextVar", "contextvars.ContextVar"}:
                yield f"{source.at(node.lineno)}: makes a ContextVar"


def stops_everything(sources: Iterable[Source]) -> Iterator[str]:
    for source in sources:
        for node in source.nodes:
            if _stops_everything(node) and source.path.relative_to(PACKAGE).as_posix() not in WALLS:
                yield f"{source.at(node.lineno)}: stops any exception, but is none of the walls ({', '.join(WALLS)})"


def _stops_everything(node: ast.AST) -> bool:
    match node:
        case ast.ExceptHandler(type=None):
            return True
        case ast.ExceptHandler(type=caught, body=[*_, last]):
            names = {
                ast.unparse(name)
                for name in (caught.elts if isinstance(caught, ast.Tuple) else [caught])
            }
            passes_on = (
                isinstance(last, ast.Raise) and last.exc is None
            )  # tidying up after BaseException is no wall
            return "Exception" in names or ("BaseException" in names and not passes_on)
        case ast.Call(func=function, args=args):
            if dotted_name(function) not in {"suppress", "contextlib.suppress"}:
                return False
            return not {"Exception", "BaseException"}.isdisjoint(map(ast.unparse, args))
    return False


def answers_without_bounds(sources: Iterable[Source]) -> Iterator[str]:
    """Answers of servers are read in `net` alone, which bounds their time, size and expansion."""
    for source in sources:
        if room_of(source.name) == "net":
            continue
        for node in source.nodes:
            if not isinstance(node, ast.Call) or not isinstance(
                node.func, (ast.Attribute, ast.Name)
            ):
                continue
            called = dotted_name(node.func)
            if re.search(
                r"^httpx2\.(Async)?Client$|response\.(a?read|a?iter_\w+)$|urlopen$", called
            ):
                yield f"{source.at(node.lineno)}: `{called}` has no bounds; see `net/reading.py`"


def lines_with(pattern: str, paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(),
            1,
        ):
            if re.search(pattern, line):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def complain(complaints: Iterable[str]) -> None:
    found = sorted(complaints)
    assert not found, "\n".join(["", *found])


# --- the house

HOUSE = read_house()


def test_every_room_has_a_floor() -> None:
    complain(
        f"{source.at(1)}: no floor is known for `{room_of(source.name)}`"
        for source in HOUSE
        if room_of(source.name) not in FLOORS
    )


CHECKS = [
    answers_without_bounds,
    arrows_not_pointing_down,
    circles,
    circles_of_folders,
    driver_named_in_programs,
    facades_that_are_imported,
    facades_that_look_inside,
    heavy_imports,
    several_homes,
    stops_everything,
    twins,
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_plan_knows_no(check) -> None:
    complain(check(HOUSE))


def test_there_is_exactly_one_context_variable() -> None:
    found = list(context_variables(HOUSE))
    assert len(found) == 1, "\n".join(
        ["one ContextVar carries all that is ambient; found:", *found],
    )


def test_folders_hand_nothing_on() -> None:
    public = {FACE, "ferrule.mcp_bridge", "ferrule.testing", f"{FACADES}.dspy", f"{FACADES}.udspy"}
    # A wire is a folder whose functions are called by the folder's name.
    folders = [
        source
        for source in HOUSE
        if source.is_package and source.name not in public and ".wires." not in source.name
    ]
    beyond = (
        (source, node)
        for source in folders
        for node in source.tree.body[bool(ast.get_docstring(source.tree)) :]
    )
    complain(f"{source.at(node.lineno)}: more than a docstring" for source, node in beyond)


def test_names_of_modules_say_something() -> None:
    complain(
        f"{source.at(1)}: the name says nothing"
        for source in HOUSE
        if source.name.split(".")[-1].strip("_") in SAY_NOTHING
    )


def test_nothing_is_left_to_do() -> None:
    complain(lines_with(r"\b(TODO|FIXME)\b", [source.path for source in HOUSE]))


_CODE = r"[(,] ?(durability, |performance, )?[CDEFLMOPQRUVW]\d{1,3}[):,]"
OUTSIDE = (
    _CODE
    + r"|(?i:\bseed \d|\bseed's\b|\bspec/|\bapi\.md\b|performance\.md)|\.\./shared|['\"]shared['\"]"
)


def test_the_source_cites_no_document_outside_the_repository() -> None:
    complain(lines_with(OUTSIDE, [source.path for source in HOUSE]))


def test_the_face_is_lazy() -> None:
    [face] = [source for source in HOUSE if source.name == FACE]
    assert any(
        isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in face.tree.body
    ), "the face has no `__getattr__`"
    eager = [
        arrow
        for arrow in arrows(face)
        if arrow.when == AT_MODULE_LEVEL and arrow.target.split(".")[0] == "ferrule"
    ]
    complain(f"{face.at(arrow.line)}: imports {arrow.target} {arrow.when}" for arrow in eager)


def test_every_name_of_the_face_resolves() -> None:
    face = importlib.import_module(FACE)
    assert len(face.__all__) == len(set(face.__all__)), "a name stands twice in `__all__`"
    complain(
        f"`ferrule.{name}` is promised by `__all__`, but is not there"
        for name in face.__all__
        if not hasattr(face, name)
    )


def test_importing_the_face_loads_no_room_and_nothing_heavy() -> None:
    """No torch, transformers or llguidance."""
    program = "import sys; import ferrule; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    complain(
        name for name in run.stdout.split() if name.startswith("ferrule.") or name in NOT_AT_IMPORT
    )


def test_no_file_names_a_machine_or_a_registry() -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    private = r"(?<![\w.-])/(?:work|home|root|opt)/|pypi\.org|pythonhosted\.org|npmjs\.|debian\.org|golang\.org"
    complain(
        lines_with(
            private,
            [ROOT / name for name in listed.stdout.split("\0") if (ROOT / name).is_file()],
        ),
    )


# --- the checks themselves


def a_module(name: str, text: str) -> Source:
    return Source(name, PACKAGE.parent / f"{name.replace('.', '/')}.py", text)


UPWARD = {
    "plain": "from ferrule.programs.react import ReAct",
    "lazy": "def f():\n    from ferrule.runs import driver",
    "for_types": "if TYPE_CHECKING:\n    from ferrule.cli.main import main",
    "relative": "from ..models import model",
    "sideways": "import ferrule.adapters.chat",
    "by_string": "import importlib\nweb = importlib.import_module('ferrule.cli.web')",
    "through_the_face": "from ferrule import Tool",
    "in_a_method": "class A:\n    async def f(self):\n        import ferrule.programs.module",
}


@pytest.mark.parametrize("snippet", UPWARD.values(), ids=UPWARD.keys())
def test_an_arrow_that_does_not_point_down_is_seen(snippet: str) -> None:
    assert len(list(arrows_not_pointing_down([a_module("ferrule.tools.tool", snippet)]))) == 1


def test_arrows_down_and_within_a_room_are_fine() -> None:
    snippet = "import ferrule.errors\nfrom ferrule import settings\nfrom . import schema\nfrom ..values import call\nfrom ferrule.schema.nodes import inline"
    assert list(arrows_not_pointing_down([a_module("ferrule.tools.tool", snippet)])) == []


BACK = [
    "from ferrule.tools import a",
    "def f():\n    import ferrule.tools.a",
    "if TYPE_CHECKING:\n    from .a import name",
]


@pytest.mark.parametrize("back", BACK, ids=["plain", "lazy", "for_types"])
def test_a_circle_is_seen(back: str) -> None:
    there = a_module("ferrule.tools.a", "from .b import name")
    assert len(list(circles([there, a_module("ferrule.tools.b", back)]))) == 1
    assert list(circles([there, a_module("ferrule.tools.b", "import json")])) == []


@pytest.mark.parametrize(("lines", "complaints"), [(LONGEST_TWIN, 0), (LONGEST_TWIN + 1, 1)])
def test_a_text_for_sync_and_one_for_async_are_seen(lines: int, complaints: int) -> None:
    body = "        x = 1\n" * (lines - 1)
    methods = f"class A:\n    def _f(self):\n{body}    async def _af(self):\n{body}"
    assert len(list(twins([a_module("ferrule.tools.tool", methods)]))) == complaints


def test_a_facade_may_import_the_face_and_its_own_parts() -> None:
    facade = a_module(
        "ferrule.compat.dspy.names",
        "import ferrule\nfrom ferrule import Tool\nfrom ferrule.compat.dspy.manners import Example",
    )
    assert (
        list(arrows_not_pointing_down([facade])) == list(facades_that_are_imported([facade])) == []
    )


BAD = {
    "facade_below": (
        facades_that_are_imported,
        "ferrule.programs.module",
        "def f():\n    from ferrule.compat import dspy",
    ),
    "facade_beside": (
        facades_that_are_imported,
        "ferrule.compat.udspy",
        "import ferrule.compat.dspy.manners",
    ),
    "facade_inside": (
        facades_that_look_inside,
        "ferrule.compat.udspy.manners",
        "from ferrule.models.model import _told",
    ),
    "unbounded_client": (
        answers_without_bounds,
        "ferrule.models.model",
        "def f():\n    import httpx2\n    return httpx2.AsyncClient(timeout=5)",
    ),
    "unbounded_answer": (
        answers_without_bounds,
        "ferrule.mcp_bridge.spec",
        "async def f(response):\n    return await response.aread()",
    ),
    "heavy_at_the_top": (heavy_imports, "ferrule.telemetry.otel", "import opentelemetry.trace"),
    "heavy_in_another_room": (heavy_imports, "ferrule.tools.tool", "def f():\n    import mcp"),
    "context_variable": (
        context_variables,
        "ferrule.runs.run",
        "import contextvars\nx = contextvars.ContextVar[int]('x')",
    ),
    "wall": (
        stops_everything,
        "ferrule.models.model",
        "try:\n    f()\nexcept (KeyError, Exception):\n    pass",
    ),
    "swallowed_base": (
        stops_everything,
        "ferrule.models.model",
        "try:\n    f()\nexcept BaseException as e:\n    raise ValueError from e",
    ),
    "suppressed": (
        stops_everything,
        "ferrule.models.model",
        "with contextlib.suppress(Exception):\n    f()",
    ),
}


@pytest.mark.parametrize(("check", "name", "snippet"), BAD.values(), ids=BAD.keys())
def test_a_breach_is_seen(check, name: str, snippet: str) -> None:
    assert len(list(check([a_module(name, snippet)]))) == 1
