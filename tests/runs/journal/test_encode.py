"""Entries as JSON: read back equal, refused by name where they cannot be."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import errors
from ferrule.approval.question import Decision
from ferrule.errors import (
    AdapterParseError,
    FerruleError,
    LMError,
    MaxTurnsReachedError,
    RateLimitError,
    RunError,
    StoreError,
    UnknownToolError,
)
from ferrule.runs.journal.encode import entry_text, error_form, read_entry, read_error
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.text_calls.drafts import CallFault
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.content.parts import Image, Text
from ferrule.values.conversation.exchange import Response, Usage

GOLDEN = Path(__file__).parents[1] / "golden" / "journal_1.jsonl"
ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FerruleError) and kind is not FerruleError
]
_FROM_A_MODEL: dict[str, Any] = {
    "message": "m",
    "provider": "p",
    "status": 429,
    "request_id": "r",
    "retry_after_s": 2.0,
}
_FROM_A_SERVER: dict[str, Any] = {
    "message": "m",
    "server": "s",
    "tool": "t",
    "phase": "call",
    "code": -32602,
    "may_have_run": False,
    "status": 503,
    "retry_after_s": 1.5,
    "data": {"a": [1]},
}
PROBLEMS = [("a", "is missing"), ("", "too many")]
MADE_OF: dict[str, dict[str, Any]] = {
    **{kind.__name__: _FROM_A_MODEL for kind in ERRORS if issubclass(kind, LMError)},
    **{kind.__name__: _FROM_A_SERVER for kind in ERRORS if issubclass(kind, errors.MCPError)},
    "InputError": {"message": "m", "problems": PROBLEMS},
    "ToolCallError": {
        "code": "c",
        "message": "m",
        "raw": {"a": None},
        "index": 2,
        "tool": "t",
        "reason": "r",
    },
    "AdapterParseError": {
        "adapter": "A",
        "text": "junk",
        "problems": PROBLEMS,
        "parsed": {"b": 1},
        "absent": ["a"],
        "code": "c",
        "raw": ["junk"],
    },
    "UnknownToolError": {"name": "ad", "names": ["add"]},
    "ToolArgumentsError": {"tool": "t", "problems": PROBLEMS, "expected": "t()"},
    "ToolTimeoutError": {"tool": "t", "timeout_s": 1.5, "abandoned": True},
    "ConfirmationRejected": {"message": "no", "confirmation_id": "c1"},
    "TooManyFaultsError": {"faults": ["one", "two"]},
    "MaxTurnsReachedError": {"max_turns": 3, "pending": [ToolCall(name="t", args={"a": 1})]},
    "LimitReachedError": {"name": "tokens", "limit": 0, "problem": "junk"},
    "ReplayMismatchError": {"at": "0", "recorded": "a", "found": "b", "is_read": True},
    "DecisionError": {"message": "late", "reason": "expired"},
}
FAULT = CallFault("invalid_tool_call_arguments", "no JSON", "{", 0)
CALL = ToolCall(
    name="add",
    args={"a": 1, "b": [None, "ü"]},
    id="c1",
    intention="to know",
    fault=FAULT,
    repairs=("quotes",),
)
ENTRIES = [
    Entry(
        "0",
        "model",
        "d0",
        Response(
            "hi",
            (CALL,),
            "hm",
            "tool_calls",
            usage=Usage(1, 2, 3, 1),
            model="m",
            cost=0.5,
            extra={"x": [1]},
        ),
    ),
    Entry("1.0", "begun", "add {}"),
    Entry("1.1", "begun", "pay {}", {"key": "k", "effect": "idempotent"}),
    Entry("1.0", "result", "add {}", ToolResult("add", "3", "c1")),
    Entry(
        "1.1",
        "result",
        "pay {}",
        ToolResult(
            "pay",
            (Text(text="see"), Image(data="QQ==")),
            "c2",
            is_error=True,
            is_fault=True,
        ),
    ),
    Entry("2.0", "decision", "confirm add {}", Decision("q", "edit", "why", {"a": 2})),
    Entry("3", "once", "clock", {"at": 7.5}),
    Entry("qa:1f#0/4", "limit", "d4", {"name": "steps", "limit": 3}),
]


def test_version_1_is_read_as_it_was_written() -> None:
    """The golden file pins the stored form: once released, it stays, and what reads it may change."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert [read_entry(line) for line in lines] == ENTRIES
    assert [entry_text(entry) for entry in ENTRIES] == lines


