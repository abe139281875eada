"""What every store does: leases and fences, entries, decisions, lists, and what is forgotten.

In memory, SQLite and Postgres alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

import ferrule.runs.store.sqlite.store as module
from ferrule.approval.question import Decision, Question
from ferrule.errors import ConfigurationError, DecisionError, InputError, StoreError
from ferrule.forms import record_form, usage_form
from ferrule.runs.about import about
from ferrule.runs.evaluations import ItemScore
from ferrule.runs.journal.encode import entry_text
from ferrule.runs.journal.entry import Entry
from ferrule.runs.outline import NameUse, Outline
from ferrule.runs.protocols import Lease, Order, Store, Summary
from ferrule.runs.store.outliner import words_in
from ferrule.runs.store.postgres.store import PostgresStore
from ferrule.runs.store.sqlite import batch
from ferrule.runs.store.sqlite.store import MemoryStore, SQLiteStore
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Usage

QUESTION = Question("confirm", "Sure?", ToolCall(name="pay", args={"euros": 3}), id="q1")


class Kept(Protocol):
    """A store, and what happens around it."""

    store: Any
    table: str
    """A name for a table of tools."""

    def pass_s(self, seconds: float) -> None:
        """Time passes."""
        ...

    def age(self, at: float | None) -> int:
        """How long ago something was, in whole thousands of seconds."""
        ...

    def as_another(self) -> AbstractContextManager[Any]:
        """The store as another process has it, which then stands still."""
        ...

    def the_others_die(self) -> None:
        """Those processes are killed."""
        ...

    def under_another_name(self) -> AbstractContextManager[None]:
        """This process after a fork."""
        ...

    def close(self) -> None: ...


class InSQLite:
    """A store of SQLite: time is its clock, and other processes are names."""

    table = "paid"

    def __init__(self, path: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now, self._patch, self._others = 1e9, monkeypatch, itertools.count(1)
        self.store = (
            MemoryStore(clock=self._clock) if path is None else SQLiteStore(path, clock=self._clock)
        )

    def _clock(self) -> float:
        return self._now

    def pass_s(self, seconds: float) -> None:
        self._now += seconds

    def age(self, at: float | None) -> int:
        assert at is not None
        return int(self._now - at) // 1000 * 1000

    @contextmanager
    def under_another_name(self) -> Iterator[None]:
        name = f"elsewhere pid {next(self._others)}"
        with self._patch.context() as patch:
            for each in (module, batch):
                patch.setattr(each, "owner_name", lambda: name)
            yield

    @contextmanager
    def as_another(self) -> Iterator[SQLiteStore]:
        with self.under_another_name():
            yield self.store
        self.store._file.leases.clear()  # else this process would renew them

    def the_others_die(self) -> None:
        self._patch.setattr(module, "is_dead", lambda owner: owner.startswith("elsewhere"))

    def close(self) -> None:
        self.store.close()


class InPostgres:
    """A store of Postgres: time passes as all that was moves into the past."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema, self.table = dsn, schema, f"paid_{schema}"
        self.store = PostgresStore(dsn, schema=schema)
        self._others: list[PostgresStore] = []
        self.store.setup()
        self._settle()

    def _settle(self) -> None:
        self.store._server._since -= 1000

    def pass_s(self, seconds: float) -> None:
        columns = {
            "runs": ("created_at", "updated_at"),
            "entries": ("written_at",),
            "decisions": ("decided_at",),
            "owners": ("seen_at",),
        }

        def work(db: Any) -> None:
            for table, names in columns.items():
                others = f" WHERE name <> '{self.store.owner}'" if table == "owners" else ""
                db.execute(
                    f"UPDATE {self._schema}.{table} SET {', '.join(f'{name} = {name} - {seconds}' for name in names)}{others}",
                )

        self.store.transaction(work)

    def age(self, at: float | None) -> int:
        assert at is not None
        return (
            int(
                self.store.transaction(
                    lambda db: db.execute("SELECT extract(epoch FROM now())::float8").fetchone()[0],
                )
                - at,
            )
            // 1000
            * 1000
        )

    @contextmanager
    def as_another(self) -> Iterator[PostgresStore]:
        other = PostgresStore(
            self._dsn,
            schema=self._schema,
            lease_s=30 - 0.001 * (1 + len(self._others)),
        )
        other.setup()
        other._server._since -= 1000
        self._others.append(other)
        yield other
        other._presence._beat_or_drop = lambda: None
        other._leases.clear()

    def the_others_die(self) -> None:
        for each in self._others:
            each.close()  # the end of a session frees its lock
        self.pass_s(6)
        ends = time.monotonic() + 60
        while self.store.live_owners() - {self.store.owner}:  # Postgres has not seen the end yet
            assert time.monotonic() < ends
            time.sleep(0.01)

    @contextmanager
    def under_another_name(self) -> Iterator[None]:
        presence = self.store._presence
        before, presence._name = presence._name, "elsewhere pid 1"
        yield
        presence._name = before

    def close(self) -> None:
        for each in (self.store, *self._others):
            each._leases.clear()
            each.close()


