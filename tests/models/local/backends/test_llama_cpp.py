"""`LM("llama_cpp:FILE.gguf")` over llama-cpp-python, with a tiny Llama of random weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from model_servers import GGUF

from ferrule import LM, Message, Messages, Predict, ReAct, Request, tool
from ferrule.errors import ConfigurationError

needs_llama = pytest.mark.skipif(
    find_spec("llama_cpp") is None or find_spec("gguf") is None,
    reason="llama-cpp-python and gguf are not installed: pip install llama-cpp-python gguf",
)
HI = Request(Messages([Message("user", "hi")]))
CHANCE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    exec(GGUF, {"path": path})
    return f"llama_cpp:{path}"


@tool
def place(x: int, label: str = "") -> str:
    """Place."""
    return f"{label}{x}"


@needs_llama
def test_it_answers_streams_and_counts(name):
    lm = LM(name, max_tokens=20, seed=3, **CHANCE)
    whole = lm.complete(HI)
    *pieces, streamed = lm.stream(HI)
    assert "".join(each.text for each in pieces) == streamed.text == whole.text
    assert 0 < whole.usage.output_tokens <= 20
    assert lm.context_tokens() == 4096
    assert not lm.capabilities.native_tools


@needs_llama
def test_threads_take_turns_and_a_seed_holds(name):
    lm = LM(name, max_tokens=15, **CHANCE)
    asked = [Request(HI.messages, settings={"seed": seed}) for seed in (1, 2, 3)] * 3
    alone = [lm.complete(each).text for each in asked[:3]]
    with ThreadPoolExecutor(3) as pool:
        assert [each.text for each in pool.map(lm.complete, asked)] == alone * 3
    assert len(set(alone)) == 3


@needs_llama
def test_greedy_and_narrow_sampling_agree(name):
    lm = LM(name, max_tokens=10)
    best = lm("hi", temperature=0)
    assert best == lm("hi", temperature=1.0, top_k=1) == lm("hi", top_p=1e-9) == lm("hi", min_p=1.0)


@needs_llama
def test_typed_outputs_and_a_whole_agent_are_valid(name):
    lm = LM(name, max_tokens=700, thought_chars=20, seed=1, **CHANCE)
    assert isinstance(
        Predict("question -> answer: int, sure: bool")(question="?", lm=lm).answer,
        int,
    )
    agent = ReAct("question -> answer: int", [place], max_iters=3, enable_user_clarification=False)
    found = agent(question="?", lm=lm)
    assert all(not result.is_fault for step in found.trajectory.steps for result in step.results)


@needs_llama
def test_a_file_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="could not be loaded"):
        LM(f"llama_cpp:{tmp_path / 'none.gguf'}")


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed")
def test_without_the_package_the_error_names_it():
    with pytest.raises(ConfigurationError, match="pip install llama-cpp-python"):
        LM("llama_cpp:model.gguf")
