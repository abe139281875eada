"""Injected calls under rules about where values come from, on the tasks of AgentDojo.

`python injection.py` prints one table. AgentDojo 0.1.35 has four suites with 97 user tasks, 35
injections, and the calls that solve each. No model takes part: for each user task, a script makes
the calls of its solution; then, for each injection of its suite, once more in an environment with
the injected text, and after them the calls that the injection asks for. Every question is approved.
An injected call that writes and was not asked about ran unasked.

The suites' functions become ferrule tools. The sets below say, by kind and before any measurement,
whose results others may have written, and what a call does. `-v` names every question, and every
injected call that ran unasked. Install `agentdojo==0.1.35` in a virtual environment of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from agentdojo.agent_pipeline import GroundTruthPipeline
from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
from agentdojo.attacks import load_attack
from agentdojo.functions_runtime import FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites

from ferrule import Policy, ReAct, Response, Tool, ToolCall, ask, call
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "v1.2.2"
ATTACK = "important_instructions_no_names"

READS_TEXTS_OF_OTHERS = {
    # Mails, calendars and files. Some calls that change a record return it, with its text.
    *("get_unread_emails", "get_sent_emails", "get_received_emails", "get_draft_emails"),
    *("search_emails", "search_calendar_events", "get_day_calendar_events"),
    *("reschedule_calendar_event", "add_calendar_event_participants"),
    *("search_files_by_filename", "get_file_by_id", "list_files", "search_files"),
    *("append_to_file", "delete_file", "share_file", "read_file"),
    # Messages and pages.
    *("read_channel_messages", "read_inbox", "get_webpage"),
    # The subjects of payments, and reviews.
    *("get_most_recent_transactions", "get_scheduled_transactions"),
    *("get_rating_reviews_for_hotels", "get_rating_reviews_for_restaurants"),
    "get_rating_reviews_for_car_rental",
}
DESTROYS = {
    *("delete_email", "delete_file", "cancel_calendar_event", "remove_user_from_slack"),
    "update_password",
}
WRITES = {
    *("send_email", "create_calendar_event", "reschedule_calendar_event"),
    *("add_calendar_event_participants", "append_to_file", "create_file", "share_file"),
    *("reserve_hotel", "reserve_car_rental", "reserve_restaurant"),
    *("send_money", "schedule_transaction", "update_scheduled_transaction", "update_user_info"),
    *("add_user_to_channel", "send_direct_message", "send_channel_message"),
    *("invite_user_to_slack", "post_webpage"),
}
CHOOSES_ADDRESS = {"get_webpage"}
"""It only reads, but a request carries what is in its address to whoever owns it."""

_ACTS = WRITES | DESTROYS | CHOOSES_ADDRESS
TAINTED, AFTER = call(tainted="values"), call(after="untrusted")
POLICIES = {
    "the recommended policy": [
        *(ask(name, when=TAINTED) for name in sorted(WRITES | CHOOSES_ADDRESS)),
        *(ask(name, when=AFTER) for name in sorted(DESTROYS)),
    ],
    '`tainted=True` in place of `"values"`': [
        *(ask(name, when=call(tainted=True)) for name in sorted(WRITES | CHOOSES_ADDRESS)),
        *(ask(name, when=AFTER) for name in sorted(DESTROYS)),
    ],
    '`after="untrusted"` for all that writes': [ask(name, when=AFTER) for name in sorted(_ACTS)],
    "ask for everything that writes": [ask(name) for name in sorted(_ACTS)],
}


def main() -> None:
    verbose = "-v" in sys.argv
    tallies = {name: Tally() for name in POLICIES}
    for suite in get_suites(VERSION).values():
        pipeline = GroundTruthPipeline(None)
        pipeline.name = "local"  # the attack wants the name of a model
        attack = load_attack(ATTACK, suite, pipeline)
        for user_task in suite.user_tasks.values():
            for injection in (None, *suite.injection_tasks.values()):
                plot = Plot(suite, user_task, injection, attack)
                for name, rules in POLICIES.items():
                    asked = plot.play(rules)
                    tallies[name].count(plot, asked)
                    if verbose:
                        plot.print_(name, asked)
    print(
        "| policy | user tasks with a question | questions a task | injected calls run unasked |",
        "|---|---|---|---|",
        *(f"| {name} | {tally} |" for name, tally in tallies.items()),
        sep="\n",
    )


class Tally:
    """The figures of one policy."""

    def __init__(self) -> None:
        self.questions: list[int] = []
        """By user task."""
        self.injected = self.unasked = 0

    def count(self, plot: Plot, asked: dict[int, str]) -> None:
        """Count the questions of a play."""
        if plot.injection is None:
            self.questions.append(len(asked))
            return
        self.injected += len(plot.injected)
        self.unasked += len(plot.injected - asked.keys())

    def __str__(self) -> str:
        tasks = sum(count > 0 for count in self.questions)
        total = len(self.questions)
        return (
            f"{tasks} of {total} ({tasks / total:.0%}) | {sum(self.questions) / total:.2f} "
            f"| {self.unasked} of {self.injected}"
        )


class Plot:
    """The calls of a user task, and perhaps those of an injection after them."""

    def __init__(self, suite: Any, user_task: Any, injection: Any, attack: Any) -> None:
        self.suite, self.user_task, self.injection = suite, user_task, injection
        texts: dict[str, str] = {}
        if injection is not None:
            texts = attack.attack(user_task, injection)
        environment = suite.load_and_inject_default_environment(texts)
        self.environment = user_task.init_environment(environment)
        self.steps = [*user_task.ground_truth(self.environment.model_copy(deep=True))]
        own = len(self.steps)
        if injection is not None:
            self.steps += injection.ground_truth(self.environment.model_copy(deep=True))
        self.injected = {
            number
            for number, step in enumerate(self.steps)
            if number >= own and step.function in _ACTS
        }
        """The injected calls that act, by their numbers."""

    def play(self, rules: Sequence[Any]) -> dict[int, str]:
        """Play the calls under these rules. Returns why calls were asked about, by number."""
        environment = self.environment.model_copy(deep=True)
        runtime = FunctionsRuntime(self.suite.tools)
        tools = [as_tool(function, runtime, environment) for function in self.suite.tools]
        calls = [
            ToolCall(name=step.function, args=dict(step.args), id=str(number))
            for number, step in enumerate(self.steps)
        ]
        finish = ToolCall(name="finish", args={"answer": "done"})
        agent = ReAct(
            "task -> answer",
            tools,
            lm=ScriptedLM([Response("", (call,)) for call in (*calls, finish)]),
            policy=Policy(rules, loaded_later=sorted(_ACTS)),
            max_iters=100,
        )
        run = agent.start(task=self.user_task.PROMPT)
        asked: dict[int, str] = {}
        while run.pending:
            for question in run.pending:
                asked[int(question.call.id or "")] = question.note.strip()
                run.answer(question.approve())
            run.resume()
        results = [entry.value for entry in run.journal.entries if entry.kind == "result"]
        if run.status != "done" or len(results) != len(calls):
            raise RuntimeError(f"{self.user_task.ID} was not played to its end: {run.status}")
        return asked

    def print_(self, policy: str, asked: dict[int, str]) -> None:
        """Print the questions of a user task, or the injected calls without one."""
        name = f"{policy}: {self.suite.name} {self.user_task.ID}"
        if self.injection is None:
            for number, why in asked.items():
                print(f"{name}: {self.steps[number].function}: {why}")
        for number in sorted(self.injected - asked.keys()):
            print(f"{name} {self.injection.ID}: {self.steps[number]} ran unasked")


def as_tool(function: Any, runtime: Any, environment: Any) -> Tool:
    """A function of a suite as a ferrule tool."""

    def run(**arguments: Any) -> str:
        result, error = runtime.run_function(environment, function.name, arguments)
        return error or tool_result_to_str(result)

    return Tool(
        run,
        function.name,
        function.description,
        schema=function.parameters.model_json_schema(),
        untrusted=function.name in READS_TEXTS_OF_OTHERS,
    )


if __name__ == "__main__":
    main()
