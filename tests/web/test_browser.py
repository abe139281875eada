"""The page in the distribution's Chromium: `make ui-test`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_server import FLAGS, browser, find_chromium, served
from page_store import REFUND, TOOLS, answer, call, finish, start, support

from ferrule import (
    History,
    Module,
    Prediction,
    ReAct,
    Run,
    SQLiteStore,
    ToolCall,
    context,
    tool,
)
from ferrule.acts import AskPerson
from ferrule.approval.question import Question
from ferrule.cli.commands.ui import _write_redirect
from ferrule.testing import ScriptedLM
from ferrule.web.reading import decided
from ferrule.web.ui import ui_app

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not os.environ.get("FERRULE_UI_TEST"), reason="`make ui-test` runs it"),
]
PAGES = [
    "/", "/?status=failed", "/?q=kettle&period=week", "/overview", "/inbox", "/runs/order-1042", "/runs/order-1040", "/runs/order-1031", "/runs/order-1009", "/runs/order-1017",
    "/runs/order-1020", "/runs/order-1001", "/compare?run=order-1001&run=order-1020", "/compare?run=order-1001", "/runs/nowhere", "/runs/order-1042/cancel",
]  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def tab(chromium: Any, address: str, app: Any) -> Iterator[Any]:
    """A tab of Ann; an error on its console, or a request to elsewhere, fails the test."""
    with person(chromium, address, app, "ann") as page:
        yield page


class person:
    def __init__(self, chromium: Any, address: str, app: Any, name: str, **options: Any) -> None:
        self.context = chromium.new_context(base_url=address, **options)
        self.context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error('policy', event.blockedURI))",
        )
        self.address, self.link, self.wrong = address, app.links[name], []

    def __enter__(self) -> Any:
        from playwright.sync_api import expect

        expect.set_options(timeout=15_000)
        page = self.context.new_page()
        page.on(
            "console",
            lambda message: self.wrong.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on(
            "request",
            lambda request: (
                self.wrong.append(request.url)
                if not request.url.startswith((self.address, "data:"))
                else None
            ),
        )
        page.goto(self.link)
        return page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        expected = r"status of (401|404|409|422)|ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET"
        wrong = [each for each in self.wrong if not re.search(expected, each)]
        assert kind is not None or wrong == []


def open_fields(question: Any) -> None:
    """Press Edit: a card shows the call first, and its fields on demand."""
    question.get_by_text("Edit", exact=True).click()


def expect(found: Any) -> Any:
    from playwright.sync_api import expect as expected

    return expected(found)


class Hand:
    """A person at a mouse and a keyboard, who needs a moment for each move; counts what they do."""

    def __init__(self, tab: Any) -> None:
        self.tab, self.clicks, self.keys = tab, 0, 0

    def click(self, found: Any, count: int = 1) -> None:
        self.tab.wait_for_timeout(300)
        found.click(click_count=count, delay=60)
        self.clicks += count

    def type(self, text: str) -> None:
        self.tab.keyboard.type(text, delay=150)
        self.keys += len(text)


def test_a_person_approves_a_refund_with_another_amount(tab: Any, store: SQLiteStore) -> None:
    """Five clicks and two keys.

    What waits, Edit, the field, Approve; the page says what was decided.
    """
    expect(tab).to_have_url(re.compile(r"/$"))
    hand = Hand(tab)
    hand.click(tab.get_by_role("link", name="3 questions wait for a decision"))
    question = tab.locator(".question", has_text="refund")
    hand.click(question.get_by_text("Edit", exact=True))
    hand.click(question.get_by_label("euros"), count=2)
    hand.type("12")
    hand.click(question.get_by_role("button", name="Approve with changes"))
    expect(
        tab.get_by_role("heading", name="Approved: refund, with euros 12 instead of 29.9"),
    ).to_be_in_viewport()
    expect(tab.locator(".question", has_text="refund")).to_contain_text("Decided by ann via web")
    [made] = decided(store, "order-1042").values()
    assert (made.kind, made.args, made.by) == ("edit", {"euros": 12}, "ann")
    assert (hand.clicks, hand.keys) == (5, 2)
    check_page(tab)


def test_a_call_approved_unchanged_keeps_its_invisible_characters(
    tab: Any,
    store: SQLiteStore,
) -> None:
    """A family and the line ends of a letter were sent as `\u200d` and `\u000d`."""
    args = {
        "order": "A-1042",
        "euros": 5,
        "reason": "Dear \U0001f468\u200d\U0001f469\u200d\U0001f467,\r\n\r\nbye",
    }
    start(store, "letter", "Write to the family.", answer("", call("refund", **args)))
    tab.goto("/runs/letter")
    tab.get_by_role("button", name="Approve", exact=True).click()
    expect(tab.locator(".question")).to_contain_text("Decided by ann via web")
    [made] = decided(store, "letter").values()
    assert (made.kind, made.args) == ("approve", {})
    check_page(tab)


def test_keys_alone_are_enough_and_none_of_them_decides(tab: Any, store: SQLiteStore) -> None:
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    tab.keyboard.press("i")
    expect(tab).to_have_url(re.compile("/inbox$"))
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    for _ in range(3):
        tab.keyboard.press("j")
    expect(tab.locator(".question", has_text="refund")).to_be_focused()
    tab.keyboard.press("k")
    expect(tab.locator(".question", has_text="send_parcel")).to_be_focused()
    tab.keyboard.press("j")
    tab.keyboard.press("e")
    expect(tab.locator(".question", has_text="refund").get_by_label("order")).to_be_focused()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Escape")
    tab.keyboard.press("a")
    expect(tab.locator(".question", has_text="refund").locator("[data-approve]")).to_be_focused()
    tab.keyboard.press("d")
    tab.keyboard.press("?")
    expect(tab.get_by_role("dialog")).to_be_visible()
    tab.keyboard.press("Escape")
    assert decided(store, "order-1042") == {}
    tab.keyboard.press("d")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", name="Denied: refund")).to_be_visible()
    expect(tab.locator(".question", has_text="Denied: refund")).to_contain_text("Decided by ann")
    assert [each.kind for each in decided(store, "order-1042").values()] == ["deny"]


def test_without_script_everything_but_live_and_keys_works(
    chromium: Any,
    app: Any,
    address: str,
    store: SQLiteStore,
) -> None:
    with person(chromium, address, app, "ann", java_script_enabled=False) as tab:
        tab.get_by_role("link", name="order-1042").first.click()
        open_fields(tab)
        tab.get_by_label("euros").fill("900")
        tab.get_by_text("More ways to answer").click()
        tab.get_by_label("Text for the model").fill("too much")
        tab.get_by_role("button", name="Deny with this reason").click()
        expect(tab.get_by_role("heading", name="Denied: refund")).to_be_in_viewport()
        expect(tab.get_by_text("Decided by ann via web").first).to_be_visible()
    assert [each.text for each in decided(store, "order-1042").values()] == ["too much"]


def test_the_second_person_reads_who_was_first(
    chromium: Any,
    app: Any,
    address: str,
    store: SQLiteStore,
) -> None:
    """What is typed stays; the card of a person who only looks is replaced."""
    with (
        person(chromium, address, app, "ann") as ann,
        person(chromium, address, app, "bob") as bob,
        person(chromium, address, app, "bob") as looking,
    ):
        for tab in (ann, bob, looking):
            tab.goto("/inbox")
        mine = bob.locator(".question", has_text="refund")
        open_fields(mine)
        mine.get_by_label("euros").press_sequentially("1")
        ann.locator(".question", has_text="refund").get_by_role(
            "button",
            name="Approve",
            exact=True,
        ).click()
        expect(looking.locator(".question", has_text="refund")).to_contain_text(
            "Decided by ann via web",
        )
        expect(looking.get_by_role("heading", name="Approved: refund")).to_be_visible()
        expect(mine).to_contain_text("This changed elsewhere.")
        expect(mine.get_by_label("euros")).to_be_focused()
        expect(mine.get_by_label("euros")).to_have_value(re.compile("1"))
        mine.get_by_role("button", name="Deny").click()
        expect(bob.get_by_role("heading", name="Already decided")).to_be_visible()
        expect(bob.get_by_role("heading", name="Approved: refund")).to_be_visible()
        expect(bob.locator("main")).to_contain_text("Decided by ann via web at ")


def test_a_value_that_does_not_fit_comes_back_with_what_was_typed(
    tab: Any,
    store: SQLiteStore,
) -> None:
    """The server's word, where the browser has none."""
    tab.goto("/runs/order-1040")
    open_fields(tab)
    tab.get_by_label("street").fill("Nieuwegracht 3")
    tab.get_by_label(re.compile("^lines")).fill('[{"sku": "X", "count": 0}]')
    tab.get_by_role("button", name="Approve with changes").click()
    expect(tab.get_by_role("heading", name="Please check the form")).to_be_visible()
    expect(tab.get_by_label("street")).to_have_value("Nieuwegracht 3")
    expect(tab.get_by_text("0 is under the minimum 1")).to_be_visible()
    tab.get_by_label(re.compile("^lines")).fill('[{"sku": "X", "count": 2}]')
    tab.get_by_role("button", name="Approve").first.click()
    expect(
        tab.get_by_role(
            "heading",
            name="Approved: send_parcel, with address changed and lines changed",
        ),
    ).to_be_visible()
    [made] = decided(store, "order-1040").values()
    assert made.args["lines"] == [{"sku": "X", "count": 2}]


