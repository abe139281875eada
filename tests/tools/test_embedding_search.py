"""`Toolbox(search="embedding")` over scripted vectors: what is embedded, when, and what is found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ferrule import ReAct, Tool, Toolbox, context
from ferrule.embedded import engine
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM
from ferrule.tools import embedding_search
from ferrule.tools.shelf import Shelf

MEANINGS = ("money", "bill", "invoice"), ("weather", "rain", "sunny"), ("song", "music", "melody")


class Engine:
    """A vector has a number for each meaning, and one that all texts share."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def embed(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(list(texts))
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        shared = 9.0 if text.startswith("I want to ") else 5.0
        return [shared, *(float(any(word in text for word in words)) for words in MEANINGS)]

    @property
    def texts(self) -> list[str]:
        return [text for batch in self.batches for text in batch]


@pytest.fixture
def scripted(monkeypatch):
    made = Engine()
    monkeypatch.setattr(embedding_search, "engine_with", lambda weights: made)
    return made


def tool(name: str, description: str) -> Tool:
    return Tool(lambda: name, name, description)


PAY = tool("pay", "Pay an invoice.")
FORECAST = tool("forecast", "Tell the weather.")
PLAY = tool("play", "Play the song.")


def names(shelf: Shelf | None, query: str, limit: int = 5) -> list[str]:
    assert shelf is not None
    return [found.name for found in shelf.search(query, limit)]


def test_a_tool_is_found_by_its_meaning(scripted):
    shelf = Toolbox([PAY, FORECAST, PLAY], search="embedding").shelf
    assert names(shelf, "settle this bill", 1) == ["pay"]
    assert names(shelf, "some rain", 1) == ["forecast"]
    assert names(shelf, "some melody", 1) == ["play"]


def test_words_count_too(scripted):
    """Where no meaning is known, the words of the query decide."""
    odd = [tool(f"tool_{letter}", f"Do {letter}.") for letter in ("alpha", "beta", "gamma")]
    assert names(Toolbox(odd, search="embedding").shelf, "gamma", 1) == ["tool_gamma"]


def test_tools_are_embedded_at_the_first_search_and_once(scripted):
    shelf = Toolbox([PAY, FORECAST], search="embedding").shelf
    assert scripted.texts == []
    names(shelf, "rain")
    tools = ["pay: Pay an invoice.", "forecast: Tell the weather."]
    assert scripted.texts[:2] == tools
    before = len(scripted.texts)
    names(shelf, "bill")
    assert scripted.texts[before:] == ["I want to bill"]


def test_only_new_tools_are_embedded_when_the_tools_are_replaced(scripted):
    shelf = Shelf([PAY, FORECAST], "embedding")
    names(shelf, "rain")
    before = len(scripted.texts)
    shelf.replace([PAY, FORECAST, PLAY])
    assert names(shelf, "melody", 1) == ["play"]
    described = [text for text in scripted.texts[before:] if not text.startswith("I want to")]
    assert described == ["play: Play the song."]


def test_many_tools_are_embedded_in_batches(scripted):
    """Between two batches, requests to the model have their turn."""
    shelf = Shelf([tool(f"tool_{index}", "A tool.") for index in range(200)], "embedding")
    names(shelf, "tool")
    assert max(map(len, scripted.batches)) == 16
    assert len(scripted.texts) < 300  # not each tool twice


def test_threads_wait_for_one_of_them_to_embed_the_tools(scripted):
    shelf = Shelf([PAY, FORECAST, PLAY], "embedding")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: names(shelf, "melody", 1), range(8)))
    assert found == [["play"]] * 8
    assert scripted.texts.count("play: Play the song.") == 1


def test_one_tool_is_found_whatever_is_asked(scripted):
    assert names(Shelf([PAY], "embedding"), "melody") == ["pay"]
    assert Shelf([], "embedding").search("melody", 5) == []


def test_an_agent_loads_what_its_search_finds(scripted):
    script = [
        {"name": "search_tools", "args": {"query": "settle this bill", "limit": 1}},
        {"name": "pay", "args": {}},
        {"name": "finish", "args": {"answer": "Paid."}},
    ]
    agent = ReAct("task -> answer", Toolbox([PAY, FORECAST, PLAY], search="embedding"))
    with context(lm=ScriptedLM(script)):
        prediction = agent(task="Settle this bill.")
    assert prediction.trajectory["observation_1"] == "pay"


def test_without_the_extra_the_toolbox_says_what_to_install(monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"ferrule\[embedded\]"):
        Toolbox([PAY], search="embedding")
