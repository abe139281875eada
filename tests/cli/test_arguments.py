"""From the words of a command line to what they mean, or to a message that says what is wrong."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Literal

import pytest

from ferrule import ChatAdapter, InputField, JSONAdapter, OutputField, Signature, XMLAdapter
from ferrule.cli import arguments as parse
from ferrule.cli.arguments import USAGE_ERRORS
from ferrule.errors import ConfigurationError, InputError, ToolLoadError

TWO = '''
from ferrule import tool

@tool
def first(a: int) -> int:
    """The first."""
    return a

@tool(name="second")
def other(a: int) -> int:
    """The second."""
    return a

def helper(a: int) -> int:
    return a

both = [first, helper]
by_name = {"x": helper}
nothing = []
number = 7
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder one stands in, and a `sys.path` that is itself again afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(*places: str) -> list[str]:
    return [tool.name for tool in parse.load_tools(places)]


def test_without_a_place_there_are_the_demo_s_tools() -> None:
    assert names() == ["calculate", "days_between", "date_after", "search_documents"]


def test_tools_come_from_files_and_folders(here) -> None:
    """A .py file, or a folder, as `Tool.load` reads them."""
    (here / "kit").mkdir()
    (here / "kit" / "b.py").write_text("def b() -> int:\n    return 1\n")
    (here / "kit" / "a.py").write_text("def a() -> int:\n    return 1\n")
    assert names("kit") == ["a", "b"]
    assert names("kit/b.py") == ["b"]
    assert names("kit/b.py", "kit/a.py") == ["b", "a"]
    assert names(str(here / "kit")) == ["a", "b"]


def test_tools_come_from_modules(here) -> None:
    """`module[:name]`; a module's tools are its `@tool`s, or else its own public functions."""
    (here / "made_here.py").write_text(TWO)
    (here / "plain_here.py").write_text(
        "from os.path import join\ndef one() -> int:\n    return 1\ndef _two() -> int:\n    return 2\n",
    )
    assert names("made_here") == ["first", "second"]
    assert names("made_here:other") == ["second"]
    assert names("made_here:helper") == ["helper"]
    assert names("made_here:both") == ["first", "helper"]
    assert names("made_here:by_name") == ["helper"]
    assert names("plain_here") == ["one"]
    assert names("ferrule.cli.sample_tools:TOOLS") == names()


@pytest.mark.parametrize(
    "place",
    ["nowhere.py", "no/such/folder", "no_such_module_here", "no.such.module", "made_here:absent", "made_here:nothing", "made_here:number", "hollow.py",
     "empty", "hollow", "", ":x", "broken_here", "broken_here.py", "..", ".x"],
)  # fmt: skip
def test_what_holds_no_tools_is_told(here, place: str) -> None:
    """One of the errors that the commands turn into a message."""
    (here / "made_here.py").write_text(TWO)
    (here / "hollow.py").write_text("x = 1\n")
    (here / "broken_here.py").write_text("import no_such_module_either\n")
    (here / "empty").mkdir()
    with pytest.raises(USAGE_ERRORS) as caught:
        parse.load_tools([place])
    assert isinstance(caught.value, ToolLoadError)


def test_adapters_go_by_name() -> None:
    """Chat, json and xml write calls in the text; native makes native ones; without a name the
    model decides.
    """
    assert parse.choose_adapter(None) == (None, None)
    assert parse.choose_adapter("native") == (None, True)
    kinds = {name: parse.choose_adapter(name) for name in ("chat", "json", "xml")}
    assert [(type(found), native) for found, native in kinds.values()] == [
        (ChatAdapter, False),
        (JSONAdapter, False),
        (XMLAdapter, False),
    ]
    with pytest.raises(ConfigurationError, match="chat, json, xml, native"):
        parse.choose_adapter("yaml")


def test_inputs_are_the_question_and_pairs() -> None:
    """The question fills the first input."""
    signature = Signature("question, city, k: int, tags: list[str] -> answer")
    assert parse.parse_inputs(signature, "q=1", ["city=New York=NY", "k=3", 'tags=["a"]']) == {
        "question": "q=1", "city": "New York=NY", "k": 3, "tags": ["a"],
    }  # fmt: skip


def test_text_that_looks_like_json_stays_text_for_a_text_input() -> None:

    class Typed(Signature):
        """Answer."""

        question: str = InputField()
        code: str = InputField()
        size: Literal["s", "m"] = InputField()
        answer: str = OutputField()

    assert parse.parse_inputs(Typed, "q", ["code=01234", "size=m"]) == {
        "question": "q",
        "code": "01234",
        "size": "m",
    }