def test_what_is_typed_before_the_script_is_there_counts(tab: Any, store: SQLiteStore) -> None:
    """The button names the change, and an update leaves the form as it is.

    It was taken for a form that nobody had touched.
    """
    held: list[Any] = []
    tab.route("**/page.js", lambda route: held.append(route))  # a builtin takes no attributes
    tab.goto("/inbox", wait_until="commit")
    question = tab.locator(".question", has_text="refund")
    open_fields(question)
    question.get_by_label("euros").fill("12")
    expect(question.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    held[0].continue_()
    expect(question.get_by_role("button", name="Approve with changes")).to_be_visible()
    store.decide(
        "order-1042",
        store.summary("order-1042").questions[0].deny("No.").signed("bob", "cli"),
    )
    expect(question).to_contain_text("This changed elsewhere.")
    expect(question.get_by_label("euros")).to_have_value("12")


def test_what_is_typed_into_an_empty_field_is_not_sent_as_null(
    tab: Any,
    store: SQLiteStore,
) -> None:
    """A text in a field that was null clears its box `null`; the box alone is a change as well."""
    tab.goto("/runs/order-1040")
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    open_fields(tab)
    zip_field = tab.locator(".field", has_text="zip")
    zip_field.get_by_role("textbox").fill("3511")
    expect(zip_field.get_by_label("no value")).not_to_be_checked()
    tab.get_by_role("button", name="Approve with changes").click()
    expect(
        tab.get_by_role("heading", name="Approved: send_parcel, with address changed"),
    ).to_be_visible()
    [made] = decided(store, "order-1040").values()
    assert made.args["address"] == {"street": "Oudegracht 12", "city": "Utrecht", "zip": "3511"}
    tab.goto("/runs/order-1042")
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    open_fields(tab)
    tab.locator(".field", has_text="reason").get_by_label("no value").check()
    expect(tab.get_by_role("button", name="Approve with changes")).to_be_visible()


def test_a_form_works_after_its_server_was_started_anew(chromium: Any, store: SQLiteStore) -> None:
    """An open page gets the forms of the new session as soon as its browser has opened the new
    link.
    """
    app, again = (ui_app(store, people=["ann"]) for _ in range(2))
    with served(app) as address:
        inside = person(chromium, address, app, "ann")
        tab = inside.__enter__()
        tab.goto("/inbox")
        expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    expect(tab.locator("#link")).to_contain_text("Connection lost")
    with served(again, port=int(address.rpartition(":")[2])):
        tab.context.new_page().goto(again.links["ann"])
        [session] = again.sessions._open.values()
        question = tab.locator(".question", has_text="refund")
        expect(question.locator("[name=csrf]")).to_have_value(session.csrf)
        question.get_by_role("button", name="Approve", exact=True).click()
        expect(tab.get_by_role("heading", name="Approved: refund")).to_be_visible()
        expect(tab.locator(".question", has_text="refund")).to_contain_text(
            "Decided by ann via web",
        )
        inside.__exit__(None)


PAY: Any = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "command": {"type": "string", "format": "password"},
        "sql": {"type": "string"},
        "big": {"type": "integer"},
        "to\nwhom": {"type": "string"},
    },
}
PAID = {
    "amount": 5000,
    "urgent": True,
    "command": "rm -rf /srv/ada",
    "sql": "SELECT 1;" + " " * 25_000 + "DROP TABLE users;",
    "big": 10**399,
    "to\nwhom": "Eve\u3164",
    "force": True,
    "also_delete": "/srv/backup",
}


