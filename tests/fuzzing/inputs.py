"""Texts, schemas and values: fragments of what models and servers write, put together by chance or
repeated.
"""

from __future__ import annotations

import random
from typing import Any

FRAGMENTS = (
    "[[ ## answer ## ]]\n", "[[ ## ", " ## ]]", "<answer>", "</answer>", "<answer", "<![CDATA[", "]]>", "<think>", "</think>", "[THINK]",
    "<tool_call>", "</tool_call>", '{"name": "add", "arguments": {"a": 1}}', "{'name': 'add', 'args': {'a': 1}}", "add(a=1, b=2)\n", "add(",
    "<function=add>", "<parameter=a>", "</function>", '<invoke name="add">', "[TOOL_CALLS]add[ARGS]", "<|python_tag|>", "functools[",
    "<|channel|>analysis<|message|>", "<|channel|>commentary to=functions.add", "<|call|>", "<|end|>", "Action: add\nAction Input: ",
    "Observation: ", "✿FUNCTION✿: add\n✿ARGS✿: ", "```json\n", "```", "~~~", "`", "> ", "for example, ", "do not run ", "{", "}", "[", "]", "(",
    ")", ",", ":", '"', "'", "\\", '\\"', "\\u", "\\ud83d", "//", "/*", "*/", "# ", '{"a":', '"a": 1, ', "[1],", "null", "NaN", "-", "1",
    "9" * 400, "0x1F", "True", " ", "\n", "\r\n", " \n", "\t", "\x00", "\x1b[31m", "\u2028", "\u202e", "\ufeff", "\ud800", "😀", "ß", "a", "a ", "=",
    "*", "|", "<", ">", "/>", "$", "&lt;", "lambda x: ", "f'{x}'", "1 if 2 else ", "await ", ":param a: x\n", "Args:\n    a: ", "data: {}\n\n",
    "https://ann:secret@a.example/?key=1 ", "api_key=abc&", "x = ", "...",
)  # fmt: skip
OPENINGS = (
    "",
    "[[ ## answer ## ]]\n",
    '{"answer": "',
    '{"found": {',
    "<answer>",
    "<tool_call>",
    "add(a=",
    "```json\n",
    "Action: add\nAction Input: {",
)
_KEYS = (
    "type", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$defs", "$id",
    "$schema", "enum", "const", "pattern", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames", "contains",
    "minItems", "uniqueItems", "minimum", "multipleOf", "minLength", "format", "title", "description", "default", "dependentRequired",
)  # fmt: skip
_ODD = (None, True, False, 0, -1, 7, 10**30, 10**400, 1.5, float("nan"), float("inf"), "", "a", "7", "null", "[1]", "\ud800", "x" * 100, "#", "#/$defs/a",
        "object", "array", "string", "integer", "^(a+)+$", "(", "(?=a)b", "http://127.0.0.1:9/x", "file:///etc/passwd")  # fmt: skip


def text(chance: random.Random) -> str:
    """Some fragments in a row, one of them many times, or characters."""
    match chance.randrange(3):
        case 0:
            return "".join(
                chance.choice(FRAGMENTS) + chance.choice(("", "", " ", "\n"))
                for _ in range(chance.randrange(1, 40))
            )
        case 1:
            return (
                chance.choice(OPENINGS)
                + chance.choice(FRAGMENTS) * chance.randrange(1, 300)
                + chance.choice(FRAGMENTS)
            )
        case _:
            return "".join(
                chr(chance.choice((chance.randrange(128), chance.randrange(0x110000))))
                for _ in range(chance.randrange(60))
            )


def value(chance: random.Random, depth: int = 3) -> Any:
    """A value of JSON, or nearly one."""
    kind = chance.randrange(4) if depth else 0
    if kind == 1:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 2:
        return {
            chance.choice(("a", "b", "name", "\ud800", "")): value(chance, depth - 1)
            for _ in range(chance.randrange(4))
        }
    return chance.choice((*_ODD, text(chance)[:80]))


def schema(chance: random.Random, depth: int = 4) -> Any:
    """A JSON schema, or nearly one."""
    if not depth or chance.random() < 0.1:
        return chance.choice(
            (
                {},
                True,
                False,
                {"type": "string"},
                {"$ref": "#"},
                {"$ref": "#/$defs/a"},
                value(chance, 1),
            ),
        )
    made = {key: _keyword(chance, depth) for key in chance.choices(_KEYS, k=chance.randrange(1, 6))}
    return {"type": "object", **made} if depth == 4 and chance.random() < 0.7 else made


def _keyword(chance: random.Random, depth: int) -> Any:
    match chance.randrange(5):
        case 0:
            return schema(chance, depth - 1)
        case 1:
            return [schema(chance, depth - 1) for _ in range(chance.randrange(3))]
        case 2:
            return {name: schema(chance, depth - 1) for name in "abc"[: chance.randrange(4)]}
        case 3:
            return value(chance, 2)
        case _:
            return chance.choice((*_ODD, ["a"]))
