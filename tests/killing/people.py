"""The people of a round: they look and decide by every command and by the page, each a process of
its own, while workers are killed.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from page_server import Stream
from worker_yard import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_yard import Yard

    from ferrule import Question

FIRST = 9000
"""The runs from this number on are theirs: nothing else answers their questions."""
PATIENCE_S = 240.0
DONE, WAITS = 0, 3
PROGRAM = f"{TESTS / 'worker_program.py'}:agent"


class People(threading.Thread):
    """All that people do in one round; `faults` has what went wrong."""

    def __init__(self, yard: Yard) -> None:
        super().__init__(daemon=True)
        self._yard = yard
        self.faults: list[str] = []
        self.did = 0
        """How many commands and pages were used."""
        self._deeds: list[tuple[Callable[[str], None], bool]] = [
            (partial(self._command, "approve"), True), (partial(self._command, "deny", "--why", "not this one"), False),
            (partial(self._command, "reply", "paid by hand"), False), (self._cancel_and_resume, True),
            (partial(self._press, "approve"), True), (partial(self._press, "deny"), False), (partial(self._press, "reply"), False),
            (self._cancel_and_resume_on_the_page, True),
        ]  # fmt: skip
        self.runs = yard.submit(*[f"pays {FIRST + n}" for n in range(len(self._deeds))])

    def run(self) -> None:
        """Do everything once."""
        try:
            with self._yard.page(PROGRAM) as self._client:
                for run_id, (does, _) in zip(self.runs, self._deeds, strict=True):
                    self._question(run_id)
                    if run_id == self.runs[0]:
                        self._list(run_id)
                    self._look(run_id)
                    does(run_id)
        except Exception as error:
            self.faults.append(f"people: {type(error).__name__}: {error}"[:1000])

    @property
    def refused(self) -> list[str]:
        """The runs whose call they do not allow."""
        return [
            run_id
            for run_id, (_, is_allowed) in zip(self.runs, self._deeds, strict=True)
            if not is_allowed
        ]

    def judge(self) -> list[str]:
        """What is wrong, once all runs are done."""
        did = self._yard.did()
        return [
            *self.faults,
            *(
                f"{run_id} was refused, and paid"
                for run_id in self.refused
                if did[run_id.replace("pays-", "pay ")]
            ),
        ]

    # -- commands
    # --------------------------------------------------------------------------------------------------

    def _ferrule(self, *arguments: str, code: int = DONE) -> str:
        self.did += 1
        environment = {**self._yard.environment, "EFFECTS": str(self._yard.folder)}
        found = subprocess.run(
            [*self._yard.ferrule, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=self._yard.folder,
        )
        if found.returncode != code:
            self.faults.append(
                f"`ferrule {' '.join(arguments)}` ended with {found.returncode}: {found.stdout[-300:]} {found.stderr[-600:]}",
            )
        return found.stdout

    def _command(self, *arguments: str) -> Any:
        *words, run_id = arguments
        self._ferrule(words[0], run_id, *words[1:])

    def _list(self, run_id: str) -> None:
        """By every command that shows something."""
        self._expect(
            run_id
            in {
                line["id"]
                for line in json.loads(self._ferrule("runs", "--json", "--status", "waiting"))
            },
            "is listed",
            run_id,
        )
        self._ferrule(
            "runs",
            "--stuck",
        )  # on a busy machine, all that wait for a worker for a minute
        self._expect("returned: charged" in self._ferrule("show", run_id), "is shown", run_id)

    def _look(self, run_id: str) -> None:
        """At every page that shows something."""
        for path in (f"/?q={run_id}", "/inbox", f"/runs/{run_id}"):
            self._expect(run_id in self._get(path), f"is on {path}", run_id)
        stream = Stream(self._client, "/inbox/live")
        self._expect(run_id in stream.event(), "is on the live page", run_id)
        stream.close()

    def _cancel_and_resume(self, run_id: str) -> None:
        self._ferrule("cancel", run_id)
        self._expect("cancelled" in self._ferrule("show", run_id), "is cancelled", run_id)
        self._ferrule("resume", run_id, "--program", PROGRAM, code=WAITS)
        self._question(run_id)
        self._ferrule("approve", run_id, "--yes", "--question", self._question(run_id).id)

    # -- the page
    # --------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> str:
        self.did += 1
        answer = self._client.get(path)
        self._expect(
            answer.status == 200,
            f"{path} is answered: {answer.status} {answer.text[-300:]}",
            "",
        )
        return answer.text

    def _press(self, what: str, run_id: str) -> None:
        question = self._question(run_id)
        form = {
            "digest": question.digest,
            "back": "run",
            "do": what,
            "words": "paid by hand",
            "n": run_id.removeprefix("pays-"),
        }
        self._post(f"/runs/{run_id}/questions/{question.id}", form, run_id)

    def _post(self, path: str, form: dict[str, str], run_id: str) -> None:
        self.did += 1
        answer = self._client.post(path, form)
        self._expect(
            answer.status == 303,
            f"{path} is answered: {answer.status} {answer.text[-300:]}",
            run_id,
        )

    def _cancel_and_resume_on_the_page(self, run_id: str) -> None:
        self._post(f"/runs/{run_id}/cancel", {"back": "run"}, run_id)
        self._expect("cancelled" in self._get(f"/runs/{run_id}"), "is cancelled", run_id)
        self._post(f"/runs/{run_id}/resume", {"back": "run"}, run_id)
        self._press("approve", run_id)

    # -- what they see
    # ---------------------------------------------------------------------------------------------

    def _question(self, run_id: str) -> Question:
        """The call that waits for them, as soon as one does; on those that were cut off another
        answers.
        """
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            line = self._yard.store.summary(run_id)
            for each in line.questions:
                if each.kind == "confirm" and each.id not in line.decided:
                    return each
            time.sleep(0.1)
        raise TimeoutError(f"{run_id} asks nothing: {self._yard.store.summary(run_id)}")

    def _expect(self, is_so: bool, what: str, run_id: str) -> None:
        if not is_so:
            self.faults.append(f"{run_id}: not so: {what}")