class Pay(Module):
    """A program that asks about a call of a server's tool."""

    def flow(self, call: Any) -> Any:
        tool_call = ToolCall(name="pay", args=call)
        question = Question(
            "confirm", "", tool_call, fingerprint="f", schema=PAY, raw=call, server="shop"
        )
        [decision] = yield AskPerson((question,))
        return Prediction(kind=decision.kind)


def shown_on(card: Any) -> dict[str, str]:
    """The arguments that a card shows, as a reader sees them."""
    names = [text.split("\n")[0] for text in card.locator(".review dt").all_inner_texts()]
    values = card.locator(".review .value").evaluate_all("all => all.map(one => one.textContent)")
    return dict(zip([name.partition(" ")[0] for name in names], values, strict=True))


@pytest.mark.parametrize("width", [1180, 360])
def test_a_card_shows_every_argument_in_full_without_editing(
    tab: Any, store: SQLiteStore, width: int
) -> None:
    """Those outside the schema, those that a server calls a password, and the end of a long one."""
    Pay().start(call=PAID, store=store, run_id="pay")
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto("/runs/pay")
    card = tab.locator(".question")
    assert shown_on(card) == {
        "amount": "5000",
        "urgent": "true",
        "command": "rm -rf /srv/ada",
        "sql": PAID["sql"],
        "big": str(PAID["big"]),
        "to\\u000awhom": "Eve\\u3164",
        "force": "true",
        "also_delete": "/srv/backup",
    }
    expect(card.locator(".review")).to_contain_text("25\u2009026 characters")
    is_cut = card.locator(".review .value").evaluate_all(
        "all => all.some(one => one.scrollWidth > one.clientWidth)"
    )
    assert not is_cut, "a line is wrapped, never cut at the edge"
    expect(card.get_by_label("amount")).to_be_hidden()
    check_page(tab)


def test_an_argument_that_is_cleared_is_removed(tab: Any, store: SQLiteStore) -> None:
    """The call ran with the old 5000 and the old true."""
    Pay().start(call=PAID, store=store, run_id="pay")
    tab.goto("/runs/pay")
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    open_fields(tab)
    tab.get_by_label(re.compile("^amount")).fill("")
    tab.get_by_label(re.compile("^urgent")).select_option("")
    tab.get_by_label(re.compile("whom")).fill("Ada")
    check_page(tab)
    tab.get_by_role("button", name="Approve with changes").click()
    expect(tab.get_by_role("heading", name=re.compile("Approved: pay, with"))).to_be_visible()
    [decision] = decided(store, "pay").values()
    assert (decision.args, decision.removed) == ({"to\nwhom": "Ada"}, ("amount", "urgent"))