@pytest.fixture(params=["memory", "file", "postgres"])
def kept(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Kept]:
    if request.param == "postgres":
        made: Kept = InPostgres(
            request.getfixturevalue("postgres").dsn,
            request.getfixturevalue("schema"),
        )
    else:
        made = InSQLite(tmp_path / "runs.db" if request.param == "file" else None, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def store(kept: Kept) -> Any:
    return kept.store


def head(*questions: Question, error: Any = None, **more: Any) -> str:
    return json.dumps(
        {
            "questions": [record_form(each) for each in questions],
            "error": error,
            "answers": [],
            **more,
        },
    )


def waiting(store: Store, run_id: str = "r") -> None:
    store.release(
        store.create(run_id, program="P", head=head()),
        status="waiting",
        head=head(QUESTION),
    )


def test_entries_come_back_in_order_and_from_where_one_wants(store: Store) -> None:
    """A run is its head and its entries."""
    lease = store.create("r", program="P", head=head())
    assert [store.append(lease, text) for text in "abc"] == [True] * 3
    assert store.load("r").entries == ["a", "b", "c"]
    store.release(lease, status="waiting", head=head())
    assert store.take("r", after=2).entries == ["c"]


def test_an_entry_has_the_time_at_which_it_was_written(kept: Kept, store: Store) -> None:
    """The times stand beside the entries, and an event loop's entries have them as well."""
    lease = store.create("r", program="P", head=head())
    for text in "ab":
        store.append(lease, text)
        kept.pass_s(1000)
    asyncio.run(store.aappend(lease, "c"))
    found = store.load("r")
    assert (found.entries, list(map(kept.age, found.times))) == (["a", "b", "c"], [2000, 1000, 0])


def test_a_reader_takes_the_entries_that_it_does_not_have_yet(store: Store) -> None:
    """Reading does not take the lease, and the run goes on."""
    lease = store.create("r", program="P", head=head())
    for text in "abc":
        store.append(lease, text)
    found = store.load("r", after=2)
    assert (found.entries, len(found.times)) == (["c"], 1)
    assert store.load("r", after=3).entries == store.load("r", after=9).entries == []
    store.append(lease, "d")
    assert store.load("r", after=3).entries == ["d"]


def test_the_head_of_a_run_that_executes_can_be_replaced(store: Store) -> None:
    """Its state and its entries stay."""
    lease = store.create("r", program="P", head=head())
    store.append(lease, "a")
    store.note(lease, head(notes={"by": "a"}))
    found = store.load("r")
    assert (found.status, found.head, found.entries) == ("running", head(notes={"by": "a"}), ["a"])


def test_a_run_is_made_once(store: Store) -> None:
    """An id names one run."""
    store.create("r", program="P", head=head())
    with pytest.raises(StoreError, match="has a run 'r' already"):
        store.create("r", program="P", head=head())


def test_a_run_is_made_with_its_first_entries(store: Store) -> None:
    """Those of a run that it is a fork of: what is written, or said, comes after them."""
    lease = store.create(
        "r", program="P", head=head(takes_messages=True), entries=["a", "b"], said=3
    )
    store.append(lease, "c")
    assert store.load("r").entries == ["a", "b", "c"]
    assert store.load("r", after=2).entries == ["c"]
    assert store.say("r", "hello").question_id == "say:000004"
    with pytest.raises(StoreError):
        store.create("r", program="P", head=head(), entries=["x"])
    assert store.load("r").entries == ["a", "b", "c"]


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(StoreError, match="has no run 'r'"):
        store.load("r")


@pytest.mark.parametrize("method", ["load", "summary", "delete", "redact", "cancel"])
def test_a_run_whose_id_cannot_be_written_is_not_there(store: Store, method: str) -> None:
    """A lone surrogate has no UTF-8: the file seemed damaged, or Python's error passed."""
    store.create("r", program="P", head=head())
    with pytest.raises(StoreError, match=r"has no run '\\ud800'"):
        getattr(store, method)("\ud800")
    with pytest.raises(StoreError, match=r"has no run '\\ud800'"):
        store.decide("\ud800", QUESTION.approve())
    with pytest.raises(DecisionError, match="A decision comes from a question"):
        store.decide("r", Decision("\ud800", "approve"))
    for choice in ({"program": "\ud800"}, {"before": (math.inf, "\ud800")}):
        with pytest.raises(ConfigurationError, match=f"`{next(iter(choice))}` is"):
            store.list(**choice)
    assert store.load("r").status == "running"


def test_while_one_is_at_work_another_is_refused_until_the_lease_ends(
    kept: Kept,
    store: Store,
) -> None:
    """One writer a run; a run left by a process of which nothing is known is taken over when its
    lease is over.
    """
    with kept.as_another() as other:
        old = other.create("r", program="P", head=head())
    with pytest.raises(
        StoreError,
        match=r"^Another process is at work on the run 'r' \(.* pid \d+.*its lease ends in \d+ s",
    ):
        store.take("r", after=0)
    kept.pass_s(31)
    assert store.take("r", after=0).lease == Lease("r", old.token + 1)
    assert store.summary("r").recoveries == 1


def test_the_run_of_a_process_that_is_dead_is_taken_over_at_once(kept: Kept, store: Store) -> None:
    """Nobody waits for the lease of a process that is known to be gone."""
    with kept.as_another() as other:
        other.create("r", program="P", head=head())
    assert store.summary("r").leased
    kept.the_others_die()
    assert not store.summary("r").leased
    assert store.take("r", after=0).lease is not None


def test_whoever_lost_the_lease_writes_nothing_any_more(kept: Kept, store: Store) -> None:
    """A process that comes back finds its next write refused, each kind of it."""
    with kept.as_another() as other:
        old = other.create("r", program="P", head=head())
        other.append(old, "in time")
    kept.pass_s(31)
    taken = store.take("r", after=0)
    for write in (
        lambda: other.append(old, "late"),
        lambda: other.note(old, "{}"),
        lambda: other.release(old, status="done", head=head()),
    ):
        with pytest.raises(StoreError, match="taken over by another process"):
            write()
    with pytest.raises(StoreError, match="taken over"):
        other.transact(old, lambda db: pytest.fail(f"{db} is not for a lease that was lost"))
    assert store.load("r").entries == taken.entries == ["in time"]


def test_a_run_that_kills_its_process_again_and_again_is_parked(kept: Kept, store: Store) -> None:
    """After five recoveries it is failed, and stays so; one that came to a rest in between starts
    over.
    """

    def take_in_another_process(*, rests: bool = False) -> None:
        with kept.as_another() as other:
            lease = other.take("r", after=0).lease
            assert lease is not None
            if rests:
                other.release(lease, status="waiting", head=head())
        kept.the_others_die()

    store.release(store.create("r", program="P", head=head()), status="waiting", head=head())
    for k in range(4):
        take_in_another_process(rests=k == 3)
    for _ in range(6):
        take_in_another_process()
    with pytest.raises(StoreError, match="crashed 6 times"):
        store.take("r", after=0)
    [found] = store.list()
    assert (found.status, found.error, found.recoveries) == (
        "failed",
        "crashed 6 times, and was marked as failed",
        6,
    )
    assert json.loads(store.load("r").head)["error"]["text"] == found.error
    with pytest.raises(StoreError, match="crashed 6 times"):
        store.take("r", after=0)


def test_whoever_works_on_a_run_that_was_deleted_does_not_write_to_the_next_one_of_its_id(
    store: Store,
) -> None:
    """A lease is of one run, not of an id."""
    old = store.create("r", program="P", head=head())
    store.delete("r")
    store.create("r", program="Q", head=head())
    with pytest.raises(StoreError, match="nothing was written"):
        store.append(old, "x")
    with pytest.raises(StoreError, match="nothing was written"):
        store.release(old, status="done", head=head())
    assert (store.load("r").status, store.load("r").entries) == ("running", [])


def test_a_process_that_has_the_lease_by_a_fork_alone_writes_nothing(
    kept: Kept,
    store: Store,
) -> None:
    """Both know the token; one took it."""
    lease = store.create("r", program="P", head=head())
    with kept.under_another_name():
        for write in (
            lambda: store.append(lease, "x"),
            lambda: store.release(lease, status="done", head=head()),
        ):
            with pytest.raises(StoreError, match="not to this process; nothing was written"):
                write()
        with pytest.raises(StoreError, match="at work"):
            store.take("r", after=0)
    assert store.load("r").entries == []


def test_writes_of_many_tasks_are_all_there_and_a_lost_lease_hurts_nobody_else(
    store: Store,
) -> None:
    """Commits of several runs go together; who may not write is told so alone."""
    leases = [store.create(f"r{i}", program="P", head=head()) for i in range(5)]

    async def write() -> list[Any]:
        lost = store.aappend(Lease("r0", 9), "x")
        return await asyncio.gather(
            *(store.aappend(lease, str(k)) for k in range(4) for lease in leases),
            lost,
            return_exceptions=True,
        )

    *good, bad = asyncio.run(write())
    assert good == [True] * 20
    assert isinstance(bad, StoreError)
    assert [store.load(f"r{i}").entries for i in range(5)] == [["0", "1", "2", "3"]] * 5


def test_what_is_written_in_a_transaction_is_there_with_its_entry_or_not_at_all(
    kept: Kept,
    store: Store,
) -> None:
    """A tool's rows and its result are one commit."""
    lease = store.create("r", program="P", head=head())

    def make(db: Any) -> None:
        db.execute(f"CREATE TABLE {kept.table} (n INTEGER)")
        store.append(lease, "result")

    def fail(db: Any) -> None:
        db.execute(f"INSERT INTO {kept.table} VALUES (1)")
        store.append(lease, "never")
        raise ZeroDivisionError

    store.transact(lease, make)
    with pytest.raises(ZeroDivisionError):
        store.transact(lease, fail)
    assert store.transact(
        lease,
        lambda db: db.execute(f"SELECT count(*) FROM {kept.table}").fetchone(),
    ) == (0,)
    assert store.load("r").entries == ["result"]


# -- messages


def listening(store: Store, run_id: str = "r") -> Lease:
    return store.create(run_id, program="P", head=head(takes_messages=True))


def texts(store: Store, run_id: str = "r") -> list[str]:
    """The messages that the run has not used."""
    return [json.loads(text)["text"] for text in store.load(run_id).decisions]


def test_messages_are_kept_in_order_until_an_entry_uses_them(kept: Kept, store: Store) -> None:
    lease = listening(store)
    first = store.say("r", "one", by="ann", via="page")
    kept.pass_s(-5)  # a clock that is set back changes no order
    second = store.say("r", "two", when="after")
    assert (first.kind, first.by, first.via) == ("say", "ann", "page")
    assert second.kind == "say_after"
    assert first.question_id < second.question_id
    store.append(lease, "{}", consumes=first.question_id)
    assert texts(store) == ["two"]


def test_who_writes_to_a_run_learns_that_a_message_came(store: Store) -> None:
    """At each of the ways to write."""
    lease = listening(store)
    assert (store.append(lease, "a"), lease.said) == (True, 0)
    store.say("r", "one")
    assert (store.append(lease, "b", starts=True), lease.said) == (True, 1)
    store.say("r", "two")
    assert (asyncio.run(store.aappend(lease, "c")), lease.said) == (True, 2)
    store.say("r", "three")
    store.transact(lease, lambda _: store.append(lease, "d"))
    assert lease.said == 3
    store.release(lease, status="waiting", head=head())
    taken = store.take("r", after=0)
    assert taken.lease is not None
    assert (taken.entries, taken.lease.said) == (["a", "b", "c", "d"], 3)


def test_writes_of_many_runs_at_once_learn_of_the_message_of_each(store: Store) -> None:
    leases = [listening(store, f"r{number}") for number in range(20)]
    for number in range(0, 20, 2):
        store.say(f"r{number}", "hello")

    async def write() -> list[bool]:
        return await asyncio.gather(*[store.aappend(lease, "a") for lease in leases])

    assert asyncio.run(write()) == [True] * 20
    assert [lease.said for lease in leases] == [1, 0] * 10
    assert [len(store.load(f"r{number}").entries) for number in range(20)] == [1] * 20


def test_a_run_does_not_end_before_a_message_that_it_has_not_heard(store: Store) -> None:
    lease = listening(store)
    store.say("r", "one")
    assert store.release(lease, status="done", head=head(), heard=0) is False
    assert (lease.said, store.load("r").status) == (1, "running")
    assert store.append(lease, "a")
    assert store.release(lease, status="done", head=head(), heard=1) is True
    assert store.load("r").status == "done"


def test_a_message_with_a_key_is_kept_once(store: Store) -> None:
    """Also when it was used."""
    lease = listening(store)
    first = store.say("r", "one", key="k")
    assert store.say("r", "one", key="k") == first
    store.append(lease, "{}", consumes=first.question_id)
    assert store.say("r", "one", key="k") == first
    with pytest.raises(DecisionError, match="'k'"):
        store.say("r", "two", key="k")
    assert texts(store) == []
    store.release(lease, status="done", head=head())
    assert store.say("r", "one", key="k") == first


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_a_run_that_ended_gets_no_message(store: Store, status: str) -> None:
    store.release(listening(store), status=status, head=head(takes_messages=True))
    with pytest.raises(DecisionError, match=f"is {status}"):
        store.say("r", "one")
    assert texts(store) == []


def test_a_run_that_reads_no_messages_gets_none(store: Store) -> None:
    store.create("r", program="P", head=head())
    with pytest.raises(DecisionError, match="no loop"):
        store.say("r", "one")
    with pytest.raises(StoreError, match="'nobody'"):
        store.say("nobody", "one")


def test_a_cancelled_run_forgets_its_messages_and_their_numbers_stay_theirs(store: Store) -> None:
    store.release(listening(store), status="waiting", head=head(QUESTION, takes_messages=True))
    first = store.say("r", "one")
    store.cancel("r")
    assert texts(store) == []
    store.release(
        store.take("r", after=0).lease,  # type: ignore[arg-type]
        status="waiting",
        head=head(takes_messages=True),
    )
    assert store.say("r", "two").question_id != first.question_id


def test_a_message_is_no_decision_on_a_question_of_the_list(store: Store) -> None:
    store.release(listening(store), status="waiting", head=head(QUESTION, takes_messages=True))
    store.say("r", "one")
    assert store.summary("r").decided == ()


# -- the end of a run


def test_cancelling_takes_effect_before_the_next_effect_is_begun(store: Store) -> None:
    """What was already done is still written; a tool is not begun."""
    lease = store.create("r", program="P", head=head())
    store.cancel("r")
    assert store.append(lease, "result") is False
    assert store.append(lease, "begun", starts=True) is False
    assert store.load("r").entries == ["result"]


def test_a_run_at_rest_is_cancelled_at_once(store: Store) -> None:
    waiting(store)
    store.cancel("r")
    assert store.load("r").status == "cancelled"
    assert store.take("r", after=0).status == "cancelled"


def test_of_a_run_that_was_cancelled_at_rest_nothing_waits_any_more(store: Store) -> None:
    """Neither its questions nor what was decided on them."""
    waiting(store)
    store.decide("r", QUESTION.approve())
    store.cancel("r")
    [found] = store.list()
    assert (found.questions, found.decided, store.load("r").decisions) == ((), (), [])
    with pytest.raises(
        DecisionError,
        match="No question 'q1' waits in the run 'r'; it is cancelled",
    ):
        store.decide("r", QUESTION.approve())


@pytest.mark.parametrize("status", ["waiting", "queued"])
def test_a_run_that_is_cancelled_just_before_its_rest_does_not_wait(
    store: Store,
    status: str,
) -> None:
    """Between its last entry and its rest; also if its worker is stopped at that moment, and puts
    it back into the queue.
    """
    lease = store.create("r", program="P", head=head())
    store.cancel("r")
    store.release(lease, status=status, head=head(QUESTION))
    assert [(each.status, each.questions, each.leased) for each in store.list()] == [
        ("cancelled", (), False),
    ]


def test_a_decision_that_comes_while_the_run_goes_on_waits_for_its_next_rest(store: Store) -> None:
    """Nothing is shown as waiting meanwhile, but who decided just then is not refused."""
    waiting(store)
    store.take("r", after=0)
    assert store.list()[0].questions == ()
    store.decide("r", QUESTION.approve())
    assert store.list()[0].decided == (QUESTION.id,)
    with pytest.raises(DecisionError, match="No question 'other' waits"):
        store.decide("r", Decision("other", "approve"))


@pytest.mark.parametrize("via", ["grant:q0", "policy"])
def test_a_question_that_was_decided_while_the_run_goes_on_is_not_decided_by_a_person_too(
    store: Store,
    via: str,
) -> None:
    """A denial was accepted of a call that ran already, by a grant."""
    waiting(store)
    lease = store.take("r", after=0).lease
    assert lease is not None
    first = Decision("q1", "approve", shown=QUESTION.digest, via=via, at=store.now())
    store.append(lease, entry_text(Entry("4.0", "decision", "confirm pay", first)), consumes="q1")
    with pytest.raises(DecisionError, match="is decided already: approved at"):
        store.decide("r", QUESTION.deny("no"))
    store.decide("r", QUESTION.approve())
    assert store.load("r").decisions == []


def test_a_run_that_ended_is_not_cancelled(store: Store) -> None:
    """What is done is done."""
    store.release(store.create("r", program="P", head=head()), status="done", head=head())
    with pytest.raises(StoreError, match="is done already"):
        store.cancel("r")


def test_a_decision_waits_in_the_store_until_an_entry_takes_it_up(store: Store) -> None:
    """The decision and what goes on from it are one transaction."""
    waiting(store)
    store.decide("r", QUESTION.approve())
    assert len(store.load("r").decisions) == 1
    lease = store.take("r", after=0).lease
    assert lease is not None
    store.append(lease, "decision", consumes="q1")
    assert store.load("r").decisions == []


def test_deciding_twice_says_who_was_first_and_the_same_again_is_passed_over(store: Store) -> None:
    """A double press is harmless, a second opinion is told of the first."""
    waiting(store)
    store.decide("r", QUESTION.approve().signed(by="ann"))
    store.decide("r", QUESTION.approve().signed(by="ann"))
    store.decide("r", QUESTION.approve())
    for second in (
        QUESTION.deny("no").signed(by="bob"),
        QUESTION.approve().signed(by="bob"),
        QUESTION.deny("no").signed(by="ann"),
    ):
        with pytest.raises(
            DecisionError,
            match=r"decided already by ann: approved at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.",
        ):
            store.decide("r", second)
    assert '"by":"ann"' in store.load("r").decisions[0]


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        pytest.param(
            Decision("q9", "approve"),
            "No question 'q9' waits in the run 'r'; waiting are: q1",
            id="unknown question",
        ),
        pytest.param(
            Decision("q1", "approve", shown="else"),
            "does not fit what question",
            id="something else shown",
        ),
        pytest.param(Decision("q1", "edit"), "Only an edit has arguments", id="contradictory"),
    ],
)
def test_a_decision_that_fits_no_question_is_refused_and_not_kept(
    store: Store,
    decision: Decision,
    said: str,
) -> None:
    waiting(store)
    with pytest.raises(DecisionError, match=said):
        store.decide("r", decision)
    assert store.load("r").decisions == []


