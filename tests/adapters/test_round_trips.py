"""What an adapter writes for the outputs of a signature, it reads back equal, whatever their types
and values.
"""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from math import isnan
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.programs.predict import Predict
from ferrule.settings import context
from ferrule.testing.scripted import ScriptedLM
from ferrule.values.content.type import Reasoning
from ferrule.values.conversation.exchange import Response
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature

ADAPTERS = (ChatAdapter(), JSONAdapter(), XMLAdapter())
EVERY = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)


class Mood(Enum):
    GOOD = "good"
    NULL = "null"
    LONG = " two words\n"


class Mixed(Enum):
    ONE = 1
    TEXT = "1"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"
    NUMBER = "7"


class Inner(BaseModel):
    name: str = Field(alias="theName")
    count: int | None = None


class Place(BaseModel):
    title: str
    inner: Inner | None = None
    tags: list[str] = []
    since: date | None = None


PIECES = (
    "[[ ## answer ## ]]", "[[ ## note ## ]]", "[[ ## completed ## ]]", "[[##", "[\\[ ## answer", "[\\]", "[\\\\]", "[", "]", "`", "```", "```json\n",
    "</answer>", "<answer>", "<note>", "<\\/answer>", "</", "<", ">", "<![CDATA[", "]]>", "&lt;", "&amp;", "&", '"', "'", "{", "}", ",", ":", '{"a": 1}',
    "<!-- x -->", "<?x?>", "[1]", "null", "None", "true", "7", "-1.5", "good", "GOOD", "yes", "\n", "\r\n", " ", "\t", "\x00", "\x1b", "\x85", "\u2028", "\u00a0", "\ufeff",
    "\U0001f600", "\\", "\\u005b", "<<ferrule-part>>", "<</ferrule-part>>", ".", "*", "# x", "//", "word",
)  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=6).map("".join)
ANY = st.recursive(
    TEXT
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
INNER = st.builds(
    lambda name, count: Inner(theName=name, count=count),
    TEXT,
    st.none() | st.integers(),
)
PLACE = st.builds(
    Place,
    title=TEXT,
    inner=st.none() | INNER,
    tags=st.lists(TEXT, max_size=2),
    since=st.none() | st.dates(),
)
OBJECTS = st.dictionaries(TEXT, ANY, max_size=3)
FINITE = st.floats(allow_nan=False, allow_infinity=False)  # no other is an answer

TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (str, TEXT),
    "limited text": (Annotated[str, Field(max_length=99)], TEXT),
    "reasoning": (Reasoning, TEXT.map(Reasoning)),
    "reasoning or null": (Reasoning | None, st.none() | TEXT.map(Reasoning)),
    "text or null": (str | None, st.none() | TEXT),
    "integer": (int, st.integers()),
    "integer or null": (int | None, st.none() | st.integers()),
    "number": (float, FINITE),
    "integer or number": (int | float, st.integers() | FINITE),
    "boolean": (bool, st.booleans()),
    "anything": (Any, ANY),
    "list of texts": (list[str], st.lists(TEXT, max_size=3)),
    "list of texts or null": (list[str | None], st.lists(TEXT | st.none(), max_size=3)),
    "list": (list, st.lists(ANY, max_size=2)),  # pyright: ignore[reportUnknownArgumentType, reportMissingTypeArgument]
    "tuple": (tuple[int, str], st.tuples(st.integers(), TEXT)),
    "set": (set[int], st.sets(st.integers(), max_size=3)),
    "dict": (dict[str, Any], OBJECTS),
    "dict with numbers as keys": (dict[int, str], st.dictionaries(st.integers(), TEXT, max_size=2)),
    "model": (Place, PLACE),
    "model or null": (Place | None, PLACE | st.none()),
    "list of models": (list[Place], st.lists(PLACE, max_size=2)),
    "enum": (Mood, st.sampled_from(Mood)),
    "enum or null": (Mood | None, st.none() | st.sampled_from(Mood)),
    "enum of two kinds": (Mixed, st.sampled_from(Mixed)),
    "enum of integers": (Level, st.sampled_from(Level)),
    "enum of texts": (Word, st.sampled_from(Word)),
    "choices": (
        Literal["a", "b c", "null", "`x`", "1"],
        st.sampled_from(["a", "b c", "null", "`x`", "1"]),
    ),
    "choices of two kinds": (
        Literal["1", 1, "a", "null", " a"] | None,
        st.sampled_from(["1", 1, "a", "null", None, " a"]),
    ),
    "date": (date, st.dates()),
    "date and time": (datetime, st.datetimes()),
    "time": (time, st.times()),
    "duration": (timedelta, st.timedeltas()),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "UUID": (UUID, st.uuids()),
    "bytes": (bytes, TEXT.map(str.encode)),
    "text or integer": (str | int, TEXT | st.integers()),
    "text or boolean": (str | bool, TEXT | st.booleans()),
    "text or enum": (str | Mood, TEXT | st.sampled_from(Mood)),
    "text or list": (str | list[str], TEXT | st.lists(TEXT, max_size=2)),
    "text or dict or null": (str | dict[str, Any] | None, TEXT | st.none() | OBJECTS),
    "text or model": (str | Place, TEXT | PLACE),
}
ASKED = {
    kind: Signature(
        {
            "question": (str, InputField()),
            "history": (History, InputField(default_factory=History)),
            "answer": (annotation, OutputField()),
            "note": (str, OutputField()),
        },
    )
    for kind, (annotation, _) in TYPES.items()
}
OUTPUTS = st.sampled_from(list(TYPES)).flatmap(
    lambda kind: st.tuples(st.just(kind), TYPES[kind][1], TEXT),
)


