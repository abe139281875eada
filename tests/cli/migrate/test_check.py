"""What `ferrule migrate check` finds in programs of DSPy and udspy (`cli/migrate`)."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from name_tables import name_in, rows_of

from ferrule.cli.migrate import check as check_module
from ferrule.cli.migrate.check import check_repository
from ferrule.cli.migrate.names import LIBRARIES, names_of
from ferrule.compat.dspy.checked_adapters import REFUSED_METHODS
from ferrule.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


def statuses(tmp_path: Path, program: str, name: str = "program.py") -> dict[str, str]:
    """What becomes of the names that a program uses."""
    (tmp_path / name).write_text(program, encoding="utf-8")
    checked = check_repository(tmp_path / name)
    assert checked.unread == {}
    return {use.name.name: use.name.status for use in checked.uses}


def in_table(library: str, name: str) -> str:
    return names_of(library).by_name[name].status


# -- the table


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_table_is_that_of_the_page(library: str) -> None:
    """Each row of it is tried by tests/docs/coming-from."""
    _, rows = rows_of(f"docs/coming-from/{library}.md")
    names = names_of(library).by_name
    assert {name_in(row[0]): name_in(row[2]) for row in rows} == {
        name.name: name.core for name in names.values()
    }
    for row in rows:
        is_missing = names[name_in(row[0])].status == "missing"
        assert is_missing is (row[1] == "replacement")


def test_the_methods_of_adapters_are_those_that_the_facade_refuses() -> None:
    assert {*names_of("dspy").not_called} == {*REFUSED_METHODS}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_wheel_has_the_pages(library: str) -> None:
    form = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = form["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for page in (library, "differences"):
        assert packed[f"docs/coming-from/{page}.md"] == f"ferrule/cli/migrate/{page}.md"
    assert len(names_of(library).general) > 3


# -- names


@pytest.mark.parametrize(
    "program",
    [
        "import dspy\ndspy.MIPROv2()\ndspy.Module\ndspy.LM('x')",
        "import dspy as d\nd.MIPROv2(), d.Module, d.LM",
        "from dspy import MIPROv2, Module as M, LM",
        "from dspy.teleprompt import MIPROv2\nfrom dspy.primitives import Module, LM",
        "import dspy.teleprompt\ndspy.teleprompt.MIPROv2, dspy.Module, dspy.clients.lm.LM",
        "import dspy.teleprompt as t\nimport dspy\nt.MIPROv2, dspy.Module, dspy.LM",
        "from dspy import teleprompt, clients\nteleprompt.MIPROv2, clients.LM, teleprompt.Module",
        "def f():\n    import dspy\n    return dspy.MIPROv2, dspy.LM\nclass A(dspy.Module): pass",
        "if 1:\n    import dspy\nasync def f(x=dspy.LM): [dspy.MIPROv2 for _ in dspy.Module]",
    ],
    ids=range(9),
)
def test_names_are_found_however_they_are_imported(tmp_path: Path, program: str) -> None:
    names = ("MIPROv2", "Module", "LM")
    assert statuses(tmp_path, program) == {name: in_table("dspy", name) for name in names}


def test_the_longest_name_in_the_table_counts(tmp_path: Path) -> None:
    program = "import udspy\nudspy.settings.configure()\nudspy.Tool.input_schema\nudspy.tool(1)"
    names = ("settings.configure", "Tool.input_schema", "tool")
    assert statuses(tmp_path, program) == {name: in_table("udspy", name) for name in names}


def test_an_attribute_of_an_imported_name_is_looked_up(tmp_path: Path) -> None:
    program = "from udspy import Tool as T\nT.input_schema\nT(f).parameters"
    names = ("Tool", "Tool.input_schema", "Tool.parameters")
    found = statuses(tmp_path, program)
    assert found == {name: in_table("udspy", name) for name in names if name in found}
    assert "Tool.input_schema" in found


def test_methods_of_subclasses_are_looked_up(tmp_path: Path) -> None:
    program = (
        "import dspy\nfrom udspy import Module\n"
        "class A(dspy.ChatAdapter):\n    def format_fields(self): ...\n    def mine(self): ...\n"
        "class B(Module):\n    async def aexecute(self): ...\n    def own(self): ...\n"
    )
    found = statuses(tmp_path, program)
    assert found["ChatAdapter.format_fields"] == "missing"
    assert found["Module.aexecute"] == in_table("udspy", "Module.aexecute")
    assert not any(name.endswith((".mine", ".own")) for name in found)


def test_a_name_that_is_not_on_the_page_is_missing(tmp_path: Path) -> None:
    assert statuses(tmp_path, "import dspy\ndspy.Predikt\nfrom dspy.x import _private") == {
        "Predikt": "missing",
        "_private": "missing",
    }


@pytest.mark.parametrize(
    "program",
    [
        "",
        "import os\nos.dspy.MIPROv2",
        "from .dspy import MIPROv2",
        "from . import dspy\nx = 'dspy.MIPROv2'  # dspy.LM",
        "import dspyx\ndspyx.MIPROv2",
        "from dspy import *",
        "import dspy",
    ],
    ids=range(7),
)
def test_what_is_no_use_of_a_library_is_not_found(tmp_path: Path, program: str) -> None:
    assert statuses(tmp_path, program) == {}


def test_a_use_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import dspy\n\n\nx = dspy.LM('x')\n", encoding="utf-8")
    [use] = check_repository(tmp_path).uses
    assert (use.file, use.line) == ("a.py", 4)


def test_a_notebook_is_one_program_without_the_lines_for_ipython(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["dspy.MIPROv2 ("]},
        {"cell_type": "code", "source": ["%load_ext x\n", "!pip install dspy\n", "import dspy"]},
        {"cell_type": "code", "source": "%%bash\nls (\n"},
        {"cell_type": "code", "source": "if True:\n    %time dspy.LM\n    dspy.Module"},
    ]
    assert statuses(tmp_path, json.dumps({"cells": cells}), "a.ipynb") == {
        "Module": in_table("dspy", "Module")
    }


# -- files


def test_folders_of_other_packages_are_left_out(tmp_path: Path) -> None:
    for folder in ("src", ".venv", "venv", "node_modules", "lib/site-packages", ".git"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("import dspy\ndspy.LM", encoding="utf-8")
    assert {use.file for use in check_repository(tmp_path).uses} == {str(Path("src", "a.py"))}


def test_nothing_is_imported_or_run(tmp_path: Path) -> None:
    program = f"import dspy\nopen({str(tmp_path / 'ran')!r}, 'w')\ndspy.LM\nraise SystemExit"
    assert statuses(tmp_path, program) == {"LM": in_table("dspy", "LM")}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("junk", "name"),
    [
        (b"import dspy\ndef f(:", "a.py"),
        (b"import dspy\n\xff\xfe", "a.py"),
        (b"# coding: nonsense\nimport dspy", "a.py"),
        (b"import dspy\0", "a.py"),
        (b"import dspy\nx = " + b"(" * 5000, "a.py"),
        (b"import dspy\nx = " + b"-" * 200_000 + b"1", "a.py"),
        (b"dspy", "a.ipynb"),
        (b'{"dspy": 1}', "a.ipynb"),
        (b'["dspy"]', "a.ipynb"),
        (b'{"cells": [{"cell_type": "code", "source": [3, "dspy"]}]}', "a.ipynb"),
        (b'{"cells": ["dspy", {"cell_type": "code", "source": {"dspy": 1}}, 7]}', "a.ipynb"),
    ],
    ids=range(11),
)
def test_a_file_that_cannot_be_read_is_named_and_hides_no_other(
    tmp_path: Path, junk: bytes, name: str
) -> None:
    (tmp_path / name).write_bytes(junk)
    (tmp_path / "b.py").write_text("import dspy\ndspy.LM", encoding="utf-8")
    checked = check_repository(tmp_path)
    assert [use.file for use in checked.uses] == ["b.py"]
    assert {*checked.unread} <= {name}
    if name == "a.py":
        assert checked.unread[name]


def test_a_file_of_another_encoding_is_read_by_its_cookie(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"# coding: latin-1\nimport dspy\nx = '\xe9', dspy.LM")
    assert [use.name.name for use in check_repository(tmp_path).uses] == ["LM"]


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "_MOST_BYTES", 100)
    (tmp_path / "a.py").write_text("import dspy\n" * 20, encoding="utf-8")
    assert "larger than" in check_repository(tmp_path).unread["a.py"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes of POSIX")
def test_links_in_a_circle_and_pipes_end(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "inside" / "a.py").write_text("import dspy\ndspy.LM", encoding="utf-8")
    (tmp_path / "self.py").symlink_to(tmp_path / "self.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    checked = check_repository(tmp_path)
    assert [use.file for use in checked.uses] == [str(Path("inside", "a.py"))]
    assert {*checked.unread} == {"self.py", "gone.py", "pipe.py"}


def test_a_path_with_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="There is no file or folder"):
        check_repository(tmp_path / "none")
