"""Build the documentation site: `make docs` builds it into build/site, `scripts/docs-serve.sh` shows it.

The pages of docs/ are read in the repository too, so they link to examples and to README.md with paths. This script stages them in
build/pages, where such files are pages as well, and adds what is made from the source: the API reference and the list of decisions.
Zensical builds the result strictly. Then the script checks that the pages load nothing from another server, and writes `llms.txt` and the
list of versions.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from copy import copy
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

ROOT = Path(__file__).parents[1]
STAGE, OUTPUT = ROOT / "build" / "pages", ROOT / "build" / "site"
PAPERS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "LICENSE",
)
LANGUAGES = {".py": "python", ".html": "html", ".js": "javascript", ".ipynb": "json", "": "text"}

API = {
    "programs": ("Programs", "programs.", "values.signatures.", "values.outcome"),
    "tools": (
        "Tools",
        "tools.execution.",
        "tools.decorator",
        "tools.search",
        "tools.skills.",
        "tools.tool",
        "values.calls.",
        "values.provider_tools",
        "schema.",
    ),
    "models": ("Models", "models.", "values.conversation.exchange"),
    "adapters": ("Adapters", "adapters."),
    "conversations": ("Conversations and content", "values.conversation.", "values.content."),
    "approval": ("Approval", "approval.", "runs.decisions"),
    "runs": ("Runs", "runs.", "web.", "programs.lifecycle.advance", "runs.store.dbos"),
    "events": ("Events and observers", "events", "observers", "telemetry.", "front_ends."),
    "acts": ("Acts", "acts"),
    "mcp": ("MCP", "mcp_bridge.", "tools.server_tools", "tools.mcp_definition", "tools.mcp."),
    "testing": ("Testing", "testing.", "runs.cases."),
    "settings": ("Settings", "settings"),
    "errors": ("Errors", "errors"),
}
"""The pages of the API reference: a title, and how the modules begin whose public names it shows. The longest beginning wins."""

_LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FOLDED = '<details class="before" markdown="1" data-search-exclude><summary>The code before this block</summary>'
_NOT_SEARCHED = ("decisions", "examples")
"""Folders whose pages a search does not find: a reader who looks for a task would get them before the page on it."""
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOADED = re.compile(
    r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//([^"'\s>]+)""",
)


def public_names() -> dict[str, str]:
    """The public names of ferrule, and the module that defines each, without importing any."""
    names: dict[str, str] = {}
    for package in ("ferrule", "ferrule.testing", "ferrule.mcp_bridge"):
        for home, members in _homes(package).items():
            names |= {f"{package}.{name}": home for name in members}
    for module in ("acts", "errors", "events"):
        members = _assigned(f"ferrule.{module}", "__all__")
        names |= {f"ferrule.{module}.{name}": f"ferrule.{module}" for name in members}
    for module in ("cases", "local", "schemas"):  # these import each name from its home
        for node in _tree(f"ferrule.{module}").body:
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                names |= {
                    f"ferrule.{module}.{alias.name}": str(node.module) for alias in node.names
                }
    return names


def _homes(package: str) -> dict[str, tuple[str, ...]]:
    """The table of a package that loads its names when they are first used, by full module name."""
    table: dict[str, tuple[str, ...]] = _assigned(package, "_HOMES")
    return {
        home if home.startswith("ferrule.") else f"{package}.{home}": names
        for home, names in table.items()
    }


def _assigned(module: str, name: str) -> Any:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{module} has no `{name}`")


@cache
def _tree(module: str) -> ast.Module:
    path = ROOT / "src" / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def api_page_of(home: str) -> str:
    """The page that shows a module's public names."""
    inside = home.removeprefix("ferrule.")
    found = {
        beginning: page
        for page, (_, *beginnings) in API.items()
        for beginning in beginnings
        if inside.startswith(beginning)
    }
    if not found:
        raise LookupError(
            f"no page of the API reference shows `{home}`: add the beginning of its name to `API` in site/build.py",
        )
    return found[max(found, key=len)]