def test_the_list_tells_what_waits_and_which_of_it_is_decided(kept: Kept, store: Store) -> None:
    """Without executing or even loading anything."""
    waiting(store)
    kept.pass_s(1000)
    lease = store.create("busy", program="P", head=head())
    store.decide("r", QUESTION.approve())
    busy, found = store.list()
    assert (busy.id, busy.status, busy.leased, kept.age(busy.created_at)) == (
        "busy",
        "running",
        True,
        0,
    )
    assert kept.age(found.created_at) == 1000
    assert (found.id, found.program, found.questions, found.decided, found.leased) == (
        "r",
        "P",
        (QUESTION,),
        ("q1",),
        False,
    )
    assert [each.id for each in store.list(status="waiting")] == ["r"]
    assert [each.id for each in store.list(limit=1)] == ["busy"]
    del lease


def test_a_page_of_the_list_begins_where_the_one_before_ended(kept: Kept, store: Store) -> None:
    """Also for runs that changed at one time."""
    for k in range(7):
        kept.pass_s(k % 2)
        store.release(
            store.create(f"r{k}", program="PQ"[k % 2], head=head()),
            status=("done", "waiting")[k % 3 == 0],
            head=head(),
        )
    everything = store.list()
    assert [each.id for each in everything] == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    pages, before = list[str](), None
    while page := store.list(limit=2, before=before):
        pages += [each.id for each in page]
        before = (page[-1].updated_at, page[-1].id)
    assert pages == [each.id for each in everything]
    assert [each.id for each in store.list(program="Q")] == ["r5", "r3", "r1"]
    assert [
        each.id
        for each in store.list(
            program="P",
            status="waiting",
            before=(everything[0].updated_at, "r6"),
        )
    ] == ["r0"]


