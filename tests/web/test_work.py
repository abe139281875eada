"""The page with a program: a chat, and runs that are resumed here (`web/work.py`,
`web/deciding.py`).
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from page_server import Client, Stream, served
from page_store import REFUND, TOOLS, answer, call, finish, look_up_order, start, support

from ferrule import InputField, Module, OutputField, Predict, ReAct, Signature, SQLiteStore, context
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM
from ferrule.web import work
from ferrule.web.reading import command_line
from ferrule.web.ui import ui_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def empty(tmp_path: Any) -> Iterator[SQLiteStore]:
    made = SQLiteStore(tmp_path / "chat.db", full_sync=False)
    yield made
    made.close()


class opened:
    """The page with a program, and Ann at it."""

    def __init__(self, store: Any, program: Any, lm: Any = None, **options: Any) -> None:
        with context(**({"lm": lm} if lm is not None else {})):
            self.app = ui_app(store, program, people=["ann"], **options)
        self.served = served(self.app)

    def __enter__(self) -> Client:
        self.ann = Client(self.served.__enter__(), self.app.links["ann"])
        [session] = self.app.sessions._open.values()
        self.ann.csrf = session.csrf
        return self.ann

    def __exit__(self, *_: object) -> None:
        self.served.__exit__(None, None, None)


def sent(ann: Client, text: str, at: str = "/chat", **fields: str) -> str:
    """Where the page goes after a message."""
    got = ann.post(
        at,
        {"v:message": text, **{f"v:{name}": value for name, value in fields.items()}},
    )
    assert got.status == 303, got.text
    return got.headers["location"]


def until(look: Callable[[], Any]) -> Any:
    """What `look` finds as soon as it finds something."""
    ends = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return found


def rests(store: Any, place: str, status: str) -> bool:
    found = store.summary(place.rpartition("/")[2])
    return found.status == status and not found.leased


def history_desk() -> ReAct:
    return ReAct("message, history: History -> answer", TOOLS)


def test_a_message_is_an_ordinary_run_in_the_store(empty: SQLiteStore) -> None:
    with opened(
        empty,
        support(),
        ScriptedLM([answer("", call("look_up_order", order="A-7")), finish("On its way.")]),
    ) as ann:
        assert "Send" in ann.get("/chat").text
        place = sent(ann, "Where is my parcel?")
        until(lambda: rests(empty, place, "done"))
        page = ann.get(place).text
        assert "Where is my parcel?" in page
        assert "On its way." in page
        assert "look_up_order" in page
        [run] = empty.list()
        assert (run.program, run.status) == ("ReAct", "done")
        assert place in ann.get("/chat").text


def test_with_a_history_the_conversation_goes_on(empty: SQLiteStore) -> None:
    asked: list[Any] = []

    def by(request: Any) -> Any:
        asked.append(request)
        return finish(f"answer {len(asked)}")

    with opened(empty, history_desk(), ScriptedLM(by=by)) as ann:
        first = sent(ann, "one")
        until(lambda: rests(empty, first, "done"))
        second = sent(ann, "two", first)
        until(lambda: rests(empty, second, "done"))
        assert second == f"{first}.2"
        page = ann.get(second).text
        assert [text in page for text in ("one", "answer 1", "two", "answer 2")] == [True] * 4
        assert any("answer 1" in each.text for each in asked[-1].messages)
        again = ann.post(first, {"v:message": "two, from another tab"})
        assert again.status == 422
        assert "continued elsewhere" in again.text
        assert "two, from another tab" in again.text


def test_a_turn_that_failed_is_left_out_of_the_conversation(empty: SQLiteStore) -> None:
    """The next turn begins with what the failed one began with."""
    with opened(
        empty,
        history_desk(),
        ScriptedLM([finish("one"), RuntimeError("The provider is gone."), finish("three")]),
    ) as ann:
        first = sent(ann, "1")
        until(lambda: rests(empty, first, "done"))
        second = sent(ann, "2", first)
        until(lambda: rests(empty, second, "failed"))
        assert "The provider is gone." in ann.get(second).text
        third = sent(ann, "3", second)
        until(lambda: rests(empty, third, "done"))


def test_thought_and_text_stream(empty: SQLiteStore) -> None:
    """Before the answer is complete; then the draft is replaced by it."""
    gate = threading.Event()

    class Slow(ScriptedLM):
        def stream(self, request: Any) -> Any:
            for each in super().stream(request):
                yield each
                if "look." in getattr(each, "reasoning", ""):
                    gate.wait(60)

    lm = Slow(
        [
            answer(
                "[[ ## answer ## ]]\nIt is on its way.\n[[ ## completed ## ]]",
                thought="I should look.",
            ),
        ],
    )
    with opened(empty, Predict("message -> answer"), lm) as ann:
        place = sent(ann, "Where?")
        live = Stream(ann, f"/runs/{place.rpartition('/')[2]}/live?after=0&in=chat")
        html = live.event()
        while "I should look." not in html:
            html = live.event()
        assert "What the model is writing" in html
        assert empty.summary(place.rpartition("/")[2]).status == "running"
        gate.set()
        while 'aria-label="Answer"' not in html:
            html = live.event()
        live.close()
        assert "It is on its way." in html
        assert "What the model is writing" not in html


def test_a_question_is_answered_in_place_and_the_run_goes_on(empty: SQLiteStore) -> None:
    with opened(empty, support(), ScriptedLM([REFUND, finish("Done.")])) as ann:
        place = sent(ann, "It is broken.")
        until(lambda: rests(empty, place, "waiting"))
        page = ann.get(place).text
        [question] = empty.summary(place.rpartition("/")[2]).questions
        assert f"/questions/{question.id}" in page
        form = {
            "do": "approve",
            "digest": question.digest,
            "back": "chat",
            "v:euros": "12",
            "v:order": "A-1042",
        }
        got = ann.post(f"/runs/{place.rpartition('/')[2]}/questions/{question.id}", form)
        assert (got.status, got.headers["location"]) == (303, place)
        until(lambda: rests(empty, place, "done"))
        assert "Refunded 12.00 euros for A-1042." in ann.get(place).text


def test_closing_the_page_stops_nothing_and_stop_stops(empty: SQLiteStore) -> None:
    gate = threading.Semaphore(0)

    def by(request: Any) -> Any:
        gate.acquire(timeout=60)
        return answer("", call("look_up_order", order="A-7"))

    with opened(empty, support(), ScriptedLM(by=by)) as ann:
        place = sent(ann, "Where?")
        run_id = place.rpartition("/")[2]
        live = Stream(ann, f"/runs/{run_id}/live?after=0&in=chat")
        live.event()
        live.close()
        gate.release()
        until(lambda: len(empty.load(run_id).entries) >= 3)
        assert empty.summary(run_id).leased
        refused = ann.post(place, {"v:message": "and?"})
        assert refused.status == 303  # without a history, a run of its own
        got = ann.post(f"/runs/{run_id}/cancel", {"back": "chat"})
        assert (got.status, got.headers["location"]) == (303, place)
        for _ in range(4):
            gate.release()
        until(lambda: rests(empty, place, "cancelled"))


class Ticket(Signature):
    """Sort a ticket."""

    priority: Literal["low", "high"] = InputField(desc="How urgent it is.")
    count: int = InputField(default=1)
    tags: list[str] = InputField(default_factory=list)
    message: str = InputField()
    answer: str = OutputField()


def test_other_inputs_have_a_form_and_what_does_not_fit_comes_back(empty: SQLiteStore) -> None:
    with opened(empty, ReAct(Ticket, [look_up_order]), ScriptedLM([finish("Sorted.")])) as ann:
        page = ann.get("/chat").text
        assert "How urgent it is." in page
        got = ann.post(
            "/chat",
            {"v:message": "Broken <b>", "v:priority": '"low"', "v:count": "many"},
        )
        assert got.status == 422
        assert "Expected a number." in got.text
        assert "Broken <b>" in got.text
        assert empty.list() == []
        assert ann.post("/chat", {"v:message": "  ", "v:priority": '"low"'}).status == 422
        place = sent(ann, "Broken", priority='"high"', count="3", tags="a\nb")
        until(lambda: rests(empty, place, "done"))
        page = ann.get(place).text
        assert "priority: high" in page
        assert '"a"' in page


class Silent(Module):
    """It has no signature."""

    def forward(self, x: int) -> int:
        return x


def test_a_program_without_a_signature_has_no_chat_but_resumes(empty: SQLiteStore) -> None:
    with opened(empty, Silent()) as ann:
        assert ann.get("/chat").status == 404
        assert 'href="/chat"' not in ann.get("/").text


def test_what_is_no_program_is_refused(empty: SQLiteStore) -> None:
    with pytest.raises(ConfigurationError, match="takes a program"):
        ui_app(empty, lambda: None)  # pyright: ignore[reportArgumentType]


def test_a_run_of_the_same_program_is_resumed_here(empty: SQLiteStore) -> None:
    run = start(empty, "old", "Broken.", REFUND)
    with opened(empty, support(), ScriptedLM([finish("Paid back.")])) as ann:
        assert "Resume" not in ann.get("/runs/old").text  # it waits for a decision
        empty.decide("old", run.pending[0].approve().signed("bob", "cli"))
        assert "/runs/old/resume" in ann.get("/runs/old").text
        assert ann.post("/runs/old/resume").status == 303
        until(lambda: rests(empty, "old", "done"))
        assert "Paid back." in ann.get("/runs/old").text
        again = ann.post("/runs/old/resume")
        assert again.status == 409
        assert "done" in again.text


def test_a_run_is_run_again_from_a_step(empty: SQLiteStore) -> None:
    """A form sent twice begins one run; the button leads to its page, which says where it is from."""
    start(empty, "old", "Broken.", finish("Paid back."))
    with opened(empty, support(), ScriptedLM([finish("Sorry.")])) as ann:
        page = ann.get("/runs/old").text
        assert '<button form="again" class="quiet again" name="at" value="0"' in page
        assert 'action="/runs/old/fork"' in page
        sent_twice = [ann.post("/runs/old/fork", {"at": "0", "key": "k"}) for _ in range(2)]
        assert [answer.status for answer in sent_twice] == [303, 303]
        [place] = {answer.headers["location"] for answer in sent_twice}
        until(lambda: rests(empty, place, "done"))
        forked = ann.get(place).text
        assert "Sorry." in forked
        assert 'forked from <a href="/runs/old">old</a>' in forked
        assert "Paid back." in ann.get("/runs/old").text
        nowhere = ann.post("/runs/old/fork", {"at": "99", "key": "k"})
        assert (nowhere.status, "no entry at" in nowhere.text) == (409, True)
        assert ann.post("/runs/old/fork", {"key": "k"}).status == 400
        assert ann.post("/runs/none/fork", {"at": "0"}).status == 404
    assert len(empty.list()) == 2


def test_a_run_is_run_again_with_other_inputs(empty: SQLiteStore) -> None:
    start(empty, "old", "Broken.", finish("Paid back."))
    with opened(empty, support(), ScriptedLM([finish("Sorry.")])) as ann:
        assert 'href="/runs/old/again?at=0"' in ann.get("/runs/old").text
        page = ann.get("/runs/old/again?at=0").text
        assert "Broken.</textarea>" in page
        form = {"at": "0", "key": "k", "inputs": "1"}
        place = ann.post("/runs/old/fork", {**form, "v:message": "Late."}).headers["location"]
        until(lambda: rests(empty, place, "done"))
        forked = empty.summary(place.rpartition("/")[2])
        assert (forked.asked, forked.answered) == ("Late.", "Sorry.")
        assert ann.get("/runs/none/again?at=0").status == 404
    with opened(empty, ReAct("message -> answer: int", TOOLS), ScriptedLM([])) as ann:
        assert ann.get("/runs/old/again?at=0").status == 409


def test_a_run_is_run_again_only_where_its_program_is(empty: SQLiteStore) -> None:
    start(empty, "old", "Broken.", finish("Paid back."))
    with opened(empty, ReAct("message -> answer: int", TOOLS), ScriptedLM([])) as ann:
        assert 'id="again"' not in ann.get("/runs/old").text
        assert ann.post("/runs/old/fork", {"at": "0"}).status == 409
    with opened(empty, support(), read_only=True) as ann:
        assert 'id="again"' not in ann.get("/runs/old").text
        assert ann.post("/runs/old/fork", {"at": "0"}).status in {403, 404, 405}


def test_a_run_of_another_program_shows_the_command_to_type(empty: SQLiteStore) -> None:
    start(empty, "it's", "Broken.", RuntimeError("gone"))
    with opened(
        empty,
        ReAct("message -> answer: int", TOOLS),
        ScriptedLM([]),
        place="shop.py:desk",
    ) as ann:
        [address] = {*re.findall(r'href="(/runs/~[^"#]+)', ann.get("/").text)}
        page = ann.get(address).text
        assert "ferrule resume 'it'\"'\"'s' --program shop.py:desk --store" in page
        assert f"{address}/resume" not in page
        assert ann.post(f"{address}/resume").status == 409
    with opened(empty, support(), read_only=True) as ann:
        assert "/resume" not in ann.get(address).text


def test_the_command_to_type_is_quoted_for_the_machine_s_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command line of Windows knows double quotes only, and a backslash is a character of a path."""
    assert (
        command_line("a b", "my shop.py:desk", "/runs.db")
        == "ferrule resume 'a b' --program 'my shop.py:desk' --store /runs.db"
    )
    monkeypatch.setattr(sys, "platform", "win32")
    expected = r'ferrule resume "a b" --program "my shop.py:desk" --store C:\runs\runs.db'
    assert command_line("a b", "my shop.py:desk", r"C:\runs\runs.db") == expected