def test_an_approval_of_further_calls_is_gone_once_a_value_is_changed(
    tab: Any, store: SQLiteStore
) -> None:
    """Typed 5, ran 5000, and a grant for more."""
    Pay().start(call=PAID, store=store, run_id="pay")
    tab.goto("/runs/pay")
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    tab.get_by_text("More ways to answer").click()
    expect(tab.get_by_role("button", name="Approve them all")).to_be_visible()
    open_fields(tab)
    tab.get_by_label(re.compile("^amount")).fill("5")
    expect(tab.get_by_role("button", name="Approve them all")).to_be_hidden()
    tab.get_by_role("button", name="Approve with changes").click()
    expect(tab.get_by_role("heading", name=re.compile("amount 5 instead of 5000"))).to_be_visible()
    [decision] = decided(store, "pay").values()
    assert (decision.kind, decision.args, decision.grant) == ("edit", {"amount": 5}, None)


def test_without_script_a_changed_value_is_not_dropped_by_an_approval_of_further_calls(
    chromium: Any, app: Any, address: str, store: SQLiteStore
) -> None:
    Pay().start(call=PAID, store=store, run_id="pay")
    with person(chromium, address, app, "ann", java_script_enabled=False) as tab:
        tab.goto("/runs/pay")
        open_fields(tab)
        tab.get_by_label(re.compile("^amount")).fill("5")
        tab.get_by_text("More ways to answer").click()
        tab.get_by_role("button", name="Approve them all").click()
        expect(tab.get_by_text("You changed the values")).to_be_visible()
        expect(tab.get_by_label(re.compile("^amount"))).to_have_value("5")
        assert decided(store, "pay") == {}
        expect(tab.get_by_role("button", name="Approve them all")).to_have_count(0)
        tab.get_by_role("button", name="Approve with changes").click()
        expect(tab.get_by_role("heading", name=re.compile("amount 5 instead"))).to_be_visible()


def test_a_call_that_is_not_shown_whole_cannot_be_approved(tab: Any, store: SQLiteStore) -> None:
    Pay().start(call={**PAID, "sql": "x" * 300_000}, store=store, run_id="pay")
    tab.goto("/runs/pay")
    expect(tab.get_by_text("a part of it is not shown")).to_be_visible()
    expect(tab.get_by_role("button", name=re.compile("Approve"))).to_have_count(0)
    check_page(tab)
    tab.get_by_role("button", name="Deny", exact=True).click()
    expect(tab.get_by_role("heading", name="Denied: pay")).to_be_visible()


def slow_run(
    store: SQLiteStore,
    run_id: str,
    gate: threading.Semaphore,
    turns: int = 3,
) -> threading.Thread:
    def by(request: Any) -> Any:
        gate.acquire(timeout=60)
        turn = sum(each.role == "tool" for each in request.messages)
        return (
            finish("done")
            if turn == turns
            else answer("", call("look_up_order", order=f"A-{turn}"))
        )

    def run() -> None:
        with context(lm=ScriptedLM(by=by)):
            support().start(message="x", store=store, run_id=run_id)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_run_is_followed_and_a_hidden_page_catches_up(tab: Any, store: SQLiteStore) -> None:
    """It appears in the list; its steps are appended; counts are announced; no step twice."""
    gate = threading.Semaphore(0)
    thread = slow_run(store, "order-3000", gate)
    expect(tab.get_by_role("link", name="order-3000")).to_be_visible()
    tab.goto("/runs/order-3000")
    gate.release()
    expect(tab.locator("#beats > .beat")).to_have_count(1)
    expect(tab.locator("#news")).to_have_text("1 new step")
    cdp = tab.context.new_cdp_session(tab)
    cdp.send("Emulation.setFocusEmulationEnabled", {"enabled": False})
    tab.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))",
    )
    gate.release()
    gate.release()
    gate.release()
    thread.join(30)
    expect(tab.locator("#beats > .beat")).to_have_count(1)
    tab.evaluate(
        "Object.defineProperty(document, 'hidden', {value: false, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))",
    )
    expect(tab.locator("#beats > .beat")).to_have_count(4)
    expect(tab.locator("#head")).to_contain_text("done")


def test_a_run_at_work_is_followed_until_somebody_scrolls_up(
    tab: Any,
    store: SQLiteStore,
) -> None:
    """The page begins at its end, and a person who reads an earlier step is left alone."""
    tab.set_viewport_size({"width": 900, "height": 500})
    gate = threading.Semaphore(2)
    thread = slow_run(store, "order-3007", gate)
    tab.goto("/runs/order-3007")
    follow = tab.get_by_label("Follow new steps")
    expect(follow).to_be_checked()
    expect(tab.locator("#beats > .beat")).to_have_count(2)
    expect(tab.locator("#beats > .beat").last).to_be_in_viewport()
    tab.mouse.move(400, 250)
    tab.mouse.wheel(0, -5_000)
    expect(follow).not_to_be_checked()
    gate.release()
    expect(tab.locator("#beats > .beat")).to_have_count(3)
    expect(tab.get_by_role("heading", level=1)).to_be_in_viewport()
    tab.mouse.wheel(0, 50_000)
    expect(follow).to_be_checked()
    gate.release()
    thread.join(30)
    expect(tab.locator("#beats > .beat")).to_have_count(4)
    expect(tab.locator("#beats > .beat").last).to_be_in_viewport()