def test_a_list_finds_runs_by_their_metadata(kept: Kept, store: Store) -> None:
    long = {"text": "x" * 9_000, "null": None, "list": [1, {"a": 2.0}]}
    given: dict[str, dict[str, Any]] = {
        "r0": {"user": "ada", "tier": 1},
        "r1": {"user": "ada", "tier": 2},
        "r2": {"user": "bob", "tier": 1},
        "r3": long,
        "r4": {},
    }
    for run_id, metadata in given.items():
        kept.pass_s(1)
        lease = store.create(
            run_id, program="P", head=head(), about=about(metadata, f"title of {run_id} ä")
        )
        store.release(lease, status="done", head=head())
    store.submit("r5", program="Q", head=head(), order=Order(), about=about({"user": "ada"}, None))

    def found(**options: Any) -> list[str]:
        return [line.id for line in store.list(**options)]

    assert found(metadata={"user": "ada"}) == ["r5", "r1", "r0"]
    assert found(metadata={"user": "ada", "tier": 1}) == ["r0"]
    assert found(metadata={"user": "ada"}, status="done", limit=1) == ["r1"]
    assert found(metadata={"user": "ada"}, program="Q") == ["r5"]
    first = store.summary("r1")
    assert found(metadata={"user": "ada"}, before=(first.updated_at, "r1")) == ["r0"]
    assert found(metadata={"text": "x" * 9_000, "list": [1, {"a": 2}]}) == ["r3"]
    assert found(metadata={"user": "eve"}) == found(metadata={"tier": "1"}) == []
    assert len(found(metadata={})) == len(found()) == 6
    line = store.summary("r3")
    assert (line.metadata, line.title) == (long, "title of r3 ä")
    store.redact("r0")
    store.delete("r1")
    assert found(metadata={"user": "ada"}) == ["r5"]


