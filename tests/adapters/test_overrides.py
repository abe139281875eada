"""A piece that a subclass overrides is called, or refused when the class is defined."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from typing import Any

import pytest

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.composing import PIECES
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.errors import AdapterParseError, ConfigurationError, ToolCallError
from ferrule.events import FieldDelta
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.settings import context
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image
from ferrule.values.conversation.exchange import Capabilities
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature

FORMATS = [name for name in PIECES if name != "parse"]
BUILT_IN = [ChatAdapter, JSONAdapter, XMLAdapter]
CHAT = [pytest.param(kind, id=kind.__name__) for kind in BUILT_IN]
PHOTO = Image(url="http://127.0.0.1/a.png")
NATIVE = Capabilities(native_tools=True)


class Talk(Signature):
    """Talk about the photo."""

    history: History = InputField()
    photo: Image = InputField()
    tools: list[Tool] = InputField()
    message: str = InputField()
    calls: ToolCalls | None = OutputField()
    reply: str = OutputField()


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


CALLED = ToolCalls(tool_calls=[ToolCall(name="add", args={"a": 1, "b": 2})])
TALK = {
    "history": History(
        [
            {"message": "hi", "photo": PHOTO, "reply": "hello"},
            {"message": "1 + 2?", "calls": CALLED},
        ],
    ),
    "photo": PHOTO,
    "tools": [Tool(add)],
    "message": f"Who is it? {PHOTO}",
}
DEMOS = [{"message": "a", "photo": PHOTO, "reply": "b"}, {"message": "c"}]


def passing_on(kind: type[Adapter], *names: str) -> type[Any]:
    """A subclass that overrides these pieces and changes nothing."""

    def override(name: str) -> Any:
        def piece(self: Any, *args: Any, **options: Any) -> Any:
            return getattr(super(made, self), name)(*args, **options)

        return piece

    made: type[Any] = type(
        f"Passing{kind.__name__}",
        (kind,),
        {name: override(name) for name in names},
    )
    return made


# -- called


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
@pytest.mark.parametrize(
    "names",
    [*[(name,) for name in FORMATS], tuple(FORMATS)],
    ids=lambda names: names[0] if len(names) == 1 else "all",
)
@pytest.mark.parametrize("kind", CHAT)
def test_a_piece_that_changes_nothing_changes_nothing(
    kind: type[Adapter],
    names: tuple[str, ...],
    native: bool,
) -> None:
    """Issue: fields, demos, turns with calls and pictures are as without the override."""
    inputs = Talk.check_inputs(TALK)
    made = passing_on(kind, *names)
    assert made.overridden == frozenset(names)
    plain = kind().opening(Talk, inputs, demos=DEMOS, native=native)
    assert list(made().opening(Talk, inputs, demos=DEMOS, native=native)) == [
        _as_read(message, names) for message in plain
    ]
    step = {"thought_0": "go", "observation_0": [PHOTO, "x"]}
    assert made().step_message(step) == kind().step_message(step)
    outputs = {"calls": None, "reply": "r"}
    assert made().answer_content(Talk, outputs) == kind().answer_content(Talk, outputs)


def _as_read(message: Any, names: tuple[str, ...]) -> Any:
    """Messages in OpenAI's form do not say which tool a result is of."""
    from msgspec.structs import replace

    through_json = {"format", "format_conversation_history"} & {*names}
    return replace(message, name=None) if message.role == "tool" and through_json else message


