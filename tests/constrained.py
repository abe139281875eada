"""Calls that are valid by construction: what a model without any knowledge writes, and what the
masks cost.

Needs llguidance alone. The vocabulary of 32,000 tokens is made of text of this repository, with
pieces of JSON; the sampler is a model with random weights at temperature 1, without top-k and
top-p. Each figure of time stands beside the engine's own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import jsonschema
from pydantic import BaseModel, Field

from ferrule import Tool
from ferrule.models.local.constraint import CONSTRAINTS, Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.models.local.vocabulary import Vocabulary, make_matcher
from ferrule.schema.lowering.bound import Bounds
from ferrule.testing import byte_vocabulary

if TYPE_CHECKING:
    from ferrule.models.local.matcher import Matcher

ROOT = Path(__file__).parents[1]
SIZE = 32_000
BOUNDS = Bounds(chars=60, items=4)


class Address(BaseModel):
    """Where to."""

    street: str = Field(min_length=1, max_length=40)
    postcode: str = Field(pattern=r"^\d{4} ?[A-Z]{2}$")


class Node(BaseModel):
    """A part of a plan."""

    label: Literal["goal", "step"]
    text: str
    parts: list[Node] = []


def order(
    item: Literal["book", "pen"],
    count: Annotated[int, Field(ge=1, le=99)],
    address: Address,
    tags: list[str] = [],
) -> str:
    """Order something."""
    return f"{count} {item} {address} {tags}"


def plan(tree: Node, due: date | None = None) -> str:
    """Plan."""
    return f"{tree} {due}"


def search(
    query: str,
    limit: Annotated[int, Field(gt=0, le=50)] = 10,
    kinds: list[Literal["page", "image"]] | None = None,
) -> str:
    """Search."""
    return f"{query} {limit} {kinds}"


def pay(
    amount: Annotated[float, Field(gt=0, lt=10_000)],
    iban: Annotated[str, Field(pattern=r"^[A-Z]{2}\d{2}[A-Z0-9]{10,30}$")],
) -> str:
    """Pay."""
    return f"{amount} {iban}"


def label(values: dict[str, int | str], note: str | None = None) -> str:
    """Label."""
    return f"{values} {note}"


TOOLS = {each.name: each for each in map(Tool, (order, plan, search, pay, label))}
DECLARATIONS = [each.declaration for each in TOOLS.values()]


def vocabulary_of_text(size: int = SIZE) -> Vocabulary:
    """Bytes, and the most frequent pieces of this repository's text and of JSON."""
    pieces: Counter[bytes] = Counter()
    for path in sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("src/ferrule/**/*.py"))[:150]:
        text = path.read_bytes()
        for word in text.split(b" "):
            for n in range(2, 12):
                pieces.update(
                    b" " * k + word[i : i + n]
                    for i in range(0, max(1, len(word) - n + 1), 2)
                    for k in (0, 1)
                    if word[i : i + n]
                )
    marks = [
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'\\"',
        b"}}",
        b'"}',
        b'":',
        b'","',
        b'":"',
        b'":{"',
        b"[[",
        b"]]",
        b'"]',
        b"},{",
        b'{"',
    ]
    wanted = dict.fromkeys(
        [
            *(bytes([i]) for i in range(256)),
            *marks,
            *(each for each, _ in pieces.most_common(size)),
        ],
    )
    tokens = list(wanted)[: size - 2]
    return Vocabulary(
        [*tokens, b"<tool_call>", b"</s>"],
        eos=[len(tokens) + 1],
        special=[len(tokens)],
        size=size + 64,
    )