def test_the_list_has_the_latest_hundred_runs_unless_another_limit_is_given(
    kept: Kept,
    store: Store,
) -> None:
    for k in range(102):
        kept.pass_s(1)
        store.release(store.create(f"r{k}", program="P", head=head()), status="done", head=head())
    assert [each.id for each in store.list()] == [f"r{k}" for k in range(101, 1, -1)]
    assert len(store.list(limit=None)) == 102


def test_a_line_has_tokens_and_cost_as_of_the_last_rest(store: Store) -> None:
    lease = store.create("r", program="P", head=head())
    assert (store.summary("r").usage, store.summary("r").cost) == (Usage(), None)
    spent = Usage(10, 5, 4, 2, 3, 1, 0.25, {"m": Usage(10, 5, 4, 2, 3, 1, 0.25)})
    store.release(lease, status="waiting", head=head(usage=usage_form(spent)))
    store.take("r", after=0)
    [found] = store.list()
    assert (found.usage, found.usage.by_model, found.cost) == (spent, spent.by_model, 0.25)


@pytest.mark.parametrize("figure", [10**30, -(10**30), 10**400], ids=["high", "low", "huge"])
def test_figures_that_no_column_can_hold_are_kept_and_lists_work(store: Store, figure: int) -> None:
    """A server that lies may report any number, and a damaged entry has any."""
    spent = Usage(figure, figure, calls=figure, cost=figure)
    use = NameUse("model", "m", calls=figure, tokens=figure, cost=figure)
    for name in ("a", "b"):
        keep(store, name, usage=spent, uses=(use,))
    assert ids(store.list(model="m")) == ["a", "b"]
    assert store.summary("a").usage == spent
    [model] = store.overview(since=0, until=store.now() + 1).models
    assert abs(model.tokens) >= 10**15


