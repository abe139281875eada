"""`under`: whatever path a rule lets through, the file that `open` reaches lies in the folder."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from ferrule import Grant, MemoryStore, Policy, ReAct, Run, allow, ask, context, deny, tool, under
from ferrule.approval.paths import Under, UnderOnServer, folder_of, is_ambiguous
from ferrule.approval.stored_policy import policy_form, read_policy
from ferrule.encoding.encode import jsonable
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM

DONE = {"name": "finish", "args": {"answer": "done"}}


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder `src`, and files and links around it."""
    yard = tmp_path / "yard"
    (yard / "src" / "deep").mkdir(parents=True)
    (yard / "secret").mkdir()
    (yard / "srcs").mkdir()
    for name in ("src/a.py", "src/deep/b.py", "secret/key", "srcs/c.py", "top.txt"):
        (yard / name).write_text(name)
    (tmp_path / "outside.txt").write_text("outside")
    links = {
        "src/out": "../secret",
        "src/far": str(tmp_path),
        "src/key": "../secret/key",
        "src/round": "round",
        "src/self": ".",
        "src/nothing": "../secret/new",
        "src/back": "deep/../../src/deep",
        "into": "src",
    }
    for name, target in links.items():
        (yard / name).symlink_to(target)
    monkeypatch.chdir(yard)
    return yard


# -- one path


@pytest.mark.parametrize(
    "path",
    ["src/a.py", "./src/a.py", "src", "src//deep/b.py", "src/new.py", "src/self/a.py", "src/back"],
)
def test_a_path_in_the_folder_is_allowed(yard: Path, path: str) -> None:
    assert under("src")(path) is True
    assert under("src", root=yard)(path) is True
    assert under(yard / "src")(str(yard / path)) is True


@pytest.mark.parametrize("path", ["top.txt", "srcs/c.py", "src/key", "src/out/key", "/etc/passwd"])
def test_a_path_out_of_the_folder_is_outside(yard: Path, path: str) -> None:
    assert under("src")(path) is False


TRICKS = {
    "up": "src/../secret/key",
    "up and back": "src/../src/a.py",
    "only up": "..",
    "three dots": "src/.../a",
    "a dot at the end": "src/a.py.",
    "a space at the end": "src/a.py ",
    "a space in the front": " src/a.py",
    "a folder with a space": "src /a.py",
    "nul": "src/a.py\0.txt",
    "a line": "src/a.py\n",
    "invisible": "src/\u200d../key",
    "ignored": "src/.\u034f./key",
    "home": "~/src/a.py",
    "another home": "~root/a",
    "full-width dots": "src/\uff0e\uff0e/secret/key",
    "full-width slash": "src\uff0f..\uff0fsecret",
    "full-width home": "\uff5e/a",
    "one dot leader": "src/\u2024\u2024/secret/key",
    "two dot leader": "src/\u2025/secret/key",
    "division slash": "src/..\u2215secret",
    "fraction slash": "src/..\u2044secret",
    "url": "src/%2e%2e/secret/key",
    "url twice": "src/%252e%252e/secret/key",
    "url slash": "src%2F..%2Fsecret",
    "overlong": "src/%c0%ae%c0%ae/key",
    "%u": "src/%u002e%u002e/key",
    "scheme": "file:///etc/passwd",
    "variable": "$HOME/a",
    "braces": "src/${HOME}",
    "variable of windows": "%USERPROFILE%/a",
    "backslash": "src\\..\\secret",
    "drive": "C:/src/a.py",
    "on a drive": "C:src/a.py",
    "share": "//server/share/a",
    "share of windows": "\\\\server\\share\\a",
    "device": "\\\\.\\C:\\a",
    "long path": "\\\\?\\C:\\a",
    "stream": "src/a.py:hidden",
    "stream of a folder": "src::$INDEX_ALLOCATION/a",
    "device name": "src/NUL",
    "device name with an end": "src/con.txt",
    "device with a superscript": "src/COM\u00b9",
    "half a character": "src/\ud800",
    "bytes": "src/\udcff",
    "empty": "",
    "too long": "src/" + "a/" * 5000,
    "circle": "src/round",
    "below a circle": "src/round/a.py",
    "below a file": "src/a.py/b",
    "link to nothing": "src/nothing",
    "below a link to nothing": "src/nothing/a.py",
}


@pytest.mark.parametrize("path", TRICKS.values(), ids=TRICKS)
def test_a_path_with_two_readings_is_in_doubt(yard: Path, path: str) -> None:
    """An `allow` and a grant do not apply, an `ask` and a `deny` do."""
    assert under("src")(path) is not True
    assert under(yard / "src")(path) is not True
    args = {"path": path}
    assert not allow(path=under("src")).covers("write", args)
    assert under("src")(path) is None
    assert deny(path=under("elsewhere")).covers("write", args)
    assert ask(path=under("elsewhere")).covers("write", args)


