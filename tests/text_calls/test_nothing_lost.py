"""Of several well-formed calls none is lost, in any dialect, whatever is in their arguments or
around them.

`make fuzz` tries more examples of each.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ferrule import ToolCalls

if TYPE_CHECKING:
    from collections.abc import Callable

SOME = settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))
"""Examples of each dialect."""
Call = tuple[str, dict[str, Any]]


def declared(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


TEXT, WHOLE, LIST = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "array", "items": {"type": "string"}},
)
TOOLS = [
    declared("search", {"query": TEXT, "limit": WHOLE, "tags": LIST}, ["query"]),
    declared(
        "weather.get_forecast",
        {"city": TEXT, "days": WHOLE, "detailed": {"type": "boolean"}},
        ["city"],
    ),
    declared("set_options", {"options": {"type": "object"}, "note": TEXT}, ["options"]),
]

MARKS = st.sampled_from(
    ["</tool_call>", "<tool_call>", "```json\n", "```", "```\n", "[TOOL_CALLS]", "</s>", "<|im_end|>", "search(query='x')", "[search(query='x')]",
     '{"name": "search", "arguments": {"query": "x"}}', "</think>", "</think>\n", "<think>", "</parameter>", "</function>", "<function=search>",
     "</arg_value>", "<tools>", "<tool_response>", "</invoke>", "<|call|>", "<|channel|>analysis<|message|>", "to=functions.search", "call:search{",
     "\n", "\\n", "\\", '"', "'", "'''", '"""', "{", "}", "[", "]", "(", ")", ",", ";", "#", "//", "/*", "*/", "=", "User: a", "\nUser: a",
     "\nObservation: 3", "For example: ", "Example:\n", "> ", "\n> ", "quoted and ignored:", "Action: search\nAction Input: {}", "😀", "é", "\u2028",
     "\x00", "\x7f", "null", "True", "1", "-", "datetime(1, 2)", "%", "&lt;", "&amp;", "\r\n", "\t", " ", "a", "again", "import os\n", "lambda: 1"],
)  # fmt: skip
WORDS = st.one_of(st.lists(MARKS, max_size=6).map("".join), st.text(max_size=12))
VALUES = st.recursive(
    st.one_of(
        WORDS,
        st.integers(-(10**12), 10**12),
        st.floats(-1e6, 1e6),
        st.booleans(),
        st.none(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.one_of(
    st.tuples(
        st.just("search"),
        st.fixed_dictionaries(
            {"query": WORDS},
            optional={"limit": st.integers(), "tags": st.lists(WORDS, max_size=3)},
        ),
    ),
    st.tuples(
        st.just("weather.get_forecast"),
        st.fixed_dictionaries(
            {"city": WORDS},
            optional={"days": st.integers(), "detailed": st.booleans()},
        ),
    ),
    st.tuples(
        st.just("set_options"),
        st.fixed_dictionaries(
            {"options": st.dictionaries(WORDS, VALUES, max_size=3)},
            optional={"note": WORDS},
        ),
    ),
)


def same(call: Call) -> str:
    """Equal for equal calls: between words, a call that is written again counts once."""
    return json.dumps(call, sort_keys=True)


SEVERAL = st.lists(CALLS, min_size=1, max_size=4, unique_by=same)
BEFORE = st.sampled_from(
    ["", "Let me look.\n", "I'll do it (now):\n\n", 'He said "hm" and {that} was [it].\n', "It's 5 o'clock; don't wait.\n\n",
     "**Plan:**\n1. look\n2. act\n\n", "<b>Now</b>:\n", "x = {1: 2}\n", "`code` first\n", "```sh\nls\n```\n", '<think>maybe {"a": [1 </think>\n',
     "I could search({'a': [1, \n</think>\n\n", "😀 \u2028 é!\n", '{"a": "b"}\n', "User: cats?\n\n", "<tools>[]</tools>\n", "A ``` b c\n", "/* a\n"],
)  # fmt: skip
BEHIND = st.sampled_from(
    ["", "\n", "\n\nThat is all.", "\n\nI wait (for it).", "<|im_end|>", "\n```\nend\n```", '\n{"a": 1}', "\n\nIt's \"done\" {", "\n> said\n",
     "\n\nUser: thanks", "\n<tool_response>\n3", "\n\n[", "\n\n/*", "\n\n'''"],
)  # fmt: skip


def as_json(call: Call, name: str = "name", arguments: str = "arguments") -> str:
    return json.dumps({name: call[0], arguments: call[1]})


def raw_json(call: Call) -> str:
    return json.dumps({"name": call[0], "arguments": call[1]}, ensure_ascii=False)


def args(call: Call) -> str:
    return json.dumps(call[1])


def python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


PIPE, BLOCK = "\uff5c", "\u2581"


def deep(words: str) -> str:
    return f"<{PIPE}{words.replace(' ', BLOCK)}{PIPE}>"


def each(
    form: Callable[[Call], str],
    between: str = "\n",
    begin: str = "",
    end: str = "",
) -> Callable[[list[Call]], str]:
    return lambda calls: begin + between.join(map(form, calls)) + end


def tagged(call: Call, begin: str, argument: str, end: str) -> str:
    """A call with an argument in each tag: text is written without quotes."""
    return begin.format(call[0]) + "".join(argument.format(key, value if isinstance(value, str) else json.dumps(value)) for key, value in call[1].items()) + end.format(call[0])  # fmt: skip


ANNOUNCED: dict[str, Callable[[list[Call]], str]] = {
    "hermes": each(lambda call: f"<tool_call>\n{as_json(call)}\n</tool_call>"),
    "hermes raw": each(lambda call: f"<tool_call>\n{raw_json(call)}\n</tool_call>", ""),
    "hermes with words between": each(lambda call: f"<tool_call>{as_json(call)}</tool_call>", "\nAlso (for 'b'):\n"),
    "hermes fenced": each(lambda call: f"<tool_call>\n```json\n{as_json(call)}\n```\n</tool_call>"),
    "hermes python": each(lambda call: f"<tool_call>{python(call)}</tool_call>"),
    "hermes text arguments": each(lambda call: f"<tool_call>{json.dumps({'name': call[0], 'arguments': args(call)})}</tool_call>"),
    "hermes dicts": each(lambda call: f"<tool_call>{ {'name': call[0], 'arguments': call[1]} !r}</tool_call>"),
    "granite": each(lambda call: f"<function_call> {as_json(call)}", " "),
    "phi": each(as_json, ", ", "<|tool_call|>[", "]<|/tool_call|>"),
    "nemotron": each(as_json, ", ", "<TOOLCALL>[", "]</TOOLCALL>"),
    "minimax m1": each(as_json, "\n", "<tool_calls>\n", "\n</tool_calls>"),
    "internlm": each(lambda call: f"<|action_start|><|plugin|>\n{as_json(call, arguments='parameters')}<|action_end|>"),
    "cohere": each(lambda call: as_json(call, "tool_name", "parameters"), ",\n", "<|START_ACTION|>[", "]<|END_ACTION|>"),
    "inkling": each(lambda call: f"<|content_invoke_tool_json|>{as_json(call, arguments='args')}<|end_message|>", ""),
    "mistral": each(as_json, ", ", "[TOOL_CALLS] [", "]</s>"),
    "mistral args": each(lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{args(call)}", "", "", "</s>"),
    "llama": each(lambda call: as_json(call, arguments="parameters"), "; ", "<|python_tag|>", "<|eom_id|>"),
    "deepseek v3": each(
        lambda call: f"{deep('tool call begin')}function{deep('tool sep')}{call[0]}\n```json\n{args(call)}\n```{deep('tool call end')}",
        "\n", deep("tool calls begin"), deep("tool calls end"),
    ),
    "deepseek v3.1": each(
        lambda call: f"{deep('tool call begin')}{call[0]}{deep('tool sep')}{args(call)}{deep('tool call end')}",
        "", deep("tool calls begin"), deep("tool calls end"),
    ),
    "kimi": each(
        lambda call: f"<|tool_call_begin|>functions.{call[0]}:0<|tool_call_argument_begin|>{args(call)}<|tool_call_end|>",
        "", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    ),
    "harmony": each(
        lambda call: f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{args(call)}<|call|>", "<|start|>assistant",
    ),
    "functionary 2": each(lambda call: f"<|from|>assistant\n<|recipient|>{call[0]}\n<|content|>{args(call)}<|stop|>"),
    "functionary 3.1": each(lambda call: f"<function={call[0]}>{args(call)}</function>", ""),
    "hunyuan": each(lambda call: f"<tool_call>{call[0]}\n```json\n{args(call)}\n```\n</tool_call>", "\n", "<tool_calls>\n", "\n</tool_calls>"),
    "lfm": each(python, ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"),
    "llama 4": each(python, ", ", "<|python_start|>[", "]<|python_end|>"),
    "olmo": each(python, "\n", "<function_calls>\n", "\n</function_calls>"),
    "gorilla": each(lambda call: f"<<function>>{python(call)}", ""),
    "code to run": each(python, "\n", "```tool_code\n", "\n```"),
    "code to run, printed": each(lambda call: f"print(default_api.{python(call)})", "\n", "```tool_code\n", "\n```"),
    "code to run, among statements": each(lambda call: f"found = {python(call)}\nprint(found)", "\n", "```tool_code\n", "\n```"),
}  # fmt: skip

UNANNOUNCED: dict[str, Callable[[list[Call]], str]] = {
    "functionary 3.2": each(lambda call: f">>>{call[0]}\n{args(call)}", ""),
    "glm": each(lambda call: f"{call[0]}\n{args(call)}"),
    "qwen agent": each(lambda call: f"\u273fFUNCTION\u273f: {call[0]}\n\u273fARGS\u273f: {args(call)}"),
    "actions": each(lambda call: f"Thought: I look.\nAction: {call[0]}\nAction Input: {args(call)}"),
    "functools": each(as_json, ", ", "functools[", "]"),
    "pythonic": each(python, ", ", "[", "]"),
    "pythonic lines": each(python, ",\n    ", "[\n    ", ",\n]"),
    "lines": each(python),
    "numbered lines": lambda calls: "\n".join(f"{number}. {python(call)}" for number, call in enumerate(calls, 1)),
    "python fence": each(python, "\n", "```python\n", "\n```"),
    "json fence": each(as_json, ",\n", "```json\n[", "]\n```"),
    "json fences": each(lambda call: f"```json\n{as_json(call)}\n```"),
    "json list": each(as_json, ", ", "[", "]"),
    "json lines": each(as_json),
    "dicts": each(lambda call: repr({"name": call[0], "arguments": call[1]})),
    "keyed": each(lambda call: json.dumps({call[0]: call[1]}), ", ", "[", "]"),
    "xlam": lambda calls: json.dumps({"tool_calls": [{"name": name, "arguments": given} for name, given in calls]}),
    "openai": lambda calls: json.dumps(
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": call[0], "arguments": args(call)}} for call in calls]},
    ),
    "anthropic": each(lambda call: json.dumps({"type": "tool_use", "id": "t", "name": call[0], "input": call[1]})),
    "langchain": each(lambda call: f"```json\n{as_json(call, 'action', 'action_input')}\n```"),
}  # fmt: skip

TAGGED: dict[str, Callable[[list[Call]], str]] = {
    "qwen coder": each(
        lambda call: tagged(call, "<tool_call>\n<function={}>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>"),
    ),
    "qwen coder, bare": each(lambda call: tagged(call, "<function={}>", "<parameter={}>{}</parameter>", "</function>")),
    "invoke": each(
        lambda call: tagged(call, '<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>"),
        "\n", "<function_calls>\n", "\n</function_calls>",
    ),
    "minimax m2": each(
        lambda call: tagged(call, '<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>"),
        "\n", "<minimax:tool_call>\n", "\n</minimax:tool_call>",
    ),
    "glm 4.5": each(
        lambda call: tagged(call, "<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
    ),
    "longcat": each(
        lambda call: tagged(
            call, "<longcat_tool_call>{}\n", "<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>{}</longcat_arg_value>\n", "</longcat_tool_call>",
        ),
    ),
    "named tags": each(lambda call: tagged(call, "<{}>\n", "<{0}>{1}</{0}>\n", "</{}>")),
    "kimi k3": each(
        lambda call: tagged(
            call, '<|open|>call tool="{}" index="1"<|sep|>', '<|open|>argument key="{}"<|sep|>{}<|close|>argument<|sep|>', "<|close|>call<|sep|>",
        ),
        "", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>",
    ),
}  # fmt: skip


def assert_found(text: str, calls: list[Call]) -> None:
    found = [(each.name, each.args) for each in ToolCalls.from_text(text, TOOLS).tool_calls]
    assert json.dumps(found, sort_keys=True) == json.dumps(
        [list(each) for each in calls],
        sort_keys=True,
    ), text


def texts(calls: list[Call]) -> list[str]:
    return [each for _, given in calls for each in given.values() if isinstance(each, str)]


def may_be_a_comment(before: str, calls: list[Call]) -> bool:
    """Whether a comment is open before the calls and closed within one: then none is made."""
    return "/*" in before and "*/" in json.dumps(calls)


@pytest.mark.parametrize("dialect", ANNOUNCED.values(), ids=ANNOUNCED)
@SOME
@given(calls=SEVERAL, before=BEFORE, behind=BEHIND)
def test_announced_calls_are_found(
    dialect: Callable[[list[Call]], str],
    calls: list[Call],
    before: str,
    behind: str,
) -> None:
    assume(not may_be_a_comment(before, calls))
    assert_found(before + dialect(calls) + behind, calls)


@pytest.mark.parametrize("dialect", UNANNOUNCED.values(), ids=UNANNOUNCED)
@SOME
@given(calls=SEVERAL, before=BEFORE, behind=BEHIND)
def test_calls_without_an_announcement_are_found(
    dialect: Callable[[list[Call]], str],
    calls: list[Call],
    before: str,
    behind: str,
) -> None:
    # `{"query": "<your query>"}` shows how to call a tool.
    assume(
        not any(each.strip()[:1] in "<[{" and each.strip()[-1:] in ">]}." for each in texts(calls))
        and not {"...", "…"} & set(texts(calls)),
    )
    assume(not may_be_a_comment(before, calls))
    assert_found(before + dialect(calls) + behind, calls)


@pytest.mark.parametrize("dialect", TAGGED.values(), ids=TAGGED)
@SOME
@given(calls=SEVERAL, before=BEFORE, behind=BEHIND)
def test_calls_in_tags_are_found(
    dialect: Callable[[list[Call]], str],
    calls: list[Call],
    before: str,
    behind: str,
) -> None:
    assume(not may_be_a_comment(before, calls))
    # These dialects have no escapes: text that holds a tag or begins with a line break cannot be
    # written in them, nor text in quotes, which models put around any text.
    assume(
        not any(
            "<" in each or each != each.strip("\r\n") or re.fullmatch(r'\s*".*"\s*', each)
            for each in texts(calls)
        )
    )
    assert_found(before + dialect(calls) + behind, calls)


BAD = [
    "set_options(options=open('x'))",
    "set_options(options=)",
    "set_options(options={'a': x y})",
    "set_options(options=[1, 2)",
    "set_options(options=lambda: 1)",
]


@pytest.mark.parametrize("bad", BAD)
@SOME
@given(calls=st.lists(CALLS, min_size=2, max_size=4, unique_by=same), at=st.integers(0, 4))
def test_calls_beside_one_that_cannot_be_read_do_not_run_without_it(
    bad: str,
    calls: list[Call],
    at: int,
) -> None:
    written = [*map(python, calls)]
    written.insert(at, bad)
    for begin, between, end in (("[", ", ", "]"), ("<tool_call>[", ", ", "]</tool_call>"), ("<function_calls>\n", "\n", "\n</function_calls>"),
                                ("```tool_code\n", "\n", "\n```")):  # fmt: skip
        found = ToolCalls.from_text(begin + between.join(written) + end, TOOLS).tool_calls
        assert [each.fault is None for each in found] in ([], [False])


@SOME
@given(calls=st.lists(CALLS, min_size=2, max_size=4, unique_by=same), at=st.integers(0, 4))
def test_calls_beside_one_in_json_that_cannot_be_read_do_not_run_without_it(
    calls: list[Call],
    at: int,
) -> None:
    assume(
        not any(each.strip()[:1] in "<[{" and each.strip()[-1:] in ">]}." for each in texts(calls))
        and not {"...", "…"} & set(texts(calls)),
    )
    written = [*map(as_json, calls)]
    written.insert(at, '{"name": "set_options", "arguments": {"options": {}, "note": "a "b" c"}}')
    for begin, between, end in (
        ("[", ", ", "]"),
        ("", "\n", ""),
        ("Now:\n```json\n", "\n", "\n```\nSo."),
        ("```json\n[", ",\n", "]\n```"),
    ):
        found = ToolCalls.from_text(begin + between.join(written) + end, TOOLS).tool_calls
        assert [(each.name, each.args, each.fault is None) for each in found] == [
            ("set_options", {}, False)
        ]
