from __future__ import annotations

import asyncio
import json
import threading

import pytest

from ferrule.errors import ConfigurationError, RateLimitError, ScriptError
from ferrule.testing.replay import RecordLM, ReplayLM
from ferrule.testing.scripted import ScriptedLM
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.conversation.exchange import (
    Capabilities,
    Declarations,
    Delta,
    Request,
    Response,
    Shape,
    Usage,
)
from ferrule.values.conversation.message import Message, Messages

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}},
}
FULL = Response(
    "text \ud800 ü",
    (
        ToolCall(
            name="add",
            args={"a": [1, {"b": None}]},
            id="c",
            intention="why",
            repairs=("code_fence",),
        ),
        ToolCall(name="add", id="d", fault=CallFault("invalid_tool_call_arguments", "bad", "{")),
    ),
    "hm",
    "tool_calls",
    "no",
    Usage(1, 2, 3, 1),
    "m",
    0.5,
    {"openai_chat": {"message": {"x": 1}}},
)


def asking(text: str = "hi", **keywords) -> Request:
    return Request(
        Messages([Message("system", "Be nice.\nUse tools."), Message("user", text)]),
        **keywords,
    )


async def collected(stream) -> list:
    return [item async for item in stream]


def test_what_was_recorded_is_replayed(tmp_path):
    path = tmp_path / "a.jsonl"
    capabilities = Capabilities(native_tools=False, context_tokens=9)
    lm = RecordLM(ScriptedLM([FULL, "b"], capabilities=capabilities), path)
    assert [lm.complete(asking("a")), lm("b")] == [FULL, "b"]
    replay = ReplayLM(path)
    assert replay.complete(asking("a")) == FULL
    assert replay("b") == "b"
    assert (
        (replay.name, replay.capabilities)
        == (lm.name, capabilities)
        == ("scripted", lm.capabilities)
    )


@pytest.mark.parametrize("way", ["complete", "acomplete", "stream", "astream"])
def test_every_way_of_asking_is_recorded_and_replayed(tmp_path, way):
    def ask(lm):
        match way:
            case "complete":
                return lm.complete(asking())
            case "acomplete":
                return asyncio.run(lm.acomplete(asking()))
            case "stream":
                items = list(lm.stream(asking()))
            case "astream":
                items = asyncio.run(collected(lm.astream(asking())))
        assert items[:2] == [Delta("a "), Delta("b")]
        return items[-1]

    path = tmp_path / "a.jsonl"
    assert ask(RecordLM(ScriptedLM(["a b"]), path)).text == "a b"
    assert ask(ReplayLM(path)).text == "a b"


def test_a_stream_that_was_left_is_not_recorded(tmp_path):
    path = tmp_path / "a.jsonl"
    stream = RecordLM(ScriptedLM(["a b"]), path).stream(asking())
    next(stream)
    stream.close()
    assert not path.exists()


def test_the_same_request_replays_in_order_and_then_no_more(tmp_path):
    path = tmp_path / "a.jsonl"
    lm = RecordLM(ScriptedLM(["one", "two"]), path)
    for _ in range(2):
        lm.complete(asking())
    replay = ReplayLM(path)
    assert [replay.complete(asking()).text for _ in range(2)] == ["one", "two"]
    with pytest.raises(ScriptError, match=r"2 answers.*3 times.*repeat=True"):
        replay.complete(asking())
    patient = ReplayLM(path, repeat=True)
    assert [patient.complete(asking()).text for _ in range(4)] == ["one", "two", "two", "two"]


def test_a_miss_shows_the_nearest_recording_as_a_diff(tmp_path):
    path = tmp_path / "a.jsonl"
    lm = RecordLM(ScriptedLM(["a", "b"]), path)
    lm.complete(
        asking("What is two and two?", tools=Declarations([TOOL]), settings={"temperature": 0}),
    )
    lm("something quite different")
    with pytest.raises(ScriptError) as caught:
        ReplayLM(path).complete(
            asking(
                "What is two and three?",
                tools=Declarations([TOOL]),
                settings={"temperature": 0},
            ),
        )
    text = str(caught.value)
    assert "-user: What is two and two?" in text
    assert "+user: What is two and three?" in text
    assert "different" not in text


@pytest.mark.parametrize(
    ("keywords", "line"),
    [
        ({"settings": {"temperature": 1}}, '+settings {"temperature":1}'),
        ({"tool_choice": "none"}, '+tool_choice "none"'),
        ({"shape": Shape("json_object")}, "+shape"),
        ({"tools": Declarations([TOOL])}, "+tool "),
    ],
    ids=range(4),
)
def test_a_diff_shows_what_is_no_message_too(tmp_path, keywords, line):
    path = tmp_path / "a.jsonl"
    RecordLM(ScriptedLM(["a"]), path).complete(asking())
    with pytest.raises(ScriptError) as caught:
        ReplayLM(path).complete(asking(**keywords))
    assert line in str(caught.value)