def test_a_hidden_page_tells_of_new_questions_and_counts_them_in_its_title(
    chromium: Any,
    app: Any,
    address: str,
    store: SQLiteStore,
) -> None:
    with person(chromium, address, app, "ann", permissions=["notifications"]) as tab:
        tab.clock.install()
        tab.add_init_script(
            "window.told = []; window.Notification = class { constructor(title, options) "
            "{ told.push(options.body) } static permission = 'granted' }",
        )
        tab.goto("/")
        expect(tab).to_have_title("(3) Runs · ferrule")
        expect(tab.get_by_role("button", name="Notify me of questions")).to_be_hidden()
        tab.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))",
        )
        start(store, "order-2001", "x", answer("", call("refund", order="A-77", euros=3)))
        tab.clock.run_for(16_000)
        expect(tab).to_have_title("(4) Runs · ferrule")
        tab.wait_for_function("told.length === 1")
        assert tab.evaluate("told") == ["refund: order A-77, euros 3, reason null, notify true"]
        tab.clock.run_for(16_000)
        assert tab.evaluate("told.length") == 1


def test_the_earlier_steps_of_a_long_run_are_folded_and_found(tab: Any, store: SQLiteStore) -> None:
    """They are in the page, hidden until a search finds them or a person wants them; nothing moves
    before.
    """
    long_run(store)
    tab.goto("/runs/order-3003")
    folded = tab.locator("#beats > div")
    expect(folded).to_have_attribute("hidden", "until-found")
    expect(folded.locator(".beat")).to_have_count(200)
    expect(tab.locator("#beats > .beat")).to_have_count(6)
    tab.keyboard.press("j")
    expect(tab.locator("#beats > .beat").first).to_be_focused()
    tab.keyboard.press("k")
    expect(tab.get_by_role("link", name="245 earlier steps")).to_be_focused()
    tab.keyboard.press("Enter")
    expect(folded.locator(".beat").first).to_be_focused()
    expect(folded.locator(".beat").first).to_have_attribute("aria-label", "Step 46")
    expect(tab.get_by_role("link", name="45 earlier steps")).to_be_visible()
    tab.get_by_role("link", name="45 earlier steps").click()
    expect(tab.locator("#beats > .beat")).to_have_count(45)
    tab.goto("/runs/order-3003")
    expect(tab.locator("#beats > div")).to_have_attribute("hidden", "until-found")
    assert tab.evaluate("window.find('A-77')"), "a search goes through folded steps"
    tab.locator("#beats .beat", has_text="A-77").dispatch_event(
        "beforematch",
    )  # as a search by hand does: the next test
    expect(tab.locator("#beats .beat", has_text="A-77")).to_be_visible()
    expect(tab.get_by_role("link", name="45 earlier steps")).to_be_visible()


def long_run(store: SQLiteStore) -> None:
    def by(request: Any) -> Any:
        turn = sum(each.role == "tool" for each in request.messages)
        return (
            finish("done") if turn == 250 else answer("", call("look_up_order", order=f"A-{turn}"))
        )

    with context(lm=ScriptedLM(by=by)):
        run = ReAct("message -> answer", TOOLS, max_iters=300).start(
            message="x",
            store=store,
            run_id="order-3003",
        )
    assert run.status == "done"


@pytest.mark.skipif(
    not shutil.which("Xvfb") or not shutil.which("xdotool"),
    reason="a window with keys: apt-get install xvfb xdotool",
)
def test_the_search_of_a_browser_opens_folded_steps_and_what_is_folded_in_them(
    chromium: Any,
    app: Any,
    address: str,
    store: SQLiteStore,
) -> None:
    """Ctrl-F, typed into a browser with a window; one without a window has no search."""
    long_run(store)
    screen = subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "1280x900x24"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert screen.stdout is not None
        display = f":{screen.stdout.readline().strip()}"
        environment = {**os.environ, "DISPLAY": display}
        seen = chromium.browser_type.launch(
            executable_path=find_chromium(),
            args=FLAGS,
            headless=False,
            env=environment,
        )
        with closing(seen), person(seen, address, app, "ann") as tab:
            tab.goto("/runs/order-3003")
            box = tab.locator("#beats > div")
            expect(box).to_have_attribute("hidden", "until-found")
            fold_in = "(all) => all[3].querySelector('div').append(Object.assign(document.createElement('article'), {textContent: '4711'}))"
            tab.locator("#beats > div details.inside").evaluate_all(fold_in)
            for text, found in (
                ("A-77", box.locator(".beat", has_text="A-77")),
                ("4711", box.get_by_text("4711")),
            ):
                search(tab, display, text, found)
            expect(tab.get_by_role("link", name="45 earlier steps")).to_be_visible()
            expect(box.locator("details.inside[open]")).to_have_count(1)
    finally:
        screen.kill()
        screen.communicate()


