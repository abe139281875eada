"""The commands on kept runs: `ferrule runs`, `show`, `approve`, `deny`, `reply`, `cancel` and `resume`.

All but `resume` read and write the store alone: no program is loaded, no model is asked, and nothing waits for a terminal.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ferrule import settings
from ferrule.cli.arguments import WRONG as WRONG_WORDS
from ferrule.cli.arguments import program_of
from ferrule.cli.prompt import edits, user_name
from ferrule.cli.safe_text import one_line, plain, revealed
from ferrule.errors import ConfigurationError, FerruleError, StoreError
from ferrule.runs.state import Status
from ferrule.values.encoding.encode import json_text, jsonable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from ferrule.runs.protocols import Summary
    from ferrule.runs.store.sqlite import SQLiteStore
    from ferrule.values.confirmation.question import Decision, Question

DONE, FAILED, WRONG, WAITING = 0, 1, 2, 3

_Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")]
_Asked = Annotated[str | None, typer.Argument(metavar="[QUESTION]", help="The question's id, or the beginning of it, if several wait.")]
_File = Annotated[str, typer.Option("--store", help="The SQLite file the runs are kept in.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on standard output.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to those of `ferrule`."""
    for name, command in (("runs", list_runs), ("show", show), ("approve", approve), ("deny", deny), ("reply", reply)):
        app.command(name)(command)
    app.command("cancel")(cancel)
    app.command("resume")(resume)