MARK = "~ mark ~"
TEXTS = [
    name
    for name in FORMATS
    if name not in {"format", "format_demos", "format_conversation_history"}
]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", CHAT)
def test_the_text_of_a_piece_reaches_the_model(kind: type[Adapter], name: str) -> None:
    """Issue."""

    def piece(self: Any, *args: Any, **options: Any) -> str:
        return f"{getattr(super(made, self), name)(*args, **options)}{MARK}"

    made: type[Any] = type("Made", (kind,), {name: piece})
    lm = ScriptedLM([{"outputs": {"answer": "x"}}] * 2)
    with context(adapter=made(fallback=None)):
        Predict("question -> answer", demos=[{"question": "q", "answer": "a"}])(question="?", lm=lm)
    marked = [message.role for message in lm.requests[0].messages if MARK in message.text]
    where = {
        "format_user_message_content": ["user", "user"],
        "format_assistant_message_content": ["assistant"],
    }
    assert marked == where.get(
        name,
        ["user"] if name == "user_message_output_requirements" else ["system"],
    )


def test_lists_of_messages_reach_the_model() -> None:
    """Issue."""

    class Marked(ChatAdapter):
        def format_demos(self, signature: Any, demos: Any) -> Any:
            return [
                {"role": "user", "content": f"{len(demos)} demos"},
                {"role": "assistant", "content": "seen"},
            ]

        def format_conversation_history(
            self,
            signature: Any,
            history_field_name: str,
            inputs: Any,
        ) -> Any:
            assert "history" not in signature.fields
            return [
                {"role": "user", "content": f"{len(inputs[history_field_name].messages)} turns"},
            ]

    messages = Marked().opening(Talk, Talk.check_inputs(TALK), demos=DEMOS, native=True)
    assert [(message.role, message.text) for message in messages[1:4]] == [
        ("user", "2 demos"),
        ("assistant", "seen"),
        ("user", "2 turns"),
    ]


def test_format_makes_the_whole_request() -> None:
    """Issue."""

    class Plain(ChatAdapter):
        def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
            assert isinstance(demos, list)
            return [{"role": "user", "content": f"{signature.instructions} {inputs['question']}"}]

    lm = ScriptedLM([{"outputs": {"answer": "x"}}])
    with context(adapter=Plain()):
        Predict(Signature("question -> answer", "Be short."))(question="Why?", lm=lm)
    assert [(message.role, message.text) for message in lm.requests[0].messages] == [
        ("user", "Be short. Why?"),
    ]


def test_native_calls_are_not_part_of_a_piece_s_signature() -> None:
    """Issue: as DSPy removes them."""
    seen: list[Any] = []

    class Seen(ChatAdapter):
        def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
            seen.append(list(signature.fields))
            return super().format(signature, demos, inputs)

        def format_task_description(self, signature: Any) -> str:
            seen.append(list(signature.fields))
            return super().format_task_description(signature)

    Seen().opening(Talk, Talk.check_inputs(TALK), native=True)
    assert seen == [["history", "photo", "message", "reply"], ["photo", "message", "reply"]]


