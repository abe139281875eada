"""A server of tools that hide what they do: what a person is shown is what the server receives."""

from __future__ import annotations

import html
import io
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hostile_server import TRICKS, name_of
from page_server import Client, served
from rich.console import Console

from ferrule import ReAct, Run, SQLiteStore, ToolCall, context
from ferrule.approval.call_view import one_line_exact, view_call
from ferrule.cli.commands.runs import _line_document
from ferrule.cli.prompt import ask_at_terminal
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.safe_text import IGNORABLE, reveal
from ferrule.testing import ScriptedLM
from ferrule.web.pages import question_form
from ferrule.web.reading import AskedQuestion
from ferrule.web.ui import ui_app

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
from ferrule.mcp_bridge.client.mcp_server import MCPServer

SERVER = Path(__file__).parents[1] / "hostile_server.py"


class Desk:
    """A program with the server's tools, its page, and what the server received."""

    def __init__(self, folder: Path, server: MCPServer) -> None:
        self.log = folder / "calls"
        self.store = SQLiteStore(folder / "runs.db", full_sync=False)
        self.agent = ReAct("task -> answer", [server])
        own = [tool for tool in self.agent.tools.values() if tool.mcp is not None]
        self.names = {tool.mcp.name: tool.name for tool in own}
        self.app = ui_app(self.store, people=["ann"])

    def ask(self, number: int, args: dict[str, Any]) -> Any:
        """The question about the call of one trick, which waits in a run."""
        name = name_of(number, list(TRICKS.values())[number])
        call = ToolCall(name=self.names[name], args=args)
        with context(lm=ScriptedLM([{"name": call.name, "args": call.args}])):
            run = self.agent.start(task="x", store=self.store, run_id=f"trick-{number}")
        [question] = run.pending
        return question

    def received(self) -> dict[str, Any]:
        """The name and the arguments of the latest call."""
        return json.loads(self.log.read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: Any) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("hostile")
    server = MCPServer.stdio(
        sys.executable, [str(SERVER), str(folder / "calls")], name="hostile", confirm=True
    )
    with server:
        yield Desk(folder, server)


@pytest.fixture(scope="module")
def person(desk: Desk) -> Iterator[Client]:
    with served(desk.app) as address:
        yield Client(address, desk.app.links["ann"])


def on_card(page: str) -> list[tuple[str, str, str]]:
    """The arguments on the card of a page: name, type and text as a reader sees them."""
    review = re.search(r'<dl class="review">.*?</dl>', page, re.DOTALL)
    rows = re.findall(
        r'<dt>(.*?) <small>(.*?)</small></dt>\n<dd><div class="value[^"]*" tabindex="0">(.*?)</div>',
        review[0] if review else "",
        re.DOTALL,
    )
    return [
        (html.unescape(name), kind.partition(",")[0], html.unescape(re.sub("<[^>]+>", "", text)))
        for name, kind, text in rows
    ]


def heading(page: str) -> str:
    """The title of the card of a page, with the words beside it."""
    header = re.search(r"<header>\s*<h2>.*?</header>", page, re.DOTALL)
    text = re.sub("<[^>]+>", "", header[0] if header else "")
    return html.unescape(re.sub(r"\s+", " ", text)).strip()


def at_terminal(question: Any) -> str:
    longest = max(map(len, view_call(question).lines()))
    paper = Console(file=io.StringIO(), width=2 * longest + 80, color_system=None)
    assert ask_at_terminal(question, paper, lambda: "n") is not None
    return paper.file.getvalue()


def sent_unchanged(store: SQLiteStore, run_id: str, question: Any) -> dict[str, str]:
    """What a browser sends if nobody edits."""
    form = question_form(AskedQuestion(run=store.summary(run_id), question=question))
    assert form is not None
    sent = {"digest": question.digest, "back": "run", "do": "approve"}
    for top in form.fields:
        for leaf in top.leaves():
            if leaf.kind != "fixed":
                sent[leaf.name] = reveal(leaf.text).replace("\n", "\r\n")
            if leaf.is_null and leaf.kind == "text":
                sent[f"null:{leaf.name}"] = "1"
    return sent


@pytest.mark.parametrize(
    ("number", "trick"),
    list(enumerate(TRICKS.values())),
    ids=[name.replace(" ", "_") for name in TRICKS],
)
def test_what_the_page_the_terminal_and_json_show_is_what_the_server_receives(
    desk: Desk, person: Client, number: int, trick: Any
) -> None:
    question = desk.ask(number, trick.args)
    run_id = f"trick-{number}"
    view = view_call(question)
    expected = [(argument.name, argument.type, argument.text) for argument in view.arguments]
    page = person.send("GET", f"/runs/{run_id}").body.decode()
    assert on_card(page) == expected
    title = f"Approve {view.tool}?{'' if view.original == view.tool else f' {view.original}'}"
    assert heading(page).startswith(title)
    assert view.original == one_line_exact(name_of(number, trick))
    assert not re.search(f"[{IGNORABLE}]", page)
    terminal = at_terminal(question)
    assert all(line in terminal for line in view.lines())
    [document] = json.loads(json_text(_line_document(desk.store.summary(run_id))))["questions"]
    in_json = document["call"]["args"]
    assert document["shown"] == jsonable(view)

    answer = person.post(
        f"/runs/{run_id}/questions/{question.id}", sent_unchanged(desk.store, run_id, question)
    )
    assert answer.status == 303
    with context(lm=ScriptedLM([{"name": "finish", "args": {"answer": "ok"}}])):
        run = Run.load(desk.store, run_id, desk.agent).resume()
    assert [decision.kind for decision in run.decisions] == ["approve"]
    request = desk.received()
    assert request["name"] == name_of(number, trick)
    received = request["arguments"]
    assert same(received, in_json)
    assert same(received, question.call.args)
    shown_of_received = view_call(asked_with(question, received))
    assert [
        (argument.name, argument.type, argument.text) for argument in shown_of_received.arguments
    ] == expected


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same, in the order of their names."""
    return json.dumps(one) == json.dumps(other)


def asked_with(question: Any, args: dict[str, Any]) -> Any:
    from msgspec.structs import replace

    return replace(question, call=question.call.changed(args=args))


def test_a_password_that_a_server_asks_for_is_shown_as_the_risk_that_it_is(
    desk: Desk, person: Client
) -> None:
    """It was a password field, as of a page that keeps it safe; the run stores it in the clear."""
    server = MCPServer.stdio(sys.executable, [str(SERVER), str(desk.log)], name="hostile")
    agent = ReAct("task -> answer", [server])
    with context(lm=ScriptedLM([{"name": "sign_in", "args": {}}])):
        run = agent.start(task="x", store=desk.store, run_id="sign-in")
    server.close()
    [question] = run.pending
    assert question.kind == "input"
    assert "Warning: `login` looks like a secret." in question.text
    page = person.get("/runs/sign-in").text
    assert "Warning: `login` looks like a secret." in page
    assert 'type="password"' not in page
    assert "Warning: `login` looks like a secret." in at_terminal(question)


def test_there_are_forty_tricks_and_the_model_reads_none_of_their_hidden_words(desk: Desk) -> None:
    assert len(TRICKS) >= 40
    for tool in desk.agent.tools.values():
        for words in descriptions(tool.declaration):
            assert not re.search(f"[{IGNORABLE}]", words)


def descriptions(node: Any) -> Iterator[str]:
    """Every description and title in a declaration."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key in {"title", "description"} and isinstance(value, str):
            yield value
        else:
            yield from descriptions(value)