def api_pages() -> dict[str, str]:
    """The text of each page of the API reference."""
    shown: dict[str, dict[str, str]] = {page: {} for page in API}
    for name, home in sorted(public_names().items()):
        shown[api_page_of(home)].setdefault(f"{home}.{name.rpartition('.')[2]}", name)
    pages: dict[str, str] = {}
    for page, objects in shown.items():
        blocks = "\n".join(
            f"::: {path}\n    options:\n      heading: {name}\n" for path, name in objects.items()
        )
        pages[page] = f"# {API[page][0]}\n\n{blocks}"
    return pages


def api_text(page: str) -> str:
    """A page of the API reference as plain text, for language models: signatures and docstrings."""
    parts = [f"# {API[page][0]}"]
    for name, home in sorted(public_names().items()):
        if api_page_of(home) == page:
            node = _defined(home, name.rpartition(".")[2])
            parts.append(f"## {name}\n\n```python\n{_outline(node)}\n```")
    return "\n\n".join(parts) + "\n"


def _defined(module: str, name: str) -> ast.stmt:
    """The statement that gives a module this name. Of several, as with `@overload`, it is the last."""
    node = _definitions(module).get(name)
    if node is not None:
        return node
    for node in _tree(module).body:  # the module hands on what another one defines
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _defined(str(node.module), name)
    raise LookupError(f"{module} does not define `{name}`")


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    return {_name_of(node): node for node in ast.walk(_tree(module)) if isinstance(node, ast.stmt)}


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name
        case ast.Assign():
            return ast.unparse(node.targets[0])
        case ast.AnnAssign():
            return ast.unparse(node.target)
        case _:
            return ""


def _outline(node: ast.stmt) -> str:
    """A definition without the bodies of its functions, and without private members."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            docstring = ast.get_docstring(node)
            body = "..." if docstring is None else _quoted(docstring)
        case ast.ClassDef():
            members = [_outline(member) for member in node.body if _is_public(member)]
            body = "\n".join(members) or "..."
        case ast.Expr(value=ast.Constant(value=str() as docstring)):
            return _quoted(inspect.cleandoc(docstring))
        case _:
            return ast.unparse(node)
    without_body = copy(node)
    without_body.body = [ast.Expr(ast.Constant(...))]
    head = ast.unparse(without_body).removesuffix("...").rstrip()
    return f"{head}\n{indent(body, '    ')}"


def _quoted(docstring: str) -> str:
    return f'"""{docstring}"""'


def _is_public(member: ast.stmt) -> bool:
    match member:
        case ast.Expr(value=ast.Constant(value=str())):  # a docstring, of the class or a field
            return True
        case _:
            name = _name_of(member)
            return name == "__init__" or name[:1].isalpha()


def stage() -> None:
    """Write all pages into build/pages."""
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = STAGE / "docs"
    shutil.copytree(ROOT / "docs", pages)
    for name in PAPERS:
        _write(pages / "project" / f"{name.removesuffix('.md').lower()}.md", _paper(ROOT / name))
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.suffix in LANGUAGES:
            text = _notebook(path) if path.suffix == ".ipynb" else f"# {path.name}\n\n{_code(path)}"
            _write(pages / f"{path.relative_to(ROOT).as_posix()}.md", text)
    for page in (ROOT / "docs").rglob("*.md"):
        text = _relinked(
            page.read_text(encoding="utf-8"),
            page,
            pages / page.relative_to(ROOT / "docs"),
        )
        _write(pages / page.relative_to(ROOT / "docs"), text)
    for page, text in api_pages().items():
        _write(pages / "reference" / "api" / f"{page}.md", text)
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    rows = "\n".join(
        f"- [{_title(page.read_text(encoding='utf-8'))}]({page.name})" for page in decisions
    )
    _write(
        pages / "decisions" / "index.md",
        f"# Decisions\n\nWhy ferrule is built as it is: each page has a question, the choices and the decision.\n\n{rows}\n",
    )
    for name in ("ferrule.css",):
        shutil.copy(ROOT / "site" / name, pages / name)
    config = (
        (ROOT / "site" / "zensical.toml")
        .read_text(encoding="utf-8")
        .replace("{root}", ROOT.as_posix())
    )
    _write(STAGE / "zensical.toml", config)


def with_code_before(text: str) -> str:
    """A page whose blocks of Python each run when they are copied alone.

    Readers come to the middle of a page, from a search or a link. The blocks of a page are one program, as its test runs them. So a block that needs
    names of earlier ones gets these blocks as one folded block, before it.
    """
    before: list[str] = []
    bound: set[str] = set()

    def fold(block: re.Match[str]) -> str:
        code = block[1]
        folded = ""
        if _free_names(code) & bound:
            earlier = "".join(before)
            folded = f"{_FOLDED}\n\n```python\n{earlier}```\n\n</details>\n\n"
        before.append(code)
        bound.update(_bound_names(ast.parse(code)))
        return folded + block[0]

    return _BLOCK.sub(fold, text)


def with_folded_proofs(text: str) -> str:
    """A page whose last section, the tests behind its promises, is folded: no reader looks for it, and a search would find it first."""
    page, heading, proofs = text.partition("\n## Shown by\n")
    if not heading:
        return text
    folded = f'<details markdown="1" data-search-exclude><summary>Shown by</summary>\n{proofs}\n</details>\n'
    return f"{page}\n{folded}"


def _free_names(code: str) -> set[str]:
    """The names that a block reads and does not bind before."""
    free: set[str] = set()
    bound: set[str] = set()
    for statement in ast.parse(code).body:
        read = {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        own = _bound_names(statement) if isinstance(statement, _DEFINITIONS) else set()
        free |= read - bound - own
        bound |= _bound_names(statement)
    return free


def _bound_names(tree: ast.AST) -> set[str]:
    """All names that code binds, at any depth: too many rather than too few."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add((asname or name).partition(".")[0])
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                names.add(name)
            case _:
                pass
    return names


