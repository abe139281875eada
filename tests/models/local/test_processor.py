"""`ConstraintProcessor` in transformers' own `generate`: rows of a batch that end at different
steps, beams, a second use.
"""

from __future__ import annotations

import pytest
from tiny_llama import needs_torch, save_tiny_llama

from ferrule import Tool
from ferrule.errors import ConstraintError
from ferrule.local import CallForm, Constraint, ConstraintProcessor, Vocabulary


def add(a: int, b: bool = True) -> int:
    """Add."""
    return a


def stop() -> str:
    """Stop."""
    return ""


DECLARATIONS = [Tool(each).declaration for each in (add, stop)]
FORM = CallForm(intention=False)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    import transformers

    folder = save_tiny_llama(tmp_path_factory.mktemp("tiny"), padded=400)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    vocabulary = Vocabulary.from_json(
        tokenizer.backend_tokenizer.to_str(),
        eos=model.generation_config.eos_token_id,
        size=400,
    )
    return model, tokenizer, Constraint.of_calls(vocabulary, DECLARATIONS, form=FORM)


def generate(loaded, processor, rows=1, **options):
    import torch

    model, tokenizer, _ = loaded
    inputs = tokenizer(["hi"] * rows, return_tensors="pt")
    torch.manual_seed(0)
    return model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        logits_processor=[processor],
        pad_token_id=258,
        **options,
    )


@needs_torch
@pytest.mark.parametrize(
    "options",
    [{"do_sample": True, "temperature": 1.0, "top_k": 0}, {"do_sample": False}],
    ids=["sampled", "greedy"],
)
def test_rows_of_a_batch_are_calls_and_end_at_steps_of_their_own(loaded, options):
    processor = ConstraintProcessor(loaded[2])
    found = generate(loaded, processor, rows=8, max_new_tokens=300, **options)
    names = [each.calls[0].name for each in processor.answers(found)]
    assert set(names) <= {"add", "stop"}
    assert len(names) == 8


@needs_torch
def test_a_cut_row_is_no_answer(loaded):
    processor = ConstraintProcessor(loaded[2])
    with pytest.raises(ConstraintError, match="is incomplete"):
        processor.answers(generate(loaded, processor, max_new_tokens=4, do_sample=True))


@needs_torch
def test_beam_search_and_a_second_use_are_refused(loaded):
    with pytest.raises(ConstraintError, match="without beam search"):
        generate(
            loaded,
            ConstraintProcessor(loaded[2]),
            max_new_tokens=60,
            num_beams=4,
            do_sample=False,
        )
    processor = ConstraintProcessor(loaded[2])
    generate(loaded, processor, max_new_tokens=60, do_sample=True)
    with pytest.raises(ConstraintError, match="Make another one"):
        generate(loaded, processor, max_new_tokens=60, do_sample=True)


@needs_torch
def test_the_same_seed_gives_the_same_text(loaded):
    texts = [
        generate(
            loaded,
            ConstraintProcessor(loaded[2]),
            max_new_tokens=200,
            do_sample=True,
            top_k=0,
        ).tolist()
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