def test_without_a_program_the_command_is_shown_and_nothing_resumes(ann: Client) -> None:
    page = ann.get("/runs/order-1017").text
    assert "ferrule resume order-1017 --program FILE.py:NAME --store" in page.replace("'", "")
    assert ann.post("/runs/order-1017/resume").status == 409
    assert ann.get("/chat").status == 404
    assert ann.post("/chat", {}).status == 404


class Wild(Module):
    """Its `forward` does what the message says."""

    def __init__(self) -> None:
        self.signature = Signature("message -> answer")

    def forward(self, message: str) -> Any:
        if message == "raise":
            raise ValueError("It \u202e broke <b>here</b>.")
        if message == "exit":
            sys.exit(3)
        return None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_program_that_raises_exits_or_returns_nothing_leaves_a_page_that_says_so(
    empty: SQLiteStore,
) -> None:
    with opened(empty, Wild()) as ann:
        for text, status in (("raise", "failed"), ("exit", "failed"), ("nothing", "done")):
            place = sent(ann, text)
            until(lambda place=place: not empty.summary(place.rpartition("/")[2]).leased)
            page = ann.get(place)
            assert page.status == 200
            found = empty.summary(place.rpartition("/")[2]).status
            assert found in {status, "cancelled"}, text
        assert (
            "It \\u202e broke <b>here</b>."
            in ann.get(f"/?q={empty.list(status='failed')[-1].id}").text
        )
        assert ann.get("/chat").status == 200


