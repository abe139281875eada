"""The tables of docs/reference/models.md are those of the code.

`python tests/docs/reference/test_models.py` writes them again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule.models.providers import OFFERS, PROVIDERS, capabilities_of
from ferrule.models.wires.provider_tools import FORMS
from ferrule.values.conversation.exchange import Capabilities
from ferrule.values.provider_tools import PROVIDER_TOOLS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"
FEATURES = (
    "native_tools",
    "json_schema",
    "json_object",
    "schema_with_tools",
    "images",
    "audio",
)


def table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def mark(has: object) -> str:
    return "yes" if has else "-"


def capabilities_table() -> str:
    rows = []
    for provider in PROVIDERS.values():
        capabilities = capabilities_of(provider, "a-new-model")
        marks = [mark(getattr(capabilities, name)) for name in FEATURES]
        rows.append([f"`{provider.name}`", f"`{provider.wire}`", *marks])
    return table(["provider", "wire", *[f"`{name}`" for name in FEATURES]], rows)


def tools_table() -> str:
    rows = []
    for (provider, wire), kinds in OFFERS.items():
        marks = [mark(kind in kinds) for kind in PROVIDER_TOOLS]
        rows.append([f"`{provider}`", f"`{wire}`", *marks])
    names = [f"`{tool.__name__}`" for tool in PROVIDER_TOOLS.values()]
    return table(["provider", "wire", *names], rows)


def options_table() -> str:
    rows = []
    for kind, tool in PROVIDER_TOOLS.items():
        cells = [f"`{tool.__name__}`"]
        for forms in FORMS.values():
            form = forms.get(kind)
            if form is None:
                cells.append("not there")
            else:
                options = [f"`{name}`" for name in sorted(form.known_options)]
                cells.append(", ".join(options) or "no options")
        rows.append(cells)
    return table(["tool", *[f"`{wire}`" for wire in FORMS]], rows)


TABLES = {
    "capabilities": capabilities_table,
    "provider tools": tools_table,
    "options": options_table,
}


def written(page: str, name: str) -> str:
    match = re.search(rf"<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->", page, re.DOTALL)
    assert match is not None, name
    return match[1].strip()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_page_is_that_of_the_code(name):
    assert written(PAGE.read_text(encoding="utf-8"), name) == TABLES[name]()


def test_every_provider_that_runs_tools_is_known_and_its_wire_has_a_form_for_each():
    for (provider, wire), kinds in OFFERS.items():
        assert provider in PROVIDERS
        assert set(kinds) <= FORMS[wire].keys()


def test_every_option_of_a_declaration_can_be_sent_on_some_wire():
    for kind, tool in PROVIDER_TOOLS.items():
        options = {*tool.__struct_fields__} - {"require_confirmation"}
        sent = {
            name for forms in FORMS.values() if kind in forms for name in forms[kind].known_options
        }
        assert options == sent


def test_every_feature_of_the_table_is_a_question_to_a_model():
    for name in FEATURES:
        assert isinstance(Capabilities().can(name), bool)


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/models.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/reference/models.md") == []


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n\n{make()}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page, encoding="utf-8")