def test_a_difference_that_is_not_shown_is_named(tmp_path):
    """Texts among the settings may be secret."""
    path = tmp_path / "a.jsonl"
    RecordLM(ScriptedLM(["a"]), path).complete(asking(settings={"user": "me"}))
    with pytest.raises(ScriptError, match="values of settings"):
        ReplayLM(path).complete(asking(settings={"user": "you"}))


def test_a_diff_is_not_endless(tmp_path):
    path = tmp_path / "a.jsonl"
    RecordLM(ScriptedLM(["a"]), path).complete(asking("\n".join(f"old {i}" for i in range(500))))
    with pytest.raises(ScriptError, match="more lines") as caught:
        ReplayLM(path).complete(asking("\n".join("x" * 5000 for i in range(500))))
    assert len(str(caught.value)) < 50_000


def test_secrets_are_not_written(tmp_path, monkeypatch):
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    path = tmp_path / "a.jsonl"
    lm = RecordLM(ScriptedLM([f"Your key is {key}."]), path)
    request = asking(f"My key is {key}", settings={"extra": {"token": "hidden"}, "user": "hidden"})
    lm.complete(request)
    assert key not in path.read_text()
    assert "hidden" not in path.read_text()
    assert ReplayLM(path).complete(request).text == "Your key is [key]."


def test_errors_are_passed_on_and_not_recorded(tmp_path):
    path = tmp_path / "a.jsonl"
    lm = RecordLM(ScriptedLM([RateLimitError("x"), "fine"]), path)
    with pytest.raises(RateLimitError):
        lm.complete(asking())
    lm.complete(asking())
    assert ReplayLM(path).complete(asking()).text == "fine"


def test_recordings_add_up_also_after_a_kill(tmp_path):
    path = tmp_path / "a.jsonl"
    RecordLM(ScriptedLM(["a"]), path).complete(asking("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "half')
    assert ReplayLM(path).complete(asking("a")).text == "a"
    path.write_bytes(whole.rstrip(b"\n"))
    RecordLM(ScriptedLM(["b"]), path).complete(asking("b"))
    replay = ReplayLM(path)
    assert [replay.complete(asking(each)).text for each in "ab"] == ["a", "b"]


def test_threads_write_whole_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    lm = RecordLM(ScriptedLM(by=lambda request: request.messages[-1].text * 2000), path)
    threads = [
        threading.Thread(target=lambda n=n: [lm(f"{n} {i}") for i in range(20)]) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_text().splitlines()
    assert len(lines) == 121
    assert all(json.loads(line) for line in lines)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("junk\n{}\n", "Line 1 of"),
        ('{"ferrule": "recording"}\n{"key": 1}\n\n', "Line 2 of"),
        ('{"key": "a", "asked": [], "answer": {"tool_calls": [{}]}}\n\n', "Line 1 of"),
        ('{"key": "a", "asked": [], "answer": {"unknown": 1}}\n\n', "Line 1 of"),
    ],
    ids=range(4),
)
def test_a_file_that_is_no_recording_is_named_with_its_line(tmp_path, content, words):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        ReplayLM(path)


def test_a_file_that_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(ConfigurationError, match="RecordLM"):
        ReplayLM(tmp_path / "none.jsonl")


def test_an_empty_recording_holds_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    path.touch()
    with pytest.raises(ScriptError, match="record one"):
        ReplayLM(path).complete(asking())


def test_a_recording_is_added_to_made_anew_or_made_once(tmp_path):
    path = tmp_path / "a.jsonl"
    for text in ("one", "two"):
        RecordLM(ScriptedLM([text]), path).complete(asking())
    assert ReplayLM(path).complete(asking()).text == "one"
    again = RecordLM(ScriptedLM(["three", "four"]), path, mode="new")
    assert ReplayLM(path).complete(asking()).text == "one"  # until there is an answer to write
    for text in ("three", "four"):
        assert again.complete(asking()).text == text
    replay = ReplayLM(path)
    assert [replay.complete(asking()).text for _ in range(2)] == ["three", "four"]
    before = path.read_bytes()
    unused = ScriptedLM([])
    assert RecordLM(unused, path, mode="once").complete(asking()).text == "three"
    with pytest.raises(ScriptError, match="holds no answer to this request"):
        RecordLM(unused, path, mode="once").complete(asking("something else"))
    assert path.read_bytes() == before
    first = tmp_path / "b.jsonl"
    assert list(RecordLM(ScriptedLM(["x"]), first, mode="once").stream(asking()))[-1].text == "x"
    assert ReplayLM(first).complete(asking()).text == "x"
    with pytest.raises(ConfigurationError, match="'once', 'new' or 'append'"):
        RecordLM(unused, path, mode="anew")