def test_junk_in_a_form_is_an_answer_and_never_a_crash(empty: SQLiteStore) -> None:
    with opened(empty, support(), ScriptedLM(by=lambda _: finish("ok"))) as ann:
        for text in (
            "\x00\u202e\u200b",
            "é" * 40_000,
            "{{7*7}}",
            "<script>alert(1)</script>",
            "\r\n\t x",
        ):
            got = ann.post(
                "/chat",
                {
                    "v:message": text,
                    "v:nothing": "1",
                    "null:v:message": "1",
                    "v:": "",
                    "v:message/x": "y",
                    "do": "approve",
                },
            )
            assert got.status == 303, text
            place = got.headers["location"]
            until(lambda place=place: rests(empty, place, "done"))
            assert ann.get(place).status == 200
        assert ann.post("/chat", {}).status == 422
        assert (
            ann.post("/chat/nowhere", {"v:message": "x"}).status == 303
        )  # without a history, a run of its own
        assert ann.get("/chat/nowhere").status == 404
        assert ann.post("/chat", {"v:message": "x" * (1 << 20)}).status == 413


def test_only_one_of_two_tabs_has_the_next_turn(empty: SQLiteStore) -> None:
    with opened(empty, history_desk(), ScriptedLM(by=lambda _: finish("ok"))) as ann:
        first = sent(ann, "one")
        until(lambda: rests(empty, first, "done"))
        with ThreadPoolExecutor(8) as tabs:
            answers = [
                each.status
                for each in tabs.map(lambda _: ann.post(first, {"v:message": "two"}), range(8))
            ]
        assert sorted(answers) == [303] + [422] * 7
        until(lambda: rests(empty, f"{first}.2", "done"))
        assert len(empty.list()) == 2


