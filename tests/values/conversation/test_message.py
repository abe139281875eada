"""Messages: rendered once, chained into a digest that names them all."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import string
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ferrule.encoding.encode import json_bytes
from ferrule.values.calls.call import CallFault, ToolCall, ToolResult
from ferrule.values.content.parts import File, Image, Text
from ferrule.values.conversation.message import (
    Message,
    Messages,
    openai_message,
    safe_id,
    safe_name,
    sent_message,
    tool_message,
)

texts = st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(
    ["", "a", '"', "\\", '{"role":"user"}'],
)
parts = st.builds(Text, text=texts) | st.builds(
    Image,
    url=st.sampled_from(["https://a", "https://b"]),
)
contents = texts | st.lists(parts, min_size=1, max_size=2).map(tuple)
calls = st.builds(
    ToolCall,
    name=st.sampled_from("fg"),
    args=st.dictionaries(texts, st.integers(), max_size=1),
    id=st.sampled_from(["1", "2"]),
)
messages = st.builds(
    lambda *fields, **named: Message(*fields, **named),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    contents,
    st.lists(calls, max_size=2).map(tuple),
    st.none() | st.sampled_from(["1", "2"]),
    is_error=st.booleans(),
    reasoning=st.sampled_from(["", "hm"]),
    extra=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=1),
)


def test_messages_render_as_openai_writes_them():
    """Architecture: one canonical form, OpenAI's."""
    call = ToolCall(name="add", args={"a": 1}, id="c1", intention="why")
    shapes = [
        (Message("user", "hi ü"), {"role": "user", "content": "hi ü"}),
        (
            Message("assistant", "", (call,)),
            {"role": "assistant", "content": None, "tool_calls": [call.format()]},
        ),
        (
            Message("assistant", "see", (call,)),
            {"role": "assistant", "content": "see", "tool_calls": [call.format()]},
        ),
        (Message("assistant", ""), {"role": "assistant", "content": ""}),
        (
            Message("tool", "2", tool_call_id="c1", name="add"),
            {"role": "tool", "content": "2", "tool_call_id": "c1"},
        ),
        (
            Message("user", (Text(text="see"), Image(url="https://x/y"))),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "https://x/y"}},
                ],
            },
        ),
    ]
    for message, shape in shapes:
        assert openai_message(message) == shape
        assert json.loads(message.json) == shape


def test_a_call_with_a_fault_is_sent_back_as_the_model_wrote_it():
    """The raw text is kept, and so the model sees its own mistake."""
    call = ToolCall(
        name="add",
        id="c1",
        fault=CallFault("invalid_tool_call_arguments", "no JSON", "{bad"),
    )
    [sent] = json.loads(Message("assistant", "", (call,)).json)["tool_calls"]
    assert sent["function"]["arguments"] == "{bad"


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("", "unnamed"),
        ("get weather!", "get_weather_"),
        ("add\n", "add_"),
        ("é\ud800", "__"),
        ("x" * 65, "x" * 64),
        ("a-B_9", "a-B_9"),
    ],
    ids=["none", "blank", "line_end", "beyond_ascii", "long", "good"],
)
@pytest.mark.parametrize("text", ["hi", "\ud800"], ids=["quick", "careful"])
def test_a_call_goes_back_under_a_name_that_providers_take(name, sent, text):
    """One refused name has the whole request refused (OpenAI: `^[a-zA-Z0-9_-]+$`, at most 64)."""
    message = Message("assistant", text, (ToolCall(name=name, id="c1"),))
    [call] = json.loads(message.json)["tool_calls"]
    assert call["function"]["name"] == sent
    assert message.tool_calls[0].name == name


@given(
    st.none() | texts | st.text(max_size=90),
    st.none() | texts | st.text(max_size=90),
    st.sampled_from([None, 40, 64]),
)
def test_sent_ids_are_short_of_safe_signs_and_stay_different(one, other, longest):
    """A conversation may have begun at another provider.

    Of none and of nothing there is no difference.
    """
    for each in (one, other):
        assert set(safe_id(each, longest)) <= set(string.ascii_letters + string.digits + "_-")
        assert 0 < len(safe_id(each, longest)) <= (longest or 99)
    assert (safe_id(one, longest) == safe_id(other, longest)) == ((one or "") == (other or ""))


@given(st.from_regex(r"[a-zA-Z0-9_-]{1,40}", fullmatch=True))
def test_what_is_safe_is_sent_as_it_is(text):
    assert safe_id(text, 40) == safe_id(text) == safe_name(text) == text


def test_a_result_is_handed_back_as_a_tool_message():
    """Results are recorded as messages."""
    result = ToolResult("add", "no", "c1", is_error=True, value=1)
    assert tool_message(result) == Message(
        "tool",
        "no",
        tool_call_id="c1",
        name="add",
        is_error=True,
    )


