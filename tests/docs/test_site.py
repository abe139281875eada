"""What site/build.py makes of the pages, and what makes the site fail to build."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from inspect import ismodule
from pathlib import Path

import pytest
from docstring_parser import google
from msgspec.structs import asdict

import ferrule

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT / "docs").as_posix()
    for page in (ROOT / "docs").rglob("*.md")
    if page.parent.name != "decisions"
)


def options_of(site, home: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The parameters of a function, and the keys of the `TypedDict` that its `**options` unpack."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = {argument.arg for argument in every}
    names |= {star.arg for star in (arguments.vararg, arguments.kwarg) if star}
    match arguments.kwarg and arguments.kwarg.annotation:
        case ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=kind)):
            names |= keys_of(site, home, kind)
        case _:
            pass
    return names


def keys_of(site, home: str, kind: str) -> set[str]:
    """The keys of a `TypedDict` that a module defines or imports, with those of its bases."""
    for node in ast.walk(site._tree(home)):
        match node:
            case ast.ImportFrom(module=str(module)) if kind in {name.name for name in node.names}:
                return keys_of(site, module, kind)
            case ast.ClassDef(name=name) if name == kind:
                keys = {
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
                for base in node.bases:
                    if isinstance(base, ast.Name) and base.id != "TypedDict":
                        keys |= keys_of(site, home, base.id)
                return keys
            case _:
                pass
    raise LookupError(f"{home} has no {kind}")


def test_a_docstring_describes_only_parameters_that_exist(site) -> None:
    """The reference shows them. Zensical would warn, but it does not know unpacked options."""
    unknown = []
    for name, home in site.public_names().items():
        if "compat" in home:
            continue
        node = site._defined(home, name.rpartition(".")[2])
        functions = [node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
        described = ast.get_docstring(node) if isinstance(node, site._DEFINITIONS) else None
        if isinstance(node, ast.ClassDef):
            functions = [inner for inner in node.body if site._name_of(inner) == "__init__"]
        if not described or not functions:
            continue
        known = set().union(*(options_of(site, home, function) for function in functions))
        for parameter in google.parse(described).params:
            if parameter.args[0] == "param" and parameter.arg_name.lstrip("*") not in known:
                unknown.append(f"{name}: {parameter.arg_name}")
    assert unknown == []


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_shows_every_public_name_on_one_page(site) -> None:
    names = site.public_names()
    assert sorted(names) == sorted(
        [f"ferrule.{name}" for name in ferrule.__all__ if not ismodule(getattr(ferrule, name))]
        + [
            f"{module.__name__}.{name}"
            for module in (
                ferrule.acts,
                ferrule.cases,
                ferrule.errors,
                ferrule.events,
                ferrule.local,
                ferrule.mcp_bridge,
                ferrule.schemas,
                ferrule.testing,
            )
            for name in module.__all__
        ],
    )
    text = "\n".join(site.api_pages().values())
    assert [
        name
        for name, home in names.items()
        if text.count(f"::: {home}.{name.rpartition('.')[2]}\n") != 1
    ] == []


def test_a_module_without_a_page_of_the_reference_is_an_error(site) -> None:
    with pytest.raises(LookupError, match=r"add the beginning of its name to `API`"):
        site.api_page_of("ferrule.attic.old")


def test_the_navigation_names_every_page(site) -> None:
    nav = tomllib.loads((ROOT / "site" / "zensical.toml").read_text(encoding="utf-8"))["project"][
        "nav"
    ]
    named = site._pages_of(nav)
    assert [page for page in PAGES if page not in named] == []
    assert [page for page in site.API if f"reference/api/{page}.md" not in named] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_file_of_tests_that_runs_its_blocks(page: str) -> None:
    path = ROOT / "tests" / "docs" / page
    tests = path.with_name(f"test_{path.stem.replace('-', '_')}.py")
    assert tests.is_file(), f"write {tests.relative_to(ROOT)}"
    assert "execute(" in tests.read_text(encoding="utf-8")


def test_links_out_of_docs_lead_to_staged_pages_and_code_stays_as_it_is(site) -> None:
    page = ROOT / "docs" / "how-to" / "tools" / "x.md"
    staged = site.STAGE / "docs" / "how-to" / "tools" / "x.md"
    text = "[a](../../../examples/apps/chat.py) ![b](../../images/web-runs.png) [c](../../../README.md#installation) [d](https://x.y) [e](tools.md#z)\n"
    code = "```python\nf[0](../../../README.md)\n```\n"
    assert site._relinked(text + code, page, staged) == (
        "[a](../../examples/apps/chat.py.md) ![b](../../images/web-runs.png) [c](../../project/readme.md#installation) [d](https://x.y) [e](tools.md#z)\n"
        + code
    )


def test_the_list_for_language_models_gives_each_page_its_first_sentence(site) -> None:
    assert (
        site._first_sentence("# T\n\n```python\nx\n```\n\nA [link](x.md) first: then more. Last.")
        == ": A link first"
    )
    assert site._first_sentence("# T\n\n## U\n") == ""


PROGRAM = """
```python
import json

store = {}
```

