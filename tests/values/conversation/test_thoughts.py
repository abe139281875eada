"""Thoughts in the text of an answer: found at its head, whole or streamed, and nowhere else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.message import Messages
from ferrule.values.conversation.thoughts import ThoughtSplitter, split_thoughts
from ferrule.values.signatures.signature import Signature

HARMONY = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>Paris."
FOUND = {
    "think": "<think>\nLet me see.\n</think>\n\nParis.",
    "on one line": "<think>Let me see.</think>Paris.",
    "behind blanks": "\n <think>Let me see.</think> Paris.",
    "thinking": "<thinking>Let me see.</thinking>\nParis.",
    "thought": "<thought>\nLet me see.\n</thought>\nParis.",
    "reasoning": "<reasoning>Let me see.</reasoning>\nParis.",
    "in capitals": "<THINK>Let me see.</THINK>\nParis.",
    "Magistral": "[THINK]Let me see.[/THINK]Paris.",
    "Kimi": "◁think▷Let me see.◁/think▷Paris.",
    "gpt-oss": HARMONY,
    "gpt-oss, from the start": f"<|start|>assistant{HARMONY}",
    "unopened": "Let me see.\n</think>\n\nParis.",
    "unopened on one line": "Let me see.</think>Paris.",
    "unopened, between blanks": "Let me see. </think> Paris.",
    "unopened, Kimi": "Let me see.◁/think▷Paris.",
    "a block without words before it": "<think>\n\n</think>\n\n<think>Let me see.</think>Paris.",
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_thoughts_at_the_head_are_reasoning(text: str) -> None:
    assert split_thoughts(Response(text)) == Response("Paris.", reasoning="Let me see.")


TEXTS = {
    "in the middle": "Paris. <think>Let me see.</think> Yes.",
    "in the middle, on lines": "Paris.\n<think>\nLet me see.\n</think>\nYes.",
    "in code": "Write `<think>` and then `</think>`, as in `a</think>`.",
    "in a fence": "Look:\n```html\n<b>\n</think>\n```\nThat is it.",
    "in a fence with its opening tag": "```\n<think>a</think>\n```",
    "mentioned": "The tag </think> ends the thoughts, and so does </thinking>.",
    "quoted": 'He wrote "</think>" there.',
    "in JSON": '{"answer": "a</think>\\n"}',
    "below a marker": "[[ ## answer ## ]]\na\n</think>\nb",
    "another tag": "<thinker>a</thinker>b",
    "a tag of another kind": "<answer>a</think>b</answer>",
    "nothing": "Paris.",
    "blanks": "  \n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_other_tags_stay_text(text: str) -> None:
    response = Response(text)
    assert split_thoughts(response) is response


def test_the_thoughts_of_an_answer_that_was_cut_off_are_reasoning() -> None:
    assert split_thoughts(Response("<think>\nLet me", finish_reason="length")) == Response(
        None,
        reasoning="Let me",
        finish_reason="length",
    )
    assert split_thoughts(Response("<think>a</thi", finish_reason="length")).reasoning == "a</thi"


def test_a_quoted_closing_tag_does_not_end_the_thoughts() -> None:
    assert (
        split_thoughts(Response("<think>It ends with `</think>`, so I stop.</think>Yes.")).text
        == "Yes."
    )


def test_an_empty_block_leaves_no_reasoning() -> None:
    assert split_thoughts(Response("<think>\n\n</think>\n\nParis.")) == Response("Paris.")
    assert split_thoughts(Response("</think>\n\nParis.")) == Response("Paris.")


def test_blocks_follow_the_reasoning_of_the_provider() -> None:
    text = "<think>b</think>\n<think>c</think>d"
    assert split_thoughts(Response(text, reasoning="a")) == Response("d", reasoning="a\n\nb\n\nc")
    unopened = Response("b\n</think>\nc", reasoning="a")  # the provider tells thoughts apart itself
    assert split_thoughts(unopened) is unopened


def test_a_tag_that_the_adapter_writes_is_a_field() -> None:
    """`ChainOfThought` with `XMLAdapter` asks for `<reasoning>`."""
    signature = Signature("q -> reasoning, answer")
    answer = Response("<reasoning>a</reasoning>\n<answer>b</answer>")
    assert split_thoughts(answer, XMLAdapter().request(signature, Messages())) is answer
    assert split_thoughts(answer, ChatAdapter().request(signature, Messages())).reasoning == "a"
    assert split_thoughts(answer, Request(Messages())).reasoning == "a"


def test_a_stream_that_tells_its_reasoning_apart_has_no_thoughts_without_an_opening_tag() -> None:
    splitter = ThoughtSplitter(None)
    begun = splitter.feed("It is so. ")
    splitter.follow_reasoning()
    rest = [*splitter.feed("x\n</think>\n\nParis."), *splitter.finish()]
    assert "".join(text for _, text in [*begun, *rest]) == "It is so. x\n</think>\n\nParis."
    assert {kind for kind, _ in [*begun, *rest]} == {"text"}


def test_a_split_answer_is_returned_unchanged() -> None:
    for text in FOUND.values():
        once = split_thoughts(Response(text))
        assert split_thoughts(once) is once


PARTS = [
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<thought>",
    "</thought>",
    "◁/think▷",
    "`",
    "```",
    "\n",
    " ",
    "a.",
    "b",
    "{",
    '"',
    "<",
    "</thi",
]
MIXED = st.lists(
    st.sampled_from(
        [*PARTS, "<|channel|>analysis<|message|>", "<|end|>", "<|channel|>final<|message|>"],
    ),
    max_size=14,
).map("".join)


def streamed(text: str, cuts: list[int]) -> tuple[str, str]:
    splitter = ThoughtSplitter()
    thoughts, texts = "", ""
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [piece for start, end in pairwise(ends) for piece in splitter.feed(text[start:end])]
    for kind, piece in (*pieces, *splitter.finish()):
        if kind == "closed":
            thoughts, texts = texts.strip(), ""
        elif kind == "thought":
            thoughts += piece
        else:
            texts += piece
    return texts, thoughts


@given(MIXED, st.lists(st.integers(0, 80), max_size=12))
def test_a_streamed_answer_is_split_as_a_whole_one(text: str, cuts: list[int]) -> None:
    whole = split_thoughts(Response(text))
    assert streamed(text, cuts) == (whole.text or "", whole.reasoning or "")
    assert streamed(text, list(range(len(text)))) == (whole.text or "", whole.reasoning or "")


@given(MIXED)
def test_no_word_is_lost(text: str) -> None:
    whole = split_thoughts(Response(text))
    found = f"{whole.reasoning or ''}{whole.text or ''}"
    assert [found.count(each) for each in '{"`'] == [text.count(each) for each in '{"`']


@given(
    st.text(max_size=40),
    st.text(max_size=40),
    st.sampled_from([("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷")]),
)
def test_any_words_are_found_between_tags(thought: str, text: str, tags: tuple[str, str]) -> None:
    if any(mark in thought + text for mark in "<[◁`"):
        return
    found = split_thoughts(Response(f"{tags[0]}{thought}{tags[1]}{text}"))
    assert (found.reasoning or "", found.text or "") == (thought.strip(), text.lstrip())


@pytest.mark.parametrize("head", ["", "<think>a</think>"])
def test_a_long_stream_of_blanks_before_the_answer_is_looked_at_once(head: str) -> None:
    """A megabyte of them, piece by piece, took minutes."""
    splitter = ThoughtSplitter()
    pieces = [
        *splitter.feed(head),
        *(each for _ in range(300_000) for each in splitter.feed("\r\n")),
        *splitter.feed("So."),
        *splitter.finish(),
    ]
    assert "".join(text for kind, text in pieces if kind == "text").endswith("So.")
    assert [text for kind, text in pieces if kind == "thought"] == (["a"] if head else [])
