"""Calls that are valid by construction, from models with random weights: transformers, llama.cpp, and a whole agent.

What is not installed is left out, and named. `make constrained` runs it after `constrained.py`, which has the tools.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
from constrained import DECLARATIONS, TOOLS

from ferrule import LM, CallForm, Constraint, ConstraintProcessor, Limits, ReAct, Vocabulary

CHANCE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def is_valid(name: str, arguments: dict[str, Any]) -> bool:
    """Whether JSON, jsonschema and pydantic take a call."""
    tool = TOOLS[name]
    jsonschema.validate(json.loads(json.dumps(arguments, allow_nan=False)), tool.declaration["function"]["parameters"])
    tool(**arguments)
    return True


def report_transformers(folder: str, number: int, rows: int) -> None:
    """Print how many calls of a random Llama are valid, alone and after a thought, in batches."""
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.set_num_threads(1)  # the model is tiny: threads would only wait for one another
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ends, size = model.generation_config.eos_token_id, model.config.vocab_size
    vocabulary = Vocabulary.from_json(tokenizer.backend_tokenizer.to_str(), eos=ends, size=size)
    for thought, wanted, budget in ((0, number, 2_000), (100, number * 2 // 5, 2_000)):
        constraint = Constraint.of_calls(vocabulary, DECLARATIONS, form=CallForm(thought_chars=thought))
        started, valid, made = time.perf_counter(), 0, 0
        while made < wanted:
            processor, batch = ConstraintProcessor(constraint, budget=budget), min(rows, wanted - made)
            torch.manual_seed(made)
            inputs = tokenizer(["hi"] * batch, return_tensors="pt")
            given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"], "pad_token_id": tokenizer.pad_token_id}
            found = model.generate(
                **given, logits_processor=[processor], max_new_tokens=budget + 1, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
            )
            for answer in processor.answers(found):
                [call] = answer.calls
                valid += is_valid(call.name, call.args) and bool(call.intention)
            made += batch
        after = f" after a thought of at most {thought} characters" if thought else ""
        print(f"transformers: {valid}/{wanted} valid calls{after} within {budget} tokens, {time.perf_counter() - started:.0f} s")


def report_agent(name: str, runs: int) -> None:
    """Print what whole runs of an agent on a random model did."""
    lm = LM(name, max_tokens=400, thought_chars=60, **CHANCE)
    agent = ReAct("question -> answer: int", [*TOOLS.values()], max_iters=4, limits=Limits(tool_calls=10), enable_user_clarification=False)
    steps = faults = 0
    for seed in range(runs):
        found = agent(question="What now?", lm=lm, config={"seed": seed})
        assert type(found.answer) is int
        results = [result for step in found.trajectory.steps for result in step.results]
        steps += len(found.trajectory.steps)
        faults += sum(result.is_fault for result in results)
    print(f"{name.partition(':')[0]}: {runs}/{runs} runs of an agent ended, {steps} steps, {faults} faulty calls")


def report_calls(name: str, number: int) -> None:
    """Print how many single calls of an agent's step are valid."""
    lm = LM(name, max_tokens=250, thought_chars=0, **CHANCE)
    agent = ReAct("question -> answer: int", [*TOOLS.values()], max_iters=1, enable_user_clarification=False)
    valid = 0
    for seed in range(number):
        [step] = agent(question="What now?", lm=lm, config={"seed": seed}).trajectory.steps
        valid += all(call.name == "finish" or is_valid(call.name, call.args) for call in step.calls) and bool(step.calls)
    print(f"{name.partition(':')[0]}: {valid}/{number} steps are one valid call")


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000, help="calls for the first figure; the others are parts of it")
    parser.add_argument("--rows", type=int, default=50, help="rows of a batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if find_spec("torch") is None or find_spec("transformers") is None:
            print("transformers: left out, pip install torch transformers")
        else:
            from tiny_llama import save_tiny_llama

            place = save_tiny_llama(Path(folder))
            report_transformers(place, options.number, options.rows)
            report_agent(f"local:{place}", max(1, options.number // 200))
        if find_spec("llama_cpp") is None or find_spec("gguf") is None:
            print("llama_cpp: left out, pip install llama-cpp-python gguf")
        else:
            from model_servers import GGUF

            path = Path(folder) / "tiny.gguf"
            exec(GGUF, {"path": path})
            report_calls(f"llama_cpp:{path}", max(1, options.number // 10))


if __name__ == "__main__":
    main()
