"""The claims of docs/how-to/models/adapters.md.

What its tables say is proved in tests/adapters/test_overrides.py.
"""

from __future__ import annotations

import pytest

from ferrule import ChatAdapter, JSONAdapter, Signature, XMLAdapter


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/models/adapters.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/adapters.md") == []


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), XMLAdapter()],
    ids=lambda adapter: type(adapter).__name__,
)
def test_numbers_and_booleans_beside_text_are_read_as_text_and_nothing_else_is(adapter) -> None:
    def again(type_: str, value: object) -> object:
        signature = Signature(f"question -> answer: {type_}")
        return adapter.parse(
            signature,
            adapter.format_assistant_message_content(signature, {"answer": value}),
        )["answer"]

    assert [again("int | str", value) for value in (7, "7")] == ["7", "7"]
    assert [again("bool | str", value) for value in (True, "true")] == ["true", "true"]
    assert [again("str | None", value) for value in (None, "null", " a ")] == [None, "null", " a "]
    assert [again("list[int] | str", value) for value in ([1], "[1]")] == [[1], "[1]"]


def test_json_keeps_numbers_beside_text() -> None:
    signature, adapter = Signature("question -> answer: int | str"), JSONAdapter()
    texts = [
        adapter.format_assistant_message_content(signature, {"answer": value}) for value in (7, "7")
    ]
    assert [adapter.parse(signature, text)["answer"] for text in texts] == [7, "7"]