def test_a_run_that_is_deleted_under_its_chat_is_said_so(empty: SQLiteStore) -> None:
    with opened(empty, history_desk(), ScriptedLM(by=lambda _: finish("ok"))) as ann:
        first = sent(ann, "one")
        until(lambda: rests(empty, first, "done"))
        empty.delete(first.rpartition("/")[2])
        assert ann.get(first).status == 404
        assert ann.post(first, {"v:message": "two"}).status == 404
        assert ann.get("/chat").status == 200


def deleted(store: SQLiteStore) -> None:
    for each in Path(store.path).parent.iterdir():
        each.unlink()


def replaced(store: SQLiteStore) -> None:
    deleted(store)
    other = SQLiteStore(store.path)
    other.list()
    other.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no open file")
@pytest.mark.parametrize("lost", [deleted, replaced])
def test_a_store_that_is_lost_under_open_pages_and_a_chat_is_said_so_everywhere(
    empty: SQLiteStore,
    lost: Callable[[SQLiteStore], None],
) -> None:
    """SQLite itself would go on reading and writing the deleted file: each decision would look as
    if it was kept.
    """
    with opened(empty, support(), ScriptedLM([REFUND, finish("Done.")])) as ann:
        place = sent(ann, "It is broken.")
        part = place.rpartition("/")[2]
        until(lambda: rests(empty, place, "waiting"))
        [question] = empty.summary(part).questions
        streams = [
            Stream(ann, address)
            for address in ("/live", "/inbox/live", f"/runs/{part}/live?after=0&in=chat")
        ]
        for each in streams:
            each.event()
        lost(empty)
        for each in streams:
            assert "was deleted, moved or replaced" in each.event()
            each.close()
        for address in ("/", "/inbox", "/chat", place, f"/runs/{part}"):
            got = ann.get(address)
            assert got.status == 503, address
            assert "The store is not available" in got.text
            assert "Put the file back, or start this process again." in got.text
        forms = {
            f"/runs/{part}/questions/{question.id}": {"do": "approve", "digest": question.digest, "v:euros": "12", "v:order": "A-1042"},
            f"/runs/{part}/cancel": {}, f"/runs/{part}/resume": {}, "/chat": {"v:message": "Hello?"}, place: {"v:message": "Hello?"},
        }  # fmt: skip
        for address, form in forms.items():
            got = ann.post(address, form)
            assert got.status in {409, 503}, address
            assert "was deleted, moved or replaced" in got.text