def test_a_message_is_rendered_once_for_each_wire():
    """Rendered once and kept."""
    message = Message("user", "hi")
    asked = []

    def render(each: Message) -> bytes:
        asked.append(each)
        return b"<hi>"

    assert message.rendered("xml", render) == message.rendered("xml", render) == b"<hi>"
    assert asked == [message]
    assert message.json is message.json
    assert message.rendered("openai", render) == message.json


def test_what_was_rendered_is_no_part_of_the_value():
    message, other = Message("user", "hi"), Message("user", "hi")
    assert message.json
    assert message == other
    assert hash(message) == hash(other)
    assert repr(message) == repr(other)


def test_messages_have_their_text():
    assert Message("user", "hi").text == "hi"
    assert Message("user", (Text(text="a"), Text(text="b"))).text == "a\nb"


def test_lone_surrogates_render():
    """A model or a tool may send half a character; the next request must still be JSON."""
    assert json.loads(Message("user", "a\ud800").json) == {"role": "user", "content": "a\ud800"}


@given(
    st.lists(messages, min_size=1, max_size=4),
    st.lists(messages, max_size=4),
    messages,
    st.data(),
)
def test_digests_are_equal_exactly_where_conversations_are(one, other, instead, data):
    """What two digests agree on, every wire would send alike."""
    at = data.draw(st.integers(0, len(one) - 1))
    for another in (
        other,
        [*one[:at], instead, *one[at + 1 :]],
        [*one[:at], *one[at + 1 :]],
        copy.deepcopy(one),
    ):
        assert (Messages(one).digest == Messages(another).digest) == (one == another)


@pytest.mark.parametrize(
    "changed",
    [
        Message("user", "b"),
        Message("system", "a"),
        Message("user", (Text(text="a"),)),
        Message("user", "a", is_error=True),
        Message("user", "a", reasoning="b"),
        Message("user", "a", extra={"anthropic": {"signature": "x"}}),
        Message("user", "a", extra={"anthropic": {"signature": "y"}}),
        Message("user", "a", tool_call_id="1"),
        Message("user", (File(url="https://x/y"),)),
    ],
    ids=range(9),
)
def test_each_thing_that_some_wire_sends_changes_the_digest(changed):
    """OpenAI's form has no `is_error`, and other wires send what their models thought."""
    others = [Message("user", "a"), Message("user", "a", extra={"anthropic": {"signature": "z"}})]
    assert len({Messages([each]).digest for each in (changed, *others)}) == 3


def test_where_one_message_ends_and_the_next_begins_changes_the_digest():
    """Chained, not joined."""
    a, b = Message("user", "a"), Message("user", "b")
    digests = [Messages(each).digest for each in ([], [a], [b], [a, b], [b, a], [a, a], [a, b, a])]
    assert len(set(digests)) == len(digests)
    assert digests[0] == b""
    assert {len(each) for each in digests[1:]} == {32}


def test_a_digest_does_not_depend_on_when_it_was_asked_for():
    """Forks before and after, on the shorter or the longer view first."""
    a, b, c = (Message("user", text) for text in "abc")
    start = Messages([a])
    longer = start.then(b)
    fork = start.then(c)
    expected = [Messages([a, b]).digest, Messages([a, c]).digest, Messages([a]).digest]
    assert [longer.digest, fork.digest, start.digest] == expected
    again = start.then(b)
    assert again.digest == expected[0]
    assert again.then(c).digest == longer.then(c).digest == Messages([a, b, c]).digest


def with_media(messages: list[Message]) -> list[bytes]:
    """A form that puts something behind the results of a turn."""
    pieces: list[bytes] = []
    behind: list[bytes] = []
    for each in messages:
        if each.role != "tool":
            pieces += behind
            behind = []
        pieces.append(each.text.encode())
        behind += [b"of " + each.text.encode()] if each.role == "tool" else []
    return pieces + behind


