"""Files that a disk, an editor or a crash damaged: stores, documents of runs, saved programs,
recordings, lock files.

The errors are ferrule's own, and say what is damaged: never a `KeyError`, `UnicodeDecodeError` or
`RecursionError` from inside.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import sqlite3
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from damage import damaged_bytes, damaged_file, damaged_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores.make import make_in
from stores.programs import SAVED, STORES, Scenario

import ferrule
from ferrule import FerruleError, Message, Messages, Request, Run, SQLiteStore
from ferrule.errors import ConfigurationError, StoreError
from ferrule.mcp_bridge.client.pinning import Pins, read_pins, write_pins
from ferrule.mcp_bridge.client.recording import ReplayLink
from ferrule.testing import RecordLM, ReplayLM, ScriptedLM

pytestmark = pytest.mark.integration
MANY = settings(
    max_examples=30,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.large_base_example,
        HealthCheck.data_too_large,
    ],
)
RUNS = [(kind, name) for kind, scenarios in STORES.items() for name in scenarios]


@cache
def stores_folder() -> Path:
    """A folder with stores and saved programs, made once."""
    folder = TemporaryDirectory(prefix="ferrule-stores-")
    atexit.register(folder.cleanup)
    make_in(Path(folder.name))
    return Path(folder.name)


def texts(of: str, name: str) -> list[tuple[str, str]]:
    """The JSON texts of one stored run, each with the update that replaces it."""
    with closing(sqlite3.connect(stores_folder() / f"{of}.sqlite")) as db:
        no, head, questions, error = db.execute(
            "SELECT no, head, questions, error FROM ferrule_runs WHERE id = ?",
            (name,),
        ).fetchone()
        entries = db.execute(
            "SELECT place, entry FROM ferrule_entries WHERE place >= ? AND place < ?",
            (no << 32, (no + 1) << 32),
        ).fetchall()
        decisions = db.execute(
            "SELECT question_id, decision FROM ferrule_decisions WHERE run_id = ?",
            (name,),
        ).fetchall()
    found = [
        (f"UPDATE ferrule_runs SET head = ? WHERE no = {no}", head),
        (f"UPDATE ferrule_runs SET questions = ? WHERE no = {no}", questions),
    ]
    found += [(f"UPDATE ferrule_runs SET error = ? WHERE no = {no}", error)] if error else []
    found += [
        (f"UPDATE ferrule_entries SET entry = ? WHERE place = {place}", entry)
        for place, entry in entries
    ]
    return found + [
        (f"UPDATE ferrule_decisions SET decision = ? WHERE question_id = '{key}'", text)
        for key, text in decisions
    ]


def go_on(store: SQLiteStore, name: str, scenario: Scenario) -> None:
    """Load a run and carry it to its end; raises the error that ended it."""
    with ferrule.context(lm=ScriptedLM(scenario.script[scenario.asked :])):
        run = Run.load(store, name, scenario.program(), tools=scenario.tools, deps=[])
        for _ in range(9):
            if run.status in {"done", "failed", "cancelled"}:
                break
            for question in run.pending:
                if (decision := scenario.decide(question)) is not None:
                    run.answer(decision)
            run.resume()
        if run.error is not None:
            raise run.error
        run.to_json()


def use_everything(path: Path, name: str, scenario: Scenario) -> None:
    """All that can be done with a stored run, each with or without an error of ferrule's."""
    with closing(SQLiteStore(path)) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be emptied is told
        for act in (
            store.list,
            lambda: go_on(store, name, scenario),
            lambda: store.cancel(name),
            lambda: store.redact(name),
            lambda: store.delete(name),
            lambda: store.prune(older_than_s=0),
        ):
            with suppress(FerruleError):
                act()