def search(tab: Any, display: str, text: str, found: Any) -> None:
    for _ in range(
        10,
    ):  # a key that is pressed before the field of the search is there reaches the page, which knows no such key
        subprocess.run(
            ["xdotool", "key", "ctrl+f", "sleep", "1", "type", text],
            env={**os.environ, "DISPLAY": display},
            check=True,
        )
        with suppress(AssertionError):
            return expect(found).to_be_in_viewport(timeout=3_000)
    pytest.fail(f"{text!r} was not found: {tab.url}")


def test_a_chat_whose_answer_cannot_be_replayed_shows_it_in_its_step(
    chromium: Any,
    store: SQLiteStore,
) -> None:
    """Here for want of a model. It was hidden, as if the answer below the steps was there."""
    app = ui_app(store, support(), people=["ann"])
    with served(app) as address, person(chromium, address, app, "ann") as tab:
        tab.goto("/chat/order-1009")
        expect(tab.get_by_text("I paid back 25 euros.")).to_be_visible()


def test_forty_questions_with_two_traps_are_decided_by_keys(chromium: Any, tmp_path: Any) -> None:
    """Side by side, the traps stand out; the rest is ticked by a key each, and approved together."""

    @tool(require_confirmation=True)
    def pay_back(order: str, euros: float) -> str:
        """Pay money back."""
        return "paid"

    @tool(require_confirmation=True)
    def letter(to: str, copy_to: str) -> str:
        """Write a letter."""
        return "sent"

    @tool(require_confirmation=True)
    def close_ticket(ticket: int) -> str:
        """Close a ticket."""
        return "closed"

    store = SQLiteStore(tmp_path / "desk.db", full_sync=False)
    desk = ReAct("message -> answer", [pay_back, letter, close_ticket])
    for number in range(40):
        args: dict[str, Any] = {"ticket": 700 + number}
        if number % 3 == 0:
            args = {"order": f"A-{number}", "euros": 199 if number == 21 else 20 + number % 5}
        elif number % 3 == 1:
            host = "sh0p" if number == 25 else "shop"
            args = {"to": f"c{number}@mail.example", "copy_to": f"archive@{host}.example"}
        name = ("pay_back", "letter", "close_ticket")[number % 3]
        start(store, f"desk-{number:02}", "x", answer("", call(name, **args)), program=desk)
    app = ui_app(store, people=["ann"])
    keys = 0
    with served(app) as address, person(chromium, address, app, "ann") as tab:
        tab.goto("/inbox")
        expect(tab.locator("details.line")).to_have_count(40)
        expect(tab.locator("details.line[open]")).to_have_count(0)
        for _ in range(3):
            tab.goto("/inbox")
            tab.get_by_role("link", name=re.compile("alike side by side")).first.click()
            expect(tab.get_by_role("button", name="Approve the 0 ticked calls")).to_be_visible()
            rows = tab.locator("article.row")
            total, odd = rows.count(), tab.locator("article.row.odd").count()
            tab.keyboard.press("j")
            for row in range(total):
                if "odd" in rows.nth(row).get_attribute("class").split():
                    tab.keyboard.press("j")
                else:
                    tab.keyboard.press("x")
                keys += 1
            ticked = f"Approve the {total - odd} ticked calls"
            expect(tab.get_by_role("button", name=ticked)).to_be_visible()
            tab.keyboard.press("a")
            tab.keyboard.press("Enter")
            keys += 3
            told = f"Approved: {total - odd} of {total - odd} ticked calls."
            expect(tab.get_by_text(told)).to_be_visible()
            check_page(tab)
        tab.goto("/inbox?q=desk-21")
        expect(tab.locator("details.line[open]")).to_have_count(1)
        tab.get_by_role("button", name="Deny", exact=True).click()
        expect(tab.get_by_text("Denied: pay_back: order A-21, euros 199")).to_be_visible()
    undecided = [run.id for run in store.list(limit=None) if not run.decided]
    kinds = {
        run.id: next(iter(decided(store, run.id).values())).kind
        for run in store.list(limit=None)
        if run.decided
    }
    store.close()
    assert undecided == ["desk-25"]
    assert [run_id for run_id, kind in kinds.items() if kind != "approve"] == ["desk-21"]
    assert keys == 49


def test_a_line_opens_by_a_key_and_its_decision_leads_to_the_next(
    chromium: Any,
    tmp_path: Any,
) -> None:
    store = SQLiteStore(tmp_path / "desk.db", full_sync=False)
    for number in range(7):
        refund = call("refund", order=f"A-{number}", euros=5 + number)
        start(store, f"order-{number}", "x", answer("", refund), program=support())
    with context(lm=ScriptedLM(by=lambda request: finish("done"))):
        app = ui_app(store, support(), people=["ann"])
    with served(app) as address, person(chromium, address, app, "ann") as tab:
        tab.goto("/inbox?q=order")
        tab.keyboard.press("j")
        tab.keyboard.press("j")
        expect(tab.locator("details.line > summary").nth(1)).to_be_focused()
        tab.keyboard.press("a")
        expect(tab.locator("details.line").nth(1).locator("[data-approve]")).to_be_focused()
        tab.keyboard.press("Enter")
        expect(tab.get_by_text("Approved: refund: order A-1")).to_be_visible()
        expect(tab).to_have_url(re.compile(r"/inbox\?q=order#q-"))
        expect(tab.locator(".question", has_text="A-2").first).to_be_focused()
        check_page(tab)
    store.close()


