"""`log_to` and the library's loggers: what is logged, at which level, with which fields, and that
no value ever is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from agent_script import fields, native_step
from raw_server import raw_server, reply

from ferrule import (
    LM,
    MemoryStore,
    Module,
    Predict,
    Prices,
    ReAct,
    Response,
    Tool,
    Usage,
    context,
    log_to,
)
from ferrule.errors import ConfigurationError, RateLimitError, StoreError
from ferrule.testing import ScriptedLM

SECRET = "swordfish"


def agent(**options: Any) -> ReAct:
    return ReAct(
        "question -> answer",
        [Tool(lambda word: f"{word}!", "shout", "Shout.", {"word": {"type": "string"}}, **options)],
        native=True,
    )


def script(*more: Any) -> ScriptedLM:
    step = native_step(SECRET, "shout", {"word": SECRET})
    return ScriptedLM(
        [
            Response(step.text, step.tool_calls, usage=Usage(10, 5, 0, 1)),
            *more,
            native_step("", "finish", {"answer": SECRET}),
        ],
    )


def told(caplog: pytest.LogCaptureFixture, *names: str) -> list[tuple[Any, ...]]:
    """Logger, level and the named fields of each record of ferrule."""
    mine = [each for each in caplog.records if each.name.startswith("ferrule")]
    return [
        (
            each.name.removeprefix("ferrule."),
            each.levelname,
            *(getattr(each, name, None) for name in names),
        )
        for each in mine
    ]


@pytest.fixture(params=["sync", "async"])
def how(request: pytest.FixtureRequest) -> str:
    return request.param


def carry(program: Module, how: str, **inputs: Any) -> Any:
    return asyncio.run(program.astart(**inputs)) if how == "async" else program.start(**inputs)


def test_a_run_logs_its_beginning_and_its_end_with_figures(
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")
    with context(lm=script(), callbacks=[log_to()], prices=Prices(extra={"scripted": (0, 0)})):
        run = carry(agent(), how, question=SECRET)
    assert told(caplog, "run_id", "program", "status", "steps", "tokens", "cost") == [
        ("runs", "INFO", run.id, "ReAct", None, None, None, None),
        ("runs", "INFO", run.id, "ReAct", "done", 2, 15, 0.0),
    ]
    begins, ends = caplog.records
    assert begins.getMessage() == f"The run {run.id} of ReAct begins"
    assert ends.getMessage().startswith(
        f"The run {run.id} of ReAct is done: 2 steps, 15 tokens, 0.",
    )
    assert getattr(ends, "seconds") >= 0


def test_a_run_that_waits_and_goes_on_logs_both(caplog: pytest.LogCaptureFixture, how: str) -> None:
    """In the process that resumes it."""
    caplog.set_level(logging.INFO, "ferrule")
    store, program = MemoryStore(), agent(require_confirmation=True)
    with context(lm=script(), callbacks=[log_to()]):
        run = carry(program, how, question="?", store=store)
        again = program.load_run(store, run.id)
        again.answer(again.pending[0].approve())
        asyncio.run(again.aresume()) if how == "async" else again.resume()
    assert [
        (level, each.getMessage().split(" is ")[-1].split(":")[0])
        for (_, level), each in zip(told(caplog), caplog.records, strict=True)
    ] == [
        ("INFO", f"The run {run.id} of ReAct begins"),
        ("INFO", "waiting"),
        ("INFO", f"The run {run.id} of ReAct resumes after 0 steps"),
        ("INFO", "done"),
    ]


def test_debug_logs_calls_by_name(caplog: pytest.LogCaptureFixture, how: str) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")
    with context(lm=script(), callbacks=[log_to(level="DEBUG")]):
        carry(agent(), how, question="?")
    assert [
        (name, level, model or tool) for name, level, model, tool in told(caplog, "model", "tool")
    ] == [
        ("runs", "INFO", None),
        ("models", "DEBUG", "scripted"),
        ("models", "DEBUG", None),
        ("tools", "DEBUG", "shout"),
        ("tools", "DEBUG", "shout"),
        ("models", "DEBUG", "scripted"),
        ("models", "DEBUG", None),
        ("runs", "INFO", None),
    ]


def test_no_value_is_logged(caplog: pytest.LogCaptureFixture, how: str) -> None:
    """Not of messages, arguments, results, reasons or errors, in no field."""
    caplog.set_level(logging.DEBUG, "ferrule")

    def fail(word: str) -> str:
        raise ValueError(word)

    program = ReAct("question -> answer", [Tool(fail, "shout", "Shout.")], native=True)
    with context(
        lm=script(native_step("", "shout", {"number": SECRET}), SECRET),
        callbacks=[log_to(level="DEBUG")],
    ):
        carry(program, how, question=SECRET)
        with context(lm=ScriptedLM([RateLimitError(SECRET)])):
            carry(Predict("question -> answer"), how, question=SECRET)
    assert len(caplog.records) > 10
    assert [each for each in caplog.records if SECRET in f"{each.getMessage()}{vars(each)}"] == []


def test_an_answer_that_could_not_be_used_is_a_warning(
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    with context(
        lm=ScriptedLM(["nonsense", fields(answer="3")]),
        callbacks=[log_to(level="WARNING")],
    ):
        carry(Predict("question -> answer: int"), how, question="?")
    assert told(caplog, "attempt") == [("models", "WARNING", 1)]


def test_a_failed_run_logs_the_class_of_its_error(
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    caplog.set_level(logging.INFO, "ferrule")
    with context(lm=ScriptedLM([RateLimitError(SECRET)]), callbacks=[log_to()]):
        carry(Predict("question -> answer"), how, question="?")
    assert told(caplog, "status", "error_type")[-1] == ("runs", "INFO", "failed", "RateLimitError")


def test_programs_inside_a_run_are_no_runs_of_their_own_and_runs_that_tools_start_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ferrule")
    inner = Predict("question -> answer")

    class Around(Module):
        def __init__(self) -> None:
            self.inner = inner

        def forward(self, question: str) -> Any:
            return self.inner(question=question).answer

    def ask(question: str) -> str:
        """Ask."""
        return str(Around()(question=question))

    lm = ScriptedLM(
        [
            native_step("", "ask", {"question": "?"}),
            fields(answer="a"),
            native_step("", "finish", {"answer": "b"}),
        ],
    )
    with context(lm=lm, callbacks=[log_to()]):
        outer = ReAct("question -> answer", [Tool(ask)], native=True).start(question="?")
    ids = [each[2] for each in told(caplog, "run_id")]
    assert ids == [outer.id, ids[1], ids[1], outer.id]
    assert ids[1] != outer.id


def test_the_name_of_the_loggers_is_yours(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mine")
    with context(lm=ScriptedLM([fields(answer="a")]), callbacks=[log_to("mine")]):
        Predict("question -> answer")(question="?")
    assert {each.name for each in caplog.records} == {"mine.runs"}


@pytest.mark.parametrize("wrong", ["LOUD", None, True, 1.5])
def test_a_level_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="level"):
        log_to(level=wrong)


def test_the_library_adds_no_handler_and_no_logging_handlers() -> None:
    code = """if True:
        import sys, logging, ferrule
        from ferrule import log_to, configure, Predict
        from ferrule.testing import ScriptedLM
        configure(lm=ScriptedLM(["[[ ## b ## ]]\\nB"]), callbacks=[log_to()])
        Predict("a -> b")(a="?")
        names = [name for name in logging.root.manager.loggerDict if name.startswith("ferrule")]
        print([name for name in names if logging.getLogger(name).handlers], logging.root.handlers, "logging.handlers" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("[] [] False\n", "")


# -- loggers without an observer


def test_a_request_that_is_sent_again_is_a_warning(
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    body = json.dumps({"choices": [{"message": {"content": fields(answer="a")}}]})
    with (
        raw_server(reply("{}", "503 Busy", retry_after="0"), reply(body)) as server,
        context(lm=LM(server.base_url, model="m")),
    ):
        carry(Predict("question -> answer"), how, question=SECRET)
        provider = server.base_url.split("/")[2]
    assert told(caplog, "provider", "attempt", "error_type") == [
        ("models", "WARNING", provider, 2, "UnavailableError"),
    ]


def test_a_lost_lease_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    head = json.dumps({"questions": [], "error": None, "answers": []})
    lease = store.create("r", program="P", head=head)
    store.release(lease, status="waiting", head=head)
    store.take("r", after=0)
    with pytest.raises(StoreError):
        store.append(lease, "{}")
    assert told(caplog, "run_id") == [("store", "WARNING", "r")]


def test_the_record_of_a_begin_says_what_the_run_is_for(caplog: pytest.LogCaptureFixture) -> None:
    with context(lm=script(), callbacks=[log_to()]), caplog.at_level(logging.INFO, "ferrule"):
        agent()(question="?", metadata={"user": "ada"}, title="A bill")
    begins = [each for each in caplog.records if each.getMessage().endswith("begins")]
    [(title, metadata)] = [(vars(each)["title"], vars(each)["metadata"]) for each in begins]
    assert (title, metadata) == ("A bill", {"user": "ada"})