def test_steps_are_rendered_by_the_user_s_piece() -> None:
    class Lines(ChatAdapter):
        def format_user_message_content(
            self,
            signature: Any,
            inputs: Any,
            prefix: Any = "",
            suffix: Any = "",
            main_request: Any = False,
        ) -> str:
            assert set(inputs) <= set(signature.input_fields)
            return "\n".join(f"{name} = {value}" for name, value in inputs.items())

    step = {"next_thought": "I add.", "next_tool_name": "add", "next_tool_args": {"a": 1, "b": 2}}
    end = {"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {}}
    lm = ScriptedLM([{"outputs": each} for each in (step, end, {"reasoning": "r", "answer": "3"})])
    with context(adapter=Lines()):
        ReAct("question -> answer", [add], native=False)(question="?", lm=lm)
    assert "observation_0 = 3" in lm.requests[1].messages[-1].text
    assert "observation_0 = 3" in lm.requests[2].messages[-1].text


def test_a_piece_that_returns_no_text_is_named() -> None:
    """Issue."""

    class Bad(ChatAdapter):
        def format_user_message_content(self, *args: Any, **options: Any) -> Any:
            return None

    with pytest.raises(
        ConfigurationError,
        match=r"`Bad\.format_user_message_content` returns text, found None",
    ):
        Bad().opening(Signature("a -> b"), {"a": "x"})


@pytest.mark.parametrize(
    "found",
    ["text", None, {"role": "user"}, [{"question": "x"}], [3]],
    ids=repr,
)
@pytest.mark.parametrize("name", ["format", "format_demos"])
def test_what_is_no_list_of_messages_ends_the_call_before_the_model_is_asked(
    name: str,
    found: Any,
) -> None:
    made: type[Any] = type("Bad", (ChatAdapter,), {name: lambda self, *args: found})
    lm = ScriptedLM(["never"])
    with (
        context(adapter=made()),
        pytest.raises(ToolCallError, match=rf"`Bad\.{name}` returns a list of messages") as raised,
    ):
        Predict("question -> answer")(question="?", lm=lm)
    assert (raised.value.code, lm.requests) == ("invalid_request", [])


# -- parse


class Shouted(ChatAdapter):
    """Reads `ANSWER: ...` lines, and nothing else."""

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        found = dict(re.findall(r"^([A-Z_]+): (.*)$", completion, re.MULTILINE))
        if not found:
            raise ValueError("no line begins with a name in capitals and a colon")
        return {name.lower(): text for name, text in found.items()}


def test_parse_reads_the_answer_and_its_values_are_checked() -> None:
    """Issue."""
    with context(adapter=Shouted(fallback=None)):
        assert (
            Predict("question -> answer: int")(question="?", lm=ScriptedLM(["ANSWER: 7"])).answer
            == 7
        )
        with pytest.raises(AdapterParseError, match="answer"):
            Predict("question -> answer: int")(question="?", lm=ScriptedLM(["ANSWER: seven"] * 2))


def test_a_value_error_of_parse_goes_back_to_the_model() -> None:
    """Issue."""
    lm = ScriptedLM(["Well ...", "ANSWER: 7"])
    with context(adapter=Shouted()):
        assert Predict("question -> answer: int")(question="?", lm=lm).answer == 7
    assert "- no line begins with a name in capitals" in lm.requests[1].messages[-1].text


def test_other_errors_of_parse_are_the_programmer_s() -> None:
    """Issue."""

    class Wrong(ChatAdapter):
        def parse(self, signature: Any, completion: str) -> Any:
            raise KeyError("answer")

    class Listed(ChatAdapter):
        def parse(self, signature: Any, completion: str) -> Any:
            return ["x"]

    with context(adapter=Wrong()), pytest.raises(KeyError):
        Predict("question -> answer")(question="?", lm=ScriptedLM(["x"]))
    with (
        context(adapter=Listed()),
        pytest.raises(ConfigurationError, match=r"`Listed\.parse` returns a dict of outputs"),
    ):
        Predict("question -> answer")(question="?", lm=ScriptedLM(["x"]))


@pytest.mark.parametrize("kind", CHAT)
def test_parse_may_change_what_the_adapter_reads(kind: type[Adapter]) -> None:
    """Issue: as most overrides of DSPy's do."""

    def parse(self: Any, signature: Any, completion: str) -> Any:
        outputs = super(made, self).parse(signature, completion)
        return {**outputs, "answer": outputs["answer"].upper()}

    made: type[Any] = type("Made", (kind,), {"parse": parse})
    with context(adapter=made()):
        predict = Predict("question -> answer, place: list[int]")
        answer = {"outputs": {"answer": "loud", "place": [1]}}
        assert predict(question="?", lm=ScriptedLM([answer])).toDict() == {
            "answer": "LOUD",
            "place": [1],
        }
        assert asyncio.run(predict.acall(question="?", lm=ScriptedLM([answer]))).answer == "LOUD"
        with predict.stream(question="?", lm=ScriptedLM([answer])) as stream:
            pieces = [
                event.text
                for event in stream
                if isinstance(event, FieldDelta) and event.field == "answer"
            ]
        assert ("".join(pieces), stream.prediction.answer) == ("loud", "LOUD")


def test_parse_reads_the_steps_of_an_agent_in_text_and_plain_answers_stay_answers() -> None:
    """Issue."""
    with context(adapter=Shouted()):
        lm = ScriptedLM(
            [
                'NEXT_THOUGHT: I add.\nNEXT_TOOL_NAME: add\nNEXT_TOOL_ARGS: {"a": 1, "b": 2}',
                'NEXT_THOUGHT: Done.\nNEXT_TOOL_NAME: finish\nNEXT_TOOL_ARGS: {"answer": "3"}',
            ],
        )
        prediction = ReAct("question -> answer", [add], native=False)(question="?", lm=lm)
        assert (prediction.trajectory["observation_0"], prediction.answer) == ("3", "3")
        native = ReAct("question -> answer", [add], native=True)
        assert native(question="?", lm=ScriptedLM(["It is 3."])).answer == "It is 3."
        assert native(question="?", lm=ScriptedLM(["ANSWER: 3"])).answer == "3"


def test_calls_beside_an_answer_are_kept() -> None:
    """Issue."""
    made = passing_on(ChatAdapter, "parse")
    for adapter in (ChatAdapter(), made()):
        native = adapter.read(
            Talk,
            ScriptedLM([{"text": "I look.", "tool_calls": [{"name": "add", "args": {}}]}]).complete(
                None,
            ),
            tools=[Tool(add)],
        )
        assert [call.name for call in native["calls"].tool_calls] == ["add"]
        written = ScriptedLM(
            [
                '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>\n[[ ## reply ## ]]\nSoon.',
            ],
        ).complete(None)
        assert adapter.read(Talk, written, tools=[Tool(add)])["calls"].tool_calls[0].args == {
            "a": 1,
            "b": 2,
        }


# -- refused


def test_a_mixin_may_override_a_piece() -> None:
    class Quiet:
        def format_task_description(self, signature: Any) -> str:
            return "Hush."

    opening = type("Made", (Quiet, ChatAdapter), {})().opening(Signature("a -> b"), {"a": "x"})
    assert opening[0].text.endswith("Hush.")


@pytest.mark.parametrize("name", PIECES)
def test_an_async_piece_is_refused(name: str) -> None:
    """Issue."""

    async def piece(*args: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match=rf"`Made\.{name}` is async"):
        type("Made", (JSONAdapter,), {name: piece})


# -- own forms and attributes


class Lines(Adapter):
    """`name: JSON` lines, written with pieces alone."""

    def format_field_structure(self, signature: Any) -> str:
        return "Write each field on a line of its own, as `name: JSON`."

    def format_user_message_content(
        self,
        signature: Any,
        inputs: Any,
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        return "\n".join(
            [prefix, *(f"{name}: {json.dumps(value)}" for name, value in inputs.items()), suffix],
        ).strip()

    def format_assistant_message_content(
        self,
        signature: Any,
        outputs: Any,
        missing_field_message: str | None = None,
    ) -> str:
        return "\n".join(f"{name}: {json.dumps(value)}" for name, value in outputs.items())

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        lines = (line.partition(": ") for line in completion.splitlines())
        return {
            name: json.loads(value) for name, _, value in lines if name in signature.output_fields
        }


def test_a_form_of_one_s_own_needs_four_pieces() -> None:
    """Issue."""
    with context(adapter=Lines()):
        lm = ScriptedLM(["answer: 4x", {"outputs": {"answer": 4}}])
        predict = Predict("question -> answer: int", demos=[{"question": "1?", "answer": 1}])
        with predict.stream(question="2 + 2?", lm=lm) as stream:
            assert not [event for event in stream if isinstance(event, FieldDelta)]
        assert stream.prediction.answer == 4
        assert [message.text for message in lm.requests[0].messages[1:]] == [
            'question: "1?"',
            "answer: 1",
            'question: "2 + 2?"',
        ]
        step = {
            "next_thought": "I add.",
            "next_tool_name": "add",
            "next_tool_args": {"a": 1, "b": 2},
        }
        end = {"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {"answer": 3}}
        steps = ScriptedLM([{"outputs": step}, {"outputs": end}])
        prediction = ReAct("question -> answer: int", [add], native=False)(question="?", lm=steps)
    assert prediction.answer == 3
    assert 'observation_0: "3"' in steps.requests[1].messages[-1].text


def test_a_class_without_a_form_says_what_it_lacks() -> None:
    """Python's own error."""

    class Half(Adapter):
        def parse(self, signature: Any, completion: str) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match="render_fields"):
        Half()


class Spoken(ChatAdapter):
    """Has an attribute of its own."""

    def __init__(self, language: str, **options: Any) -> None:
        super().__init__(**options)
        self.language = language

    def structure(self, shown: Any) -> str:
        return f"Answer in {self.language}.\n\n{super().structure(shown)}"


def test_a_subclass_may_have_attributes_which_then_never_change() -> None:
    """Issue."""
    adapter = Spoken("Dutch", repairs=2)
    with pytest.raises(AttributeError, match="create another one"):
        adapter.language = "Frisian"
    with pytest.raises(AttributeError, match="create another one"):
        del adapter.language
    assert adapter == Spoken("Dutch", repairs=2)
    assert adapter != Spoken("Frisian", repairs=2)
    assert hash(adapter) == hash(Spoken("Frisian", repairs=2))
    assert pickle.loads(pickle.dumps(adapter)) == adapter
    assert (
        repr(adapter)
        == "Spoken(use_native_function_calling=False, fallback=JSONAdapter(use_native_function_calling=True, fallback=None, repairs=1), repairs=2, language=Dutch)"
    )


def test_two_adapters_of_one_class_do_not_share_a_prompt() -> None:
    """Issue."""
    asked = Signature("question -> answer")
    texts = [
        Spoken(language).opening(asked, {"question": "?"})[0].text
        for language in ("Dutch", "Frisian")
    ]
    assert ["Dutch" in text for text in texts] == [True, False]
    dutch = [Spoken("Dutch").opening(asked, {"question": "?"})[0] for _ in range(2)]
    assert dutch[0] is dutch[1]


@pytest.mark.parametrize("kind", CHAT)
def test_a_subclass_without_methods_overrides_no_piece(kind: type[Adapter]) -> None:
    bare: type[Adapter] = type("Bare", (kind,), {})
    assert (kind.overridden, bare.overridden) == (frozenset(), frozenset())


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
@pytest.mark.parametrize(
    "name",
    ["format", "format_conversation_history", "format_demos", "format_user_message_content"],
)
def test_turns_of_an_agent_s_history_keep_their_answers(name: str, native: bool) -> None:
    """Issue: they have the program's outputs, which are not those of a step."""

    class Chat(Signature):
        """Talk."""

        history: History = InputField()
        message: str = InputField()
        reply: str = OutputField()

    seen: list[Any] = []
    for adapter in (ChatAdapter(), passing_on(ChatAdapter, name)()):
        lm = ScriptedLM(
            ["Bye."]
            if native
            else [
                {
                    "outputs": {
                        "next_thought": "",
                        "next_tool_name": "finish",
                        "next_tool_args": {"reply": "Bye."},
                    },
                },
            ],
        )
        with context(adapter=adapter):
            agent = ReAct(Chat, [add], native=native, demos=[{"message": "a", "reply": "b"}])
            agent(history=History([{"message": "hi", "reply": "hello"}]), message="bye", lm=lm)
        seen.append([(message.role, message.text) for message in lm.requests[0].messages])
    assert seen[0] == seen[1]
    assert any("hello" in text for _, text in seen[0])