class MessagesAgainstFreshOnes(RuleBasedStateMachine):
    """Views grow, fork and are asked in any order; each digest, and each form for a request, is
    that of a conversation made anew.
    """

    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Messages] = []

    @rule(target=views, texts=st.lists(st.sampled_from("ab"), max_size=2))
    def start(self, texts):
        self.made.append(Messages(Message("user", text) for text in texts))
        return self.made[-1]

    @rule(
        target=views,
        view=views,
        texts=st.lists(st.sampled_from("ab"), max_size=2),
        role=st.sampled_from(["user", "tool"]),
    )
    def go_on(self, view, texts, role):
        self.made.append(view.then(*(Message(role, text) for text in texts)))
        return self.made[-1]

    @rule(view=views, wire=st.sampled_from("xy"))
    def send(self, view, wire):
        assert view.joined(wire, with_media) == b",".join(with_media(list(view)))

    @rule(view=views)
    def ask(self, view):
        assert view.digest == Messages(list(view)).digest

    @rule(
        target=views,
        view=views,
        again=st.sampled_from(
            [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
        ),
    )
    def copied(self, view, again):
        twin = again(view)
        assert twin == view
        assert type(twin) is Messages
        assert twin.digest == Messages(list(view)).digest
        assert twin.joined("x", with_media) == view.joined("x", with_media)
        return twin

    @invariant()
    def none_holds_a_wrong_digest(self):
        for each in self.made:
            assert each._digests[: len(each)] == digests(each)[: len(each._digests)]


def digests(view: Messages) -> list[bytes]:
    return [Messages(list(view)[: i + 1]).digest for i in range(len(view))]


TestMessagesAgainstFreshOnes = MessagesAgainstFreshOnes.TestCase
TestMessagesAgainstFreshOnes.settings = settings(stateful_step_count=20)


def test_each_message_is_hashed_once_however_long_the_conversation(monkeypatch):
    """The digest costs the same at the thousandth step as at the first."""
    hashed = []
    monkeypatch.setattr(
        "ferrule.values.conversation.message.sha256",
        lambda data, real=hashlib.sha256: hashed.append(data) or real(data),
    )
    log = Messages()
    for i in range(1000):
        log = log.then(Message("user", str(i)))
        assert log.digest
    assert len(hashed) == 1000
    assert log.then(Message("user", "end")).digest
    assert len(hashed) == 1001
    assert log.then(Message("user", "another end")).digest
    assert len(hashed) == 1002


def test_a_request_renders_only_the_messages_that_are_new():
    """Nor does it join those of the request before again."""
    rendered: list[int] = []

    def render(messages: list[Message]) -> list[bytes]:
        rendered.append(len(messages))
        return with_media(messages)

    log = Messages([Message("system", "s"), Message("user", "q")])
    for _ in range(3):
        assert log.joined("x", render) == log.joined("x", render)
        log = log.then(Message("assistant", "a"), Message("tool", "t"))
    log.joined("x", render)
    assert rendered == [2, 2, 2, 2]
    log.then(Message("tool", "t")).joined("x", render)
    assert rendered[4:] == [9]


def test_a_long_conversation_is_not_kept_joined():
    """Each branch of it would keep a copy of the whole."""
    long = Messages([Message("user", "x" * 70_000)])
    assert long.joined("x", with_media) == long.joined("x", with_media) == b"x" * 70_000
    assert not long._joined


@pytest.mark.usefixtures("busy_switching")
def test_a_thread_may_send_a_conversation_while_another_branches_off():
    """ "dictionary changed size during iteration" ended one of two runs that share the beginning of
    a conversation.
    """
    wires = [str(i) for i in range(200)]
    for _ in range(20):
        base = Messages([Message("user", "q")])
        base.then(Message("user", "x"))
        sends = threading.Thread(
            target=lambda base=base: [base.joined(wire, with_media) for wire in wires],
        )
        sends.start()
        while sends.is_alive():
            assert base.then(Message("user", "y")).joined("0", with_media) == b"q,y"
        sends.join()


@pytest.mark.usefixtures("busy_switching")
def test_threads_that_ask_for_digests_of_shared_messages_all_get_the_right_ones():
    """Two runs that share the beginning of a conversation are digested at the same time."""
    for _ in range(30):
        log = Messages()
        views = [log := log.then(Message("user", str(i))) for i in range(30)]
        meet = threading.Barrier(4)
        found: list[list[bytes]] = []

        def ask(views=views, meet=meet, found=found) -> None:
            meet.wait()
            found.append([view.digest for view in views])

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [digests(log)] * 4


def test_two_threads_at_one_message_write_its_digest_once(monkeypatch):
    """The interleaving that would put a digest in twice, and so every later one in the wrong place."""
    views = [Messages([Message("user", text) for text in "abc"])]
    views.append(views[0].then(Message("user", "d")))
    real = hashlib.sha256

    def overtaken(data: bytes) -> object:
        monkeypatch.setattr("ferrule.values.conversation.message.sha256", real)
        assert views[1].digest  # another thread does all of it meanwhile
        return real(data)

    monkeypatch.setattr("ferrule.values.conversation.message.sha256", overtaken)
    assert views[0].digest == Messages(list(views[0])).digest
    longer = views[1].then(Message("user", "e"))
    assert longer.digest == Messages(list(longer)).digest


@given(
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text() | st.just("\ud800"),
    st.lists(
        st.builds(
            ToolCall,
            name=st.text(min_size=1),
            args=st.dictionaries(st.text(), st.integers() | st.text()),
            id=st.none() | st.text(),
        ),
    ),
    st.none() | st.text(),
)
def test_the_bytes_of_a_message_are_its_openai_form(role, content, calls, call_id):
    """Put together piece by piece for speed, and the same as the whole form written at once."""
    message = Message(role, content, tuple(calls), tool_call_id=call_id)
    assert message.json == json_bytes(sent_message(message))