@pytest.mark.parametrize(
    ("lock", "unlock", "said"),
    [
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0", "Let this process write to the file"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 100000", "Free space on its disk"),
    ],
    ids=["read-only", "disk full"],
)
def test_a_store_that_takes_no_more_writes_loses_no_decision(
    empty: SQLiteStore,
    lock: str,
    unlock: str,
    said: str,
) -> None:
    """The pages still read; what is pressed says what to do, and the same form works once that is
    done.
    """
    with opened(empty, support(), ScriptedLM([REFUND, finish("Done.")])) as ann:
        place = sent(ann, "It is broken.")
        part = place.rpartition("/")[2]
        until(lambda: rests(empty, place, "waiting"))
        [question] = empty.summary(part).questions
        decide = (
            f"/runs/{part}/questions/{question.id}",
            {"do": "deny", "digest": question.digest, "words": "no" * 20_000, "back": "chat"},
        )
        empty._file.read(lambda db: None)
        connection: Any = empty._file._connection
        connection.execute(lock)
        got = ann.post(*decide)
        assert (got.status, said in got.text) == (503, True)
        got = ann.post("/chat", {"v:message": "long " * 20_000})
        assert (got.status, said in got.text) == (422, True)
        assert "long long" in got.text, "what was typed is still there"
        for address in ("/", "/inbox", "/chat", place, f"/runs/{part}"):
            assert ann.get(address).status == 200
        assert empty.summary(part).decided == ()
        connection.execute(unlock)
        assert ann.post(*decide).status == 303
        until(lambda: rests(empty, place, "done"))


def test_what_is_known_of_runs_that_ended_is_forgotten_and_of_others_bounded(
    empty: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "_MOST_KNOWN", 2)
    page = opened(empty, support(), ScriptedLM([finish("Done."), REFUND, REFUND, REFUND]))
    with page as ann:
        places = [sent(ann, "one")]
        until(lambda: rests(empty, places[0], "done"))
        until(lambda: not page.app.work.known)
        for text in ("two", "three", "four"):
            places.append(sent(ann, text))
            until(lambda: rests(empty, places[-1], "waiting"))
        assert [*page.app.work.known] == [each.rpartition("/")[2] for each in places[-2:]]