```python
store["a"] = 1
```

```python
import json as other

print(other.dumps({}))
```

```python
assert store == {"a": 1}
```
"""


def copied(site, text: str) -> list[str]:
    """What a reader runs who copies one block of a page: the folded one before it, and the block."""
    folded = re.escape(site._FOLDED) + r"\n\n```python\n(?P<before>.*?)^```\n\n</details>\n\n"
    block = rf"(?:{folded})?^```python\n(?P<code>.*?)^```$"
    found = re.finditer(block, text, re.MULTILINE | re.DOTALL)
    return [(match["before"] or "") + match["code"] for match in found]


def test_a_block_that_needs_earlier_ones_gets_them_folded_and_runs_alone(site) -> None:
    text = site.with_code_before(PROGRAM)
    assert text.count(site._FOLDED) == 2
    assert (
        re.sub(re.escape(site._FOLDED) + ".*?</details>\n\n", "", text, flags=re.DOTALL) == PROGRAM
    )
    pieces = copied(site, text)
    assert len(pieces) == 4
    for piece in pieces:
        exec(piece, {})


def test_the_tests_behind_a_page_are_folded_at_its_end(site) -> None:
    text = site.with_folded_proofs("# A page\n\nWords.\n\n## Shown by\n\n- a test\n")
    assert text.startswith("# A page\n\nWords.\n\n<details")
    assert "data-search-exclude" in text
    assert text.endswith("- a test\n\n</details>\n")
    assert site.with_folded_proofs(PROGRAM) == PROGRAM


@pytest.mark.parametrize("page", ["how-to/agents/multi-turn.md"])
def test_each_block_of_a_page_runs_when_it_is_copied_alone(site, page: str, tmp_path: Path) -> None:
    """By the rule, each is the beginning of the page's program, which its own test runs whole."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    pieces = copied(site, site.with_code_before(text))
    assert len(pieces) == len(site._BLOCK.findall(text))
    program = tmp_path / "copied.py"
    before = ferrule.settings.current()
    for piece in pieces:
        program.write_text(piece, encoding="utf-8")
        try:
            runpy.run_path(str(program))  # with no name of an earlier block
        finally:
            ferrule.configure(**asdict(before))  # and without what it configured


