"""The claims of docs/reference/settings.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from msgspec.structs import asdict

import ferrule
from ferrule import settings
from ferrule.mcp_bridge.client.options import ServerOptions
from ferrule.models.providers import PROVIDERS
from ferrule.telemetry.otel import observer as otel
from ferrule.tools.definition.options import DecoratorOptions, ToolOptions
from ferrule.tools.mcp.showing import ShowRules
from ferrule.tools.mcp.tool import ConversionRules

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
NOT_PARAMETERS = {"confidence", "extra", "prompt_cache"}
"""Options of `LM` that go through its settings."""


def rows(heading: str) -> dict[str, str]:
    """The first cells of a section's table, and their second ones."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", section, re.MULTILINE)
    names = [name for name, _ in cells]
    assert sorted(names) == sorted(set(names)), "an option is listed twice"
    return dict(cells)


def written(value: object) -> str:
    match value:
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case () | {}:
            return f"`{value}`"
        case str():
            return f'`"{value}"`'
        case _:
            return str(value)


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/settings.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/reference/settings.md") == []


def test_the_page_lists_every_setting_with_its_default() -> None:
    defaults = asdict(settings.Settings())
    del defaults["lm_overrides"]  # set by `program.override`
    assert rows("`configure` and `context`") == {
        name: written(value) for name, value in defaults.items()
    }


def test_the_page_lists_every_limit_with_its_default() -> None:
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(ferrule.Limits).parameters.items()
    }
    assert rows("Limits") == {name: written(value) for name, value in found.items()}


def test_the_page_lists_every_option_of_a_model_with_its_default() -> None:
    parameters = inspect.signature(ferrule.LM.__init__).parameters.values()
    options = {
        each.name: written(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY
    }
    found = rows("`LM(...)`")
    assert {
        name: default for name, default in found.items() if name not in NOT_PARAMETERS
    } == options
    assert found.keys() >= NOT_PARAMETERS


def options_of(callable_: object, *, without: tuple[str, ...]) -> dict[str, str]:
    parameters = inspect.signature(callable_).parameters.values()
    return {
        each.name: written(each.default)
        for each in parameters
        if each.kind is not each.VAR_KEYWORD and each.name not in without
    }


@pytest.mark.parametrize(
    ("heading", "callable_", "without", "more"),
    [
        ("`ReAct(...)`", ferrule.ReAct.__init__, ("self", "signature", "tools"), {"native"}),
        ("`Predict(...)`", ferrule.Predict.__init__, ("self", "signature"), {"n", "native"}),
        ("`Skills(...)`", ferrule.Skills, ("places",), set()),
        ("`MCPApp(...)`", ferrule.mcp_bridge.MCPApp.__init__, ("self", "tools"), set()),
        ("`SQLiteStore(...)`", ferrule.SQLiteStore, ("path", "clock"), set()),
        ("`PostgresStore(...)`", ferrule.PostgresStore, ("dsn",), set()),
    ],
)
def test_the_page_lists_every_option_with_its_default(
    heading: str,
    callable_: object,
    without: tuple[str, ...],
    more: set[str],
) -> None:
    found = rows(heading)
    assert {name: default for name, default in found.items() if name not in more} == options_of(
        callable_,
        without=without,
    )
    assert found.keys() >= more


def test_the_page_lists_every_option_of_an_mcp_server_with_its_default() -> None:
    defaults = {**vars_of(ShowRules()), **vars_of(ConversionRules()), **vars_of(ServerOptions())}
    assert rows("`mcp(...)`") == {
        name: written(value) for name, value in defaults.items() if name not in {"rules", "show"}
    }


def vars_of(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__struct_fields__}


def test_the_page_lists_every_option_of_a_tool() -> None:
    options = DecoratorOptions.__annotations__.keys()
    assert rows("`@tool(...)`").keys() == {"name", "description", *options}
    assert ToolOptions.__annotations__.keys() > options


@pytest.mark.parametrize(
    ("program", "own", "foreign"),
    [
        (
            ferrule.ReAct("question -> answer", []),
            ("lm", "config", "demos", "max_iters", "limits", "deps"),
            ("max_turns", "policy", "n"),
        ),
        (
            ferrule.Predict("question -> answer"),
            ("lm", "config", "demos", "max_turns", "deps"),
            ("max_iters", "limits", "n"),
        ),
        (
            ferrule.ChainOfThought("question -> answer"),
            ("lm", "config", "demos", "max_turns", "deps"),
            ("max_iters", "limits", "n"),
        ),
    ],
    ids=["ReAct", "Predict", "ChainOfThought"],
)
def test_a_call_takes_the_options_that_the_page_names(
    program: ferrule.Module,
    own: tuple[str, ...],
    foreign: tuple[str, ...],
) -> None:
    values = {
        "config": {},
        "demos": [],
        "max_iters": 2,
        "max_turns": 2,
        "limits": ferrule.Limits(),
        "deps": "ann",
        "policy": None,
        "n": 2,
    }
    answer = (
        {"reasoning": "none", "answer": "x"}
        if isinstance(program, ferrule.ChainOfThought)
        else {"answer": "x"}
    )

    def model(request: ferrule.Request) -> dict[str, object]:
        return {"name": "finish", "args": answer} if request.tools else {"outputs": answer}

    with ferrule.context(lm=ferrule.testing.ScriptedLM(by=model)):
        for name in own:
            value = ferrule.testing.ScriptedLM(by=model) if name == "lm" else values[name]
            assert program(question="?", **{name: value}).answer == "x"
        for name in foreign:
            with pytest.raises(ferrule.InputError, match=f"`{name}` is unknown"):
                program(question="?", **{name: values[name]})


def test_no_environment_variable_is_read_that_the_page_does_not_name() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in Path(ferrule.__file__).parent.rglob("*.py")
    )
    read = {
        *re.findall(r"""environ(?:\.get\(|\.pop\(|\[)"([A-Z_]+)\"""", source),
        *re.findall(r'"(FERRULE_[A-Z_]+)"', source),
    }
    assert read  # the patterns still match the source
    named = set(re.findall(r"`([A-Z_]{4,})`", PAGE))
    assert (read - {"SYSTEMROOT"}) | {
        otel._CAPTURE,
        otel._OPT_IN,
    } <= named  # where Windows is: nobody sets it


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_the_page_on_models_names_the_variables_of_a_provider(provider) -> None:
    models = (ROOT / "docs" / "how-to" / "models" / "models.md").read_text(encoding="utf-8")
    variables = [
        provider.key_variable,
        *provider.other_variables,
        *re.findall(r"\{([A-Z_]+)\}", provider.base_url),
    ]
    assert [name for name in variables if name and f"`{name}`" not in models] == []