@MANY
@given(data=st.data())
def test_damaged_text_in_a_store_is_a_store_error(data: st.DataObject) -> None:
    """A head, a question, an error, an entry or a decision with anything in any place, or of
    another type of SQLite.
    """
    of, name = data.draw(st.sampled_from(RUNS))
    update, text = data.draw(st.sampled_from(texts(of, name)))
    new = data.draw(damaged_json(text) | st.sampled_from([b"\xff\xfe", b"", 5, 1.5, ""]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.sqlite"
        path.write_bytes((stores_folder() / f"{of}.sqlite").read_bytes())
        with closing(sqlite3.connect(path)) as db:
            db.execute(update, (new,))
            db.commit()
        use_everything(path, name, STORES[of][name])


@MANY
@given(data=st.data())
def test_damaged_bytes_of_a_store_are_a_store_error(data: st.DataObject) -> None:
    of, name = data.draw(st.sampled_from(RUNS))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.sqlite"
        path.write_bytes(data.draw(damaged_bytes((stores_folder() / f"{of}.sqlite").read_bytes())))
        use_everything(path, name, STORES[of][name])


@MANY
@given(data=st.data())
def test_a_damaged_document_of_a_run_is_a_store_error(data: st.DataObject) -> None:
    of, name = data.draw(st.sampled_from(RUNS))
    scenario = STORES[of][name]
    with (
        TemporaryDirectory() as folder,
        closing(SQLiteStore(shutil.copy(stores_folder() / f"{of}.sqlite", folder))) as store,
    ):
        stored = store.load(name)
        whole = json.dumps(
            {
                **json.loads(stored.head),
                "status": stored.status,
                "journal": list(map(json.loads, stored.entries)),
            },
        )
        with (
            suppress(FerruleError),
            ferrule.context(lm=ScriptedLM(scenario.script[scenario.asked :])),
        ):
            run = Run.from_json(
                data.draw(damaged_json(whole)),
                scenario.program(),
                tools=scenario.tools,
                deps=[],
            )
            if run.status in {"running", "waiting"}:
                run.resume()
            if run.error is not None and not is_of_the_program(run.error):
                raise run.error


def is_of_the_program(error: BaseException) -> bool:
    """Whether the code of the stored program raised it: an input with another value, say, is no
    fault that anybody could see.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).name == "programs.py"


@pytest.mark.parametrize(
    ("update", "error"),
    [
        (
            "UPDATE ferrule_entries SET entry = '[' || entry",
            "This is not an entry of a journal, which is JSON text",
        ),
        (
            "UPDATE ferrule_entries SET entry = json_set(entry, '$.slot', 5)",
            "An entry of a journal, .* cannot be read: .*`slot` is 5, not str",
        ),
        (
            "UPDATE ferrule_entries SET entry = json_set(entry, '$.kind', 'x')",
            "An entry of a journal, .* cannot be read: .*KeyError: 'x'",
        ),
        (
            "UPDATE ferrule_runs SET head = json_remove(head, '$.fingerprint')",
            "The fingerprint of a stored run cannot be read",
        ),
        (
            "UPDATE ferrule_runs SET head = json_set(head, '$.key', 'xyz')",
            "The head of a run cannot be read: .*non-hexadecimal",
        ),
        (
            "UPDATE ferrule_runs SET head = json_remove(head, '$.inputs')",
            "This is not the head of a run: found",
        ),
    ],
)
def test_an_error_says_what_is_damaged_and_what_to_do(
    tmp_path: Path,
    update: str,
    error: str,
) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes((stores_folder() / "waiting.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as db:
        db.execute(update)
        db.commit()
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreError, match=error):
        go_on(store, "text", STORES["waiting"]["text"])


def test_a_name_in_a_store_that_is_no_text_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(
        (stores_folder() / "ended.sqlite")
        .read_bytes()
        .replace(b"runs_by_change", b"runs_\xfcy_change")
        .replace(b"    updated_at, id", b"    \xfcpdated_at, id"),
    )
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreError, match=r"runs\.sqlite"):
        store.list()


def test_a_run_whose_number_is_lost_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with closing(SQLiteStore(path)) as store:
        store.list()
        with closing(sqlite3.connect(path)) as db:
            db.executescript(
                "ALTER TABLE ferrule_runs RENAME TO old; CREATE TABLE ferrule_runs AS SELECT * FROM old; DROP TABLE old;",
            )
            db.execute(
                "INSERT INTO ferrule_runs (id, program, status, questions, head) VALUES ('r', 'p', 'done', '[]', '{}')",
            )
            db.commit()
    with closing(SQLiteStore(path)) as store:
        for act in (store.load, store.delete):
            with pytest.raises(StoreError, match="A run in the store cannot be read"):
                act("r")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda path: path.write_bytes(
                b"no database at all, but long enough to have a head" * 40,
            ),
            r"not a SQLite database.*Put a backup .*\.recover",
        ),
        (
            lambda path: path.mkdir(),
            "Check that its folder exists and that this process may write there",
        ),
        (
            lambda path: path.write_bytes((stores_folder() / "ended.sqlite").read_bytes()[:9000]),
            r"The file is damaged\. Put a backup .*\.recover",
        ),
    ],
    ids=["other", "folder", "cut"],
)
def test_an_error_of_sqlite_says_what_to_do(tmp_path: Path, make: Any, error: str) -> None:
    path = tmp_path / "runs.sqlite"
    make(path)
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreError, match=error):
        store.list()


@pytest.mark.parametrize(
    "damaged",
    [
        "UPDATE sqlite_master SET name = CAST(x'80' AS TEXT), sql = 'x' WHERE name = 'ferrule_labels'",
        """
        UPDATE sqlite_master
        SET sql = CAST(replace(CAST(sql AS BLOB), CAST('ascii' AS BLOB), x'80') AS TEXT)
        WHERE name = 'ferrule_search'
        """,
    ],
    ids=["seen at opening", "seen by a statement"],
)
def test_an_error_that_quotes_bytes_which_are_not_text_is_a_store_error(
    tmp_path: Path, damaged: str
) -> None:
    """Python cannot decode SQLite's message then, and raises a `UnicodeDecodeError` in its place."""
    for of, name in RUNS:
        path = Path(shutil.copy(stores_folder() / f"{of}.sqlite", tmp_path / f"{name}.sqlite"))
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA writable_schema=ON")
            db.execute(damaged)
            db.commit()
        use_everything(path, name, STORES[of][name])
        with closing(SQLiteStore(path)) as store, suppress(StoreError):
            store.changes()
        with (
            closing(SQLiteStore(path)) as store,
            pytest.raises(StoreError, match=r"damaged.*backup"),
        ):
            store.delete(name)


# -- programs, recordings, lock files


def recording(path: Path) -> bytes:
    lm = RecordLM(ScriptedLM(["x", [{"name": "t", "args": {"x": 1}}]]), path)
    for text in ("a", "b"):
        lm.complete(Request(Messages([Message("user", text)])))
    return path.read_bytes()


def replay(path: Path) -> None:
    lm = ReplayLM(path)
    for text in ("a", "b"):
        with suppress(FerruleError):
            lm.complete(Request(Messages([Message("user", text)]))).message()


SERVER_RECORDING = [
    {
        "ferrule_mcp": 1,
        "name": "s",
        "wire": {"version": "2025-11-25", "server": {"name": "s"}, "capabilities": {"tools": {}}},
    },
    {"method": "tools/list", "params": None, "result": {"tools": []}},
    {
        "method": "tools/call",
        "params": {"name": "x"},
        "error": {"kind": "MCPToolError", "text": "bad", "server": "s", "tool": "x"},
    },
]


def answer_requests(path: Path) -> None:
    link = ReplayLink(path)
    for method, params in (("tools/list", None), ("tools/call", {"name": "x"})):
        with suppress(FerruleError):
            asyncio.run(link.request(method, params))


def lock(path: Path) -> bytes:
    write_pins(
        path,
        "s",
        Pins(
            {"name": "s"},
            {"t": {"name": "t", "description": "d", "inputSchema": {"type": "object"}}},
        ),
    )
    return path.read_bytes()


def compare_pins(path: Path) -> None:
    found = read_pins(path, "s")
    if found is not None:
        found.drift(Pins({"name": "t"}, {"t": {"a": 1}, "u": {"name": "u"}}))
    write_pins(path, "t", Pins({}, {}))


def load_saved(name: str) -> Any:
    def load(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a tool that was changed is told
            SAVED[name].fresh().load(path)

    return load


def saved_program(name: str) -> bytes:
    return (stores_folder() / "saved" / f"{name}.json").read_bytes()


def written(write: Callable[[Path], bytes]) -> bytes:
    with TemporaryDirectory() as folder:
        return write(Path(folder) / "file")


@dataclass(frozen=True)
class Kind:
    """A kind of file that ferrule reads."""

    whole: Callable[[], bytes]
    use: Callable[[Path], None]
    is_lines: bool = False


FILES = {
    **{name: Kind(partial(saved_program, name), load_saved(name)) for name in SAVED},
    "recording": Kind(partial(written, recording), replay, is_lines=True),
    "server": Kind(
        lambda: "\n".join(map(json.dumps, SERVER_RECORDING)).encode(),
        answer_requests,
        is_lines=True,
    ),
    "lock": Kind(partial(written, lock), compare_pins),
}


@pytest.mark.parametrize("name", FILES)
@settings(MANY, max_examples=40)
@given(data=st.data())
def test_a_damaged_file_is_one_of_ferrules_errors(name: str, data: st.DataObject) -> None:
    kind = FILES[name]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data.draw(damaged_file(kind.whole(), is_lines=kind.is_lines)))
        with suppress(FerruleError):
            kind.use(path)


@pytest.mark.parametrize("first", ["[]", '[{"ferrule_mcp": 1}]', "5", "null", '"x"'])
def test_a_recording_whose_first_line_is_no_object_is_no_recording(
    tmp_path: Path,
    first: str,
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(f"{first}\n{{}}\n")
    with pytest.raises(
        ConfigurationError,
        match=r"recording\.jsonl is not a recording of an MCP server",
    ):
        ReplayLink(path)
    with pytest.raises(ConfigurationError, match="is not a recording"):
        ReplayLM(path)


def test_a_recording_with_a_separator_of_lines_in_a_text_is_read(tmp_path: Path) -> None:
    """JSON may hold U+2028 unescaped, and it ends no line of the file."""
    head, _, call = SERVER_RECORDING
    said = {"method": "ping", "params": None, "result": {"text": "one\u2028two\x85three"}}
    path = tmp_path / "recording.jsonl"
    path.write_text(
        "\n".join(json.dumps(each, ensure_ascii=False) for each in (head, said, call)),
        encoding="utf-8",
    )
    assert asyncio.run(ReplayLink(path).request("ping", None)) == said["result"]


def test_half_a_surrogate_pair_in_a_pinned_tool_is_kept(tmp_path: Path) -> None:
    pins = Pins({"name": "s"}, {"t": {"name": "t", "description": "half \ud800"}})
    write_pins(tmp_path / "lock", "s", pins)
    assert read_pins(tmp_path / "lock", "s") == pins
