import json as own_json
import pickle
import sys
import warnings
from functools import partial

import pytest

from ferrule.errors import DuplicateToolError, ToolLoadError
from ferrule.tools.files import load_module
from ferrule.tools.tool import Tool

AREA = 'def area(width: float, height: float) -> float:\n    """The area."""\n    return width * height\n'
SHOUT = 'async def shout(self, text: str) -> str:\n    """Louder."""\n    return text.upper()\n'
MARKED = "from ferrule.tools.decorator import tool\n\n@tool(require_confirmation=True)\ndef marked(x: int):\n    return x\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "shout.py": SHOUT,
        "area.py": AREA,
        "marked.py": MARKED,
        "__init__.py": "1/0",
        "_own.py": "1/0",
        "notes.txt": "x",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def put(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


class TestOneFile:
    def test_gives_the_function_named_like_the_file(self, folder):
        made = Tool.from_file(folder / "area.py")
        assert (made.name, made.description) == ("area", "The area.")
        assert made(width="2", height=3) == 6.0
        assert Tool.from_file(str(folder / "area.py")).name == "area"

    def test_takes_a_decorated_function_as_it_is(self, folder):
        assert Tool.from_file(folder / "marked.py").require_confirmation is True

    def test_is_in_seed_004s_form(self, folder):
        import asyncio

        made = Tool.from_file(folder / "shout.py")
        assert list(made.args) == ["text"]
        assert asyncio.run(made.call("agent", text="a")) == "A"

    @pytest.mark.parametrize("name", ["notes.txt", "__init__.py", "gone.py", "", "."])
    def test_what_is_no_tool_file_is_none_or_an_error_when_strict(self, folder, name):
        assert Tool.from_file(folder / name) is None
        with pytest.raises(ToolLoadError):
            Tool.from_file(folder / name, strict=True)

    @pytest.mark.parametrize(
        "text",
        ["def other(): ...", "odd = 3", "class odd: ...", "", "def odd(x: 'Missing'): ..."],
        ids=["other", "value", "class", "empty", "types"],
    )
    def test_a_file_without_its_function_is_none_with_a_warning(self, folder, text):
        path = put(folder, "odd.py", text)
        with pytest.warns(UserWarning, match=r"odd\.py"):
            assert Tool.from_file(path) is None
        with pytest.raises(ToolLoadError, match=r"odd\.py"):
            Tool.from_file(path, strict=True)

    @pytest.mark.parametrize(
        "text",
        [
            "1/0",
            "def (",
            "raise type('Odd', (Exception,), {})('x')",
            "import no_such_module_here",
            "from .area import area",
            "\x00",
        ],
    )
    def test_a_broken_file_is_none_with_a_warning_that_names_the_error(self, folder, text):
        """Relative imports are such an error."""
        path = put(folder, "odd.py", text)
        with pytest.warns(UserWarning, match=r"odd\.py.*could not be loaded"):
            assert Tool.from_file(path) is None

    @pytest.mark.parametrize(
        "text",
        [
            "raise SystemExit",
            "import sys\nsys.exit('no key')",
            "from pathlib import Path\nraise SystemExit(Path)",
        ],
    )
    def test_a_file_that_would_end_the_process_is_an_error(self, folder, text):
        """A script is no tool, so it is not skipped."""
        path = put(folder, "odd.py", text)
        for load in (
            partial(Tool.from_file, path),
            partial(Tool.from_file, path, strict=True),
            partial(Tool.load, folder),
        ):
            with pytest.raises(ToolLoadError, match=r"`odd\.py` could not be loaded: SystemExit"):
                load()

    def test_ctrl_c_while_loading_passes(self, folder):
        before = set(sys.modules)
        with pytest.raises(KeyboardInterrupt):
            Tool.from_file(put(folder, "odd.py", "raise KeyboardInterrupt"))
        assert set(sys.modules) <= before | {"_pytest"}


class TestFolder:
    def test_gives_its_tools_sorted_by_file(self, folder):
        assert [each.name for each in Tool.load(folder)] == ["area", "marked", "shout"]

    def test_gives_one_or_some_by_name_in_the_order_asked(self, folder):
        assert [each.name for each in Tool.load(folder, "area")] == ["area"]
        assert [each.name for each in Tool.load(folder, "area.py")] == ["area"]
        assert [each.name for each in Tool.load(folder, ["shout", "area.py"])] == ["shout", "area"]
        assert Tool.load(folder, []) == []

    def test_takes_a_file_with_or_without_its_ending(self, folder):
        assert [each.name for each in Tool.load(folder / "area.py")] == ["area"]
        assert [each.name for each in Tool.load(str(folder / "area"))] == ["area"]

    def test_without_arguments_looks_in_the_default_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ToolLoadError, match="tools"):
            Tool.load()
        (tmp_path / "tools").mkdir()
        put(tmp_path / "tools", "area.py", AREA)
        assert [each.name for each in Tool.load()] == ["area"]
        assert [each.name for each in Tool.load(file_name="area")] == ["area"]

    def test_one_broken_file_does_not_prevent_the_others(self, folder):
        put(folder, "broken.py", "1/0")
        with pytest.warns(UserWarning, match=r"broken\.py.*ZeroDivisionError"):
            assert [each.name for each in Tool.load(folder)] == ["area", "marked", "shout"]
        with pytest.raises(ToolLoadError, match=r"broken\.py"):
            Tool.load(folder, "broken")
        with pytest.raises(ToolLoadError, match=r"broken\.py"):
            Tool.load(folder, strict=True)

    @pytest.mark.parametrize(
        "name",
        ["../area", "..", "sub/area", "/etc/passwd", "a\\b", "", ".", 3, "C:\\x"],
    )
    def test_names_cannot_leave_the_folder(self, folder, name):
        (folder / "sub").mkdir()
        put(folder / "sub", "area.py", AREA)
        with pytest.raises(ToolLoadError):
            Tool.load(folder / "sub", name)

    def test_links_to_a_place_outside_are_refused_by_name_and_told_in_a_folder(
        self,
        folder,
        tmp_path_factory,
    ):
        outside = put(tmp_path_factory.mktemp("outside"), "area.py", AREA)
        (folder / "linked.py").symlink_to(outside)
        (folder / "inside.py").symlink_to(folder / "area.py")
        with pytest.raises(ToolLoadError, match="link to a place outside"):
            Tool.load(folder, "linked")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = Tool.load(folder)
        assert [each.name for each in found] == ["area", "marked", "shout"]
        assert any("linked.py" in str(each.message) for each in told)

    def test_missing_names_and_folders_are_reported(self, folder):
        with pytest.raises(ToolLoadError, match=r"`gone`, `lost`.*There are: area, marked, shout"):
            Tool.load(folder, ["area", "gone", "lost"])
        for place in (folder / "nowhere", folder / "nowhere.py", folder / "gone" / "x"):
            with pytest.raises(ToolLoadError):
                Tool.load(place)
        with pytest.raises(ToolLoadError, match="no folder"):
            Tool.load(folder / "nowhere", "area")

    def test_duplicate_names_across_files_are_an_error(self, folder):
        put(
            folder,
            "zone.py",
            "from ferrule.tools.decorator import tool\n@tool(name='area')\ndef zone(): ...\n",
        )
        with pytest.raises(DuplicateToolError, match="`area`"):
            Tool.load(folder)
        with pytest.raises(DuplicateToolError):
            Tool.load(folder, ["area", "area"])

    def test_loaded_modules_shadow_nothing(self, folder):
        put(folder, "json.py", "def json(x: int):\n    return x\n")
        path = list(sys.path)
        loaded = Tool.load(folder, "json")[0]
        assert loaded(x=1) == 1
        assert sys.modules["json"] is own_json
        assert sys.path == path
        assert loaded.func.__module__.startswith("_ferrule_tool_")

    def test_what_a_file_defines_works_like_in_any_module(self, folder):
        text = (
            "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom pydantic import BaseModel\n\n"
            "@dataclass\nclass Point:\n    x: int\n    next: Point | None = None\n\nclass User(BaseModel):\n    at: Point\n\n"
            "def place(user: User) -> Point:\n    return user.at\n"
        )
        put(folder, "place.py", text)
        point = Tool.load(folder, "place")[0](user={"at": {"x": "1", "next": {"x": 2}}})
        assert (point.x, point.next.x) == (1, 2)
        assert pickle.loads(pickle.dumps(point)) == point

    def test_equal_names_in_two_folders_do_not_mix(self, folder, tmp_path_factory):
        second = tmp_path_factory.mktemp("second")
        put(second, "area.py", "def area(side: int):\n    return side\n")
        one, two = Tool.load(folder, "area")[0], Tool.load(second, "area")[0]
        assert list(one.args) == ["width", "height"]
        assert list(two.args) == ["side"]
        assert one.func.__module__ != two.func.__module__

    def test_a_file_that_is_broken_later_leaves_what_was_loaded_before(self, folder):
        """What it defined is still found by its module's name."""
        put(folder, "size.py", "class Size:\n    n = 1\n\ndef size():\n    return Size()\n")
        made = Tool.load(folder, "size")[0]
        put(folder, "size.py", "class Size:\n    n = 2\n\n1 / 0\n")
        with pytest.raises(ToolLoadError):
            Tool.from_file(folder / "size.py", strict=True)
        assert pickle.loads(pickle.dumps(made())).n == 1

    def test_a_file_that_is_not_python_is_no_module(self, folder):
        with pytest.raises(ToolLoadError, match=r"`notes\.txt` is not a Python file"):
            load_module(folder / "notes.txt", "notes")