def is_equal(kind: str, read: Any, written: Any) -> bool:
    if kind in {
        "text or integer",
        "text or boolean",
        "text or enum",
        "choices of two kinds",
    } and isinstance(read, str):
        # A type that takes the text of a number, a boolean or an enum, too, reads the text.
        written = (
            written.value
            if isinstance(written, Enum)
            else written
            if isinstance(written, str)
            else json.dumps(written)
        )
    if isinstance(written, float) and isnan(written):
        return isnan(read)
    return type(read) is type(written) and read == written


@EVERY
@given(outputs=OUTPUTS)
@example(outputs=("text", " code\n", "[\\]"))
@example(outputs=("text", "[\\]x[\\]", "[\\]"))
@example(outputs=("text or null", "null", "\n"))
@example(outputs=("reasoning or null", Reasoning("[\\][\\]"), ""))
@example(outputs=("text or list", "[\\]x[\\]", ""))
@example(outputs=("anything", "7", ""))
def test_a_written_answer_is_read_as_the_same_values(
    adapter: Adapter,
    outputs: tuple[str, Any, str],
) -> None:
    kind, answer, note = outputs
    text = adapter.format_assistant_message_content(ASKED[kind], {"answer": answer, "note": note})
    read = adapter.parse(ASKED[kind], text)
    assert is_equal(kind, read["answer"], answer)
    assert read["note"] == note
    assert type(read["note"]) is str


@EVERY
@given(outputs=OUTPUTS)
@example(outputs=("reasoning or null", Reasoning("[\\][\\]"), ""))
def test_demos_and_turns_of_a_history_are_answers_that_are_read_as_the_same_values(
    adapter: Adapter,
    outputs: tuple[str, Any, str],
) -> None:
    kind, answer, note = outputs
    turn = {"question": "q", "answer": answer, "note": note}
    messages = adapter.opening(
        ASKED[kind],
        {"question": "q", "history": History([turn])},
        demos=[turn],
    )
    answers = [message for message in messages if message.role == "assistant"]
    assert len(answers) == 2
    for message in answers:
        read = adapter.read(ASKED[kind], Response(message.text))
        assert is_equal(kind, read["answer"], answer)
        assert read["note"] == note


