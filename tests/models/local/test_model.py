"""A model in this process, with a script in the place of the library that runs it: requests to
tokens, tokens to answers.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from ferrule import (
    LM,
    Capabilities,
    Delta,
    Message,
    Messages,
    Predict,
    ReAct,
    Request,
    ToolCall,
    tool,
)
from ferrule.errors import BadRequestError, ConfigurationError, ContextOverflowError
from ferrule.models.local.backends.backend import Sampling
from ferrule.models.local.model import InProcessLM
from ferrule.values.conversation.exchange import Declarations

HI = Request(Messages([Message("user", "hi")]))


class Script:
    """A backend whose tokens are bytes, and whose answers are given."""

    reads_tools = True
    window: int | None = 10_000

    def __init__(self, *answers: str, refusal: str = "") -> None:
        self.answers, self.refusal = list(answers), refusal
        self.prompts: list[tuple] = []
        self.samplings: list[Sampling] = []
        self.generated = 0
        self.ended = threading.Event()

    def prompt(self, messages, tools, variables):
        roles = [each["role"] for each in messages]
        if self.refusal and ("system" in roles or roles.count("user") > 1):
            raise BadRequestError(self.refusal)
        self.prompts.append((messages, tools, dict(variables)))
        return list(str(messages).encode())

    def generate(self, prompt, sampling, mask):
        self.samplings.append(sampling)
        try:
            for token in self.answers.pop(0).encode()[: sampling.max_tokens]:
                self.generated += 1
                yield token
        finally:
            self.ended.set()

    def text(self, tokens):
        return bytes(tokens).decode(errors="replace")


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


WITH_TOOLS = Request(HI.messages, Declarations([add.declaration]))


def test_an_answer_has_its_text_its_usage_and_why_it_ended():
    found = InProcessLM("local:m", Script("It is 42.")).complete(HI)
    assert (found.text, found.finish_reason, found.usage.output_tokens, found.usage.calls) == (
        "It is 42.",
        "stop",
        9,
        1,
    )
    assert found.usage.input_tokens > 0


def test_a_stream_never_cuts_a_character_and_ends_with_the_whole_answer():
    *pieces, whole = InProcessLM("local:m", Script("héé 🙂!")).stream(HI)
    assert pieces == [Delta(each) for each in "héé 🙂!"]
    assert whole.text == "héé 🙂!"


def test_the_most_tokens_end_an_answer():
    backend = Script("It is 42.")
    found = InProcessLM("local:m", backend, max_tokens=5).complete(HI)
    assert (found.text, found.finish_reason) == ("It is", "length")


@pytest.mark.parametrize("stop", ["is", ["never", "is 4", "is"]])
def test_a_stop_sequence_is_not_part_of_the_answer_and_ends_the_work(stop):
    backend = Script("It is 42. And more.")
    *pieces, whole = InProcessLM("local:m", backend, stop=stop).stream(HI)
    assert "".join(each.text for each in pieces) == whole.text == "It "
    assert whole.finish_reason == "stop"
    assert backend.generated < 9
    assert backend.ended.is_set()


def test_the_beginning_of_a_stop_sequence_at_the_end_is_text():
    *pieces, whole = InProcessLM("local:m", Script("ab STO"), stop="STOP").stream(HI)
    assert "".join(each.text for each in pieces) == whole.text == "ab STO"


def test_thoughts_in_the_text_are_reasoning():
    *pieces, whole = InProcessLM("local:m", Script("<think>hm</think>42")).stream(HI)
    assert (whole.reasoning, whole.text) == ("hm", "42")
    assert "".join(each.reasoning for each in pieces) == "hm"
    assert "".join(each.text for each in pieces) == "42"


def test_settings_of_a_request_override_those_of_the_model_and_unknown_ones_are_refused():
    backend = Script("a", "b")
    lm = InProcessLM("local:m", backend, temperature=0, seed=7)
    lm.complete(
        Request(
            HI.messages,
            settings={"temperature": 1.0, "seed": None, "max_completion_tokens": 3},
        ),
    )
    assert backend.samplings[0] == Sampling(temperature=1.0, max_tokens=3)
    with pytest.raises(ConfigurationError, match="has no setting `logit_bias`"):
        lm.complete(Request(HI.messages, settings={"logit_bias": {}}))
    with pytest.raises(
        ConfigurationError,
        match="`max_tokens` is a whole number of at least 1, found 0",
    ):
        lm.copy(max_tokens=0)


def test_extra_settings_are_variables_of_the_template():
    backend = Script("a")
    InProcessLM("local:m", backend, extra={"enable_thinking": False}).complete(HI)
    assert backend.prompts[0][2] == {"enable_thinking": False}


def test_a_prompt_longer_than_the_window_is_an_overflow():
    backend = Script("a")
    backend.window = 10
    with pytest.raises(ContextOverflowError, match="the context window of `local:m` holds 10"):
        InProcessLM("local:m", backend).complete(HI)


def test_a_template_whose_turns_alternate_gets_merged_messages():
    backend = Script("a", "b", refusal="Conversation roles must alternate user/assistant/...")
    lm = InProcessLM("local:m", backend)
    lm.complete(Request(Messages([Message("user", "x"), Message("user", "y")])))
    assert [each["content"] for each in backend.prompts[0][0]] == ["x\n\ny"]


def test_calls_in_the_models_own_form_are_tool_calls_and_are_not_streamed_as_text():
    text = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    *pieces, whole = InProcessLM("local:m", Script(text)).stream(WITH_TOOLS)
    assert [(each.name, each.args) for each in whole.tool_calls] == [("add", {"a": 2})]
    assert (whole.text, whole.finish_reason) == ("I add.", "tool_calls")
    assert "".join(each.text for each in pieces).strip() == "I add."
    assert [each.call.name for each in pieces if each.call] == ["add"]


def test_text_that_only_looks_like_a_call_is_streamed_in_the_end():
    *pieces, whole = InProcessLM("local:m", Script("a < b [maybe] {x}")).stream(WITH_TOOLS)
    assert "".join(each.text for each in pieces) == whole.text == "a < b [maybe] {x}"


def test_the_template_gets_calls_as_objects_with_short_ids():
    backend = Script("ok")
    call = ToolCall(name="add", args={"a": 1}, id="call_0_0_very_long")
    history = [
        Message("user", "x"),
        Message("assistant", "", (call,)),
        Message("tool", "2", tool_call_id=call.id, name="add"),
    ]
    InProcessLM("local:m", backend).complete(Request(Messages(history)))
    _, said, result = backend.prompts[0][0]
    [sent] = said["tool_calls"]
    assert sent["function"] == {"name": "add", "arguments": {"a": 1}}
    assert sent["id"] == result["tool_call_id"]
    assert len(sent["id"]) == 9


def test_programs_run_on_it():
    assert (
        Predict("question -> answer: int")(
            question="?",
            lm=InProcessLM("m", Script("[[ ## answer ## ]]\n42"), capabilities=Capabilities()),
        ).answer
        == 42
    )
    calls = (
        '<tool_call>{"name": "add", "arguments": {"a": 41}}</tool_call>',
        '<tool_call>{"name": "finish", "arguments": {"answer": 42}}</tool_call>',
    )
    found = ReAct("question -> answer: int", [add])(
        question="?",
        lm=InProcessLM("m", Script(*calls), capabilities=Capabilities()),
    )
    assert (found.answer, found.trajectory["observation_0"]) == (42, "42")


def test_a_stream_in_async_code_and_one_that_is_left():
    asyncio.run(_stream_twice())


async def _stream_twice():
    backend = Script("It is 42.", "endless " * 100)
    lm = InProcessLM("local:m", backend)
    items = [each async for each in lm.astream(HI)]
    assert "".join(each.text for each in items[:-1]) == items[-1].text == "It is 42."
    stream = lm.astream(HI)
    await anext(stream)
    await stream.aclose()
    assert backend.generated < 100


def test_cancelling_ends_the_work_before_the_next_token():
    asyncio.run(_cancel())


async def _cancel():
    class Slow(Script):
        def generate(self, prompt, sampling, mask):
            try:
                while True:
                    begun.set()
                    gate.wait(1)
                    yield 65
            finally:
                self.ended.set()

    begun, gate, backend = threading.Event(), threading.Event(), Slow()
    task = asyncio.create_task(InProcessLM("local:m", backend).acomplete(HI))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert await asyncio.to_thread(backend.ended.wait, 30)


@pytest.mark.parametrize("option", ["base_url", "wire", "api_key", "max_retries"])
def test_options_of_a_server_are_refused(option):
    with pytest.raises(ConfigurationError, match=f"takes no `{option}`"):
        LM("local:model", **{option: "x"})


def test_a_name_without_a_model_is_refused():
    with pytest.raises(ConfigurationError, match=r'LM\("local:PATH_OR_ID"\)'):
        LM("local:")
