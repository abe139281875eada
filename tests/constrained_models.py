"""Calls that are valid by construction, from models with random weights: transformers, llama.cpp
and its server, and whole agents.

What is not installed is left out, and named. `scripts/constrained.sh` runs it after
`constrained.py`, which has the tools.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
from constrained import BOUNDS, DECLARATIONS, TOOLS
from mcp_servers import free_port, listening
from model_servers import GGUF, LLAMA

from ferrule import LM, AdapterParseError, Limits, Message, Messages, ReAct, Request
from ferrule.local import CallForm, Constraint, ConstraintProcessor, Vocabulary
from ferrule.values.conversation.exchange import Declarations, Shape

HI = Messages([Message("user", "hi")])
CHANCE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def is_valid(name: str, arguments: dict[str, Any]) -> bool:
    """Whether JSON, jsonschema and pydantic take a call."""
    tool = TOOLS[name]
    jsonschema.validate(
        json.loads(json.dumps(arguments, allow_nan=False)),
        tool.declaration["function"]["parameters"],
    )
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
    most = 2_000
    for thought, wanted in ((0, number), (100, number * 2 // 5)):
        constraint = Constraint.of_calls(
            vocabulary,
            DECLARATIONS,
            form=CallForm(thought_chars=thought),
            bounds=BOUNDS,
        )
        started, valid, made = time.perf_counter(), 0, 0
        while made < wanted:
            processor, batch = ConstraintProcessor(constraint), min(rows, wanted - made)
            torch.manual_seed(made)
            inputs = tokenizer(["hi"] * batch, return_tensors="pt")
            given = {
                "input_ids": inputs["input_ids"],
                "attention_mask": inputs["attention_mask"],
                "pad_token_id": tokenizer.pad_token_id,
            }
            found = model.generate(
                **given,
                logits_processor=[processor],
                max_new_tokens=most,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
            )
            for answer in processor.answers(found):
                [call] = answer.calls
                valid += is_valid(call.name, call.args) and bool(call.intention)
            made += batch
        after = f" after a thought of at most {thought} characters" if thought else ""
        print(
            f"transformers: {valid}/{wanted} valid calls{after}, {time.perf_counter() - started:.0f} s",
        )


def report_agent(name: str, lm: Any, runs: int) -> None:
    """Print what whole runs of an agent on a random model did."""
    agent = ReAct(
        "question -> answer: int",
        [*TOOLS.values()],
        max_iters=4,
        limits=Limits(tool_calls=10),
        on_limit="extract",
        enable_user_clarification=False,
    )
    steps = faults = ended = 0
    for seed in range(runs):
        try:
            found = agent(question="What now?", lm=lm, config={"seed": seed})
        except AdapterParseError:  # the most tokens cut the answer
            continue
        ended += 1
        assert type(found.answer) is int
        results = [result for step in found.trajectory.steps for result in step.results]
        steps += len(found.trajectory.steps)
        faults += sum(result.is_fault for result in results)
    print(f"{name}: {ended}/{runs} runs of an agent ended, {steps} steps, {faults} faulty calls")


def report_calls(name: str, lm: Any, number: int) -> None:
    """Print how many single calls of an agent's step are valid."""
    agent = ReAct(
        "question -> answer: int",
        [*TOOLS.values()],
        max_iters=1,
        enable_user_clarification=False,
    )
    valid = cut = 0
    for seed in range(number):
        try:
            [step] = agent(question="What now?", lm=lm, config={"seed": seed}).trajectory.steps
        except AdapterParseError:  # the most tokens cut the answer
            cut += 1
            continue
        if not step.calls:
            cut += 1
            continue
        valid += all(call.name == "finish" or is_valid(call.name, call.args) for call in step.calls)
    print(f"{name}: {valid}/{number - cut} steps are one valid call; {cut} more were cut")


def report_server(folder: Path, number: int) -> None:
    """Print how many calls of llama.cpp's server are valid, which gets the grammar with each
    request.
    """
    port = free_port()
    (folder / "serve.py").write_text(LLAMA)
    command = [
        sys.executable,
        *(str(folder / each) for each in ("serve.py", "tiny.gguf")),
        str(port),
        str(folder / "none"),
        "2000",
    ]
    with listening(command, {}, port):
        lm = LM(
            f"http://127.0.0.1:{port}/v1",
            model="m",
            temperature=1.0,
            max_retries=0,
            max_tokens=2_000,
        ).constrained(thought_chars=30)
        valid = cut = 0
        for seed in range(number):
            settings = {"seed": seed}
            found = lm.complete(
                Request(
                    HI,
                    Declarations(DECLARATIONS),
                    "required",
                    shape=Shape("call"),
                    settings=settings,
                ),
            )
            valid += (
                all(is_valid(call.name, call.args) for call in found.tool_calls)
                and len(found.tool_calls) == 1
            )
            cut += found.finish_reason == "length" and not found.tool_calls
        print(
            f"llama.cpp's server: {valid}/{number - cut} valid calls; {cut} more answers were cut after 2000 tokens, and have no call",
        )


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--number",
        type=int,
        default=1_000,
        help="calls for the first figure; the others are parts of it",
    )
    parser.add_argument("--rows", type=int, default=50, help="rows of a batch")
    options = parser.parse_args()
    some, runs = max(1, options.number // 10), max(1, options.number // 200)
    with tempfile.TemporaryDirectory() as folder:
        if find_spec("torch") is None or find_spec("transformers") is None:
            print("transformers: left out, pip install torch transformers")
        else:
            from tiny_llama import save_tiny_llama

            place = save_tiny_llama(Path(folder))
            report_transformers(place, options.number, options.rows)
            report_agent(
                "transformers",
                LM(f"local:{place}", max_tokens=400, thought_chars=60, **CHANCE),
                runs,
            )
        path = Path(folder) / "tiny.gguf"
        if find_spec("llama_cpp") is None or find_spec("gguf") is None:
            print("llama_cpp: left out, pip install llama-cpp-python gguf")
        else:
            exec(GGUF, {"path": path})
            report_calls(
                "llama_cpp",
                LM(f"llama_cpp:{path}", max_tokens=250, thought_chars=0, **CHANCE),
                some,
            )
            report_agent(
                "llama_cpp",
                LM(f"llama_cpp:{path}", max_tokens=400, thought_chars=60, **CHANCE),
                runs,
            )
        if find_spec("xllamacpp") is None or find_spec("gguf") is None:
            print("llama.cpp's server: left out, pip install xllamacpp gguf")
        else:
            report_server(Path(folder), some)


if __name__ == "__main__":
    main()
