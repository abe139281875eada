"""Roles on the page (`web/people.py`): who may read, decide, administer."""

from __future__ import annotations

from typing import Any

import pytest
from page_server import Client, served
from page_store import REFUND, start

from ferrule import ReAct, SQLiteStore
from ferrule.cli.commands.ui import _roles
from ferrule.cli.main import main
from ferrule.errors import ConfigurationError
from ferrule.web.people import read_people, read_role
from ferrule.web.ui import ui_app

ROLES = {
    "ann": "administer",
    "bob": "read",
    "eve": "decide:ReAct",
    "joe": "decide:Billing",
    "kim": "decide",
}


@pytest.fixture
def app(store: SQLiteStore) -> Any:
    return ui_app(store, people=ROLES)


def client(app: Any, address: str, name: str) -> Client:
    return Client(address, app.links[name])


def decision(store: SQLiteStore, do: str = "approve") -> tuple[str, dict[str, str]]:
    [question] = store.summary("order-1042").questions
    path = f"/runs/order-1042/questions/{question.id}"
    return path, {"digest": question.digest, "do": do, "back": "inbox"}


@pytest.mark.parametrize(
    ("name", "status"),
    [("ann", 303), ("bob", 403), ("eve", 303), ("joe", 403), ("kim", 303)],
)
def test_a_question_is_decided_by_those_who_may(
    app: Any,
    address: str,
    store: SQLiteStore,
    name: str,
    status: int,
) -> None:
    path, form = decision(store)
    person = client(app, address, name)
    assert person.post(path, form, page="/").status == status
    assert bool(store.summary("order-1042").decided) == (status == 303)
    page = person.get("/runs/order-1040").text
    assert ('name="do" value="approve"' in page) == (status == 303)


@pytest.mark.parametrize("name", ["bob", "eve", "joe", "kim"])
@pytest.mark.parametrize("what", ["cancel", "resume", "fork", "say", "cancel-call"])
def test_only_an_administrator_changes_a_run(
    app: Any,
    address: str,
    store: SQLiteStore,
    name: str,
    what: str,
) -> None:
    person = client(app, address, name)
    assert person.post(f"/runs/order-1042/{what}", {"text": "x"}, page="/").status == 403
    assert person.get("/runs/order-1042/cancel").status == 403
    assert "Cancel this run" not in person.get("/runs/order-1042").text
    assert store.summary("order-1042").status == "waiting"


def test_an_inbox_has_what_its_person_may_decide(
    app: Any, address: str, store: SQLiteStore
) -> None:
    billing = ReAct("message -> answer", [], name="Billing", enable_user_clarification=True)
    start(store, "bill-1", "x", REFUND, program=billing)
    counts = {name: client(app, address, name).get("/waiting").text for name in ROLES}
    assert {name: text[:10] for name, text in counts.items()}["bob"] == '{"count":0'
    assert '"count":3' in counts["ann"]
    assert '"count":3' in counts["eve"]
    assert '"count":0' in counts["joe"]
    assert 'id="q-' in client(app, address, "bob").get("/inbox").text, "who reads sees them"
    assert 'id="q-' not in client(app, address, "joe").get("/inbox").text


def test_a_page_that_only_reads_is_read_only_for_administrators_too(store: SQLiteStore) -> None:
    app = ui_app(store, people={"ann": "administer"}, read_only=True)
    with served(app) as address:
        ann = client(app, address, "ann")
        path, form = decision(store)
        assert ann.post(path, form, page="/").status == 403
        assert "Cancel this run" not in ann.get("/runs/order-1042").text


def test_a_role_is_a_word_and_perhaps_programs() -> None:
    assert read_role("eve", "decide: Support , Billing").programs == {"Support", "Billing"}
    assert read_people(["ann", "bob=read"])["bob=read"].role == "administer", "a name is a name"
    for wrong in ("", "admin", "decide:", "read:Support", "decide: ,", None, 3):
        with pytest.raises(ConfigurationError, match="The role of 'eve'"):
            read_role("eve", wrong)


@pytest.mark.parametrize("people", [[], ["ann", "ann"], {}, "ann"])
def test_people_are_named_once(people: Any, store: SQLiteStore) -> None:
    with pytest.raises(ConfigurationError, match="`people` are the names"):
        ui_app(store, people=people)


def test_the_command_takes_a_role_after_the_name(tmp_path: Any, capsys: Any) -> None:
    path = str(tmp_path / "runs.db")
    SQLiteStore(path).close()
    for wrong, problem in (
        (["--person", "ann=boss"], "The role of 'ann' is"),
        (["--person", "ann", "--person", "ann=read"], "names 'ann' twice"),
    ):
        assert main(["ui", "--store", path, *wrong]) != 0
        assert problem in capsys.readouterr().err
    assert _roles(["ann", "bob=read", "a=b=decide:Support"]) == {
        "ann": "administer",
        "bob": "read",
        "a=b": "decide:Support",
    }


# -- who looks at a run, and what people write about it


@pytest.mark.parametrize(
    ("name", "status"),
    [("ann", 303), ("bob", 403), ("eve", 303), ("joe", 403), ("kim", 303)],
)
def test_who_may_decide_may_assign_a_run_and_write_notes(
    app: Any, address: str, store: SQLiteStore, name: str, status: int
) -> None:
    person = client(app, address, name)
    assigned = person.post("/runs/order-1042/assign", {"person": "joe"}, page="/")
    noted = person.post("/runs/order-1042/note", {"note": "I ask the bank."}, page="/")
    assert (assigned.status, noted.status) == (status, status)
    is_done = status == 303
    assert (store.summary("order-1042").assigned == "joe") == is_done
    assert [note.author for note in store.notes("order-1042")] == [name] * is_done
    page = person.get("/runs/order-1042").text
    assert ("/runs/order-1042/assign" in page) == is_done
    assert ("Assigned to <b>joe</b>" in page) == is_done
    assert ("I ask the bank." in page) == is_done


def test_an_assigned_question_is_found_in_the_inbox_and_in_the_list(
    app: Any, address: str, store: SQLiteStore
) -> None:
    ann = client(app, address, "ann")
    [question] = store.summary("order-1042").questions
    form = {"to": "ann", "back": "inbox", "question": question.id, "filter": "tool=refund"}
    sent = ann.post("/runs/order-1042/assign", form, page="/")
    assert sent.headers["location"] == f"/inbox?tool=refund#q-{question.id}"
    ann.post("/runs/order-1042/note", {"note": "<b>Call</b> back"}, page="/")
    mine = ann.get("/inbox?assigned=ann").text
    others = ann.get("/inbox?assigned=-").text
    assert (f"q-{question.id}" in mine, f"q-{question.id}" in others) == (True, False)
    assert "&lt;b&gt;Call" in ann.send("GET", "/inbox?assigned=ann").body.decode()
    listed = ann.get("/?assigned=ann").text
    assert "assigned to <b>ann</b>" in listed
    assert listed.count("data-item data-key") == 1
    ann.post("/runs/order-1042/assign", {"person": " "}, page="/")
    assert store.summary("order-1042").assigned == ""


def test_what_is_no_note_is_refused(app: Any, address: str, store: SQLiteStore) -> None:
    ann = client(app, address, "ann")
    for note in ("", "  ", "x" * 5_000, "a\0b"):
        assert ann.post("/runs/order-1042/note", {"note": note}, page="/").status == 409
    assert ann.post("/runs/order-1042/assign", {"person": "a\nb"}, page="/").status == 409
    assert ann.post("/runs/nowhere/note", {"note": "x"}, page="/").status == 404
    assert store.notes("order-1042") == []