def list_runs(
    status: Annotated[str | None, typer.Option(help="Only those that are running, waiting, done, failed or cancelled.")] = None,
    store: _File = "ferrule.db",
    as_json: _Json = False,
) -> int:
    """List kept runs, those changed last first, with what waits for a person."""
    with _refusing() as code, _opened(store) as kept:
        if status is not None and status not in get_args(Status):
            msg = f"`--status` is one of {', '.join(get_args(Status))}; found {status!r}."
            raise ConfigurationError(msg)
        found = kept.list(status=status)
        if as_json:
            _print(json_text([_line(each) for each in found]))
        for each in found if not as_json else ():
            when = datetime.fromtimestamp(each.updated_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            _print(f"{each.id}  {each.status:<9}  {when}  {each.program}{f'  ({each.error})' if each.error else ''}")
            for question in each.questions:
                _print(f"    {question.id}  {'decided' if question.id in each.decided else 'waiting'}  {_text(question)}")
    return code[0]


def show(run: _Run, store: _File = "ferrule.db", as_json: _Json = False) -> int:
    """Show one run: its inputs, what waits, and its journal, an entry a line."""
    with _refusing() as code, _opened(store) as kept:
        found = _found(kept, run)
        stored = kept.load(found.id)
        head, entries = json.loads(stored.head), [json.loads(entry) for entry in stored.entries]
        if as_json:
            _print(json_text({**_line(found), "inputs": head["inputs"], "journal": entries}))
            return DONE
        _print(f"{found.id}  {found.status}  {found.program}{f'  ({found.error})' if found.error else ''}")
        for name, value in head["inputs"].items():
            _print(f"  {name} = {_cut(json_text(value))}")
        for entry in entries:
            _print(f"  {entry['slot']:<8} {entry['kind']:<8} {_cut(_told(entry))}")
        for question in found.questions:
            _print(f"  {question.id}  {'decided' if question.id in found.decided else 'waiting'}  {_text(question)}")
    return code[0]


def approve(
    run: _Run,
    question: _Asked = None,
    edit: Annotated[list[str] | None, typer.Option("--edit", help="Another argument, as name=value. May be repeated.")] = None,
    store: _File = "ferrule.db",
) -> int:
    """Approve a call that waits, as it is shown or with other arguments."""

    def decide(asked: Question) -> Decision:
        found = edits(asked, edit) if edit else {}
        if asked.kind == "input":
            return asked.fill(found)
        return asked.edit(found) if edit else asked.approve()

    return _decided(store, run, question, decide)


def deny(
    run: _Run,
    question: _Asked = None,
    why: Annotated[str, typer.Option("--why", help="The reason; the model is told.")] = "",
    store: _File = "ferrule.db",
) -> int:
    """Deny a call that waits."""
    return _decided(store, run, question, lambda asked: asked.deny(why))


def reply(
    run: _Run,
    text: Annotated[str, typer.Argument(help="What the model is told; the call does not run.")],
    question: Annotated[str | None, typer.Option("--question", help="The question's id, if several wait.")] = None,
    store: _File = "ferrule.db",
) -> int:
    """Answer a question in words: what the model asked, or what came of a call that may have run."""
    return _decided(store, run, question, lambda asked: asked.reply(text))


def cancel(run: _Run, store: _File = "ferrule.db") -> int:
    """Cancel a run: at once if it waits, before its next step if a process is at work on it."""
    with _refusing() as code, _opened(store) as kept:
        found = _found(kept, run)
        kept.cancel(found.id)
        _print(f"{found.id}: cancelled")
    return code[0]


def resume(
    run: _Run,
    program: Annotated[str, typer.Option(help="The program it was started with: module:attribute, or file.py:attribute.")],
    store: _File = "ferrule.db",
    lm: Annotated[str | None, typer.Option(help="The model, as provider/model. Default: what the program or its module sets.")] = None,
) -> int:
    """Go on with a run, until it ends or waits. Exit status: 0 done, 1 failed, 3 a person must decide."""
    from ferrule.models.hosted import LM
    from ferrule.runs.run import Run

    with _refusing() as code, _opened(store) as kept:
        loaded = Run.load(kept, _found(kept, run).id, program_of(program))
        with settings.context(**({"lm": LM(lm)} if lm is not None else {})):
            loaded.resume()
        _print(f"{loaded.id}: {loaded.status}")
        for question in loaded.pending:
            _print(f"    {question.id}  {_text(question)}")
        if loaded.status == "done":
            _print(json_text(loaded.prediction))
            return DONE
        if loaded.error is not None:
            _complain(f"{type(loaded.error).__name__}: {loaded.error}")
        return WAITING if loaded.status == "waiting" else FAILED
    return code[0]


# -- what they share -----------------------------------------------------------------------------------------------


@contextmanager
def _refusing() -> Generator[list[int]]:
    """A box with the exit code: 0, or what an error that is told here made it."""
    code = [DONE]
    try:
        yield code
    except FerruleError as error:
        code[0] = WRONG if isinstance(error, WRONG_WORDS) else FAILED
        _complain(str(error))


@contextmanager
def _opened(path: str) -> Generator[SQLiteStore]:
    from ferrule.runs.store.sqlite import SQLiteStore

    if not Path(path).is_file():
        msg = f"There is no file {path!r}. Say where the runs are kept: --store FILE."
        raise ConfigurationError(msg)
    store = SQLiteStore(path)
    try:
        yield store
    finally:
        store.close()


def _found(store: SQLiteStore, name: str) -> Summary:
    return _the_one(name, {each.id: each for each in store.list()}, "run")


def _the_one(name: str | None, there: Mapping[str, Any], what: str) -> Any:
    """The one of that name, or the only one that begins so; where no name was given, the only one there is."""
    alike = [each for each in there if name is None or (name and each.startswith(name))]
    found = [each for each in alike if each == name] or alike
    if len(found) != 1:
        of = f" of the id {name!r}" if name is not None else ""
        msg = f"{'Several' if found else 'No'} {what}{'s' if found else ''}{of}; there are: {', '.join(there) or 'none'}."
        raise StoreError(msg)
    return there[found[0]]


def _decided(path: str, run: str, question: str | None, decide: Callable[[Question], Decision]) -> int:
    with _refusing() as code, _opened(path) as store:
        found = _found(store, run)
        asked = _the_one(question, {each.id: each for each in found.questions}, "question")
        decision = decide(asked).signed(user_name(), "cli")
        store.decide(found.id, decision)
        _print(f"{found.id} {asked.id}: {decision.status}. It takes effect when the run is resumed.")
    return code[0]


def _line(found: Summary) -> dict[str, Any]:
    return jsonable(found)


def _told(entry: Mapping[str, Any]) -> str:
    value: Any = entry["value"]
    match entry["kind"]:
        case "model":
            calls = [f"{call['name']}({json_text(call['args'])})" for call in value.get("tool_calls", ())]
            return " ".join([value.get("text") or "", *calls]).strip()
        case "begun":
            return str(entry["digest"])
        case "result":
            return value["content"] if isinstance(value["content"], str) else json_text(value["content"])
        case "decision":
            return " ".join(filter(None, (value["kind"], value["text"], f"by {value['by']}" if value["by"] else "")))
        case _:
            return json_text(value)


def _text(question: Question) -> str:
    # Everything that is not seen is shown by its number: a person decides on exactly this.
    return revealed(question.text).replace("\n", "\\n")


def _cut(text: str) -> str:
    return one_line(text, 160)


def _print(text: str) -> None:
    sys.stdout.write(f"{plain(text)}\n")


def _complain(text: str) -> None:
    sys.stderr.write(f"{plain(text)}\n")