def test_what_only_this_process_can_hold_is_left_out() -> None:
    """`body`, `value` and `error` are the process's own."""
    response = read_entry(entry_text(Entry("0", "model", "d", Response("x", body=object()))))
    assert response.value == Response("x")
    result = ToolResult("add", "3", value=object(), error=ValueError("x"))
    assert read_entry(entry_text(Entry("0.0", "result", "d", result))).value == ToolResult(
        "add",
        "3",
    )


def test_a_models_failure_comes_back_as_its_class_with_what_the_provider_said() -> None:
    """Facts, no pickle; a program that caught it catches it again."""
    first = RateLimitError("slow down", provider="p", status=429, request_id="r", retry_after_s=2.0)
    again = read_entry(entry_text(Entry("0", "failure", "d", first))).value
    assert type(again) is RateLimitError
    assert (str(again), again.provider, again.status, again.retry_after_s, again.raw) == (
        str(first),
        "p",
        429,
        2.0,
        None,
    )
    assert error_form(again) == error_form(first)


def test_a_users_own_model_error_comes_back_as_the_nearest_class_of_ours() -> None:
    """Nothing is imported by a name that stands in a file."""

    class MineError(RateLimitError):
        pass

    assert type(read_error(error_form(MineError("x")))) is RateLimitError
    assert type(read_error(error_form(LMError("x")))) is LMError


@pytest.mark.parametrize("kind", ERRORS)
def test_each_error_of_ours_comes_back_by_its_class_with_its_attributes(kind: Any) -> None:
    """A process that loads a failed run handles its error as the one did in which it failed."""
    arguments = MADE_OF.get(kind.__name__)
    if arguments is None:
        first = kind("why")
    else:
        first = kind(**arguments)
    again = read_error(json.loads(json.dumps(error_form(first))))
    assert (type(again), str(again)) == (kind, str(first))
    assert vars(again) == vars(first)
    assert (again.code, again.is_retryable) == (first.code, first.is_retryable)


def test_what_json_cannot_hold_of_an_error_is_left_out() -> None:
    first = AdapterParseError("A", "x", [], signature=int, parsed={"a": object()}, raw=object())
    again: Any = read_error(error_form(first))
    assert (type(again), str(again)) == (AdapterParseError, str(first))
    assert (again.signature, again.parsed, again.raw) == (None, {}, "x")


def test_other_errors_come_back_as_an_error_that_names_them() -> None:
    """Also those that have the name of a class of ours, and those that ours cannot be made of."""

    class StoreError(Exception):
        pass

    class MineError(FerruleError):
        pass

    class LeftError(UnknownToolError):
        def __init__(self) -> None:
            Exception.__init__(self, "left")

    unwritable = MaxTurnsReachedError(3, [ToolCall(name="a", args={"x": math.nan})])
    for error in (KeyError("lost"), StoreError("mine"), MineError("mine"), LeftError(), unwritable):
        again = read_error(error_form(error))
        assert (type(again), str(again)) == (RunError, f"{type(error).__name__}: {error}")


def test_a_value_that_json_would_change_is_refused_when_it_is_written() -> None:
    """Live and replayed runs see the same value."""
    with pytest.raises(RunError, match="must be JSON data; at 3 found"):
        entry_text(Entry("3", "once", "clock", (1, 2)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(
            pickle.dumps({"v": 1}),
            "not an entry of a journal, which is a JSON object",
            id="a pickle",
        ),
        pytest.param("{", "not an entry of a journal, which is JSON text", id="half a line"),
        pytest.param("[1]", "which is a JSON object", id="a list"),
        pytest.param(
            '{"v":2}',
            "has version 2; this ferrule reads version 1",
            id="a newer version",
        ),
        pytest.param(
            '{"v":1,"slot":"0"}',
            "An entry of a journal, .* cannot be read",
            id="fields missing",
        ),
        pytest.param(
            '{"v":1,"slot":"0","kind":"once","digest":null,"value":1}',
            "`digest` is None, not str",
            id="no digest",
        ),
        pytest.param(
            '{"v":1,"slot":"0","kind":"model","digest":"d","value":[]}',
            "An entry of a journal, .* cannot be read",
            id="another value",
        ),
        pytest.param(
            '{"v":1,"slot":"0","kind":"model","digest":"d","value":{"text":"","tool_calls":[{"name":"a","args":[1],"id":null}],"usage":[0,0,0,0]}}',
            "a call is {'name': 'a', 'args': \\[1\\]",
            id="a call whose arguments are a list",
        ),
        pytest.param(
            '{"v":1,"slot":"0.0","kind":"result","digest":"d","value":{"name":"a","content":"","change":{"removed":[3],"added":{}}}}',
            "the change of tools is {'removed': \\[3\\]",
            id="a change of tools without names",
        ),
    ],
)
def test_what_is_no_entry_is_refused_by_name(line: str, said: str) -> None:
    """A pickle placed in the row is refused, and so is a newer version."""
    with pytest.raises(StoreError, match=said):
        read_entry(line)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.text(min_size=1, max_size=8)