@pytest.mark.parametrize(
    "pairs",
    [
        ["city"],
        ["=x"],
        ["question=again"],
        ["city=a", "city=b"],
        ["city=a", "k=x"],
        ["city=a"],
        ["city=a", "k=1", "more=1"],
    ],
)
def test_wrong_inputs_are_told(pairs: list[str]) -> None:
    with pytest.raises(InputError):
        parse.parse_inputs(Signature("question, city, k: int -> answer"), "q", pairs)


def test_a_model_is_named_or_it_is_the_embedded_one(monkeypatch) -> None:
    """No model of one's own choosing, whatever keys the environment holds."""
    assert parse.choose_model("openai/gpt-5-mini", None).name == "openai/gpt-5-mini"
    assert parse.choose_model("mine", "http://localhost:9/v1").name.endswith("mine")
    monkeypatch.setattr("ferrule.models.local.backends.needle.engine_with", lambda weights: None)
    assert parse.choose_model(None, None).name == "needle"
    with pytest.raises(ConfigurationError, match="--lm"):
        parse.choose_model(None, "http://localhost:9/v1")
    with pytest.raises(ConfigurationError):
        parse.choose_model("nonsense", None)


def test_a_file_gives_every_tool_that_it_defines_and_a_note_names_what_is_none(
    tmp_path,
    capsys,
) -> None:
    """`--tools FILE`. Only `Tool.from_file` takes the function named like the file alone."""
    several = tmp_path / "several.py"
    several.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "def one(x: int) -> int:\n    'One.'\n    return x\ndef two() -> int:\n    'Two.'\n    return 2\ndef _hidden(): ...\n",
    )
    assert [tool.name for tool in parse.load_tools([str(several)])] == ["one", "two"]
    (tmp_path / "one.py").write_text(several.read_text())
    assert [tool.name for tool in parse.load_tools([str(tmp_path / "one.py")])] == ["one", "two"]
    mixed = tmp_path / "pay.py"
    mixed.write_text(
        "import ferrule\ndef pay() -> int:\n    return 1\n@ferrule.tool\ndef balance() -> int:\n    return 2\nsame = balance\n"
        "def helper() -> int:\n    return 3\n",
    )
    assert [tool.name for tool in parse.load_tools([str(mixed)])] == ["pay", "balance"]
    told = "`pay.py` has a `@tool`, so a function without it is not loaded: `helper`. Decorate those that are tools.\n"
    assert capsys.readouterr().err == told
    broken = tmp_path / "broken.py"
    broken.write_text("def one(:\n")
    with pytest.raises(ToolLoadError):
        parse.load_tools([str(broken)])


def test_a_signature_without_inputs_has_no_place_for_the_question() -> None:
    with pytest.raises(InputError, match="no input for the question"):
        parse.parse_inputs(Signature("-> answer"), "What?", [])


@pytest.mark.parametrize(
    ("piped", "text"),
    [
        ("Grüße →\n".encode(), "Grüße →"),
        ("\ufeffGrüße\r\nund mehr\r\n".encode(), "Grüße\nund mehr"),
        ("Grüße\r\n".encode("cp1252"), "Grüße"),
        (b"\x81 and more", "\ufffd and more"),
    ],
    ids=["utf-8", "of_powershell", "code_page", "no_text"],
)
def test_what_is_piped_in_is_utf_8_whatever_the_code_page(
    piped: bytes,
    text: str,
    monkeypatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="cp1252"))
    assert parse.text_or_stdin("-") == text


def test_a_dash_reads_standard_input_once(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is\nthis?\n"))
    signature = Signature("question, context -> answer")
    with pytest.raises(ConfigurationError, match="Only one argument"):
        parse.parse_inputs(signature, "-", ["context=-"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("a long text\n"))
    assert parse.parse_inputs(signature, "Why?", ["context=-"]) == {
        "question": "Why?",
        "context": "a long text",
    }


def test_a_file_that_is_not_python_is_named_once(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("tools")
    with pytest.raises(ToolLoadError) as caught:
        parse.load_tools([str(text)])
    assert str(caught.value) == "`notes.txt` is not a Python file."


def test_a_function_that_a_tool_wraps_is_not_called_left_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "wrapping.py"
    place.write_text(
        'from ferrule import Tool\n\ndef add(a: int) -> int:\n    "Add."\n    return a\n\nadding = Tool(add)\n',
    )
    assert [tool.name for tool in parse.load_tools([str(place)])] == ["add"]
    assert capsys.readouterr().err == ""
