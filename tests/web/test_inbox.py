"""The inbox (`web/inbox.py`): lines, groups, and equal calls side by side."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from page_server import Client, served
from page_store import answer, call, finish
from pydantic import Field, SecretStr

from ferrule import MemoryStore, ReAct, SQLiteStore, context, tool
from ferrule.approval import policy
from ferrule.testing import ScriptedLM
from ferrule.web.inbox import InboxQuery, SideBySide, groups_of, shape_of
from ferrule.web.reading import inbox
from ferrule.web.ui import ui_app


@tool(effect="once", require_confirmation=True)
def pay(
    order: str,
    euros: Annotated[float, Field(ge=0)],
    to: str,
    pin: SecretStr | None = None,
    note: str | None = None,
) -> str:
    """Pay."""
    return f"paid {euros}"


@tool(require_confirmation=True)
def letter(to: str) -> str:
    """Write."""
    return "sent"


def desk(name: str = "Desk") -> ReAct:
    return ReAct("message -> answer", [pay, letter], name=name)


def ask(store: Any, run_id: str, *calls: Any, name: str = "Desk", **more: Any) -> None:
    with context(lm=ScriptedLM([answer("", *calls, thought=f"Because of {run_id}.")])):
        desk(name).start(message="x", store=store, run_id=run_id, **more)


def payments(store: Any, count: int = 10, odd: int = 4, **oddly: Any) -> None:
    for number in range(count):
        args = {"order": f"A-{number}", "euros": 20 + number, "to": f"NL{number:02}BANK{number}"}
        if number == odd:
            args |= oddly
        ask(store, f"pay-{number}", call("pay", **args), title=f"Order {number}")


@pytest.fixture
def desk_store(tmp_path: Any) -> Any:
    store = SQLiteStore(tmp_path / "desk.db", full_sync=False)
    yield store
    store.close()


def reviewed(store: Any, **query: str) -> SideBySide:
    asked, _ = inbox(store)
    [(shape, _)] = groups_of(asked)[0].shapes
    return SideBySide.of(asked, shape, query)


def page_of_review(client: Client) -> str:
    address = re.search(r'href="(/inbox/review\?shape=\w+)"', client.get("/inbox").text)
    assert address is not None
    return address[1]


def ticks(page: str) -> dict[str, str]:
    return dict(re.findall(r'name="(read:[^"]+)" value="(\w+)"', page))


def test_questions_are_lines_by_program_and_tool_the_oldest_first() -> None:
    store = MemoryStore()
    ask(store, "a", call("letter", to="ada"))
    ask(store, "b", call("pay", order="A-1", euros=5, to="NL1"), name="Billing")
    ask(store, "c", call("letter", to="bob"), call("pay", order="A-2", euros=6, to="NL2"))
    groups = groups_of(inbox(store)[0])
    assert [(group.program, group.tool, len(group.asked)) for group in groups] == [
        ("Desk", "letter", 2),
        ("Billing", "pay", 1),
        ("Desk", "pay", 1),
    ]
    assert [[count for _, count in group.shapes] for group in groups] == [[2], [], []]


def test_of_many_questions_each_is_a_closed_line_and_of_few_it_is_open(desk_store: Any) -> None:
    payments(desk_store, 3)
    app = ui_app(desk_store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        assert len(re.findall(r'<details class="line"[^>]* open>', ann.get("/inbox").text)) == 3
        for number in range(4):
            ask(desk_store, f"more-{number}", call("letter", to="ada"))
        page = ann.get("/inbox").text
    assert len(re.findall(r'<details class="line"', page)) == 7
    assert not re.findall(r'<details class="line"[^>]* open>', page)
    line = re.search(r"<summary><b><code>pay</code>.*?</summary>", page, re.DOTALL)
    assert line is not None
    for shown in ("order A-0, euros 20", "Order 0", "Because of pay-0.", "ago</time>"):
        assert shown in line[0]
    assert "<button" not in line[0], "nothing is decided on a line"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"program": "Desk"}, ["a", "c"]),
        ({"tool": "pay"}, ["b"]),
        ({"q": "ADA"}, ["a"]),
        ({"q": "order nine"}, ["c"]),
        ({"q": "u-7"}, ["b"]),
        ({"q": "because of b"}, ["b"]),
        ({"program": "Desk", "tool": "pay"}, []),
        ({}, ["a", "b", "c"]),
    ],
)
def test_the_inbox_is_filtered(query: dict[str, str], found: list[str]) -> None:
    store = MemoryStore()
    ask(store, "a", call("letter", to="Ada"))
    pay_one = call("pay", order="A-1", euros=5, to="NL1")
    ask(store, "b", pay_one, name="Billing", metadata={"user": "u-7"})
    ask(store, "c", call("letter", to="bob"), title="Order nine")
    wanted = InboxQuery.of(query)
    assert [asked.run.id for asked in inbox(store)[0] if wanted.fits(asked)] == found


def test_only_calls_that_would_run_alike_have_one_shape() -> None:
    """The same tool of the same program, with the same arguments of the same types."""
    store = MemoryStore()
    ask(store, "a", call("pay", order="A-1", euros=5, to="NL1"))
    ask(store, "b", call("pay", order="A-2", euros=900, to="XX"))
    ask(store, "other-type", call("pay", order="A-3", euros=5, to="NL1", note="x"))
    ask(store, "other-program", call("pay", order="A-4", euros=5, to="NL1"), name="Billing")
    ask(store, "other-tool", call("letter", to="NL1"))
    ask(store, "too-long", call("pay", order="x" * 300_000, euros=5, to="NL1"))
    shapes = {asked.run.id: shape_of(asked) for asked in inbox(store)[0]}
    assert shapes["a"] == shapes["b"] != ""
    assert shapes["too-long"] == ""
    assert len(set(shapes.values())) == 5


@pytest.mark.parametrize(
    ("oddly", "remark"),
    [
        ({"euros": 199}, "far above the middle, 24.5"),
        ({"euros": 0.5}, "far below the middle, 24.5"),
        ({"to": "XX04BANK4"}, "of another form than the others"),
        ({"order": "B-4"}, "of another form than the others"),
    ],
)
def test_a_value_that_sticks_out_among_equal_calls_is_marked(
    oddly: dict[str, Any],
    remark: str,
) -> None:
    store = MemoryStore()
    payments(store, 10, 4, **oddly)
    review = reviewed(store)
    odd = [row.asked.run.id for row in review.rows if row.sticks_out]
    assert odd == ["pay-4"]
    [found] = [each for each in review.rows[4].differing if each.remark]
    assert found.remark.partition(",")[0] == remark.partition(",")[0]


def test_a_recipient_unlike_the_others_is_marked() -> None:
    store = MemoryStore()
    for number, to in enumerate(["ada@shop.example"] * 5 + ["ada@sh0p.example"]):
        ask(store, f"r-{number}", call("letter", to=to))
    assert [row.sticks_out for row in reviewed(store).rows] == [False] * 5 + [True]
    store = MemoryStore()
    for number, host in enumerate(["shop.example"] * 5 + ["sh0p.example"]):
        ask(store, f"r-{number}", call("letter", to=f"person{chr(97 + number)}@{host}"))
    assert [row.sticks_out for row in reviewed(store).rows] == [False] * 5 + [True]


def test_every_value_of_every_call_is_on_the_page_of_equal_calls(desk_store: Any) -> None:
    payments(desk_store, 4)
    app = ui_app(desk_store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        page = ann.get(page_of_review(ann)).text
    assert "The same in all 4" in page
    for number in range(4):
        for value in (f"A-{number}", f"NL{number:02}BANK{number}", str(20 + number)):
            assert f'tabindex="0">{value}</div>' in page
    assert page.count('class="value" tabindex="0">null</div>') == 2, "pin and note, once"
    assert "Approve the ticked calls" in page


def test_only_the_ticked_calls_are_approved_and_their_runs_go_on(desk_store: Any) -> None:
    payments(desk_store, 5, 4, euros=199)
    with context(lm=ScriptedLM(by=lambda request: finish("Paid."))):
        app = ui_app(desk_store, desk(), people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        path = page_of_review(ann)
        page = ann.get(path).text
        shape = path.partition("=")[2]
        chosen = dict(list(ticks(page).items())[:4])
        sent = ann.post("/inbox/review", {**chosen, "shape": shape, "do": "approve"})
        assert (sent.status, sent.headers["location"]) == (303, f"/inbox/review?shape={shape}")
        assert "Approved: 4 of 4 ticked calls." in ann.get("/").text
        assert "Approved: 4" not in ann.get("/").text, "it is said once"
        for thread in _threads():
            thread.join(30)
    assert [desk_store.summary(f"pay-{number}").status for number in range(5)] == [
        "done",
        "done",
        "done",
        "done",
        "waiting",
    ]


def _threads() -> list[Any]:
    import threading

    return [each for each in threading.enumerate() if each.name == "ferrule-ui-run"]


def test_nothing_is_decided_that_was_not_shown(desk_store: Any) -> None:
    """Another shape, another content, a question that is decided, a call that is not shown whole."""
    payments(desk_store, 3)
    ask(desk_store, "letter", call("letter", to="ada"))
    [letter_asked] = desk_store.summary("letter").questions
    app = ui_app(desk_store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        path = page_of_review(ann)
        shape = path.partition("=")[2]
        chosen = ticks(ann.get(path).text)
        first, second, third = chosen
        [asked] = desk_store.summary("pay-0").questions
        desk_store.decide("pay-0", asked.deny("no"))
        form = {
            first: chosen[first],
            second: "0" * 20,
            third: chosen[third],
            f"read:{letter_asked.id}": letter_asked.digest,
            "read:nothing": "x",
            "shape": shape,
            "do": "approve",
        }
        ann.post("/inbox/review", form)
        told = ann.get("/").text
        for text in (
            "Approved: 1 of 5 ticked calls.",
            "One was decided meanwhile.",
            "One has changed since the page was made.",
            "One is not of the same shape.",
        ):
            assert text in told
        assert ann.post("/inbox/review", {"shape": shape, "do": "always"}).status == 400
        ann.post("/inbox/review", {"shape": shape, "do": "approve"})
        assert "No call was ticked. Nothing was decided." in ann.get("/").text
    assert [len(desk_store.summary(f"pay-{number}").decided) for number in range(3)] == [1, 0, 1]
    assert not desk_store.summary("letter").decided


def test_ticked_calls_are_denied_with_a_reason(desk_store: Any) -> None:
    payments(desk_store, 2)
    app = ui_app(desk_store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        path = page_of_review(ann)
        form = {**ticks(ann.get(path).text), "shape": path.partition("=")[2], "do": "deny"}
        sent = ann.post("/inbox/review", {**form, "words": "Not this week."})
        assert sent.headers["location"] == "/inbox"
        assert ann.get("/inbox").text.count("Not this week.") == 2


def test_a_bound_ticks_what_is_below_it_and_nothing_that_sticks_out(desk_store: Any) -> None:
    payments(desk_store, 10, 4, euros=22, to="XX04BANK4")
    review = reviewed(desk_store, arg="euros", most="25")
    ticked = [row.asked.run.id for row in review.rows if row.is_ticked]
    assert ticked == ["pay-0", "pay-1", "pay-2", "pay-3", "pay-5"]
    assert [row.asked.run.id for row in review.rows if row.is_beyond] == [
        "pay-6",
        "pay-7",
        "pay-8",
        "pay-9",
    ]
    assert review.rule == "Policy([allow('pay', euros=le(25)), ask('pay')])"
    made = eval(review.rule, vars(policy))
    assert len(made.rules) == 2
    for name, most in (("to", "25"), ("euros", "x"), ("euros", "nan"), ("", ""), ("gone", "1")):
        review = reviewed(desk_store, arg=name, most=most)
        assert not any(row.is_ticked for row in review.rows)
        assert review.rule == ""


def test_a_shape_that_nothing_has_is_said_so(desk_store: Any) -> None:
    payments(desk_store, 2)
    app = ui_app(desk_store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        for query in ("", "?shape=", "?shape=0000"):
            assert ann.get(f"/inbox/review{query}").status == 404


def test_a_decision_in_the_inbox_goes_on_to_the_next_line_with_the_filter(desk_store: Any) -> None:
    payments(desk_store, 3)
    with context(lm=ScriptedLM(by=lambda request: finish("Paid."))):
        app = ui_app(desk_store, desk(), people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        questions = [desk_store.summary(f"pay-{number}").questions[0] for number in range(3)]
        page = ann.get("/inbox?tool=pay").text
        assert 'name="filter" value="tool=pay"' in page
        form = {"digest": questions[0].digest, "do": "deny", "back": "inbox", "filter": "tool=pay"}
        sent = ann.post(f"/runs/pay-0/questions/{questions[0].id}", form)
        where = sent.headers["location"]
        assert where.startswith("/inbox?tool=pay#q-")
        assert "Denied: pay: order A-0" in ann.get("/inbox").text


def test_what_a_cancellation_would_end_is_said_before_and_after(desk_store: Any) -> None:
    payments(desk_store, 1)
    app = ui_app(desk_store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        assert 'href="/runs/pay-0/cancel"' in ann.get("/runs/pay-0").text
        page = ann.get("/runs/pay-0/cancel").text
        assert "The question about <code>pay</code> is withdrawn" in page
        assert desk_store.summary("pay-0").status == "waiting", "to ask changes nothing"
        ann.post("/runs/pay-0/cancel")
        assert "The run is cancelled. The question about pay is withdrawn." in ann.get("/").text
        assert ann.get("/runs/pay-0/cancel").status == 409
        assert ann.get("/runs/nowhere/cancel").status == 404
    assert desk_store.summary("pay-0").status == "cancelled"