def test_the_page_outlives_its_server(chromium: Any, store: SQLiteStore) -> None:
    """It says that the connection is lost, comes back, and has every step once."""
    gate = threading.Semaphore(0)
    thread = slow_run(store, "order-3001", gate)
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        inside = person(chromium, address, app, "ann")
        tab = inside.__enter__()
        tab.goto("/runs/order-3001")
        gate.release()
        expect(tab.locator("#beats > .beat")).to_have_count(1)
    expect(tab.locator("#link")).to_contain_text("Connection lost")
    for _ in range(3):
        gate.release()
    thread.join(30)
    with served(app, port=int(address.rpartition(":")[2])):
        expect(tab.locator("#beats > .beat")).to_have_count(4)
        expect(tab.locator("#link")).to_be_hidden()
        inside.__exit__(None)


def test_the_page_outlives_trouble_with_its_store(tab: Any, store: SQLiteStore) -> None:
    """It says what is wrong, and goes on without being loaded anew: each step once."""
    path, elsewhere = Path(store.path), Path(store.path + ".moved")
    tab.goto("/runs/order-1042")
    expect(tab.get_by_role("button", name="Keys")).to_be_visible()
    path.rename(elsewhere)
    expect(tab.locator("#link")).to_contain_text("was deleted, moved or replaced")
    elsewhere.rename(path)
    expect(tab.locator("#link")).to_be_hidden()
    store.decide(
        "order-1042",
        store.summary("order-1042").questions[0].deny("No.").signed("bob", "cli"),
    )
    with context(lm=ScriptedLM([finish("Not paid.")])):
        Run.load(store, "order-1042", support()).resume()
    expect(tab.locator("#head")).to_contain_text("done")
    expect(tab.locator("#beats > .beat")).to_have_count(3)


def test_ten_open_pages_work(chromium: Any, app: Any, address: str, store: SQLiteStore) -> None:
    """A browser opens six connections; hidden pages give theirs back."""
    with person(chromium, address, app, "ann") as first:
        others = [first.context.new_page() for _ in range(9)]
        for number, each in enumerate(others):
            each.goto("/inbox" if number % 2 else "/")
            if number < 8:
                each.evaluate(
                    "Object.defineProperty(document, 'hidden', {value: true}); document.dispatchEvent(new Event('visibilitychange'))",
                )
        start(store, "order-4000", "x", finish("y"))
        expect(others[8].get_by_role("link", name="order-4000")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    chromium: Any,
    app: Any,
    address: str,
    scheme: str,
    store: SQLiteStore,
) -> None:
    """No violation of any impact, contrast included; no sideways scroll from 320 px."""
    from importlib.resources import files

    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    gate = threading.Semaphore(1)
    thread = slow_run(store, "order-3002", gate)
    found: list[str] = []
    with person(chromium, address, app, "ann", color_scheme=scheme) as tab:
        for path in [*PAGES, "/runs/order-3002"]:
            for width in (1180, 320):
                tab.set_viewport_size({"width": width, "height": 800})
                tab.goto(path)
                tab.evaluate(
                    "for (const each of document.querySelectorAll('details')) each.open = true",
                )
                cdp = tab.context.new_cdp_session(
                    tab,
                )  # not by a script tag, which the policy forbids
                cdp.send("Runtime.evaluate", {"expression": axe})
                report = cdp.send(
                    "Runtime.evaluate",
                    {"expression": "axe.run()", "awaitPromise": True, "returnByValue": True},
                )["result"]["value"]
                found += [
                    f"{path} {width} {each['id']} {each['impact']}: {each['nodes'][0]['html'][:120]}"
                    for each in report["violations"]
                ]
                if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    found.append(f"{path}: scrolls sideways at {width}")
    for _ in range(4):
        gate.release()
    thread.join(30)
    assert not found, "\n".join(found)


def test_hostile_text_runs_nothing(chromium: Any, tmp_path: Any) -> None:
    """In the browser."""
    store = SQLiteStore(tmp_path / "h.db", full_sync=False)
    text = '<script>alert(1)</script><img src=x onerror=alert(1)>\u202e{{7*7}}" onfocus=alert(1) autofocus x="'
    start(
        store,
        "h",
        text,
        answer(text, call("refund", order=text, euros=1, reason=text), thought=text),
    )
    start(
        store,
        text[:60],
        text,
        answer(text, call("look_up_order", order=text), thought=text),
        finish(text),
    )
    app = ui_app(store, people=["ann"])
    with served(app) as address, person(chromium, address, app, "ann") as tab:
        tab.on("dialog", lambda dialog: pytest.fail(dialog.message))
        for path in ("/", "/inbox", "/runs/h"):
            tab.goto(path)
            expect(tab.locator("main")).to_contain_text("<script>alert(1)</script>")
        store.decide("h", store.summary("h").questions[0].deny(text))
        expect(tab.locator("#asked")).to_contain_text("<img src=x onerror=alert(1)>\\u202e{{7*7}}")
        with context(lm=ScriptedLM([finish(text)])):
            Run.load(store, "h", support()).resume()
        expect(tab.locator("#head")).to_contain_text("done")
    store.close()