@pytest.fixture(scope="module")
def staged(site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a site with the files for language models, without its HTML."""
    folder = tmp_path_factory.mktemp("staged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "STAGE", folder / "pages")
        site.stage()
        site._write_llms_txt(folder / "site")
        yield folder / "site"


def test_llms_txt_has_the_form_of_llmstxt_org_and_names_every_page(site, staged: Path) -> None:
    text = (staged / "llms.txt").read_text(encoding="utf-8")
    title, _, summary = text.splitlines()[:3]
    assert title == "# ferrule"
    assert summary.startswith("> ")
    for line in text.splitlines()[4:]:
        assert re.match(r"$|## \w|- \[.+\]\(\S+\.md\)(: .+)?$|The whole text", line), line
    links = re.findall(r"^- \[.+?\]\((\S+)\)", text, re.MULTILINE)
    assert [page for page in PAGES if page not in links] == []
    assert [link for link in links if not (staged / link).is_file()] == []


def test_llms_full_txt_holds_every_page_and_every_public_name(site, staged: Path) -> None:
    whole = (staged / "llms-full.txt").read_text(encoding="utf-8")
    assert ":::" not in whole
    for page in PAGES:
        assert (site.STAGE / "docs" / page).read_text(encoding="utf-8") in whole
    assert [name for name in site.public_names() if f"\n## {name}\n" not in whole] == []


def test_the_text_of_the_reference_is_python_without_private_members(site) -> None:
    text = site.api_text("approval")
    [grant] = re.findall(r"## ferrule\.Grant\n\n```python\n(.*?)```", text, re.DOTALL)
    [definition] = ast.parse(grant).body
    assert ast.get_docstring(definition).startswith("Consent to further calls")
    for page in site.API:
        for code in re.findall(
            r"```python\n(.*?)^```$", site.api_text(page), re.DOTALL | re.MULTILINE
        ):
            names = re.findall(r"^    def (_\w+)", code, re.MULTILINE)
            assert set(names) <= {"__init__"}


def test_a_notebook_is_a_page_of_its_cells_and_outputs(site) -> None:
    page = site._notebook(ROOT / "examples" / "notebooks" / "first_agent.ipynb")
    assert page.startswith("# A first agent\n")
    assert "```python\nfrom ferrule import" in page
    assert "<table>" in page


NOT_RUN = {
    "coming-from/langgraph.md": 1,  # the other library's program
    "coming-from/openai-agents.md": 1,
    "coming-from/pydantic-ai.md": 1,
    "how-to/agents/testing.md": 1,  # asks a real model
    "how-to/agents/types.md": 2,  # what a type checker rejects: tests/typing
    "how-to/mcp/mcp-login.md": 1,  # a person logs in
    "how-to/mcp/mcp-server.md": 2,  # serve until they are stopped
    "how-to/mcp/mcp.md": 2,  # an npm package; a signal handler
    "how-to/models/local-models.md": 2,  # load a model
    "how-to/models/local-servers.md": 1,  # needs a server that takes grammars
    "how-to/running/runs.md": 1,  # Postgres
    "how-to/running/services.md": 1,  # names of the example
    "how-to/running/workers.md": 2,  # Postgres
}
"""How many blocks of Python of a page neither run nor are the text of an example.

A new one needs its reason here.
"""


def is_python(code: str) -> bool:
    """Whether a block that is not marked as Python is code, not a command, an output or a name."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return False
    return any(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Call | ast.Assign | ast.FunctionDef)
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_block_of_python_runs_or_has_a_reason_not_to(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(
        r"^(<!-- [^\n]* -->\n)?```(\w*)\n(.*?)^```$",
        text,
        re.MULTILINE | re.DOTALL,
    )
    not_run = [
        code
        for marker, kind, code in blocks
        if not marker and (kind == "py" or (kind in {"", "text"} and is_python(code)))
    ]
    assert len(not_run) == NOT_RUN.get(page, 0), "\n".join(not_run)


ZENSICAL = ROOT / ".venv-docs" / ("Scripts" if os.name == "nt" else "bin") / "zensical"


@pytest.mark.skipif(not ZENSICAL.exists(), reason="needs the site's venv: `make docs` makes it")
@pytest.mark.parametrize(
    ("text", "builds"),
    [
        ("A page.", True),
        ("[a dead link](nowhere.md)", False),
        ("[a heading that is not there](index.md#nowhere)", False),
        ("::: ferrule.settings.nowhere", False),
        ("[an unknown name][ferrule.nowhere]", False),
    ],
    ids=["a page", "a dead link", "a dead anchor", "a missing object", "a missing reference"],
)
def test_the_site_builds_only_without_dead_links_and_missing_references(
    tmp_path: Path,
    text: str,
    *,
    builds: bool,
) -> None:
    config = (
        (ROOT / "site" / "zensical.toml")
        .read_text(encoding="utf-8")
        .replace("{root}", ROOT.as_posix())
    )
    config = re.sub(
        r"^nav = \[\n.*?^\]\n",
        'nav = ["index.md"]\n',
        config,
        flags=re.MULTILINE | re.DOTALL,
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ferrule.css").touch()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{text}\n", encoding="utf-8")
    (tmp_path / "zensical.toml").write_text(config, encoding="utf-8")
    done = subprocess.run(
        [ZENSICAL, "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) is builds, done.stdout + done.stderr