@pytest.mark.parametrize(
    ("path", "is_doubtful"),
    [
        ("src\\a.py", False),
        ("src/a.py", False),
        ("C:\\yard\\src\\a.py", False),
        ("c:/yard/src", False),
        ("C:a.py", True),
        ("\\yard\\src", True),
        ("/yard/src", True),
        ("src\\..\\a", True),
        ("\\\\server\\share\\a", True),
        ("//server/share/a", True),
        ("\\\\?\\C:\\yard", True),
        ("\\\\.\\pipe\\a", True),
        ("src\\a.py:stream", True),
        ("C:\\yard:stream\\a", True),
        ("C:\\yard\\a.py::$DATA", True),
        ("src\\a.py.", True),
        ("src \\a.py", True),
        ("src\\aux", True),
        ("src\\LPT1 .txt", True),
        ("~\\a", True),
        ("%TEMP%\\a", True),
    ],
)
def test_paths_of_windows_are_read_as_windows_reads_them(path: str, is_doubtful: bool) -> None:
    assert is_ambiguous(path, windows=True) is is_doubtful


def test_another_spelling_of_the_folder_is_in_doubt(yard: Path) -> None:
    """On a system that ignores case or normalization it is the folder, elsewhere it is not."""
    (yard / "caf\u00e9").mkdir()
    for folder, path in (("src", "SRC/a.py"), ("caf\u00e9", "cafe\u0301/a.py")):
        assert under(folder)(path) is None
        assert not allow(path=under(folder)).covers("write", {"path": path})
        assert deny(path=under(folder)).covers("write", {"path": path})
    assert under("cafe\u0301")("cafe\u0301/a.py") is True


def test_a_folder_that_became_a_link_out_is_in_doubt(yard: Path) -> None:
    (yard / "work").mkdir()
    assert under("work")("work/key") is True
    (yard / "work").rmdir()
    (yard / "work").symlink_to("/etc")
    assert under("work")("work/key") is None
    assert under("into")("src/a.py") is True  # a link to a folder in the root is the folder


def test_the_root_is_where_relative_paths_begin(yard: Path, tmp_path: Path) -> None:
    assert under("src", root=tmp_path / "yard")("src/a.py") is True
    assert under("yard", root="..")("yard/src/a.py") is True
    assert under("src", root=tmp_path)("src/key") is True  # nothing is there, and so no link
    assert under("src", root=tmp_path)(str(yard / "src/a.py")) is False
    os.chdir(tmp_path)
    assert under("src")(str(yard / "src/a.py")) is False  # the working directory of now


def test_every_path_of_a_list_counts(yard: Path) -> None:
    paths = {"files": ["src/a.py", "secret/key"]}
    assert not allow(files=under("src")).covers("cp", paths)
    assert deny(files=under("secret")).covers("cp", paths)
    assert allow(files=under("src")).covers("cp", {"files": ["src/a.py", "src/b.py"]})
    assert not allow(files=under("src")).covers("cp", {"files": []})


@pytest.mark.parametrize("value", [None, 3, {"path": "src/a.py"}, b"src/a.py"])
def test_only_text_is_a_path(yard: Path, value: Any) -> None:
    assert not allow(path=under("src")).covers("write", {"path": value})
    assert deny(path=under("src")).covers("write", {"path": value})


@pytest.mark.parametrize("folder", ["", "..", "src/../x", "~/x", "a\0b", "$HOME"])
def test_a_folder_with_two_readings_is_refused(folder: str) -> None:
    with pytest.raises(ConfigurationError, match="`under` takes a folder"):
        under(folder)


def test_what_is_not_a_path_is_refused() -> None:
    for folder in (3, None, b"src"):
        with pytest.raises(ConfigurationError, match="`under` takes"):
            under(folder)  # type: ignore[arg-type]
    for root in ("", "~"):
        with pytest.raises(ConfigurationError, match="`root` of `under`"):
            under("src", root=root)
    with pytest.raises(ConfigurationError, match="absolute folder has no root"):
        under("/src", root="/yard")


def test_a_server_reads_relative_paths_from_a_folder_of_its_own(yard: Path) -> None:
    assert UnderOnServer("src")("src/a.py") is None
    assert UnderOnServer(str(yard / "src"))("src/a.py") is None
    assert UnderOnServer(str(yard / "src"))(str(yard / "src/a.py")) is True
    assert UnderOnServer("src", str(yard))("src/a.py") is True