def desk(by: Any, tmp_path: Any) -> tuple[SQLiteStore, Any]:
    store = SQLiteStore(tmp_path / "desk.db", full_sync=False)
    with context(lm=ScriptedLM(by=by)):
        return store, ui_app(
            store,
            ReAct("message, history: History -> answer", TOOLS),
            people=["ann"],
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_conversation_in_the_browser(chromium: Any, tmp_path: Any, scheme: str) -> None:
    """Enter sends; the question is answered in place; the next message knows the turn before;
    closing the page stops nothing.
    """
    gate = threading.Semaphore(0)

    def by(request: Any) -> Any:
        turns = sum(each.role == "user" for each in request.messages)
        if turns == 2:
            gate.acquire(timeout=60)
            return finish(f"That was turn {turns}.")
        return (
            finish("I paid 12 euros back.")
            if any(each.role == "tool" for each in request.messages)
            else REFUND
        )

    store, app = desk(by, tmp_path)
    with served(app) as address, person(chromium, address, app, "ann", color_scheme=scheme) as tab:
        tab.get_by_role("link", name="Chat").click()
        expect(
            tab.get_by_text("Enter sends"),
        ).to_be_visible()  # before the script is there, Enter begins a line
        tab.get_by_label("message", exact=True).fill("One of the kettles is broken.\nWhat now?")
        tab.keyboard.press("Enter")
        expect(tab).to_have_url(re.compile("/chat/chat-"))
        expect(
            tab.get_by_text("Enter sends"),
        ).to_be_visible()  # and what is filled in before does not rename the button
        question = tab.locator(".question", has_text="refund")
        open_fields(question)
        question.get_by_label("euros").fill("12")
        question.get_by_role("button", name="Approve with changes").click()
        expect(tab.get_by_label("Answer", exact=True).last).to_contain_text("I paid 12 euros back.")
        first = tab.url.rpartition("/")[2]
        assert [
            each.kind for each in Run.load(store, first, support(), migrate=True).decisions
        ] == ["edit"]
        check_page(tab)
        tab.get_by_label("message", exact=True).fill("Thank you.")
        tab.keyboard.press("Enter")
        expect(tab.locator(".turn")).to_contain_text("I paid 12 euros back.")
        expect(tab.locator("#head")).to_contain_text("running")
        expect(tab.get_by_role("button", name="Stop")).to_be_visible()
        check_page(tab)
        second = tab.url
        tab.goto("/inbox")
        gate.release()
        tab.goto(second)
        expect(tab.get_by_label("Answer", exact=True).last).to_contain_text("That was turn 2.")
        assert store.summary(f"{first}.2").status == "done"
    store.close()


def test_a_run_that_stands_still_is_resumed_on_its_page(chromium: Any, tmp_path: Any) -> None:
    """The page follows the journal; without script, too."""
    store, app = desk(lambda _: finish("Paid."), tmp_path)
    with context(lm=ScriptedLM([REFUND])):
        program: Any = ReAct("message, history: History -> answer", TOOLS)
        run = program.start(message="Broken.", history=History(), store=store, run_id="order-1")
    store.decide("order-1", run.pending[0].approve().signed("bob", "cli"))
    with served(app) as address, person(chromium, address, app, "ann") as tab:
        tab.goto("/runs/order-1")
        tab.get_by_role("button", name="Resume").click()
        expect(tab.locator("#head")).to_contain_text("done")
        expect(tab.locator("#beats")).to_contain_text("Refunded 29.90 euros")
        expect(tab.get_by_role("button", name="Resume")).to_have_count(0)
    store.close()


def check_page(tab: Any) -> None:
    """axe-core finds nothing, and nothing scrolls sideways at 320 px."""
    from importlib.resources import files

    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    size = tab.viewport_size
    for width in (size["width"], 320):
        tab.set_viewport_size({"width": width, "height": size["height"]})
        cdp = tab.context.new_cdp_session(tab)  # not by a script tag, which the policy forbids
        cdp.send("Runtime.evaluate", {"expression": axe})
        report = cdp.send(
            "Runtime.evaluate",
            {"expression": "axe.run()", "awaitPromise": True, "returnByValue": True},
        )["result"]["value"]
        found = [
            f"{each['id']} {each['impact']}: {each['nodes'][0]['html'][:160]}"
            for each in report["violations"]
        ]
        assert not found, "\n".join([tab.url, *found])
        assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth"), (
            f"{tab.url} scrolls sideways at {width}"
        )
    tab.set_viewport_size(size)


def test_the_file_that_the_command_opens_leads_to_the_page_and_log_out_ends_it(
    chromium: Any, address: str, app: Any
) -> None:
    path = _write_redirect(address + app.links["ann"])
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_url(f"{address}/")
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("main")).to_contain_text("logged out")
        page.goto(f"{address}/")
        expect(page.locator("main")).to_contain_text("401")
    finally:
        context.close()
        path.unlink()