def test_a_store_tells_the_time_by_the_clock_of_its_runs(store: Store) -> None:
    """Questions expire by it."""
    before = store.now()
    waiting(store)
    assert before <= store.summary("r").updated_at <= store.now()


def test_old_runs_that_ended_are_pruned(kept: Kept, store: Store) -> None:
    """Those that wait stay, however long."""
    waiting(store)
    store.release(store.create("old", program="P", head=head()), status="done", head=head())
    kept.pass_s(100)
    store.release(store.create("new", program="P", head=head()), status="done", head=head())
    assert store.prune(older_than_s=50, statuses=[]) == 0
    assert store.prune(older_than_s=50) == 1
    assert {each.id for each in store.list()} == {"r", "new"}
    assert store.prune(older_than_s=50) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"older_than_s": math.nan}, {"statuses": "done"}, {"statuses": ["don"]}],
)
def test_what_says_not_clearly_which_runs_are_old_prunes_none(
    store: Store,
    wrong: dict[str, Any],
) -> None:
    """Postgres takes NaN for more than every time, and would delete them all."""
    store.release(store.create("r", program="P", head=head()), status="done", head=head())
    with pytest.raises(ConfigurationError, match=rf"`{next(iter(wrong))}` is"):
        store.prune(**{"older_than_s": 0, **wrong})
    assert store.prune(older_than_s=0, statuses=["done"]) == 1


def test_runs_beside_one_another_keep_their_entries_apart(store: Store) -> None:
    """Also where one between them is deleted."""
    leases = [store.create(name, program="P", head=head()) for name in "abc"]
    for at in range(3):
        for lease in leases:
            store.append(lease, f"{lease.run_id}{at}")
    store.delete("b")
    new = store.create("d", program="P", head=head())
    store.append(new, "d0")
    assert {name: store.load(name).entries for name in "acd"} == {
        "a": ["a0", "a1", "a2"],
        "c": ["c0", "c1", "c2"],
        "d": ["d0"],
    }


def test_a_run_cancelled_at_work_leaves_no_decision_behind(store: Store) -> None:
    """As one that was cancelled at rest."""
    waiting(store)
    store.decide("r", QUESTION.approve())
    taken = store.take("r", after=0)
    assert taken.lease is not None
    store.release(taken.lease, status="cancelled", head=head())
    assert store.load("r").decisions == []


def test_the_same_decision_twice_is_one_whatever_it_was_made_of(store: Store) -> None:
    """Also where JSON has another word for what is in it."""
    waiting(store)
    for _ in range(2):
        store.decide("r", QUESTION.approve(euros=(1, 2)))
    assert len(store.load("r").decisions) == 1


def test_a_lease_whose_holder_is_gone_is_taken_at_once_and_is_no_crash(store: Store) -> None:
    """An execution that was interrupted has no lease object any more."""
    lease = store.create("r", program="P", head=head())
    with pytest.raises(
        StoreError,
        match=r"^This process is at work on the run 'r' .*in another `Run`",
    ):
        store.take("r", after=0)
    del lease
    assert store.take("r", after=0).lease is not None
    assert store.list()[0].recoveries == 0


def test_one_run_is_summarised_as_in_the_list(store: Store) -> None:
    """A page of one run does not read the others."""
    waiting(store, "a")
    waiting(store, "b")
    store.decide("b", QUESTION.approve())
    assert [store.summary("b"), store.summary("a")] == sorted(
        store.list(),
        key=lambda each: each.id,
        reverse=True,
    )
    with pytest.raises(StoreError, match="has no run 'c'"):
        store.summary("c")


def test_a_change_by_any_connection_is_seen_as_another_number_and_reading_is_not(
    store: Store,
) -> None:
    """What a page polls."""
    seen = [store.changes()]

    def changed(change: Any) -> bool:
        change()
        seen.append(store.changes())
        return seen[-1] != seen[-2]

    assert changed(lambda: waiting(store))
    assert any(not changed(store.list) for _ in range(50)), "a heartbeat may come in between"
    assert any(not changed(lambda: store.load("r")) for _ in range(50))
    assert changed(lambda: store.decide("r", QUESTION.approve()))
    assert changed(lambda: store.cancel("r"))
    assert any(not changed(lambda: None) for _ in range(50))