def version() -> str:
    """The version of ferrule, which its `__init__.py` holds."""
    return re.findall(
        r'^__version__ = "(.+)"$',
        (ROOT / "src/ferrule/__init__.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    )[0]


def _paper(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return (
        _relinked(text, path, STAGE / "docs" / "project" / "x.md")
        if path.suffix
        else f"# {path.name.capitalize()}\n\n{_code(path)}"
    )


def _code(path: Path) -> str:
    return f"````{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}````\n"


def _notebook(path: Path) -> str:
    """The cells of a notebook, with the outputs that it holds."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            html = "".join(output.get("data", {}).get("text/html", ()))
            parts.append(
                html.replace("\n", "&#10;") or f"```text\n{''.join(output.get('text', ()))}```",
            )
    return "\n\n".join(parts) + "\n"


def _relinked(text: str, source: Path, staged: Path) -> str:
    """The text with its links to files of the repository as links to their staged pages. Code blocks stay as they are."""

    def relink(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        target = Path(os.path.normpath(source.parent / link))
        if "://" in link or link.startswith("mailto:") or not target.is_relative_to(ROOT):
            return match[0]
        return (
            f"{before}{os.path.relpath(_staged(target), staged.parent).replace(os.sep, '/')}{after}"
        )

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(relink, part) for part in parts)


def _staged(target: Path) -> Path:
    inside = target.relative_to(ROOT)
    pages = STAGE / "docs"
    if inside.as_posix() in PAPERS:
        return pages / "project" / f"{inside.stem.lower()}.md"
    if inside.parts[0] == "examples":
        return pages / f"{inside.as_posix()}.md"
    staged = pages / Path(*inside.parts[1:])
    return staged / "index.md" if target.is_dir() else staged


def _title(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def build() -> None:
    """Build the staged pages into build/site/VERSION, strictly."""
    site = OUTPUT / version()
    shutil.rmtree(site, ignore_errors=True)
    _write_llms_txt(site)  # from the pages before their blocks get the code that they need
    for page in (STAGE / "docs").rglob("*.md"):
        text = with_folded_proofs(with_code_before(page.read_text(encoding="utf-8")))
        if page.relative_to(STAGE / "docs").parts[0] in _NOT_SEARCHED:
            text = f"{_UNSEARCHED}{text}"
        _write(page, text)
    done = subprocess.run(
        [_zensical(), "build", "--strict", "--clean"],
        cwd=STAGE,
        check=False,
        capture_output=True,
        encoding="utf-8",
    )
    print(done.stdout, done.stderr, sep="", end="")
    if done.returncode or "Warning" in done.stdout + done.stderr:
        sys.exit("site: Zensical found problems in the pages (above)")
    shutil.copytree(STAGE / "site", site, dirs_exist_ok=True)
    foreign = sorted(
        {
            f"{page.relative_to(site)}: {found}"
            for page in site.rglob("*.html")
            for found in _LOADED.findall(page.read_text("utf-8"))
        },
    )
    if foreign:
        sys.exit("site: pages load something from elsewhere:\n  " + "\n  ".join(foreign))
    _write_versions()
    print(f"site: {sum(1 for _ in site.rglob('*.html'))} pages in {site.relative_to(ROOT)}")


def _zensical() -> str:
    return str(Path(sys.executable).parent / "zensical")


def _write_llms_txt(site: Path) -> None:
    """`llms.txt` names every page with its first sentence, in the form of llmstxt.org; `llms-full.txt` holds their text.

    Each page is beside its HTML as Markdown, too. The pages of the API reference have no text in the stage: it is made here.
    """
    project = tomllib.loads((STAGE / "zensical.toml").read_text(encoding="utf-8"))["project"]
    lines, whole = ["# ferrule", "", f"> {project['site_description']}", ""], []
    lines += [
        "The whole text is in [llms-full.txt](llms-full.txt). A skill for coding agents comes with the package: `ferrule skill install`.",
        "",
    ]
    for section in project["nav"]:
        ((title, inside),) = section.items()
        lines += [f"## {title}", ""]
        for page in _pages_of(inside):
            if page.startswith("reference/api/"):
                text = api_text(Path(page).stem)
            else:
                text = (STAGE / "docs" / page).read_text(encoding="utf-8")
            _write(site / page, text)
            lines.append(f"- [{_title(text)}]({page}){_first_sentence(text)}")
            whole.append(text)
        lines.append("")
    _write(site / "llms.txt", "\n".join(lines))
    _write(site / "llms-full.txt", "\n\n".join(whole))


def _pages_of(nav: object) -> list[str]:
    match nav:
        case str():
            return [nav]
        case list():
            return [page for entry in nav for page in _pages_of(entry)]
        case dict():
            return [page for entry in nav.values() for page in _pages_of(entry)]
        case _:
            raise TypeError(f"nav: expected pages, lists and tables, found {nav!r}")


def _first_sentence(text: str) -> str:
    paragraphs = [
        " ".join(part.split())
        for part in re.split(
            r"\n\s*\n",
            re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL),
        )
    ]
    prose = next((part for part in paragraphs if part and part[0] not in "#<|:-!`"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    sentence = re.split(r"(?<=[.:])\s", plain)[0].rstrip(":.")
    return f": {sentence}" if sentence else ""


def _write_versions() -> None:
    """`versions.json` lists the versions in build/site for the menu of the pages; the start page leads to the newest."""
    found = sorted(
        (path.name for path in OUTPUT.iterdir() if path.is_dir()),
        key=lambda name: [int(n) for n in re.findall(r"\d+", name)],
        reverse=True,
    )
    rows = [
        {"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []}
        for name in found
    ]
    _write(OUTPUT / "versions.json", json.dumps(rows, indent=2) + "\n")
    _write(
        OUTPUT / "index.html",
        f'<!doctype html><meta charset="utf-8"><title>ferrule</title><meta http-equiv="refresh" content="0; url={found[0]}/">\n',
    )


def serve(port: int) -> None:
    """Serve build/site on loopback."""
    print(f"site: http://127.0.0.1:{port}/{version()}/ (Ctrl-C ends)")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "http.server",
            str(port),
            "--bind",
            "127.0.0.1",
            "--directory",
            str(OUTPUT),
        ],
        check=False,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--serve",
        type=int,
        metavar="PORT",
        help="serve the pages after building them",
    )
    arguments = parser.parse_args()
    stage()
    build()
    if arguments.serve:
        serve(arguments.serve)