# -- properties

NAMES = [
    *("src", "SRC", "secret", "srcs", "deep", "a.py", "key", "out", "far", "self", "round", "back"),
    *(
        "into",
        "yard",
        "outside.txt",
        "top.txt",
        "..",
        ".",
        "",
        "~",
        "...",
        "%2e%2e",
        "\uff0e\uff0e",
    ),
    *("s\u0131rc", "\u017frc", ". .", "a.py.", "con", "C:", "$HOME"),
]
SEPARATORS = ["/", "//", "\\", "\uff0f", "\u2215", "%2f", "/./", "\0"]


@st.composite
def paths(draw: st.DrawFn) -> str:
    """Paths made of names that are there, of tricks, and of any text."""
    start = draw(st.sampled_from(["", "/", "//", "{yard}/", "{yard}/src/", "src/", "./", "~/"]))
    names = st.one_of(st.sampled_from(NAMES), st.text(max_size=3))
    parts = draw(st.lists(st.tuples(names, st.sampled_from(SEPARATORS)), max_size=5))
    text = start + "".join(name + separator for name, separator in parts)
    return draw(st.sampled_from([text, text.rstrip("/"), unicodedata.normalize("NFKC", text)]))


@pytest.mark.parametrize("folder", ["src", "into", ".", "src/deep"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths())
def test_what_is_allowed_is_inside_for_open(yard: Path, folder: str, path: str) -> None:
    """The kernel says what it opened; `under` has no part in the answer."""
    path = path.replace("{yard}", str(yard))
    if under(folder)(path) is not True:
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        opened = os.fstat(handle)
    finally:
        os.close(handle)
    home = (yard / folder).resolve()
    inside = [home, *home.rglob("*")]
    assert (opened.st_dev, opened.st_ino) in {(s.st_dev, s.st_ino) for s in map(Path.lstat, inside)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths())
def test_what_is_outside_does_not_open_in_the_folder(yard: Path, path: str) -> None:
    """So no `deny` on the folder misses a path into it."""
    path = path.replace("{yard}", str(yard))
    if under("secret")(path) is False:
        assert not Path(path).resolve().is_relative_to(yard / "secret")


@given(path=st.text())
def test_every_text_has_an_answer(path: str) -> None:
    assert under("src")(path) in {True, False, None}
    assert is_ambiguous(path, windows=True) in {True, False}


# -- stored


def test_a_folder_is_stored_by_value_with_a_policy(yard: Path) -> None:
    policy = Policy([allow("write", path=under("src", root=yard)), deny("read", path=under("x"))])
    assert read_policy(jsonable(policy_form(policy)), None) == policy


def test_a_folder_is_stored_by_value_with_a_grant() -> None:
    grant = Grant(args={"path": under("src"), "mode": "a*"}, calls=3)
    stored = Grant(**jsonable(grant))
    assert stored == grant
    assert isinstance(stored.args, dict)
    assert isinstance(stored.args["path"], Under)


# -- in a run


wrote: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_written() -> None:
    wrote.clear()


@tool(require_confirmation=True)
def write(path: str) -> str:
    """Write a file."""
    wrote.append(path)
    return f"wrote {path}"


@tool(concurrent=False)
def link(path: str, target: str) -> str:
    """Make a link in place of what is there."""
    Path(path).unlink(missing_ok=True)
    Path(path).symlink_to(target)
    return "linked"


def writes(path: str) -> dict[str, Any]:
    return {"name": "write", "args": {"path": path}}


def agent(*turns: Any, policy: Policy | None = None, parallel: bool = False) -> ReAct:
    lm = ScriptedLM([*turns, DONE])
    return ReAct("task -> answer", [write, link], lm=lm, policy=policy, parallel=parallel)


IN_SRC = Policy([allow("write", path=under("src"))])
SWAP = {
    "tool_calls": [
        {"name": "link", "args": {"path": "src/a.py", "target": "../secret/key"}},
        writes("src/a.py"),
    ]
}


def test_a_policy_allows_the_folder_and_asks_about_the_rest(yard: Path) -> None:
    run = agent(writes("src/a.py"), writes("src/../top.txt"), policy=IN_SRC).start(task="x")
    assert wrote == ["src/a.py"]
    assert run.pending[0].call.args == {"path": "src/../top.txt"}


def test_a_link_made_by_the_call_before_stops_the_write(yard: Path) -> None:
    """Both calls were allowed together; the path is followed again right before the second."""
    run = agent(SWAP, policy=IN_SRC).start(task="x")
    assert run.status == "done"
    assert wrote == []
    [step] = run.trajectory.steps[:1]
    assert step.results[1].is_error
    assert "no longer leads" in str(step.results[1].content)


def test_a_link_made_by_the_call_before_stops_the_write_of_an_async_run(yard: Path) -> None:
    run = asyncio.run(agent(SWAP, policy=IN_SRC).astart(task="x"))
    assert run.status == "done"
    assert wrote == []


def test_a_link_made_meanwhile_brings_a_call_under_a_denied_folder(yard: Path) -> None:
    policy = Policy([allow("write"), deny("write", path=under("secret"), reason="keys are there")])
    agent(SWAP, policy=policy).start(task="x")
    assert wrote == []


def test_a_grant_for_a_folder_outlives_the_process(yard: Path) -> None:
    store = MemoryStore()
    turns = [writes("src/a.py"), writes("src/deep/b.py"), writes("src/out/key")]
    run = agent(*turns).start(task="x", store=store, run_id="r")
    grant = Grant(args={"path": under("src")})
    store.decide("r", run.pending[0].approve(always=grant).signed("ada", "web"))
    again = Run.load(store, "r", agent(*turns[1:]))
    again.resume()
    assert wrote == ["src/a.py", "src/deep/b.py"]
    assert again.pending[0].call.args == {"path": "src/out/key"}


def test_a_grant_holds_until_the_tool_runs(yard: Path) -> None:
    """The first call of the second answer puts a link where the second one writes."""

    @tool(require_confirmation=True, concurrent=False)
    def put(path: str, target: str = "") -> str:
        """Write a file, or put a link there."""
        wrote.append(path)
        if target:
            Path(path).unlink(missing_ok=True)
            Path(path).symlink_to(target)
        return "put"

    def puts(**args: str) -> dict[str, Any]:
        return {"name": "put", "args": args}

    swap = [puts(path="src/a.py", target="../secret/key"), puts(path="src/a.py")]
    lm = ScriptedLM([puts(path="src/deep/b.py"), {"tool_calls": swap}, DONE])
    run = ReAct("task -> answer", [put], lm=lm).start(task="x")
    run.answer(run.pending[0].approve(always=Grant(args={"path": under("src")})))
    run.resume()
    assert run.status == "done"
    assert wrote == ["src/deep/b.py", "src/a.py"]


def test_what_a_person_approved_runs_where_they_saw_it(yard: Path) -> None:
    """A person decided about the text; only a rule that denies can still stop it."""
    run = agent(writes("secret/key"), policy=IN_SRC).start(task="x")
    run.answer(run.pending[0].approve())
    run.resume()
    assert wrote == ["secret/key"]


def test_a_secret_path_is_in_doubt(yard: Path) -> None:
    """It is judged by its stars, which would be a name in the folder."""

    @tool
    def read(path: SecretStr) -> str:
        """Read a file."""
        wrote.append(path.get_secret_value())
        return "read"

    lm = ScriptedLM([{"name": "read", "args": {"path": "/etc/passwd"}}, DONE])
    policy = Policy([allow("read", path=under("."))], otherwise="deny")
    ReAct("task -> answer", [read], lm=lm, policy=policy)(task="x")
    assert wrote == []


def test_the_tools_own_rule_follows_the_path(yard: Path) -> None:
    @tool(require_confirmation=ask(path=under("secret")))
    def read(path: str) -> str:
        """Read a file."""
        wrote.append(path)
        return "read"

    calls = [{"name": "read", "args": {"path": path}} for path in ("src/a.py", "src/key")]
    lm = ScriptedLM([*calls, DONE])
    run = ReAct("task -> answer", [read], lm=lm).start(task="x")
    assert wrote == ["src/a.py"]
    assert run.pending[0].call.args == {"path": "src/key"}


def test_a_stored_policy_follows_paths_where_the_run_resumes(yard: Path) -> None:
    store = MemoryStore()
    turns = [writes("top.txt"), writes("src/a.py"), writes("src/key")]
    with context(policy=IN_SRC):
        run = agent(*turns).start(task="x", store=store, run_id="r")
    store.decide("r", run.pending[0].deny().signed("ada", "web"))
    again = Run.load(store, "r", agent(*turns[1:]))
    again.resume()
    assert wrote == ["src/a.py"]
    assert again.pending[0].call.args == {"path": "src/key"}


# -- the folder of a path


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("src/a.py", "src"),
        ("a.py", "."),
        ("src/deep/", "src"),
        ("/yard/src/a.py", "/yard/src"),
        ("/a.py", ""),
        ("src/../a.py", ""),
        ("~/a.py", ""),
    ],
)
def test_a_path_has_a_folder_unless_it_is_in_doubt(path: str, folder: str) -> None:
    assert folder_of(path) == folder