OPTIONAL = st.none() | st.text(max_size=8)
# Structs are built by functions: `builds` would read the annotations of a class, and these name
# late imports.
CALLS = st.builds(
    ToolCall,
    name=NAMES,
    args=st.dictionaries(NAMES, JSON, max_size=3),
    id=OPTIONAL,
    intention=OPTIONAL,
)
RESPONSES = st.builds(
    lambda *fields, **named: Response(*fields, **named),
    text=OPTIONAL,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    reasoning=OPTIONAL,
    usage=st.builds(Usage, *[st.integers(0, 10**9)] * 4),
    extra=st.none() | st.dictionaries(NAMES, JSON, max_size=2),
)
RESULTS = st.builds(
    lambda *fields, **named: ToolResult(*fields, **named),
    NAMES,
    st.text() | st.lists(st.builds(Text, text=st.text())).map(tuple),
    OPTIONAL,
    st.booleans(),
    st.booleans(),
)
DECISIONS = st.builds(
    lambda *fields, **named: Decision(*fields, **named),
    NAMES,
    st.sampled_from(["approve", "deny", "reply"]),
    st.text(),
    at=st.none() | st.floats(0, 1e12),
)
STARTS = st.none() | st.dictionaries(st.sampled_from(["effect", "key"]), st.text())
VALUES = {
    "model": RESPONSES,
    "begun": STARTS,
    "result": RESULTS,
    "decision": DECISIONS,
    "once": JSON,
}
PLACES = st.from_regex(r"(?:[a-z]{1,3}#[0-9]/){0,2}[0-9]{1,2}(?:\.[0-9])?", fullmatch=True)


def entries_at(slots: st.SearchStrategy[str]) -> st.SearchStrategy[Entry]:
    return st.sampled_from(sorted(VALUES)).flatmap(
        lambda kind: st.builds(
            lambda *fields: Entry(*fields), slots, st.just(kind), st.text(), VALUES[kind]
        ),
    )


def test_sets_in_the_arguments_of_a_model_in_python_are_written_in_order() -> None:
    """In every process: so a journal is the same, whatever the hashes of its texts are."""
    names = {f"n{i}" for i in range(20)}
    calls = (
        ToolCall(name="t", args={"tags": names}),
        ToolCall(name="t", args={"deep": [{"tags": names}]}),
    )
    for answer in (
        *[Response(tool_calls=(call,)) for call in calls],
        Response(extra={"p": names}),
        Response(others=(Response("x", calls),)),
    ):
        assert str(sorted(names)).replace("'", '"').replace(" ", "") in entry_text(
            Entry("0", "model", "d", answer),
        )


@given(entries_at(st.text(max_size=9)))
def test_any_entry_comes_back_equal(entry: Entry) -> None:
    """The round trip is the identity, lone surrogates and all."""
    assert read_entry(entry_text(entry)) == entry


@given(st.lists(entries_at(PLACES), max_size=6, unique_by=lambda entry: entry.slot))
def test_any_journal_comes_back_equal_and_replays_equal(entries: list[Entry]) -> None:
    """Each answer is taken at its place."""
    again = Journal([read_entry(entry_text(entry)) for entry in entries])
    assert again.entries == entries
    again.rewind()
    for entry in entries:
        if entry.kind != "begun":
            assert again.take(entry.slot, entry.kind, entry.digest) == entry