class Sampler:
    """A model with random weights: scores that depend on the last token alone, drawn once for each."""

    def __init__(self, size: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._size = size

    def next(self, mask: bytes) -> int:
        """One of the tokens that the mask admits, each as likely as any other."""
        words = int.from_bytes(mask, "little")
        count = words.bit_count()
        if count < 64:
            chosen = self._chance.randrange(count)
            for _ in range(chosen):
                words &= words - 1
            return (words & -words).bit_length() - 1
        while True:
            token = self._chance.randrange(self._size)
            if mask[token // 8] >> token % 8 & 1:
                return token


def walk(matcher: Matcher, sampler: Sampler, most: int = 100_000) -> Matcher:
    """Write until the answer is whole."""
    while not matcher.is_finished and len(matcher.tokens) < most:
        matcher.accept(sampler.next(matcher.mask()))
    return matcher


def is_valid(text: str, opener: str = "") -> bool:
    """Whether a text is one call that JSON, jsonschema and pydantic take."""
    found = json.loads(
        text.partition(opener)[2] if opener else text,
        parse_constant=lambda name: 1 / 0,
    )
    tool = TOOLS[found["name"]]
    jsonschema.validate(found["arguments"], tool.declaration["function"]["parameters"])
    tool(**found["arguments"])
    return list(found) == ["intention", "name", "arguments"]


def count_valid(constraint: Constraint, number: int, opener: str = "") -> tuple[int, float]:
    """How many of so many walks are valid calls, and the mean of their tokens."""
    valid = tokens = 0
    for seed in range(number):
        matcher = walk(constraint.matcher(), Sampler(constraint.vocabulary.size, seed))
        tokens += len(matcher.tokens)
        valid += is_valid(matcher.text, opener)
    return valid, tokens / number


def percentiles(times: list[float]) -> str:
    """The median and the 99th of a hundred, in microseconds."""
    ordered = sorted(times)
    return f"p50 {ordered[len(ordered) // 2] * 1e6:6.1f} us, p99 {ordered[len(ordered) * 99 // 100] * 1e6:7.1f} us"


def time_masks(constraint: Constraint) -> tuple[list[float], list[float]]:
    """Times of mask and token of ferrule and of the engine itself, over the same tokens."""
    ours: list[float] = []
    raw: list[float] = []
    start = make_matcher(constraint.vocabulary.tokenizer, constraint.lark)
    for seed in range(20):
        tokens = walk(constraint.matcher(), Sampler(constraint.vocabulary.size, seed)).tokens
        matcher = constraint.matcher()
        bare = start.deep_copy()
        for token in tokens:
            both = (
                (ours, matcher.mask, matcher.accept),
                (raw, bare.compute_bitmask, bare.consume_token),
            )
            for times, mask, accept in both if token % 2 else both[::-1]:
                started = time.process_time_ns()
                mask()
                accept(token)
                times.append((time.process_time_ns() - started) / 1e9)
    return ours, raw


def memory_mb() -> float:
    """Memory of this process now, where the system tells it (Linux)."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return float("nan")
    return int(pages) * resource.getpagesize() / 2**20


def timed(call: Any) -> tuple[Any, float]:
    """A result and the milliseconds of CPU that it took."""
    started = time.process_time_ns()
    return call(), (time.process_time_ns() - started) / 1e6


def many(number: int) -> list[dict[str, Any]]:
    """Declarations of so many tools."""
    return [
        {
            "type": "function",
            "function": {**each["function"], "name": f"{each['function']['name']}_{i}"},
        }
        for i in range(number // len(DECLARATIONS))
        for each in DECLARATIONS
    ]


def report_validity(vocabulary: Vocabulary, name: str, number: int) -> None:
    """Print how many answers are valid calls."""
    # Bounded: a random walk through a recursive schema or a free text may be endless.
    plain = Constraint.of_calls(vocabulary, DECLARATIONS, bounds=BOUNDS)
    valid, tokens = count_valid(plain, number)
    print(f"{name}: {valid}/{number} valid calls ({tokens:.0f} tokens on average)")
    thought = CallForm(thought_chars=200)
    thinking = Constraint.of_calls(vocabulary, DECLARATIONS, form=thought, bounds=BOUNDS)
    some = max(1, number * 2 // 5)
    valid, tokens = count_valid(thinking, some, "<tool_call>")
    print(f"{name}: {valid}/{some} valid calls after a thought ({tokens:.0f} tokens on average)")


def report_types(walks: int) -> None:
    """Print how many random values of every type that pydantic knows are refused."""
    from argument_types import TYPES, rejected

    found = {name: refused for name in TYPES if (refused := rejected(name, walks))}
    print(
        f"{len(TYPES)} types, {walks} walks each: {sum(map(len, found.values()))} refused",
        *found.items(),
    )


def report_schemas() -> None:
    """Print what a grammar makes of schemas of every kind, and how many it widens without a word."""
    from bench_schemas import SCHEMAS, judged

    found = [judged(each) for each in SCHEMAS.values()]
    levels = ", ".join(
        f"{number} {level}" for level, number in Counter(level for level, _ in found).items()
    )
    print(
        f"{len(found)} schemas: {levels}; {sum(bool(faults) for _, faults in found)} widened in silence",
    )


def report_cost(vocabulary: Vocabulary) -> None:
    """Print times and memory beside those of the engine."""
    before = memory_mb()
    _, built = timed(lambda: vocabulary.tokenizer)
    _, again = timed(lambda: vocabulary.tokenizer)
    print(
        f"tokenizer of {vocabulary.size} ids: {built:.0f} ms, {memory_mb() - before:.0f} MB; again {again:.3f} ms",
    )
    for number in (5, 200):
        declarations = many(number)
        before = memory_mb()
        made, took = timed(
            lambda declarations=declarations: Constraint.of_calls(vocabulary, declarations),
        )
        _, first = timed(lambda made=made: made.matcher().mask())
        more = memory_mb() - before
        _, raw = timed(lambda made=made: make_matcher(vocabulary.tokenizer, made.lark))
        hits = CONSTRAINTS.hits
        _, again = timed(
            lambda declarations=declarations: Constraint.of_calls(
                vocabulary,
                declarations,
            ).matcher(),
        )
        kept = CONSTRAINTS.hits - hits
        print(
            f"{number} tools: compile {took:.1f} ms (engine alone {raw:.1f}), first mask {first:.1f} ms, {more:.0f} MB",
        )
        print(f"{number} tools again: {again:.2f} ms, {kept} hit")
    if vocabulary.size > 2 * SIZE:
        return
    ours, raw = time_masks(Constraint.of_calls(vocabulary, DECLARATIONS, bounds=BOUNDS))
    ratio = sum(ours) / sum(raw)
    mean, worst = sum(ours) / len(ours) * 1e3, max(ours) * 1e3
    print(f"mask and token: {percentiles(ours)}; engine {percentiles(raw)}; {ratio:.2f} times")
    print(f"mask and token: mean {mean:.3f} ms, worst {worst:.1f} ms")


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000, help="walks for each figure")
    number: int = parser.parse_args().number
    report_types(max(1, number * 3 // 10))
    report_schemas()
    words = vocabulary_of_text()
    report_cost(words)
    report_cost(vocabulary_of_text(4 * SIZE))
    report_validity(words, "32k tokens", number)
    report_validity(byte_vocabulary(), "bytes", max(1, number // 10))


if __name__ == "__main__":
    main()
