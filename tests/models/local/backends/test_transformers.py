"""`LM("local:FOLDER")` over transformers, with a tiny Llama of random weights: its answers are
chance, but not how they are made.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from tiny_llama import STRICT_TEMPLATE, needs_torch, save_tiny_llama

from ferrule import LM, Message, Messages, Request, tool
from ferrule.errors import ConfigurationError, ContextOverflowError
from ferrule.models.local.backends.backend import Sampling
from ferrule.values.conversation.exchange import Declarations

HI = Request(Messages([Message("user", "hi")]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@needs_torch
def test_it_answers_streams_and_counts(folder):
    lm = LM(f"local:{folder}", max_tokens=30, temperature=1.0, seed=3)
    whole = lm.complete(HI)
    *pieces, streamed = lm.stream(HI)
    assert (streamed.text, streamed.usage) == (whole.text, whole.usage)
    assert "".join(each.text for each in pieces) == whole.text
    assert 0 < whole.usage.output_tokens <= 30
    assert whole.model == lm.name
    assert lm.context_tokens() == 4096


@needs_torch
def test_a_seed_gives_the_same_answer_in_many_threads_at_once(folder):
    lm = LM(f"local:{folder}", max_tokens=40, temperature=1.0)
    asked = [Request(HI.messages, settings={"seed": seed}) for seed in (1, 2, 3)] * 4
    alone = [lm.complete(each).text for each in asked[:3]]
    with ThreadPoolExecutor(4) as pool:
        assert [each.text for each in pool.map(lm.complete, asked)] == alone * 4
    assert len(set(alone)) == 3


@needs_torch
def test_greedy_and_narrow_sampling_agree(folder):
    lm = LM(f"local:{folder}", max_tokens=20)
    best = lm("hi", temperature=0)
    assert (
        best
        == lm("hi", temperature=1.0, top_k=1, seed=1)
        == lm("hi", temperature=1e-4, seed=2)
        == lm("hi", top_p=1e-6, temperature=1.0)
    )
    assert best != lm("hi", temperature=0, repetition_penalty=50.0)


@needs_torch
def test_padded_rows_of_the_scores_are_never_tokens(tmp_path):
    lm = LM(
        f"local:{save_tiny_llama(tmp_path, padded=4000)}",
        max_tokens=200,
        temperature=1.0,
        seed=1,
    )
    assert lm.complete(HI).usage.output_tokens > 0
    backend = lm._backend
    tokens = list(
        backend.generate(
            backend.prompt([{"role": "user", "content": "hi"}], None, {}),
            Sampling(max_tokens=300, temperature=1.0, seed=1),
            None,
        ),
    )
    assert tokens
    assert max(tokens) < len(backend.tokenizer)


@needs_torch
def test_the_template_tells_whether_tools_are_declared(folder, tmp_path):
    @tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    lm = LM(f"local:{folder}", max_tokens=5)
    assert lm.capabilities.native_tools
    with_tools = lm.complete(Request(HI.messages, Declarations([add.declaration])))
    assert with_tools.usage.input_tokens > lm.complete(HI).usage.input_tokens
    plain = LM(f"local:{save_tiny_llama(tmp_path, template=None)}", max_tokens=5)
    assert not plain.capabilities.native_tools
    assert plain.complete(HI).usage.input_tokens == len("user: hi\n\nassistant:")


@needs_torch
def test_a_strict_template_gets_alternating_turns(tmp_path):
    lm = LM(f"local:{save_tiny_llama(tmp_path, template=STRICT_TEMPLATE)}", max_tokens=5)
    assert (
        lm.complete(
            Request(Messages([Message("user", "a"), Message("user", "b")])),
        ).usage.output_tokens
        >= 0
    )


@needs_torch
def test_a_long_prompt_is_an_overflow_and_an_answer_ends_with_the_window(tmp_path):
    lm = LM(f"local:{save_tiny_llama(tmp_path, window=64)}", temperature=1.0, seed=5)
    with pytest.raises(ContextOverflowError, match="holds 64"):
        lm("x" * 100)
    found = lm.complete(HI)
    assert found.usage.total_tokens <= 64


@needs_torch
def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="could not be loaded"):
        LM(f"local:{tmp_path}")


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_error_names_what_to_install():
    with pytest.raises(ConfigurationError, match="pip install torch transformers"):
        LM("local:some/model")