@EVERY
@given(outputs=OUTPUTS, size=st.integers(1, 9))
@example(outputs=("text", " code\n", "[\\]x[\\]"), size=1)
@example(outputs=("text", "x[\\]y[\\]", "[\\]x"), size=3)
def test_a_stream_of_a_written_answer_adds_up_to_the_same_texts(
    adapter: Adapter,
    outputs: tuple[str, Any, str],
    size: int,
) -> None:
    kind, answer, note = outputs
    text = adapter.format_assistant_message_content(ASKED[kind], {"answer": answer, "note": note})
    reader = adapter.reader(ASKED[kind])
    pieces = [
        *(piece for at in range(0, len(text), size) for piece in reader.feed(text[at : at + size])),
        *reader.finish(),
    ]
    assert "".join(piece for name, piece in pieces if name == "note") == note
    if isinstance(answer, str) and kind in {"text", "limited text"}:
        assert "".join(piece for name, piece in pieces if name == "answer") == answer


@EVERY
@pytest.mark.parametrize("kind", [str | date, date | str | None, Any])
def test_a_date_where_a_text_is_expected_too_is_written_without_quotes(
    adapter: Adapter,
    kind: Any,
) -> None:
    """They would be read as a part of the text, and a model would copy them from a demo."""
    asked = Signature({"question": (str, InputField()), "answer": (kind, OutputField())})
    text = adapter.format_assistant_message_content(asked, {"answer": date(2024, 2, 29)})
    assert adapter.parse(asked, text) == {"answer": "2024-02-29"}


@pytest.mark.parametrize(
    "adapter",
    [*ADAPTERS, None],
    ids=lambda adapter: "default" if adapter is None else type(adapter).__name__,
)
@given(outputs=OUTPUTS)
def test_a_program_returns_what_its_model_meant_and_tells_it_in_the_next_turn(
    adapter: Adapter | None,
    outputs: tuple[str, Any, str],
) -> None:
    kind, answer, note = outputs
    script = [
        {"outputs": {"answer": answer, "note": note}},
        {"outputs": {"answer": answer, "note": note}},
    ]
    with ScriptedLM(script) as lm, context(adapter=adapter, lm=lm):
        first = Predict(ASKED[kind])(question="q")
        turn = {"question": "q", "answer": first["answer"], "note": first.note}
        second = Predict(ASKED[kind])(question="q", history=History([turn]))
    for prediction in (first, second):
        assert is_equal(kind, prediction["answer"], answer)
        assert prediction.note == note
    [told] = [message for message in lm.requests[1].messages if message.role == "assistant"]
    assert told.text == first.messages[-1].text


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), XMLAdapter()],
    ids=lambda adapter: type(adapter).__name__,
)
@pytest.mark.parametrize(
    ("kind", "answer", "shown"),
    [
        ("text", "x", "x"),
        ("text", " x", "[\\] x[\\]"),
        ("text or null", "null", "[\\]null[\\]"),
        ("text or null", None, "null"),
        ("text or list", "[1", "[1"),
        ("choices of two kinds", "null", "[\\]null[\\]"),
        ("choices of two kinds", None, "null"),
        ("enum", Mood.NULL, "null"),
        ("enum or null", Mood.NULL, "[\\]null[\\]"),
    ],
)
def test_only_a_text_that_would_be_read_as_something_else_is_marked(
    adapter: Adapter,
    kind: str,
    answer: Any,
    shown: str,
) -> None:
    text = adapter.format_assistant_message_content(ASKED[kind], {"answer": answer, "note": "n"})
    around = (
        ("[[ ## answer ## ]]\n", "\n\n[[ ##")
        if isinstance(adapter, ChatAdapter)
        else ("<answer>\n", "\n</answer>")
    )
    assert f"{around[0]}{shown}{around[1]}" in text
    assert adapter.parse(ASKED[kind], text) == {"answer": answer, "note": "n"}
