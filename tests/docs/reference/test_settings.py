"""The claims of docs/reference/settings.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import ferrule
from ferrule import settings
from ferrule.bridges.otel import options as otel
from ferrule.models.providers import PROVIDERS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
NOT_PARAMETERS = {"extra", "prompt_cache"}
"""Options of `LM` that go through its settings."""


def rows(heading: str) -> dict[str, str]:
    """The first cells of a section's table, and their second ones."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", section, re.MULTILINE))


def written(value: object) -> str:
    match value:
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case () | {}:
            return f"`{value}`"
        case _:
            return str(value)


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/settings.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/reference/settings.md") == []


def test_the_page_lists_every_setting_with_its_default() -> None:
    assert rows("`configure` and `context`") == {name: written(value) for name, value in vars(settings.Settings()).items()}


def test_the_page_lists_every_limit_with_its_default() -> None:
    found = {name: parameter.default for name, parameter in inspect.signature(ferrule.Limits).parameters.items()}
    assert rows("Limits") == {name: written(value) for name, value in found.items()}


def test_the_page_lists_every_option_of_a_model_with_its_default() -> None:
    parameters = inspect.signature(ferrule.LM.__init__).parameters.values()
    options = {each.name: written(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
    found = rows("`LM(...)`")
    assert {name: default for name, default in found.items() if name not in NOT_PARAMETERS} == options
    assert found.keys() >= NOT_PARAMETERS


def test_no_environment_variable_is_read_that_the_page_does_not_name() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(ferrule.__file__).parent.rglob("*.py"))
    read = {*re.findall(r"""environ(?:\.get\(|\.pop\(|\[)"([A-Z_]+)\"""", source), *re.findall(r'"(FERRULE_[A-Z_]+)"', source)}
    assert read  # the patterns still match the source
    named = set(re.findall(r"`([A-Z_]{4,})`", PAGE))
    assert (read - {"SYSTEMROOT"}) | {otel._CAPTURE, otel._OPT_IN} <= named  # where Windows is: nobody sets it


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_the_page_on_models_names_the_variables_of_a_provider(provider) -> None:
    models = (ROOT / "docs" / "how-to" / "models" / "models.md").read_text(encoding="utf-8")
    variables = [provider.key_variable, *provider.other_variables, *re.findall(r"\{([A-Z_]+)\}", provider.base_url)]
    assert [name for name in variables if name and f"`{name}`" not in models] == []
