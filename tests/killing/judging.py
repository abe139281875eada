"""What is wrong with what a run left behind, by class."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ferrule.errors import StoreError
from killing import stores
from killing.tracing import untraced
from killing.world import ABOUT, RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from killing.agents import Scenario
    from killing.world import World

CLASSES = ("duplicates", "lost", "stuck", "wrong", "corrupt", "untraced")
UNKNOWN = "It is not known whether this call was carried out"


@dataclass(frozen=True)
class Fault:
    """Something wrong, and its class."""

    kind: str
    text: str


@dataclass(frozen=True)
class Expected:
    """What a run leaves behind when nothing disturbs it."""

    answer: str
    journal: tuple[tuple[str, str], ...]
    """Place and kind of the entries that every run to this answer has."""


def read(world: World) -> Expected:
    """What a run left behind."""
    answer = world.place / "answer"
    return Expected(answer.read_text() if answer.exists() else "", tuple(sorted(_journal(world))))


def faults(world: World, scenario: Scenario, expected: Expected, strikes: int) -> Iterator[Fault]:
    """Everything wrong with a run that ended after a number of strikes (kills, interrupts)."""
    try:
        yield from _faults(world, scenario, expected, strikes)
    except (sqlite3.DatabaseError, StoreError, ValueError) as error:  # what is there cannot be read
        yield Fault("corrupt", repr(error))


def _faults(world: World, scenario: Scenario, expected: Expected, strikes: int) -> Iterator[Fault]:
    yield from _store(world)
    yield from (Fault("untraced", text) for text in untraced(world))
    found = read(world)
    counts = Counter(what for what, _ in world.noted())
    told = {
        wanted
        for wanted, said in zip(
            expected.answer.split(" | "),
            found.answer.split(" | "),
            strict=False,
        )
        if UNKNOWN in said
    }
    for what, kind in scenario.calls.items():
        yield from _effect(world, what, kind, counts[what], strikes, is_told=f"{what} done" in told)
    yield from _money(world, scenario)
    yield from _words(world)
    yield from _ends(world)
    yield from _choices(world)
    models = sum(kind == "model" for _, kind in expected.journal)
    if counts["model"] > models + strikes * scenario.asks_at_once:
        yield Fault(
            "duplicates",
            f"the model was asked {counts['model']} times for {models} answers, after {strikes} strikes",
        )
    yield from _report(world, scenario, expected, counts, strikes)


def _effect(
    world: World,
    what: str,
    kind: str,
    count: int,
    strikes: int,
    *,
    is_told: bool,
) -> Iterator[Fault]:
    if kind == "transactional":
        count = stores.orders(world).count(int(what.split()[1]))
    keys = {key for done, key in world.noted() if done == what}
    if count == 0 and not (kind == "once or told" and is_told):
        yield Fault("lost", f"{what} was not done")
    if count > 1 and (
        kind in {"once", "once or told", "reconciled", "transactional"} or count > 1 + strikes
    ):
        yield Fault("duplicates", f"{what} was done {count} times")
    if len(keys) > 1:
        yield Fault("duplicates", f"{what} was done under the keys {sorted(keys)}")


def _money(world: World, scenario: Scenario) -> Iterator[Fault]:
    """The service that honours keys: what it has is there once."""
    wanted = sorted(what for what in scenario.calls if what.startswith("deposit "))
    if not wanted:
        return
    with closing(sqlite3.connect(world.place / "bank.db")) as db:
        rows = sorted(what for (what,) in db.execute("SELECT what FROM deposits"))
    if rows != wanted:
        yield Fault("lost" if len(rows) < len(wanted) else "duplicates", f"the bank has {rows}")


def _words(world: World) -> Iterator[Fault]:
    """What was said to the run at any time: each word that was accepted was read once, in order."""
    accepted = [what for what, _ in world.noted() if what.startswith("word ")]
    with stores.opened(world) as store:
        entries = [json.loads(text) for text in store.load(RUN).entries]
    messages = [entry["value"]["text"] for entry in entries if "~said." in entry["slot"]]
    read_words = [text for text in messages if text.startswith("word ")]
    if read_words == accepted:
        return
    kind = "wrong"
    if len(read_words) < len(accepted):
        kind = "lost"
    elif len(read_words) > len(accepted):
        kind = "duplicates"
    yield Fault(kind, f"said {accepted}, read {read_words}")


def _ends(world: World) -> Iterator[Fault]:
    """The calls that were cancelled: each cancellation that was accepted was taken, once, and ended
    its call for good.
    """
    noted = [what for what, _ in world.noted()]
    ended = {what for what in noted if what.startswith("ended ")}
    with stores.opened(world) as store:
        entries = [json.loads(text) for text in store.load(RUN).entries]
    taken = [entry["value"]["text"] for entry in entries if entry["slot"].endswith("?cancel")]
    for what in ended:
        call = what.removeprefix("ended ")
        count = taken.count(f'"{call} cancelled"')
        if count != 1:
            yield Fault("duplicates" if count else "lost", f"{what}, taken {count} times")
        if call in noted[noted.index(what) :]:
            yield Fault("duplicates", f"{what}, and begun again")


def _choices(world: World) -> Iterator[Fault]:
    """What functions chose for the run: its model read one choice, whatever process asked it."""
    chosen = {what for what, _ in world.noted() if what.startswith("chosen ")}
    if len(chosen) > 1:
        yield Fault("wrong", f"the run was told different things: {sorted(chosen)}")


def forgotten(world: World) -> Iterator[Fault]:
    """Decisions that were accepted and are gone, unless the run was cancelled."""
    if not world.has("cancelled"):
        yield from (
            Fault("lost", f"the decision on {what.split()[1]}")
            for what, _ in world.noted()
            if what.startswith("forgotten ")
        )


def _report(
    world: World,
    scenario: Scenario,
    expected: Expected,
    counts: Counter[str],
    strikes: int,
) -> Iterator[Fault]:
    """What the run says of itself, to its caller, to the model and to persons."""
    found = read(world)
    for wanted, said in zip(expected.answer.split(" | "), found.answer.split(" | "), strict=False):
        if wanted != said and not (wanted.startswith("hint ") and UNKNOWN in said and strikes):
            yield Fault("wrong", f"the model was told {said!r}, not {wanted!r}")
    if expected.answer.count(" | ") != found.answer.count(" | "):
        yield Fault("wrong", f"the answer is {found.answer!r}")
    asked = {
        what.removeprefix("asked confirm ") for what in counts if what.startswith("asked confirm ")
    }
    if asked != scenario.questions:
        yield Fault("wrong", f"asked about {sorted(asked)}, not {sorted(scenario.questions)}")
    for what, count in counts.items():
        # A cancellation discards a decision that was not used, so it is asked for again.
        if what.startswith("asked unknown ") and (
            count > strikes + counts["cancelled"]
            or scenario.calls.get(what.split(" ", 2)[2]) != "once"
        ):
            yield Fault("wrong", f"{what}: {count} times after {strikes} strikes")
        if what.startswith("unsynced "):
            yield Fault("lost", f"{what}: a power cut would lose what was written before it")
    yield from forgotten(world)
    done = {
        what for what in counts if what.split()[0] in {each.split()[0] for each in scenario.calls}
    } - {*scenario.calls}
    if done:
        yield Fault("wrong", f"effects that were not agreed to: {sorted(done)}")


def _store(world: World) -> Iterator[Fault]:
    """What the store says, read by its own interface, and by SQL."""
    if damage := stores.damage(world):
        yield Fault("corrupt", damage)
    twice = [place for place, count in Counter(_journal(world)).items() if count > 1]
    if twice:
        yield Fault("corrupt", f"the journal has two entries at {twice}")
    with stores.opened(world) as store:
        [line] = [each for each in store.list() if each.id == RUN]
        found = [each.id for each in store.list(metadata=ABOUT["metadata"]) if each.id == RUN]
        left = store.load(RUN).decisions
    if line.status != "done" or line.leased:
        yield Fault(
            "wrong",
            f"the run of a finished process is {line.status}, leased: {line.leased}",
        )
    if (line.metadata, line.title, found) != (ABOUT["metadata"], ABOUT["title"], [RUN]):
        yield Fault("lost", f"the run is about {line.metadata}, {line.title!r}; found: {found}")
    if line.decided or left:
        yield Fault("wrong", f"decisions that were used are offered again: {line.decided}")


def _journal(world: World) -> Iterator[tuple[str, str]]:
    """Place and kind of the entries, without those that a recovery adds.

    A question whether a call may run is not one of them (`3.0?a0`).
    """
    with stores.opened(world) as store:
        entries = [json.loads(text) for text in store.load(RUN).entries]
    for entry in entries:
        slot, kind = entry["slot"], entry["kind"]
        if kind != "begun" and not re.search(r"\?(?!a[0-9]+$)", slot):
            yield slot, kind
