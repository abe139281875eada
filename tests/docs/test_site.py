"""What site/build.py makes of the pages. That the site builds strictly is shown by `make docs`."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

import ferrule
from ferrule import testing

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions")


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_shows_every_public_name_on_one_page(site) -> None:
    names = site.public_names()
    assert sorted(names) == sorted(
        [f"ferrule.{name}" for name in ferrule.__all__ if name != "settings"] + [f"ferrule.testing.{name}" for name in testing.__all__]
    )
    text = "\n".join(site.api_pages().values())
    assert [name for name, home in names.items() if text.count(f"::: {home}.{name.rpartition('.')[2]}\n") != 1] == []


def test_a_module_without_a_page_of_the_reference_is_an_error(site) -> None:
    with pytest.raises(LookupError, match=r"add the beginning of its name to `API`"):
        site.api_page_of("ferrule.attic.old")


def test_the_navigation_names_every_page(site) -> None:
    nav = tomllib.loads((ROOT / "site" / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
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
    assert site._first_sentence("# T\n\n```python\nx\n```\n\nA [link](x.md) first: then more. Last.") == ": A link first"
    assert site._first_sentence("# T\n\n## U\n") == ""


def test_a_notebook_is_a_page_of_its_cells_and_outputs(site) -> None:
    page = site._notebook(ROOT / "examples" / "notebooks" / "first_agent.ipynb")
    assert page.startswith("# A first agent\n")
    assert "```python\nfrom ferrule import" in page
    assert "<table>" in page