# -- finding runs


def keep(store: Store, run_id: str, *, status: str = "done", program: str = "P", **facts: Any):
    """A run at rest, with these facts of its outline."""
    metadata = facts.pop("metadata", None)
    outline = Outline(**facts)
    lease = store.create(
        run_id, program=program, head=head(), about=about(metadata, None), outline=outline
    )
    store.release(lease, status=status, head=head(), outline=outline)


def ids(runs: Iterable[Summary]) -> list[str]:
    return sorted(run.id for run in runs)


@pytest.fixture
def support(kept: Kept, store: Store) -> Store:
    """Four runs of a support desk, a minute apart."""
    refund = NameUse("tool", "refund", calls=2, failed=1)
    ask = NameUse("model", "openai/gpt-5", calls=3, tokens=900, cost=0.3, seconds=6.0)
    keep(
        store,
        "acme-1",
        status="failed",
        asked="Refund order 77",
        words=("refund", "acme", "77", "müller"),
        uses=(refund, ask),
        steps=3,
        seconds=6.5,
        usage=Usage(600, 300, calls=3, cost=0.3),
        metadata={"user": "ada"},
    )
    kept.pass_s(60)
    keep(store, "acme-2", words=("refund", "acme", "refunded"), uses=(ask,), steps=1)
    kept.pass_s(60)
    working = NameUse("tool", "refund", calls=1)
    keep(store, "globex", words=("refund", "globex", "北", "京"), uses=(working,), program="Q")
    kept.pass_s(60)
    keep(store, "quiet", status="cancelled", words=("hello",), metadata={"user": "ada"})
    return store


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("refund", ["acme-1", "acme-2", "globex"]),
        ("REF", ["acme-1", "acme-2", "globex"]),
        ("refund acme", ["acme-1", "acme-2"]),
        ("acme, refunded!", ["acme-2"]),
        ("Muller", ["acme-1"]),
        ("京", ["globex"]),
        ("fund", []),
        ("refund nobody", []),
        ('\' OR "1" : * -', []),
        ("!?", ["acme-1", "acme-2", "globex", "quiet"]),
    ],
)
def test_a_search_finds_the_runs_that_have_all_words_or_words_that_begin_so(
    support: Store, search: str, found: list[str]
) -> None:
    if search == "Muller":  # words come to a store without accents
        keep(support, "other", words=tuple(words_in("Müller")))
        found = ["other"]
    assert ids(support.list(search=search)) == found
    assert sum(support.count(search=search).values()) == len(found)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"status": "failed"}, ["acme-1"]),
        ({"program": "Q"}, ["globex"]),
        ({"tool": "refund"}, ["acme-1", "globex"]),
        ({"tool": "refund", "tool_failed": True}, ["acme-1"]),
        ({"tool_failed": True}, ["acme-1"]),
        ({"model": "openai/gpt-5"}, ["acme-1", "acme-2"]),
        ({"model": "openai/gpt-5", "tool": "refund"}, ["acme-1"]),
        ({"min_cost": 0.1}, ["acme-1"]),
        ({"max_cost": 0.1}, ["acme-2", "globex", "quiet"]),
        ({"metadata": {"user": "ada"}, "search": "acme"}, ["acme-1"]),
        (
            {"status": None, "search": "", "tool_failed": None},
            ["acme-1", "acme-2", "globex", "quiet"],
        ),
        ({"tool": "no such tool"}, []),
    ],
)
def test_a_list_and_its_counts_have_the_runs_that_are_wanted(
    support: Store, wanted: Any, found: list[str]
) -> None:
    assert ids(support.list(**wanted)) == found
    assert sum(support.count(**wanted).values()) == len(found)


def test_runs_are_counted_by_status(support: Store) -> None:
    assert support.count() == {"failed": 1, "done": 2, "cancelled": 1}
    assert support.count(search="acme") == {"failed": 1, "done": 1}


def test_a_time_range_has_the_runs_that_changed_in_it(support: Store) -> None:
    times = {run.id: run.updated_at for run in support.list()}
    assert ids(support.list(since=times["acme-2"], until=times["quiet"])) == ["acme-2", "globex"]


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize(
    ("order", "value"),
    [
        ("updated", lambda run: run.updated_at),
        ("created", lambda run: run.created_at),
        ("duration", lambda run: run.seconds),
        ("steps", lambda run: run.steps),
        ("tokens", lambda run: run.usage.total_tokens),
        ("cost", lambda run: run.cost or 0.0),
    ],
)
def test_pages_of_each_order_have_every_run_once(
    support: Store, order: Any, value: Any, ascending: bool
) -> None:
    pages: list[Summary] = []
    before = None
    while page := support.list(order=order, ascending=ascending, limit=1, before=before):
        pages += page
        before = value(page[-1]), page[-1].id
    values = [(value(run), run.id) for run in pages]
    assert values == sorted(values, reverse=not ascending)
    assert ids(pages) == ["acme-1", "acme-2", "globex", "quiet"]


def test_a_line_has_what_was_asked_and_what_came_of_it(store: Store) -> None:
    lease = store.create("r", program="P", head=head(), outline=Outline(asked="How many?"))
    assert store.summary("r").asked == "How many?"
    done = Outline(asked="How many?", answered="Two.", steps=2, seconds=1.5)
    store.report(lease, done)
    store.release(lease, status="done", head=head(), outline=done)
    [line] = store.list()
    # The time is what was spent since the outline before.
    assert (line.answered, line.steps, line.seconds) == ("Two.", 2, 3.0)


def test_a_report_under_a_lost_lease_changes_nothing(kept: Kept, store: Store) -> None:
    with kept.as_another() as other:
        old = other.create("r", program="P", head=head())
    kept.the_others_die()
    store.take("r", after=0)
    with pytest.raises(StoreError, match="taken over"):
        store.report(old, Outline(asked="late"))
    assert store.summary("r").asked == ""


def test_names_are_listed_once_each_and_sorted(support: Store) -> None:
    assert support.names("tool") == ["refund"]
    assert support.names("model") == ["openai/gpt-5"]
    assert support.names("program") == ["P", "Q"]


def test_what_is_redacted_or_deleted_is_not_found(support: Store) -> None:
    support.redact("acme-1")
    support.delete("acme-2")
    assert ids(support.list(search="refund")) == ["globex"]
    assert support.summary("acme-1").asked == ""
    assert ids(support.list(search="acme-1")) == ["acme-1"]
    assert ids(support.list(model="openai/gpt-5")) == ["acme-1"]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"state": "done"}, "filtered by"),
        ({"status": "over"}, "one of"),
        ({"search": 3}, "a text"),
        ({"since": "today"}, "a number"),
        ({"min_cost": math.nan}, "a number"),
        ({"order": "length"}, "one of"),
    ],
)
def test_what_is_no_filter_is_refused(store: Store, wanted: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        store.list(**wanted)


def test_the_overview_has_the_figures_of_the_runs_of_a_period(kept: Kept, support: Store) -> None:
    now = support.now() + 1
    found = support.overview(since=now - 3600, until=now)
    assert (found.runs, found.failed, sum(span.runs for span in found.spans)) == (4, 1, 4)
    [model] = found.models
    assert (model.name, model.calls, model.tokens, model.cost) == ("openai/gpt-5", 6, 1800, 0.6)
    # The seconds of an outline are added: those of the begin, which tests give, do not count.
    assert model.seconds.p50 == 2.0
    [tool] = found.tools
    assert (tool.name, tool.calls, tool.failed) == ("refund", 3, 1)
    assert [(program.name, program.runs) for program in found.programs] == [("P", 3), ("Q", 1)]
    assert found.programs[0].cost == 0.6
    kept.pass_s(10_000)
    later = support.now() + 1
    assert support.overview(since=later - 10, until=later).runs == 0


# -- what people say of runs, and what evaluations found


def test_a_run_is_assigned_to_a_person_and_found_by_it(support: Store) -> None:
    changed_at = support.summary("acme-1").updated_at
    support.assign("acme-1", "ann")
    support.assign("globex", "bob")
    support.assign("globex", " ann ")
    assert ids(support.list(assigned="ann")) == ["acme-1", "globex"]
    assert support.list(assigned="bob") == []
    assert (support.summary("acme-1").assigned, support.summary("acme-1").updated_at) == (
        "ann",
        changed_at,
    )
    support.assign("acme-1", "")
    assert ids(support.list(assigned="ann")) == ["globex"]
    with pytest.raises(StoreError, match="no run"):
        support.assign("nowhere", "ann")
    with pytest.raises(InputError, match="on one line"):
        support.assign("acme-1", "ann\nbob")


def test_metadata_finds_no_assignment(store: Store) -> None:
    keep(store, "r", metadata={"assigned": "ann"})
    assert store.list(assigned="ann") == []


def test_notes_have_an_author_and_a_time_and_go_with_their_run(support: Store) -> None:
    first = support.add_note("acme-1", " I ask the bank. ", author="ann")
    support.add_note("acme-1", "It is \u202epaid\n\U0001f600")
    assert (first.text, first.author) == ("I ask the bank.", "ann")
    assert [note.text for note in support.notes("acme-1")] == [
        "I ask the bank.",
        "It is \u202epaid\n\U0001f600",
    ]
    assert support.notes("globex") == []
    assert support.list(search="bank") == []
    support.assign("acme-1", "ann")
    support.redact("acme-1")
    assert (support.notes("acme-1"), support.summary("acme-1").assigned) == ([], "")
    for text in ("  ", "a\0b", "\ud800", "x" * 4_001, None):
        with pytest.raises(InputError, match="A note is"):
            support.add_note("acme-1", text)  # pyright: ignore[reportArgumentType]


def test_undecided_questions_are_counted_by_program(store: Store) -> None:
    second = replace(QUESTION, id="q2")
    lease = store.create("r", program="P", head=head())
    store.release(lease, status="waiting", head=head(QUESTION, second))
    keep(store, "other")
    assert store.count_questions() == {"P": 2}
    store.decide("r", QUESTION.approve())
    store.decide("r", QUESTION.approve())
    assert store.count_questions() == {"P": 1}
    stored = store.take("r", after=0)
    assert store.count_questions() == {}
    assert stored.lease is not None
    # A decision that the run has not used is still one.
    store.release(stored.lease, status="waiting", head=head(QUESTION, second))
    assert store.count_questions() == {"P": 1}
    store.cancel("r")
    assert store.count_questions() == {}


def test_an_evaluation_keeps_its_scores_with_the_runs(support: Store) -> None:
    items = {
        "acme-1": ItemScore(scores={"exact": 1.0, "odd": math.nan}),
        "globex": ItemScore(scores={"exact": 0.0}, has_failed=True, feedback="Too late."),
        "nowhere": ItemScore(scores={"exact": 1.0}),
    }
    support.score("v1", items)
    support.score("v1", items)
    [found] = support.evaluations()
    assert (found.name, found.items, found.failed, found.scores) == ("v1", 2, 1, {"exact": 0.5})
    assert ids(support.list(evaluation="v1")) == ["acme-1", "globex"]
    assert support.names("evaluation") == ["v1"]
    line = support.summary("globex")
    assert (line.scores, line.feedback) == ({"exact": 0.0}, "Too late.")
    support.redact("globex")
    support.delete("acme-1")
    assert support.evaluations() == []
